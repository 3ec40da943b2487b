"""Incomplete gamma and beta functions, regularised, with derivatives in every argument.

Values come from a power series on one side and a continued fraction on the other, whichever converges fast there, in
loops that end when all elements have converged. Derivatives in the limit of the integral are the integrand; those in
the parameters are the loops differentiated forward, so that reverse mode never walks back through a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes

from rlx import ops
from rlx.autodiff import custom_jvp, jvp
from rlx.numpy.arguments import array_function, inexact
from rlx.numpy.manipulation import broadcast_arrays
from rlx.ops.define.operands import dtype_of
from rlx.trace.control import while_loop

__all__ = ["betainc", "gammainc", "gammaincc"]

# No argument for which the series or fraction is used needs more; near x = a it takes about 7·√a rounds.
_MOST_ROUNDS = 20_000
# Derivatives in parameters converge a little later than values.
_ROUNDS_AFTER = 6


def _converged(first: Any, advance: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """The state after `advance(k, state) -> (state, still moving?)` has settled for all elements, and a bit later."""

    def go_on(loop: Any) -> Any:
        k, still, _ = loop
        return ops.and_(ops.lt(still, _ROUNDS_AFTER), ops.lt(k, float(_MOST_ROUNDS)))

    def step(loop: Any) -> Any:
        k, still, state = loop
        state, moving = advance(k, state)
        settled = ops.or_(ops.gt(still, 0.0), ops.not_(ops.reduce_any(moving)))
        return k + 1.0, ops.where(settled, still + 1.0, 0.0), state

    dtype = dtype_of(first[0])
    return while_loop(go_on, step, (ops.full((), 1.0, dtype), ops.full((), 0.0, dtype), first))[2]


def _precision(x: Any) -> float:
    """The distance of 1 from the next number of the type of x."""
    return float(ml_dtypes.finfo(dtype_of(x).numpy).eps)


def _fraction(first: Any, terms: Callable[[Any], tuple[Any, Any]]) -> Any:
    """first + a1/(b1 + a2/(b2 + ...)) from the front, by the method of Lentz; `terms(k)` is (a, b)."""
    tiny = 1e-30
    eps = 4.0 * _precision(first)

    def away_from_zero(x: Any) -> Any:
        return ops.where(ops.lt(ops.abs_(x), tiny), tiny, x)

    def advance(k: Any, state: Any) -> tuple[Any, Any]:
        value, c, d = state
        a, b = terms(k)
        d = 1.0 / away_from_zero(b + a * d)
        c = away_from_zero(b + a / c)
        factor = c * d
        return (value * factor, c, d), ops.gt(ops.abs_(factor - 1.0), eps)

    start = away_from_zero(first)
    return _converged((start, start, ops.zeros_like(start)), advance)[0]


def _gamma_parts(a: Any, x: Any) -> tuple[Any, Any]:
    """(P, Q), the lower and the upper part of the gamma distribution of shape a, for a > 0 and x > 0."""
    low = ops.lt(x, a + 1.0)
    # Each side gets arguments for which it converges; what it gives for the others is not used.
    x_low, x_high = ops.where(low, x, 0.5 * a), ops.where(low, a + 2.0, x)

    def add_term(k: Any, state: Any) -> tuple[Any, Any]:
        term, total = state
        term = term * x_low / (a + k)
        return (term, total + term), ops.gt(term, total * _precision(x))

    one = ops.ones_like(x_low)
    series = _converged((one, one), add_term)[1]
    fraction = _fraction(x_high + 1.0 - a, lambda k: (-k * (k - a), x_high + 2.0 * k + 1.0 - a))
    lower = ops.exp(a * ops.log(x_low) - x_low - ops.lgamma(a + 1.0)) * series
    upper = ops.exp(a * ops.log(x_high) - x_high - ops.lgamma(a)) / fraction
    return ops.where(low, lower, 1.0 - upper), ops.where(low, 1.0 - lower, upper)


def _gamma_part(which: int) -> Callable[[Any, Any], Any]:
    def value_of(a: Any, x: Any) -> Any:
        usual = ops.and_(ops.and_(ops.gt(a, 0.0), ops.gt(x, 0.0)), ops.lt(x, math.inf))
        safe_a, safe_x = ops.where(usual, a, 1.0), ops.where(usual, x, 1.0)
        value = _gamma_parts(safe_a, safe_x)[which]
        nothing, everything = ((0.0, 1.0), (1.0, 0.0))[which]
        ends = ops.where(ops.eq(x, 0.0), nothing, everything)
        # Without a shape all of the distribution lies at 0.
        ends = ops.where(ops.eq(a, 0.0), ops.where(ops.eq(x, 0.0), math.nan, everything), ends)
        outside = ops.or_(ops.or_(ops.lt(x, 0.0), ops.lt(a, 0.0)), ops.or_(ops.ne(x, x), ops.ne(a, a)))
        return ops.where(usual, value, ops.where(outside, math.nan, ends))

    part: Any = custom_jvp(value_of)

    def part_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (a, x), (along_a, along_x) = primals, tangents
        sign = (1.0, -1.0)[which]
        usual = ops.and_(ops.gt(a, 0.0), ops.gt(x, 0.0))
        safe_a, safe_x = ops.where(usual, a, 1.0), ops.where(usual, x, 1.0)
        density = ops.exp((safe_a - 1.0) * ops.log(safe_x) - safe_x - ops.lgamma(safe_a))
        by_shape = jvp(lambda a: _gamma_parts(a, safe_x)[which], (safe_a,), (ops.ones_like(safe_a),))[1]
        slope_a, slope_x = (ops.where(usual, slope, 0.0) for slope in (by_shape, sign * density))
        return part(a, x), slope_a * along_a + slope_x * along_x

    part.defjvp(part_jvp)
    found: Callable[[Any, Any], Any] = part
    return found


_LOWER, _UPPER = _gamma_part(0), _gamma_part(1)


@array_function
def gammainc(a: Any, x: Any) -> Any:
    """The integral of t^(a-1)·e^-t from 0 to x, divided by gamma(a)."""
    return _LOWER(*broadcast_arrays(*inexact(a, x)))


@array_function
def gammaincc(a: Any, x: Any) -> Any:
    """1 - gammainc(a, x), exact where that is small."""
    return _UPPER(*broadcast_arrays(*inexact(a, x)))


def _beta_part(a: Any, b: Any, x: Any) -> Any:
    """The beta distribution function for 0 < x < 1 and positive a, b."""
    # The fraction converges fast below the mean; above it the distribution is read from the other end.
    swap = ops.gt(x, (a + 1.0) / (a + b + 2.0))
    p, q = ops.where(swap, b, a), ops.where(swap, a, b)
    y = ops.where(swap, 1.0 - x, x)

    def terms(k: Any) -> tuple[Any, Any]:
        half = ops.floor(k * 0.5)
        even = half * (q - half) * y / ((p + 2.0 * half - 1.0) * (p + 2.0 * half))
        odd = -(p + half) * (p + q + half) * y / ((p + 2.0 * half) * (p + 2.0 * half + 1.0))
        return ops.where(ops.eq(half * 2.0, k), even, odd), ops.ones_like(y)

    log_front = p * ops.log(y) + q * ops.log1p(-y) - (ops.lgamma(p) + ops.lgamma(q) - ops.lgamma(p + q))
    # An odd term with half = 0 is the first one, -(p)(p+q)/(p(p+1)).
    value = ops.exp(log_front) / (p * _fraction(ops.ones_like(y), terms))
    return ops.where(swap, 1.0 - value, value)


def _beta_value(a: Any, b: Any, x: Any) -> Any:
    usual, safe_a, safe_b, safe_x = _inside(a, b, x)
    outside = ops.or_(ops.or_(ops.lt(x, 0.0), ops.gt(x, 1.0)), ops.or_(ops.le(a, 0.0), ops.le(b, 0.0)))
    unknown = ops.or_(ops.ne(x, x), ops.or_(ops.ne(a, a), ops.ne(b, b)))
    ends = ops.where(ops.or_(outside, unknown), math.nan, ops.where(ops.le(x, 0.0), 0.0, 1.0))
    return ops.where(usual, _beta_part(safe_a, safe_b, safe_x), ends)


def _inside(a: Any, b: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """Where the integral is an ordinary one, and arguments that are ordinary everywhere."""
    shapes = ops.and_(ops.gt(a, 0.0), ops.gt(b, 0.0))
    usual = ops.and_(shapes, ops.and_(ops.gt(x, 0.0), ops.lt(x, 1.0)))
    return usual, ops.where(usual, a, 1.0), ops.where(usual, b, 1.0), ops.where(usual, x, 0.5)


_betainc: Any = custom_jvp(_beta_value)


def _betainc_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    usual, a, b, x = _inside(*primals)
    log_beta = ops.lgamma(a) + ops.lgamma(b) - ops.lgamma(a + b)
    density = ops.exp((a - 1.0) * ops.log(x) + (b - 1.0) * ops.log1p(-x) - log_beta)
    one = ops.ones_like(a)
    by_a = jvp(lambda a: _beta_part(a, b, x), (a,), (one,))[1]
    by_b = jvp(lambda b: _beta_part(a, b, x), (b,), (one,))[1]
    tangent = sum(ops.where(usual, slope, 0.0) * t for slope, t in zip((by_a, by_b, density), tangents))
    return _betainc(*primals), tangent


_betainc.defjvp(_betainc_jvp)


@array_function
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The integral of t^(a-1)·(1-t)^(b-1) from 0 to x, divided by beta(a, b)."""
    return _betainc(*broadcast_arrays(*inexact(a, b, x)))
