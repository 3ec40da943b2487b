"""Models that see, against plain forward passes in f64 NumPy; and pictures as pixels, against their definition."""

import json

import numpy as np
import pytest
from scipy.special import erf

import rlx
from models.numpy_forward import layer_norm, softmax
from models.tiny_models import byte_tokenizer
from rlx.errors import FormatError, OpError, RlxError
from rlx.formats.safetensors import write_safetensors
from rlx.models.config_hf_vision import sight_config_from_hf
from rlx.models.picture_pixels import PictureRecipe, as_bytes, picture_recipe, pixels_of, resized
from rlx.models.vision import spread_places

WIDTH, HEADS, FFN, LAYERS, SIDE, PATCH = 16, 2, 24, 2, 12, 4
SIZES = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "layer_norm_eps": 1e-5,
}
SEEN = SIZES | {"image_size": SIDE, "patch_size": PATCH}
VIT = SEEN | {"model_type": "vit", "hidden_act": "gelu", "architectures": ["ViTForImageClassification"]}
VIT |= {"id2label": {"0": "cat", "1": "dog", "2": "boat"}}
TEXT = SIZES | {"vocab_size": 260, "max_position_embeddings": 20, "eos_token_id": 2}
CLIP = {"model_type": "clip", "projection_dim": 6, "text_config": TEXT, "vision_config": SEEN}


def drawn(shapes):
    rng = np.random.default_rng(3)
    scale = lambda dims: float(np.prod(dims[1:])) ** -0.5 if len(dims) > 1 else 0.3  # noqa: E731
    return {name: rng.normal(size=dims) * scale(dims) + (len(dims) == 1) * 0.5 for name, dims in shapes.items()}


def linears(names):
    return {f"{name}.weight": dims for name, dims in names.items()} | {f"{n}.bias": d[:1] for n, d in names.items()}


def norms(*names):
    return {f"{name}.{part}": (WIDTH,) for name in names for part in ("weight", "bias")}


def vit_arrays():
    shapes = {"vit.embeddings.cls_token": (1, 1, WIDTH), "vit.embeddings.position_embeddings": (1, 10, WIDTH)}
    shapes |= linears(
        {"vit.embeddings.patch_embeddings.projection": (WIDTH, 3, PATCH, PATCH), "classifier": (3, WIDTH)}
    )
    shapes |= norms("vit.layernorm")
    for i in range(LAYERS):
        base = f"vit.encoder.layer.{i}"
        shapes |= linears({f"{base}.attention.attention.{p}": (WIDTH, WIDTH) for p in ("query", "key", "value")})
        shapes |= linears(
            {f"{base}.attention.output.dense": (WIDTH, WIDTH), f"{base}.intermediate.dense": (FFN, WIDTH)}
        )
        shapes |= linears({f"{base}.output.dense": (WIDTH, FFN)})
        shapes |= norms(f"{base}.layernorm_before", f"{base}.layernorm_after")
    return drawn(shapes)


def clip_arrays():
    shapes = {"logit_scale": (), "visual_projection.weight": (6, WIDTH), "text_projection.weight": (6, WIDTH)}
    for side in ("vision_model", "text_model"):
        for i in range(LAYERS):
            base = f"{side}.encoder.layers.{i}"
            shapes |= linears({f"{base}.self_attn.{p}_proj": (WIDTH, WIDTH) for p in ("q", "k", "v", "out")})
            shapes |= linears({f"{base}.mlp.fc1": (FFN, WIDTH), f"{base}.mlp.fc2": (WIDTH, FFN)})
            shapes |= norms(f"{base}.layer_norm1", f"{base}.layer_norm2")
    shapes |= norms("vision_model.pre_layrnorm", "vision_model.post_layernorm", "text_model.final_layer_norm")
    shapes |= {
        "vision_model.embeddings.class_embedding": (WIDTH,),
        "vision_model.embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        "vision_model.embeddings.position_embedding.weight": (10, WIDTH),
        "text_model.embeddings.token_embedding.weight": (260, WIDTH),
        "text_model.embeddings.position_embedding.weight": (20, WIDTH),
    }
    return drawn(shapes)


def directory(folder, fields, arrays):
    write_safetensors(folder / "model.safetensors", {name: np.asarray(a, "f4") for name, a in arrays.items()})
    (folder / "config.json").write_text(json.dumps(fields))
    recipe = {"size": {"height": SIDE, "width": SIDE}, "do_center_crop": False, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(recipe))
    byte_tokenizer()._backend.save(str(folder / "tokenizer.json"))
    return rlx.load_vision(folder)


def squares(pixels, weight):
    """The convolution, square by square."""
    return np.array(
        [
            np.einsum("chw,ochw->o", pixels[:, i : i + PATCH, j : j + PATCH], weight)
            for i in range(0, SIDE, PATCH)
            for j in range(0, SIDE, PATCH)
        ]
    )


def tower(w, x, names, act, causal=False):
    """Layers with norms before their halves; `names` are those of a layer's parts."""
    hidden = np.where(np.tri(len(x)), 0.0, -np.inf) if causal else 0.0

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    for i in range(LAYERS):
        n = {part: name.format(i=i) for part, name in names.items()}
        q, k, v = (linear(norm(x, n["n1"]), n[p]).reshape(len(x), HEADS, -1).transpose(1, 0, 2) for p in "qkv")
        mixed = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH // HEADS) + hidden) @ v
        x = x + linear(mixed.transpose(1, 0, 2).reshape(len(x), -1), n["o"])
        x = x + linear(act(linear(norm(x, n["n2"]), n["up"])), n["down"])
    return x


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def quick(x):
    return x / (1 + np.exp(-1.702 * x))


def vit_states(w, pixels):
    x = squares(pixels, w["vit.embeddings.patch_embeddings.projection.weight"])
    x = np.concatenate([w["vit.embeddings.cls_token"][0], x + w["vit.embeddings.patch_embeddings.projection.bias"]])
    base, inner = "vit.encoder.layer.{i}", "vit.encoder.layer.{i}.attention.attention"
    names = {"n1": f"{base}.layernorm_before", "n2": f"{base}.layernorm_after", "o": f"{base}.attention.output.dense"}
    names |= {"q": f"{inner}.query", "k": f"{inner}.key", "v": f"{inner}.value"}
    names |= {"up": f"{base}.intermediate.dense", "down": f"{base}.output.dense"}
    x = tower(w, x + w["vit.embeddings.position_embeddings"][0], names, gelu)
    return layer_norm(x, w["vit.layernorm.weight"], w["vit.layernorm.bias"], 1e-5)


def clip_names(side):
    base = f"{side}.encoder.layers.{{i}}"
    names = {part: f"{base}.self_attn.{part}_proj" for part in "qkv"} | {"o": f"{base}.self_attn.out_proj"}
    names |= {"n1": f"{base}.layer_norm1", "n2": f"{base}.layer_norm2"}
    return names | {"up": f"{base}.mlp.fc1", "down": f"{base}.mlp.fc2"}


def clip_picture(w, pixels):
    norm = lambda x, name: layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)  # noqa: E731
    x = squares(pixels, w["vision_model.embeddings.patch_embedding.weight"])
    x = np.concatenate([w["vision_model.embeddings.class_embedding"][None], x])
    x = norm(x + w["vision_model.embeddings.position_embedding.weight"], "vision_model.pre_layrnorm")
    x = tower(w, x, clip_names("vision_model"), quick)
    return norm(x[0], "vision_model.post_layernorm") @ w["visual_projection.weight"].T


def clip_text(w, ids):
    x = w["text_model.embeddings.token_embedding.weight"][ids]
    x = x + w["text_model.embeddings.position_embedding.weight"][: len(ids)]
    x = tower(w, x, clip_names("text_model"), quick, causal=True)[int(np.argmax(ids))]
    x = layer_norm(x, w["text_model.final_layer_norm.weight"], w["text_model.final_layer_norm.bias"], 1e-5)
    return x @ w["text_projection.weight"].T


def pictures(count=2, height=17, width=23):
    return np.random.default_rng(7).integers(0, 256, (count, height, width, 3)).astype(np.uint8)


def test_labels_and_states_of_pictures(tmp_path):
    arrays = vit_arrays()
    model = directory(tmp_path, VIT, arrays)
    given = pictures()
    expected = np.array([vit_states(arrays, pixels.astype("f8")) for pixels in model.pixels(given)])
    np.testing.assert_allclose(model.forward(model.pixels(given)), expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(model.embed_images(given, normalize=False), expected[:, 0], rtol=0, atol=1e-4)
    scores = softmax(expected[:, 0] @ arrays["classifier.weight"].T + arrays["classifier.bias"])
    for found, wanted in zip(model.classify(given, batch_size=1), scores):
        assert [label.label for label in found] == [model.labels[i] for i in np.argsort(-wanted)]
        np.testing.assert_allclose([label.score for label in found], np.sort(wanted)[::-1], rtol=0, atol=1e-5)
    assert model.classify(given[0]) == model.classify(given)[0]
    with pytest.raises(OpError, match="pictures alone"):
        model.embed_texts("a")


def test_texts_are_matched_with_pictures(tmp_path):
    arrays = clip_arrays()
    model, texts = directory(tmp_path, CLIP, arrays), ["a cat", "a much longer text that is cut"]
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    read = unit(np.array([clip_text(arrays, list(text.encode())[:20]) for text in texts]))
    seen = unit(np.array([clip_picture(arrays, pixels.astype("f8")) for pixels in model.pixels(pictures())]))
    np.testing.assert_allclose(model.embed_texts(texts), read, rtol=0, atol=1e-4)
    np.testing.assert_allclose(model.embed_images(pictures()), seen, rtol=0, atol=1e-4)
    scores = np.exp(arrays["logit_scale"]) * seen @ read.T
    np.testing.assert_allclose(model.match(pictures(), texts), scores, rtol=0, atol=1e-3)
    with pytest.raises(OpError, match="no labels"):
        model.classify(pictures())


def test_places_are_spread_over_other_grids():
    table = np.random.default_rng(1).normal(size=(25, 3)).astype("f4")
    np.testing.assert_array_equal(spread_places(table, 5, 5), table)
    # What rises on one side falls on the other, alike; a constant stays what it is everywhere.
    ramp = np.repeat(np.arange(5.0), 5)[:, None]
    rows = spread_places(ramp, 9, 5).reshape(9, 5)
    assert (np.diff(rows[:, 0]) > 0).all() and abs(rows[4, 0] - 2) < 1e-6
    np.testing.assert_allclose(rows + rows[::-1], 4, atol=1e-6)
    np.testing.assert_allclose(spread_places(np.ones((25, 2)), 7, 3), 1, atol=1e-6)


def test_resizing_is_a_weighted_sum_around_each_pixel():
    given = pictures(1, 21, 30)[0]
    found = resized(given, 10, 14, "bilinear")
    assert found.shape == (10, 14, 3)

    def weights(size, had):
        centres = (np.arange(size) + 0.5) * had / size - 0.5
        w = np.maximum(1 - np.abs(np.arange(had) - centres[:, None]) * size / had, 0)
        return w / w.sum(1, keepdims=True)

    exact = np.einsum("ij,jkc,lk->ilc", weights(10, 21), given.astype("f8"), weights(14, 30))
    # Each of the two steps rounds to a byte.
    assert np.abs(found - exact).max() <= 1.01
    np.testing.assert_array_equal(resized(given, 21, 30), given)
    np.testing.assert_array_equal(resized(given, 42, 60, "nearest"), given.repeat(2, 0).repeat(2, 1))
    assert (resized(np.full((9, 7, 3), 200, np.uint8), 5, 11) == 200).all()


def test_recipes_of_the_families():
    clip = picture_recipe("clip", {}, 224)
    assert (clip.shortest, clip.crop, clip.filter, clip.shape) == (224, (224, 224), "bicubic", (224, 224))
    vit = picture_recipe("vit", {"size": 384, "resample": 2, "do_normalize": False}, 224)
    assert (vit.size, vit.crop, vit.filter, vit.mean) == ((384, 384), None, "bilinear", None)
    old = picture_recipe("clip", {"size": 224, "crop_size": {"height": 200, "width": 210}}, 224)
    assert (old.shortest, old.crop) == (224, (200, 210))
    dino = picture_recipe("dinov2", {}, 518)
    assert (dino.shortest, dino.shape) == (256, (224, 224))
    with pytest.raises(FormatError, match="resample=4"):
        picture_recipe("vit", {"resample": 4}, 224)


def test_the_middle_is_cut_out_and_shifted():
    given = np.zeros((6, 9, 3), np.uint8)
    given[2, 4] = (255, 0, 51)
    recipe = PictureRecipe(crop=(3, 3), scale=1 / 255, mean=(0.5, 0.0, 0.2), deviation=(0.5, 1.0, 0.1))
    found = pixels_of(given, recipe)
    np.testing.assert_allclose(found[:, 1, 1], [1.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(found[:, 0, 0], [-1.0, 0.0, -2.0], atol=1e-6)
    # What is smaller than the cut has black around it.
    assert pixels_of(given[:2, :2], PictureRecipe(crop=(3, 3))).shape == (3, 3, 3)


def test_what_is_no_picture_is_refused():
    assert as_bytes(np.zeros((2, 3), np.uint8)).shape == as_bytes(np.zeros((2, 3, 4), np.uint8)).shape == (2, 3, 3)
    with pytest.raises(OpError, match="uint8"):
        as_bytes(np.zeros((2, 3, 3)))
    with pytest.raises(OpError, match="height, width, 3"):
        as_bytes(np.zeros((2, 3, 5), np.uint8))
    with pytest.raises(RlxError, match=r"nowhere\.png"):
        as_bytes("nowhere.png")
    with pytest.raises(FormatError, match="not a supported model of pictures"):
        sight_config_from_hf({"model_type": "bert"})


def test_damaged_directories_are_refused(tmp_path):
    arrays = vit_arrays()
    del arrays["classifier.weight"]
    with pytest.raises(FormatError, match=r"classifier\.weight"):
        directory(tmp_path, VIT, arrays)
    arrays = vit_arrays() | {"vit.encoder.layer.0.more.weight": np.zeros((2, 2))}
    with pytest.raises(FormatError, match=r"no use for the tensor 'encoder\.layer\.0\.more\.weight'"):
        directory(tmp_path, VIT, arrays)
