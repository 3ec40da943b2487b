"""Memory plans: sound for every graph and binding, close to the lower bound, and readable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from random_graphs import BINDING, graphs
from rlx.compile.memory.liveness import collect_view_aliases, is_pure_view
from rlx.compile.memory.node_plan import (
    MemoryPlanOptions,
    SharedWeightLayout,
    check_plan,
    plan_memory,
    plan_memory_aligned,
    plan_memory_backward,
    plan_memory_f32_uniform,
    plan_memory_with_options,
    plan_report,
)
from rlx.compile.memory.packing import Tenant, overlaps, pack, peak, scale_of
from rlx.errors import BackendError
from rlx.ir.dims import as_dim
from rlx.ir.graph import Graph

relaxed = settings(max_examples=60)

sizes = st.integers(0, 7)
tenants = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 12), st.integers(0, 6)).map(
        lambda t: Tenant(t[0], t[1], t[1] + t[2])
    ),
    max_size=24,
)


@relaxed
@given(tenants, st.sampled_from([1, 16, 64]))
def test_packing_is_sound_and_not_below_the_bound(buffers, alignment):
    packed = pack(buffers, alignment)
    assert overlaps(buffers, packed) == []
    assert all(o % alignment == 0 for o in packed.offsets)
    assert packed.total >= peak(buffers)


@relaxed
@given(tenants, st.sampled_from([["B"], ["B*S"], ["B", "S", "B*S + 3"], ["1", "B*S", "B*S*S", "S"]]), sizes, sizes)
def test_symbolic_packing_is_sound_for_every_binding(buffers, kinds, b, s):
    def size(i, n):
        return n * as_dim(kinds[i % len(kinds)])

    symbolic = [t._replace(size=size(i, t.size)) for i, t in enumerate(buffers)]
    assert overlaps(symbolic, pack(symbolic), {"B": b, "S": s}) == []


def test_one_factor_packs_like_numbers():
    unit = as_dim("B*S")
    assert scale_of(4 * unit) == unit
    assert scale_of(8) == 1
    assert scale_of(as_dim("B + 1")) is None
    buffers = [Tenant(256 * unit, 0, 1), Tenant(64 * unit, 1, 2), Tenant(192 * unit, 2, 3)]
    assert str(pack(buffers).total) == "320*B*S"


def test_one_number_for_each_row_is_not_rounded_row_by_row():
    rows = as_dim("B*S")
    buffers = [Tenant(256 * rows, 0, 3), Tenant(4 * rows, 0, 2), Tenant(4 * rows, 1, 3), Tenant(220 * rows, 4, 5)]
    packed = pack(buffers)
    assert str(packed.total) == "256*B*S + 128*ceildiv(4*B*S, 64)"
    for b in (1, 5, 64):
        assert overlaps(buffers, packed, {"B": b, "S": 3}) == []


def test_what_comes_and_goes_lies_on_what_is_alive_beside_it():
    rows, scores = as_dim("B*S"), as_dim("B*S*S")
    # Two activations early, a short square of scores beside one activation, and that one until the end.
    buffers = [Tenant(256 * rows, 0, 2), Tenant(128 * rows, 1, 9), Tenant(256 * rows, 2, 3), Tenant(64 * scores, 5, 6)]
    packed = pack(buffers)
    assert str(packed.offsets[3]) == "128*B*S"
    assert str(packed.total) == "max(64*B*S*S + 128*B*S, 640*B*S)"


@relaxed
@given(graphs(), st.booleans())
def test_plans_of_random_graphs_are_sound(graph, in_place):
    plan = plan_memory_with_options(graph, 64, MemoryPlanOptions(in_place=in_place))
    for binding in (BINDING, {"B": 1, "S": 1}, {"B": 5, "S": 4}):
        assert check_plan(graph, plan, binding).overlapping == []
    again = plan_memory_with_options(graph, 64, MemoryPlanOptions(in_place=in_place))
    assert plan.to_json() == again.to_json()


def chain():
    g = Graph("chain")
    x, w = g.input("x", (8, 16)), g.param("w", (16, 16))
    g.set_outputs([x @ w @ w @ w])
    return g


def test_a_chain_reuses_memory():
    g = chain()
    plan = plan_memory_with_options(g, 64, MemoryPlanOptions(False, False, False))
    first, second, third = (plan.assignments[n.id] for n in g.nodes if n.op.mnemonic == "matmul")
    assert first.offset != second.offset
    assert third.offset == first.offset
    assert plan.arena_size == 2 * 8 * 16 * 4
    assert plan.bytes_saved == 8 * 16 * 4


def test_pointwise_nodes_write_over_an_operand_that_dies():
    g = Graph("in_place")
    x = g.input("x", (8, 16))
    y = rlx.tanh(rlx.exp(x) * 2.0)
    g.set_outputs([y])
    outside = MemoryPlanOptions(False, False, False)
    plan = plan_memory_with_options(g, 64, outside)
    assert plan.arena_size == 512
    assert check_plan(g, plan).overlapping == []
    apart = plan_memory_with_options(g, 64, MemoryPlanOptions(False, False, False, in_place=False))
    assert apart.arena_size == 1024


def test_views_alias_their_root():
    g = Graph("views")
    x, w = g.input("x", (4, 4)), g.param("w", (4, 4))
    product = x @ w
    flat = product.reshape((16,))
    part = g.narrow_(flat, 0, 8, 8)
    same = rlx.cast(part, "f32")
    g.set_outputs([part])
    aliases = collect_view_aliases(g)
    assert aliases[flat.id] == (product.id, 0)
    assert aliases[part.id] == (product.id, 32)
    assert aliases.get(same.id, aliases[part.id]) == (product.id, 32)
    assert is_pure_view(g, g.node(part))
    plan = plan_memory(g)
    assert plan.slot(part.id) is None
    assert plan.address(part.id) == plan.slot(product.id).offset + 32


def test_a_view_keeps_its_root_alive():
    g = Graph("kept")
    x = g.input("x", (64,))
    y = rlx.exp(x)
    view = y.reshape((8, 8))
    z = rlx.sin(rlx.cos(x)) + 1.0
    g.set_outputs([view, z])
    assert check_plan(g, plan_memory(g)).overlapping == []


def test_weights_shared_with_the_backward_program_never_overlap():
    forward = chain()
    plan = plan_memory(forward)
    layout = SharedWeightLayout.from_forward(forward, plan)
    backward = Graph("backward")
    w, dy = backward.param("w", (16, 16)), backward.input("dy", (8, 16))
    backward.set_outputs([rlx.tanh(dy @ w) @ w])
    shared = plan_memory_backward(backward, 64, layout)
    slot = layout.slots[0]
    assert shared.assignments[backward.leaf("w").id] == (slot.offset, slot.size)
    for node, other in shared.assignments.items():
        if node != backward.leaf("w").id:
            assert other.offset >= slot.offset + slot.size


def test_sizes_and_caps():
    g = Graph("sizes")
    g.set_outputs([rlx.cast(g.input("x", (100,), "f64"), "f16")])
    assert plan_memory_f32_uniform(g).total_unshared_bytes == 800
    assert plan_memory(g).total_unshared_bytes == 1000
    assert plan_memory_aligned(g, 4096).arena_size % 4096 == 0
    with pytest.raises(BackendError, match="must be a power of two, got 48"):
        plan_memory_aligned(g, 48)
    with pytest.raises(BackendError, match=r"needs an arena of 1088 bytes, the cap is 100; the largest values"):
        plan_memory_with_options(g, 64, MemoryPlanOptions(max_bytes=100))
    assert plan_report(plan_memory(g)).startswith("# arena_size=")


def llama(layers):
    def build(h):
        x = h.input("x", ("B", "S", 64))
        cos, sin = h.input("cos", ("S", 8)), h.input("sin", ("S", 8))
        for i in range(layers):
            dims = {"g1": (64,), "b1": (64,), "q": (64, 64), "k": (64, 32), "v": (64, 32), "o": (64, 64)}
            dims |= {"g2": (64,), "b2": (64,), "gate": (64, 128), "up": (64, 128), "down": (128, 64)}
            weights = [h.param(f"{i}.{name}", d) for name, d in dims.items()]
            settings = {"num_heads": 4, "head_dim": 16, "num_kv_heads": 2, "eps": 1e-5, "mask_kind": "causal"}
            x = h.llama_decoder_block(x, *weights, cos, sin, **settings)
        return x

    return rlx.Graph.define("llama", build)


@pytest.mark.parametrize("policy", ["direct", "fusable"])
def test_a_transformer_is_within_a_tenth_of_the_lower_bound(policy):
    module = llama(4).with_fusion_policy(rlx.FusionPolicy(policy))
    graph = module.into_graph()
    activations = MemoryPlanOptions(False, False, False, hoist_params=True)
    plan = plan_memory_with_options(graph, 64, activations)
    for binding in ({"B": 1, "S": 16}, {"B": 4, "S": 128}):
        found = check_plan(graph, plan, binding)
        assert found.overlapping == []
        assert found.ratio <= 1.1, found
        exact = check_plan(graph.bind(binding), plan_memory_with_options(graph.bind(binding), 64, activations))
        assert exact.overlapping == []
        assert exact.ratio <= 1.1, exact
