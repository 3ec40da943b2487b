"""Which ops MLX is told as they are, what becomes of others, and which are refused, with reasons."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.forms.collectives import COLLECTIVE_FORMS
from rlx.backends.forms.factor_steps import FACTOR_STEPS
from rlx.backends.forms.gguf_blocks import QUANT_FORMS
from rlx.backends.forms.running_joins import ORDER_FORMS
from rlx.backends.mlx import (
    rules_control,
    rules_fused,
    rules_linalg,
    rules_movement,
    rules_pointwise,
    rules_reduction,
)
from rlx.backends.mlx.dtypes import objection
from rlx.backends.mlx.walk import RULES
from rlx.backends.op_lowering import Forms, OpLowering, refusals_of
from rlx.compile.lower.factorizations import FACTOR_FORMS
from rlx.compile.lower.lower import LOSS_FORMS
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ops.attn.attention import Attention
from rlx.ops.nn.norms import LayerNorm, RmsNorm
from rlx.ops.pointwise.arithmetic import Binary
from rlx.ops.pointwise.bits import BitUnary
from rlx.ops.pointwise.unary import Activation
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.ops.reduction.cumulative import Cumulative
from rlx.ops.reduction.reductions import Reduce, ReduceOp, Softmax
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.signal.fourier import Fft

# Better forms than decompositions, or the only ones.
FORMS: Forms = {
    **COLLECTIVE_FORMS,
    **FACTOR_FORMS,
    **FACTOR_STEPS,
    **LOSS_FORMS,
    **ORDER_FORMS,
    **QUANT_FORMS,
}

_WIDE = "complex matrices are factored in double precision, and MLX has no c128; use the device cpu or xla"
REFUSED = {
    **refusals_of("MLX"),
    "Fft": "MLX has no transforms of double precision; use f32 or c64, or the device cpu or xla",
    **dict.fromkeys(("Qr", "Svd", "Eigh"), _WIDE),
}


def has_rule(op: Op, types: Sequence[Shape]) -> bool:
    """Whether MLX is told an op as it is."""
    match op:
        case Binary():
            return rules_pointwise.has_binary(op)
        case Activation():
            return rules_pointwise.has_activation(op, types[0].dtype)
        case BitUnary():
            return rules_pointwise.has_bit_unary(op)
        case Attention():
            return rules_fused.has_attention(op, types)
        case LayerNorm() | RmsNorm():
            return rules_fused.has_norm(op, types)
        case Softmax():
            return types[0].dtype is not DType.F64
        case Cumulative():
            return rules_fused.has_running(op, types)
        case DequantMatMul():
            return rules_fused.has_packed_product(op, types)
        case Fft():
            return rules_linalg.has_fft(types)
        case Reduce(kind=kind) | ReduceWindow(kind=kind):
            return kind is not ReduceOp.Mean
    return type(op) in RULES


LOWERING = OpLowering("mlx", "MLX", RULES, has_rule, FORMS, REFUSED, objection)

# The modules of rules register what is in them.
_LOADED = (rules_control, rules_fused, rules_linalg, rules_movement, rules_pointwise, rules_reduction)
