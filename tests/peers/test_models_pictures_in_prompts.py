"""Language models that read pictures, against transformers: the pixels, the rows that they become, and the logits of a
prompt with pictures and words."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

import rlx  # noqa: E402
from peers.test_convert_oracle import save_tokenizer  # noqa: E402
from peers.test_models_decoders import randomize  # noqa: E402
from rlx.models.picture_pixels import as_bytes, resized  # noqa: E402
from rlx.models.picture_prompts import bucketed_places, picture_tiles  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

TEXT = {"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "vocab_size": 300, "pad_token_id": 0}
TOWER = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
IMAGE = 260


def picture(height, width, seed=0):
    """Waves, so that resizing matters, and noise."""
    rng, y, x = np.random.default_rng(seed), *np.mgrid[:height, :width]
    waves = [np.sin(y / (5 + c)) * np.cos(x / (7 - c)) * 90 + 128 for c in range(3)]
    return np.clip(np.stack(waves, -1) + rng.normal(size=(height, width, 3)) * 20, 0, 255).astype(np.uint8)


def saved(kind, folder, **more):
    if kind == "llava":
        vision = TOWER | {"model_type": "clip_vision_model", "image_size": 24, "patch_size": 6, "projection_dim": 8}
        settings = {"image_token_index": IMAGE, "projector_hidden_act": "gelu", "vision_feature_layer": -2}
    else:
        vision = TOWER | {"image_size": 32, "patch_size": 4}
        settings = {"image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(
        kind, text_config=TEXT | {"model_type": "llama"}, vision_config=vision, **settings | more
    )
    config._attn_implementation = "eager"
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    randomize(model, 3)
    model.save_pretrained(folder)
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()


def with_tokens(folder):
    """A tokenizer that has the marks of pictures at the place where the model looks for them."""
    save_tokenizer(folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    marks = ["<image>", "<fake_token_around_image>", "<global-img>"]
    marks += [f"<row_{i + 1}_col_{j + 1}>" for i in range(2) for j in range(3)]
    for number, mark in enumerate(marks):
        entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        document["added_tokens"].append({"id": IMAGE + number, "content": mark, **entry})
    (folder / "tokenizer.json").write_text(json.dumps(document))


def processor(kind, folder, **options):
    if kind == "llava":
        options = {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}} | options
        made = transformers.CLIPImageProcessorPil(**options)
    else:
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

        sizes = {"size": {"longest_edge": 80}, "max_image_size": {"longest_edge": 32}}
        made = SmolVLMImageProcessorPil(**sizes | options)
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("size", [(31, 90), (200, 77), (64, 64), (9, 13)])
def test_lanczos_is_that_of_pillow(size):
    image = pytest.importorskip("PIL.Image")
    pixels = picture(*size)
    for height, width in ((48, 70), (17, 33), (96, 20)):
        expected = np.asarray(image.fromarray(pixels).resize((width, height), image.Resampling.LANCZOS))
        found = resized(pixels, height, width, "lanczos")
        # Of tall pictures newer versions begin with the rows.
        turned = resized(pixels.swapaxes(0, 1), width, height, "lanczos").swapaxes(0, 1)
        assert (found == expected).all() or (turned == expected).all()


@pytest.mark.parametrize("size", [(50, 90), (90, 50), (20, 20), (30, 200), (61, 67)])
@pytest.mark.parametrize("options", [{}, {"do_image_splitting": False}, {"size": {"longest_edge": 32}}])
def test_tiles_are_those_of_the_processor(size, options, tmp_path):
    saved("smolvlm", tmp_path)
    made = processor("smolvlm", tmp_path, **options)
    parts = rlx.load(tmp_path)._picture_parts
    found, grid = picture_tiles(as_bytes(picture(*size)), parts)
    wanted = made(picture(*size), return_tensors="np", return_row_col_info=True)
    assert grid == (wanted["rows"][0][0], wanted["cols"][0][0])
    assert wanted["pixel_values"][0].shape == (len(found), 3, 32, 32)
    if size[0] <= size[1]:
        np.testing.assert_allclose(np.stack(found), wanted["pixel_values"][0], rtol=0, atol=1e-6)
    else:
        # Newer versions of Pillow begin with the rows of tall pictures, and round between.
        np.testing.assert_allclose(np.stack(found), wanted["pixel_values"][0], rtol=0, atol=8 / 127.5)


@pytest.mark.parametrize("trained", [2, 7, 16, 27, 32, 37])
def test_places_are_those_of_the_tower(trained):
    bounds = torch.arange(1 / trained, 1.0, 1 / trained)
    for wanted in (trained, 5, 26):
        starts = torch.clamp(torch.arange(wanted, dtype=torch.float32) * (1.0 / torch.tensor(wanted)), max=1.0 - 1e-6)
        rows = torch.bucketize(starts, bounds, right=True).numpy()
        expected = (rows[:, None] * trained + rows).reshape(-1)
        np.testing.assert_array_equal(bucketed_places(trained, wanted), expected)


@pytest.mark.parametrize("kind", ["smolvlm", "idefics3", "llava"])
def test_logits_of_words_and_pictures(kind, tmp_path):
    model = saved(kind, tmp_path)
    with_tokens(tmp_path)
    made = processor(kind, tmp_path)
    lm = rlx.load(tmp_path)
    pictures = [picture(50, 90), picture(40, 30, 1)]
    ids = lm.prompt_ids("See <image> and <image>now", pictures)
    plain = [IMAGE if t >= 300 else int(t) for t in ids]
    if kind == "llava":
        inputs = {"pixel_values": torch.tensor(np.asarray(made(pictures, return_tensors="np")["pixel_values"]))}
    else:
        found = made([pictures], return_tensors="np")
        inputs = {name: torch.tensor(np.asarray(found[name])) for name in ("pixel_values", "pixel_attention_mask")}
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([plain]), use_cache=False, **inputs).logits[0].float().numpy()
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(lm.logits(ids), expected, rtol=0, atol=1e-4)
    session = lm.session()
    session.prefill(ids[:-3])
    for place in (-3, -2, -1):
        logits = session.step(ids[place])
    np.testing.assert_allclose(logits, expected[-1], rtol=0, atol=1e-4)
    with torch.no_grad():
        text = model.generate(
            input_ids=torch.tensor([plain]),
            attention_mask=torch.ones((1, len(plain)), dtype=torch.int64),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            **inputs,
        )[0, len(plain) :].tolist()
    for _ in range(2):  # the second time from what was kept
        answer = lm.complete([ids], max_tokens=8, repetition_penalty=1.0)[0]
        assert answer.token_ids == text[: len(answer.token_ids)]
        assert len(answer.token_ids) == 8 or answer.finish_reason == "stop"
    # Other pictures in the same words are another text; one without pictures is read as ever.
    other = lm.prompt_ids("See <image> and <image>now", pictures[::-1])
    assert np.abs(lm.logits(other)[-1] - expected[-1]).max() > 1e-3
    with torch.no_grad():
        words = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(lm.logits([5, 6, 7]), words, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [(50, 90), (20, 20)])
def test_prompts_are_those_of_the_processor(size, tmp_path):
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    saved("smolvlm", tmp_path)
    with_tokens(tmp_path)
    made = processor("smolvlm", tmp_path)
    lm = rlx.load(tmp_path)
    found = made(picture(*size), return_tensors="np", return_row_col_info=True)
    text = get_image_prompt_string(
        found["rows"][0][0],
        found["cols"][0][0],
        16,
        image_token="<image>",
        fake_token_around_image="<fake_token_around_image>",
        global_image_token="<global-img>",
    )
    ids = [IMAGE if t >= 300 else t for t in lm.prompt_ids("a<image>b", [picture(*size)])]
    assert ids == lm.tokenizer.encode(f"a{text}b")
