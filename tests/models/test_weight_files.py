"""Weights as graph builders see them: prefixes, stacks of experts, norms, transposed and quantised matrices."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.errors import FormatError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.models.encoder_names import HF_ENCODER_PREFIX
from rlx.models.weight_names import HF_DECODERS, HF_PREFIX
from rlx.models.weights import gguf_weights, hf_weights
from rlx.quant.schemes import QuantScheme, dequantize_blocks

rng = np.random.default_rng(0)


def hf(tmp_path, arrays, family="llama", **options):
    write_safetensors(tmp_path / "model.safetensors", arrays)
    tensors = open_safetensors(tmp_path / "model.safetensors").tensors
    return hf_weights(tensors, HF_DECODERS[family], "a test", layers=2, **options)


def normal(*dims):
    return rng.normal(size=dims).astype(np.float32)


def test_a_prefix_that_the_file_left_out_is_put_back(tmp_path):
    arrays = {"norm.weight": normal(4), "layers.1.mlp.up_proj.weight": normal(3, 4), "lm_head.weight": normal(5, 4)}
    file = hf(tmp_path, arrays, prefix=HF_PREFIX["llama"])
    assert file.has("final_norm") and file.has("up", 1) and file.has("head")
    np.testing.assert_array_equal(file.get("model.norm.weight", (4,)).read(), arrays["norm.weight"])


def test_prefixes_are_those_of_the_names():
    assert HF_PREFIX["gpt2"] == "transformer." and HF_PREFIX["qwen3"] == "model."
    assert HF_ENCODER_PREFIX["xlm-roberta"] == "roberta." and HF_ENCODER_PREFIX["nomic_bert"] == "bert."


def test_experts_become_stacks(tmp_path):
    name = "model.layers.{}.block_sparse_moe.experts.{}.w1.weight"
    arrays = {name.format(1, e): normal(3, 4) for e in range(3)}
    file = hf(tmp_path, arrays, "mixtral", experts=3)
    stack = file.get("model.layers.1.block_sparse_moe.experts.w1.weight", (3, 3, 4)).read()
    np.testing.assert_array_equal(stack, list(arrays.values()))
    assert not file.has("experts_gate", 0)


def test_incomplete_experts_are_refused(tmp_path):
    name = "model.layers.0.block_sparse_moe.experts.{}.w1.weight"
    with pytest.raises(FormatError, match=r"experts\.0\.w1\.weight' and its like must be 3 matrices"):
        hf(tmp_path, {name.format(e): normal(3, 4) for e in range(2)}, "mixtral", experts=3)


def test_norms_that_keep_a_difference_are_given_as_factors(tmp_path):
    arrays = {"model.norm.weight": normal(4), "model.layers.1.self_attn.q_norm.weight": normal(4)}
    arrays["model.layers.1.self_attn.q_proj.weight"] = normal(4, 4)
    file = hf(tmp_path, arrays, "gemma3_text", norms_plus_one=True)
    for name, array in arrays.items():
        expected = array if "q_proj" in name else array + 1
        np.testing.assert_array_equal(file.get(name, array.shape).read(), expected)


def test_matrices_stored_the_other_way_round_are_turned(tmp_path):
    arrays = {"transformer.h.0.attn.c_attn.weight": normal(4, 12), "transformer.wte.weight": normal(9, 4)}
    file = hf(tmp_path, arrays, "gpt2", in_out=True)
    got = file.get("transformer.h.0.attn.c_attn.weight", (12, 4)).read()
    np.testing.assert_array_equal(got, arrays["transformer.h.0.attn.c_attn.weight"].T)
    file.get("transformer.wte.weight", (9, 4))


def test_weights_that_are_no_floats_are_refused_when_they_are_read(tmp_path):
    file = hf(tmp_path, {"model.norm.weight": np.arange(4, dtype=np.int32)})
    with pytest.raises(FormatError, match=r"the tensor 'model\.norm\.weight' is I32"):
        file.get("model.norm.weight", (4,)).read()


def test_packed_rows_of_gguf(tmp_path):
    arrays = {"blk.0.attn_q.weight": normal(3, 64), "blk.0.attn_norm.weight": normal(64)}
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama"}, arrays)
    file = gguf_weights(open_gguf(tmp_path / "a.gguf").tensors, "a test")
    file.quantize("q8_0", layers=1)
    weight = file.get("blk.0.attn_q.weight", (3, 64))
    assert weight.scheme == QuantScheme.GgufQ8_0 and weight.packed_dims == (3, 68)
    rows = weight.read()
    assert rows.shape == (3, 68) and rows.dtype == np.uint8
    decoded = dequantize_blocks(weight.scheme, rows).reshape(3, 64)
    np.testing.assert_allclose(decoded, arrays["blk.0.attn_q.weight"], atol=0.02)
    assert file.get("blk.0.attn_norm.weight", (64,)).scheme is None


def test_matrices_whose_rows_are_no_whole_blocks_stay_as_they_are(tmp_path):
    file = hf(tmp_path, {"model.layers.0.mlp.up_proj.weight": normal(8, 40)})
    file.quantize("q4_0", layers=1)
    assert file.get("model.layers.0.mlp.up_proj.weight", (8, 40)).scheme is None
    with pytest.raises(FormatError, match="no tensor type 'q3'"):
        file.quantize("q3", layers=1)
