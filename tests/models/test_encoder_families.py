"""Encoders whose embeddings are narrower than their layers, or whose layers share weights, against f64 NumPy."""

import json

import numpy as np
import pytest
from scipy.special import erf

import rlx
from models.numpy_forward import layer_norm, softmax
from rlx.errors import FormatError
from rlx.formats.safetensors import write_safetensors
from rlx.models import encoder_names
from rlx.models.config_hf_encoders import encoder_config_from_directory, encoder_config_from_hf

FIELDS = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 50,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "embedding_size": 12,
}
SIZES = {"q": (16, 16), "k": (16, 16), "v": (16, 16), "o": (16, 16), "up": (24, 16), "down": (16, 24)}
SIZES |= {"embed": (50, 12), "positions": (20, 12), "token_types": (2, 12), "embed_project": (16, 12)}
SIZES |= {"embed_norm": (12,), "attn_norm": (16,), "ffn_norm": (16,)}


def written(folder, family, **changes):
    """A directory with random weights, and the weights by name."""
    rng, arrays = np.random.default_rng(1), {}
    for role, name in encoder_names.HF_ENCODERS[family].items():
        for layer in range(3) if "{i}" in name else (0,):
            dims = SIZES[role]
            scale, own = (dims[-1] ** -0.5, 0.0) if len(dims) > 1 else (0.3, 1.0)
            full = name.replace("{i}", str(layer))
            arrays[f"{full}.weight"] = (rng.normal(size=dims) * scale + own).astype("f4")
            if role not in ("embed", "positions", "token_types"):
                arrays[f"{full}.bias"] = (rng.normal(size=dims[0]) * 0.3).astype("f4")
    write_safetensors(folder / "model.safetensors", arrays)
    (folder / "config.json").write_text(json.dumps(FIELDS | {"model_type": family} | changes))
    return arrays


def hidden_states(arrays, family, ids):
    """f64 [S, D] of one text."""

    def linear(x, role, layer=0):
        name = encoder_names.HF_ENCODERS[family][role].replace("{i}", str(layer))
        return x @ arrays[f"{name}.weight"].astype("f8").T + arrays[f"{name}.bias"]

    def norm(x, role, layer=0):
        name = encoder_names.HF_ENCODERS[family][role].replace("{i}", str(layer))
        return layer_norm(x, arrays[f"{name}.weight"].astype("f8"), arrays[f"{name}.bias"], 1e-12)

    table = {
        role: arrays[f"{encoder_names.HF_ENCODERS[family][role]}.weight"].astype("f8")
        for role in SIZES
        if role in ("embed", "positions", "token_types")
    }
    x = norm(table["embed"][ids] + table["positions"][: len(ids)] + table["token_types"][0], "embed_norm")
    x = linear(x, "embed_project")
    for i in range(3):
        q, k, v = (linear(x, role, i) for role in "qkv")
        parts = [slice(0, 8), slice(8, 16)]
        mixed = np.concatenate([softmax(q[:, p] @ k[:, p].T / np.sqrt(8)) @ v[:, p] for p in parts], -1)
        x = norm(x + linear(mixed, "o", i), "attn_norm", i)
        inner = linear(x, "up", i)
        x = norm(x + linear(inner * (1 + erf(inner / np.sqrt(2))) / 2, "down", i), "ffn_norm", i)
    return x


@pytest.mark.parametrize("family", ["electra", "albert"])
def test_hidden_states_are_those_of_the_formulas(family, tmp_path):
    arrays = written(tmp_path, family)
    ids = np.random.default_rng(2).integers(0, 50, (1, 9))
    found = rlx.load_encoder(tmp_path, device="reference").forward(ids)
    np.testing.assert_allclose(found[0], hidden_states(arrays, family, ids[0]), atol=2e-5)


def test_what_is_read_and_refused():
    assert encoder_config_from_hf(FIELDS | {"model_type": "electra", "embedding_size": 16}).embed_width == 0
    assert encoder_config_from_hf(FIELDS | {"model_type": "albert", "embedding_size": 16}).embed_width == 16
    with pytest.raises(FormatError, match="num_hidden_groups=3 is not supported"):
        encoder_config_from_hf(FIELDS | {"model_type": "albert", "num_hidden_groups": 3})


def test_norms_may_be_called_gamma_and_beta(tmp_path):
    """As in files that were made of TensorFlow's, among them those of the first BERT models."""
    arrays = written(tmp_path, "electra")
    other = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, array in arrays.items():
        ending = ".".join(name.split(".")[-2:])
        renamed[name.removesuffix(ending) + other.get(ending, ending)] = array
    assert renamed.keys() != arrays.keys()
    write_safetensors(tmp_path / "model.safetensors", renamed)
    ids = np.random.default_rng(2).integers(0, 50, (1, 9))
    found = rlx.load_encoder(tmp_path, device="reference").forward(ids)
    np.testing.assert_allclose(found[0], hidden_states(arrays, "electra", ids[0]), atol=2e-5)


def with_modules(folder, *kinds, activation="torch.nn.modules.activation.Tanh", inputs=32):
    modules = [{"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules:
        (folder / module["path"]).mkdir(exist_ok=True)
        settings = {"pooling_mode": ["cls", "mean"], "in_features": inputs, "out_features": 5}
        settings |= {"bias": True, "activation_function": activation}
        (folder / module["path"] / "config.json").write_text(json.dumps(settings))


def test_linear_layers_behind_the_pooling(tmp_path):
    """As LaBSE has one."""
    arrays = written(tmp_path, "electra")
    with_modules(tmp_path, "Transformer", "Pooling", "Dense", "Normalize")
    rng = np.random.default_rng(4)
    w, b = rng.normal(size=(5, 32)).astype("f4"), rng.normal(size=5).astype("f4")
    write_safetensors(tmp_path / "2_Dense" / "model.safetensors", {"linear.weight": w, "linear.bias": b})
    encoder, ids = rlx.load_encoder(tmp_path, device="reference"), rng.integers(0, 50, (1, 9))
    states = hidden_states(arrays, "electra", ids[0])
    expected = np.tanh(np.concatenate([states[0], states.mean(0)]) @ w.T.astype("f8") + b)
    found = encoder._run(ids.tolist())[1]
    assert encoder.dimension == 5
    np.testing.assert_allclose(found[0], expected / np.linalg.norm(expected), atol=2e-5)


def test_linear_layers_that_are_refused(tmp_path):
    written(tmp_path, "electra")
    with_modules(tmp_path, "Transformer", "Pooling", "Dense", inputs=16)
    with pytest.raises(FormatError, match="2_Dense reads 16 features, and there are 32"):
        encoder_config_from_directory(tmp_path)
    with_modules(tmp_path, "Transformer", "Pooling", "Dense", activation="torch.nn.Softsign")
    with pytest.raises(FormatError, match="activation_function 'Softsign' is not supported"):
        encoder_config_from_directory(tmp_path)
    with_modules(tmp_path, "Transformer", "Pooling", "Normalize", "Dense")
    with pytest.raises(FormatError, match=r"Dense' is not supported here; supported, in this order"):
        encoder_config_from_directory(tmp_path)
