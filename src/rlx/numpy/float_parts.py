"""Floats taken apart and put together by their bits: exponent, mantissa, sign, neighbours, special values."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.ir.dtype import DType
from rlx.numpy.arguments import array_function, convert, inexact, operand, value
from rlx.numpy.dtypes import finfo
from rlx.ops.define.operands import dtype_of

__all__ = [
    "frexp",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "ldexp",
    "nan_to_num",
    "signbit",
    "spacing",
]


@array_function
def isfinite(x: Any, /) -> Any:
    """True for numbers that are neither infinite nor NaN."""
    return ops.isfinite(operand(x))


@array_function
def isinf(x: Any, /) -> Any:
    """True for positive and negative infinity."""
    return ops.isinf(operand(x))


@array_function
def isnan(x: Any, /) -> Any:
    """True for NaN."""
    return ops.isnan(operand(x))


@array_function
def isposinf(x: Any, /) -> Any:
    """True for positive infinity."""
    return ops.eq(inexact(x)[0], math.inf)


@array_function
def isneginf(x: Any, /) -> Any:
    """True for negative infinity."""
    return ops.eq(inexact(x)[0], -math.inf)


@array_function
def signbit(x: Any, /) -> Any:
    """True where the sign is negative, also for -0.0."""
    return ops.signbit(value(x))


@array_function
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """NaN and infinities replaced by numbers; by default 0 and the largest finite ones."""
    x = value(x)
    dtype = dtype_of(x)
    if dtype.is_complex:
        parts = [nan_to_num(part, copy, nan, posinf, neginf) for part in (ops.real(x), ops.imag(x))]
        return ops.complex_(*parts)
    if not dtype.is_float:
        return x
    limits = finfo(dtype)
    x = ops.where(ops.isnan(x), operand(nan), x)
    x = ops.where(ops.eq(x, math.inf), limits.max if posinf is None else operand(posinf), x)
    return convert(ops.where(ops.eq(x, -math.inf), limits.min if neginf is None else operand(neginf), x), dtype)


class _Layout:
    """Where the parts of a float lie in an integer of the same width."""

    def __init__(self, dtype: DType) -> None:
        self.float = dtype
        self.int = DType.I64 if dtype is DType.F64 else DType.I32
        self.mantissa_bits = 52 if dtype is DType.F64 else 23
        self.bias = 1023 if dtype is DType.F64 else 127

    def power_of_two(self, exponent: Any) -> Any:
        """2**exponent for integers from 1 - bias to bias, exactly."""
        return ops.bitcast(ops.shift_left(exponent + self.bias, self.mantissa_bits), self.float)

    def exponent(self, x: Any) -> Any:
        """The exponent of a positive normal number: 2**e <= x < 2**(e+1)."""
        return ops.shift_right(ops.bitcast(x, self.int), self.mantissa_bits) - self.bias


def _widened(x: Any) -> tuple[Any, _Layout, DType]:
    """`x` in f32 or f64, whose layout is known here, and its own dtype; widening is exact."""
    (x,) = inexact(x)
    dtype = dtype_of(x)
    layout = _Layout(DType.F64 if dtype is DType.F64 else DType.F32)
    return convert(x, layout.float), layout, dtype


@array_function
def frexp(x: Any, /) -> tuple[Any, Any]:
    """Mantissa m with 0.5 <= |m| < 1 and i32 exponent e, so that x = m * 2**e; zeros, infinities and NaN stay.

    >>> frexp(6.0)
    (Array(0.75, dtype=float32), Array(3, dtype=int32))
    """
    x, layout, dtype = _widened(x)
    plain = ops.and_(ops.ne(x, 0), ops.isfinite(x))
    size = ops.where(plain, ops.abs_(x), 1)
    # Subnormal numbers are lifted into the normal range first.
    lift = layout.mantissa_bits + 1
    small = ops.lt(size, 2.0 ** (1 - layout.bias))
    size = ops.where(small, size * 2.0**lift, size)
    exponent = layout.exponent(size) + 1
    mantissa = ops.copysign(size * layout.power_of_two(-exponent), x)
    exponent = ops.where(plain, ops.where(small, exponent - lift, exponent), 0)
    return convert(ops.where(plain, mantissa, x), dtype), convert(exponent, DType.I32)


@array_function
def ldexp(x1: Any, x2: Any, /) -> Any:
    """x1 * 2**x2 for integers x2."""
    x, layout, dtype = _widened(x1)
    limit = 3 * layout.bias - 3
    exponent = ops.clamp(convert(operand(x2), layout.int), -limit, limit)
    # Three factors: neither one of them nor a partial product leaves the range when the result does not.
    third = ops.div(exponent, 3)
    step = layout.power_of_two(third)
    return convert(x * step * step * layout.power_of_two(exponent - third - third), dtype)


@array_function
def spacing(x: Any, /) -> Any:
    """The distance from x to the next float away from zero, with the sign of x."""
    (x,) = inexact(x)
    away = ops.copysign(convert(math.inf, dtype_of(x)), x)
    return ops.where(ops.isfinite(x), ops.nextafter(x, away) - x, math.nan)
