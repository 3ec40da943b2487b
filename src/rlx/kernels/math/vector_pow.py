"""pow on the loop IR: exp(y log x) with a logarithm of more digits than the result has; bounds as in `vector_math`."""

from __future__ import annotations

import math

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.math.vector_math import (
    F64_FORMAT,
    at_least,
    at_most,
    exp_sum,
    float_format,
    polynomial,
    short_chain,
    split_exponent,
)

# 2/3 in two parts by type, and (2 atanh(s) - 2 s - 2/3 s**3) / s**5 in s**2, s**2 <= 0.03, to 2**-73 of the logarithm.
_TWO_THIRDS = {
    DType.F64: (2.0 / 3.0, 3.700743415417188e-17),
    DType.F32: (0.6666666865348816, -1.9868214962137642e-08),
}
_LOG_TAIL = (
    0.39999999999999974,
    0.28571428571446317,
    0.22222222217244975,
    0.1818181890596878,
    0.15384554446148763,
    0.1333641042125894,
    0.11672936414987235,
    0.12004639957376727,
)

# For f32 in f64: 2 atanh(s) / (s ln 2) in s**2, s**2 <= 0.03, to 2**-37 of it, and 2**f, |f| <= 1/2, to 2**-29.
_LOG2 = (2.88539008179014, 0.9617966732657086, 0.5770836004214647, 0.41167174081601576, 0.34074906822729495)
_EXP2 = (
    1.0000000005550556,
    0.6931472057673699,
    0.2402264688604356,
    0.055503287113021174,
    0.009618489246607492,
    0.0013399957831442715,
    0.00015345788846589668,
)
# Powers of two beyond those of f32, denormals and roundings included.
_EXP2_RANGE = (-200.0, 200.0)

_Pair = tuple[Value, Value]  # an unevaluated sum, the second part small beside the first


def pow(k: KernelBuilder, x: Value, y: Value) -> Value:
    """x**y with C's special cases: 1 for y = 0 and for x = 1; NaN for a negative x and a y that is no integer."""
    f = float_format(x)
    power = _power(k, k.abs(x), y)
    bits = k.bitcast(x, f.signed)
    is_ordinary = (bits >= f.bits_of(0.0, 1 - f.bias)) & (bits < f.bits_of(0.0, f.bias + 1)) & (k.abs(y) < math.inf)
    # Most vectors have positive, normal numbers only.
    all_ordinary = k.reduce("and", is_ordinary)
    (found,) = k.choose(all_ordinary, lambda: [power], lambda: [_with_special_cases(k, x, y, power)])
    return found


def _with_special_cases(k: KernelBuilder, x: Value, y: Value, power: Value) -> Value:
    """x**y from a `power` of |x| that knows neither 0 nor infinity, neither signs nor NaN."""
    f, size = float_format(x), k.abs(x)
    is_falling = y < 0.0
    power = k.select(k.eq(size, 0.0), k.select(is_falling, math.inf, k.const(0.0, x.type)), power)
    power = k.select(k.eq(size, math.inf), k.select(is_falling, 0.0, k.const(math.inf, x.type)), power)
    grows = (size > 1.0) ^ is_falling
    power = k.select(k.eq(k.abs(y), math.inf), k.select(grows, math.inf, k.const(0.0, x.type)), power)
    is_integer = k.eq(y, k.op("floor", y))
    half = y * 0.5
    is_odd = is_integer & k.ne(half, k.op("floor", half))
    power = k.select(is_odd & (k.bitcast(x, f.signed) < 0), -power, power)
    is_nan = (x < 0.0) & (size < math.inf) & (k.abs(y) < math.inf) & ~is_integer
    power = k.select(is_nan | k.ne(x, x) | k.ne(y, y), math.nan, power)
    is_one = k.eq(y, 0.0) | k.eq(x, 1.0) | (k.eq(x, -1.0) & k.eq(k.abs(y), math.inf))
    return k.select(is_one, 1.0, power)


def _power(k: KernelBuilder, x: Value, y: Value) -> Value:
    """x**y for finite x > 0 and finite y."""
    f = float_format(x)
    if x.dtype is DType.F32 and k.has_f64():
        return k.cast(_exp2(k, k.cast(y, DType.F64) * _wide_log2(k, x)), DType.F32)
    high, low = _log_pair(k, x)
    product, error = _exact_product(k, y, high)
    low_product = k.fma(y, low, error)
    is_ordinary = k.abs(product) < 2.0 * -f.exp_range[0]
    inside = at_most(k, product, f.exp_range[1])
    return exp_sum(k, inside, k.select(is_ordinary, low_product, 0.0), lift=1)


def _wide_log2(k: KernelBuilder, x: Value) -> Value:
    """log2(x) in f64 to 2**-36 of it, for a finite f32 x > 0: e + s P(s*s) with x = m 2**e and s = (m-1)/(m+1)."""
    e, m = split_exponent(k, x)
    # A quotient of f32 and a step of Newton's method take less time than one of f64.
    inverse = k.cast(1.0 / (m + 1.0), DType.F64)
    m = k.cast(m, DType.F64)
    inverse = k.fma(inverse, k.fma(-(m + 1.0), inverse, 1.0), inverse)
    s = (m - 1.0) * inverse
    return k.fma(s, polynomial(k, s * s, _LOG2), k.cast(e, DType.F64))


def _exp2(k: KernelBuilder, x: Value) -> Value:
    """2**x to 2**-28 of it in f64; beyond the range of f32 some number that is beyond it, too."""
    f = F64_FORMAT
    inside = at_most(k, at_least(k, x, _EXP2_RANGE[0]), _EXP2_RANGE[1])
    shifted = inside + f.magic
    y = polynomial(k, inside - (shifted - f.magic), _EXP2)
    return k.bitcast(k.bitcast(y, f.signed) + (k.bitcast(shifted, f.signed) << f.mantissa), x.dtype)


def _log_pair(k: KernelBuilder, x: Value) -> _Pair:
    """log(x) in two parts, good to about 2**-65 of it, or 2**-35 in f32.

    log(x) = e ln2 + 2s + s z (2/3 + z q(z)) with s = (m-1)/(m+1), z = s*s; all but z q(z) is carried in pairs.
    """
    f, (two_thirds, rest_of_it) = float_format(x), _TWO_THIRDS[x.dtype]
    e, m = split_exponent(k, x)
    s = _quotient(k, m - 1.0, m)
    z = _product(k, s, s)
    tail = z[0] * short_chain(k, z[0], _LOG_TAIL)
    leading, lost = _quick_sum(k, k.const(two_thirds, x.type), tail)
    cubic = _product(k, s, _product(k, z, (leading, lost + rest_of_it)))
    doubled = _quick_sum(k, s[0] * 2.0, cubic[0])
    low = doubled[1] + k.fma(s[1], 2.0, cubic[1])
    # Where e is not 0, e ln2 is larger than what is added to it.
    total = _quick_sum(k, e * f.ln2[0], doubled[0])
    return _quick_sum(k, total[0], total[1] + k.fma(e, f.ln2[1], low))


def _quotient(k: KernelBuilder, r: Value, m: Value) -> _Pair:
    """r / (m + 1) as a pair, where r = m - 1 is exact."""
    divisor = m + 1.0
    lost = m - (divisor - 1.0)
    inverse = 1.0 / divisor
    high = r * inverse
    product, error = _exact_product(k, high, divisor)
    return high, k.fma(-high, lost, (r - product) - error) * inverse


def _halves(k: KernelBuilder, a: Value) -> _Pair:
    """a in two parts of at most half its bits each, whose products are exact."""
    f = float_format(a)
    high = k.bitcast(k.bitcast(a, f.signed) & -(1 << (f.mantissa // 2 + 1)), a.dtype)
    return high, a - high


def _exact_product(k: KernelBuilder, a: Value, b: Value) -> _Pair:
    """a*b and its rounding error, by an exact fma or else as Dekker does it: both are the same number."""
    product = a * b
    if k.has_fma():
        return product, k.fma(a, b, -product)
    (a_high, a_low), (b_high, b_low) = _halves(k, a), _halves(k, b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _product(k: KernelBuilder, a: _Pair, b: _Pair) -> _Pair:
    """a*b but for the product of the small parts."""
    high, error = _exact_product(k, a[0], b[0])
    return high, k.fma(a[0], b[1], k.fma(a[1], b[0], error))


def _quick_sum(k: KernelBuilder, a: Value, b: Value) -> _Pair:
    """a + b and its rounding error, for |a| >= |b|."""
    total = a + b
    return total, b - (total - a)
