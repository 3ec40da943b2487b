"""Broadcasts made explicit, params promoted and specialised, programs spliced into others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from pass_checks import mnemonics, run_and_check, same_bits

from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.compile.claims import legalize_broadcast
from rlx.compile.claims.legalize_broadcast import LegalizeBroadcast
from rlx.compile.simplify.inline import inline_into, inline_subgraph_into, inline_subgraph_into_outputs
from rlx.compile.simplify.promote_params import promote_params_to_inputs
from rlx.compile.simplify.specialize_params import SpecializeParams, specialize_params
from rlx.errors import BindingError, OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ir.verify import verify_all
from rlx.ops.control.bodies import build_body

BROADCAST = LegalizeBroadcast()
RNG = np.random.default_rng(3)


def pair(a, b, build):
    graph = Graph("pair")
    graph.set_outputs([build(graph.input("a", a, "f32"), graph.input("b", b, "f32"))])
    return graph


@pytest.mark.parametrize(
    ("a", "b", "expands"),
    [
        ((4, 8), (4, 8), 0),
        ((4, 8), (8,), 0),
        ((4, 8), (), 0),
        ((4, 8), (1, 1), 0),
        ((4, 8), (4, 1), 1),
        ((4, 1), (1, 8), 2),
        ((2, 4, 8), (4, 8), 0),
        ((2, 4, 8), (1, 4, 8), 1),
        ((2, 4, 8), (2, 1, 8), 1),
        ((0, 8), (0, 1), 1),
    ],
)
@pytest.mark.parametrize("build", [ops.add, ops.lt, lambda a, b: ops.where(ops.gt(a, a), a, b)])
def test_awkward_operands_are_expanded(a, b, expands, build):
    graph = pair(a, b, build)
    after = run_and_check(graph, BROADCAST, [RNG.random(a).astype("f4"), RNG.random(b).astype("f4")])
    assert mnemonics(after).count("expand") >= min(expands, 1)
    if build is ops.add:
        assert mnemonics(after).count("expand") == expands
        assert (after is graph) == (expands == 0)
    for node in after.nodes:
        if node.op.mnemonic in ("add", "lt", "where"):
            for i in node.inputs:
                dims = after.shape(i).dims
                assert np.prod(dims) == 1 or dims == node.shape.dims[len(node.shape.dims) - len(dims) :]


def test_clamp_and_symbolic_sizes():
    graph = Graph("clamp")
    x, low = graph.input("x", ("B", "S"), "f32"), graph.input("low", ("B", 1), "f32")
    high = graph.input("high", ("S",), "f32")
    graph.set_outputs([ops.clamp(x, low, high)])
    leaves = [RNG.random(s).astype("f4") for s in ((2, 3), (2, 1), (3,))]
    after = run_and_check(graph, BROADCAST, leaves)
    assert mnemonics(after) == ["expand", "clamp"]


def test_remap_says_where_nodes_went_and_bodies_are_visited():
    graph = pair((4, 8), (4, 1), lambda a, b: ops.sin(a + b))
    graph.node(3).name = "sine"
    result = legalize_broadcast.run_with_remap(graph)
    assert [result.graph.node(result.id(n.id)).op for n in graph.nodes] == [n.op for n in graph.nodes]
    assert result.graph.node(result.id(3)).name == "sine"
    assert legalize_broadcast.run(graph) == result.graph
    body = build_body("body", lambda a, b: a + b, a=Shape((4, 8), "f32"), b=Shape((4, 1), "f32"))
    outer = pair((4, 8), (4, 1), lambda a, b: ops.If(body, body)(ops.reduce_sum(b) > 0.0, a, b))
    after = run_and_check(outer, BROADCAST, [RNG.random((4, 8)).astype("f4"), RNG.random((4, 1)).astype("f4")])
    branch = next(n.op for n in after.nodes if isinstance(n.op, ops.If))
    assert mnemonics(branch.then_body) == ["expand", "add"]


@settings(max_examples=40)
@given(graphs())
def test_broadcasts_of_random_graphs(graph):
    run_and_check(graph, BROADCAST, inputs_for(graph), BINDING)


def linear():
    graph = Graph("linear")
    x = graph.input("x", ("B", 3), "f32")
    w, b = graph.param("w", (3, 2), "f32"), graph.param("b", (2,), "f32")
    graph.set_outputs([(x @ w + b).named("y")])
    return graph


LEAVES = {"x": RNG.random((4, 3)).astype("f4"), "w": RNG.random((3, 2)).astype("f4"), "b": np.ones(2, "f4")}


def test_params_become_inputs():
    graph = linear()
    promoted = promote_params_to_inputs(graph, ["w", "nothing"])
    assert [n.op.key for n in promoted.inputs] == ["x", "w"]
    assert [n.op.key for n in promoted.params] == ["b"]
    assert [n.shapes for n in promoted.nodes] == [n.shapes for n in graph.nodes]
    assert [n.name for n in promoted.nodes] == [n.name for n in graph.nodes]
    assert verify_all(promoted) == []
    assert same_bits(interpret(promoted, LEAVES)[0], interpret(graph, LEAVES)[0])
    assert promote_params_to_inputs(promoted, ["w"]) is promoted


@settings(max_examples=25)
@given(graphs())
def test_params_of_random_graphs_become_inputs_or_constants(graph):
    leaves = inputs_for(graph)
    names = [n.op.key for n in graph.params]
    promoted = promote_params_to_inputs(graph, names)
    assert not promoted.params
    bound = {n.op.key: leaves[n.op.key] for n in graph.params}
    special = specialize_params(graph, bound)
    assert not special.params
    for other in (promoted, special):
        assert verify_all(other) == []
        for a, b in zip(interpret(graph, leaves, BINDING), interpret(other, leaves, BINDING), strict=True):
            assert same_bits(a, b)


def test_params_become_constants():
    graph = linear()
    special = specialize_params(graph, {"w": LEAVES["w"].reshape(-1).tolist(), "unknown": 3})
    assert [n.op.key for n in special.params] == ["b"]
    assert same_bits(interpret(special, LEAVES)[0], interpret(graph, LEAVES)[0])
    step = SpecializeParams({"w": LEAVES["w"]})
    run_twice = step.run(step.run(graph))
    assert run_twice == special
    assert step.run(run_twice) is run_twice


def test_a_known_weight_decides_symbolic_sizes():
    graph = Graph("table")
    ids, table = graph.input("ids", ("B",), "i32"), graph.param("table", ("V", 4), "f32")
    with building(graph):
        graph.set_outputs([ops.gather(table, ids), ops.dim_value("V")])
    special = specialize_params(graph, {"table": np.ones((7, 4), "f4")})
    assert special.dynamic_symbols() == ("B",)
    assert interpret(special, {"ids": np.array([1, 6], "i4")})[1] == 7


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(5), "param 'w' is f32[3,2], which has 6 elements, got 5 (shape [5])"),
        (np.ones((3, 2), "c8"), "param 'w' is f32[3,2], got values of c64"),
    ],
)
def test_values_that_do_not_fit_are_refused(value, message):
    with pytest.raises(BindingError) as error:
        specialize_params(linear(), {"w": value})
    assert str(error.value) == f"specialize_params: {message}"


def test_integer_params_take_integers_only():
    graph = Graph("ids")
    graph.set_outputs([graph.param("ids", (2,), "i32")])
    with pytest.raises(BindingError, match="got values of f64"):
        specialize_params(graph, {"ids": [0.5, 1.0]})


def test_inline_by_name():
    target = Graph("target")
    x = target.input("in", ("B", 3), "f32")
    w = target.input("weights", (3, 2), "f32")
    (y,) = inline_into(target, linear(), {"x": ops.neg(x)}, {"w": w})
    (z,) = inline_into(target, linear(), {"x": x}, {"w": w})
    target.set_outputs([y - z])
    assert verify_all(target) == []
    # Both copies read one param b.
    assert [n.op.key for n in target.params] == ["b"]
    assert y.node.name == "y"
    leaves = {"in": LEAVES["x"], "weights": LEAVES["w"], "b": LEAVES["b"]}
    want = (-LEAVES["x"] @ LEAVES["w"]) - LEAVES["x"] @ LEAVES["w"]
    np.testing.assert_allclose(interpret(target, leaves)[0], want, rtol=1e-5)


def test_inline_names_what_is_missing_and_changes_nothing():
    target = Graph("target")
    with pytest.raises(BindingError) as error:
        inline_into(target, linear(), {})
    assert str(error.value) == "inline_into: input 'x' (f32[B,3]) is not bound; bound are: none"
    assert len(target) == 0


def test_inline_refuses_a_leaf_that_is_something_else():
    target = Graph("target")
    x = target.input("x", ("B", 3), "f32")
    target.input("w", (3, 2), "f32")
    with pytest.raises(BindingError, match="already has input 'w' of type f32\\[3,2\\]"):
        inline_into(target, linear(), {"x": x})


def test_inline_checks_types():
    target = Graph("target")
    with pytest.raises(ShapeError, match="takes 'x' as f32\\[B,3\\], got f32\\[2,4\\]"):
        inline_into(target, linear(), {"x": target.input("x", (2, 4), "f32")})


def test_inline_keeps_nested_bodies():
    body = build_body("body", lambda v: v + v, v=Shape((2,), "f32"))
    source = Graph("source")
    v = source.input("v", (2,), "f32")
    source.set_outputs([ops.If(body, body)(v[0] > 0.0, v)])
    target = Graph("target")
    (y,) = inline_into(target, source, {"v": target.input("v", (2,), "f32")})
    assert y.node.op.then_body is body


def test_subgraphs_are_bound_by_position():
    sub = build_body("sub", lambda a, b: (a - b, a + b), a=Shape((2,), "f32"), b=Shape((2,), "f32"))
    out = Graph("out")
    x, y = out.input("x", (2,), "f32"), out.input("y", (2,), "f32")
    both = inline_subgraph_into_outputs(sub, [x, y], out)
    first = inline_subgraph_into(sub, [y.id, x.id], out)
    out.set_outputs([*both, first])
    values = interpret(out, [np.array([3, 4], "f4"), np.array([1, 1], "f4")])
    assert [v.tolist() for v in values] == [[2, 3], [4, 5], [-2, -3]]
    with pytest.raises(OpError, match="takes 2 inputs \\(a, b\\), got 1 operands"):
        inline_subgraph_into(sub, [x], out)


def test_a_program_without_inputs_is_inlined_where_it_is_wanted():
    constant = Graph("constant")
    with building(constant):
        constant.set_outputs([ops.exp(constant.constant(1.0))])
    out = Graph("out")
    out.set_outputs([inline_subgraph_into(constant, [], out)])
    assert mnemonics(out) == ["exp"]
