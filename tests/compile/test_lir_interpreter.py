"""LIR run inside its planned memory: equal to the reference, and unforgiving to plans that lose a value."""

import numpy as np
import pytest
from hypothesis import given, settings
from programs import gpt_loss, llama, mlp_loss, random_values

import rlx
from random_graphs import BINDING, graphs, inputs_for
from rlx.autodiff.graphs import grad_with_loss
from rlx.compile.memory.interpret import interpret_lir, may_overwrite
from rlx.compile.memory.node_plan import MemoryPlanOptions, plan_memory_with_options
from rlx.compile.pipeline import lower_to_lir
from rlx.errors import BindingError, InternalError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.lir import LirBufferPlan, LirBufferSlot, LirKernel, LirModule, LirViewAlias
from rlx.kernels.from_lir import generator
from rlx.kernels.machines import host

GENERATOR = generator(host())

relaxed = settings(max_examples=60)


def assert_same(expected, got):
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@relaxed
@given(graphs())
def test_random_graphs_equal_the_reference(graph):
    values = inputs_for(graph)
    # Kernels compute the graph inside LIR, bit by bit; that it means what the program meant is another question.
    lir = lower_to_lir(graph.copy(), GENERATOR)
    assert_same(interpret(lir.as_graph(), values, BINDING), interpret_lir(lir, values, BINDING))
    node_by_node = LirModule(graph, plan_memory_with_options(graph, 64, MemoryPlanOptions()))
    assert_same(interpret(graph, values, BINDING), interpret_lir(node_by_node, values, BINDING))


@pytest.mark.parametrize("policy", ["direct", "fusable"])
def test_llama_block_equals_the_reference(policy):
    graph = llama().with_fusion_policy(policy).into_graph()
    lir = lower_to_lir(graph.copy(), GENERATOR)
    for binding in ({"B": 1, "S": 3}, {"B": 2, "S": 7}):
        values = random_values(graph, binding)
        for a, b in zip(interpret(graph, values), interpret_lir(lir, values), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [mlp_loss, gpt_loss], ids=["mlp", "gpt"])
def test_training_graphs_equal_the_reference(make):
    forward = make()
    graph = grad_with_loss(forward, [n.op.key for n in forward.params])
    values = random_values(graph, {"B": 3})
    lir = lower_to_lir(graph.copy(), GENERATOR)
    assert lir.arena_size != 0
    for a, b in zip(interpret(graph, values), interpret_lir(lir, values), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def chain():
    """Three values that live one after the other, and a sum that needs the first and the last."""
    g = Graph("chain")
    a = rlx.exp(g.input("x", (16,)))
    b = rlx.reverse(a, (0,))
    c = rlx.reverse(b * b, (0,))
    g.set_outputs([rlx.reverse(a + c, (0,))])
    return g


def planned(graph, **slots):
    """A node-by-node plan in which every computed value has its own place, except those that `slots` moves."""
    plan = plan_memory_with_options(graph, 64, MemoryPlanOptions(False, False, False, in_place=False))
    for number, node in enumerate(plan.assignments):
        plan.assignments[node] = LirBufferSlot(64 * slots.get(f"n{int(node)}", number), 64)
    plan.arena_size = 64 * len(plan.assignments)
    return LirModule(graph, plan)


def test_a_sound_plan_passes_and_a_broken_one_is_named():
    g = chain()
    values = {"x": np.linspace(-1, 1, 16, dtype="f4")}
    expected = interpret(g, values)
    assert_same(expected, interpret_lir(planned(g), values))
    # %1 is read by the sum at the end; %3 must not take its place.
    broken = planned(g, n3=0)
    with pytest.raises(InternalError, match=r"kernel 4 \(call\) reads %1, but %3 was stored over it"):
        interpret_lir(broken, values)
    wrong = interpret_lir(broken, values, check=False)
    assert not np.array_equal(wrong[0], expected[0])


def test_a_kernel_may_not_write_over_what_it_still_reads():
    g = chain()
    values = {"x": np.linspace(-1, 1, 16, dtype="f4")}
    with pytest.raises(InternalError, match=r"kernel 3 \(call\) stores %4 over %3 while it still reads it"):
        interpret_lir(planned(g, n4=2), values)
    # The product is pointwise, so it may replace its operand.
    assert_same(interpret(g, values), interpret_lir(planned(g, n3=1), values))


@relaxed
@given(graphs(max_nodes=10))
def test_no_overlap_goes_unnoticed(graph):
    """Give all values the same place: either no two are needed at once, or the run says so."""
    bound = graph.bind(BINDING)
    lir = lower_to_lir(bound, GENERATOR)
    plan = lir.buffers
    largest = max((s.size for s in plan.assignments.values()), default=0)
    plan.assignments = {n: LirBufferSlot(0, s.size) for n, s in plan.assignments.items()}
    plan.arena_size = max(largest, plan.arena_size)
    values = inputs_for(graph)
    try:
        got = interpret_lir(lir, values)
    except InternalError as error:
        assert " over " in str(error) or "in the same place" in str(error)
        return
    assert_same(interpret(lir.as_graph(), values), got)


def test_two_outputs_of_a_kernel_lie_apart():
    g = Graph("two")
    x = g.input("x", (4,))
    a, b = rlx.exp(x), rlx.sin(x)
    g.set_outputs([a + b])
    both = [LirKernel.of("map", [a.id, b.id], [x.id], [a.id, b.id])]
    last = LirKernel.of("map", [g.outputs[0]], [a.id, b.id], [g.outputs[0]])
    plan = LirBufferPlan(32, {a.id: LirBufferSlot(0, 16), b.id: LirBufferSlot(8, 16)})
    with pytest.raises(InternalError, match="stores %1 and %2 in the same place"):
        interpret_lir(LirModule(g, plan, [*both, last]), {"x": np.zeros(4, "f4")})


def test_views_are_checked_against_their_meaning():
    g = Graph("view")
    x = g.input("x", (4, 4))
    y = rlx.exp(x)
    part = g.narrow_(y, 0, 2, 1)
    g.set_outputs([part])
    plan = plan_memory_with_options(g, 64, MemoryPlanOptions(False, False, False))
    values = {"x": np.arange(16, dtype="f4").reshape(4, 4)}
    assert_same(interpret(g, values), interpret_lir(LirModule(g, plan), values))
    plan.view_aliases[part.id] = LirViewAlias(y.id, 16)
    with pytest.raises(InternalError, match="is not what the plan's view of it names"):
        interpret_lir(LirModule(g, plan), values)
    plan.view_aliases[part.id] = LirViewAlias(y.id, 60)
    with pytest.raises(InternalError, match="needs 76 bytes of the buffer of %1, which is smaller"):
        interpret_lir(LirModule(g, plan), values)


def test_a_cache_may_be_updated_in_place():
    g = Graph("cache")
    cache, new, at = g.input("cache", (4, 2)), g.input("new", (1, 2)), g.input("at", (), "i32")
    updated = rlx.dynamic_update_slice(cache, new, (at, 0))
    g.set_outputs([updated])
    g.alias(updated, cache)
    zero = updated.node.inputs[-1]
    kernel = LirKernel.of("scatter", [updated.id], updated.node.inputs, [updated.id])
    plan = LirBufferPlan(view_aliases={updated.id: LirViewAlias(cache.id)})
    values = {"cache": np.zeros((4, 2), "f4"), "new": np.ones((1, 2), "f4"), "at": np.int32(2)}
    assert zero != cache.id
    assert_same(interpret(g, values), interpret_lir(LirModule(g, plan, [kernel]), values))
    np.testing.assert_array_equal(values["cache"], 0)
    # Whoever reads the old cache afterwards reads what is no longer there.
    g.set_outputs([updated, cache])
    with pytest.raises(InternalError, match=r"the result reads %0, but .* was stored over it"):
        interpret_lir(LirModule(g, plan, [kernel]), values)


def test_what_a_kernel_may_overwrite():
    g = Graph("overwrite")
    x, row = g.input("x", (4, 8)), g.input("row", (8,))
    y = rlx.exp(x) + row
    z = rlx.reverse(y, (0,))
    norm = x - rlx.reduce_max(x, -1, keepdims=True)

    def kernel(kind, *nodes):
        return LirKernel.of(kind, [n.id for n in nodes], [x.id, row.id], [nodes[-1].id])

    pointwise = kernel("map", g.tensor(y.node.inputs[0]), y)
    assert may_overwrite(g, pointwise, x.id)
    assert not may_overwrite(g, pointwise, row.id)
    assert not may_overwrite(g, kernel("map", g.tensor(y.node.inputs[0]), y, z), x.id)
    reduced = kernel("row", g.tensor(norm.node.inputs[1]), norm)
    assert may_overwrite(g, reduced, x.id)
    assert not may_overwrite(g, reduced._replace(kind="map"), x.id)


def test_a_row_is_not_stored_over_a_column_that_others_read():
    g = Graph("transposed")
    x = g.input("x", (8, 8))
    turned = rlx.transpose(x, (1, 0))
    highest = rlx.reduce_max(turned, -1, keepdims=True)
    y = turned - highest
    kernel = LirKernel.of("row", [turned.id, highest.id, y.id], [x.id], [y.id])
    assert not may_overwrite(g, kernel, x.id)
    g.set_outputs([y])
    plan = LirBufferPlan(256, {x.id: LirBufferSlot(0, 256), y.id: LirBufferSlot(0, 256)}, [n.id for n in g.nodes])
    with pytest.raises(InternalError, match="while it still reads it"):
        interpret_lir(LirModule(g, plan, [kernel]), {"x": np.ones((8, 8), "f4")})


def test_wrong_leaves_are_refused():
    lir = lower_to_lir(chain(), GENERATOR)
    with pytest.raises(BindingError, match="no value for input 'x'"):
        interpret_lir(lir, {})
    with pytest.raises(BindingError, match="'x' is declared f32\\[16\\], got float64"):
        interpret_lir(lir, {"x": np.zeros(16)})
