"""Every language-model family from GGUF: the models of `test_models_decoders`, converted, against transformers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

import rlx  # noqa: E402
from peers.gguf_conversion import convert  # noqa: E402
from peers.test_models_decoders import FAMILIES, TOKENS, peer_logits, saved_model  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

# GGUF fixes for these families what a config may choose: the scale of attention, and which layers have experts.
CHANGES = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "qwen2-moe": {"decoder_sparse_step": 1},
}
NAMES = [
    "llama",
    "llama-tied",
    "mistral-full",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
]


def saved_gguf(name, tmp_path, monkeypatch, quantize=None):
    kind, settings = FAMILIES[name]
    monkeypatch.setitem(FAMILIES, name, (kind, settings | CHANGES.get(name, {})))
    model = saved_model(name, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "model.gguf", quantize)
    return model, tmp_path / "model.gguf"


@pytest.mark.parametrize("name", NAMES)
def test_logits_agree(name, tmp_path, monkeypatch):
    model, path = saved_gguf(name, tmp_path, monkeypatch)
    np.testing.assert_allclose(rlx.load(path).logits(TOKENS), peer_logits(model, TOKENS), rtol=0, atol=1e-4)


def decoded_peer(model, path, heads):
    """The peer with the weights that the quantised file holds."""
    reader, found = gguf.GGUFReader(path), {}
    for tensor in reader.tensors:
        found[tensor.name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    state = model.state_dict()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, model.config.num_hidden_layers)
    for key in state:
        stored = names.get_name(key, try_suffixes=(".weight", ".bias"))
        state[key] = torch.tensor(np.array(found[stored]).reshape(tuple(state[key].shape)))
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("quantize", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_files_mean_what_their_decoded_weights_mean(quantize, tmp_path, monkeypatch):
    kind, settings = FAMILIES["qwen2"]
    # Blocks have 32 elements, so rows must be multiples of that.
    monkeypatch.setitem(FAMILIES, "qwen2", (kind, settings | {"intermediate_size": 64}))
    model, path = saved_gguf("qwen2", tmp_path, monkeypatch, gguf.GGMLQuantizationType[quantize])
    expected = peer_logits(decoded_peer(model, path, 4), TOKENS)
    # Blocks are multiplied by codes of 16 bits unless f32 is asked for: each rounds by 2**-16 of the largest value of
    # its row, and three layers add up.
    for activations, tolerance in (("f32", 1e-4), ("auto", 1e-3)):
        lm = rlx.load(path, activations=activations)
        assert "dequant_matmul" in str(lm.graph)
        np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=tolerance, err_msg=activations)
