"""Every pass, alone and together, on real blocks and on random graphs: the values are those of the reference."""

import ml_dtypes
import pytest
from fusion_programs import PATTERN_STEPS, assert_same_values, bert_block, llama_block, swiglu_ffn
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from random_graphs import BINDING, STEPS, graphs
from rlx.fusion import (
    DecomposeFusionRegions,
    FuseAttentionBlock,
    FuseBatchPreprocess,
    FuseMatMulBiasAct,
    FuseRegionPrologue,
    FuseResidualLN,
    FuseResidualRmsNorm,
    FuseRmsNormReshape,
    FuseSharedInputMatMul,
    FuseSwiGLU,
    FuseSwiGLUDualMatmul,
    FuseTransformerLayer,
    FusionTarget,
    LowerBackwardOps,
    LowerControlFlow,
    LowerDotGeneral,
    LowerGroupNorm,
    LowerNonLastAxisReduce,
    LowerResizeNearest2x,
    MarkBatchSliceRegions,
    MarkElementwiseRegions,
    MarkTransformRegions,
    UnfuseElementwiseRegions,
    UnfuseFusedOps,
    fusion_passes,
)
from rlx.ir.module import FusionPolicy
from rlx.ir.rewrite.dead_code import DeadCodeElimination
from rlx.ir.rewrite.passes import run_passes
from rlx.ir.text.pretty import kind_counts

# In an order in which each finds what those before it have made.
ALL_PASSES = [
    LowerControlFlow(),
    LowerDotGeneral(),
    LowerNonLastAxisReduce(),
    LowerGroupNorm(),
    LowerResizeNearest2x(),
    LowerBackwardOps(),
    FuseAttentionBlock(),
    FuseMatMulBiasAct(),
    FuseResidualLN(),
    FuseResidualRmsNorm(),
    FuseRmsNormReshape(),
    FuseTransformerLayer(),
    FuseSwiGLUDualMatmul(),
    FuseSharedInputMatMul(),
    FuseSwiGLU(),
    MarkElementwiseRegions(),
    MarkBatchSliceRegions(),
    MarkTransformRegions(),
    FuseRegionPrologue(),
    FuseBatchPreprocess(),
    DecomposeFusionRegions(),
    UnfuseElementwiseRegions(),
    UnfuseFusedOps(),
    DeadCodeElimination(),
]
BLOCKS = {
    "bert": (bert_block, {}),
    "bert_packed": (lambda: bert_block(packed=True), {}),
    "bert_symbolic": (lambda: bert_block("B", "S"), {"B": 2, "S": 3}),
    "llama": (lambda: llama_block(layers=2), {"B": 2, "S": 5}),
    "llama_direct": (lambda: llama_block(FusionPolicy.Direct), {"B": 1, "S": 4}),
    "swiglu": (swiglu_ffn, {"B": 3}),
}


@pytest.fixture(params=BLOCKS)
def block(request):
    build, binding = BLOCKS[request.param]
    return build(), binding


@pytest.mark.parametrize("step", ALL_PASSES, ids=lambda p: p.name)
def test_each_pass_alone(block, step):
    graph, binding = block
    after = run_passes(graph, [step])
    assert_same_values(graph, after, binding)
    assert run_passes(after, [step]) is after


@pytest.mark.parametrize("target", FusionTarget)
def test_the_list_of_each_target(block, target):
    graph, binding = block
    with rlx.knobs(enable_fuse_transformer_layer=True, verify=2):
        after = run_passes(graph, fusion_passes(target))
        assert_same_values(graph, after, binding)
        assert run_passes(after, fusion_passes(target)) == after


@pytest.mark.parametrize("left_out", ALL_PASSES, ids=lambda p: p.name)
def test_all_passes_but_one(left_out):
    for name in ("bert", "llama"):
        build, binding = BLOCKS[name]
        graph = build()
        after = run_passes(graph, [p for p in ALL_PASSES if p is not left_out])
        assert_same_values(graph, after, binding)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_other_types(dtype):
    """Fused ops round less often than what they replace, so narrow types agree to a few roundings only."""
    tolerance = 8 * float(ml_dtypes.finfo(rlx.DType.of(dtype).numpy).eps)
    for graph, binding in ((bert_block(dtype=dtype), {}), (llama_block(dtype=dtype), {"B": 2, "S": 3})):
        after = run_passes(graph, fusion_passes(FusionTarget.Cuda))
        assert after is not graph
        assert_same_values(graph, after, binding, tolerance, tolerance)


def test_what_becomes_of_the_blocks():
    """The ops that are left, without leaves."""

    def ops_after(graph, target, **knobs):
        with rlx.knobs(**knobs):
            kinds = kind_counts(run_passes(graph, fusion_passes(target)))
        return {k: v for k, v in kinds.items() if k not in ("Input", "Param", "Project")}

    bert = ops_after(bert_block(packed=True), FusionTarget.Cpu)
    assert bert == {"FusedAttentionBlock": 1, "FusedResidualLN": 2, "FusedMatMulBiasAct": 2}
    whole = ops_after(bert_block(packed=True), FusionTarget.Wgpu, enable_fuse_transformer_layer=True)
    assert whole == {"FusedTransformerLayer": 1}
    long = ops_after(bert_block(seq=64), FusionTarget.Cuda)
    assert long == {"Concat": 2, "FusedMatMulBiasAct": 4, "Narrow": 3, "Attention": 1, "FusedResidualLN": 2}
    # Of two decoder blocks the second begins with the sum that ends the first.
    llama = ops_after(llama_block(layers=2), FusionTarget.Cuda)
    assert llama == {
        "RmsNorm": 1,
        "Concat": 4,
        "MatMul": 8,
        "Narrow": 6,
        "Rope": 4,
        "Attention": 2,
        "FusedResidualRmsNorm": 3,
        "FusedSwiGLU": 2,
        "Binary": 1,
    }


# Some steps convert, and what integers become is f32: a fused op rounds once where its parts round several times.
ROUNDING = {"f32": 4e-6, "f16": 2e-2, "bf16": 1e-1}


def bound_of(graph):
    """How far results may lie apart: 1e-9, or what roundings to the narrowest type in the graph leave."""
    types = {str(shape.dtype) for node in graph.nodes for shape in node.shapes}
    return max(1e-9, *(ROUNDING.get(name, 0.0) for name in types))


@settings(max_examples=60)
@given(graph=graphs(steps=(*PATTERN_STEPS, *PATTERN_STEPS, *STEPS), dtypes=("f64",)), data=st.data())
def test_random_graphs_with_any_passes(graph, data):
    chosen = [p for p in ALL_PASSES if data.draw(st.booleans(), label=p.name)]
    assert_same_values(graph, run_passes(graph, chosen), BINDING, bound_of(graph), bound_of(graph))


@settings(max_examples=40)
@given(graph=graphs(steps=(*PATTERN_STEPS, *STEPS), dtypes=("f64", "f64", "i32", "bool")))
def test_random_graphs_through_the_lists(graph):
    for target in (FusionTarget.Cpu, FusionTarget.Cuda):
        passes = fusion_passes(target)
        after = run_passes(graph, passes)
        assert_same_values(graph, after, BINDING, bound_of(graph), bound_of(graph))
        assert run_passes(after, passes) == after
