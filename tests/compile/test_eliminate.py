"""Dead and repeated nodes go; effects, keys, barriers and user-defined ops keep their meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from pass_checks import effects, mnemonics, run_and_check

import rlx
from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.compile.simplify.common_values import CommonSubexpressionElimination, DeadCodeElimination, cse
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.equal_nodes import merge_equal_nodes
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ops.control.bodies import build_body

CSE = CommonSubexpressionElimination()
DCE = DeadCodeElimination()
X = Shape((3,), "f32")


def graph_of(build):
    graph = Graph("test")
    with building(graph):
        results = build(graph.input("x", X))
        graph.set_outputs(results if isinstance(results, tuple | list) else [results])
    return graph


def test_equal_chains_become_one():
    graph = graph_of(lambda x: ops.sin(x * 2.0) + ops.sin(x * 2.0))
    after = run_and_check(graph, CSE, [np.ones(3, "f4")])
    assert mnemonics(after) == ["mul", "sin", "add"]


def test_equal_constants_become_one():
    table = np.arange(3, dtype="f4")
    graph = graph_of(lambda x: (x + table) * (x - table.copy()))
    assert sum(n.op.mnemonic == "constant" for n in cse(graph).nodes) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lambda x: x + 1.0, lambda x: x - 1.0),
        (lambda x: x - 1.0, lambda x: 1.0 - x),
        (lambda x: ops.reshape(x, (1, 3)), lambda x: ops.reshape(x, (3, 1))),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: ops.cast(x, "f16"), lambda x: ops.cast(x, "bf16")),
    ],
)
def test_what_differs_in_kind_order_attribute_or_sign_stays_apart(a, b):
    graph = graph_of(lambda x: (a(x), b(x)))
    assert cse(graph) is graph


def test_outputs_may_become_the_same_node():
    graph = graph_of(lambda x: (ops.sin(x), ops.sin(x)))
    after = run_and_check(graph, CSE, [np.ones(3, "f4")])
    assert after.outputs == [1, 1]


def test_several_results_merge_with_their_projections():
    def build(x):
        first, second = ops.TopKWithValues(2)(x), ops.TopKWithValues(2)(x)
        return ops.sin(first[0]) + ops.sin(second[0]), first[1] + second[1]

    after = run_and_check(graph_of(build), CSE, [np.array([3, 1, 2], "f4")])
    assert mnemonics(after) == ["top_k", "project", "project", "sin", "add", "add"]


def test_ids_lead_to_the_node_that_was_kept():
    graph = graph_of(lambda x: ops.sin(x) + ops.sin(x))
    merged = merge_equal_nodes(graph)
    assert merged.id(1) == merged.id(2) == 1


def test_effects_are_neither_merged_nor_reordered_nor_dropped(capsys):
    def build(x):
        ops.debug_print("a {}", x)
        ops.debug_print("b {}", x)
        ops.debug_print("a {}", x)
        ops.runtime_assert(ops.reduce_all(x > 0), "must be positive", x)
        return x

    graph = graph_of(build)
    for step in (CSE, DCE):
        after = step.run(graph)
        assert [op.mnemonic for op in effects(after)] == ["debug_print"] * 3 + ["runtime_assert"]
        interpret(after, [np.ones(3, "f4")])
        assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "a"]
        with pytest.raises(rlx.errors.AssertionFailed):
            interpret(after, [-np.ones(3, "f4")])
        capsys.readouterr()


def test_an_effect_inside_a_body_keeps_its_node():
    loud = build_body("loud", lambda v: ops.debug_print("v {}", v), v=X)
    quiet = build_body("quiet", lambda v: v, v=X)

    def build(x):
        for _ in range(2):
            ops.If(loud, quiet)(ops.reduce_sum(x) > 0.0, x)
        return x

    graph = graph_of(build)
    assert sum(isinstance(n.op, ops.If) for n in DCE.run(CSE.run(graph)).nodes) == 2


def test_equal_pure_bodies_merge():
    def build(x):
        double, negate = (build_body(n, f, v=X) for n, f in (("d", lambda v: v + v), ("n", lambda v: -v)))
        return ops.If(double, negate)(x[0] > 0.0, x)

    graph = graph_of(lambda x: build(x) * build(x))
    after = run_and_check(graph, CSE, [np.ones(3, "f4")])
    assert sum(isinstance(n.op, ops.If) for n in after.nodes) == 1


def test_barriers_stay_apart_and_so_does_what_is_behind_them():
    graph = graph_of(lambda x: ops.sin(ops.barrier(x)[0]) + ops.sin(ops.barrier(x)[0]))
    assert cse(graph) is graph
    behind = build_body("behind", lambda v: ops.sin(ops.barrier(v)[0]), v=X)
    graph = graph_of(lambda x: ops.Checkpoint(behind)(x) + ops.Checkpoint(behind)(x))
    assert cse(graph) is graph


def test_user_defined_ops_stay_apart():
    list(ops.Custom.samples())  # registers sample.scale
    scale = ops.Custom("sample.scale", np.float32(2).tobytes())
    graph = graph_of(lambda x: scale(x) + scale(x))
    assert cse(graph) is graph


def test_equal_keys_give_equal_numbers_and_different_ones_do_not():
    graph = Graph("random")
    with building(graph):
        key = graph.input("key", (2,), "u32")
        other = graph.input("other", (2,), "u32")
        bits = [ops.RandomBits((4,))(k) for k in (key, key, other)]
        graph.set_outputs(bits)
    leaves = {"key": np.array([1, 2], "u4"), "other": np.array([3, 4], "u4")}
    after = run_and_check(graph, CSE, leaves)
    assert after.outputs[0] == after.outputs[1] != after.outputs[2]


def test_bodies_are_cleaned_too():
    body = build_body("body", lambda v: ops.sin(v) + ops.sin(v), v=X)
    dead = build_body("dead", lambda v: (ops.exp(v), v)[1], v=X)
    graph = graph_of(lambda x: ops.If(body, dead)(x[0] > 0.0, x))
    merged = next(n.op for n in run_and_check(graph, CSE, [np.ones(3, "f4")]).nodes if isinstance(n.op, ops.If))
    assert mnemonics(merged.then_body) == ["sin", "add"]
    cleaned = next(n.op for n in run_and_check(graph, DCE, [np.ones(3, "f4")]).nodes if isinstance(n.op, ops.If))
    assert mnemonics(cleaned.else_body) == []


def test_dead_nodes_go_and_leaves_stay():
    graph = graph_of(lambda x: (ops.exp(x), ops.sin(x))[1])
    graph_with_param = graph.copy()
    graph_with_param.param("unused", (2,), "f32")
    after = run_and_check(graph_with_param, DCE, {"x": np.ones(3, "f4"), "unused": np.ones(2, "f4")})
    assert mnemonics(after) == ["sin"]
    assert after.has_leaf("unused")


def test_names_survive():
    graph = graph_of(lambda x: (ops.exp(x).named("dead"), ops.sin(x).named("kept"), ops.sin(x))[1:])
    for step in (CSE, DCE):
        assert "kept" in [n.name for n in step.run(graph).nodes]


@settings(max_examples=60)
@given(graphs())
def test_random_graphs_keep_their_bits(graph):
    leaves = inputs_for(graph)
    run_and_check(graph, CSE, leaves, BINDING)
    run_and_check(graph, DCE, leaves, BINDING)
