"""safetensors files read and written: every dtype, shards, folders."""

import json

import ml_dtypes
import numpy as np
import pytest

from rlx.errors import FormatError
from rlx.formats.safetensors import open_safetensors, write_safetensors

rng = np.random.default_rng(7)
DTYPES = [np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.float16, np.int32, np.uint32, np.float32, np.complex64]
DTYPES += [np.float64, np.int64, np.uint64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
DTYPES += [ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz]


def random_array(dtype, shape):
    if dtype is np.bool_:
        return rng.random(shape) < 0.5
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, size).astype(np.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_every_dtype_comes_back(dtype, tmp_path):
    path = tmp_path / "m.safetensors"
    wanted = {"a": random_array(dtype, (3, 4)), "scalar": random_array(dtype, ()), "empty": random_array(dtype, (0, 7))}
    write_safetensors(path, wanted, {"format": "np"})
    with open_safetensors(path) as file:
        assert dict(file.metadata) == {"format": "np"}
        assert set(file.tensors) == set(wanted)
        for name, values in wanted.items():
            got = file.tensors[name].array()
            assert (got.dtype, got.shape) == (values.dtype, values.shape) and got.tobytes() == values.tobytes()


def test_four_bit_floats(tmp_path):
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).reshape(2, 8)
    write_safetensors(tmp_path / "m", {"x": values})
    with open_safetensors(tmp_path / "m") as file:
        assert file.tensors["x"].nbytes == 8 and file.tensors["x"].data()[0] == 0x10
        assert (file.tensors["x"].array().astype(np.float32) == values.astype(np.float32)).all()


def test_six_bit_floats_have_bytes_but_no_array(tmp_path):
    header = json.dumps({"x": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    (tmp_path / "m").write_bytes(len(header).to_bytes(8, "little") + header + b"\1\2\3")
    tensor = open_safetensors(tmp_path / "m").tensors["x"]
    assert tensor.data().tolist() == [1, 2, 3]
    with pytest.raises(FormatError, match="no arrays of F6_E2M3"):
        tensor.array()


def test_big_endian_arrays_are_written_little_endian(tmp_path):
    write_safetensors(tmp_path / "m", {"x": np.array([1.0, 2.0], ">f4")})
    assert open_safetensors(tmp_path / "m").tensors["x"].array().tolist() == [1.0, 2.0]
    assert (tmp_path / "m").read_bytes().endswith(np.array([1.0, 2.0], "<f4").tobytes())


def test_tensors_are_aligned_views(tmp_path):
    write_safetensors(tmp_path / "m", {"b": np.arange(3, dtype=np.uint8), "a": np.arange(5.0)})
    file = open_safetensors(tmp_path / "m")
    array = file.tensors["a"].array()
    assert file.tensors["a"].offset % 8 == 0 and np.shares_memory(array, file.tensors["a"].data())
    assert not array.flags.writeable
    file.close()
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_the_same_arrays_give_the_same_bytes(tmp_path):
    arrays = {"b": np.arange(3), "a": np.arange(3), "c": np.float32([1])}
    write_safetensors(tmp_path / "one", arrays)
    write_safetensors(tmp_path / "two", dict(reversed(arrays.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_shards_and_folders(tmp_path):
    write_safetensors(tmp_path / "model-1.safetensors", {"a": np.arange(3.0), "unused": np.arange(2)})
    write_safetensors(tmp_path / "model-2.safetensors", {"b": np.arange(4.0)})
    places = {"b": "model-2.safetensors", "a": "model-1.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        with open_safetensors(path) as file:
            assert {name: t.array().tolist() for name, t in file.tensors.items()} == {"b": [0, 1, 2, 3], "a": [0, 1, 2]}
            assert file.tensors["b"].path.name == "model-2.safetensors"


def test_a_folder_with_one_file(tmp_path):
    write_safetensors(tmp_path / "other.safetensors", {"a": np.arange(3.0)})
    assert list(open_safetensors(tmp_path).tensors) == ["a"]
    write_safetensors(tmp_path / "model.safetensors", {"b": np.arange(3.0)})
    assert list(open_safetensors(tmp_path).tensors) == ["b"]


def test_what_cannot_be_written(tmp_path):
    for arrays, message in [
        ({"x": np.array(["a"])}, "cannot store <U1"),
        ({"__metadata__": np.zeros(1)}, "cannot be the name"),
        ({"x": np.zeros(3, ml_dtypes.float4_e2m1fn)}, "even number"),
    ]:
        with pytest.raises(FormatError, match=message):
            write_safetensors(tmp_path / "m", arrays)
    assert not list(tmp_path.iterdir())
