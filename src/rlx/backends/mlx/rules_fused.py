"""Rules for ops that MLX has whole: attention, norms, softmax, running joins, products with weights in its formats.

Its kernels for these are made for f16, bf16 and f32; ops of f64 are taken apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlx.backends.mlx.device import mx
from rlx.backends.mlx.dtypes import mlx_type
from rlx.backends.mlx.quantized_weights import packed, packing_of
from rlx.backends.mlx.rules_pointwise import cast, in_accumulator
from rlx.backends.mlx.walk import Call, rule
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape, normalize_axis
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import MaskKind, heads_back, heads_first
from rlx.ops.nn.norms import LayerNorm, RmsNorm
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.ops.reduction.cumulative import Cumulative, CumulativeOp
from rlx.ops.reduction.reductions import Softmax

_SHORT = (DType.F16, DType.BF16, DType.F32)


def has_attention(op: Attention, types: Sequence[Shape]) -> bool:
    """Plain and causal attention of one dtype. MLX aligns the last query with the last key, as we do; with more
    queries than keys the first see nothing, which is 0 for us and NaN for it."""
    if op.softcap is not None or op.has_scales or op.has_kv_len or op.has_positions:
        return False
    if len({t.dtype for t in types}) > 1 or types[0].dtype not in _SHORT:
        return False
    if not all(t.is_static and math.prod(t.static_dims) for t in types):
        return False
    if op.mask_kind is MaskKind.NoMask:
        return True
    queries, keys = (_rows(op, t) for t in types[:2])
    return op.mask_kind is MaskKind.Causal and queries <= keys


def _rows(op: Attention, x: Shape) -> int:
    return x.static_dims[{"bhsd": 2, "bshd": 1}.get(op.layout.value, x.rank - 2)]


@rule(Attention)
def _attention(call: Call, q: Any, k: Any, v: Any) -> Any:
    op = call.op
    heads = [heads_first(mx, x, op.layout, n) for x, n in zip((q, k, v), (op.num_heads, op.kv_heads, op.kv_heads))]
    scale = op.head_dim**-0.5 if op.score_scale is None else op.score_scale
    mask = "causal" if op.mask_kind is MaskKind.Causal else None
    made = mx.fast.scaled_dot_product_attention(*heads, scale=float(scale), mask=mask)
    return heads_back(mx, made, op.layout, call.dims)


def has_norm(op: LayerNorm | RmsNorm, types: Sequence[Shape]) -> bool:
    x = types[0]
    is_last = normalize_axis(op.axis, x.rank, op.mnemonic) == x.rank - 1
    return is_last and all(t.dtype is x.dtype for t in types) and x.dtype in _SHORT and x.dims[-1] != 0


@rule(RmsNorm)
def _rms_norm(call: Call, x: Any, gamma: Any, beta: Any) -> Any:
    def norm(x: Any, gamma: Any, beta: Any) -> Any:
        return mx.fast.rms_norm(x, gamma, call.op.eps) + beta

    return in_accumulator(call.dtype, [x, gamma, beta], norm).reshape(call.dims)


@rule(LayerNorm)
def _layer_norm(call: Call, x: Any, gamma: Any, beta: Any) -> Any:
    return in_accumulator(call.dtype, [x, gamma, beta], lambda *given: mx.fast.layer_norm(*given, call.op.eps))


@rule(Softmax)
def _softmax(call: Call, x: Any) -> Any:
    return mx.softmax(x, axis=call.op.axis, precise=True) if x.size else x


_RUNNING = {
    CumulativeOp.Sum: "cumsum",
    CumulativeOp.Prod: "cumprod",
    CumulativeOp.Max: "cummax",
    CumulativeOp.Min: "cummin",
}


def has_running(op: Cumulative, types: Sequence[Shape]) -> bool:
    return op.kind in _RUNNING and not types[0].dtype.is_complex


@rule(Cumulative)
def _cumulative(call: Call, x: Any) -> Any:
    op, dtype = call.op, call.dtype
    if not x.size:
        return x
    join = getattr(mx, _RUNNING[op.kind])
    joined = in_accumulator(dtype, [x], lambda x: join(x, axis=op.axis, reverse=op.reverse, inclusive=not op.exclusive))
    return joined.astype(mlx_type(dtype))


def has_packed_product(op: DequantMatMul, types: Sequence[Shape]) -> bool:
    return types[0].dtype in _SHORT and packing_of(op, types) is not None


@rule(DequantMatMul)
def _dequant_matmul(call: Call, x: Any, weight: Any, *sides: Any) -> Any:
    """Weights of params come packed; others are packed here."""
    k, n = x.shape[-1], call.dims[-1]
    form = packing_of(call.op, call.operands)
    assert form is not None
    held = weight if isinstance(weight, tuple) else packed(form, weight, sides, k, n)
    rows = cast(x, call.dtypes[0], DType.F32).reshape(-1, k)
    if not rows.size:
        return call.zeros()
    made = mx.quantized_matmul(rows, *held, transpose=True, group_size=form.group, bits=form.bits)
    return cast(made, DType.F32, call.dtype).reshape(call.dims)
