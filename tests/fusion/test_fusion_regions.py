"""Element-wise, transform and batched regions: what joins, what stays, limits, and the way back."""

import numpy as np
import pytest
from fusion_programs import assert_same_values, program, values_of
from hypothesis import given, settings

from random_graphs import BINDING, STEPS, graphs
from rlx import ops
from rlx.compile.claims.fusion.fragments import has_role, step_of
from rlx.compile.claims.fusion.mark_elementwise_regions import broadcast_metadata
from rlx.fusion import (
    DecomposeFusionRegions,
    FuseBatchPreprocess,
    FuseRegionPrologue,
    FusionLimits,
    FusionRole,
    FusionTarget,
    MarkBatchSliceRegions,
    MarkElementwiseRegions,
    MarkTransformRegions,
    UnfuseElementwiseRegions,
    active_fusion_limits,
    clip_elementwise_regions,
    fusion_limits_for_target,
    register_fusion_fragment,
    with_fusion_limits,
)
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.passes import run_passes
from rlx.ir.text.pretty import kind_counts
from rlx.ops.fused.regions import ChainOperand, ChainStep, ElementwiseRegion

I, S = ChainOperand.Input, ChainOperand.Step


def regions_of(graph):
    return [n.op for n in graph.nodes if isinstance(n.op, ElementwiseRegion)]


def test_chain_of_three():
    def build(g):
        a, b, c = (g.input(n, (2, 3)) for n in "abc")
        return ops.relu((a + b) * c)

    (region,) = regions_of(MarkElementwiseRegions().run(program("chain", build)))
    assert region.num_inputs() == 3
    steps = [
        ChainStep.Binary("add", I(0), I(1)),
        ChainStep.Binary("mul", S(0), I(2)),
        ChainStep.Activation("relu", S(1)),
    ]
    assert list(region.chain) == steps


def test_compare_where_add_and_back():
    def build(g):
        x, y = g.input("x", (2, 3)), g.input("y", (2, 3))
        return ops.where(x < y, x, y) + x

    graph = program("select", build)
    marked = MarkElementwiseRegions().run(graph)
    (region,) = regions_of(marked)
    assert [step[0] for step in region.chain] == ["compare", "where", "binary"]
    assert UnfuseElementwiseRegions().run(marked) == graph


def test_single_ops_and_values_read_outside_form_no_region():
    def two_readers(g):
        s = g.input("a", (4,)) + g.input("b", (4,))
        return [ops.relu(s), ops.exp(s)]

    for graph in (program("relu", lambda g: ops.relu(g.input("x", (4,)))), program("two", two_readers)):
        assert MarkElementwiseRegions().run(graph) is graph


def test_outputs_end_regions():
    def build(g):
        a = ops.tanh(ops.neg(g.input("x", (4,))))
        return [ops.exp(ops.sin(a)), a]

    graph = program("outputs", build)
    after = MarkElementwiseRegions().run(graph)
    assert [str(r.chain) for r in regions_of(after)] == ["neg(i0);tanh(s0)", "sin(i0);exp(s0)"]
    assert_same_values(graph, after, rtol=1e-6)


def test_casts_and_types_inside():
    def build(g):
        return ops.cast(ops.cast(g.input("x", (4,), "f32"), "i32") + 1, "f16") * 0.5

    graph = program("types", build)
    after = MarkElementwiseRegions().run(graph)
    assert kind_counts(after)["ElementwiseRegion"] == 1
    for want, got in zip(interpret(graph, values_of(graph)), interpret(after, values_of(graph))):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("inputs", "dims", "mask", "moduli"),
    [
        ([(2, 3), (2, 3)], (2, 3), 0, ()),
        ([(2, 3), (3,), ()], (2, 3), 0b100, (0, 3, 1)),
        ([(2, 3), (1, 3), (1, 1)], (2, 3), 0b100, (0, 3, 1)),
        # A column repeats each element, which no period says.
        ([(4, 4), (4, 1)], (4, 4), 0, ()),
        # Nothing has the full size, so the shapes must speak for themselves.
        ([(4, 1), (4,)], (4, 4), 0, ()),
        ([("B", 4), (4,)], ("B", 4), 0, (0, 4)),
    ],
)
def test_broadcast_metadata(inputs, dims, mask, moduli):
    from rlx.ir.shape import Shape

    assert broadcast_metadata([Shape(d).dims for d in inputs], Shape(dims).dims) == (mask, moduli)


def test_columns_and_rows_broadcast_as_in_numpy():
    """The ancestor's test, that one count divides the other, takes a column for a row."""

    def build(g):
        return ops.exp(g.input("c", (4, 1), "f64") * g.input("r", (4,), "f64")) - g.input("x", (4, 4), "f64")

    graph = program("outer", build)
    after = MarkElementwiseRegions().run(graph)
    assert len(regions_of(after)) == 1
    values = values_of(graph)
    (got,) = interpret(after, values)
    np.testing.assert_allclose(got, np.exp(values["c"] * values["r"]) - values["x"], rtol=1e-14)


def long_chain(count):
    def build(g):
        x = g.input("x", (4,), "f64")
        for _ in range(count):
            x = ops.tanh(x)
        return x

    return program("long", build)


def test_a_full_region_takes_no_more():
    graph = long_chain(70)
    after = MarkElementwiseRegions(FusionLimits.GPU_NATIVE).run(graph)
    assert [len(r.chain) for r in regions_of(after)] == [6, 32, 32]
    assert_same_values(graph, after)
    (whole,) = regions_of(MarkElementwiseRegions(FusionLimits.UNBOUNDED).run(graph))
    assert len(whole.chain) == 70


def test_inputs_are_limited_too():
    def build(g):
        total = g.input("x0", (4,), "f64")
        for i in range(1, 20):
            total = total + g.input(f"x{i}", (4,), "f64")
        return total

    graph = program("sum", build)
    after = MarkElementwiseRegions().run(graph)
    assert [r.num_inputs() for r in regions_of(after)] == [5, 16]
    assert_same_values(graph, after)


def test_limits_of_targets_and_of_the_compile_going_on():
    assert FusionLimits() == FusionLimits.GPU_NATIVE == FusionLimits(32, 16) == active_fusion_limits()
    assert fusion_limits_for_target(FusionTarget.Cpu) == FusionLimits.UNBOUNDED == FusionLimits(2**32 - 1, 2**32 - 1)
    assert fusion_limits_for_target(FusionTarget.Tpu) == FusionLimits(32, 16)
    graph = long_chain(8)
    after = with_fusion_limits(FusionLimits(4, 4), lambda: MarkElementwiseRegions().run(graph))
    assert [len(r.chain) for r in regions_of(after)] == [4, 4]
    with pytest.raises(ZeroDivisionError):
        with_fusion_limits(FusionLimits(1, 1), lambda: 1 // 0)
    assert active_fusion_limits() == FusionLimits.GPU_NATIVE


def test_clipping_takes_only_large_regions_apart():
    def build(g):
        x = g.input("x", (4,), "f64")
        small, large = (
            ElementwiseRegion("neg(i0);exp(s0)"),
            ElementwiseRegion("neg(i0);exp(s0);lt(s1,i0);where(s2,s1,i0)"),
        )
        return [small(x), large(x)]

    graph = program("clip", build)
    after = clip_elementwise_regions(graph, FusionLimits(3, 1))
    assert [str(r.chain) for r in regions_of(after)] == ["neg(i0);exp(s0)"]
    assert [n.shape.dtype.value for n in after.nodes if n.op.mnemonic == "lt"] == ["bool"]
    assert_same_values(graph, after)
    assert clip_elementwise_regions(after, FusionLimits(3, 1)) is after


@pytest.mark.parametrize(
    ("region", "dims"),
    [
        # A scalar of higher rank than the region, and a chain that does not read the input of full size.
        (ElementwiseRegion("add(i0,i1)", 2, (0, 1)), ((3,), (1, 1))),
        (ElementwiseRegion("neg(i1)", 0, (0, 3)), ((2, 3), (3,))),
    ],
)
def test_unfusing_regions_whose_steps_do_not_broadcast_alike(region, dims):
    graph = program("odd", lambda g: region(*(g.input(f"x{i}", d, "f64") for i, d in enumerate(dims))))
    after = UnfuseElementwiseRegions().run(graph)
    assert regions_of(after) == []
    assert_same_values(graph, after)


@settings(max_examples=60)
@given(graph=graphs(steps=STEPS[:7], max_nodes=16))
def test_random_elementwise_graphs_there_and_back(graph):
    marked = MarkElementwiseRegions().run(graph)
    assert_bits_equal(graph, marked)
    back = UnfuseElementwiseRegions().run(marked)
    assert regions_of(back) == []
    assert_bits_equal(graph, back)
    assert MarkElementwiseRegions().run(marked) is marked


def assert_bits_equal(before, after):
    values = values_of(before, BINDING)
    for want, got in zip(interpret(before, values, BINDING), interpret(after, values, BINDING), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def resize(x):
    return ops.ResizeNearest2x()(x)


def test_prologue_moves_to_slot_0():
    def build(g):
        x, scale = g.input("x", (1, 2, 4, 4), "f64"), g.input("scale", (4,), "f64")
        return ops.relu(scale * x - resize(g.input("half", (1, 2, 2, 2), "f64")))

    graph = program("prologue", build)
    marked = MarkElementwiseRegions().run(graph)
    after = FuseRegionPrologue().run(marked)
    (region,) = regions_of(after)
    assert (region.prologue, region.prologue_input) == ("resize_nearest_2x", 0)
    assert (region.input_modulus, str(region.chain)) == ((0, 0, 4), "mul(i2,i1);sub(s0,i0);relu(s1)")
    assert [after.node(i).name for i in after.nodes[-1].inputs] == ["half", "x", "scale"]
    assert_same_values(graph, after)
    back = DecomposeFusionRegions().run(after)
    assert regions_of(back) == [] and kind_counts(back)["ResizeNearest2x"] == 1
    assert_same_values(graph, back)


def test_only_one_prologue_and_only_of_images():
    def two(g):
        return ops.exp(resize(g.input("a", (1, 1, 2, 2), "f64")) + resize(g.input("b", (1, 1, 2, 2), "f64")))

    graph = program("two", two)
    after = run_passes(graph, [MarkElementwiseRegions(), FuseRegionPrologue()])
    assert kind_counts(after)["ResizeNearest2x"] == 1
    assert_same_values(graph, after)
    volume = program("volume", lambda g: ops.relu(resize(g.input("x", (1, 1, 2, 2, 2)))))
    assert FuseRegionPrologue().run(volume) is volume


def test_transforms_in_a_row():
    def build(g):
        return resize(resize(resize(g.input("x", (1, 1, 1, 2), "f64"))))

    graph = program("resizes", build)
    after = MarkTransformRegions().run(graph)
    assert kind_counts(after) == {"Input": 1, "TransformRegion": 1}
    assert len(after.nodes[-1].op.steps) == 3
    assert_same_values(graph, after)
    assert DecomposeFusionRegions().run(after) == graph
    values = values_of(graph)
    np.testing.assert_array_equal(interpret(after, values)[0], values["x"].repeat(8, 2).repeat(8, 3))


def slices(functions, starts=None, whole=4):
    def build(g):
        x = g.input("x", (whole, 3), "f64")
        starts_or_default = range(len(functions)) if starts is None else starts
        return ops.concat([f(ops.narrow(x, 0, i, 1)) for f, i in zip(functions, starts_or_default)], 0)

    return program("slices", build)


def test_slices_of_a_batch_become_one_op():
    def both(x):
        return ops.exp(ops.neg(x))

    for f in (ops.relu, both):
        graph = slices([f] * 3)
        after = run_passes(graph, [MarkElementwiseRegions(), MarkBatchSliceRegions(), FuseBatchPreprocess()])
        assert kind_counts(after) == {"Input": 1, "Narrow": 3, "BatchElementwiseRegion": 1}
        assert_same_values(graph, after)
        back = DecomposeFusionRegions().run(after)
        assert not {"ElementwiseRegion", "BatchElementwiseRegion"} & set(kind_counts(back))
        assert_same_values(graph, back)


def test_slices_with_prologues_become_one_op():
    def build(g):
        x = g.input("x", (2, 1, 2, 2), "f64")
        return ops.concat([ops.relu(resize(ops.narrow(x, 0, i, 1))) for i in range(2)], 0)

    graph = program("resized_slices", build)
    after = run_passes(graph, [MarkBatchSliceRegions(), FuseRegionPrologue(), FuseBatchPreprocess()])
    (batch,) = [n.op for n in after.nodes if isinstance(n.op, ops.BatchElementwiseRegion)]
    assert (batch.prologue, batch.num_batch_inputs) == ("resize_nearest_2x", 2)
    assert_same_values(graph, after)
    assert_same_values(graph, DecomposeFusionRegions().run(after))


def test_slices_that_stay_apart():
    def joined_elsewhere(g):
        x = g.input("x", (2, 3))
        parts = [ops.relu(ops.narrow(x, 0, i, 1)) for i in range(2)]
        return [ops.concat(parts, 0), parts[0]]

    def other_axis(g):
        x = g.input("x", (2, 3))
        return ops.concat([ops.relu(ops.narrow(x, 0, i, 1)) for i in range(2)], 1)

    def two_tensors(g):
        return ops.concat([ops.relu(ops.narrow(g.input(n, (2, 3)), 0, 0, 1)) for n in "xy"], 0)

    def one_slice(g):
        return ops.concat([ops.relu(ops.narrow(g.input("x", (2, 3)), 0, 0, 1))], 0)

    others = [program(f.__name__, f) for f in (joined_elsewhere, other_axis, two_tensors, one_slice)]
    for graph in (*others, slices([ops.exp, ops.tanh])):
        assert MarkBatchSliceRegions().run(graph) is graph
        assert FuseBatchPreprocess().run(graph) is graph


def test_fragments_are_open(monkeypatch):
    from rlx.compile.claims.fusion import fragments

    monkeypatch.setattr(fragments, "_FRAGMENTS", {role: dict(v) for role, v in fragments._FRAGMENTS.items()})
    assert has_role(ops.Binary("add"), FusionRole.RegionCompute)
    assert not has_role(ops.Binary("add"), FusionRole.BatchPlane)
    assert not has_role(ops.StopGradient(), FusionRole.RegionCompute)
    with pytest.raises(KeyError, match="stop_gradient is not registered"):
        step_of(ops.StopGradient(), I(0))
    register_fusion_fragment(ops.StopGradient, [FusionRole.RegionCompute], lambda op, x: ChainStep.Cast("f32", x))
    graph = program("stop", lambda g: ops.tanh(ops.stop_gradient(g.input("x", (4,)))))
    assert [str(r.chain) for r in regions_of(MarkElementwiseRegions().run(graph))] == ["cast_f32(i0);tanh(s0)"]
