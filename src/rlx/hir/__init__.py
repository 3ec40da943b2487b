"""Blocks for model builders: enter as methods of `HirModule`, leave as MIR ops when the module is lowered."""

from __future__ import annotations

from rlx.hir import builders
from rlx.hir.block import Block
from rlx.hir.blocks import (
    DepthwiseConv1dCausal,
    HirAttention,
    HirDequantMatMul,
    HirGated,
    HirGatedDeltaNet,
    HirLayerNorm,
    HirRmsNorm,
    HirRoPE,
    Linear,
    LinearFused,
    ResidualRmsNorm,
    SharedLinearPair,
    SwiGLU,
)
from rlx.hir.composite import LlamaDecoderBlock, Qwen35MtpHead, Qwen35MtpInputs
from rlx.hir.extension import (
    HirExtensionFn,
    apply_hir_extensions,
    apply_hir_extensions_named,
    register_hir_extension,
    registered_hir_extensions,
)
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.module import FusionPolicy, HirGraphExt, HirModule, HirMut, HirNode, HirNodeId, hir_to_graph
from rlx.ir.op import Op

__all__ = [
    "Block",
    "DepthwiseConv1dCausal",
    "FusionPolicy",
    "HirAttention",
    "HirDequantMatMul",
    "HirExtensionFn",
    "HirGated",
    "HirGatedDeltaNet",
    "HirGraphExt",
    "HirLayerNorm",
    "HirModule",
    "HirMut",
    "HirNode",
    "HirNodeId",
    "HirOp",
    "HirRmsNorm",
    "HirRoPE",
    "Linear",
    "LinearFused",
    "LlamaDecoderBlock",
    "Qwen35MtpHead",
    "Qwen35MtpInputs",
    "ResidualRmsNorm",
    "SharedLinearPair",
    "SwiGLU",
    "apply_hir_extensions",
    "apply_hir_extensions_named",
    "hir_to_graph",
    "register_hir_extension",
    "registered_hir_extensions",
]


class HirOp:
    """What a node of an HIR module may hold, by the names of the seed documents."""

    Input, Param, Constant = Input, Param, Constant
    Linear, LinearFused, SharedLinearPair = Linear, LinearFused, SharedLinearPair
    SwiGLU, ResidualRmsNorm = SwiGLU, ResidualRmsNorm
    Attention, RoPE, RmsNorm = HirAttention, HirRoPE, HirRmsNorm
    DepthwiseConv1dCausal = DepthwiseConv1dCausal
    DequantMatMul, GatedDeltaNet = HirDequantMatMul, HirGatedDeltaNet
    LlamaDecoderBlock, Qwen35MtpHead = LlamaDecoderBlock, Qwen35MtpHead

    @staticmethod
    def Mir(op: Op) -> Op:
        """Any MIR op; HIR holds it as it is."""
        return op


builders.install()
