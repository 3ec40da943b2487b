"""Models that see against transformers: hidden states, vectors, labels, texts, and pixels against Pillow."""

import json
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

import rlx  # noqa: E402
from peers.test_models_classifiers import save_tokenizer  # noqa: E402
from rlx.models.picture_pixels import PictureRecipe, picture_recipe, pixels_of, resized  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
SEEN = TINY | {"image_size": 32, "patch_size": 8}
TEXT = TINY | {"hidden_size": 24, "vocab_size": 84, "max_position_embeddings": 20, "projection_dim": 12}
KINDS = {
    "vit": SEEN | {"qkv_bias": False},
    "dinov2": SEEN | {"layerscale_value": 0.5},
    "dinov2-gated": SEEN | {"use_swiglu_ffn": True},
    "dinov2-spread": SEEN | {"image_size": 48},
    "dinov2_with_registers": SEEN | {"num_register_tokens": 3},
    "clip_vision_model": SEEN,
    "siglip_vision_model": SEEN,
}


def filled(model, folder, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter += 0.3 * noise
            else:
                parameter.copy_(noise * float(np.prod(parameter.shape[1:])) ** -0.5)
    model.eval().save_pretrained(folder)
    recipe = {"size": {"height": 32, "width": 32}, "do_center_crop": False, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(recipe))
    return model


def pixels(count=3):
    return np.random.default_rng(5).normal(size=(count, 3, 32, 32)).astype("f4")


def run(model, **inputs):
    with torch.no_grad():
        return model(**{name: torch.tensor(value) for name, value in inputs.items()})


@pytest.mark.parametrize("name", KINDS)
def test_hidden_states_and_vectors_agree(name, tmp_path):
    config = transformers.AutoConfig.for_model(name.split("-")[0], **KINDS[name])
    peer = filled(transformers.AutoModel.from_config(config), tmp_path)
    more = {"interpolate_pos_encoding": True} if name == "vit" else {}
    with torch.no_grad():
        expected = peer(pixel_values=torch.tensor(pixels()), **more)
    model = rlx.load_vision(tmp_path)
    states, vectors = model._run(pixels())
    assert np.abs(expected.last_hidden_state.numpy()).max() > 0.5
    np.testing.assert_allclose(states, expected.last_hidden_state.numpy(), rtol=0, atol=1e-4)
    wanted = expected.last_hidden_state[:, 0] if name == "vit" else expected.pooler_output
    np.testing.assert_allclose(vectors, wanted.numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_labels_agree(name, tmp_path):
    config = transformers.AutoConfig.for_model(name, num_labels=5, **KINDS[name])
    peer = filled(transformers.AutoModelForImageClassification.from_config(config), tmp_path)
    model = rlx.load_vision(tmp_path)
    np.testing.assert_allclose(model._run(pixels())[2], run(peer, pixel_values=pixels()).logits, rtol=0, atol=1e-4)
    assert len(model.classify(np.zeros((40, 50, 3), np.uint8))) == 5 == len(model.labels)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("end", [2, 7])
def test_pictures_and_texts_agree(kind, end, tmp_path):
    text = TEXT | {"eos_token_id": end, "pad_token_id": 1}
    more = {"projection_dim": 12} if kind == "clip" else {}
    if kind == "siglip":
        text |= {"hidden_size": 32, "projection_size": 32}
    config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=SEEN, **more)
    peer = filled(transformers.AutoModel.from_config(config), tmp_path)
    save_tokenizer(tmp_path)
    model = rlx.load_vision(tmp_path)
    texts = ["w4 w79 w8 w3 w20", "w3", "w7 w3 w30 w3 w3 w10 w11"]
    ids = model.tokenizer.encode_batch(texts)
    width = 20 if kind == "siglip" else max(map(len, ids))
    rows = np.array([row + [1] * (width - len(row)) for row in ids])
    mask = (
        {} if kind == "siglip" else {"attention_mask": np.array([[1] * len(r) + [0] * (width - len(r)) for r in ids])}
    )
    expected = run(peer, input_ids=rows, pixel_values=pixels(), **mask)
    found = model._run(pixels())[1]
    found = found / np.linalg.norm(found, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected.image_embeds.numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(model.embed_texts(texts), expected.text_embeds.numpy(), rtol=0, atol=1e-4)
    pictures = np.random.default_rng(1).integers(0, 256, (2, 40, 30, 3)).astype(np.uint8)
    expected = run(peer, input_ids=rows, pixel_values=model.pixels(pictures), **mask).logits_per_image
    np.testing.assert_allclose(model.match(pictures, texts), expected.numpy(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("filter", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("size", [(20, 31), (64, 50), (37, 90), (7, 3), (100, 41)])
def test_resizing_gives_the_bytes_of_pillow(filter, size):
    image = pytest.importorskip("PIL.Image")
    given = np.random.default_rng(2).integers(0, 256, (37, 50, 3)).astype(np.uint8)
    number = {"bicubic": image.BICUBIC, "bilinear": image.BILINEAR, "nearest": image.NEAREST}[filter]
    expected = np.asarray(image.fromarray(given).resize(size[::-1], number))
    np.testing.assert_array_equal(resized(given, *size, filter), expected)


PROCESSORS = {
    "clip": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
    "vit": "ViTImageProcessor",
    "dinov2": "BitImageProcessor",
}


@pytest.mark.parametrize("kind", PROCESSORS)
# Not much taller than wide: those Pillow resizes in another order from version 13 on.
@pytest.mark.parametrize("shape", [(300, 400), (330, 310), (90, 60)])
def test_pixels_are_those_of_the_processor(kind, shape, tmp_path):
    image = pytest.importorskip("PIL.Image")
    names = [f"{PROCESSORS[kind]}Pil", PROCESSORS[kind]]
    maker = next(getattr(transformers, name) for name in names if hasattr(transformers, name))
    processor = maker()
    given = np.random.default_rng(3).integers(0, 256, (*shape, 3)).astype(np.uint8)
    try:
        expected = processor(image.fromarray(given), return_tensors="np").pixel_values[0]
    except ImportError as error:
        pytest.skip(f"transformers cannot process pictures here: {error}")
    recipe = picture_recipe(kind, json.loads(processor.to_json_string()), 224)
    np.testing.assert_allclose(pixels_of(given, recipe), expected, rtol=0, atol=1e-5)
    assert isinstance(recipe, PictureRecipe)
