"""Which fusion passes run for a target, in which order, and why in that order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

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
from rlx.compile.claims.fusion.fusion_limits import FusionLimits
from rlx.compile.claims.fusion.lower_dot_general import LowerDotGeneral
from rlx.compile.claims.fusion.mark_batch_slice_regions import MarkBatchSliceRegions
from rlx.compile.claims.fusion.mark_elementwise_regions import MarkElementwiseRegions
from rlx.compile.claims.fusion.mark_transform_regions import MarkTransformRegions
from rlx.compile.claims.fusion.unfuse_elementwise_regions import UnfuseElementwiseRegions
from rlx.compile.target import find_target, select
from rlx.ir.rewrite.dead_code import DeadCodeElimination
from rlx.ir.rewrite.passes import Pass
from rlx.ir.words import Words
from rlx.knobs import knobs


class FusionTarget(Words):
    """Whose claims decide which fused ops are formed."""

    Cpu = "cpu"
    Metal = "metal"
    Mlx = "mlx"
    Wgpu = "wgpu"
    Cuda = "cuda"
    Rocm = "rocm"
    Tpu = "tpu"

    @staticmethod
    def for_device(device: str) -> FusionTarget:
        """The target that a device's programs are fused for.

        >>> FusionTarget.for_device("vulkan"), FusionTarget.for_device("ane")
        (<FusionTarget.Wgpu: 'wgpu'>, <FusionTarget.Cpu: 'cpu'>)
        """
        found = find_target(str(device).lower())
        names = (found.name, *found.aliases) if found is not None else ()
        return next((t for t in FusionTarget if t.value in names), FusionTarget.Cpu)


def supported_for_target(target: FusionTarget | str) -> frozenset[str]:
    """The kinds (class names) of ops that a target claims, as far as fusion is concerned: they gate it, and those that
    a target claims natively are not lowered before it either."""
    return select(target).target.claims


def supports_op(supported: Collection[str], kind: str) -> bool:
    """Whether a claim set has a kind; an empty set claims everything."""
    return not supported or kind in supported


def fusion_limits_for_target(target: FusionTarget | str) -> FusionLimits:
    """Generated CPU code takes regions of any size; device kernels have room for a fixed number of steps and inputs."""
    limits = select(target).target.region_limits
    return FusionLimits.UNBOUNDED if limits is None else FusionLimits(*limits)


@dataclass(frozen=True)
class FusionOptions:
    """Switches of the pass list. Options that are None follow the target."""

    skip_fusion: bool = False
    unfuse_elementwise_regions: bool = False
    fusion_limits: FusionLimits | None = None
    # Overrules `unfuse_elementwise_regions`, where the target claims regions.
    keep_elementwise_regions: bool = False
    decompose_fusion_regions: bool = False
    # Transform, prologue and batched regions as a whole, and two of their passes.
    fk_fusion: bool = True
    fuse_region_prologue: bool = True
    fuse_batch_preprocess: bool = True
    native_fk_regions: bool = True

    @staticmethod
    def for_cpu() -> FusionOptions:
        """No regions: code is generated for groups of ops, which are chosen later."""
        return FusionOptions(
            unfuse_elementwise_regions=True, fusion_limits=FusionLimits.UNBOUNDED, native_fk_regions=False
        )

    @staticmethod
    def from_metal_env() -> FusionOptions:
        """As the knobs `metal_no_fusion` and `metal_unfuse_regions` say."""
        return FusionOptions(
            skip_fusion=knobs.metal_no_fusion, unfuse_elementwise_regions=knobs.metal_unfuse_regions
        ).merge_env()

    @staticmethod
    def for_metal() -> FusionOptions:
        return FusionOptions.for_target(FusionTarget.Metal)

    @staticmethod
    def for_wgpu() -> FusionOptions:
        return FusionOptions.for_target(FusionTarget.Wgpu)

    @staticmethod
    def for_target(target: FusionTarget | str) -> FusionOptions:
        """The defaults of a target, with the knobs applied."""
        if target == FusionTarget.Metal:
            base = FusionOptions.from_metal_env()
        else:
            base = FusionOptions.for_cpu() if target == FusionTarget.Cpu else FusionOptions()
        return replace(base, fusion_limits=fusion_limits_for_target(target)).merge_env()

    def merge_env(self) -> FusionOptions:
        """These options, changed as the knobs say."""
        native = self.native_fk_regions if knobs.native_fk_regions is None else knobs.native_fk_regions
        return replace(
            self,
            keep_elementwise_regions=self.keep_elementwise_regions or knobs.keep_elementwise_regions,
            decompose_fusion_regions=self.decompose_fusion_regions or knobs.decompose_fusion_regions,
            fk_fusion=self.fk_fusion and not knobs.no_fk_fusion,
            fuse_region_prologue=self.fuse_region_prologue and knobs.fuse_region_prologue,
            fuse_batch_preprocess=self.fuse_batch_preprocess and knobs.fuse_batch_preprocess,
            native_fk_regions=native and not knobs.no_native_fk_regions,
        )


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
    passes: list[Pass] = [LowerControlFlow(keep=[k for k in ("If", "While") if claims(k)]), LowerDotGeneral()]
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
