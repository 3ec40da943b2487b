"""Steps of transformers: `LayerNorm` over the last axis and `Attention` between rows of sequences [T, 1, C].

Both need numbers that no table of multipliers has, because they depend on the data: a square root, and the sum of
exponentials. They are integers here too, with one stated rounding each, so that every machine gets the same codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.linalg.contraction import matmul
from rlx.ops.nn.norms import layer_norm
from rlx.ops.pointwise.arithmetic import clamp, div, le, lt, minimum, shift_left, shift_right, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import sqrt
from rlx.ops.reduction.reductions import reduce_max, reduce_sum, softmax
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.movement import reshape, transpose
from rlx.quantized.steps import Step
from rlx.quantized.values import ACTIVATIONS, Array, Multipliers, Value, limits

# The root of a row's sum of squares is taken of a number in [2^60, 2^62), its reciprocal of 2^61.
_ROOT_BITS, _RECIPROCAL = 62, 2**61


@dataclass(frozen=True, eq=False)
class LayerNorm(Step):
    """(x - mean) / √(variance + eps) · gamma + beta over the last axis, n codes long.

    With c = n·x - Σx and W = (Σc² + epsilon) / n, rounded down, c / √W is the normalised number: W · 4^k lies in
    [2^60, 2^62), r = ⌊√(W·4^k)⌋, and the number is c · (2^61 / r) in units of 2^(k-61), rounded once to units of
    2^-`places`. Then code = clamp(multiplier · (gamma · number + beta) + zero_point, low, high).
    """

    gamma: Array
    beta: Array
    epsilon: int
    multipliers: Multipliers
    low: int
    high: int

    @staticmethod
    def places(n: int) -> int:
        """Binary places of normalised numbers: none is larger than √n, and times 2^15 they stay below 2^30."""
        return 15 - -(-(n - 1).bit_length() // 2)

    @staticmethod
    def of(
        inputs: tuple[int, ...],
        x: Value,
        out: Value,
        gamma: Array,
        beta: Array,
        eps: float,
        low: int,
        high: int,
        fraction_bits: int = 31,
    ) -> LayerNorm:
        """The step of float gamma and beta."""
        n = x.dims[-1]
        fine = 2.0 ** -LayerNorm.places(n)
        # gamma takes 16 bits, and fewer where beta is so much larger that its sum would not fit.
        unit = max(np.abs(gamma).max() / 32767, np.abs(beta).max() / (fine * 2**29), 1e-12)
        return LayerNorm(
            inputs,
            out,
            np.rint(gamma / unit).astype(np.int16),
            np.rint(beta / (unit * fine)).astype(np.int32),
            int(min(round(eps / x.scale**2 * n**3), 2**60)),
            Multipliers.of(np.float32(unit * fine / out.scale), fraction_bits),
            low,
            high,
        )

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if x.dtype not in ACTIVATIONS or self.out.dtype not in ACTIVATIONS or not x.dims or x.dims != self.out.dims:
            raise self.fail(f"takes and gives i8 or i16 of the same sizes, got {x} and {self.out}")
        n, (lowest, highest) = x.dims[-1], limits(x.dtype)
        for what, table, dtype in (("gamma", self.gamma, np.int16), ("beta", self.beta, np.int32)):
            if table.dtype != dtype or table.shape != (n,):
                raise self.fail(f"{what} must be {np.dtype(dtype)}[{n}], got {table.dtype}{table.shape}")
        if len(self.multipliers.m0) != 1:
            raise self.fail("needs one multiplier")
        self.require_clamp(self.low, self.high)
        squares = n**3 * (highest - lowest) ** 2 + self.epsilon
        if self.epsilon < 0 or squares >= 2**_ROOT_BITS or n > 2**15:
            raise self.fail(f"squares of {n} codes can sum up to {squares}, and must stay below 2^{_ROOT_BITS}")
        sums = (np.abs(self.gamma.astype(np.int64)) * (2**15 + 1) + np.abs(self.beta.astype(np.int64))).max()
        if sums >= 2**31:
            raise self.fail(f"gamma and beta can give {sums}, and i32 ends at {2**31 - 1}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        x, n = codes[0].astype(np.int64), operands[0].dims[-1]
        centred = n * x - x.sum(axis=-1, keepdims=True)
        w = np.maximum(((centred**2).sum(axis=-1, keepdims=True) + self.epsilon) // n, 1)
        k = (w < _powers_of_four()).sum(axis=-1, keepdims=True)
        reciprocal = np.minimum(_RECIPROCAL // whole_root(w << 2 * k), 2**31 - 1)
        shift = 61 - k - self.places(n)
        numbers = (centred * reciprocal + (np.int64(1) << (shift - 1))) >> shift
        result = self.multipliers.scaled(numbers * self.gamma + self.beta) + self.out.zero_point
        return np.clip(result, self.low, self.high).astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        x, n = cast(tensors[0], DType.I64), operands[0].dims[-1]
        last = (x.ndim - 1,)
        centred = x * n - reduce_sum(x, last, keepdims=True)
        w = div(reduce_sum(centred * centred, last, keepdims=True) + self.epsilon, n)
        w = where(lt(w, 1), 1, w)
        k = reduce_sum(cast(lt(w, _powers_of_four()), DType.I64), last, keepdims=True)
        grown = shift_left(w, k * 2)
        # The root in f64 is at most one away from the whole one.
        root = cast(sqrt(cast(grown, DType.F64)), DType.I64)
        root = where(lt(grown, root * root), root - 1, root)
        root = where(le((root + 1) * (root + 1), grown), root + 1, root)
        reciprocal = minimum(div(np.array(_RECIPROCAL, np.int64), root), np.array(2**31 - 1, np.int64))
        shift = (61 - self.places(n)) - k
        half = shift_left(np.array(1, np.int64), shift - 1)
        numbers = cast(shift_right(centred * reciprocal + half, shift), DType.I32)
        return self.finish(numbers * self.gamma.astype(np.int32) + self.beta)

    def finish(self, sums: Any) -> Any:
        codes = self.multipliers.requantized(sums, self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        x, n = operands[0], operands[0].dims[-1]
        factor = self.multipliers.m0[0] / 2.0**self.multipliers.fraction_bits / 2.0 ** int(self.multipliers.shift[0])
        unit = factor * self.out.scale
        dtype = tensors[0].dtype.numpy
        gamma, beta = (self.gamma * (unit * 2.0 ** self.places(n))).astype(dtype), (self.beta * unit).astype(dtype)
        # Not 0, as W is not: a row of equal numbers is normalised to zeros.
        return layer_norm(tensors[0], gamma, beta, eps=max(self.epsilon, 1) / n**3 * x.scale**2)


def whole_root(x: Array) -> Array:
    """⌊√x⌋ of i64 numbers below 2^62."""
    root = np.sqrt(x.astype(np.float64)).astype(np.int64)
    root -= root * root > x
    return root + ((root + 1) * (root + 1) <= x)


def _powers_of_four() -> Array:
    return 4 ** np.arange(1, _ROOT_BITS // 2, dtype=np.int64)


# Exponentials of -d/256: 256 for the fraction of d and 16 for the whole part, 2^15 being 1.
_FINE, _COARSE, _ONE = 256, 16, 1 << 15
# Shares of a row of scores: 2^14 is all.
_SHARE_BITS = 14


@dataclass(frozen=True, eq=False)
class Attention(Step):
    """softmax(q·kᵀ)·v for each head, of rows q [S, 1, heads·D], k [T, 1, kv_heads·D] and v like k.

    A score is the i32 sum s of products, and d = (largest s of the row - s) · the first multiplier, in steps of 1/256,
    at most 4095. e = table[d mod 256] · table[256 + d / 256] / 2^15, rounded; the share is e · 2^14 / Σe, rounded half
    up; and code = clamp(second multiplier · Σ share · (v - v_zero) + zero_point). A query sees keys up to its own place
    with `causal`.
    """

    heads: int
    kv_heads: int
    causal: bool
    table: Array
    multipliers: Multipliers
    low: int
    high: int

    @staticmethod
    def exponentials() -> Array:
        fine = np.exp(-np.arange(_FINE) / _FINE)
        coarse = np.exp(-np.arange(_COARSE, dtype=np.float64))
        return np.rint(_ONE * np.concatenate([fine, coarse])).astype(np.int32)

    @staticmethod
    def multipliers_for(
        q: Value, k: Value, v: Value, out: Value, score_scale: float, fraction_bits: int = 31
    ) -> Multipliers:
        scores = q.scale * k.scale * score_scale * _FINE
        return Multipliers.of([scores, v.scale / 2**_SHARE_BITS / out.scale], fraction_bits)

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.out.dims[-1] // self.heads

    @property
    def macs(self) -> int:
        length = self.out.dims[0]
        pairs = length * (length + 1) // 2 if self.causal else length * length
        return 2 * pairs * self.out.dims[-1]

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        q, k, v = self.take(operands, 3)
        if any(len(x.dims) != 3 or x.dims[1] != 1 for x in (q, k, v, self.out)) or k.dims != v.dims:
            raise self.fail(f"takes sequences [T, 1, C], k and v of one size, got {q.dims}, {k.dims} and {v.dims}")
        if q.dims != self.out.dims or q.dims[0] != k.dims[0]:
            raise self.fail(f"q {q.dims}, k {k.dims} and the result {self.out.dims} must have one length")
        if min(self.heads, self.kv_heads) < 1 or self.heads % self.kv_heads or q.dims[2] % self.heads:
            raise self.fail(f"{self.heads} and {self.kv_heads} heads do not divide a width of {q.dims[2]}")
        if k.dims[2] != self.head * self.kv_heads:
            raise self.fail(f"keys must be {self.head * self.kv_heads} wide, got {k.dims[2]}")
        if q.dtype is not DType.I8 or k.dtype is not DType.I8 or v.dtype not in ACTIVATIONS:
            raise self.fail(f"queries and keys are i8, values i8 or i16, got {q.dtype}, {k.dtype} and {v.dtype}")
        if self.head * q.largest_distance * k.largest_distance >= 2**30 or k.dims[0] > 2**12:
            raise self.fail(f"heads of {self.head} or {k.dims[0]} keys are too many for i32 sums")
        if self.table.shape != (_FINE + _COARSE,) or self.table.dtype != np.int32:
            raise self.fail(f"needs a table of {_FINE + _COARSE} i32, got {self.table.shape}")
        if self.table[0] != _ONE or self.table[_FINE] != _ONE or self.table.min() < 0 or self.table.max() > _ONE:
            raise self.fail(f"needs exponentials from 0 to {_ONE}, both parts beginning with it")
        if len(self.multipliers.m0) != 2 or self.out.dtype not in ACTIVATIONS:
            raise self.fail("needs two multipliers, of the scores and of the result, which is i8 or i16")
        self.require_clamp(self.low, self.high)

    def _split(self, rows: Any, heads: int, is_array: bool) -> Any:
        """[N, T, 1, heads·D] -> [N, heads, T, D]."""
        n, length, _, width = rows.shape
        if is_array:
            return rows.reshape(n, length, heads, width // heads).transpose(0, 2, 1, 3)
        return transpose(reshape(rows, (n, length, heads, width // heads)), (0, 2, 1, 3))

    def _visible(self) -> Array:
        length, groups = self.out.dims[0], self.heads // self.kv_heads
        seen = np.tri(length, dtype=bool) if self.causal else np.ones((length, length), bool)
        return np.tile(seen, (groups, 1))

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        n, length, _, width = codes[0].shape
        # f64 is exact for all sums here, and its products are fast.
        q, k, v = (
            self._split(c.astype(np.float64) - x.zero_point, h, True)
            for c, x, h in zip(codes, operands, (self.heads, self.kv_heads, self.kv_heads))
        )
        head = width // self.heads
        q = q.reshape(n, self.kv_heads, self.heads // self.kv_heads * length, head)
        scores = (q @ k.transpose(0, 1, 3, 2)).astype(np.int64)
        seen = self._visible()
        largest = np.where(seen, scores, -(2**30)).max(axis=-1, keepdims=True)
        distance = np.minimum(self.multipliers.take(0).scaled(np.where(seen, largest - scores, 0)), 4095)
        table = self.table.astype(np.int64)
        powers = (table[distance & 255] * table[_FINE + (distance >> 8)] + 2**14) >> 15
        powers = np.where(seen, powers, 0)
        total = powers.sum(axis=-1, keepdims=True)
        shares = ((powers << _SHARE_BITS) + total // 2) // total
        sums = (shares.astype(np.float64) @ v).astype(np.int64)
        rows = sums.reshape(n, self.heads, length, head).transpose(0, 2, 1, 3).reshape(n, length, 1, width)
        result = self.multipliers.take(1).scaled(rows) + self.out.zero_point
        return np.clip(result, self.low, self.high).astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        n, length, _, width = tensors[0].shape
        q, k, v = (
            self._split(cast(t, DType.I32) - x.zero_point, h, False)
            for t, x, h in zip(tensors, operands, (self.heads, self.kv_heads, self.kv_heads))
        )
        head, groups = width // self.heads, self.heads // self.kv_heads
        q = reshape(q, (n, self.kv_heads, groups * length, head))
        scores = matmul(q, transpose(k, (0, 1, 3, 2)))
        seen, last = self._visible(), (3,)
        largest = reduce_max(where(seen, scores, -(2**30)), last, keepdims=True)
        distance = self.multipliers.take(0).requantized(where(seen, largest - scores, 0), 0, DType.I32)
        distance = clamp(distance, 0, 4095)
        whole = shift_right(distance, 8)
        fine, coarse = gather(self.table[:_FINE], distance - whole * _FINE), gather(self.table[_FINE:], whole)
        powers = where(seen, shift_right(fine * coarse + 2**14, 15), 0)
        total = reduce_sum(powers, last, keepdims=True)
        shares = div(powers * 2**_SHARE_BITS + div(total, 2), total)
        sums = reshape(matmul(shares, v), (n, self.heads, length, head))
        rows = reshape(transpose(sums, (0, 2, 1, 3)), (n, length, 1, width))
        codes = self.multipliers.take(1).requantized(rows, self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        n, length, _, width = tensors[0].shape
        m0, shift = float(self.multipliers.m0[0]), int(self.multipliers.shift[0])
        steps = m0 / 2.0**self.multipliers.fraction_bits / 2.0**shift
        score_scale = steps / _FINE / operands[0].scale / operands[1].scale
        q, k, v = (self._split(t, h, False) for t, h in zip(tensors, (self.heads, self.kv_heads, self.kv_heads)))
        head, groups = width // self.heads, self.heads // self.kv_heads
        q = reshape(q, (n, self.kv_heads, groups * length, head))
        scores = matmul(q, transpose(k, (0, 1, 3, 2))) * float(score_scale)
        shares = softmax(where(self._visible(), scores, -math.inf), axis=-1)
        sums = reshape(matmul(shares, v), (n, self.heads, length, head))
        return reshape(transpose(sums, (0, 2, 1, 3)), (n, length, 1, width))
