"""Inverse functions on the loop IR: asin, acos, asinh, acosh, atanh and the cube root; bounds and rules as in
`vector_math`."""

from __future__ import annotations

import math

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.math.vector_math import copysign, float_format, log, polynomial, rounded, to_float

# (asin(s) - s) / s**3 in s**2 <= 1/4, to 2**-29 and 2**-57 of asin(s).
_ASIN = {
    DType.F32: (
        0.16666666335647973,
        0.07500094979276153,
        0.04459923666785558,
        0.03110279417419203,
        0.017138190981837095,
        0.03371060920943917,
    ),
    DType.F64: (
        0.16666666666666669,
        0.07499999999998415,
        0.04464285714639142,
        0.03038194413563282,
        0.022372173062100795,
        0.01735238980570733,
        0.013971257700218363,
        0.011478727335132069,
        0.010325825844686153,
        0.005444236358400044,
        0.01743786618606299,
        -0.014910967384172082,
        0.028799050522138873,
    ),
}


def _asin_rest(k: KernelBuilder, x: Value) -> tuple[Value, Value, Value]:
    """s and asin(s) - s for s = |x|, or sqrt((1 - |x|) / 2) where |x| is above 1/2; and whether it is."""
    size = k.abs(x)
    is_far = size > 0.5
    z = k.select(is_far, k.fma(size, -0.5, 0.5), size * size)
    s = k.select(is_far, k.sqrt(z), size)
    return s, s * z * polynomial(k, z, _ASIN[x.dtype]), is_far


def asin(k: KernelBuilder, x: Value) -> Value:
    """asin|x| = pi/2 - 2 asin(s) far from 0."""
    s, rest, is_far = _asin_rest(k, x)
    # pi/2 - 2s is rounded once, and what the rounding lost goes to the rest.
    top = math.pi / 2 - s * 2.0
    lost = (math.pi / 2 - top) - s * 2.0
    far = top + (lost - rest * 2.0)
    return copysign(k, k.select(is_far, far, s + rest), x)


def acos(k: KernelBuilder, x: Value) -> Value:
    """2 asin(s) near 1, pi - 2 asin(s) near -1, pi/2 - asin(x) between."""
    s, rest, is_far = _asin_rest(k, x)
    is_negative = x < 0.0
    s, rest = k.select(is_far, s * 2.0, s), k.select(is_far, rest * 2.0, rest)
    # Whether s is taken off the base, and not added to it.
    is_less = is_far ^ is_negative ^ k.eq(x, x)
    s, rest = k.select(is_less, s, -s), k.select(is_less, rest, -rest)
    base = k.select(is_far, k.select(is_negative, math.pi, k.const(0.0, x.type)), math.pi / 2)
    top = base - s
    return top + (((base - top) - s) - rest)


def asinh(k: KernelBuilder, x: Value) -> Value:
    """log(1 + a + a**2 / (1 + sqrt(1 + a**2))) for a = |x|; log 2a where 1 vanishes beside a**2."""
    a = k.abs(x)
    is_small = a < _vanishes(x)
    squared = k.select(is_small, a * a, 1.0)
    t = a + squared / (1.0 + k.sqrt(1.0 + squared))
    return copysign(k, k.select(k.eq(a, 0.0), a, _log_of_sum(k, t, is_small, a)), x)


def acosh(k: KernelBuilder, x: Value) -> Value:
    """log(1 + t + sqrt(t (t + 2))) for t = x - 1; log 2x where 1 vanishes beside x**2."""
    is_small = x < _vanishes(x)
    t = k.select(is_small, x, 2.0) - 1.0
    t = k.select(t < 0.0, math.nan, t)
    return _log_of_sum(k, t + k.sqrt(t * (t + 2.0)), is_small, x)


def atanh(k: KernelBuilder, x: Value) -> Value:
    """log(1 + 2a / (1 - a)) / 2 for a = |x|."""
    a = k.abs(x)
    t = (a + a) / (1.0 - a)
    is_inside = t < math.inf
    half = _log_of_sum(k, k.select(is_inside, t, 0.0), is_inside, t) * 0.5
    return copysign(k, k.select(k.eq(a, 0.0), a, k.select(a > 1.0, math.nan, half)), x)


def _vanishes(x: Value) -> float:
    """From here on 1 + x**2 is x**2."""
    return 2.0 ** (float_format(x).mantissa // 2 + 1)


def _log_of_sum(k: KernelBuilder, t: Value, is_small: Value, large: Value) -> Value:
    """log(1 + t) where that `is_small`, elsewhere log(2 large); one logarithm for both."""
    u = 1.0 + t
    lost = (t - (u - 1.0)) / u
    return log(k, k.select(is_small, u, large)) + k.select(is_small, lost, math.log(2.0))


def cbrt(k: KernelBuilder, x: Value) -> Value:
    """x z**2 for z = |x|**(-1/3), which two steps of fourth order find from a third of the exponent, and the rest that
    is missing from x."""
    f = float_format(x)
    is_tiny = k.abs(x) < f.smallest_normal
    lift = 3 * (f.mantissa // 3 + 1)
    a = k.select(is_tiny, k.abs(x) * 2.0**lift, k.abs(x))
    z = _inverse_third(k, a)
    for _ in range(2):
        missing = k.fma(a * z, -(z * z), 1.0)
        z = k.fma(z * missing, polynomial(k, missing, (1 / 3, 2 / 9, 14 / 81)), z)
    square = z * z
    y = a * square
    y = k.fma(k.fma(-(y * y), y, a) * square, 1 / 3, y)
    y = k.select(is_tiny, y * 2.0 ** (-lift // 3), y)
    return copysign(k, k.select((a < math.inf) & k.ne(a, 0.0), y, a), x)


# What the exponent field of x**(-1/3) is short of, and the mantissa that makes the straight line best.
_THIRD = 0.0450466


def _inverse_third(k: KernelBuilder, x: Value) -> Value:
    """x**(-1/3) to 4 %, for a normal x > 0: the bits of a float are about its logarithm."""
    f = float_format(x)
    bits = k.bitcast(x, f.signed)
    shift = 0 if f.mantissa < 32 else 32
    scale = 2.0 ** (f.mantissa - shift)
    high = k.cast(bits, x.dtype) if shift == 0 else to_float(k, bits >> shift, x.dtype)
    wanted = k.fma(high, -1 / 3, scale * (4 / 3 * (f.bias - _THIRD)))
    field = k.cast(wanted, f.signed) if shift == 0 else rounded(k, wanted)[0] << shift
    return k.bitcast(field, x.dtype)
