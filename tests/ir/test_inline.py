"""`inline_graph`: nodes are copied with their names and provenance, and types are checked."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError, TraceError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ops.control.bodies import build_body
from rlx.ops.control.scans import Scan


def square_plus_one():
    body = Graph("body")
    x = body.input("x", ("B",), "f32")
    body.set_outputs([ops.add(ops.mul(x, x).named("square"), 1.0), x])
    return body


def test_nodes_names_and_provenance_are_copied():
    body = square_plus_one()
    graph = Graph("outer")
    y, same = inline_graph(body, [graph.input("y", ("B",), "f32")])
    graph.set_outputs([y])
    assert [n.op.mnemonic for n in graph.nodes] == ["input", "mul", "constant", "add"]
    assert graph.nodes[1].name == "square"
    assert graph.nodes[1].origin == body.nodes[1].origin
    assert same.id == 0
    np.testing.assert_array_equal(interpret(graph, [np.array([2, 3], "f4")])[0], [5, 10])


def test_scalar_constants_are_shared():
    graph = Graph("outer")
    x = graph.input("x", ("B",), "f32")
    for _ in range(3):
        x, _ = inline_graph(square_plus_one(), [x])
    assert sum(n.op.mnemonic == "constant" for n in graph.nodes) == 1


def test_ops_with_several_results():
    step = build_body("step", lambda c: (c + c, c), c=Shape((), "f32"))
    body = Graph("body")
    final, trail = Scan(step, 3)(body.input("c", (), "f32"))
    body.set_outputs([trail, final])
    graph = Graph("outer")
    graph.set_outputs(inline_graph(body, [graph.input("start", (), "f32")]))
    trail, final = interpret(graph, [np.float32(1)])
    np.testing.assert_array_equal(trail, [1, 2, 4])
    assert final == 8


def test_undecided_sizes_become_constraints():
    graph = Graph("outer")
    inline_graph(square_plus_one(), [graph.input("y", ("N",), "f32")])
    assert [(str(c.left), str(c.right)) for c in graph.constraints] == [("B", "N")]


def test_errors():
    graph, body = Graph("outer"), square_plus_one()
    with pytest.raises(OpError, match=r"@body: the body takes 1 inputs \(x\), got 0 operands"), building(graph):
        inline_graph(body, [])
    with pytest.raises(ShapeError, match=r"@body: the body takes 'x' as f32\[B\], got i32\[2\]"):
        inline_graph(square_plus_one(), [graph.input("y", (2,), "i32")])
    with pytest.raises(TraceError, match="no program is being built"):
        inline_graph(square_plus_one(), [np.zeros(2, "f4")])
    weights = Graph("weights")
    weights.set_outputs([weights.param("w", (), "f32")])
    with pytest.raises(OpError, match="the param 'w' cannot be copied"), building(graph):
        inline_graph(weights, [])
