"""`Sample`: one token id per row of logits, by temperature, top-k and top-p, from a random key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import Dim, dim_max, require_at_most
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.rng import bits_to_uniform
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import convert, promote_inexact, require_float
from rlx.ops.define.samples import Sample as OpSample
from rlx.ops.define.samples import sample as op_sample
from rlx.ops.define.samples import spec
from rlx.ops.pointwise.arithmetic import and_, eq, ge, gt, lt, or_, shift_right_logical, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import exp
from rlx.ops.random.randomness import RandomBits, key
from rlx.ops.reduction.cumulative import cumsum
from rlx.ops.reduction.reductions import argmax, reduce_max, reduce_sum
from rlx.ops.reduction.sort import argsort, sort
from rlx.ops.shape.movement import expand_dims, narrow
from rlx.ops.shape.selection import take_along_axis

__all__ = ["Sample", "sample", "sampling_key"]

Array = np.ndarray[Any, np.dtype[Any]]

_LOWEST_TEMPERATURE = 1e-6


@op("sample")
class Sample(Op):
    """i32 ids drawn from softmax(logits / temperature) along the last axis, limited to likely entries.

    The temperature is at least 1e-6. `top_k` (0: off) keeps the entries that are not below the k-th largest, ties
    included. `top_p` < 1 then keeps, from the most likely on, the shortest prefix whose probabilities add up to at
    least top_p (ties by lower id, never less than one entry). The id is the first entry, in order of ids, at which
    the running sum of what is kept exceeds r times its total; r = (w >> 8)·2^-24, w being word i of `RandomBits`
    under key u32[2] for row i.
    """

    picks = True
    precision_class = "reduction"

    jvp = vjp = NoRule("integer result; for a differentiable relaxation add rlx.random.gumbel noise and use softmax")

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
        if logits.rank < 1 or not require_at_most(1, logits.dims[-1], self.mnemonic):
            raise self.fail(f"needs logits [.., V] with at least one entry, got {logits}")
        if key != Shape((2,), DType.U32):
            raise self.fail(f"needs one key u32[2], got {key}; make one with rlx.random.key(seed)")
        return Shape(logits.dims[:-1], DType.I32)

    def _limits_to_top_k(self, size: Size) -> bool:
        return self.top_k > 0 and (isinstance(size, Dim) or self.top_k < size)

    def eval(self, logits: Array, key: Array) -> Array:
        # Entries are ranked by the logits themselves: dividing or exponentiating could round two of them together.
        logits = logits.astype(np.float64)
        with np.errstate(all="ignore"):
            below = logits - np.max(logits, axis=-1, keepdims=True)
            weights = np.exp(below / max(self.temperature, _LOWEST_TEMPERATURE))
            if self._limits_to_top_k(logits.shape[-1]):
                bound = np.sort(logits, axis=-1)[..., -self.top_k, None]
                weights = np.where(logits >= bound, weights, 0.0)
            if self.top_p < 1.0:
                weights = np.where(self._nucleus_array(logits, weights), weights, 0.0)
            running = np.cumsum(weights, axis=-1)
            unit = bits_to_uniform(RandomBits(logits.shape[:-1]).eval(key)).astype(np.float64)
            chosen = (running > unit[..., None] * running[..., -1:]) & (weights > 0)
            return np.asarray(np.argmax(chosen, axis=-1), dtype=np.int32)

    def _nucleus_array(self, logits: Array, weights: Array) -> Array:
        order = np.argsort(-logits, axis=-1, kind="stable")
        running = np.cumsum(np.take_along_axis(weights, order, axis=-1), axis=-1)
        kept = np.ones(logits.shape, bool)
        kept[..., 1:] = running[..., :-1] < self.top_p * running[..., -1:]
        result = np.empty_like(kept)
        np.put_along_axis(result, order, kept, axis=-1)
        return result

    def decompose(self, logits: Any, key: Any) -> Any:
        logits = convert(logits, logits.dtype.accumulator)
        size = logits.shape[-1]
        # The difference first: a quotient may overflow, and then the highest logit would be no longer known.
        below = logits - reduce_max(logits, -1, keepdims=True)
        weights = exp(below / max(self.temperature, _LOWEST_TEMPERATURE))
        if self._limits_to_top_k(size):
            # The k-th largest of a row that has no more than k entries is its smallest.
            bound = narrow(sort(logits), -1, dim_max(size - self.top_k, 0), 1)
            weights = where(ge(logits, bound), weights, 0.0)
        if self.top_p < 1.0:
            weights = where(self._nucleus(logits, weights), weights, 0.0)
        running = cumsum(weights, -1)
        unit = cast(shift_right_logical(RandomBits(logits.shape[:-1])(key), 8), logits.dtype) * 2.0**-24
        threshold = expand_dims(unit, -1) * narrow(running, -1, size - 1, 1)
        return argmax(and_(gt(running, threshold), gt(weights, 0.0)), -1)

    def _nucleus(self, logits: Any, weights: Any) -> Any:
        order = argsort(logits, descending=True)
        ranked = take_along_axis(weights, order, -1)
        before, total = cumsum(ranked, -1, exclusive=True), reduce_sum(ranked, -1, keepdims=True)
        rank = argsort(order)
        kept = take_along_axis(lt(before, total * self.top_p), rank, -1)
        return or_(kept, eq(rank, 0))

    @classmethod
    def samples(cls) -> Iterator[OpSample]:
        key = spec(2, dtype="u32", values=[42, 7])
        for made in (cls(), cls(3), cls(0, 0.7), cls(4, 0.5, 0.3), cls(temperature=0.0), cls(1), cls(0, 0.0), cls(99)):
            yield op_sample(made, spec(5, 7, low=-3, high=3, distinct=True), key)
        yield op_sample(cls(2, 0.9), spec(6, 5, values=[1.0, 2.0, 2.0, 2.0, 0.0]), key)
        yield op_sample(cls(), spec(3, values=[-np.inf, 0.0, -np.inf]), key)
        yield op_sample(cls(2), spec(5), key)
        yield op_sample(cls(2), spec(2, 3, 5), key)
        yield op_sample(cls(2, 0.8), spec(0, 5), key)
        yield op_sample(cls(2, 0.8), spec("B", "V", distinct=True), key, B=3, V=5)
        yield op_sample(cls(9), spec("B", "V", distinct=True), key, B=3, V=5)


def sample(logits: Any, key: Any, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0) -> Any:
    """One id per row of logits, drawn by temperature, top-k and top-p; see `Sample`.

    >>> sample(np.array([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]), np.array([1, 2], np.uint32), top_k=1).tolist()
    [1, 0]
    """
    (logits,) = promote_inexact(logits)
    return Sample(top_k, top_p, temperature)(logits, key)


# Seed 0 asks for another draw at each call, yet the same ones in each run of a program.
_unseeded_calls = itertools.count(1)


def sampling_key(seed: int) -> Array:
    """The key of a seed in the sense of the seed documents: 0 stands for "the next one of this process"."""
    result: Array = key(seed) if seed else key(next(_unseeded_calls) << 32)
    return result
