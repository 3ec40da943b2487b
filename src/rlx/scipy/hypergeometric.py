"""Zeta and polygamma functions by Euler and Maclaurin's formula, and hypergeometric functions by their series."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from rlx import ops
from rlx.numpy.arguments import array_function, inexact
from rlx.numpy.manipulation import broadcast_arrays
from rlx.ops.define.operands import convert, dtype_of
from rlx.scipy.exponential_integrals import bernoulli_numbers
from rlx.trace.control import fori_loop

__all__ = ["hyp1f1", "hyp2f1", "polygamma", "zeta"]


@array_function
def zeta(x: Any, q: Any = 1.0) -> Any:
    """Hurwitz's zeta function, Σ (k + q)^-x over k >= 0, for x > 1 and q > 0; Riemann's without q."""
    x, q = broadcast_arrays(*inexact(x, 1.0 if q is None else q))
    inside = ops.and_(ops.gt(x, 1.0), ops.gt(q, 0.0))
    s, start = ops.where(inside, x, 2.0), ops.where(inside, q, 1.0)
    direct = 12
    total = ops.zeros_like(s)
    for k in range(direct):
        total = total + ops.exp(-s * ops.log(start + float(k)))
    # The rest of the sum: its integral, half of its first term, and corrections with Bernoulli numbers.
    a = start + float(direct)
    first = ops.exp(-s * ops.log(a))
    total = total + first * a / (s - 1.0) + 0.5 * first
    factor = first * s / a
    numbers = bernoulli_numbers(24)
    for k in range(1, 12):
        total = total + numbers[2 * k] / math.factorial(2 * k) * factor
        factor = factor * ((s + (2 * k - 1.0)) * (s + 2.0 * k)) / (a * a)
    at_zero = ops.and_(ops.le(q, 0.0), ops.eq(q, ops.floor(q)))
    pole = ops.or_(ops.eq(x, 1.0), ops.and_(ops.gt(x, 1.0), at_zero))
    return ops.where(inside, total, ops.where(pole, math.inf, math.nan))


@array_function
def polygamma(n: Any, x: Any) -> Any:
    """The n-th derivative of digamma, for x > 0 if n > 0."""
    n, x = broadcast_arrays(*inexact(n, x))
    none = ops.eq(n, 0.0)
    degree = ops.where(none, 1.0, n)
    even = ops.eq(degree - 2.0 * ops.floor(degree * 0.5), 0.0)
    value = ops.where(even, -1.0, 1.0) * ops.exp(ops.lgamma(degree + 1.0)) * zeta(degree + 1.0, x)
    return ops.where(none, ops.digamma(x), value)


@array_function
def hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """Kummer's function 1F1(a; b; x), for parameters of moderate size."""
    from rlx.scipy.special import gamma

    a, b, x = broadcast_arrays(*inexact(a, b, x))
    # Kummer's transformation makes all arguments positive, so that terms do not cancel.
    negative = ops.lt(x, 0.0)
    first, z = ops.where(negative, b - a, a), ops.abs_(x)
    polynomial = ops.and_(ops.le(first, 0.0), ops.eq(first, ops.floor(first)))
    far = ops.and_(ops.gt(z, 60.0), ops.not_(polynomial))
    near = _series(first, None, b, ops.where(far, 1.0, z), 200)
    # gamma(b) / gamma(a)·e^x·x^(a-b)·Σ (b-a)_k·(1-a)_k / (k!·x^k)
    large = ops.where(far, z, 60.0)
    start = ops.where(far, first, 1.0)
    total = _series(b - start, 1.0 - start, None, 1.0 / large, 30)
    # e^x goes with e^-x of the transformation, so that neither overflows.
    growth = ops.where(negative, 0.0, large) + (start - b) * ops.log(large)
    asymptotic = gamma(b) / gamma(start) * ops.exp(growth) * total
    return ops.where(far, asymptotic, ops.where(negative, ops.exp(ops.where(negative, x, 0.0)), 1.0) * near)


def _series(a: Any, b: Any, c: Any, z: Any, terms: int) -> Any:
    """Σ (a)_k·(b)_k / ((c)_k·k!)·z^k, without b or c where that is None."""

    def add_term(k: Any, state: Any) -> Any:
        term, total = state
        number = convert(k, dtype_of(z))
        factor = (a + number) * z / (number + 1.0)
        factor = factor if b is None else factor * (b + number)
        term = term * (factor if c is None else factor / (c + number))
        return term, total + term

    one = ops.ones_like(z)
    return fori_loop(0, terms, add_term, (one, one))[1]


def _beside_one(a: Any, b: Any, c: Any, rest: Any) -> Any:
    """2F1(a, b; c; 1 - rest) for small rest >= 0 and c - a - b that is no whole number."""
    from rlx.scipy.special import gamma

    d = c - a - b
    regular = gamma(c) * gamma(d) / (gamma(c - a) * gamma(c - b)) * _series(a, b, 1.0 - d, rest, 60)
    singular = gamma(c) * gamma(-d) / (gamma(a) * gamma(b)) * _series(c - a, c - b, 1.0 + d, rest, 60)
    inside = ops.gt(rest, 0.0)
    power = ops.exp(d * ops.log(ops.where(inside, rest, 1.0)))
    return regular + ops.where(inside, power * singular, 0.0)


@array_function
def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    """Gauss's function 2F1(a, b; c; x) for x <= 1 and parameters of moderate size.

    Where c - a - b is nearly whole and x near 1 the two parts of the answer cancel; there it is interpolated from
    parameters beside it, which keeps about 10 digits of 16.
    """
    from rlx.scipy.special import gamma

    a, b, c, x = broadcast_arrays(*inexact(a, b, c, x))
    left = ops.lt(x, -0.5)
    # Pfaff: (1-x)^-a·F(a, c-b; c; x/(x-1)), whose argument lies in [1/3, 1).
    base = ops.where(left, 1.0 - x, 1.0)
    second = ops.where(left, c - b, b)
    z = ops.where(left, x / ops.where(left, x - 1.0, 1.0), x)
    difference = c - a - second
    # The points of the interpolation stay three steps away from a whole number.
    step = 4.0 * float(ml_dtypes.finfo(dtype_of(x).numpy).eps) ** (1 / 3)
    whole = ops.lt(ops.abs_(difference - ops.round_(difference)), 0.25 * step)
    near_one = ops.and_(ops.gt(z, 0.75), ops.lt(z, 1.0))
    plain = _series(a, second, c, ops.where(ops.and_(ops.gt(z, -1.0), ops.le(z, 0.75)), z, 0.5), 130)
    rest = ops.where(near_one, 1.0 - z, 0.25)
    aside = ops.where(whole, step, 0.0)
    points = [_beside_one(a, second, c + place * aside, rest) for place in (-1.0, 1.0, -2.0, 2.0)]
    beside_one = (4.0 * (points[0] + points[1]) - (points[2] + points[3])) / 6.0
    value = ops.where(near_one, beside_one, plain)
    # At 1: Gauss's sum where it converges.
    gauss = gamma(c) * gamma(difference) / (gamma(c - a) * gamma(c - second))
    value = ops.where(ops.eq(z, 1.0), ops.where(ops.gt(difference, 0.0), gauss, math.inf), value)
    return ops.where(ops.gt(x, 1.0), math.nan, ops.exp(-a * ops.log(base)) * value)
