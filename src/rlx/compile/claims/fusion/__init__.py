"""MIR to fewer, larger ops: one pass per file, rules with the reason of every near-miss, and a report.

    fused, report = run_fusion_passes(graph, fusion_passes(FusionTarget.Cuda))
    print(report)

Targets that claim fused ops get them from here; targets with our own generator take them apart again and group ops
into kernels (see `rlx.compile`).
"""

from rlx.autodiff.higher_order import set_elementwise_fuser
from rlx.compile.claims.fusion.control_flow import LowerControlFlow as LowerControlFlow
from rlx.compile.claims.fusion.control_flow import inline_if as inline_if
from rlx.compile.claims.fusion.control_flow import unroll_while as unroll_while
from rlx.compile.claims.fusion.decompose_fusion_regions import DecomposeFusionRegions as DecomposeFusionRegions
from rlx.compile.claims.fusion.fragments import FusionRole as FusionRole
from rlx.compile.claims.fusion.fragments import register_fusion_fragment as register_fusion_fragment
from rlx.compile.claims.fusion.fuse_attention_block import FuseAttentionBlock as FuseAttentionBlock
from rlx.compile.claims.fusion.fuse_batch_preprocess import FuseBatchPreprocess as FuseBatchPreprocess
from rlx.compile.claims.fusion.fuse_matmul_bias_act import FuseMatMulBiasAct as FuseMatMulBiasAct
from rlx.compile.claims.fusion.fuse_region_prologue import FuseRegionPrologue as FuseRegionPrologue
from rlx.compile.claims.fusion.fuse_residual_ln import FuseResidualLN as FuseResidualLN
from rlx.compile.claims.fusion.fuse_residual_rms_norm import FuseResidualRmsNorm as FuseResidualRmsNorm
from rlx.compile.claims.fusion.fuse_rms_norm_reshape import FuseRmsNormReshape as FuseRmsNormReshape
from rlx.compile.claims.fusion.fuse_shared_input_matmul import FuseSharedInputMatMul as FuseSharedInputMatMul
from rlx.compile.claims.fusion.fuse_swiglu import FuseSwiGLU as FuseSwiGLU
from rlx.compile.claims.fusion.fuse_swiglu_dual_matmul import FuseSwiGLUDualMatmul as FuseSwiGLUDualMatmul
from rlx.compile.claims.fusion.fuse_transformer_layer import FuseTransformerLayer as FuseTransformerLayer
from rlx.compile.claims.fusion.fusion_limits import FusionLimits as FusionLimits
from rlx.compile.claims.fusion.fusion_limits import active_fusion_limits as active_fusion_limits
from rlx.compile.claims.fusion.fusion_limits import with_fusion_limits as with_fusion_limits
from rlx.compile.claims.fusion.fusion_pipeline import FusionOptions as FusionOptions
from rlx.compile.claims.fusion.fusion_pipeline import FusionTarget as FusionTarget
from rlx.compile.claims.fusion.fusion_pipeline import backward_cleanup_passes as backward_cleanup_passes
from rlx.compile.claims.fusion.fusion_pipeline import fusion_limits_for_target as fusion_limits_for_target
from rlx.compile.claims.fusion.fusion_pipeline import fusion_passes as fusion_passes
from rlx.compile.claims.fusion.fusion_pipeline import fusion_passes_for_supported as fusion_passes_for_supported
from rlx.compile.claims.fusion.fusion_pipeline import supported_for_target as supported_for_target
from rlx.compile.claims.fusion.fusion_pipeline import supports_op as supports_op
from rlx.compile.claims.fusion.fusion_report import FusionReport as FusionReport
from rlx.compile.claims.fusion.fusion_report import MissedFusion as MissedFusion
from rlx.compile.claims.fusion.fusion_report import inspect_fusion as inspect_fusion
from rlx.compile.claims.fusion.fusion_report import run_fusion_passes as run_fusion_passes
from rlx.compile.claims.fusion.lower_backward_ops import LowerBackwardOps as LowerBackwardOps
from rlx.compile.claims.fusion.lower_dot_general import LowerDotGeneral as LowerDotGeneral
from rlx.compile.claims.fusion.lower_group_norm import LowerGroupNorm as LowerGroupNorm
from rlx.compile.claims.fusion.lower_non_last_axis_reduce import LowerNonLastAxisReduce as LowerNonLastAxisReduce
from rlx.compile.claims.fusion.lower_resize_nearest_2x import LowerResizeNearest2x as LowerResizeNearest2x
from rlx.compile.claims.fusion.mark_batch_slice_regions import MarkBatchSliceRegions as MarkBatchSliceRegions
from rlx.compile.claims.fusion.mark_elementwise_regions import MarkElementwiseRegions as MarkElementwiseRegions
from rlx.compile.claims.fusion.mark_transform_regions import MarkTransformRegions as MarkTransformRegions
from rlx.compile.claims.fusion.miss_reasons import MissReason as MissReason
from rlx.compile.claims.fusion.unfuse import UnfuseFusedOps as UnfuseFusedOps
from rlx.compile.claims.fusion.unfuse import unfuse_fused_for_autodiff as unfuse_fused_for_autodiff
from rlx.compile.claims.fusion.unfuse_elementwise_regions import UnfuseElementwiseRegions as UnfuseElementwiseRegions
from rlx.compile.claims.fusion.unfuse_elementwise_regions import clip_elementwise_regions as clip_elementwise_regions

# Between the layers of a higher derivative, chains of element-wise ops may be joined.
set_elementwise_fuser(MarkElementwiseRegions().run)
