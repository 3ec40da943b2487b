"""Loading models: GGUF files, whole and in parts, directories, names, and what is refused."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

import rlx
from models import decoder_fields
from models.numpy_forward import llama_logits
from models.random_directories import random_directory
from models.tiny_models import LLAMA, llama_arrays
from rlx.backends.memory import is_fixed
from rlx.errors import FormatError, OpError, RlxError
from rlx.formats.gguf import write_gguf
from rlx.formats.safetensors import open_safetensors
from rlx.models.model_files import open_decoder
from rlx.planning.shapes import model_shape

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 96,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 48,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
}
TOKENS = list(range(40, 57))


@pytest.fixture(scope="module")
def arrays():
    return llama_arrays(LLAMA)


@pytest.fixture(scope="module")
def expected(arrays):
    return llama_logits(arrays, TOKENS, layers=2, heads=4, kv_heads=2, base=10000.0, eps=1e-5, interleaved=True)


def test_a_gguf_file(arrays, expected, tmp_path):
    write_gguf(tmp_path / "model.gguf", METADATA, arrays)
    np.testing.assert_allclose(rlx.load(tmp_path / "model.gguf").logits(TOKENS), expected, atol=3e-5)
    np.testing.assert_allclose(rlx.load(tmp_path).logits(TOKENS), expected, atol=3e-5)


@pytest.mark.parametrize("dtype", ["f2", "f8"])
def test_weights_of_other_widths(arrays, dtype, tmp_path):
    stored = {name: a.astype(dtype) if a.ndim > 1 else a for name, a in arrays.items()}
    write_gguf(tmp_path / "model.gguf", METADATA, stored)
    wanted = llama_logits(stored, TOKENS, layers=2, heads=4, kv_heads=2, base=10000.0, eps=1e-5, interleaved=True)
    np.testing.assert_allclose(rlx.load(tmp_path / "model.gguf").logits(TOKENS), wanted, atol=3e-5)


def write_parts(folder, arrays, count=3):
    names = list(arrays)
    for number in range(count):
        part = {n: arrays[n] for n in names[number::count]}
        metadata = (METADATA if number == 0 else {}) | {"split.no": np.uint16(number), "split.count": np.uint16(count)}
        write_gguf(folder / f"m-{number + 1:05}-of-{count:05}.gguf", metadata, part)


def test_a_model_in_parts(arrays, expected, tmp_path):
    write_parts(tmp_path, arrays)
    lm = rlx.load(tmp_path / "m-00001-of-00003.gguf")
    np.testing.assert_allclose(lm.logits(TOKENS), expected, atol=3e-5)


def test_a_source_changes_with_every_file_of_a_model(arrays, tmp_path):
    write_parts(tmp_path, arrays)
    first, second = (tmp_path / f"m-0000{n}-of-00003.gguf" for n in (1, 2))
    before = open_decoder(first).source
    assert before == open_decoder(first).source and len(before.splitlines()) == 3
    os.utime(second, ns=(0, 12345))
    after = open_decoder(first).source
    assert after != before
    assert after == open_decoder(first).source
    write_gguf(tmp_path / "one [x].gguf", METADATA, arrays)
    assert str(tmp_path / "one [x].gguf") in open_decoder(tmp_path / "one [x].gguf").source


def test_weights_stay_in_the_file(arrays, expected, tmp_path):
    write_gguf(tmp_path / "model.gguf", METADATA, arrays)
    lm = rlx.load(tmp_path / "model.gguf")
    np.testing.assert_allclose(lm.logits(TOKENS), expected, atol=3e-5)
    held = lm._compiled._values
    # What products read has been packed; norms and embeddings are read where they are.
    assert not any(name.endswith(("attn_q.weight", "ffn_up.weight")) for name in held)
    assert {"token_embd.weight", "output_norm.weight"} <= held.keys()
    assert all(is_fixed(array) for array in held.values())


def test_another_part_than_the_first_is_refused(arrays, tmp_path):
    write_parts(tmp_path, arrays)
    with pytest.raises(FormatError, match=r"one of 3 files; open the first"):
        rlx.load(tmp_path / "m-00002-of-00003.gguf")
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises((FormatError, OSError), match="m-00003-of-00003"):
        rlx.load(tmp_path / "m-00001-of-00003.gguf")


def test_the_reference_device_gives_the_same(arrays, expected, tmp_path):
    write_gguf(tmp_path / "model.gguf", METADATA, arrays)
    got = rlx.load(tmp_path / "model.gguf", device="reference").logits(TOKENS)
    np.testing.assert_allclose(got, expected, atol=3e-5)


def test_places_without_a_model_are_named(tmp_path):
    with pytest.raises(FormatError, match="there is no such file or directory"):
        rlx.load(tmp_path / "missing.gguf")
    with pytest.raises(FormatError, match=r"a config\.json or exactly one \.gguf file, this has 0"):
        rlx.load(tmp_path)
    with pytest.raises(RlxError, match="no model is called 'smollm3'"):
        rlx.load("smollm3")
    with pytest.raises(FormatError, match="an encoder is a Hugging Face directory"):
        (tmp_path / "file").write_bytes(b"x")
        rlx.load_encoder(tmp_path / "file")


@pytest.mark.parametrize(
    ("option", "message"), [({"kv_dtype": "f8"}, "kv_dtype"), ({"activations": "i4"}, "activations")]
)
def test_impossible_options_are_named(option, message, tmp_path):
    with pytest.raises(OpError, match=f"load: {message} must be"):
        rlx.load(tmp_path, **option)


def test_an_encoder_is_no_language_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(FormatError, match=r"'bert' is not a supported language model.*rlx\.load_encoder"):
        rlx.load(tmp_path)


@pytest.mark.parametrize("family", ["opt_350m", "deepseek_v3", "bloom"])
def test_plans_count_the_parameters_of_files(family, tmp_path):
    """Also of models with weights that GGUF files have no names for."""
    folder = random_directory(tmp_path, decoder_fields.FAMILIES[family])
    stored = open_safetensors(folder).tensors.values()
    assert model_shape(folder).parameters == sum(math.prod(tensor.shape) for tensor in stored)


@pytest.mark.parametrize(
    "name, hint",
    [
        ("model.pt", "a checkpoint of torch; give the directory"),
        ("pytorch_model.bin", "a checkpoint of torch; give the directory"),
        ("model.safetensors", "weights alone; give the directory that has the config.json"),
        ("graph.rlx", "a program; rlx.load_graph reads it"),
        ("graph.rlxc", "a compiled program; rlx.load_compiled reads it"),
    ],
)
def test_files_that_are_no_language_model_say_who_reads_them(name, hint, tmp_path):
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    with pytest.raises(FormatError, match=hint):
        rlx.load(tmp_path / name)


def test_a_model_is_a_path_or_a_name():
    with pytest.raises(RlxError, match=r"load: a model is given as a path or a name, .*, got dict"):
        rlx.load({"w": 1})
