"""`If`, `Switch`, `While` at the level of graphs: values against Python, and the text of every error."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.errors import AssertionFailed, OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.shape import Shape
from rlx.ops.control.bodies import build_body
from rlx.ops.control.branches import If, Switch, While

F2 = Shape((2,), "f32")
SCALAR = Shape((), "f32")


def unary(name, f, x=F2):
    return build_body(name, f, x=x)


def run(op, *arrays):
    """The op in a graph over inputs of the arrays' types, interpreted."""
    graph = Graph("test")
    inputs = [graph.input(f"x{i}", Shape(a.shape, a.dtype)) for i, a in enumerate(arrays)]
    result = op(*inputs)
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return interpret(graph, arrays)


def test_if_has_several_results_of_different_types():
    then = unary("then", lambda x: (x + x, x < 1.0))
    other = unary("other", lambda x: (x * x, x < 0.0))
    x = np.array([0.5, 3], "f4")
    for pred, wanted in ((1, (x + x, x < 1)), (0, (x * x, x < 0))):
        for got, want in zip(run(If(then, other), np.asarray(pred), x), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_if_evaluates_only_the_chosen_branch():
    then = unary("then", lambda x: ops.runtime_assert(x > 0.0, "then ran", x))
    other = unary("other", lambda x: x + 1.0)
    x = np.array([-1, 2], "f4")
    np.testing.assert_array_equal(run(If(then, other), np.asarray(False), x)[0], [0, 3])
    with pytest.raises(AssertionFailed, match="then ran"):
        run(If(then, other), np.asarray(True), x)
    assert If(then, other).effect
    assert not If(other, other).effect


def test_if_without_captures():
    one, two = build_body("one", lambda: np.float32(1)), build_body("two", lambda: np.float32(2))
    assert run(If(one, two), np.asarray(0, "i1"))[0] == 2


def test_if_errors():
    body = unary("body", lambda x: x + 1.0)
    x = np.zeros(2, "f4")
    with pytest.raises(OpError, match=r"if: needs a predicate with one element, got bool\[2\]"):
        run(If(body, body), np.zeros(2, bool), x)
    with pytest.raises(OpError, match=r"the body takes 1 inputs \(x\), got 0 operands"):
        run(If(body, body), np.asarray(True))
    with pytest.raises(ShapeError, match=r"if then_body: the body takes 'x' as f32\[2\], got f64\[2\]"):
        run(If(body, body), np.asarray(True), x.astype("f8"))
    wider = unary("wider", lambda x: x < 1.0)
    with pytest.raises(OpError, match=r"then_body returns \(f32\[2\]\) and else_body returns \(bool\[2\]\)"):
        run(If(body, wider), np.asarray(True), x)
    with_param = Graph("with_param")
    with_param.set_outputs([with_param.param("w", (2,), "f32")])
    with pytest.raises(OpError, match="then_body @with_param has the param 'w'; pass weights as operands"):
        If(with_param, body)
    with pytest.raises(OpError, match="a Graph is needed"):
        If("then", body)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_switch_decomposes_into_a_tree_of_ifs(count):
    branches = tuple(unary(f"b{i}", lambda x, i=i: x * float(i)) for i in range(count))
    graph = Graph("g")
    index, x = graph.input("i", (), "i32"), graph.input("x", (2,), "f32")
    graph.set_outputs([Switch(branches)(index, x)])

    def expand(g):
        return rebuild(g, lambda n, xs: n.op.decompose(*xs) if isinstance(n.op, Switch) else None).graph

    rewritten = expand(graph)
    data = np.array([1, 2], "f4")
    for i in range(-1, count + 1):
        wanted = data * min(max(i, 0), count - 1)
        for g in (graph, rewritten):
            np.testing.assert_array_equal(interpret(g, [np.int32(i), data])[0], wanted)


def test_switch_errors():
    body = unary("body", lambda x: x)
    with pytest.raises(OpError, match="at least one branch"):
        Switch(())
    with pytest.raises(OpError, match=r"needs an integer index with one element, got f32\[\]"):
        run(Switch((body,)), np.float32(0), np.zeros(2, "f4"))
    with pytest.raises(OpError, match=r"branches\[0\] returns \(f32\[2\]\) and branches\[1\] returns \(\)"):
        run(Switch((body, build_body("empty", lambda x: (), x=F2))), np.int32(0), np.zeros(2, "f4"))


def test_while_returns_every_carry():
    below = build_body("below", lambda i, x: i < 4, i=Shape((), "i32"), x=SCALAR)
    step = build_body("step", lambda i, x: (i + 1, x * 3.0), i=Shape((), "i32"), x=SCALAR)
    i, x = run(While(below, step), np.int32(1), np.float32(2))
    assert (i, x) == (4, 54)
    graph = Graph("g")
    carries = [graph.input("i", (), "i32"), graph.input("x", (), "f32")]
    assert ops.while_(carries, below, step).dtype is ops.while_multi(carries, below, step)[0].dtype


def test_while_condition_holds_when_all_elements_do():
    below = unary("below", lambda x: x < 5.0)
    step = unary("step", lambda x: x + 1.0)
    np.testing.assert_array_equal(run(While(below, step), np.array([0, 3], "f4"))[0], [2, 5])
    np.testing.assert_array_equal(run(While(below, step, 1), np.array([0, 3], "f4"))[0], [1, 4])
    np.testing.assert_array_equal(run(While(below, step, 0), np.array([0, 3], "f4"))[0], [0, 3])


def test_while_errors():
    below, step = unary("below", lambda x: x < 5.0), unary("step", lambda x: x + 1.0)
    with pytest.raises(OpError, match="cond @two must return one tensor, it returns 2"):
        While(unary("two", lambda x: (x, x)), step)
    with pytest.raises(OpError, match="max_iterations cannot be negative, got -1"):
        While(below, step, -1)
    with pytest.raises(OpError, match=r"must return the types of the carries, \(f32\[2\]\), it returns \(bool\[2\]\)"):
        run(While(below, below), np.zeros(2, "f4"))
    with pytest.raises(OpError, match="num_bcast=3 does not fit 1 operands"):
        run(While(below, step, None, 3), np.zeros(2, "f4"))


def test_symbols_are_those_of_the_program():
    body = unary("body", lambda x: x + 1.0, Shape(("B",), "f32"))
    graph = Graph("g")
    pred, x = graph.input("p", (), "bool"), graph.input("x", ("N",), "f32")
    graph.set_outputs([If(body, body)(pred, x)])
    assert [(str(c.left), str(c.right)) for c in graph.constraints if {str(c.left), str(c.right)} == {"B", "N"}]
    bound = graph.bind({"B": 3, "N": 3})
    np.testing.assert_array_equal(interpret(bound, [np.asarray(True), np.zeros(3, "f4")])[0], [1, 1, 1])
