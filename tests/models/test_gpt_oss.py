"""gpt-oss: experts with biases and a limit, whose weights may be MXFP4 in directories and GGUF files."""

import json

import numpy as np
import pytest

import rlx
from models.decoder_fields import FAMILIES
from models.random_directories import random_directory
from rlx.errors import FormatError
from rlx.formats.gguf import GgufTensor, open_gguf, quantize, quantize_file, write_gguf
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.models.config_hf import decoder_config_from_hf
from rlx.models.convert import convert

TOKENS = np.random.default_rng(3).integers(0, 256, 12).tolist()
# The sixteen numbers of 4 bits: a sign, two bits of exponent, one of mantissa.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def decoded(blocks, scales):
    """What the format says: bytes hold neighbours, the first one in the low half; a scale is a power of 2."""
    codes = np.stack([FP4[blocks & 15], FP4[blocks >> 4]], -1)
    numbers = codes.reshape(*blocks.shape[:3], 32) * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return numbers.reshape(*blocks.shape[:2], -1)


def packed_directories(folder):
    """The same model twice: with packed experts, and with the numbers that they stand for."""
    rng = np.random.default_rng(5)
    plain = random_directory(folder / "plain", FAMILIES["gpt_oss"])
    packed = random_directory(folder / "packed", FAMILIES["gpt_oss"])
    arrays = {name: np.array(t.array()) for name, t in open_safetensors(plain).tensors.items()}
    codes = dict(arrays)
    for name in [n for n in arrays if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = arrays[name].shape
        blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16)).astype(np.uint8)
        scales = rng.integers(122, 126, (experts, outputs, inputs // 32)).astype(np.uint8)
        del codes[name]
        codes |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        arrays[name] = np.ascontiguousarray(decoded(blocks, scales).swapaxes(1, 2))
    write_safetensors(plain / "model.safetensors", arrays)
    write_safetensors(packed / "model.safetensors", codes)
    quantized = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (packed / "config.json").write_text(json.dumps(FAMILIES["gpt_oss"] | {"quantization_config": quantized}))
    return plain, packed, codes


def test_quantised_files_keep_the_biases_of_experts(tmp_path):
    folder = random_directory(tmp_path / "hf", FAMILIES["gpt_oss"])
    convert(folder, tmp_path / "m.gguf", "F32")
    quantize_file(tmp_path / "m.gguf", tmp_path / "q.gguf", "Q8_0")
    kinds = {name: tensor.type.name for name, tensor in open_gguf(tmp_path / "q.gguf").tensors.items()}
    assert {kind for name, kind in kinds.items() if name.endswith(".bias")} == {"F32"}
    assert kinds["blk.0.ffn_gate_exps.weight"] == "Q8_0"
    expected = rlx.load(folder, device="reference").logits(TOKENS)
    found = rlx.load(tmp_path / "q.gguf", device="reference").logits(TOKENS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize(("name", "reads"), [("blk.0.ffn_gate_exps.bias", True), ("output_norm.weight", False)])
def test_quantised_vectors(name, reads, tmp_path):
    """Rows of biases may be blocks; a vector may not."""
    convert(random_directory(tmp_path / "hf", FAMILIES["gpt_oss"]), tmp_path / "m.gguf", "F32")
    with open_gguf(tmp_path / "m.gguf") as file:
        tensors = dict(file.tensors)
        packed = quantize(np.asarray(tensors[name].array()), "Q8_0")
        tensors[name] = GgufTensor(name, tensors[name].shape, "Q8_0", packed)
        write_gguf(tmp_path / "q.gguf", file.metadata.typed(), tensors)
    if reads:
        near, exact = (rlx.load(tmp_path / f, device="reference").logits(TOKENS) for f in ("q.gguf", "m.gguf"))
        np.testing.assert_allclose(near, exact, rtol=0, atol=0.01 * np.abs(exact).max())
        return
    with pytest.raises(FormatError, match=r"norms and biases are floats; the tensor 'output_norm\.weight' is Q8_0"):
        rlx.load(tmp_path / "q.gguf")


def test_packed_experts_are_the_numbers_they_stand_for(tmp_path):
    plain, packed, codes = packed_directories(tmp_path)
    expected = rlx.load(plain, device="reference").logits(TOKENS)
    close = 2e-5 * np.abs(expected).max()
    lm = rlx.load(packed, device="reference")
    assert "gguf_mxfp4" in str(lm.graph)
    np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=close)
    assert convert(packed, tmp_path / "m.gguf", "Q8_0")["MXFP4"] == 2 * 3
    np.testing.assert_array_equal(
        rlx.load(tmp_path / "m.gguf", device="reference")._open_again().weights.weight("experts_down", 1).read(),
        lm._open_again().weights.weight("experts_down", 1).read(),
    )
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.tensors["blk.0.ffn_gate_exps.bias"].type.name == "F32"
        found = file.tensors["blk.0.ffn_gate_exps.weight"].array()
    name = "model.layers.0.mlp.experts.gate_up_proj"
    np.testing.assert_array_equal(found, decoded(codes[f"{name}_blocks"], codes[f"{name}_scales"])[:, ::2])


def test_experts_that_are_refused(tmp_path):
    _, packed, codes = packed_directories(tmp_path)
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    write_safetensors(packed / "model.safetensors", codes | {name: codes[name][..., :8].copy()})
    with pytest.raises(FormatError, match="MXFP4 needs blocks of 16 bytes and a scale for each"):
        rlx.load(packed)
    with pytest.raises(FormatError, match="weights quantised by 'gptq' are not supported"):
        decoder_config_from_hf(FAMILIES["gpt_oss"] | {"quantization_config": {"quant_method": "gptq"}})
    other = random_directory(tmp_path / "other", FAMILIES["gpt_oss"] | {"swiglu_limit": 5.0})
    with pytest.raises(FormatError, match="cannot say that moe is"):
        convert(other, tmp_path / "n.gguf", "F32")
