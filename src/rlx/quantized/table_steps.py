"""Steps that look codes up: functions of one code of 8 or 16 bits, and softmax, whose exponentials are a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.define.rounding import round_half_away
from rlx.ops.pointwise.arithmetic import clamp, div, shift_right
from rlx.ops.pointwise.conversion import cast
from rlx.ops.reduction.reductions import reduce_max, reduce_sum, softmax
from rlx.ops.shape.axis_indexing import gather
from rlx.quantized.steps import Step
from rlx.quantized.values import ACTIVATIONS, Array, Value

_CODES = 256
# Shares of a softmax: code -128 is 0, and one step is 1/256.
SHARE_SCALE, SHARE_ZERO = 1 / 256, -128
_ONE = 1 << 16


@dataclass(frozen=True, eq=False)
class Lookup(Step):
    """table[code + 128]: sigmoid, tanh, GELU or any other function of one number, rounded once for every code."""

    table: Array

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if x.dtype is not DType.I8 or self.out.dtype not in ACTIVATIONS or x.dims != self.out.dims:
            raise self.fail(f"takes i8 and gives i8 or i16 of the same sizes, got {x} and {self.out}")
        if self.table.shape != (_CODES,) or self.table.dtype != self.out.dtype.numpy:
            raise self.fail(f"needs a table of {_CODES} codes {self.out.dtype}, got {self.table.shape}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        return self.table[codes[0].astype(np.int64) + 128]

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return gather(self.table, cast(tensors[0], DType.I32) + 128)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        # The operand holds codes exactly; what it stands for after the function is the table's.
        x = operands[0]
        codes = cast(round_half_away(tensors[0] * (1.0 / x.scale)), DType.I32) + (x.zero_point + 128)
        return gather(self.out.decode(self.table).astype(tensors[0].dtype.numpy), clamp(codes, 0, _CODES - 1))


# A table of a function of 16-bit codes: one entry for every 256th code, and one behind the last.
POINTS = 257


def interpolated(table: Array, codes: Array) -> Array:
    """What lies on the line between the two entries of `table` around each code from -2^15 up; i64, rounded half up."""
    place = codes + 2**15
    index, rest = place >> 8, place & 255
    return np.asarray(table[index] + (((table[index + 1] - table[index]) * rest + 128) >> 8))


def interpolated_tensor(table: Array, codes: Any) -> Any:
    """The same on i32 tensors, with an i32 table."""
    place = codes + 2**15
    index = shift_right(place, 8)
    left, right = gather(table, index), gather(table, index + 1)
    return left + shift_right((right - left) * (place - index * 256) + 128, 8)


@dataclass(frozen=True, eq=False)
class Interpolate(Step):
    """A function of one 16-bit code: straight lines between the 257 codes of a table."""

    table: Array

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if x.dtype is not DType.I16 or self.out.dtype is not DType.I16 or x.dims != self.out.dims:
            raise self.fail(f"takes and gives i16 of the same sizes, got {x} and {self.out}")
        if self.table.shape != (POINTS,) or self.table.dtype != np.int16:
            raise self.fail(f"needs a table of {POINTS} codes i16, got {self.table.dtype}{self.table.shape}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        return interpolated(self.table.astype(np.int64), codes[0].astype(np.int64)).astype(np.int16)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return cast(interpolated_tensor(self.table.astype(np.int32), cast(tensors[0], DType.I32)), DType.I16)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        # The operand holds codes exactly; the lines between entries are what the step means.
        x = operands[0]
        codes = cast(round_half_away(tensors[0] * (1.0 / x.scale)), DType.I32) + x.zero_point
        found = interpolated_tensor(self.table.astype(np.int32), clamp(codes, -(2**15), 2**15 - 1))
        return cast(found - self.out.zero_point, tensors[0].dtype) * self.out.scale


@dataclass(frozen=True, eq=False)
class Softmax(Step):
    """exp(x_i) / Σ exp(x_j) over the last axis, as shares of 256: table[d] is 2^16 · exp(-d · scale), d = max - code.

    code = (256·e_i + Σ/2) / Σ - 128 in integers, rounded down; at most 127.
    """

    table: Array

    @staticmethod
    def table_for(x: Value) -> Array:
        return np.rint(_ONE * np.exp(-np.arange(_CODES) * x.scale)).astype(np.int32)

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if x.dtype is not DType.I8 or self.out.dtype is not DType.I8 or x.dims != self.out.dims or not x.dims:
            raise self.fail(f"takes and gives i8 of the same sizes, got {x} and {self.out}")
        if (self.out.scale, self.out.zero_point) != (SHARE_SCALE, SHARE_ZERO):
            raise self.fail(f"gives shares of 256 with zero point {SHARE_ZERO}, but the result is declared {self.out}")
        if self.table.shape != (_CODES,) or self.table.dtype != np.int32:
            raise self.fail(f"needs a table of {_CODES} i32, got {self.table.shape}")
        if self.table[0] != _ONE or self.table.min() < 0 or self.table.max() > _ONE or x.dims[-1] > 2**14:
            raise self.fail(f"needs exponentials from 0 to {_ONE}, of at most {2**14} numbers, got {x.dims[-1]}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        x = codes[0].astype(np.int64)
        powers = self.table.astype(np.int64)[x.max(axis=-1, keepdims=True, initial=-128) - x]
        total = powers.sum(axis=-1, keepdims=True)
        return np.minimum((256 * powers + total // 2) // total + SHARE_ZERO, 127).astype(np.int8)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        x = cast(tensors[0], DType.I32)
        last = (x.ndim - 1,)
        powers = gather(self.table, reduce_max(x, last, keepdims=True) - x)
        total = reduce_sum(powers, last, keepdims=True)
        # All of it is positive, so that division rounds down.
        return cast(clamp(div(powers * 256 + div(total, 2), total) + SHARE_ZERO, -128, 127), DType.I8)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return softmax(tensors[0], axis=-1)
