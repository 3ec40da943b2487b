"""Grouping: which ops share a kernel, in which order kernels run, and the reason of every value that is stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from programs import gpt_loss, llama

import rlx
from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.compile.fusion_barriers import FusionBarrier
from rlx.compile.grouping import MAX_NODES, group, group_kernels
from rlx.compile.kernel_forms import kernel_forms
from rlx.compile.lir_interpreter import interpret_lir
from rlx.compile.pipeline import lower_to_lir
from rlx.ir.interpret import interpret
from rlx.ir.lir import lir_from_json, lir_to_json
from rlx.ir.lir_text import parse_lir
from rlx.ir.tensor import building
from rlx.ir.text import large_constants
from rlx.kernels.from_lir import GENERATOR


def lowered(graph):
    return kernel_forms(graph, GENERATOR)


def kernels(graph):
    """The kernels as `kind: ops`."""
    graph = lowered(graph)
    found = group_kernels(graph, GENERATOR)
    return [f"{k.kind}: {' '.join(graph.nodes[i].op.mnemonic for i in k.nodes)}" for k in found]


def kinds(graph):
    return [line.split(":")[0] for line in kernels(graph)]


def reasons(graph):
    graph = lowered(graph)
    return {
        (graph.nodes[e.producer].op.mnemonic, graph.nodes[e.reader].op.mnemonic): e.reason
        for e in group(graph, GENERATOR).barriers
    }


def build(function, *dims, dtype="f32"):
    """A graph of one function of inputs with these dims."""
    graph = rlx.Graph("g")
    with building(graph):
        result = function(*(graph.input(f"x{i}", d, dtype) for i, d in enumerate(dims)))
    graph.set_outputs(result if isinstance(result, tuple | list) else [result])
    return graph


ROW = ("B", "S", 64)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: rlx.softmax(x, -1),
        lambda x: rlx.log_softmax(x, -1),
        lambda x: rlx.softmax(x, 1),
        lambda x: rlx.softmax(rlx.tanh(x) * 2.0, -1) + x,
        lambda x: x - ops.reduce_mean(x, -1, keepdims=True),
        lambda x: (x / ops.sqrt(ops.reduce_sum(x * x, -1, keepdims=True)), ops.reduce_max(x, -1)),
        lambda x: rlx.softmax(ops.reshape(x, ("B*S", 64)), -1),
        lambda x: ops.reshape(rlx.softmax(x, -1), ("B", "S*64")),
        lambda x: rlx.softmax(ops.transpose(x, (1, 0, 2)), -1),
        lambda x: rlx.softmax(ops.narrow(x, 2, 3, 40), -1),
    ],
)
def test_one_row_kernel(function):
    assert kinds(build(function, ROW)) == ["row"]


@pytest.mark.parametrize("norm", [ops.layer_norm, ops.rms_norm])
def test_a_norm_and_what_is_around_it_is_one_kernel(norm):
    def block(x, residual, gamma, beta):
        total = x + residual
        return norm(total, gamma, beta), total

    assert kinds(build(block, ROW, ROW, (64,), (64,))) == ["row"]
    assert kinds(build(block, ROW, ROW, (64,), (64,), dtype="bf16")) == ["row"]


def test_cross_entropy_is_one_kernel_and_its_mean_another():
    def loss(logits):
        labels = logits.graph.input("labels", ("B",), "i32")
        return ops.reduce_mean(ops.softmax_cross_entropy_with_logits(logits, labels))

    assert kinds(build(loss, ("B", 1000))) == ["reduce", "reduce"]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: ops.reduce_sum(x, 0), ["reduce"]),
        (lambda x: ops.reduce_sum(rlx.exp(x), (0, 1)), ["reduce"]),
        (lambda x: ops.reduce_max(x), ["reduce", "reduce"]),  # rows first, so that there is something to deal out
        (lambda x: ops.reduce_sum(x * x) * 0.5, ["reduce", "reduce"]),
        (lambda x: rlx.relu(x), ["map"]),
        (lambda x: ops.transpose(x, (2, 0, 1)), ["map"]),
        (lambda x: ops.concat([x, x * 2.0], 1), ["map"]),
        (lambda x: ops.concat([ops.concat([x, -x], 2), ops.concat([x, x], 2)], 0), ["map"]),
        (lambda x: ops.pad(x, 1.0, [0, 0, 2], [0, 0, 1]), ["map"]),
        (lambda x: ops.where(ops.gt(x, 0.0), x, x * 0.1), ["map"]),
        (lambda x: x + ops.cast(ops.iota((64,)), "f32"), ["map"]),
    ],
)
def test_maps_and_reductions(function, wanted):
    assert kinds(build(function, ROW)) == wanted


def test_maps_that_read_the_same_value_are_one():
    assert kinds(build(lambda x: (rlx.exp(x), rlx.tanh(x)), ROW)) == ["map"]
    assert kinds(build(lambda x, y: (rlx.exp(x), rlx.tanh(y)), ROW, ROW)) == ["map", "map"]


def test_gelu_of_a_product_is_its_epilogue_through_a_reshape_too():
    def layer(x, w, b):
        y = ops.reshape(ops.reshape(x, ("B*S", 64)) @ w, ("B", "S", 32))
        return rlx.gelu(y + b)

    assert kernels(build(layer, ROW, (64, 32), (32,))) == ["matmul: matmul reshape reshape add gelu"]


def test_operands_of_products_are_read_through_transposes():
    def heads(q, k):
        return ops.matmul(ops.transpose(q, (0, 2, 1, 3)), ops.transpose(k, (0, 2, 3, 1)))

    found = kernels(build(heads, ("B", 6, 4, 8), ("B", 6, 4, 8)))
    # The batch axes of both do not come down to one, and B must have its columns side by side.
    assert [line.split(":")[0] for line in found][-1] == "matmul"
    assert kernels(build(lambda a, b: ops.transpose(a, (1, 0)) @ b, (8, "N"), (8, 5))) == ["matmul: matmul transpose"]
    assert kernels(build(lambda a, b: a @ ops.transpose(b, (1, 0)), ("N", 8), (5, 8))) == [
        "map: transpose",
        "matmul: matmul",
    ]


def test_cheap_values_are_repeated_by_all_who_read_them():
    """A mask of positions is never stored, nor is a weight in another precision."""

    def masked(x, y, w):
        mask = ops.ge(ops.iota((8, 8), axis=0), ops.iota((8, 8), axis=1))
        gain = ops.cast(w, "f32")
        return rlx.softmax(ops.where(mask, x, -1e9), -1) * gain, ops.reduce_sum(ops.where(mask, y, 0.0) * gain, (0, 2))

    graph = rlx.Graph("g")
    x, y, w = graph.input("x", ("B", 8, 8)), graph.input("y", ("N", 8, 8)), graph.param("w", (8,), "bf16")
    with building(graph):
        graph.set_outputs(masked(x, y, w))
    assert kinds(graph) == ["row", "reduce"]


def test_costly_values_of_a_weight_are_not_repeated_for_every_row():
    found = kernels(build(lambda x, w: x * rlx.exp(w), ROW, (64,)))
    assert found == ["map: exp", "map: mul"]
    # Along the row it is computed once per row anyway.
    assert kernels(build(lambda x, w: x * rlx.exp(w), ROW, ("B", "S", 1))) == ["map: exp mul"]


def test_embeddings_are_looked_up_inside_the_norm():
    graph = rlx.Graph("g")
    ids = graph.input("ids", ("B", "S"), "i32")
    words, positions = graph.param("words", (100, 64)), graph.param("positions", (512, 64))
    x = ops.gather(words, ids, 0) + ops.narrow(positions, 0, 0, ids.shape[1])
    graph.set_outputs([ops.layer_norm(x, graph.param("g", (64,)), graph.param("b", (64,)))])
    assert kinds(graph) == ["row"]


# The blocks of real models.


def test_a_llama_block():
    graph = lower_to_lir(llama(), GENERATOR).as_graph()
    found = [(k.kind, graph.nodes[k.nodes[0]].op.mnemonic) for k in lower_to_lir(llama(), GENERATOR).kernels]
    assert {name for kind, name in found if kind == "call"} == {"attention"}
    counts = {kind: sum(k == kind for k, _ in found) for kind, _ in found}
    # norm, q, k, v, attention, output + residual, norm, joined weights, up and gate, gating, down + residual
    assert counts == {"row": 2, "matmul": 6, "map": 4, "view": 2, "call": 1}


def test_a_training_step_of_a_block():
    step = rlx.autodiff.grad_with_loss(gpt_loss(), ["qkv", "up", "g0", "c0"], None)
    found = lower_to_lir(step, GENERATOR)
    names = {found.as_graph().nodes[k.nodes[0]].op.mnemonic for k in found.kernels if k.kind == "call"}
    assert names == {"attention", "attention_backward", "project"}


# Reasons.


def test_reasons():
    w = (64, 64)
    cases = [
        (build(lambda x: rlx.exp(ops.cumsum(x, 1)), ROW), ("cumsum", "exp"), "host_call"),
        (build(lambda x, w: rlx.relu(x) @ w, ROW, w), ("relu", "matmul"), "product_operand"),
        (build(lambda x, w: rlx.softmax(x @ w, -1), ROW, w), ("matmul", "reduce_max"), "product_result"),
        (build(lambda x, w: (lambda y: (rlx.exp(y), y @ w))(x @ w), ROW, w), ("matmul", "exp"), "several_readers"),
        (build(lambda x, w: (lambda y: (rlx.exp(y), y))(x @ w), ROW, w), ("matmul", "exp"), "is_output"),
        (build(lambda x, w: rlx.exp(w) * x, ROW, (64,)), ("exp", "mul"), "different_index_space"),
        (
            build(lambda x: rlx.softmax(rlx.softmax(x, -1), 0), ROW),
            ("div", "reduce_max"),
            "reduction_over_other_axis",
        ),
        (build(lambda x, i: ops.gather(rlx.exp(x), i, 0), ROW, (3,)), ("exp", "gather"), "looked_up"),
        (build(lambda x: rlx.exp(ops.concat([x, x], 0)), ROW), ("concat", "exp"), "joined_value"),
        (build(lambda x: (lambda y: (y, ops.reduce_sum(y)))(rlx.exp(x)), ("N",)), ("exp", "reduce_sum"), "one_row"),
    ]
    for graph, edge, reason in cases:
        assert reasons(graph).get(edge) == reason, (edge, reasons(graph))


def test_a_kernel_between_two_keeps_them_apart():
    def around(x, w):
        y = rlx.exp(x)
        return rlx.tanh(y) + ops.cumsum(y, 1) @ w

    found = reasons(build(around, ROW, (64, 64)))
    assert FusionBarrier.OtherPath in found.values() or FusionBarrier.ProductOperand in found.values()


def test_large_graphs_are_cut():
    def long(x):
        for _ in range(MAX_NODES):
            x = rlx.sin(x)
        return rlx.cos(x)

    graph = build(long, ("N",))
    assert kinds(graph) == ["map", "map"]
    assert list(reasons(graph).values()) == [FusionBarrier.TooLarge]


def test_reasons_name_the_line_of_the_user():
    graph = build(lambda x: rlx.exp(ops.cumsum(x, 1)), ROW)
    (edge,) = group(lowered(graph), GENERATOR).barriers
    assert edge.source is not None and edge.source.file == __file__
    assert "test_grouping.py" in str(edge) and "host_call" in str(edge)


# Order and meaning.


def test_effects_stay_in_their_order():
    graph = rlx.Graph("g")
    x = graph.input("x", (4, 4))
    ops.debug_print("after much work {}", rlx.softmax(rlx.softmax(x, 0) @ x, -1))
    ops.debug_print("at once {}", x)
    graph.set_outputs([x + 1.0])
    found = [k.nodes[0] for k in group_kernels(lowered(graph), GENERATOR) if k.kind == "call"]
    assert len(found) == 2 and found == sorted(found)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_random_graphs_keep_their_meaning(graph):
    """Kernel by kernel, in the planned memory: nothing is read before it is stored, and nothing is left out."""
    values = inputs_for(graph)
    lir = lower_to_lir(graph.copy(), GENERATOR)
    assert parse_lir(str(lir), large_constants(lir.as_graph())) == lir
    assert lir_from_json(lir_to_json(lir)) == lir
    expected = interpret(graph.bind(BINDING), values)
    for a, b in zip(expected, interpret_lir(lir, values, BINDING), strict=True):
        assert a.dtype == b.dtype
        limit = {"float16": 3e-2, "bfloat16": 0.3, "float32": 1e-4}.get(a.dtype.name, 1e-9)
        scale = max(1.0, float(np.abs(a[np.isfinite(a)].astype("f8")).max(initial=0.0))) if a.dtype.kind != "b" else 1
        if a.dtype.kind in "fV":
            np.testing.assert_allclose(b.astype("f8"), a.astype("f8"), rtol=limit, atol=limit * scale)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_grouping_is_complete_and_depends_on_the_graph_alone(graph):
    forms = lowered(graph)
    found = group_kernels(forms, GENERATOR)
    assert found == group_kernels(forms, GENERATOR)
    stored = {n.id for n in forms.nodes if not n.inputs and n.op.mnemonic in ("input", "param", "constant")}
    for kernel in found:
        assert stored.issuperset(kernel.inputs), "an operand is read before it is stored"
        assert not stored.intersection(kernel.outputs), "a value is stored twice"
        stored.update(kernel.outputs)
    assert stored.issuperset(forms.outputs)
