"""`Sample`: one token id per row of logits, by temperature, top-k and top-p, from a random key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.rng import bits_to_uniform
from rlx.ir.shape import Shape
from rlx.ops.arithmetic import and_, ge, gt, lt, or_, where
from rlx.ops.conversion import cast
from rlx.ops.movement import expand_dims, narrow
from rlx.ops.operands import convert, promote_inexact, require_float
from rlx.ops.randomness import RandomBits, key
from rlx.ops.samples import Sample as OpSample
from rlx.ops.samples import sample as op_sample
from rlx.ops.samples import spec
from rlx.ops.unary import exp

__all__ = ["Sample", "sample", "sampling_key"]

Array = np.ndarray[Any, np.dtype[Any]]

_LOWEST_TEMPERATURE = 1e-6


@op("sample")
class Sample(Op):
    """i32 ids drawn from softmax(logits / temperature) along the last axis, limited to likely entries.

    The temperature is at least 1e-6. `top_k` (0: off) keeps the entries that are not below the k-th largest, ties included.
    `top_p` < 1 then keeps, from the most likely on, the shortest prefix whose probabilities add up to at least top_p (ties
    by lower id, never less than one entry). The id is the first entry, in order of ids, at which the running sum of what is
    kept exceeds r times its total; r = (w >> 8)·2^-24, w being word i of `RandomBits` under key u32[2] for row i. Computed
    in f32 (f64 for f64).
    """

    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0

    def check(self) -> None:
        if self.top_k < 0:
            raise self.fail(f"top_k must be 0 (off) or a count, got {self.top_k}")
        if not 0.0 <= self.top_p <= 1.0:
            raise self.fail(f"top_p must be in [0, 1], got {self.top_p}")
        if not self.temperature >= 0.0:
            raise self.fail(f"temperature must not be negative, got {self.temperature}")

    def infer(self, logits: Shape, key: Shape) -> Shape:
        require_float(self, logits)
        if logits.rank < 1 or logits.dims[-1] == 0:
            raise self.fail(f"needs logits [.., V] with at least one entry, got {logits}")
        if key != Shape((2,), DType.U32):
            raise self.fail(f"needs one key u32[2], got {key}; make one with rlx.random.key(seed)")
        return Shape(logits.dims[:-1], DType.I32)

    def _filters_top_k(self, size: Any) -> bool:
        return self.top_k > 0 and (isinstance(size, Dim) or self.top_k < size)

    def eval(self, logits: Array, key: Array) -> Array:
        wide = np.float64 if logits.dtype == np.float64 else np.float32
        with np.errstate(all="ignore"):
            scores = logits.astype(wide) / wide(max(self.temperature, _LOWEST_TEMPERATURE))
            weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
            if self._filters_top_k(scores.shape[-1]):
                bound = np.sort(scores, axis=-1)[..., -self.top_k, None]
                weights = np.where(scores >= bound, weights, wide(0))
            if self.top_p < 1.0:
                weights = np.where(self._nucleus(weights), weights, wide(0))
            running = np.cumsum(weights, axis=-1)
            words = RandomBits(logits.shape[:-1]).eval(key)
            threshold = bits_to_uniform(words).astype(wide)[..., None] * running[..., -1:]
            chosen = (running > threshold) & (weights > 0)
            return np.asarray(np.argmax(chosen, axis=-1), dtype=np.int32)

    def _nucleus(self, weights: Array) -> Array:
        order = np.argsort(-weights, axis=-1, kind="stable")
        ranked = np.take_along_axis(weights, order, axis=-1)
        before = np.cumsum(ranked, axis=-1) - ranked
        kept = before < weights.dtype.type(self.top_p) * np.sum(weights, axis=-1, keepdims=True)
        kept[..., 0] = True
        result = np.zeros_like(kept)
        np.put_along_axis(result, order, kept, axis=-1)
        return result

    def decompose(self, logits: Any, key: Any) -> Any:
        from rlx.ops.cumulative import cumsum
        from rlx.ops.reductions import argmax, reduce_max

        wide = logits.dtype.accumulator
        size = logits.shape[-1]
        scores = convert(logits, wide) / max(self.temperature, _LOWEST_TEMPERATURE)
        weights = exp(scores - reduce_max(scores, (-1,), keepdims=True))
        if self._filters_top_k(size):
            weights = where(ge(scores, self._bound(scores)), weights, 0.0)
        if self.top_p < 1.0:
            weights = where(self._nucleus_tensor(weights), weights, 0.0)
        running = cumsum(weights, -1)
        words = RandomBits(logits.shape[:-1])(key)
        unit = cast(shift_right_logical(words, 8), wide) * 2.0**-24
        threshold = expand_dims(unit, -1) * narrow(running, -1, size - 1, 1)
        return argmax(and_(gt(running, threshold), gt(weights, 0.0)), -1)
