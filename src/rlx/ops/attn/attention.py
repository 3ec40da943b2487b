"""Scaled dot-product attention: grouped queries, masks, bias, softcap, caches with a fill level, positions.

Per head, with s = `score_scale` or 1/√D:

    S = s·q·kᵀ;  S = c·tanh(S/c) with a softcap c;  S += bias, or S = -inf where masked;  out = softmax(S)·v

A row whose keys are all masked gives 0. The gradient is in `rlx.ops.attn.gradients`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import dim_max
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.attn.operands import (
    AttentionBase,
    AttentionForward,
    AttentionLayout,
    Extras,
    MaskKind,
    full_rank,
    guess_layout,
    heads_back,
    heads_first,
)
from rlx.ops.define.operands import common_dtype, convert, dims_of, dtype_of, promote_inexact, promote_operands
from rlx.ops.define.samples import FLOATS, Sample, Spec, spec
from rlx.ops.define.widening import as_f64, rounded, rounded_tensor

__all__ = ["Attention", "attention", "attention_kind_op"]

Array = np.ndarray[Any, np.dtype[Any]]


class WholeAttention(AttentionForward):
    """What attention is, for the ops that give nothing else: with sinks in softmax, and without."""

    is_heavy = True

    def infer(self, q: Shape, k: Shape, v: Shape, *extras: Shape) -> Shape:
        self.check_operands(q, k, v, self.extras(extras))
        return q.with_dims(self.result_dims(q.dims, v.dims))

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array, *extras: Array) -> Array:
        named = self.extras(extras)
        qh, kh, vh = operand_arrays(self, q, k, v, named)
        weights, _ = attention_weights(self, qh, kh, named)
        out = np.matmul(self.fold_queries(np, weights), vh).reshape(*qh.shape[:3], vh.shape[3])
        return rounded(heads_back(np, out, self.layout, self.result_dims(q.shape, v.shape)), q.dtype)

    def decompose(self, q: Any, k: Any, v: Any, *extras: Any) -> Any:
        from rlx.ops.linalg.contraction import matmul
        from rlx.ops.shape import movement

        if self.has_scales:
            return self._without_scales(q, k, v, extras)
        named = self.extras(extras)
        qh, kh, vh = operand_tensors(self, q, k, v, named)
        weights, _ = attention_weight_tensors(self, qh, kh, named)
        out = matmul(self.fold_queries(movement, weights), convert(vh, weights.dtype))
        out = rounded_tensor(movement.reshape(out, (*qh.shape[:3], vh.shape[3])), q.dtype)
        return heads_back(movement, out, self.layout, self.result_dims(q.shape, v.shape))

    def _without_scales(self, q: Any, codes_k: Any, codes_v: Any, extras: tuple[Any, ...]) -> Any:
        """The same attention to keys and values that have been multiplied by their scales."""
        from rlx.ops.shape import movement

        named = self.extras(extras)
        k, v = (
            scaled_codes(movement, convert(codes, scale.dtype), scale, self)
            for codes, scale in ((codes_k, named.k_scale), (codes_v, named.v_scale))
        )
        others = [x for x in named._replace(k_scale=None, v_scale=None) if x is not None]
        return self.replace(has_scales=False)(q, k, v, *others)


@op("attention")
class Attention(WholeAttention):
    """out = softmax(s·q·kᵀ [softcapped] [+ bias, or masked])·v per head, with as many heads and rows as q.

    Operands: q, k, v; the mask or bias when `mask_kind` is custom or bias; `kv_len` i32[B] with `has_kv_len`: only the
    first kv_len[b] keys exist, whatever k and v hold behind them; `positions` i32[B,Sq] or [Sq] with `has_positions`;
    `k_scale` and `v_scale` f32[B,Hkv,Sk] with `has_scales`: k and v are then i8 codes, and mean codes·scale row by row.
    Head h of q reads head h // (H/Hkv) of k and v. The order is scale, softcap, mask or bias, softmax. Heads of q and k
    are `head_dim` wide; those of v may have another width, which is then that of the result. k and v share a dtype,
    which may differ from that of q; the result has that of q.
    """

    def form_for(self, rule: str, active: tuple[bool, ...]) -> Callable[..., Any] | None:
        """Reverse mode has a rule; through scales, the derivative is that of the product that they are part of."""
        return self.decompose if rule == "jvp" or (rule == "vjp" and self.has_scales) else None

    def vjp(self, ct: Any, y: Any, q: Any, k: Any, v: Any, *extras: Any) -> Any:
        """One op for all gradients; it computes the weights again, so that none of size Sq·Sk are kept for it."""
        from rlx.ops.attn.gradients import AttentionBackward, AttentionBwdWrt

        gradients = AttentionBackward(**self.shared_attributes, wrt=AttentionBwdWrt.All)(q, k, v, ct, *extras)
        return *gradients, *(None,) * (3 + len(extras) - len(gradients))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, operands, binding in attention_cases():
            yield Sample(cls(**attributes), operands, FLOATS, binding)
        base: dict[str, Any] = {"num_heads": 4, "head_dim": 4, "num_kv_heads": 2}
        lengths = spec("B", dtype="i32", low=1, high=5)
        stored = (spec("B", 2, "T", 4), spec("B", 2, "T", 3))
        narrow = cls(**base, mask_kind="causal", has_kv_len=True)
        sizes = {"B": 2, "S": 3, "T": 5}
        yield Sample(narrow, (spec("B", 4, "S", 4, dtype="f32"), *stored, lengths), ("bf16", "f16"), sizes)
        codes = [spec(2, 5, 2, width, dtype="i8", low=-3, high=3) for width in (4, 3)]
        scales = (spec(2, 2, 5, low=0.1, high=0.5),) * 2
        scaled = cls(**base, layout="bshd", has_scales=True)
        yield Sample(scaled, (spec(2, 3, 4, 4), *codes, *scales), ("f32", "f64"), {})


def scaled_codes(m: Any, codes: Any, scale: Any, op: AttentionBase) -> Any:
    """Codes as the keys or values that they stand for, in the layout of the op; `scale` is [B, Hkv, Sk]."""
    heads = heads_first(m, codes, op.layout, op.kv_heads)
    return heads_back(m, heads * m.expand_dims(scale, -1), op.layout, codes.shape)


def operand_arrays(op: AttentionBase, q: Array, k: Array, v: Array, extras: Extras) -> tuple[Array, Array, Array]:
    """q, k, v in f64 as [B, H, S, D]; what a cache holds beyond its fill level reads as 0."""
    q, k, v = as_f64(q, k, v)
    if extras.k_scale is not None:
        scales = as_f64(extras.k_scale, extras.v_scale)
        k, v = (scaled_codes(np, x, scale, op) for x, scale in zip((k, v), scales))
    q = heads_first(np, q, op.layout, op.num_heads)
    k, v = (heads_first(np, x, op.layout, op.kv_heads) for x in (k, v))
    if extras.kv_len is not None:
        filled = np.arange(k.shape[2])[:, None] < extras.kv_len.astype(np.int64)[:, None, None, None]
        k, v = np.where(filled, k, 0.0), np.where(filled, v, 0.0)
    return q, k, v


def attention_weights(op: AttentionBase, q: Array, k: Array, extras: Extras) -> tuple[Array, Array | None]:
    """softmax(S) as [B, H, Sq, Sk], and with a softcap its slope 1 - tanh²(S/c), which the gradient needs."""
    scores, slope = attention_scores(op, q, k, extras)
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if extras.sinks is None:
        base, sunk = np.where(highest == -np.inf, 0.0, highest), np.float64(0.0)
    else:
        sinks = extras.sinks.astype(np.float64)[:, None, None]
        base = np.maximum(highest, sinks)
        sunk = np.exp(sinks - base)
    powers = np.exp(scores - base)
    total = powers.sum(axis=-1, keepdims=True) + sunk
    return powers / np.where(total == 0.0, 1.0, total), slope


def attention_scores(op: AttentionBase, q: Array, k: Array, extras: Extras) -> tuple[Array, Array | None]:
    """S as [B, H, Sq, Sk], -inf where a key is not seen, and the slope of the softcap if there is one."""
    scores = np.matmul(op.fold_queries(np, q), k.swapaxes(-1, -2)) * op.scale
    scores = scores.reshape(*q.shape[:3], k.shape[2])
    slope = None
    if op.softcap is not None:
        capped = np.tanh(scores / op.softcap)
        scores, slope = capped * op.softcap, 1.0 - capped**2
    if op.mask_kind is MaskKind.Bias:
        scores = scores + extras.mask.astype(np.float64)
    return np.where(_visible(op, q.shape[2], k.shape[2], extras), scores, -np.inf), slope


def _visible(op: AttentionBase, seq_q: int, seq_k: int, extras: Extras) -> Array:
    """Which keys each query sees, broadcast to [B, H, Sq, Sk]."""
    key = np.arange(seq_k)
    length: Any = seq_k
    if extras.kv_len is not None:
        length = extras.kv_len.astype(np.int64)[:, None, None, None]
    visible = np.asarray(key < length)
    if op.mask_kind is MaskKind.Custom:
        return visible & (full_rank(np, extras.mask) >= 0.5)
    if not op.mask_kind.is_positional:
        return visible
    if extras.positions is None:
        position = np.maximum(length - seq_q, 0) + np.arange(seq_q)[:, None]
    else:
        position = np.atleast_2d(extras.positions.astype(np.int64))[:, None, :, None]
    visible = visible & (key <= position)
    return visible & (key >= position - op.window) if op.mask_kind is MaskKind.SlidingWindow else visible


def operand_tensors(op: AttentionBase, q: Any, k: Any, v: Any, extras: Extras) -> tuple[Any, Any, Any]:
    """`operand_arrays` for tensors, in their common dtype."""
    from rlx.ops.pointwise.arithmetic import where
    from rlx.ops.shape import movement

    q, k, v = promote_operands(q, k, v)
    q = heads_first(movement, q, op.layout, op.num_heads)
    k, v = (heads_first(movement, x, op.layout, op.kv_heads) for x in (k, v))
    if extras.kv_len is not None:
        filled = _counter(k.shape[2], -2) < _per_row(extras.kv_len)
        k, v = where(filled, k, 0.0), where(filled, v, 0.0)
    return q, k, v


def attention_weight_tensors(op: AttentionBase, q: Any, k: Any, extras: Extras) -> tuple[Any, Any]:
    """`attention_weights` for tensors, in the accumulator type."""
    from rlx.ops.linalg.contraction import matmul
    from rlx.ops.pointwise.arithmetic import eq, maximum, where
    from rlx.ops.pointwise.unary import exp, stop_gradient, tanh
    from rlx.ops.reduction.reductions import reduce_max, reduce_sum
    from rlx.ops.shape import movement

    wide = q.dtype.accumulator
    scores = matmul(op.fold_queries(movement, q), movement.swapaxes(k, -1, -2), out_dtype=wide) * op.scale
    scores = movement.reshape(scores, (*q.shape[:3], k.shape[2]))
    slope = None
    if op.softcap is not None:
        softcap = op.softcap_in(wide)
        capped = tanh(scores / softcap)
        scores, slope = capped * softcap, 1.0 - capped * capped
    if op.mask_kind is MaskKind.Bias:
        scores = scores + convert(extras.mask, wide)
    visible = _visible_tensor(op, q.shape[2], k.shape[2], extras)
    if visible is not None:
        scores = where(visible, scores, -math.inf)
    # The weights do not depend on what is subtracted here, so derivatives need not pass through it.
    highest = stop_gradient(reduce_max(scores, (-1,), keepdims=True))
    if extras.sinks is not None:
        sinks = movement.reshape(convert(extras.sinks, wide), (op.num_heads, 1, 1))
        base = maximum(highest, stop_gradient(sinks))
        powers = exp(scores - base)
        return powers / (reduce_sum(powers, (-1,), keepdims=True) + exp(sinks - base)), slope
    powers = exp(scores - where(eq(highest, -math.inf), 0.0, highest))
    total = reduce_sum(powers, (-1,), keepdims=True)
    return powers / where(eq(total, 0.0), 1.0, total), slope


def _visible_tensor(op: AttentionBase, seq_q: Size, seq_k: Size, extras: Extras) -> Any:
    """`_visible` for tensors; None when every query sees every key."""
    from rlx.ops.pointwise.arithmetic import and_
    from rlx.ops.shape import movement

    key = _counter(seq_k, -1)
    conditions = []
    if extras.kv_len is not None:
        conditions.append(key < _per_row(extras.kv_len))
    if op.mask_kind is MaskKind.Custom:
        mask = full_rank(movement, extras.mask)
        conditions.append(mask if mask.dtype is DType.BOOL else mask >= 0.5)
    if op.mask_kind.is_positional:
        position = _position_tensor(seq_q, seq_k, extras)
        conditions.append(key <= position)
        if op.mask_kind is MaskKind.SlidingWindow:
            conditions.append(key >= position - op.window)
    visible = None
    for condition in conditions:
        visible = condition if visible is None else and_(visible, condition)
    return visible


def _position_tensor(seq_q: Size, seq_k: Size, extras: Extras) -> Any:
    """Where queries stand, broadcast to [B, 1, Sq, 1]. Written without the value of a size, which may be symbolic."""
    from rlx.ops.pointwise.arithmetic import maximum
    from rlx.ops.shape.movement import expand_dims, narrow, reverse

    if extras.positions is not None:
        rows = extras.positions if extras.positions.ndim == 2 else expand_dims(extras.positions, 0)
        return expand_dims(convert(rows, DType.I32), (1, 3))
    if extras.kv_len is None:
        first = dim_max(seq_k - seq_q, 0)
        return narrow(_counter(first + seq_q, -2), -2, first, seq_q)
    # max(0, n - Sq) + i = max(i, n - 1 - (Sq - 1 - i)), and Sq - 1 - i counts backwards.
    index = _counter(seq_q, -2)
    return maximum(index, _per_row(extras.kv_len) - 1 - reverse(index, -2))


def _counter(size: Size, axis: int) -> Any:
    """0, 1, .. along one axis of rank 4."""
    from rlx.ops.shape.creation import iota

    dims: list[Size] = [1, 1, 1, 1]
    dims[axis] = size
    return iota(dims, DType.I32, axis)


def _per_row(kv_len: Any) -> Any:
    from rlx.ops.shape.movement import expand_dims

    return expand_dims(convert(kv_len, DType.I32), (1, 2, 3))


def attention_cases() -> Iterator[tuple[dict[str, Any], tuple[Spec, ...], dict[str, int]]]:
    """Attributes, operands and sizes of symbols for the samples of attention and its gradient."""

    def qkv(seq_q: int | str, seq_k: int | str, kv_heads: int = 2, batch: int | str = 2) -> tuple[Spec, Spec, Spec]:
        return spec(batch, 2, seq_q, 4), spec(batch, kv_heads, seq_k, 4), spec(batch, kv_heads, seq_k, 4)

    base = {"num_heads": 2, "head_dim": 4}
    yield base, qkv(3, 3), {}
    yield base | {"layout": "bshd"}, (spec(2, 3, 2, 4),) * 3, {}
    yield base | {"layout": "bsm"}, (spec(2, 3, 8),) * 3, {}
    yield base | {"layout": "bsm"}, (spec(3, 8), spec(4, 8), spec(4, 8)), {}
    yield base | {"mask_kind": "causal", "num_kv_heads": 1}, qkv(2, 4, 1), {}
    yield base | {"mask_kind": "causal"}, qkv(4, 2), {}
    yield base | {"mask_kind": "sliding_window", "window": 1}, qkv(3, 5), {}
    yield base | {"score_scale": 0.3, "softcap": 1.5}, qkv(3, 4), {}
    custom = base | {"mask_kind": "custom"}
    yield custom, (*qkv(2, 3), spec(2, 3, values=[[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])), {}
    yield custom, (*qkv(2, 3), spec(2, 2, 3, dtype="bool")), {}
    yield custom | {"num_kv_heads": 1}, (*qkv(2, 3, 1), spec(2, 2, 2, 3, dtype="i32", low=0, high=1)), {}
    bias = base | {"mask_kind": "bias", "softcap": 2.0}
    yield bias, (*qkv(2, 3), spec(2, 2, 2, 3)), {}
    yield bias, (*qkv(2, 3), spec(1, 2, 1, 3)), {}
    lengths = spec(2, dtype="i32", values=[3, 1])
    yield base | {"has_kv_len": True}, (*qkv(2, 5), lengths), {}
    yield base | {"has_kv_len": True, "mask_kind": "causal"}, (*qkv(2, 5), lengths), {}
    positions = spec(2, 2, dtype="i32", values=[[1, 2], [0, 0]])
    cached = base | {"mask_kind": "causal", "has_kv_len": True, "has_positions": True}
    yield cached, (*qkv(2, 5), lengths, positions), {}
    window = base | {"mask_kind": "sliding_window", "window": 1, "has_positions": True}
    yield window, (*qkv(2, 4), spec(2, dtype="i32", values=[2, 0])), {}
    yield base, qkv(0, 3), {}
    yield base, (*qkv(3, 3)[:2], spec(2, 2, 3, 5)), {}
    grouped = {"layout": "bsm", "num_kv_heads": 1, "mask_kind": "causal"}
    yield base | grouped, (spec(2, 3, 8), spec(2, 3, 4), spec(2, 3, 3)), {}
    symbolic = qkv("S", "T", 2, "B")
    yield base | {"mask_kind": "causal"}, symbolic, {"B": 2, "S": 2, "T": 4}
    filled = spec("B", dtype="i32", low=1, high=3)
    yield base | {"mask_kind": "causal", "has_kv_len": True}, (*symbolic, filled), {"B": 2, "S": 2, "T": 4}
    yield custom | {"layout": "bsm"}, (*(spec("B", "S", 8),) * 3, spec("B", "S")), {"B": 2, "S": 3}


def build_attention(
    cls: type[Op],
    operands: tuple[Any, ...],
    mask: Any,
    *,
    num_heads: int | None,
    head_dim: int | None,
    mask_kind: MaskKind | str | tuple[MaskKind, int] | None,
    window: int,
    num_kv_heads: int | None,
    layout: AttentionLayout | str | None,
    kv_len: Any,
    positions: Any,
    scales: tuple[Any, ...] = (),
    sinks: Any = None,
    **attributes: Any,
) -> Any:
    """Apply `cls` (attention, its gradient or a block) to q, k, v, ..; sizes not given are read off the shapes."""
    q_dims, k_dims = dims_of(operands[0]), dims_of(operands[1])
    chosen = AttentionLayout(layout) if layout is not None else guess_layout(q_dims, num_heads, cls.name)
    head_axis = {AttentionLayout.Bshd: 2, AttentionLayout.Bhsd: 1}.get(chosen)
    if len(q_dims) != len(k_dims) or len(q_dims) not in ((2, 3) if head_axis is None else (4,)):
        raise ShapeError(f"{cls.name}: layout {chosen} does not fit q {list(q_dims)} and k {list(k_dims)}")
    if num_heads is None and head_axis is not None:
        num_heads = _fixed(cls, "num_heads", q_dims[head_axis])
    if num_heads is None:
        raise OpError(f"{cls.name}: joined heads (layout bsm) need num_heads")
    if head_dim is None:
        head_dim = _fixed(cls, "head_dim", q_dims[-1] if head_axis is not None else q_dims[-1] // num_heads)
    if num_kv_heads is None:
        found = k_dims[head_axis] if head_axis is not None else k_dims[-1] // head_dim
        num_kv_heads = _fixed(cls, "num_kv_heads", found)
    if mask_kind is None:
        mask_kind = MaskKind.NoMask if mask is None else MaskKind.Custom
    kind, window = MaskKind.read(mask_kind, window)
    if kind is MaskKind.Bias and mask is not None:
        (mask,) = promote_inexact(mask)
    extras = [x for x in (mask, kv_len, positions, *scales, sinks) if x is not None]
    op = cls(
        num_heads,
        head_dim,
        kind,
        window,
        None if num_kv_heads == num_heads else num_kv_heads,
        chosen,
        has_kv_len=kv_len is not None,
        has_positions=positions is not None,
        **attributes,
    )
    if scales:
        return op(*promote_inexact(operands[0]), *operands[1:], *extras)
    return op(*_typed(*operands), *extras)


def _typed(q: Any, k: Any, v: Any, *dy: Any) -> tuple[Any, ...]:
    """Operands in their common dtype; but k and v keep theirs if that is a float type, to be read as stored."""
    if not all(d.is_float and not d.is_storage for d in map(dtype_of, (k, v))):
        return promote_inexact(q, k, v, *dy)
    wide, stored = common_dtype(q, k, v, *dy), common_dtype(k, v)
    return convert(q, wide), convert(k, stored), convert(v, stored), *(convert(x, wide) for x in dy)


def _fixed(cls: type[Op], what: str, size: Size) -> int:
    if not isinstance(size, int):
        raise OpError(f"{cls.name}: {what} must be fixed, but the operands say {size}; pass {what}")
    return size


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    num_heads: int | None = None,
    head_dim: int | None = None,
    mask_kind: MaskKind | str | tuple[MaskKind, int] | None = None,
    window: int = 0,
    num_kv_heads: int | None = None,
    layout: AttentionLayout | str | None = None,
    score_scale: float | None = None,
    softcap: float | None = None,
    kv_len: Any = None,
    positions: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    sinks: Any = None,
) -> Any:
    """Scaled dot-product attention; see `Attention`.

    A mask means the kind custom unless `mask_kind` says bias. The layout is taken from the shapes where only one fits.
    k and v of a narrower float type than q are read as they are; with scales [B, Hkv, Sk] they are i8 codes. Of `sinks`
    [H] each head has one more key, with this score and the value 0: how much it looks at nothing; see
    `AttentionWithSinks`.

    >>> x = np.ones((1, 2, 3, 4), np.float32)
    >>> attention(x, x, x, layout="bhsd", mask_kind=MaskKind.SlidingWindow(1)).shape
    (1, 2, 3, 4)
    """
    if (k_scale is None) != (v_scale is None):
        raise OpError("attention: codes need both k_scale and v_scale, got one of them")
    has_scales = k_scale is not None
    kind: type[Op] = Attention
    if sinks is not None:
        from rlx.ops.attn.sinks import AttentionWithSinks

        kind, (sinks,) = AttentionWithSinks, promote_inexact(sinks)
    return build_attention(
        kind,
        (q, k, v),
        mask,
        num_heads=num_heads,
        head_dim=head_dim,
        mask_kind=mask_kind,
        window=window,
        num_kv_heads=num_kv_heads,
        layout=layout,
        kv_len=kv_len,
        positions=positions,
        scales=(k_scale, v_scale) if has_scales else (),
        sinks=sinks,
        score_scale=score_scale,
        softcap=softcap,
        has_scales=has_scales,
    )


def attention_kind_op(
    num_heads: int,
    head_dim: int,
    mask_kind: MaskKind | str | tuple[MaskKind, int] = MaskKind.NoMask,
    score_scale: float | None = None,
    softcap: float | None = None,
    layout: AttentionLayout | str = AttentionLayout.Bhsd,
) -> Attention:
    """The op value, to be applied to q, k, v (and the mask its kind asks for)."""
    kind, window = mask_kind if isinstance(mask_kind, tuple) else (mask_kind, 0)
    return Attention(
        num_heads, head_dim, MaskKind(kind), window, layout=layout, score_scale=score_scale, softcap=softcap
    )
