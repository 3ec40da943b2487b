"""The longer formulas behind some kinds of `Activation`: inverse erf, log-gamma and digamma.

Each comes twice: on f64 arrays, the definition; and from more primitive ops, for engines without a kernel of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.define.widening import accumulators, rounded_tensor

Array = np.ndarray[Any, np.dtype[Any]]

_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def erf_f64(x: Array) -> Array:
    return np.asarray(_erf(x), dtype=np.float64)


def erfc_f64(x: Array) -> Array:
    return np.asarray(_erfc(x), dtype=np.float64)


def horner(coefficients: Sequence[float], x: Any) -> Any:
    """The polynomial with these coefficients, highest power first, of an array or a tensor.

    >>> horner([2.0, 0.0, 1.0], 3.0)
    19.0
    """
    result: Any = coefficients[0]
    for c in coefficients[1:]:
        result = result * x + c
    return result


# Minimax polynomials for f32 in w = -log((1-y)(1+y)), by M. Giles, "Approximating the erfinv function" (2010).
_GILES_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_GILES_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


# Up to here, in w, they are good to seven digits, of which a Halley step makes all of f64; from here on this one is, in
# sqrt(w) - 5, a fit of our own.
_GILES_END = 16.0
_FAR_TAIL = (
    4.345268892802694e-06,
    -2.1722527316714338e-05,
    7.671822908108267e-05,
    -0.00021389419315195386,
    -0.00013903810081610825,
    1.0103003059710434,
    4.849906419298028,
)


def erf_inv_f64(y: Array) -> Array:
    """x with erf(x) = y; infinite at y = ±1 and NaN beyond."""
    inside = np.abs(y) < 1.0
    safe = np.where(inside, y, 0.0)
    w = -np.log((1.0 - safe) * (1.0 + safe))
    root = np.sqrt(np.maximum(w, 5.0))
    tail = np.where(w < _GILES_END, horner(_GILES_TAIL, root - 3.0), horner(_FAR_TAIL, root - 5.0))
    x = safe * np.where(w < 5.0, horner(_GILES_CENTRE, w - 2.5), tail)
    edge = np.where(np.abs(y) == 1.0, np.copysign(np.inf, y), np.nan)
    return np.where(inside, _halley_step(x, safe), edge)


def _halley_step(x: Array, y: Array) -> Array:
    """A better x. Where erf(x) - y would cancel, near 1, erfc keeps the small difference."""
    residual, central = np.empty_like(x), np.abs(y) < 0.5
    residual[central] = erf_f64(x[central]) - y[central]
    outer = ~central
    residual[outer] = np.sign(y[outer]) * ((1.0 - np.abs(y[outer])) - erfc_f64(np.abs(x[outer])))
    step = residual * (0.5 * math.sqrt(math.pi)) * np.exp(x * x)
    return x - step / (1.0 + x * step)


def decompose_erf_inv(y: Any) -> Any:
    """`erf_inv_f64` step by step for f64; two polynomials are enough for f32 and below."""
    from rlx.ops.pointwise.arithmetic import eq, lt, where
    from rlx.ops.pointwise.unary import abs_

    (wide,) = accumulators(y)
    size = abs_(wide)
    inside = lt(size, 1.0)
    safe = where(inside, wide, 0.0)
    x = _erf_inv_halley(safe) if y.dtype is DType.F64 else _erf_inv_giles(safe)
    return rounded_tensor(where(inside, x, where(eq(size, 1.0), wide * math.inf, math.nan)), y.dtype)


def _erf_inv_giles(y: Any) -> Any:
    from rlx.ops.pointwise.arithmetic import lt, maximum, where
    from rlx.ops.pointwise.unary import log, sqrt

    w = -log((1.0 - y) * (1.0 + y))
    root = sqrt(maximum(w, 5.0))
    tail = horner(_GILES_TAIL, root - 3.0)
    if y.dtype is DType.F64:
        tail = where(lt(w, _GILES_END), tail, horner(_FAR_TAIL, root - 5.0))
    return y * where(lt(w, 5.0), horner(_GILES_CENTRE, w - 2.5), tail)


def _erf_inv_halley(y: Any) -> Any:
    """One step from seven digits; where erf(x) - y would cancel, near 1, erfc keeps the small difference."""
    from rlx.ops.pointwise.arithmetic import lt, where
    from rlx.ops.pointwise.unary import abs_, erf, erfc, exp, sign

    x = _erf_inv_giles(y)
    near_one = sign(y) * ((1.0 - abs_(y)) - erfc(abs_(x)))
    residual = where(lt(abs_(y), 0.5), erf(x) - y, near_one)
    step = residual * (0.5 * math.sqrt(math.pi)) * exp(x * x)
    return x - step / (1.0 + x * step)


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


_lgamma_elements = np.frompyfunc(_lgamma, 1, 1)


def lgamma_f64(x: Array) -> Array:
    """log|Γ(x)|; +inf at the poles 0, -1, -2, ... and at ±inf."""
    return np.asarray(_lgamma_elements(x), dtype=np.float64)


# Γ is moved from x below the shift to x + _SHIFT, where the asymptotic series in 1/x² has converged.
_SHIFT = 10
# B(2k) / (2k(2k-1)), k = 7 .. 1: the series of log Γ.
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
# B(2k) / 2k, k = 7 .. 1: the series of ψ.
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def decompose_lgamma(x: Any) -> Any:
    """Stirling's series above the shift, the recurrence below it, the reflection formula left of ½."""
    from rlx.ops.pointwise.arithmetic import and_, eq, lt, or_, where
    from rlx.ops.pointwise.unary import abs_, log, round_, sin

    (wide,) = accumulators(x)
    reflected = lt(wide, 0.5)
    z = where(reflected, 1.0 - wide, wide)
    low = lt(z, float(_SHIFT))
    # The product of at most _SHIFT factors below 2·_SHIFT fits into f32.
    base = where(low, z, 1.0)
    factors = base
    for i in range(1, _SHIFT):
        factors = factors * (base + float(i))
    z = where(low, z + float(_SHIFT), z)
    inverse = 1.0 / z
    series = inverse * horner(_STIRLING, inverse * inverse)
    value = (z - 0.5) * (log(z) - 1.0) + (0.5 * math.log(2.0 * math.pi) - 0.5) + series
    value = where(low, value - log(factors), value)
    # log(π / |sin πx|) by way of sin(t)/t, which keeps denormal x.
    fraction = wide - round_(wide)
    angle = fraction * math.pi
    value = where(reflected, -log(abs_(fraction)) - log(sin(angle) / angle) - value, value)
    infinite = or_(eq(abs_(wide), math.inf), and_(reflected, eq(fraction, 0.0)))
    return rounded_tensor(where(infinite, math.inf, value), x.dtype)


def digamma_f64(x: Array) -> Array:
    """ψ(x) = d log Γ / dx: recurrence up to the shift, then the asymptotic series; NaN at the poles 0, -1, -2, ..."""
    reflected = x < 0.5
    z = np.where(reflected, 1.0 - x, x)
    low = z < _SHIFT
    base = np.where(low, z, 1.0)
    sums = sum(1.0 / (base + i) for i in range(_SHIFT))
    z = np.where(low, z + _SHIFT, z)
    inverse = 1.0 / z
    value = np.log(z) - 0.5 * inverse - inverse * inverse * horner(_DIGAMMA, inverse * inverse)
    value = np.where(low, value - sums, value)
    fraction = x - np.rint(x)
    pole = np.where(fraction == 0, np.nan, fraction)
    return np.asarray(np.where(reflected, value - math.pi / np.tan(math.pi * pole), value))


def decompose_digamma(x: Any) -> Any:
    """`digamma_f64`, written with ops."""
    from rlx.ops.pointwise.arithmetic import eq, lt, where
    from rlx.ops.pointwise.unary import log, round_, tan

    (wide,) = accumulators(x)
    reflected = lt(wide, 0.5)
    z = where(reflected, 1.0 - wide, wide)
    low = lt(z, float(_SHIFT))
    base = where(low, z, 1.0)
    sums = 1.0 / base
    for i in range(1, _SHIFT):
        sums = sums + 1.0 / (base + float(i))
    z = where(low, z + float(_SHIFT), z)
    inverse = 1.0 / z
    value = log(z) - 0.5 * inverse - inverse * inverse * horner(_DIGAMMA, inverse * inverse)
    value = where(low, value - sums, value)
    fraction = wide - round_(wide)
    pole = where(eq(fraction, 0.0), math.nan, fraction)
    return rounded_tensor(where(reflected, value - math.pi / tan(math.pi * pole), value), x.dtype)
