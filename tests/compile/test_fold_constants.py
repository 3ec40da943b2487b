"""Everything pure folds, in every dtype, to the value the interpreter gives; nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from pass_checks import mnemonics, run_and_check, same_bits

import rlx.ops
from random_graphs import BINDING, STEPS, graphs, inputs_for
from rlx import ops
from rlx.compile.simplify import constants as fold_constants
from rlx.compile.simplify.constants import ConstantFolding
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ir.tensor_data import TensorData
from rlx.ops.control.bodies import build_body
from rlx.ops.parallel.collectives import Collective

FOLD = ConstantFolding()


def all_samples():
    for name, cls in OP_CLASSES.items():
        if cls.is_structural or cls.is_block:
            continue
        for index, sample in enumerate(cls.samples()):
            if sample.operands and not sample.binding:
                yield pytest.param(sample, id=f"{name}-{index}")


def constant_graph(op, arrays):
    """The op applied to constants only."""
    graph = Graph("constants")
    with building(graph):
        result = op(*(graph.constant(TensorData(a)) for a in arrays))
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return graph


def is_left_alone(op):
    impure = op.effect or not getattr(op, "mergeable", True)
    return impure or bool(op.bodies) or isinstance(op, Collective)


@pytest.mark.parametrize("sample", list(all_samples()))
def test_every_pure_op_folds(sample):
    for dtype in sample.dtypes:
        graph = constant_graph(sample.op, sample.arrays(dtype))
        folded = FOLD.run(graph)
        if is_left_alone(sample.op):
            assert folded is graph
            continue
        assert mnemonics(folded) == []
        for a, b in zip(interpret(graph, {}), interpret(folded, {}), strict=True):
            assert same_bits(a, b)


def test_broadcasting_and_chains_against_numpy():
    graph = Graph("chain")
    with building(graph):
        x = graph.input("x", (2, 3), "f32")
        row = graph.constant(np.array([1, 2, 3], "f4"))
        column = graph.constant(np.array([[10], [20]], "f4"))
        table = ops.exp(row) * column + ops.transpose(ops.concat([column, column, column], 1), (0, 1))
        graph.set_outputs([x * table])
    after = run_and_check(graph, FOLD, [np.ones((2, 3), "f4")])
    assert mnemonics(after) == ["mul"]
    folded = next(n.op.value.array for n in after.nodes if n.op.mnemonic == "constant")
    wanted = np.exp(np.array([1, 2, 3], "f8")).astype("f4") * np.array([[10], [20]], "f4") + [[10], [20]]
    np.testing.assert_array_equal(folded, wanted.astype("f4"))


def test_params_inputs_and_sizes_never_fold():
    graph = Graph("leaves")
    with building(graph):
        x, w = graph.input("x", ("B",), "f32"), graph.param("w", (), "f32")
        graph.set_outputs([ops.sin(w) * x, ops.dim_value("B") + 1, ops.expand(graph.constant(2.0), ("B",))])
    assert FOLD.run(graph) is graph


def test_an_expanded_scalar_stays_an_expansion():
    graph = constant_graph(ops.Expand((1000, 1000)), [np.float32(1)])
    assert FOLD.run(graph) is graph


def test_large_operands_are_left_for_the_weights_program():
    large = np.zeros(fold_constants.MAX_OPERAND_BYTES // 4 + 1, "f4")
    graph = constant_graph(ops.Reverse((0,)), [large])
    assert FOLD.run(graph) is graph
    assert mnemonics(FOLD.run(constant_graph(ops.Reverse((0,)), [large[:-1]]))) == []


def test_a_loop_on_constants_is_not_run():
    forever = build_body("forever", lambda i: i < 3, i=Shape((), "i32"))
    same = build_body("same", lambda i: i, i=Shape((), "i32"))
    graph = constant_graph(ops.While(forever, same), [np.int32(0)])
    assert FOLD.run(graph) is graph


def test_what_fails_is_left_to_fail_at_run_time(monkeypatch):
    def refuse(self, x):
        raise rlx.errors.OpError("no")

    graph = constant_graph(ops.Reverse((0,)), [np.ones(3, "f4")])
    monkeypatch.setattr(ops.Reverse, "eval", refuse)
    assert FOLD.run(graph) is graph


def test_bodies_fold_too():
    sines = build_body("sines", lambda v: ops.sin(v) + 1.0, v=Shape((2,), "f32"))
    constant = Graph("constant")
    with building(constant):
        v = constant.input("v", (2,), "f32")
        constant.set_outputs([v * ops.exp(constant.constant(1.0))])
    graph = Graph("outer")
    x = graph.input("x", (2,), "f32")
    graph.set_outputs([ops.Switch((sines, constant.freeze()))(np.int32(1), x)])
    after = run_and_check(graph, FOLD, [np.ones(2, "f4")])
    (switch,) = (n.op for n in after.nodes if isinstance(n.op, ops.Switch))
    assert [mnemonics(b) for b in switch.branches] == [["sin", "add"], ["mul"]]
    assert switch.branches[0] is sines


def test_several_results_fold():
    graph = Graph("several")
    with building(graph):
        values, ids = ops.TopKWithValues(2)(graph.constant(np.array([3, 1, 2], "f4")))
        graph.set_outputs([values + 1.0, ids])
    after = FOLD.run(graph)
    assert mnemonics(after) == []
    values, ids = interpret(after, {})
    assert (values.tolist(), ids.tolist()) == ([4, 3], [0, 2])


def constant(draw, values):
    graph = values[0].graph
    return graph.constant(np.array([[1.5, -2.0, 0.0]], "f4"))


@settings(max_examples=40)
@given(graphs(steps=(*STEPS, (constant, list), (constant, list), (constant, list))))
def test_random_graphs_keep_their_bits(graph):
    run_and_check(graph, FOLD, inputs_for(graph), BINDING)
