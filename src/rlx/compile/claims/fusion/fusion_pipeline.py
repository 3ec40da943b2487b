"""Which fusion passes run for a target, in which order, and why in that order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rlx.compile.claims.fusion.control_flow import LowerControlFlow
from rlx.compile.claims.fusion.decompose_fusion_regions import DecomposeFusionRegions
from rlx.compile.claims.fusion.fuse_attention_block import FuseAttentionBlock
from rlx.compile.claims.fusion.fuse_batch_preprocess import FuseBatchPreprocess
from rlx.compile.claims.fusion.fuse_matmul_bias_act import FuseMatMulBiasAct
from rlx.compile.claims.fusion.fuse_region_prologue import FuseRegionPrologue
from rlx.compile.claims.fusion.fuse_residual_ln import FuseResidualLN
from rlx.compile.claims.fusion.fuse_residual_rms_norm import FuseResidualRmsNorm
from rlx.compile.claims.fusion.fuse_rms_norm_reshape import FuseRmsNormReshape
from rlx.compile.claims.fusion.fuse_shared_input_matmul import FuseSharedInputMatMul
from rlx.compile.claims.fusion.fuse_swiglu import FuseSwiGLU
from rlx.compile.claims.fusion.fuse_swiglu_dual_matmul import FuseSwiGLUDualMatmul
from rlx.compile.claims.fusion.fuse_transformer_layer import FuseTransformerLayer
from rlx.compile.claims.fusion.fusion_options import FusionOptions as FusionOptions
from rlx.compile.claims.fusion.fusion_options import FusionTarget as FusionTarget
from rlx.compile.claims.fusion.fusion_options import fusion_limits_for_target as fusion_limits_for_target
from rlx.compile.claims.fusion.fusion_options import supported_for_target as supported_for_target
from rlx.compile.claims.fusion.fusion_options import supports_op as supports_op
from rlx.compile.claims.fusion.lower_dot_general import LowerDotGeneral
from rlx.compile.claims.fusion.mark_batch_slice_regions import MarkBatchSliceRegions
from rlx.compile.claims.fusion.mark_elementwise_regions import MarkElementwiseRegions
from rlx.compile.claims.fusion.mark_transform_regions import MarkTransformRegions
from rlx.compile.claims.fusion.unfuse_elementwise_regions import UnfuseElementwiseRegions
from rlx.ir.rewrite.dead_code import DeadCodeElimination
from rlx.ir.rewrite.passes import Pass
from rlx.knobs import knobs


def fusion_passes(target: FusionTarget | str, opts: FusionOptions | None = None) -> list[Pass]:
    """The passes of a target, in order; options that are not given are the target's."""
    opts = FusionOptions.for_target(target) if opts is None else opts
    if opts.fusion_limits is None:
        opts = replace(opts, fusion_limits=fusion_limits_for_target(target))
    if target == FusionTarget.Cpu:
        opts = replace(opts, unfuse_elementwise_regions=True)
    return fusion_passes_for_supported(supported_for_target(target), opts)


def fusion_passes_for_supported(supported: Collection[str], opts: FusionOptions | None = None) -> list[Pass]:
    """The passes that form only ops that `supported` claims, in order."""
    opts = FusionOptions() if opts is None else opts

    def claims(*kinds: str) -> bool:
        return all(supports_op(supported, kind) for kind in kinds)

    # Straight code and plain products first: the patterns are written for them.
    passes: list[Pass] = [LowerControlFlow.unless_claimed(supported), LowerDotGeneral()]
    if opts.skip_fusion:
        return passes
    # The largest pattern first: the passes after it would take its projections apart or join them with others.
    if claims("FusedAttentionBlock"):
        passes.append(FuseAttentionBlock())
    if claims("FusedMatMulBiasAct") and not knobs.disable_matmul_bias_fusion:
        passes.append(FuseMatMulBiasAct())
    # After the bias of a product has joined it, what is left in front of a norm is the residual sum.
    if claims("FusedResidualLN") and not knobs.disable_residual_ln_fusion:
        passes.append(FuseResidualLN())
    if claims("FusedResidualRmsNorm") and not knobs.disable_residual_ln_fusion:
        passes.append(FuseResidualRmsNorm())
    passes.append(FuseRmsNormReshape())
    # Its parts are made by the four passes above.
    if claims("FusedAttentionBlock", "FusedTransformerLayer") and knobs.enable_fuse_transformer_layer:
        passes.append(FuseTransformerLayer())
    # Pairs of gate and up projection before the other products of the same input take one of them.
    if claims("FusedSwiGLU") and not knobs.no_weight_concat_fusion:
        passes.append(FuseSwiGLUDualMatmul())
    if claims("MatMul") and not (knobs.no_shared_input_matmul or knobs.no_weight_concat_fusion):
        passes.append(FuseSharedInputMatMul())
    # After shared products: their slices are halves that this pass recognises.
    if claims("FusedSwiGLU"):
        passes.append(FuseSwiGLU())
    passes += _region_passes(claims("ElementwiseRegion"), opts)
    passes.append(DeadCodeElimination())
    return passes


def _region_passes(claims_regions: bool, opts: FusionOptions) -> list[Pass]:
    """Regions come last: they take whatever is element-wise, also what a named pattern would have used."""
    unfuse = not claims_regions or (opts.unfuse_elementwise_regions and not opts.keep_elementwise_regions)
    passes: list[Pass] = [MarkElementwiseRegions(opts.fusion_limits)]
    if opts.fk_fusion and opts.native_fk_regions and not unfuse:
        passes += [MarkBatchSliceRegions(), MarkTransformRegions()]
        # Prologues before batches: slices with equal prologues are equal regions.
        passes += [FuseRegionPrologue()] if opts.fuse_region_prologue else []
        passes += [FuseBatchPreprocess()] if opts.fuse_batch_preprocess else []
    if opts.decompose_fusion_regions:
        passes.append(DecomposeFusionRegions())
    if unfuse:
        passes.append(UnfuseElementwiseRegions())
    return passes


def backward_cleanup_passes() -> list[Pass]:
    """What may run on a gradient graph without undoing what the forward pass shares with it."""
    return [DeadCodeElimination(), LowerDotGeneral()]
