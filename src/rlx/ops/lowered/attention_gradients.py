"""Attention for training, as compilers write it where kernels of both directions exist that keep no scores.

The forward op has a second result, the logarithm of what the weights of each query are divided by; with it and the sum
of P⊙dP of each query, which is that of dy⊙y, every block of scores can be computed again by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, op
from rlx.ir.shape import Shape
from rlx.ops.attn.attention import Attention, attention_scores, operand_arrays
from rlx.ops.attn.operands import AttentionBase, heads_back, heads_first
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import as_f64, rounded
from rlx.ops.lowered.attention_parts import score_unit

__all__ = ["AttentionGradients", "AttentionWithLogs"]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use attention")


@op("attention_with_logs")
class AttentionWithLogs(AttentionBase):
    """The attention of q, k, v, and of each query log Σ exp(S) in units of `score_unit`, [B, H, Sq] in f32 (f64 for
    f64 operands); inf where a query sees no key, so that its weights are 0."""

    primitive = True
    lowered = True

    def infer(self, q: Shape, k: Shape, v: Shape, *extras: Shape) -> tuple[Shape, Shape]:
        self.check_operands(q, k, v, self.extras(extras))
        batch, seq = self._batch_and_length("q", q, self.num_heads, self.head_dim)
        logs = Shape((batch, self.num_heads, seq), q.dtype.accumulator)
        return q.with_dims(self.result_dims(q.dims, v.dims)), logs

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array, *extras: Array) -> tuple[Array, Array]:
        named = self.extras(extras)
        qh, kh, _ = operand_arrays(self, q, k, v, named)
        scores, _ = attention_scores(self, qh, kh, named)
        highest = scores.max(axis=-1, initial=-np.inf)
        base = np.where(highest == -np.inf, 0.0, highest)
        logs = np.where(highest == -np.inf, np.inf, base + np.log(np.exp(scores - base[..., None]).sum(-1)))
        kind = DType.of(q.dtype).accumulator
        return Attention(**self.attributes).eval(q, k, v, *extras), (logs * score_unit(kind)).astype(kind.numpy)

    jvp = vjp = _INTERNAL

    def refusal(self, rule: str) -> NoRule:
        return _INTERNAL

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        base = {"num_heads": 4, "head_dim": 5, "num_kv_heads": 2}
        q, k, v = spec(2, 4, 3, 5), spec(2, 2, 6, 5), spec(2, 2, 6, 4)
        yield sample(cls(**base), q, k, v)
        yield sample(cls(**base, mask_kind="causal", softcap=2.0), q, k, v)
        lengths = spec(2, dtype="i32", values=[6, 0])
        yield sample(cls(**base, mask_kind="sliding_window", window=1, has_kv_len=True), q, k, v, lengths)


@op("attention_gradients")
class AttentionGradients(AttentionBase):
    """dq, dk, dv of an attention; operands q, k, v, dy, y and logs, and then those that may be missing.

    `y` and `logs` are the results of `AttentionWithLogs`. dq is in the type of sums, since parts of it are added from
    many sides; dk and dv are in that of k and v.
    """

    primitive = True
    lowered = True

    def infer(
        self, q: Shape, k: Shape, v: Shape, dy: Shape, y: Shape, logs: Shape, *extras: Shape
    ) -> tuple[Shape, Shape, Shape]:
        self.check_operands(q, k, v, self.extras(extras))
        batch, seq = self._batch_and_length("q", q, self.num_heads, self.head_dim)
        wanted, wide = self.result_dims(q.dims, v.dims), q.dtype.accumulator
        for name, x in (("dy", dy), ("y", y)):
            if not self._agree(x.dims, wanted) or x.dtype is not q.dtype:
                raise self.fail(f"{name} must have the type of the result, {q.with_dims(wanted)}, got {x}")
        self._check_form("logs", logs, {3: (batch, self.num_heads, seq)})
        require_dtype(self, logs.dtype is wide, f"{wide} logs", logs)
        return Shape(q.dims, wide), k, v

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array, dy: Array, y: Array, logs: Array, *extras: Array) -> Any:
        named = self.extras(extras)
        qh, kh, vh = operand_arrays(self, q, k, v, named)
        scores, slope = attention_scores(self, qh, kh, named)
        wide_dy, wide_y, logs = as_f64(dy, y, logs)
        wide = DType.of(q.dtype).accumulator
        weights = np.exp(scores - logs[..., None] / score_unit(wide))
        rows_p = self.fold_queries(np, weights)
        by_head, y_by_head = (heads_first(np, x, self.layout, self.num_heads) for x in (wide_dy, wide_y))
        rows_dy, means = self.fold_queries(np, by_head), (by_head * y_by_head).sum(-1)
        d_p = np.matmul(rows_dy, vh.swapaxes(-1, -2)).reshape(weights.shape)
        changes = weights * (d_p - means[..., None])
        rows_s = self.fold_queries(np, changes if slope is None else changes * slope)
        d_q = (np.matmul(rows_s, kh) * self.scale).reshape(qh.shape)
        d_k = np.matmul(rows_s.swapaxes(-1, -2), self.fold_queries(np, qh)) * self.scale
        d_v = np.matmul(rows_p.swapaxes(-1, -2), rows_dy)
        return (
            heads_back(np, d_q, self.layout, q.shape).astype(wide.numpy),
            rounded(heads_back(np, d_k, self.layout, k.shape), k.dtype),
            rounded(heads_back(np, d_v, self.layout, v.shape), v.dtype),
        )

    jvp = vjp = _INTERNAL

    def refusal(self, rule: str) -> NoRule:
        return _INTERNAL

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        base = {"num_heads": 4, "head_dim": 5, "num_kv_heads": 2}
        q, k, v, dy = spec(2, 4, 3, 5), spec(2, 2, 6, 5), spec(2, 2, 6, 4), spec(2, 4, 3, 4)
        row = spec(2, 4, 3, low=3.0, high=6.0)
        for options in ({}, {"mask_kind": "causal", "softcap": 2.0}, {"mask_kind": "sliding_window", "window": 1}):
            yield sample(cls(**base, **options), q, k, v, dy, dy, row, dtypes=("f32", "f64"))
