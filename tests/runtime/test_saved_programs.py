"""Compiled programs as files: what runs again elsewhere is the same program, and nothing else is accepted."""

import os
import subprocess
import sys

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.cpu import saved_programs
from rlx.errors import BackendError, BindingError, FormatError, RlxError

rng = np.random.default_rng(11)
W, B = rng.normal(size=(8, 5)).astype("f4"), rng.normal(size=5).astype("f4")


def network():
    g = rlx.Graph("network")
    x, ids = g.input("x", ("B", 8)), g.input("ids", ("B",), "i32")
    w, b, table = g.param("w", (8, 5)), g.param("b", (5,)), g.param("table", (7, 5))
    y = rlx.softmax(rlx.tanh(x @ w + b) + rlx.gather(table, ids, axis=0))
    g.set_outputs([y, x[:, 2] * 2])
    return g


TABLE = rng.normal(size=(7, 5)).astype("f4")


def compiled():
    c = rlx.Session("cpu").compile(network())
    c.set_params({"w": W, "b": B, "table": TABLE})
    return c


INPUTS = {"x": rng.normal(size=(3, 8)).astype("f4"), "ids": np.array([0, 6, 2], "i4")}


@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_a_saved_program_gives_the_same_bits(tmp_path, weights):
    path = tmp_path / "m.rlxc"
    before = compiled()
    before.save(path, weights=weights)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.rlxc"] + ["m.rlxc.weights"] * (weights == "beside")
    after = rlx.load_compiled(path)
    for a, b in zip(before.run(INPUTS), after.run(INPUTS), strict=True):
        np.testing.assert_array_equal(a, b)
    # Other sizes, and all the checks of a program that was just compiled.
    assert after.run(x=np.ones((1, 8), "f4"), ids=np.zeros(1, "i4"))[0].shape == (1, 5)
    with pytest.raises(RlxError, match="ids holds 7, but the indexed axis has size 7"):
        after.run(INPUTS | {"ids": np.array([0, 7, 0], "i4")})
    with pytest.raises(BindingError, match="B"):
        after.run(INPUTS | {"ids": np.zeros(2, "i4")})
    with pytest.raises(BindingError, match="its weights are frozen"):
        after.set_param("b", B)
    assert (after.input_types, after.output_types) == (before.input_types, before.output_types)


def test_weights_may_come_later(tmp_path):
    before = compiled()
    before.save(tmp_path / "m.rlxc", weights="none")
    after = rlx.load_compiled(tmp_path / "m.rlxc")
    with pytest.raises(BindingError, match="has no value yet"):
        after.run(INPUTS)
    after.set_params({"w": W, "b": B, "table": TABLE})
    for a, b in zip(before.run(INPUTS), after.run(INPUTS), strict=True):
        np.testing.assert_array_equal(a, b)


ELSEWHERE = """
import sys
import numpy as np
import rlx
c = rlx.load_compiled(sys.argv[1])
y, z = c.run({"x": np.load(sys.argv[2]), "ids": np.array([0, 6, 2], "i4")})
assert not [m for m in sys.modules if m.startswith(("llvmlite", "rlx.kernels.emit.llvm_emit", "rlx.compile.pipeline"))]
np.save(sys.argv[3], np.asarray(y))
"""


def test_another_process_needs_nothing_else(tmp_path):
    """No LLVM, no compiler, and a cache that is empty and cannot be written."""
    before = compiled()
    before.save(tmp_path / "m.rlxc")
    np.save(tmp_path / "x.npy", INPUTS["x"])
    words = [tmp_path / "m.rlxc", tmp_path / "x.npy", tmp_path / "y.npy"]
    environment = {**os.environ, "RLX_CACHE_DIR": str(tmp_path / "nowhere" / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *map(str, words)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), before.run(INPUTS)[0])


def test_any_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "m.rlxc"
    compiled().save(path)
    whole = path.read_bytes()
    places = {*range(64), *rng.integers(0, len(whole), 150).tolist(), len(whole) - 1}
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(FormatError):
            rlx.load_compiled(path)
    for cut in (0, 7, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(FormatError):
            rlx.load_compiled(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError):
        rlx.load_compiled(path)
    path.write_bytes(whole)
    rlx.load_compiled(path)


def test_other_versions_and_machines_are_refused(tmp_path, monkeypatch):
    compiled().save(tmp_path / "m.rlxc")
    monkeypatch.setattr(rlx, "__version__", "99.0")
    with pytest.raises(FormatError, match=r"it was saved by rlx .*, this is 99\.0; save it again"):
        rlx.load_compiled(tmp_path / "m.rlxc")
    monkeypatch.undo()
    other = type("Other", (), {"name": "abacus"})()
    monkeypatch.setattr(saved_programs, "host", lambda: other)
    with pytest.raises(FormatError, match=r"for another kind of CPU than this one \(abacus\)"):
        rlx.load_compiled(tmp_path / "m.rlxc")


def test_an_executor_of_other_sources_is_not_taken(tmp_path, monkeypatch):
    """Records that Python writes for it may have another layout."""
    path = tmp_path / "net.rlxc"
    taken = []
    monkeypatch.setattr(saved_programs, "use_executor", taken.append)
    compiled().save(path)
    rlx.load_compiled(path)
    assert len(taken) == 1
    monkeypatch.setattr(saved_programs, "executor_key", lambda machine: "of another day")
    rlx.load_compiled(path)
    assert len(taken) == 1


def test_what_cannot_be_saved_is_named_and_leaves_nothing(tmp_path):
    def loop(x):
        return rlx.scan(lambda c, x: (c + x, c), x[0], x)[0]

    # Rows so wide that the rounds are kernels.
    g = rlx.jit(loop).lower(np.ones((4, 30), "f4")).graph
    with pytest.raises(BackendError, match=r"@loop cannot be saved: its scan is a loop of kernels"):
        rlx.Session("cpu").compile(g).save(tmp_path / "m.rlxc")
    calls = rlx.Graph("calls")
    called = rlx.register_callback("tests.saved", lambda x: x)
    calls.set_outputs([rlx.host_callback(called, "f32[4]", calls.input("x", (4,)))])
    with pytest.raises(BackendError, match="@calls cannot be saved: its host_callback runs Python code"):
        rlx.Session("cpu").compile(calls).save(tmp_path / "m.rlxc")
    with pytest.raises(BackendError, match="programs of the device 'cpu' can be saved"):
        rlx.Session("reference").compile(g).save(tmp_path / "m.rlxc")
    with pytest.raises(BindingError, match="has no value yet"):
        rlx.Session("cpu").compile(network()).save(tmp_path / "m.rlxc")
    with pytest.raises(RlxError, match="weights is one of inside, beside, none, got 'outside'"):
        compiled().save(tmp_path / "m.rlxc", weights="outside")
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_is_one_kernel_is_saved(tmp_path):
    f = rlx.jit(lambda x: rlx.scan(lambda c, x: (c * 0.9 + x, c), np.float32(0), x)).lower(np.ones(4, "f4")).compile()
    f.save(tmp_path / "f.rlxc")
    x = rng.normal(size=4).astype("f4")
    for got, wanted in zip(rlx.load_compiled(tmp_path / "f.rlxc").run(x=x), f(x), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_jitted_function_is_saved_by_its_inputs(tmp_path):
    f = rlx.jit(lambda x, y: rnp.sin(x) @ y).lower(np.ones((2, 3), "f4"), np.ones((3, 2), "f4")).compile()
    f.save(tmp_path / "f.rlxc")
    x, y = rng.normal(size=(2, 3)).astype("f4"), rng.normal(size=(3, 2)).astype("f4")
    (got,) = rlx.load_compiled(tmp_path / "f.rlxc").run(x=x, y=y)
    np.testing.assert_array_equal(got, f(x, y))


def test_in_place_outputs_stay_in_place(tmp_path):
    g = rlx.Graph("counter")
    state, x = g.input("state", (4,)), g.input("x", (4,))
    new = state + x
    g.set_outputs([new])
    g.alias(new, "state")
    rlx.Session("cpu").compile(g).save(tmp_path / "m.rlxc")
    c = rlx.load_compiled(tmp_path / "m.rlxc")
    held = np.zeros(4, "f4")
    for _ in range(3):
        (out,) = c.run(state=held, x=np.ones(4, "f4"))
        assert np.shares_memory(out, held)
        held = out
    assert held.tolist() == [3, 3, 3, 3]


def test_the_command_writes_what_load_compiled_reads(tmp_path, capsys):
    from rlx.cli import main

    g = rlx.Graph("doubled")
    g.set_outputs([rlx.tanh(g.input("x", ("B", 4))) * 2])
    (tmp_path / "g.rlx").write_text(str(g))
    assert main(["compile", str(tmp_path / "g.rlx"), str(tmp_path / "g.rlxc")]) == 0
    assert "kernels 1" in capsys.readouterr().out
    x = rng.normal(size=(2, 4)).astype("f4")
    (y,) = rlx.load_compiled(tmp_path / "g.rlxc").run(x=x)
    np.testing.assert_array_equal(y, rlx.Session("cpu").compile(g).run(x=x)[0])
    for words, message in [
        (["export", "metal", "g.rlx", "out"], "metal: programs cannot be exported for it"),
        (["export", "cpu", "g.rlx", "out", "--option", "weight=none"], "there is no option 'weight'; known: weights"),
        (["export", "abacus", "g.rlx", "out"], "there is no device 'abacus'"),
        (["compile", str(tmp_path / "nothing.gguf"), "out"], "nothing.gguf"),
    ]:
        assert main(words) == 1
        assert message in capsys.readouterr().err
