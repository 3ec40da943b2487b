"""Grouping: which ops share a kernel, in which order kernels run, and the reason of every value that is stored."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from programs import bert_block, cached_llama_block, gpt_loss, llama

import rlx
from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.compile.fuse.barriers import FusionBarrier
from rlx.compile.fuse.can_join import MAX_NODES
from rlx.compile.fuse.group import group, group_kernels
from rlx.compile.lower.attention import split_attention
from rlx.compile.lower.lower import kernel_forms, name_results
from rlx.compile.memory.interpret import interpret_lir
from rlx.compile.memory.plan import plan_buffers
from rlx.compile.pipeline import lower_to_lir
from rlx.errors import InternalError
from rlx.ir.interpret import interpret
from rlx.ir.lir import LirModule, lir_from_json, lir_to_json
from rlx.ir.tensor import building
from rlx.ir.text.graph_text import large_constants
from rlx.ir.text.lir_text import parse_lir
from rlx.kernels.from_lir import generator
from rlx.kernels.machines import host

GENERATOR = generator(host())


def lowered(graph):
    return name_results(split_attention(kernel_forms(graph, GENERATOR), GENERATOR), GENERATOR)


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


@pytest.mark.parametrize(("width", "wanted"), [(64, 1), (1 << 20, 2)])
def test_long_maps_that_share_only_a_scalar_have_loops_of_their_own(width, wanted):
    """As the updates of two weights with one learning rate: each loop walks through its own arrays."""
    found = kernels(build(lambda rate, x, y: (rate * x, rate * y), (1,), (width,), (width,)))
    assert len(found) == wanted


def test_gelu_of_a_product_is_its_epilogue_through_a_reshape_too():
    def layer(x, w, b):
        y = ops.reshape(ops.reshape(x, ("B*S", 64)) @ w, ("B", "S", 32))
        return rlx.gelu(y + b)

    assert kernels(build(layer, ROW, (64, 32), (32,))) == ["matmul: matmul reshape reshape add gelu"]


def test_operands_of_products_are_read_through_transposes():
    def heads(q, k):
        return ops.matmul(ops.transpose(q, (0, 2, 1, 3)), ops.transpose(k, (0, 2, 3, 1)))

    found = kernels(build(heads, ("B", 6, 4, 8), ("B", 6, 4, 8)))
    # The batch axes of both do not come down to one.
    assert [line.split(":")[0] for line in found][-1] == "matmul"
    assert kernels(build(lambda a, b: ops.transpose(a, (1, 0)) @ b, (8, "N"), (8, 5))) == ["matmul: matmul transpose"]
    assert kernels(build(lambda a, b: a @ ops.transpose(b, (1, 0)), ("N", 8), (5, 8))) == ["matmul: matmul transpose"]


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


def test_tables_are_looked_up_through_views():
    """A narrowed or transposed table is not copied, and whole rows are looked up by all who need them."""

    def rows(table, ids, x, y):
        found = ops.gather(ops.narrow(table, 1, 8, 16), ids, 0)
        return found * x, ops.reduce_sum(found * y, -1)

    graph = rlx.Graph("g")
    table, ids = graph.input("table", (100, 64)), graph.input("ids", ("B", "S"), "i32")
    x, y = graph.input("x", ("B", "S", 16)), graph.input("y", ("N", "B", "S", 16))
    with building(graph):
        graph.set_outputs(rows(table, ids, x, y))
    assert sorted(kinds(graph)) == ["map", "reduce"]
    assert kinds(build(lambda t, i: ops.gather(ops.transpose(t, (1, 0)), ops.cast(i, "i32"), 0), (8, 9), (4,))) == [
        "map"
    ]


def test_maps_side_by_side():
    """Maps with other loops that read what a kernel has computed are one kernel; those of an input are not."""

    def halves(y):
        return rlx.exp(ops.narrow(y, 2, 0, 16)), ops.concat([ops.narrow(y, 2, 16, 40), ops.narrow(y, 2, 60, 4)], 2)

    assert kinds(build(lambda x: halves(rlx.softmax(x, -1)), ROW)) == ["row", "map"]
    assert kinds(build(halves, ROW)) == ["map", "map"]


def test_long_maps_stay_apart():
    """Updates of many weights share the rate that a kernel has computed; in one kernel they would be slower."""

    def scaled(rate, *weights):
        factor = rlx.exp(ops.reduce_sum(rate, (0,)))
        return tuple(w * factor for w in weights)

    def count(size):
        return len(kinds(build(scaled, (8,), *((size,) for _ in range(5)))))

    assert count(1 << 18) == 6
    assert count(1 << 10) < 6


def test_what_is_changed_in_place_is_not_read_by_the_same_kernel():
    """Or all of it would be copied for the sake of a few rows."""
    graph = rlx.Graph("g")
    cache, places = graph.input("cache", ("C", 64)), graph.input("places", ("S", 1), "i32")
    with building(graph):
        new = rlx.softmax(graph.input("x", ("S", 64)), -1)
        updated = ops.scatter_nd(cache, places, new, axes=(0,), mode="drop")
        graph.set_outputs([updated, ops.narrow(new, 1, 0, 8) + ops.narrow(ops.narrow(cache, 1, 0, 8), 0, 0, 1)])
        graph.alias(updated, "cache")
    assert running(graph) == ["row", "map", "scatter"]


# The blocks of real models.


def test_a_llama_block_runs_natively():
    assert "call" not in [k.kind for k in lower_to_lir(llama(), GENERATOR).kernels]


def test_a_llama_block_with_a_cache():
    """norm; q, k, v; positions, and keys and values into their caches; attention; out; norm; gate and up; their
    product; down."""
    found = running(cached_llama_block())
    assert len(found) <= 9 and "call" not in found, found


def test_a_bert_block():
    """The mask; q, k, v; attention; out; norm; up; down; norm."""
    assert running(bert_block()) == ["map", "matmul", "attention", "matmul", "row", "matmul", "matmul", "row"]


def test_weights_are_joined_ahead():
    result = rlx.CompilePipeline(target="cpu").compile(cached_llama_block())
    graph, prepare = result.lir.as_graph(), result.prepare.as_graph()
    assert "concat" not in [n.op.mnemonic for n in graph.nodes if all(s.is_static for s in n.shapes) and n.inputs]
    assert sum(n.op.mnemonic == "concat" for n in prepare.nodes) == 2
    assert {"wq", "wk", "wv", "gate", "up"}.isdisjoint(n.op.key for n in graph.params)
    # Weights that change at every step are left as they are.
    graph = rlx.CompilePipeline(target="cpu", prepare_params=False).compile(cached_llama_block()).lir.as_graph()
    assert {"wq", "wk", "wv", "gate", "up"} <= {n.op.key for n in graph.params}


def test_a_training_step_of_a_block():
    step = rlx.autodiff.grad_with_loss(gpt_loss(), ["qkv", "up", "g0", "c0"], None)
    found = lower_to_lir(step, GENERATOR)
    names = {found.as_graph().nodes[k.nodes[0]].op.mnemonic for k in found.kernels if k.kind == "call"}
    assert names <= {"attention_backward", "project"}


def running(graph, **options):
    """The kinds of the kernels that a compiled program runs; views run nothing."""
    found = rlx.CompilePipeline(target="cpu", **options).compile(graph).lir.kernels
    return [k.kind for k in found if k.kind != "view"]


def test_the_gradients_of_a_layer_norm_are_two_kernels():
    """One for the rows, which stores dx; one for the columns, which sums both gradients of weights."""
    graph = rlx.Graph("g")
    x, gamma, beta = graph.input("x", ROW), graph.param("gamma", (64,)), graph.param("beta", (64,))
    with building(graph):
        graph.set_outputs([ops.layer_norm(x, gamma, beta)])
    gradients = rlx.autodiff.grad(graph, ["x", "gamma", "beta"])
    assert running(gradients, prepare_params=False) == ["row", "reduce"]


def test_a_loss_and_its_gradient_are_two_kernels():
    graph = rlx.Graph("g")
    logits, labels = graph.input("logits", ("B", 1000)), graph.input("labels", ("B",), "i32")
    with building(graph):
        graph.set_outputs([ops.reduce_mean(ops.softmax_cross_entropy_with_logits(logits, labels))])
    step = rlx.autodiff.grad_with_loss(graph, ["logits"], None)
    assert running(step) == ["row", "reduce"]


# Reasons.


def test_reasons():
    w = (64, 64)
    cases = [
        (build(lambda x: rlx.exp(ops.debug_print("{}", x)), ROW), ("debug_print", "exp"), "host_call"),
        (build(lambda x: rlx.exp(ops.cumsum(x, 1)), ROW), ("cumulative_sum", "exp"), "own_kernel"),
        (build(lambda x, w: rlx.relu(x) @ w, ROW, w), ("relu", "matmul"), "product_operand"),
        (build(lambda x, w: rlx.softmax(x @ w, -1), ROW, w), ("matmul", "reduce_max"), "product_result"),
        (build(lambda x, w: (lambda y: (rlx.exp(y), y @ w))(x @ w), ROW, w), ("matmul", "exp"), "several_readers"),
        (build(lambda x, w: (lambda y: (rlx.exp(y), y))(x @ w), ROW, w), ("matmul", "exp"), "is_output"),
        (build(lambda x, w: rlx.exp(w) * x, ROW, (64,)), ("exp", "mul"), "different_index_space"),
        (
            build(lambda x: rlx.softmax(rlx.softmax(x, -1), 0), ROW),
            ("mul", "reduce_max"),
            "reduction_over_other_axis",
        ),
        (build(lambda x, i: ops.gather(rlx.exp(x), i, 0), ROW, (3,)), ("exp", "gather"), "looked_up"),
        (build(lambda x: rlx.softmax(ops.concat([x, x], 0), -1), ROW), ("concat", "reduce_max"), "joined_value"),
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
    graph = build(lambda x: rlx.exp(ops.debug_print("{}", x)), ROW)
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


def test_kernels_that_need_each_other_are_never_made():
    """A group may have nodes before and behind others that it feeds: the order of nodes says nothing of groups."""
    graph = rlx.Graph("g")
    x, z = graph.input("x", ROW), graph.input("z", ROW)
    early = ops.cumsum(rlx.exp(x), 1)
    # exp(x) and tanh(x) become one kernel, which needs `late`; so may not cos(z) and sin(z).
    middle = rlx.cos(z) + early
    late = ops.cumsum(rlx.sin(z), 1)
    graph.set_outputs([middle, rlx.tanh(x) + late])
    assert sum(kind == "map" for kind in kinds(graph)) == 3
    values = {"x": np.ones((1, 2, 64), "f4"), "z": np.full((1, 2, 64), 0.5, "f4")}
    for a, b in zip(interpret(graph, values), interpret_lir(lower_to_lir(graph, GENERATOR), values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_value_that_is_read_before_it_is_stored_is_an_error():
    graph = lowered(build(lambda x: rlx.softmax(rlx.softmax(x, -1), 0), ROW))
    first, second = group_kernels(graph, GENERATOR)
    with pytest.raises(InternalError, match="before it is stored"):
        plan_buffers(graph, [second, first])
    with pytest.raises(InternalError, match="no kernel stores the output"):
        plan_buffers(graph, [first])


@pytest.mark.parametrize("program", [bert_block, cached_llama_block, gpt_loss])
def test_text_is_read_back_wherever_leaves_stand(program):
    """Text has leaves first; programs have them where they were declared."""
    result = rlx.CompilePipeline(target="cpu").compile(program())
    for lir in filter(None, (result.lir, result.prepare)):
        again = parse_lir(str(lir), large_constants(lir.as_graph()))
        assert again == lir and str(again) == str(lir)
    assert any(a.is_leaf and not b.is_leaf for b, a in pairwise(result.lir.as_graph().nodes))
    other = again.kernels[0]._replace(kind="other")
    assert LirModule(again.mir, again.buffers, [other, *again.kernels[1:]]) != again


@settings(max_examples=60)
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


@settings(max_examples=40)
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
