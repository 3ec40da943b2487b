"""Weights: prepared when they change, never at a run."""

import sys
import threading
import weakref

import numpy as np

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.cpu.executable import CpuExecutable

rng = np.random.default_rng(2)


def scaled():
    g = rlx.Graph("scaled")
    x, a, b = g.input("x", ("B", 8)), g.param("a", (8,)), g.param("b", (8,))
    g.set_outputs([x * a + b])
    return g


def joined():
    """Both weights are joined before anything reads them, which needs to be done only once."""
    g = rlx.Graph("joined")
    x, a, b = g.input("x", ("B", 8)), g.param("a", (8, 8)), g.param("b", (8, 8))
    g.set_outputs([x @ rlx.concat([a, b], 1)])
    return g


def counting(monkeypatch):
    """Which params were new at each preparation."""
    calls = []
    prepare = CpuExecutable.prepare

    def counted(self, changed, before=None, source=""):
        calls.append(sorted(changed))
        return prepare(self, changed, before, source)

    monkeypatch.setattr(CpuExecutable, "prepare", counted)
    return calls


def test_weights_are_prepared_once_for_each_change(monkeypatch):
    calls = counting(monkeypatch)
    c = rlx.Session("cpu").compile(scaled())
    c.set_params({"a": np.full(8, 2.0), "b": np.ones(8)})
    x = np.ones((1, 8), "f4")
    for _ in range(3):
        assert (c.run(x=x)[0] == 3).all()
    c.set_param("b", np.zeros(8))
    for _ in range(3):
        assert (c.run(x=x)[0] == 2).all()
    assert calls == [["a", "b"], ["b"]]


def test_weights_are_held_once():
    c = rlx.Session("cpu").compile(scaled())
    c.set_params({"a": np.ones(8), "b": np.ones(8)})
    c.run(x=np.ones((1, 8), "f4"))
    held = c._ready.prepared
    assert held.arrays[0] is c._values["a"] and held.arrays[1] is c._values["b"]
    assert all(address % 64 == 0 for address in held.addresses)


def test_what_follows_from_weights_alone_is_computed_when_they_are_set():
    run = CpuBackend().compile(joined(), CompileOptions())
    a, b, x = (rng.normal(size=(8, 8)).astype("f4") for _ in range(3))
    prepared = run.prepare({"a": a, "b": b})
    [both] = prepared.arrays
    np.testing.assert_array_equal(both, np.concatenate([a, b], 1))
    np.testing.assert_allclose(run.run({"x": x}, prepared)[0], x @ both, rtol=1e-5, atol=1e-5)
    changed = run.prepare({"b": a}, prepared)
    np.testing.assert_array_equal(changed.arrays[0], np.concatenate([a, a], 1))
    np.testing.assert_array_equal(prepared.arrays[0], both)


def test_a_run_sees_one_set_of_weights():
    """Both params always change together; a run that saw one of each would not give a multiple of 8."""
    c = rlx.Session("cpu").compile(scaled())
    c.set_params({"a": np.zeros(8), "b": np.zeros(8)})
    x, wrong, stop = np.full((4, 8), 7.0, "f4"), [], False

    def work():
        while not stop:
            result = c.run(x=x)[0]
            if not (result == result[0, 0]).all() or result[0, 0] % 8:
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for i in range(200):
            c.set_params({"a": np.full(8, float(i)), "b": np.full(8, float(i))})
    finally:
        stop = True
        for t in threads:
            t.join()
        sys.setswitchinterval(interval)
    assert not wrong


def test_old_weights_are_released():
    run = CpuBackend().compile(scaled(), CompileOptions())

    class Watched(np.ndarray):
        pass

    a = np.ones(8, "f4").view(Watched)
    kept = weakref.ref(a)
    prepared = run.prepare({"a": a, "b": np.ones(8, "f4")})
    run.run({"x": np.ones((2, 8), "f4")}, prepared)
    del a, prepared
    assert kept() is None
