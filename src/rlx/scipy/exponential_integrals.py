"""Exponential, sine and cosine integrals, the dilogarithm, Owen's T: fixed numbers of terms, chosen by region."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError
from rlx.numpy.arguments import array_function, inexact
from rlx.numpy.creation import asarray
from rlx.numpy.manipulation import broadcast_arrays
from rlx.ops.define.operands import convert, dtype_of
from rlx.trace.control import fori_loop

__all__ = ["bernoulli", "exp1", "expi", "expn", "owens_t", "sici", "spence"]

_EULER = float(np.euler_gamma)


def bernoulli_numbers(n: int) -> list[float]:
    """B0, B1 = -1/2, B2, .., Bn, from exact fractions."""
    from fractions import Fraction

    numbers: list[Fraction] = []
    for m in range(n + 1):
        known = sum((math.comb(m + 1, k) * b for k, b in enumerate(numbers)), Fraction(0))
        numbers.append(Fraction(1) if m == 0 else -known / (m + 1))
    return [float(b) for b in numbers]


@array_function
def bernoulli(n: int) -> Any:
    """The Bernoulli numbers B0, .., Bn, with B1 = -1/2."""
    if not isinstance(n, int) or n < 0:
        raise OpError(f"bernoulli: n is a number that is known and not negative, got {n!r}")
    return asarray(bernoulli_numbers(n))


def _series_part(x: Any, terms: int, sign: float) -> Any:
    """Σ (sign·x)^k / (k·k!) from k = 1."""

    def add_term(k: Any, state: Any) -> Any:
        term, total = state
        number = convert(k, dtype_of(x))
        term = term * (sign * x / number)
        return term, total + term / number

    return fori_loop(1, terms, add_term, (ops.ones_like(x), ops.zeros_like(x)))[1]


def _scaled_fraction(n: Any, x: Any) -> Any:
    """e^x·E_n(x) for x > 1, by the continued fraction 1/(x+n - 1·n/(x+n+2 - 2(n+1)/(x+n+4 - ...)))."""
    last = 120

    def from_the_end(step: Any, value: Any) -> Any:
        k = last - convert(step, dtype_of(x))
        return k * (n + (k - 1.0)) / (x + n + 2.0 * k - value)

    return 1.0 / (x + n - fori_loop(0, last, from_the_end, ops.zeros_like(x)))


@array_function
def exp1(x: Any) -> Any:
    """E1(x), the integral of e^-t / t from x to infinity, for x > 0; inf at 0, NaN below."""
    (x,) = inexact(x)
    low = ops.le(x, 1.0)
    near = ops.where(low, ops.maximum(x, 0.0), 1.0)
    far = ops.where(low, 2.0, x)
    series = -_EULER - ops.log(near) - _series_part(near, 22, -1.0)
    return ops.where(ops.lt(x, 0.0), math.nan, ops.where(low, series, ops.exp(-far) * _scaled_fraction(1.0, far)))


@array_function
def expi(x: Any) -> Any:
    """Ei(x), the integral of e^t / t from minus infinity to x; -inf at 0."""
    (x,) = inexact(x)
    near = ops.where(ops.lt(x, 0.0), 0.0, ops.minimum(x, 40.0))
    series = _EULER + ops.log(near) + _series_part(near, 130, 1.0)
    far = ops.maximum(x, 40.0)
    # e^x / x·Σ k! / x^k; terms shrink up to k = x.
    term = total = ops.ones_like(far)
    for k in range(1, 36):
        term = term * (k / far)
        total = total + term
    right = ops.where(ops.lt(x, 40.0), series, ops.exp(far) / far * total)
    return ops.where(ops.lt(x, 0.0), -exp1(ops.abs_(ops.where(ops.lt(x, 0.0), x, 1.0))), right)


@array_function
def expn(n: Any, x: Any) -> Any:
    """E_n(x), the integral of e^(-xt) / t^n from 1 to infinity, for n = 0, 1, 2, .. and x >= 0."""
    n, x = broadcast_arrays(*inexact(n, x))
    low = ops.le(x, 1.0)
    near, far = ops.where(low, ops.maximum(x, 0.0), 1.0), ops.where(low, 2.0, x)
    # Σ over k != n-1 of (-x)^k / ((n-1-k)·k!), and the term with a logarithm in place of k = n-1.
    power, total = ops.ones_like(x), ops.zeros_like(x)
    log_power, harmonic = ops.zeros_like(x), ops.zeros_like(x)
    last, sum_so_far = n - 1.0, 0.0
    for k in range(24):
        here = ops.eq(last, float(k))
        total = total + ops.where(here, 0.0, power / ops.where(here, 1.0, last - k))
        log_power, harmonic = ops.where(here, power, log_power), ops.where(here, sum_so_far, harmonic)
        power = power * (-near / (k + 1.0))
        sum_so_far += 1.0 / (k + 1.0)
    # x^(n-1)·log(x) is 0 at 0 for n > 1.
    log_term = ops.where(ops.eq(log_power, 0.0), 0.0, log_power * (harmonic - _EULER - ops.log(near)))
    series = ops.where(ops.eq(n, 0.0), ops.exp(-near) / near, total + log_term)
    answer = ops.where(low, series, ops.exp(-far) * _scaled_fraction(n, far))
    return ops.where(ops.or_(ops.lt(x, 0.0), ops.lt(n, 0.0)), math.nan, answer)


@array_function
def sici(x: Any) -> tuple[Any, Any]:
    """(Si, Ci): the integral of sin(t)/t from 0 to x, and that of cos(t)/t from infinity to |x|."""
    (x,) = inexact(x)
    size = ops.abs_(x)
    low = ops.lt(size, 6.0)
    near, far = ops.where(low, size, 1.0), ops.where(low, 8.0, size)
    term = si = near
    even, ci = ops.ones_like(near), _EULER + ops.log(near)
    for k in range(1, 22):
        even = even * (-near * near) / ((2.0 * k - 1.0) * (2.0 * k))
        ci = ci + even / (2.0 * k)
        term = term * (-near * near) / ((2.0 * k) * (2.0 * k + 1.0))
        si = si + term / (2.0 * k + 1.0)
    # e^(ix)·E1(ix) is a continued fraction, evaluated from its end, real and imaginary part apart.

    def from_the_end(step: Any, state: Any) -> Any:
        k = 80.0 - convert(step, dtype_of(far))
        real, imag = 1.0 + 2.0 * k - state[0], far - state[1]
        scale = k * k / (real * real + imag * imag)
        return scale * real, -scale * imag

    real, imag = fori_loop(0, 80, from_the_end, (ops.zeros_like(far), ops.zeros_like(far)))
    below_real, below_imag = 1.0 - real, far - imag
    size_below = below_real * below_real + below_imag * below_imag
    real, imag = below_real / size_below, -below_imag / size_below
    cos, sin = ops.cos(far), ops.sin(far)
    e1_real, e1_imag = cos * real + sin * imag, cos * imag - sin * real
    # E1(ix) = -Ci(x) + i·(Si(x) - π/2).
    sine = ops.where(low, si, math.pi / 2 + e1_imag)
    cosine = ops.where(low, ci, -e1_real)
    sine = ops.where(ops.eq(size, math.inf), math.pi / 2, sine)
    cosine = ops.where(ops.eq(size, math.inf), 0.0, cosine)
    zero = ops.eq(x, 0.0)
    return (
        ops.where(zero, 0.0, ops.sign(x) * sine),
        ops.where(zero, -math.inf, cosine),
    )


@array_function
def spence(x: Any) -> Any:
    """The dilogarithm Li2(1 - x): the integral of log(t) / (1 - t) from 1 to x, for x >= 0."""
    (x,) = inexact(x)
    zero = ops.eq(x, 0.0)
    safe = ops.where(ops.or_(ops.lt(x, 0.0), zero), 1.0, x)
    large, small = ops.gt(safe, 2.0), ops.lt(safe, 0.5)
    # Li2(w) with w in [-1, 1/2], where u = -log(1-w) is small, by reflection at 1/2 and inversion beyond 2.
    inverse = ops.where(large, 1.0 / safe, safe)
    flip = ops.or_(small, ops.lt(inverse, 0.5))
    w = ops.where(flip, inverse, 1.0 - inverse)
    u = -ops.log1p(-w)
    square = u * u
    numbers = bernoulli_numbers(24)
    total = ops.zeros_like(u)
    for k in range(24, 0, -2):
        total = (total + numbers[k] / math.factorial(k + 1)) * square
    li2 = u - 0.25 * square + u * total
    log_x, log_inverse = ops.log(safe), ops.log(inverse)
    reflected = math.pi**2 / 6 - log_inverse * ops.log1p(-ops.where(flip, inverse, 0.0)) - li2
    value = ops.where(flip, reflected, li2)
    value = ops.where(large, -value - 0.5 * log_x * log_x, value)
    return ops.where(ops.lt(x, 0.0), math.nan, ops.where(zero, math.pi**2 / 6, value))


@array_function
def owens_t(h: Any, a: Any) -> Any:
    """Owen's T: the integral of e^(-h²(1+t²)/2) / (2π(1+t²)) from 0 to a."""
    from rlx.scipy.special import ndtr

    h, a = broadcast_arrays(*inexact(h, a))
    size, slope = ops.abs_(h), ops.abs_(a)
    steep = ops.gt(slope, 1.0)
    # T(h, a) with a > 1 in terms of T(ah, 1/a), so that the integral is over at most [0, 1].
    reach = ops.where(steep, 1.0 / ops.where(steep, slope, 1.0), slope)
    height = ops.where(steep, ops.minimum(size * slope, 1e100), size)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    dtype = dtype_of(reach)
    t = ops.expand_dims(reach, -1) * convert(0.5 * (nodes + 1.0), dtype)
    stretch = 1.0 + t * t
    heights = ops.expand_dims(height, -1)
    integrand = ops.exp(-0.5 * heights * heights * stretch) / stretch
    integral = ops.reduce_sum(integrand * convert(0.5 * weights, dtype), -1) * reach / (2.0 * math.pi)
    # ndtr of negative numbers, which stays exact where it is small.
    left, right = ndtr(-size), ndtr(-height)
    beyond = 0.5 * (left + right) - left * right - integral
    value = ops.where(steep, beyond, integral)
    value = ops.where(ops.eq(slope, math.inf), 0.5 * left, value)
    return ops.sign(a) * value
