"""Weights without copies: used where they are, let go of once they are prepared, and found prepared on disk."""

import gc
import mmap
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import executable as cpu_executable
from rlx.backends.memory import drop_pages, is_fixed
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program import prepared_store
from rlx.backends.program.prepared_store import PreparedStore
from rlx.backends.program.program import Preparation
from rlx.errors import BindingError
from rlx.quant.schemes import QuantScheme

rng = np.random.default_rng(9)


def mapped(path, array):
    path.write_bytes(array.tobytes())
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(content, array.dtype).reshape(array.shape)


def scaled():
    g = rlx.Graph("scaled")
    x, a = g.input("x", ("B", 8)), g.param("a", (8,))
    g.set_outputs([x * a])
    return g


def joined():
    """`a` and `b` are only read to join them; `c` is read as it is."""
    g = rlx.Graph("joined")
    x, a, b, c = g.input("x", ("B", 8)), g.param("a", (8, 8)), g.param("b", (8, 8)), g.param("c", (16,))
    g.set_outputs([x @ rlx.concat([a, b], 1) + c])
    return g


def test_what_nobody_can_change_is_not_copied(tmp_path):
    values = rng.normal(size=8).astype("f4")
    for fixed in (np.frombuffer(values.tobytes(), "f4"), mapped(tmp_path / "w", values)):
        assert is_fixed(fixed) and is_fixed(fixed[:4])
        c = rlx.Session("cpu").compile(scaled())
        c.set_param("a", fixed)
        np.testing.assert_array_equal(c.run(x=np.ones((2, 8), "f4"))[0], np.stack([values, values]))
        assert np.shares_memory(c._values["a"], fixed) and np.shares_memory(c._ready.prepared.arrays[0], fixed)


def test_everything_else_is_copied(tmp_path):
    values = rng.normal(size=8).astype("f4")
    frozen, view = values.copy(), values.copy()
    frozen.flags.writeable = False
    read_only = view[:]
    read_only.flags.writeable = False
    with open(tmp_path / "w", "w+b") as file:
        file.write(values.tobytes())
        file.flush()
        writable = np.frombuffer(mmap.mmap(file.fileno(), 0), "f4")
    # Owners can make their arrays writable again, and views change with what they are views of.
    for array in (values, frozen, read_only, writable, np.frombuffer(bytearray(values.tobytes()), "f4")):
        assert not is_fixed(array)
        c = rlx.Session("cpu").compile(scaled())
        c.set_param("a", array)
        assert not np.shares_memory(c._values["a"], array)


def test_fixed_arrays_of_other_layouts_and_types_are_converted():
    content = rng.normal(size=(8, 8))
    g = rlx.Graph("converted")
    x, a = g.input("x", ("B", 8)), g.param("a", (8, 8))
    g.set_outputs([x @ a])
    for array in (np.frombuffer(content.tobytes()).reshape(8, 8).T, np.frombuffer(content.tobytes()).reshape(8, 8)):
        c = rlx.Session("cpu").compile(g)
        c.set_param("a", array)
        assert c._values["a"].dtype == np.float32 and c._values["a"].flags.c_contiguous
        np.testing.assert_allclose(c.run(x=np.eye(8, dtype="f4"))[0], array.astype("f4"))


def test_originals_are_released(tmp_path):
    a, b = (mapped(tmp_path / n, rng.normal(size=(8, 8)).astype("f4")) for n in "ab")
    bias = mapped(tmp_path / "c", rng.normal(size=16).astype("f4"))
    wanted = np.concatenate([a, b], 1) + bias
    c = rlx.Session("cpu").compile(joined())
    c.set_params({"a": a, "b": b, "c": bias})
    c.freeze_params()
    watched = [weakref.ref(array) for array in (a, b, bias)]
    del a, b, bias
    gc.collect()
    assert [w() is None for w in watched] == [True, True, False]
    for rows in (8, 5):
        np.testing.assert_allclose(c.run(x=np.eye(8, dtype="f4")[:rows])[0], wanted[:rows], rtol=1e-6)
    assert c.memory_info().weights == 4 * (8 * 16 + 16)


def test_frozen_weights_stay(tmp_path):
    c = rlx.Session("cpu").compile(scaled())
    with pytest.raises(BindingError, match="'a' has no value yet"):
        c.freeze_params()
    c.set_param("a", np.full(8, 2.0))
    c.freeze_params()
    c.freeze_params()
    with pytest.raises(BindingError, match="@scaled: its weights are frozen; compile the program again"):
        c.set_param("a", np.zeros(8))
    assert (c.clone().run(x=np.ones((1, 8), "f4"))[0] == 2).all()


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_frozen_weights_of_symbolic_sizes(device):
    g = rlx.Graph("symbolic")
    x, a = g.input("x", (2,)), g.param("a", ("N", 2))
    g.set_outputs([rlx.concat([a * 2.0, a], 0) + x])
    c = rlx.Session(device).compile(g)
    c.set_param("a", np.ones((3, 2)))
    c.freeze_params("somewhere")
    np.testing.assert_array_equal(c.run(x=np.zeros(2, "f4"))[0], np.repeat([[2.0, 2.0], [1.0, 1.0]], 3, 0))


def test_pages_that_were_dropped_come_back(tmp_path):
    values = rng.normal(size=5000)
    array = mapped(tmp_path / "w", values)
    assert array.sum() == values.sum()
    drop_pages([array, array[7:], np.ones(3)])
    np.testing.assert_array_equal(array, values)


# Prepared weights on disk.


def arrays():
    return [rng.integers(0, 255, (3, 50), dtype=np.uint8), rng.normal(size=(7, 2)).astype("f4"), np.zeros((0, 4), "f4")]


def test_entries_are_what_was_kept(tmp_path):
    store, kept = PreparedStore(tmp_path), arrays()
    assert store.find("k") is None
    store.keep("k", kept)
    found = store.find("k")
    for a, b in zip(kept, found, strict=True):
        assert a.dtype == b.dtype and (b.size == 0 or b.ctypes.data % 64 == 0)
        np.testing.assert_array_equal(a, b)
        assert b.size == 0 or is_fixed(b)
    assert os.stat(store.path("k")).st_mode & 0o077 == 0
    assert [p.name for p in store.path("k").parent.iterdir()] == ["k.prepared"]


def test_every_damage_is_seen(tmp_path):
    store = PreparedStore(tmp_path)
    store.keep("k", arrays())
    path = store.path("k")
    whole = path.read_bytes()
    head = int.from_bytes(whole[8:16], "little")
    data = -(-(20 + head) // 64) * 64
    meaningful = [*range(20 + head), *range(data, data + 150), *range(data + 192, data + 192 + 56)]
    for at in meaningful:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert store.find("k") is None, at
    for length in (0, 5, 19, 60, data, data + 100):
        path.write_bytes(whole[:length])
        assert store.find("k") is None, length
    path.write_bytes(whole)
    assert store.find("k") is not None


def test_a_disk_that_is_full_or_read_only_is_no_error(tmp_path, monkeypatch):
    store = PreparedStore(tmp_path)
    monkeypatch.setattr("rlx.backends.program.prepared_store._free_bytes", lambda directory: 100)
    store.keep("k", arrays())
    monkeypatch.undo()
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    store.keep("k", arrays())
    assert list(store.path("k").parent.iterdir()) == []


def quantized(layers=40):
    """A program whose weights are packed, large enough to be kept."""
    g = rlx.Graph("quantized")
    x = g.input("x", ("B", 32))
    row = QuantScheme.GgufQ4_1.packed_bytes(32, 32)
    for i in range(layers):
        w = g.param(f"w{i}", (row,), "u8")
        x = x + rlx.tanh(rlx.dequant_matmul(x, w, scheme=QuantScheme.GgufQ4_1))
    g.set_outputs([x])
    return g, {f"w{i}": rng.integers(0, 0x30, row, dtype=np.uint8) for i in range(layers)}


@pytest.fixture
def store(tmp_path, monkeypatch):
    kept = PreparedStore(tmp_path)
    monkeypatch.setattr(cpu_executable, "prepared_store", lambda: kept)
    return kept


@pytest.fixture
def slow_store(store, monkeypatch):
    """Preparing counts as slow, as it is where the host does it."""
    monkeypatch.setattr(Preparation, "is_native", False)
    return store


def test_what_the_host_prepared_is_found_by_its_source(slow_store, monkeypatch):
    store = slow_store
    graph, weights = quantized()
    x = rng.normal(size=(3, 32)).astype("f4")

    def answer(source):
        c = rlx.Session("cpu").compile(graph)
        c.set_params(weights)
        c.freeze_params(source)
        return c, np.asarray(c.run(x=x)[0])

    _, wanted = answer("")
    assert not list(store.path("k").parent.iterdir()), "weights of no known source are not kept"
    first, found = answer("file 1")
    np.testing.assert_array_equal(found, wanted)
    [path] = store.path("k").parent.iterdir()
    # Made by this process, but read from the file: memory of our own is given back.
    assert all(is_fixed(array) for array in first._ready.prepared.arrays)
    runs = []
    run = cpu_executable.Runner.run
    monkeypatch.setattr(cpu_executable.Runner, "run", lambda self, *a: runs.append(self.program.name) or run(self, *a))
    _, found = answer("file 1")
    np.testing.assert_array_equal(found, wanted)
    assert runs == [], "nothing is prepared again, and the program itself takes the road of plain arrays"
    path.write_bytes(path.read_bytes()[:-100])
    _, found = answer("file 1")
    np.testing.assert_array_equal(found, wanted)
    answer("file 2")
    assert runs == ["quantized_prepare"] * 2
    assert len(list(store.path("k").parent.iterdir())) == 2


def test_what_kernels_prepare_is_not_kept(store):
    c = rlx.Session("cpu").compile(joined())
    c.set_params({"a": np.ones((8, 8)), "b": np.ones((8, 8)), "c": np.ones(16)})
    c.freeze_params("file")
    assert not list(store.path("k").parent.iterdir())


def test_preparing_goes_piece_by_piece(slow_store, tmp_path, monkeypatch):
    """Each piece lets go of its weights in their file, and of its results, before the next begins."""
    monkeypatch.setattr("rlx.compile.weights.pieces.prepare_pieces.__defaults__", (1,))
    graph, weights = quantized()
    program = cpu_executable.CpuExecutable.of(compile_with_options(graph, "cpu", CompileOptions()), key="some")
    stored = {name: mapped(tmp_path / name, w) for name, w in weights.items()}
    dropped = []
    monkeypatch.setattr(cpu_executable, "drop_pages", lambda arrays: dropped.append(len(arrays)))
    first = program.prepare(stored, source="file")
    assert sum(dropped) == len(weights) and len(dropped) > 10
    entries = list(slow_store.path("k").parent.iterdir())
    assert len(entries) == len(dropped)
    assert all(is_fixed(array) for array in first.arrays)
    # One that is gone is made again, the others are found.
    entries[0].unlink()
    dropped.clear()
    second = program.prepare(stored, source="file")
    assert len(dropped) == 1
    for a, b in zip(first.arrays, second.arrays, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_disk_that_cannot_be_written_costs_nothing_but_the_file(slow_store, monkeypatch):
    monkeypatch.setattr(PreparedStore, "keep", lambda *args: False)
    graph, weights = quantized()
    runs = []
    run = cpu_executable.Runner.run
    monkeypatch.setattr(cpu_executable.Runner, "run", lambda self, *a: runs.append(self.program.name) or run(self, *a))
    c = rlx.Session("cpu").compile(graph)
    c.set_params(weights)
    c.freeze_params("no disk")
    assert runs == ["quantized_prepare"]


@pytest.mark.parametrize("is_named", [False, True])
def test_ctrl_c_in_the_middle_of_a_write_leaves_nothing(is_named, tmp_path, monkeypatch):
    if is_named:
        monkeypatch.setattr("rlx.backends.native.object_cache._open_unnamed", lambda directory: None)

    def interrupted(file, key, arrays):
        file.write(bytes(1000))
        raise KeyboardInterrupt

    monkeypatch.setattr(prepared_store, "_write", interrupted)
    store = PreparedStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.keep("k", arrays())
    assert list(store.path("k").parent.iterdir()) == []


LOAD = """
import os, signal, sys
import numpy as np, rlx
from rlx.backends.program import prepared_store
from rlx.backends.program.program import Preparation
from rlx.quant.schemes import QuantScheme

Preparation.is_native = False
write = prepared_store._write

def half(file, key, arrays):
    file.write(bytes(1000))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

prepared_store._write = half if sys.argv[1] == "killed" else write
g = rlx.Graph("loaded")
x, weights = g.input("x", ("B", 32)), {}
row = QuantScheme.GgufQ4_1.packed_bytes(32, 32)
for i in range(40):
    weights[f"w{i}"] = np.full(row, i % 5, np.uint8)
    x = x + rlx.tanh(rlx.dequant_matmul(x, g.param(f"w{i}", (row,), "u8"), scheme=QuantScheme.GgufQ4_1))
g.set_outputs([x])
c = rlx.Session("cpu").compile(g)
c.set_params(weights)
c.freeze_params("a file")
print(np.asarray(c.run(x=np.ones((1, 32), "f4"))[0]).tobytes().hex())
"""


def test_a_load_that_is_killed_leaves_nothing_that_is_half(tmp_path):
    def load(how):
        return subprocess.run(
            [sys.executable, "-c", LOAD, how],
            env={**os.environ, "RLX_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    assert load("killed").returncode == -signal.SIGKILL
    entries = list((tmp_path / "prepared").iterdir())
    # Nothing at all where files can be without a name until they are whole.
    assert not any(path.suffix == ".prepared" for path in entries)
    first, second = load("whole"), load("whole")
    assert first.returncode == second.returncode == 0, first.stderr
    assert first.stdout == second.stdout != ""
    assert [path.suffix for path in (tmp_path / "prepared").iterdir() if path not in entries] == [".prepared"]
