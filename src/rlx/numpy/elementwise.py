"""Elementwise arithmetic and mathematical functions, with broadcasting and promotion.

Integers become floats where the result is not an integer (`exp`, `divide`, ...): f64 for 64-bit integers, else f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx import ops
from rlx.ir.dtype import DType
from rlx.numpy import complex_functions
from rlx.numpy.arguments import (
    array_function,
    binary_function,
    convert,
    inexact,
    operand,
    promoted,
    unary_function,
    value,
)
from rlx.ops.define.operands import common_dtype, dtype_of

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "clip",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "divide",
    "divmod",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "fix",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "heaviside",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "mod",
    "modf",
    "multiply",
    "negative",
    "nextafter",
    "positive",
    "pow",
    "power",
    "rad2deg",
    "radians",
    "reciprocal",
    "remainder",
    "rint",
    "round",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
]


def _integers_kept(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Rounding functions leave integers and bools as they are."""
    return lambda x: build(x) if dtype_of(x).is_inexact else value(x)


def _parts_rounded(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: ops.complex_(build(ops.real(x)), build(ops.imag(x)))


def _abs(x: Any) -> Any:
    return value(x) if dtype_of(x) is DType.BOOL or _is_unsigned(x) else ops.abs_(x)


def _is_unsigned(x: Any) -> bool:
    dtype = dtype_of(x)
    return dtype.is_int and not dtype.is_signed


exp = unary_function("exp", ops.exp, "e to the power x.")
exp2 = unary_function("exp2", ops.exp2, "2 to the power x.", lambda x: ops.exp(x * math.log(2)))
expm1 = unary_function("expm1", ops.expm1, "exp(x) - 1, precise for small x.", complex_functions.expm1)
log = unary_function("log", ops.log, "The natural logarithm; NaN for negative real x.")


def _log_to_base(base: float) -> Callable[[Any], Any]:
    """log(x) / log(base); parts of complex numbers by themselves, so that an infinite one does not spoil the other."""

    def log_to_base(x: Any) -> Any:
        found = ops.log(inexact(x)[0])
        if not dtype_of(found).is_complex:
            return found * (1 / math.log(base))
        return ops.complex_(ops.real(found) * (1 / math.log(base)), ops.imag(found) * (1 / math.log(base)))

    return log_to_base


log2 = unary_function("log2", ops.log2, "The logarithm to base 2.", _log_to_base(2.0))
log10 = unary_function("log10", _log_to_base(10.0), "The logarithm to base 10.")
log1p = unary_function("log1p", ops.log1p, "log(1 + x), precise for small x.", complex_functions.log1p)
sqrt = unary_function("sqrt", ops.sqrt, "The non-negative square root; NaN for negative real x.")
cbrt = unary_function("cbrt", ops.cbrt, "The real cube root.")
square = unary_function("square", ops.square, "x times x.")
sin = unary_function("sin", ops.sin, "The sine of x in radians.")
cos = unary_function("cos", ops.cos, "The cosine of x in radians.")
tan = unary_function("tan", ops.tan, "The tangent of x in radians.", complex_functions.tan)
asin = arcsin = unary_function("asin", ops.asin, "The angle in [-π/2, π/2] whose sine is x.", complex_functions.asin)
acos = arccos = unary_function("acos", ops.acos, "The angle in [0, π] whose cosine is x.", complex_functions.acos)
atan = arctan = unary_function("atan", ops.atan, "The angle in [-π/2, π/2] whose tangent is x.", complex_functions.atan)
sinh = unary_function("sinh", ops.sinh, "The hyperbolic sine.", complex_functions.sinh)
cosh = unary_function("cosh", ops.cosh, "The hyperbolic cosine.", complex_functions.cosh)
tanh = unary_function("tanh", ops.tanh, "The hyperbolic tangent.")
asinh = arcsinh = unary_function("asinh", ops.asinh, "The inverse of sinh.", complex_functions.asinh)
acosh = arccosh = unary_function("acosh", ops.acosh, "The inverse of cosh; NaN for x < 1.", complex_functions.acosh)
atanh = arctanh = unary_function("atanh", ops.atanh, "The inverse of tanh; NaN for |x| > 1.", complex_functions.atanh)
abs = absolute = unary_function("abs", _abs, "The magnitude |x|; real for complex x.", complex_functions.magnitude)
fabs = unary_function("fabs", lambda x: ops.abs_(inexact(x)[0]), "|x| as a float.")
negative = unary_function("negative", ops.neg, "-x.")
positive = unary_function("positive", value, "+x, which is x.")
sign = unary_function("sign", ops.sign, "-1, 0 or 1; NaN for NaN; x/|x| for complex x.", complex_functions.sign)
floor = unary_function("floor", _integers_kept(ops.floor), "The largest integer not above x.")
ceil = unary_function("ceil", _integers_kept(ops.ceil), "The smallest integer not below x.")
trunc = unary_function("trunc", _integers_kept(ops.trunc), "The nearest integer toward zero.")
fix = unary_function("fix", _integers_kept(ops.trunc), "The nearest integer toward zero.")
rint = unary_function(
    "rint", lambda x: ops.round_(inexact(x)[0]), "The nearest integer, ties to even.", _parts_rounded(ops.round_)
)
deg2rad = unary_function("deg2rad", lambda x: inexact(x)[0] * (math.pi / 180), "Degrees to radians.")
rad2deg = unary_function("rad2deg", lambda x: inexact(x)[0] * (180 / math.pi), "Radians to degrees.")
radians, degrees = deg2rad, rad2deg


@array_function
def reciprocal(x: Any, /) -> Any:
    """1/x; for integers the quotient truncated toward zero."""
    x = operand(x)
    return ops.recip(x) if dtype_of(x).is_inexact else ops.div(1, x)


@array_function
def round(x: Any, /, decimals: int = 0) -> Any:
    """x to `decimals` places after the point, ties to even."""
    x = value(x)
    if dtype_of(x).is_complex:
        return ops.complex_(round(ops.real(x), decimals), round(ops.imag(x), decimals))
    if decimals >= 0 and not dtype_of(x).is_inexact:
        return x
    if decimals == 0:
        return ops.round_(x)
    scale = 10.0 ** math.fabs(decimals)
    (scaled,) = inexact(x)
    result = ops.round_(scaled * scale) / scale if decimals > 0 else ops.round_(scaled / scale) * scale
    return convert(result, dtype_of(x))


around = round


def _floats(build: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: build(*inexact(a, b))


add = binary_function("add", ops.add, "x1 + x2; integers wrap, bools are joined by or.")
subtract = binary_function("subtract", ops.sub, "x1 - x2; integers wrap.")
multiply = binary_function("multiply", ops.mul, "x1 * x2; integers wrap, bools are joined by and.")
divide = true_divide = binary_function("divide", _floats(ops.div), "x1 / x2 in floats.")
maximum = binary_function("maximum", ops.maximum, "The larger of both; NaN where either is.")
minimum = binary_function("minimum", ops.minimum, "The smaller of both; NaN where either is.")
atan2 = arctan2 = binary_function("atan2", _floats(ops.atan2), "The angle of the point (x2, x1), in [-π, π].")
hypot = binary_function("hypot", _floats(ops.hypot), "√(x1² + x2²) without overflow on the way.")
logaddexp = binary_function("logaddexp", _floats(ops.logaddexp), "log(exp(x1) + exp(x2)) without overflow.")
copysign = binary_function("copysign", _floats(ops.copysign), "|x1| with the sign of x2.")
nextafter = binary_function("nextafter", _floats(ops.nextafter), "The next float of the same type after x1 toward x2.")
fmod = binary_function("fmod", ops.rem, "The remainder of x1/x2 with the sign of x1; 0 for integer x2 = 0.")


@array_function
def pow(x1: Any, x2: Any, /) -> Any:
    """x1 to the power x2; integers stay integers and wrap, and a negative integer power is truncated toward 0."""
    if common_dtype(operand(x1), operand(x2)).is_complex:
        return ops.complex_pow(value(x1), operand(x2))
    return ops.pow_(*promoted(x1, x2))


power = pow


@array_function
def float_power(x1: Any, x2: Any, /) -> Any:
    """x1 to the power x2 in floats."""
    return pow(*inexact(x1, x2))


@array_function
def logaddexp2(x1: Any, x2: Any, /) -> Any:
    """log2(2**x1 + 2**x2) without overflow."""
    x1, x2 = inexact(x1, x2)
    return ops.logaddexp(x1 * math.log(2), x2 * math.log(2)) * (1 / math.log(2))


@array_function
def remainder(x1: Any, x2: Any, /) -> Any:
    """The remainder of x1/x2 with the sign of x2, as Python's %; 0 for integer x2 = 0, NaN for float x2 = 0."""
    x1, x2 = promoted(x1, x2)
    rest = ops.rem(x1, x2)
    other_side = ops.and_(ops.ne(rest, 0), ops.ne(ops.lt(rest, 0), ops.lt(x2, 0)))
    result = ops.where(other_side, ops.add(rest, x2), rest)
    return ops.where(ops.eq(rest, 0), ops.copysign(rest, x2), result) if dtype_of(x1).is_float else result


mod = remainder


@array_function
def floor_divide(x1: Any, x2: Any, /) -> Any:
    """The largest integer not above x1/x2, consistent with `remainder`: x1 = x2*(x1 // x2) + x1 % x2."""
    x1, x2 = promoted(x1, x2)
    return ops.floordiv(x1, x2)


@array_function
def divmod(x1: Any, x2: Any, /) -> tuple[Any, Any]:
    """(x1 // x2, x1 % x2)."""
    return floor_divide(x1, x2), remainder(x1, x2)


@array_function
def fmax(x1: Any, x2: Any, /) -> Any:
    """The larger of both; a NaN counts as missing."""
    x1, x2 = promoted(x1, x2)
    return ops.where(ops.ne(x1, x1), x2, ops.where(ops.ne(x2, x2), x1, ops.maximum(x1, x2)))


@array_function
def fmin(x1: Any, x2: Any, /) -> Any:
    """The smaller of both; a NaN counts as missing."""
    x1, x2 = promoted(x1, x2)
    return ops.where(ops.ne(x1, x1), x2, ops.where(ops.ne(x2, x2), x1, ops.minimum(x1, x2)))


@array_function
def clip(x: Any, /, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
    """x limited to [min, max]; None is no limit. `a_min` and `a_max` are NumPy's older names."""
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    # Python numbers among each other stay weak.
    result = value(x) if low is None and high is None else operand(x)
    if low is not None:
        result = ops.maximum(result, operand(low))
    if high is not None:
        result = ops.minimum(result, operand(high))
    return result


@array_function
def heaviside(x1: Any, x2: Any, /) -> Any:
    """0 for x1 < 0, x2 for x1 = 0, 1 for x1 > 0."""
    x1, x2 = inexact(x1, x2)
    step = ops.where(ops.lt(x1, 0), 0.0, ops.where(ops.gt(x1, 0), 1.0, x2))
    return ops.where(ops.ne(x1, x1), x1, step)


@array_function
def sinc(x: Any, /) -> Any:
    """sin(πx)/(πx), 1 at 0."""
    (x,) = inexact(x)
    angle = x * math.pi
    zero = ops.eq(angle, 0)
    # The quotient is taken away from 0 in both branches, so that its derivative is finite there as well.
    safe = ops.where(zero, 1, angle)
    return ops.where(zero, 1 - angle * angle / 6, ops.sin(safe) / safe)


@array_function
def modf(x: Any, /) -> tuple[Any, Any]:
    """Fractional and integral part, both with the sign of x."""
    (x,) = inexact(x)
    whole = ops.trunc(x)
    infinite = ops.eq(ops.abs_(x), math.inf)
    return ops.copysign(ops.where(infinite, 0, x - whole), x), whole
