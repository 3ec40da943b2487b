"""Gradients of attention.

With P = softmax(S), s the score scale, and dy the gradient of the result, per head:

    dv = Pᵀ·dy;  dP = dy·vᵀ;  dS = P⊙(dP - rowsum(P⊙dP));  dbias = dS
    dS ⊙= 1 - tanh²(S/c) with a softcap c;  dq = s·dS·k;  dk = s·dSᵀ·q

Masked scores have P = 0 and so dS = 0. Heads of k and v collect from all queries that share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import attribute_type, op
from rlx.ir.shape import Dims, Shape
from rlx.ir.words import Words
from rlx.ops.attn.attention import (
    Attention,
    attention_cases,
    attention_weight_tensors,
    attention_weights,
    build_attention,
    operand_arrays,
    operand_tensors,
)
from rlx.ops.attn.operands import AttentionBase, AttentionLayout, MaskKind, heads_back, heads_first
from rlx.ops.define.operands import convert
from rlx.ops.define.samples import FLOATS, Sample, spec
from rlx.ops.define.widening import as_f64, rounded, rounded_tensor

__all__ = ["AttentionBackward", "AttentionBwdWrt", "attention_backward", "attention_backward_all"]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class AttentionBwdWrt(Words):
    """Which gradient: of q, k, v or the bias, or `All` of them as several results (the bias last, if there is one)."""

    Query = "query"
    Key = "key"
    Value = "value"
    Bias = "bias"
    All = "all"


@op("attention_backward")
class AttentionBackward(AttentionBase):
    """The gradient of `Attention` with respect to `wrt`; operands q, k, v, dy and the optional ones of the forward op.

    The result has the type of q, k, v or the bias; with `wrt=All` there is one result for each.
    """

    wrt: AttentionBwdWrt

    def check(self) -> None:
        super().check()
        if self.wrt is AttentionBwdWrt.Bias and self.mask_kind is not MaskKind.Bias:
            raise self.fail(f"there is no bias to differentiate with the mask kind {self.mask_kind}")

    @property
    def _wanted(self) -> tuple[AttentionBwdWrt, ...]:
        if self.wrt is not AttentionBwdWrt.All:
            return (self.wrt,)
        wanted = (AttentionBwdWrt.Query, AttentionBwdWrt.Key, AttentionBwdWrt.Value)
        return (*wanted, AttentionBwdWrt.Bias) if self.mask_kind is MaskKind.Bias else wanted

    @property
    def shares_mask(self) -> bool:
        return AttentionBwdWrt.Bias not in self._wanted

    def infer(self, q: Shape, k: Shape, v: Shape, dy: Shape, *extras: Shape) -> Shape | tuple[Shape, ...]:
        named = self.extras(extras)
        self.check_operands(q, k, v, named)
        result = q.with_dims(self.result_dims(q.dims, v.dims))
        same = dy.rank == q.rank and all(require_equal(a, b, self.name) for a, b in zip(dy.dims, result.dims))
        if not same or dy.dtype is not q.dtype:
            raise self.fail(f"dy must have the type of the result, {result}, got {dy}")
        return self._results({"query": q, "key": k, "value": v, "bias": named.mask}.__getitem__)

    def _results(self, value: Callable[[AttentionBwdWrt], Any]) -> Any:
        """The wanted gradients: a bare one, or a tuple for `All`."""
        results = tuple(value(wrt) for wrt in self._wanted)
        return results if self.wrt is AttentionBwdWrt.All else results[0]

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array, dy: Array, *extras: Array) -> Any:
        named = self.extras(extras)
        qh, kh, vh = operand_arrays(self, q, k, v, named)
        (wide_dy,) = as_f64(dy)
        # From here on, queries that share a key head are rows of one matrix: [B, Hkv, (H/Hkv)·Sq, ...].
        rows_dy = self.fold_queries(np, heads_first(np, wide_dy, self.layout, self.num_heads))
        weights, slope = attention_weights(self, qh, kh, named)
        rows_p = self.fold_queries(np, weights)
        d_p = np.matmul(rows_dy, vh.swapaxes(-1, -2))
        d_scores = rows_p * (d_p - (rows_p * d_p).sum(axis=-1, keepdims=True))
        d_raw = d_scores if slope is None else d_scores * self.fold_queries(np, slope)

        def gradient(wrt: AttentionBwdWrt) -> Array:
            if wrt is AttentionBwdWrt.Query:
                d_q = (np.matmul(d_raw, kh) * self.scale).reshape(qh.shape)
                return rounded(heads_back(np, d_q, self.layout, q.shape), q.dtype)
            if wrt is AttentionBwdWrt.Bias:
                d_bias = d_scores.reshape(weights.shape)
                return rounded(d_bias.sum(axis=_shared_axes(named.mask.shape), keepdims=True), named.mask.dtype)
            if wrt is AttentionBwdWrt.Key:
                d_k = np.matmul(d_raw.swapaxes(-1, -2), self.fold_queries(np, qh)) * self.scale
                return rounded(heads_back(np, d_k, self.layout, k.shape), k.dtype)
            d_v = np.matmul(rows_p.swapaxes(-1, -2), rows_dy)
            return rounded(heads_back(np, d_v, self.layout, v.shape), v.dtype)

        return self._results(gradient)

    def decompose(self, q: Any, k: Any, v: Any, dy: Any, *extras: Any) -> Any:
        from rlx.ops.linalg.contraction import matmul
        from rlx.ops.reduction.reductions import reduce_sum
        from rlx.ops.shape import movement

        named = self.extras(extras)
        qh, kh, vh = operand_tensors(self, q, k, v, named)
        wide = qh.dtype.accumulator
        same_dy = convert(dy, qh.dtype)
        rows_dy = self.fold_queries(movement, heads_first(movement, same_dy, self.layout, self.num_heads))
        weights, slope = attention_weight_tensors(self, qh, kh, named)
        rows_p = self.fold_queries(movement, weights)
        d_p = matmul(rows_dy, movement.swapaxes(vh, -1, -2), out_dtype=wide)
        d_scores = rows_p * (d_p - reduce_sum(rows_p * d_p, (-1,), keepdims=True))
        d_raw = d_scores if slope is None else d_scores * self.fold_queries(movement, slope)

        def gradient(wrt: AttentionBwdWrt) -> Any:
            if wrt is AttentionBwdWrt.Query:
                d_q = movement.reshape(matmul(d_raw, convert(kh, wide)) * self.scale, qh.shape)
                return heads_back(movement, rounded_tensor(d_q, q.dtype), self.layout, q.shape)
            if wrt is AttentionBwdWrt.Bias:
                d_bias = movement.reshape(d_scores, weights.shape)
                shared = _shared_axes(named.mask.shape)
                return rounded_tensor(reduce_sum(d_bias, shared, keepdims=True), named.mask.dtype)
            if wrt is AttentionBwdWrt.Key:
                rows_q = convert(self.fold_queries(movement, qh), wide)
                d_k = matmul(movement.swapaxes(d_raw, -1, -2), rows_q) * self.scale
                return heads_back(movement, rounded_tensor(d_k, k.dtype), self.layout, k.shape)
            d_v = matmul(movement.swapaxes(rows_p, -1, -2), convert(rows_dy, wide))
            return heads_back(movement, rounded_tensor(d_v, v.dtype), self.layout, v.shape)

        return self._results(gradient)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, (attributes, operands, binding) in enumerate(attention_cases()):
            result = Attention(**attributes).result_dims(Shape(operands[0].dims).dims, Shape(operands[2].dims).dims)
            with_dy = (*operands[:3], spec(*result), *operands[3:])
            is_bias = attributes.get("mask_kind") == "bias"
            # Single gradients differ from `All` only in which results are kept.
            for wrt in ("all", *(("query", "key", "value") if i == 0 else ()), *(("bias",) if is_bias else ())):
                yield Sample(cls(**attributes, wrt=wrt), with_dy, FLOATS, binding)


def _shared_axes(dims: Dims) -> tuple[int, ...]:
    """Axes along which one value of the bias serves all."""
    return tuple(i for i, d in enumerate(dims) if d == 1)


def attention_backward(
    wrt: AttentionBwdWrt | str,
    q: Any,
    k: Any,
    v: Any,
    dy: Any,
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
) -> Any:
    """The gradient of `attention` with respect to one operand, or to all; options as there."""
    return build_attention(
        AttentionBackward,
        (q, k, v, dy),
        mask,
        num_heads=num_heads,
        head_dim=head_dim,
        mask_kind=mask_kind,
        window=window,
        num_kv_heads=num_kv_heads,
        layout=layout,
        kv_len=kv_len,
        positions=positions,
        score_scale=score_scale,
        softcap=softcap,
        wrt=AttentionBwdWrt(wrt),
    )


def attention_backward_all(q: Any, k: Any, v: Any, dy: Any, mask: Any = None, **options: Any) -> tuple[Any, ...]:
    """(dq, dk, dv), and the gradient of the bias when there is one, from a single op; options as in `attention`."""
    results: tuple[Any, ...] = attention_backward(AttentionBwdWrt.All, q, k, v, dy, mask, **options)
    return results
