"""The optimiser under one name: fusion, transforms and compile passes, as the seed documents call them.

    from rlx import opt

    passes = opt.fusion_passes(opt.FusionTarget.Cpu)
    graph = opt.run_passes(graph, passes)

Everything here is defined elsewhere and loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it.
_HOME: dict[str, str] = {
    **dict.fromkeys(("Pass", "PassRecord", "run_passes"), "rlx.ir.rewrite.passes"),
    "DeadCodeElimination": "rlx.ir.rewrite.dead_code",
    **dict.fromkeys(
        (
            "MemoryPlan",
            "MemoryPlanOptions",
            "SharedWeightLayout",
            "WeightSlot",
            "plan_memory",
            "plan_memory_aligned",
            "plan_memory_backward",
            "plan_memory_f32_uniform",
            "plan_memory_with_options",
        ),
        "rlx.compile.memory.node_plan",
    ),
    "is_pure_view": "rlx.compile.memory.liveness",
    **dict.fromkeys(
        (
            "DecomposeFusionRegions",
            "FuseAttentionBlock",
            "FuseBatchPreprocess",
            "FuseMatMulBiasAct",
            "FuseRegionPrologue",
            "FuseResidualLN",
            "FuseResidualRmsNorm",
            "FuseRmsNormReshape",
            "FuseSharedInputMatMul",
            "FuseSwiGLU",
            "FuseSwiGLUDualMatmul",
            "FuseTransformerLayer",
            "FusionLimits",
            "FusionOptions",
            "FusionReport",
            "FusionRole",
            "FusionTarget",
            "LowerBackwardOps",
            "LowerControlFlow",
            "LowerDotGeneral",
            "LowerGroupNorm",
            "LowerNonLastAxisReduce",
            "LowerResizeNearest2x",
            "MarkBatchSliceRegions",
            "MarkElementwiseRegions",
            "MarkTransformRegions",
            "MissReason",
            "MissedFusion",
            "UnfuseElementwiseRegions",
            "UnfuseFusedOps",
            "active_fusion_limits",
            "backward_cleanup_passes",
            "clip_elementwise_regions",
            "fusion_limits_for_target",
            "fusion_passes",
            "fusion_passes_for_supported",
            "inline_if",
            "inspect_fusion",
            "register_fusion_fragment",
            "run_fusion_passes",
            "supported_for_target",
            "supports_op",
            "unroll_while",
            "with_fusion_limits",
        ),
        "rlx.fusion",
    ),
    **dict.fromkeys(
        (
            "AutodiffError",
            "ForceEnergyLossWeights",
            "GradWithLossOptions",
            "HigherOrderOptions",
            "MirAutodiffExt",
            "PrepareForAutodiff",
            "build_force_energy_loss",
            "convert_scans_for_ad",
            "decompose_backward_for_ad",
            "directional_nth_grad",
            "fuse_elementwise",
            "grad",
            "grad_subgraph",
            "grad_subgraph_for_jvp",
            "grad_with_loss",
            "grad_with_loss_module",
            "grad_with_loss_opts",
            "hvp",
            "hvp_module",
            "inline_custom_fn_for_autodiff",
            "jvp",
            "jvp_module",
            "nth_order_grad",
            "nth_order_grad_module",
            "nth_order_grad_with_options",
            "peel_scalar_expands",
            "prepare_grad_graph_for_jvp",
            "prepare_graph_for_ad",
            "prepare_mir_for_ad",
            "prepare_module_for_ad",
            "quantized_weight_bits",
            "unfuse_fused_for_autodiff",
            "vmap",
        ),
        "rlx.autodiff",
    ),
    "AlgebraicSimplify": "rlx.compile.simplify.algebra",
    "ConstantFolding": "rlx.compile.simplify.constants",
    **dict.fromkeys(("CommonSubexpressionElimination", "cse"), "rlx.compile.simplify.common_values"),
    "LegalizeBroadcast": "rlx.compile.claims.legalize_broadcast",
    **dict.fromkeys(
        ("inline_into", "inline_subgraph_into", "inline_subgraph_into_outputs"),
        "rlx.compile.simplify.inline",
    ),
    "promote_params_to_inputs": "rlx.compile.simplify.promote_params",
    **dict.fromkeys(("SpecializeParams", "specialize_params"), "rlx.compile.simplify.specialize_params"),
    **dict.fromkeys(
        ("CastConfig", "OpKind", "Precision", "PrecisionClass", "PrecisionPolicy", "op_kind"),
        "rlx.compile.precision.policy",
    ),
    "AutoMixedPrecision": "rlx.compile.precision.apply",
    **dict.fromkeys(("CalibrationEntry", "CalibrationRecord", "insert_q_dq"), "rlx.compile.ptq.insert"),
    **dict.fromkeys(("Calibrator", "calibrate", "product_taps"), "rlx.compile.ptq.calibrate"),
    "QuantPropagate": "rlx.compile.ptq.propagate",
    "CollapseQuantizedProducts": "rlx.compile.ptq.collapse",
    **dict.fromkeys(
        (
            "LegalizeError",
            "LegalizeResult",
            "format_legalize_error",
            "legalize_for_backend",
            "legalize_or_rewrite_for_backend",
            "legalize_or_rewrite_for_backend_with_config",
            "legalize_or_rewrite_for_backend_with_dispatch",
            "lower_logical_kernels",
            "rewrite_for_backend",
            "rewrite_for_backend_with_config",
            "rewrite_for_backend_with_dispatch",
        ),
        "rlx.compile.claims.legalize",
    ),
    **dict.fromkeys(
        (
            "DispatchPath",
            "KernelDispatchReport",
            "KindDispatchSummary",
            "analyze_dispatch",
            "format_dispatch_report",
            "maybe_log_dispatch_report",
            "prepare_graph_for_backend_with_report",
        ),
        "rlx.compile.claims.dispatch",
    ),
    **dict.fromkeys(("KernelDispatchConfig", "KernelDispatchPolicy"), "rlx.compile.claims.logical_kernel"),
    **dict.fromkeys(
        ("CompilePipeline", "CompileResult", "TrainingCompileError", "TrainingCompileResult"),
        "rlx.compile.compiler",
    ),
    **dict.fromkeys(
        ("PipelineInspect", "inspect_compiled", "inspect_pipeline", "maybe_dump_pipeline"), "rlx.compile.inspect"
    ),
    "CompileReport": "rlx.compile.report.report",
    "interpret_lir": "rlx.compile.memory.interpret",
}
# Module of the seed documents -> module that holds its contents.
_MODULES: dict[str, str] = {
    "autodiff": "rlx.autodiff",
    "autodiff_fwd": "rlx.autodiff.forward",
    "compiler": "rlx.compile.compiler",
    "const_fold": "rlx.compile.simplify.constants",
    "control_flow": "rlx.compile.claims.fusion.control_flow",
    "dce": "rlx.ir.rewrite.dead_code",
    "fusion": "rlx.fusion",
    "fusion_pipeline": "rlx.compile.claims.fusion.fusion_pipeline",
    "fusion_report": "rlx.compile.claims.fusion.fusion_report",
    "inline": "rlx.compile.simplify.inline",
    "inspect": "rlx.compile.inspect",
    "legalize": "rlx.compile.claims.legalize",
    "legalize_broadcast": "rlx.compile.claims.legalize_broadcast",
    "lower_dot_general": "rlx.compile.claims.fusion.lower_dot_general",
    "precision": "rlx.compile.precision.policy",
    "prepare_ad": "rlx.autodiff.prepare",
    "promote_params": "rlx.compile.simplify.promote_params",
    "quant_insert": "rlx.compile.ptq.insert",
    "quant_propagate": "rlx.compile.ptq.propagate",
    "svg": "rlx.compile.report.drawing",
    "unfuse": "rlx.compile.claims.fusion.unfuse",
}


def __getattr__(name: str) -> Any:
    # Ops must be known before any graph is built.
    importlib.import_module("rlx.ops")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'rlx.opt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
