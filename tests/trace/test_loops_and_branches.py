"""Loops and branches over functions, compared with the plain Python they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.errors import RlxError, TraceError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.trace.control import cond, fori_loop, map, scan, switch, while_loop
from rlx.trace.jit import jit
from rlx.trace.pytree import tree_flatten
from rlx.trace.tracing import Spec, trace


def check(got, wanted):
    """Equal trees of arrays, types included."""
    got_leaves, got_tree = tree_flatten(got)
    wanted_leaves, wanted_tree = tree_flatten(wanted)
    assert got_tree == wanted_tree
    for a, b in zip(got_leaves, wanted_leaves):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def run_both(f, *args):
    """The result of `f` evaluated at once, after checking that the compiled one is the same."""
    eager = f(*args)
    check(jit(f)(*args), eager)
    return eager


def reference_scan(f, carry, xs, reverse=False):
    """jax.lax.scan in five lines of Python, over a list of rows."""
    ys = []
    for x in reversed(xs) if reverse else xs:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, np.stack(ys[::-1] if reverse else ys)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_is_a_loop(reverse):
    xs = np.linspace(-1, 2, 6).astype("f4").reshape(3, 2)

    def step(c, x):
        return c * x + np.float32(0.5), c - x

    wanted = reference_scan(step, np.ones(2, "f4"), list(xs), reverse)
    check(run_both(lambda c, xs: scan(step, c, xs, reverse=reverse), np.ones(2, "f4"), xs), wanted)


def test_scan_over_trees_of_mixed_types():
    def step(carry, x):
        new = {"n": carry["n"] + 1, "sum": carry["sum"] + x["a"] * x["k"]}
        return new, (carry["n"], {"odd": carry["sum"] > 1.0, "copy": x["k"]})

    init = {"n": np.int32(10), "sum": np.float64(0)}
    xs = {"a": np.array([1.0, 2.0, 3.0]), "k": np.array([1, 0, 2], "i4")}
    carry, (numbers, more) = run_both(lambda i, x: scan(step, i, x), init, xs)
    check(carry, {"n": np.int32(13), "sum": np.float64(7)})
    check(numbers, np.array([10, 11, 12], "i4"))
    check(more, {"odd": np.array([False, False, False]), "copy": np.array([1, 0, 2], "i4")})


def test_scan_without_xs_and_without_ys():
    check(run_both(lambda c: scan(lambda c, _: (c * 2, None), c, length=5), np.float32(1)), (np.float32(32), None))


def test_scan_of_length_zero_keeps_the_carry():
    carry, ys = run_both(lambda c, x: scan(lambda c, x: (c + x, c * x), c, x), np.ones(2, "f4"), np.zeros((0, 2), "f4"))
    check((carry, ys), (np.ones(2, "f4"), np.zeros((0, 2), "f4")))


def test_scan_closures_become_operands():
    def f(w, b, xs):
        def step(c, x):
            return c * w + b + x, c * b

        return scan(step, w * 0, xs)

    w, b, xs = np.float32(2), np.float32(3), np.arange(4, dtype="f4")
    graph = trace(f, w, b, xs).graph
    (node,) = [n for n in graph.nodes if n.op.mnemonic == "scan"]
    assert (node.op.num_carry, node.op.num_bcast, node.op.num_xs) == (1, 2, 1)
    assert [n.name for n in node.op.body.inputs] == ["c", "capture_0", "capture_1", "x"]
    wanted = reference_scan(lambda c, x: (c * w + b + x, c * b), np.float32(0), list(xs))
    check(jit(f)(w, b, xs), wanted)


def test_nested_scans_capture_through_both():
    def f(w, xs):
        def outer(c, x):
            def inner(d, _):
                return d * w + x + c, d

            total, trail = scan(inner, c, None, length=2)
            return total, trail

        return scan(outer, w - w, xs)

    def reference(w, xs):
        c, rows = w - w, []
        for x in xs:
            d, trail = c, []
            for _ in range(2):
                trail.append(d)
                d = d * w + x + c
            rows.append(trail)
            c = d
        return c, np.array(rows, "f4")

    w, xs = np.float32(0.5), np.arange(3, dtype="f4")
    check(jit(f)(w, xs), reference(w, xs))


def test_scan_over_a_symbolic_length_is_traced_once():
    traced = trace(lambda c, xs: scan(lambda c, x: (c + x, c), c, xs), Spec((2,)), Spec(("S", 2)))
    for length in (0, 1, 5):
        xs = np.ones((length, 2), "f4")
        total, partial = interpret(traced.graph, [np.zeros(2, "f4"), xs])
        np.testing.assert_array_equal(total, [length, length])
        np.testing.assert_array_equal(partial, np.arange(length)[:, None] * np.ones(2))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
def test_python_numbers_in_the_carry_take_the_type_of_the_loop(dtype):
    xs = np.arange(3).astype(dtype)
    total, _ = run_both(lambda xs: scan(lambda c, x: (c + x, None), 0, xs), xs)
    check(total, np.array(3, dtype))
    pair, _ = run_both(lambda xs: scan(lambda c, x: ((c[1] + x, c[0]), None), (0, 0.5), xs), xs)
    assert {np.asarray(p).dtype for p in pair} == {np.dtype(dtype)}


def test_python_numbers_keep_their_exact_value():
    total, _ = scan(lambda c, x: (c + x, None), 0.1, np.zeros(1))
    assert float(total) == 0.1
    chosen = cond(False, lambda x: x, lambda x: 0.1, np.float64(0))
    assert (float(chosen), np.asarray(chosen).dtype) == (0.1, np.float64)


def test_a_number_returned_for_a_carry_takes_its_type():
    carry, _ = run_both(lambda c: scan(lambda c, _: (7, c), c, length=2), np.float16(1))
    check(carry, np.float16(7))


def test_scan_on_tensors_of_a_graph():
    g = Graph("g")
    x, w = g.input("x", (3,), "f32"), g.input("w", (), "f32")
    total, ys = scan(lambda c, v: (c + v * w, c), w, x)
    g.set_outputs([total, ys])
    got = interpret(g, [np.array([1, 2, 3], "f4"), np.float32(2)])
    check(tuple(got), (np.float32(14), np.array([2, 4, 8], "f4")))


def test_scan_errors():
    xs = np.zeros((3, 2), "f4")
    with pytest.raises(TraceError, match=r"'carry.h' is f32\[2\] at first and step returns f32\[\]"):

        def step(c, x):
            return {"h": np.float32(1), "n": c["n"]}, None

        scan(step, {"h": np.zeros(2, "f4"), "n": 0}, xs)
    with pytest.raises(TraceError, match=r"'carry' is i32\[\] at first and lambda returns f32\[\]"):
        scan(lambda c, _: (c * np.float32(2), None), np.int32(1), length=2)
    with pytest.raises(TraceError, match=r"must look like the initial one: the trees differ at 'h': a leaf is wanted"):
        scan(lambda c, x: ({"h": [c["h"]]}, None), {"h": 1.0}, xs)
    with pytest.raises(TraceError, match="must return a pair"):
        scan(lambda c, x: c, 1.0, xs)
    with pytest.raises(TraceError, match="the number of steps must be given as length"):
        scan(lambda c, x: (c, None), 1.0)
    with pytest.raises(TraceError, match=r"'xs.b' has 4 rows, but 'xs.a' has 3"):
        scan(lambda c, x: (c, None), 1.0, {"a": xs, "b": np.zeros(4)})
    with pytest.raises(TraceError, match=r"'xs' has 3 rows, but length is 5"):
        scan(lambda c, x: (c, None), 1.0, xs, length=5)
    with pytest.raises(TraceError, match=r"'xs' is f64\[\], it needs a leading axis"):
        scan(lambda c, x: (c, None), 1.0, np.float64(1))
    with pytest.raises(TraceError, match=r"scan: 'init.name' is a str"):
        scan(lambda c, x: (c, None), {"name": "a"}, xs)
    with pytest.raises(TraceError, match="unroll must be"):
        scan(lambda c, x: (c, None), 1.0, xs, unroll=0)


def test_values_do_not_leave_a_body():
    kept = []

    def step(c, x):
        kept.append(c)
        return c + x, None

    def f(xs):
        scan(step, 0.0, xs)
        return kept[0] + 1

    with pytest.raises(TraceError, match="exists only there"):
        jit(f)(np.zeros(2, "f4"))


def test_map_is_scan_without_a_carry():
    xs = {"a": np.arange(3, dtype="f4"), "b": np.arange(6, dtype="f4").reshape(3, 2)}
    check(run_both(lambda xs: map(lambda x: x["a"] * x["b"], xs), xs), xs["a"][:, None] * xs["b"])


def test_fori_loop_with_fixed_and_traced_bounds():
    def f(lower, upper, x):
        return fori_loop(lower, upper, lambda i, v: v * 2 + i.astype("f4"), x)

    def reference(lower, upper, x):
        for i in range(lower, upper):
            x = x * 2 + i
        return np.float32(x)

    for lower, upper in ((0, 4), (2, 5), (3, 3), (4, 1)):
        wanted = reference(lower, upper, np.float32(1))
        check(f(lower, upper, np.float32(1)), wanted)
        check(jit(f)(lower, upper, np.float32(1)), wanted)
        check(jit(f, static_argnums=(0, 1))(lower, upper, np.float32(1)), wanted)
    kinds = [n.op.mnemonic for n in jit(f, static_argnums=(0, 1)).trace(0, 4, np.float32(1)).graph.nodes]
    assert "scan" in kinds
    assert "while" not in kinds
    assert "while" in [n.op.mnemonic for n in trace(f, 0, 4, np.float32(1)).graph.nodes]


def test_the_index_of_fixed_bounds_is_weak():
    check(fori_loop(0, 4, lambda i, v: v + i, np.float16(0.5)), np.float16(6.5))


def test_fori_loop_error_names_the_path():
    with pytest.raises(TraceError, match=r"'carry.value.w' is f32\[2\] at first"):
        fori_loop(0, 3, lambda i, v: {"w": i}, {"w": np.zeros(2, "f4")})


def test_while_loop_is_a_loop():
    def f(n, limit):
        def collatz(state):
            value, steps = state
            even = ops.eq(ops.rem(value, 2), 0)
            return cond(even, lambda v: ops.floordiv(v, 2), lambda v: 3 * v + 1, value), steps + 1

        return while_loop(lambda s: ops.and_(s[0] != 1, s[1] < limit), collatz, (n, 0))

    def reference(n):
        steps = 0
        while n != 1:
            n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
        return np.int32(n), np.int32(steps)

    for n in (1, 6, 27):
        check(run_both(f, np.int32(n), np.int32(1000)), reference(n))


def test_while_loop_with_a_bound_and_captures():
    def f(x, factor, limit):
        return while_loop(lambda v: v < limit, lambda v: v * factor, x, max_iterations=3)

    assert run_both(f, np.float32(1), np.float32(2), np.float32(100)) == 8
    assert run_both(f, np.float32(1), np.float32(9), np.float32(50)) == 81
    (node,) = [n for n in trace(f, 1.0, np.float32(2), np.float32(3)).graph.nodes if n.op.mnemonic == "while"]
    assert node.op.num_bcast == 2


def test_while_loop_errors():
    with pytest.raises(TraceError, match=r"must return one scalar, it returns bool\[2\]"):
        while_loop(lambda v: v < 1, lambda v: v, np.zeros(2, "f4"))
    with pytest.raises(TraceError, match=r"must return one scalar, it returns TreeDef"):
        while_loop(lambda v: (v < 1, v), lambda v: v, np.float32(0))
    with pytest.raises(TraceError, match=r"'carry' is i32\[\] at first and lambda returns f64\[\]"):
        while_loop(lambda v: v < 1, lambda v: v * np.float64(1), np.int32(0))


@pytest.mark.parametrize("pred", [True, False, np.bool_(False), np.float32(0.5), np.array([0])])
def test_cond_runs_one_branch(pred):
    def f(p, x, y):
        return cond(p, lambda a, b: {"r": a + b, "k": 1}, lambda a, b: {"r": a - b, "k": 2}, x, y)

    chosen = bool(np.all(pred))
    wanted = {"r": np.float32(5) if chosen else np.float32(1), "k": np.int32(1 if chosen else 2)}
    check(run_both(f, pred, np.float32(3), np.float32(2)), wanted)


def test_cond_captures_are_shared_by_the_branches():
    def f(p, x, y, z):
        return cond(p, lambda: x * y, lambda: y - z)

    graph = trace(f, np.bool_(True), *(np.float32(v) for v in (2, 3, 4))).graph
    (node,) = [n for n in graph.nodes if n.op.mnemonic == "if"]
    assert len(node.inputs) == 4
    assert jit(f)(np.bool_(True), np.float32(2), np.float32(3), np.float32(4)) == 6
    assert jit(f)(np.bool_(False), np.float32(2), np.float32(3), np.float32(4)) == -1


def test_cond_joins_numbers_with_arrays():
    for dtype in ("f2", "f8"):
        f = jit(lambda p, x: cond(p, lambda: x, lambda: 0))
        check(f(np.bool_(False), np.dtype(dtype).type(3)), np.dtype(dtype).type(0))
    check(cond(True, lambda: 1, lambda: 2.5), np.float32(1))


def test_cond_errors():
    x = np.zeros(2, "f4")
    with pytest.raises(TraceError, match=r"result 'a' is f32\[2\] from lambda, f64\[\] from other"):

        def other(v):
            return {"a": np.float64(1)}

        cond(True, lambda v: {"a": v}, other, x)
    with pytest.raises(TraceError, match="must return the same structure as lambda: the trees differ at the top"):
        cond(True, lambda v: {"a": v}, lambda v: {"b": v}, x)
    with pytest.raises(TraceError, match=r"the predicate must be a scalar, got bool\[2\]; use rnp.where"):
        cond(x > 0, lambda: 1, lambda: 2)
    with pytest.raises(TraceError, match="the predicate is a str"):
        cond("yes", lambda: 1, lambda: 2)


def test_switch_clamps_the_index():
    branches = [lambda x: x + 1, lambda x: x * 10, lambda x: -x]
    for index in (-3, 0, 1, 2, 8):
        wanted = branches[min(max(index, 0), 2)](np.float32(4))
        check(run_both(lambda i, x: switch(i, branches, x), np.int32(index), np.float32(4)), np.float32(wanted))
    with pytest.raises(TraceError, match="at least one branch"):
        switch(0, [], np.float32(1))
    with pytest.raises(TraceError, match=r"must be an integer scalar, got f32\[\]"):
        switch(1.0, branches, np.float32(1))


def test_jit_inside_a_body():
    @jit
    def twice(x):
        return x * 2

    assert run_both(lambda x: scan(lambda c, _: (twice(c), None), x, length=3)[0], np.float32(1)) == 8


def test_errors_inside_a_body_keep_the_users_line():
    def step(c, x):
        return c + np.zeros(3, "f4") + np.zeros(2, "f4"), None

    with pytest.raises((RlxError, ValueError), match="broadcast"):
        scan(step, np.zeros(3, "f4"), length=1)
