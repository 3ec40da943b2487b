"""What torch saves, read without torch: tensors by name, and refused whatever else a pickle may name."""

import io
import json
import os
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest

from rlx.errors import FormatError
from rlx.formats.torch_checkpoints import open_torch


class Part:
    """A part of a storage, which pickles as torch's tensors do."""

    def __init__(self, key, array, offset, shape, strides):
        self.key, self.array, self.place = key, array, (offset, shape, strides)

    def __reduce__(self):
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (Stored(self.key, self.array), *self.place, False, {})


class Stored:
    def __init__(self, key, array):
        self.key, self.array = key, array


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, Stored):
            kind = {"f4": "FloatStorage", "f2": "HalfStorage", "i8": "LongStorage"}[value.array.dtype.str[1:]]
            return "storage", getattr(sys.modules["torch"], kind), value.key, "cpu", value.array.size
        return None


@pytest.fixture(autouse=True)
def names_of_torch(monkeypatch):
    """The names that its files hold, as pickle wants to find them while one is written."""
    torch, inner = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage", "LongStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))
    exec("def _rebuild_tensor_v2(*a): pass", inner.__dict__)
    inner._rebuild_tensor_v2.__module__ = "torch._utils"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", inner)


def pickled(value):
    file = io.BytesIO()
    Pickler(file, 2).dump(value)
    return file.getvalue()


def archive(path, value, arrays=(), order=b"little", compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("model/data.pkl", pickled(value))
        file.writestr("model/byteorder", order)
        for key, array in enumerate(arrays):
            file.writestr(f"model/data/{key}", array.tobytes())
    return path


def row(path, value, arrays):
    """A file as torch before 1.6 has written it."""
    ends = b"".join(struct.pack("<q", a.size) + a.tobytes() for a in arrays)
    head = b"".join(map(pickled, (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, value)))
    path.write_bytes(head + pickled([str(key) for key in range(len(arrays))]) + ends)
    return path


ARRAYS = [np.arange(24, dtype=np.float32), np.array([1.5, -2.0], np.float16), np.arange(3)]
PARTS = {
    "whole": Part("0", ARRAYS[0], 0, (4, 6), (6, 1)),
    "turned": Part("0", ARRAYS[0], 0, (6, 4), (1, 6)),
    "rows": Part("0", ARRAYS[0], 6, (2, 6), (6, 1)),
    "half": Part("1", ARRAYS[1], 0, (2,), (1,)),
    "one": Part("0", ARRAYS[0], 5, (), ()),
    "none": Part("2", ARRAYS[2], 0, (0, 3), (3, 1)),
    "count": Part("2", ARRAYS[2], 0, (1, 3), (77, 1)),
    "step": 3,
}


@pytest.mark.parametrize("write", [archive, row])
def test_tensors_by_name(write, tmp_path):
    found = {name: t.array() for name, t in open_torch(write(tmp_path / "f.bin", PARTS, ARRAYS)).items()}
    square = ARRAYS[0].reshape(4, 6)
    wanted = {"whole": square, "turned": square.T, "rows": square[1:3], "half": ARRAYS[1], "one": square[0, 5]}
    wanted |= {"none": np.zeros((0, 3), np.int64), "count": ARRAYS[2][None]}
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


class Call:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        ({"a": Call()}, {}, r"names posix\.system|names nt\.system"),
        ([1, 2], {}, "a mapping of names to tensors is needed, got list"),
        ({"step": 3}, {}, "there are no tensors by name"),
        ({"a": Part("0", ARRAYS[0], 20, (5,), (1,))}, {}, "needs more than its storage of 96 bytes"),
        ({"a": Part("0", ARRAYS[0], 0, (10**9, 10**9), (0, 0))}, {}, "needs more than its storage"),
        ({"a": Part("7", ARRAYS[0], 0, (2,), (1,))}, {}, "the storage '7' is missing"),
        ({"a": Part("0", ARRAYS[0], -1, (2,), (1,))}, {}, "not a part of a storage"),
        ({"a": Part("0", ARRAYS[0], 0, (2,), (1, 1))}, {}, "a stride for each axis"),
        (PARTS, {"order": b"big"}, "big-endian"),
        (PARTS, {"compression": zipfile.ZIP_DEFLATED}, "missing or compressed"),
    ],
)
def test_files_that_are_refused(value, options, message, tmp_path):
    path = archive(tmp_path / "f.bin", value, ARRAYS, **options)
    with pytest.raises(FormatError, match=message):
        open_torch(path)


@pytest.mark.parametrize("write", [archive, row])
def test_damaged_files_are_refused_or_read(write, tmp_path):
    path = write(tmp_path / "f.bin", PARTS, ARRAYS)
    whole, random, refused = path.read_bytes(), np.random.default_rng(0), 0
    for turn in range(200):
        changed = bytearray(whole)
        if turn % 2:
            del changed[random.integers(1, len(changed)) :]
        else:
            changed[random.integers(len(changed))] = random.integers(256)
        path.write_bytes(changed)
        try:
            for tensor in open_torch(path).values():
                tensor.array()
        except FormatError:
            refused += 1
    assert refused > 100


def test_parts_of_an_index(tmp_path):
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"whole": "a.bin", "half": "b.bin"}}))
    archive(tmp_path / "a.bin", {"whole": PARTS["whole"]}, ARRAYS)
    with pytest.raises(FormatError, match=r"the part 'b\.bin' is missing"):
        open_torch(index)
    archive(tmp_path / "b.bin", {"half": PARTS["half"]}, ARRAYS)
    assert sorted(open_torch(index)) == ["half", "whole"]
