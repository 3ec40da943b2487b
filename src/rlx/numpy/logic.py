"""Comparisons, logic, bits, and tests of closeness."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.errors import DTypeError, OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape, broadcast_dims
from rlx.numpy.arguments import (
    array_function,
    axis_of,
    binary_function,
    convert,
    inexact,
    promoted,
    rank_of,
    unary_function,
    value,
)
from rlx.ops.control.bodies import build_body
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "allclose",
    "angle",
    "array_equal",
    "array_equiv",
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "conj",
    "conjugate",
    "equal",
    "gcd",
    "greater",
    "greater_equal",
    "imag",
    "invert",
    "isclose",
    "iscomplex",
    "isreal",
    "lcm",
    "left_shift",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "packbits",
    "real",
    "right_shift",
    "unpackbits",
]


equal = binary_function("equal", ops.eq, "x1 == x2.")
not_equal = binary_function("not_equal", ops.ne, "x1 != x2.")
less = binary_function("less", ops.lt, "x1 < x2.")
less_equal = binary_function("less_equal", ops.le, "x1 <= x2.")
greater = binary_function("greater", ops.gt, "x1 > x2.")
greater_equal = binary_function("greater_equal", ops.ge, "x1 >= x2.")

logical_and = binary_function("logical_and", ops.logical_and, "True where both are non-zero.")
logical_or = binary_function("logical_or", ops.logical_or, "True where at least one is non-zero.")
logical_xor = binary_function("logical_xor", ops.logical_xor, "True where exactly one is non-zero.")
logical_not = unary_function("logical_not", ops.logical_not, "True where x is zero.")

bitwise_and = binary_function("bitwise_and", ops.and_, "Bits set in both; integers or bools.")
bitwise_or = binary_function("bitwise_or", ops.or_, "Bits set in either; integers or bools.")
bitwise_xor = binary_function("bitwise_xor", ops.xor, "Bits set in exactly one; integers or bools.")
bitwise_invert = unary_function("bitwise_invert", ops.not_, "Every bit flipped; the negation of a bool.")
invert = bitwise_not = bitwise_invert
bitwise_left_shift = binary_function("bitwise_left_shift", ops.shift_left, "x1 * 2**x2, as far as it fits the type.")
left_shift = bitwise_left_shift
bitwise_right_shift = binary_function("bitwise_right_shift", ops.shift_right, "The floor of x1 / 2**x2.")
right_shift = bitwise_right_shift

real = unary_function("real", lambda x: ops.real(value(x)), "The real part.")
imag = unary_function("imag", lambda x: ops.imag(value(x)), "The imaginary part; 0 for real x.")
conj = conjugate = unary_function("conj", lambda x: ops.conjugate(value(x)), "The complex conjugate.")


@array_function
def bitwise_count(x: Any, /) -> Any:
    """The number of ones in the binary form of |x|, as u8."""
    x = value(x)
    return convert(ops.popcount(ops.abs_(x) if dtype_of(x).is_signed else x), DType.U8)


@array_function
def angle(z: Any, deg: bool = False) -> Any:
    """The angle of z in the complex plane, in (-π, π], or in degrees."""
    result = ops.angle(value(z))
    return result * (180 / math.pi) if deg else result


@array_function
def iscomplex(x: Any) -> Any:
    """True where the imaginary part is not 0."""
    return ops.ne(imag(x), 0)


@array_function
def isreal(x: Any) -> Any:
    """True where the imaginary part is 0."""
    return ops.eq(imag(x), 0)


def _magnitude(x: Any) -> Any:
    return ops.complex_abs(x) if dtype_of(x).is_complex else ops.abs_(x)


@array_function
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """|a - b| <= atol + rtol*|b|; infinities are close to themselves only, and NaN to NaN with `equal_nan`."""
    a, b = inexact(a, b)
    # The difference of equal infinities is NaN, and everything finite is within rtol*inf.
    near = ops.le(_magnitude(a - b), atol + rtol * _magnitude(b))
    close = ops.or_(ops.eq(a, b), ops.and_(near, ops.isfinite(b)))
    return ops.or_(close, ops.and_(ops.isnan(a), ops.isnan(b))) if equal_nan else close


@array_function
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements are close; see `isclose`. A bool scalar array."""
    return ops.reduce_all(isclose(a, b, rtol, atol, equal_nan))


@array_function
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether both have the same shape and the same elements."""
    a1, a2 = value(a1), value(a2)
    if dims_of(a1) != dims_of(a2):
        return value(False)
    same = ops.eq(a1, a2)
    if equal_nan:
        same = ops.or_(same, ops.and_(ops.isnan(a1), ops.isnan(a2)))
    return ops.reduce_all(same)


@array_function
def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether both broadcast to one shape and are equal there."""
    a1, a2 = value(a1), value(a2)
    try:
        broadcast_dims(dims_of(a1), dims_of(a2))
    except ShapeError:
        return value(False)
    return ops.reduce_all(ops.eq(a1, a2))


def _integers(function: str, *xs: Any) -> list[Any]:
    found = promoted(*xs)
    if not dtype_of(found[0]).is_int:
        raise DTypeError(f"{function}: needs integers, got {dtype_of(found[0])}")
    return found


@array_function
def gcd(x1: Any, x2: Any, /) -> Any:
    """The greatest common divisor of |x1| and |x2|; gcd(0, 0) is 0. Integers."""
    a, b = _integers("gcd", x1, x2)
    dims = broadcast_dims(dims_of(a), dims_of(b), "gcd")
    kind = Shape(dims, dtype_of(a))
    # Euclid's steps on all elements at once, until every remainder is 0.
    unfinished = build_body("unfinished", lambda a, b: ops.reduce_any(ops.ne(b, 0)), a=kind, b=kind)
    step = build_body("step", lambda a, b: (ops.where(ops.eq(b, 0), a, b), ops.rem(a, b)), a=kind, b=kind)
    start = (ops.broadcast_to(_absolute(a), dims), ops.broadcast_to(_absolute(b), dims))
    return ops.while_multi(start, unfinished, step)[0]


def _absolute(x: Any) -> Any:
    return ops.abs_(x) if dtype_of(x).is_signed else x


@array_function
def lcm(x1: Any, x2: Any, /) -> Any:
    """The least common multiple of |x1| and |x2|; 0 where either is 0. Integers."""
    a, b = _integers("lcm", x1, x2)
    return _absolute(ops.mul(a, ops.div(b, gcd(a, b))))


def _bit_places(bitorder: str, function: str) -> Any:
    """How far each of eight bits, in the order in which they are written, lies from the lowest one: u8[8]."""
    if bitorder not in ("big", "little"):
        raise OpError(f"{function}: bitorder must be 'big' or 'little', got {bitorder!r}")
    places = ops.iota((8,), dtype=DType.U8)
    return ops.reverse(places, 0) if bitorder == "big" else places


@array_function
def unpackbits(x: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """The bits of u8 numbers along `axis` (of the flattened x without one) as u8 zeros and ones."""
    x = value(x) if axis is not None else ops.flatten(value(x))
    if dtype_of(x) is not DType.U8:
        raise DTypeError(f"unpackbits: needs u8, got {dtype_of(x)}")
    axis = axis_of(axis or 0, x, "unpackbits")
    last = ops.expand_dims(ops.moveaxis(x, axis, -1), -1)
    bits = ops.and_(ops.shift_right(last, _bit_places(bitorder, "unpackbits")), 1)
    *lead, length, _ = dims_of(bits)
    flat = ops.reshape(bits, (*lead, 8 * length))
    if count is not None:
        kept = count if count >= 0 else 8 * length + count
        flat = ops.pad(flat, 0, high=(*[0] * len(lead), kept - 8 * length))
    return ops.moveaxis(flat, -1, axis)


@array_function
def packbits(x: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements at a time along `axis` (of the flattened x without one) as the bits of one u8; 0 fills the end."""
    x = value(x) if axis is not None else ops.flatten(value(x))
    axis = axis_of(axis or 0, x, "packbits")
    last = convert(ops.ne(ops.moveaxis(x, axis, -1), 0), DType.U8)
    length = dims_of(last)[-1]
    padded = ops.pad(last, 0, high=(*[0] * (rank_of(x) - 1), -length % 8))
    groups = ops.reshape(padded, (*dims_of(last)[:-1], (length + 7) // 8, 8))
    weighted = ops.shift_left(groups, _bit_places(bitorder, "packbits"))
    return ops.moveaxis(ops.reduce_sum(weighted, -1), -1, axis)
