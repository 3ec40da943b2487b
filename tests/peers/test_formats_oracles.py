"""Files and block formats against the `gguf` and `safetensors` packages and GGML's own code."""

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rlx.formats.gguf import TYPES, can_write, open_gguf, quantize, write_gguf
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.formats.torch_checkpoints import open_torch
from rlx.quant.decode import FORMATS
from rlx.quant.schemes import QuantScheme, dequantize_blocks

pytestmark = pytest.mark.peers
rng = np.random.default_rng(8)
METADATA = {"general.architecture": "test", "n": 7, "x": 0.5, "yes": True, "names": ["a", "ü"], "ids": [1, -2]}


def random_blocks(name, count):
    return rng.integers(0, 256, count * FORMATS[name].bytes).astype(np.uint8)


def equal_bits(got, wanted):
    """Equal to the last bit; a NaN is a NaN."""
    got, wanted = np.asarray(got, np.float32), np.asarray(wanted, np.float32)
    same = (got.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(got) & np.isnan(wanted))
    assert same.all(), (got[~same][:5], wanted[~same][:5])


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("Q8_K", "Q8_1", "Q1_0", "Q2_0")])
def test_decode_like_the_gguf_package(name):
    gguf = pytest.importorskip("gguf")
    raw = random_blocks(name, 500)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    equal_bits(dequantize_blocks(QuantScheme.of_ggml(name), raw), wanted)


@pytest.fixture(scope="module")
def ggml():
    llama_cpp = pytest.importorskip("llama_cpp")
    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    library.ggml_type_name.restype = ctypes.c_char_p
    return library


def c_name(name):
    return name.lower().replace("_k", "_K")


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "Q8_1"])
def test_decode_like_ggml(name, ggml):
    raw = random_blocks(name, 500)
    wanted = np.empty(500 * FORMATS[name].elements, np.float32)
    getattr(ggml, f"dequantize_row_{c_name(name)}")(pointer(raw), pointer(wanted), ctypes.c_int64(wanted.size))
    equal_bits(dequantize_blocks(QuantScheme.of_ggml(name), raw), wanted)


def values_to_encode():
    """Weights as they are, and the corners: signs, zeros, equal values, wide and narrow ranges."""
    count = 256 * 100
    normal = rng.standard_normal(count)
    return {
        "normal": normal,
        "small": normal * 1e-3,
        "tiny": normal * 1e-6,
        "large": normal * 1e3,
        "heavy tails": rng.standard_t(2, count),
        "positive": np.abs(normal),
        "negative": -np.abs(normal),
        "sparse": normal * (rng.random(count) < 0.05),
        "zeros": np.zeros(count),
        "constant": np.full(count, 0.37),
        "whole numbers": rng.integers(-8, 8, count),
        "mixed scales": normal * np.repeat(10.0 ** rng.integers(-5, 3, count // 16), 16),
    }


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.encode])
def test_encode_like_ggml(name, ggml):
    for what, values in values_to_encode().items():
        x = np.ascontiguousarray(values, np.float32)
        wanted = np.zeros(x.size // FORMATS[name].elements * FORMATS[name].bytes, np.uint8)
        getattr(ggml, f"quantize_row_{c_name(name)}_ref")(pointer(x), pointer(wanted), ctypes.c_int64(x.size))
        assert np.array_equal(quantize(x, name), wanted), what


def test_the_table_of_types_is_ggmls(ggml):
    ggml.ggml_blck_size.restype, ggml.ggml_type_size.restype = ctypes.c_int64, ctypes.c_size_t
    for kind in TYPES.values():
        assert ggml.ggml_type_name(kind.code).decode().upper() == kind.name
        assert (ggml.ggml_blck_size(kind.code), ggml.ggml_type_size(kind.code)) == (kind.elements, kind.bytes)


def some_arrays():
    return {
        "f32": rng.standard_normal((3, 64)).astype(np.float32),
        "f16": rng.standard_normal((64,)).astype(np.float16),
        "i32": rng.integers(-9, 9, (2, 3, 4)).astype(np.int32),
    }


@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_the_gguf_package_reads_what_is_written_here(byte_order, tmp_path):
    gguf = pytest.importorskip("gguf")
    arrays = some_arrays()
    write_gguf(tmp_path / "m.gguf", METADATA, arrays, byte_order=byte_order)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert {key: reader.fields[key].contents() for key in METADATA} == METADATA
    for tensor in reader.tensors:
        assert np.array_equal(tensor.data.reshape(arrays[tensor.name].shape), arrays[tensor.name])


@pytest.mark.parametrize("byte_order", ["LITTLE", "BIG"])
def test_what_the_gguf_package_writes_is_read_here(byte_order, tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "test", endianess=gguf.GGUFEndian[byte_order])
    writer.add_uint32("n", 7)
    writer.add_float32("x", 0.5)
    writer.add_bool("yes", True)
    writer.add_array("names", ["a", "ü"])
    writer.add_array("ids", [1, -2])
    arrays = some_arrays()
    for name, values in arrays.items():
        writer.add_tensor(name, values.copy())
    if byte_order == "LITTLE":
        packed = gguf.quants.quantize(arrays["f32"], gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("q8", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "m.gguf") as file:
        found = {key: v.tolist() if isinstance(v := file.metadata[key], np.ndarray) else v for key in METADATA}
        assert found == METADATA and file.byte_order == byte_order.lower()
        for name, values in arrays.items():
            assert np.array_equal(file.tensors[name].array(), values)
        if byte_order == "LITTLE":
            assert file.tensors["q8"].shape == (3, 64)
            assert file.tensors["q8"].data().tobytes() == quantize(arrays["f32"], "Q8_0").tobytes()


def test_every_type_that_can_be_written_is_decoded_by_the_gguf_package():
    gguf = pytest.importorskip("gguf")
    values = rng.standard_normal((4, 256)).astype(np.float32)
    for name, kind in TYPES.items():
        if can_write(kind) and name not in ("Q8_K", "Q8_1", "Q1_0", "Q2_0"):
            packed = quantize(values, name)
            wanted = gguf.quants.dequantize(packed.copy(), gguf.GGMLQuantizationType[name])
            assert np.abs(wanted.reshape(4, 256) - values).mean() < 1


def test_safetensors_files_are_the_same(tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    arrays = some_arrays() | {"b": np.array([True, False]), "a": np.float64([[1.5]]), "u": np.uint8([3])}
    package.save_file(arrays, tmp_path / "theirs", {"format": "np"})
    write_safetensors(tmp_path / "ours", arrays, {"format": "np"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    with open_safetensors(tmp_path / "theirs") as file:
        assert all(np.array_equal(file.tensors[name].array(), values) for name, values in arrays.items())


def test_safetensors_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("safetensors.torch")
    tensors = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in ("bfloat16", "float8_e4m3fn")}
    tensors["float8_e5m2"] = torch.arange(6).to(torch.float8_e5m2)
    package.save_file(tensors, tmp_path / "m")
    with open_safetensors(tmp_path / "m") as file:
        for name, values in tensors.items():
            got = file.tensors[name].array()
            assert got.dtype == getattr(ml_dtypes, name)
            assert np.array_equal(got.astype(np.float32), values.float().numpy())


@pytest.mark.parametrize("archive", [True, False])
def test_what_torch_saves(archive, tmp_path):
    torch = pytest.importorskip("torch")
    values = {
        "matrix": torch.arange(12.0).reshape(3, 4),
        "turned": torch.arange(12.0).reshape(3, 4).T,
        "part": torch.arange(20.0)[3:9],
        "half": torch.randn(5).half(),
        "bfloat": torch.randn(3, 2).bfloat16(),
        "double": torch.randn(3).double(),
        "count": torch.arange(3),
        "bool": torch.tensor([True, False]),
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    }
    torch.save({**values, "step": 3}, tmp_path / "f.bin", _use_new_zipfile_serialization=archive)
    found = open_torch(tmp_path / "f.bin")
    assert found.keys() == values.keys()
    for name, value in values.items():
        assert found[name].shape == tuple(value.shape)
        np.testing.assert_array_equal(found[name].array().astype(np.float64), value.detach().double().numpy())
