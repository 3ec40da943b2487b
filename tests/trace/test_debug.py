"""`rlx.debug.print`: where and how often it prints, and how fields are filled."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import debug
from rlx.errors import OpError
from rlx.ir.serialize import from_json, to_json
from rlx.ir.text.graph_text import parse, show
from rlx.trace.control import cond, map, scan
from rlx.trace.jit import jit


def test_prints_when_the_program_runs(capsys):
    @jit
    def f(x):
        debug.print("x = {}", x)
        return x * 2

    f.trace(np.float32(1))
    assert capsys.readouterr().out == ""
    f(np.float32(1))
    f(np.float32(2))
    assert capsys.readouterr().out == "x = 1.0\nx = 2.0\n"


def test_fields(capsys):
    debug.print("{1} {0} {0} {name:.2f} {{}} {who!r} {}", 1, 2, name=3.0, who="me{}")
    assert capsys.readouterr().out == "2 1 1 3.00 {} 'me{}' 1\n"
    debug.print("reached")
    assert capsys.readouterr().out == "reached\n"
    with pytest.raises(OpError, match=r"nothing is given for the field \{1\}"):
        debug.print("{0} {1}", 1)
    with pytest.raises(OpError, match=r"nothing is given for the field \{b\} .* and a"):
        debug.print("{b}", a=1)


def test_effects_in_bodies_run_in_order(capsys):
    def step(c, x):
        debug.print("{} {}", c, x)
        return c + x, None

    jit(lambda xs: scan(step, np.int32(0), xs)[0])(np.arange(3, dtype="i4"))
    assert capsys.readouterr().out == "0 0\n0 1\n1 2\n"


def test_only_the_chosen_branch_prints(capsys):
    f = jit(lambda p: cond(p, lambda: debug.print("yes"), lambda: debug.print("no")))
    assert f(np.bool_(True)) is None
    f(np.bool_(False))
    assert capsys.readouterr().out == "yes\nno\n"


def test_ops_with_effects_inside_have_an_effect():
    printing = jit(lambda xs: map(lambda x: debug.print("{}", x), xs)).trace(np.zeros(2, "f4")).graph
    silent = jit(lambda xs: map(lambda x: x + 1, xs)).trace(np.zeros(2, "f4")).graph
    assert [n.op.effect for n in printing.nodes if n.op.mnemonic == "scan"] == [True]
    assert parse(show(printing)) == printing
    assert from_json(to_json(printing)) == printing
    assert [n.op.effect for n in silent.nodes if n.op.mnemonic == "scan"] == [False]


def test_callbacks_see_every_pass():
    """Trees of values, in loops, in branches that are taken, under vmap and grad; and without any value."""
    seen = []

    @rlx.jit
    def f(x):
        rlx.debug.callback(lambda: seen.append("start"))

        def step(i, c):
            rlx.debug.callback(lambda d, *, at: seen.append((int(at), float(d["c"]))), {"c": c}, at=i)
            return c * 2

        return rlx.fori_loop(0, 3, step, x)

    assert f(np.float32(1)) == 8
    assert seen == ["start", (0, 1.0), (1, 2.0), (2, 4.0)]
    seen.clear()
    rlx.debug.callback(seen.append, 5)
    assert seen == [5]
    seen.clear()

    def g(x):
        rlx.debug.callback(lambda v: seen.append(float(v)), x)
        return x * x

    np.testing.assert_array_equal(rlx.jit(rlx.vmap(rlx.grad(g)))(np.float32([1, 2])), [2, 4])
    assert seen == [1, 2]
