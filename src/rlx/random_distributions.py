"""Distributions of `rlx.random` that are made from the basic draws: by formula, or by rejection in a loop.

Rejection draws for all elements at once until every one is accepted, a new key in every round; so the numbers are
functions of the key, as everywhere. Counts (poisson, binomial) have no derivative by their parameters; gamma variables,
and what is made of them, follow their quantiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx import ops
from rlx.errors import ShapeError
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.shape import Dims, broadcast_dims
from rlx.ops.define.operands import convert, dims_of, promote_inexact
from rlx.ops.random.randomness import bernoulli, exponential, fold_in, normal, split, uniform
from rlx.trace.control import while_loop

Dimensions = Sequence[Any] | None


def _dims(shape: Dimensions, *parameters: Any) -> Dims:
    """The shape that is asked for, else that of the parameters together."""
    if shape is not None:
        return tuple(shape)
    found: Dims = ()
    for x in parameters:
        found = broadcast_dims(found, dims_of(x), "random")
    return found


def _as(dtype: DTypeLike, *values: Any) -> list[Any]:
    return [convert(v, DType.of(dtype)) for v in values]


def _open_uniform(key: Any, dims: Dims, dtype: DTypeLike) -> Any:
    """Uniform in (0, 1)."""
    return ops.exp(ops.neg(exponential(key, dims, dtype)))


def rademacher(key: Any, shape: Sequence[Any] = (), dtype: DTypeLike = DType.I32) -> Any:
    """-1 or 1, each with probability ½."""
    return convert(bernoulli(key, 0.5, shape), DType.of(dtype)) * 2 - 1


def logistic(key: Any, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """Values of the standard logistic distribution."""
    first, second = split(key)
    # The difference of two Gumbel variables; of their exponentials, the quotient.
    return ops.log(exponential(first, shape, dtype)) - ops.log(exponential(second, shape, dtype))


def laplace(key: Any, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """Values of the standard Laplace distribution."""
    first, second = split(key)
    return exponential(first, shape, dtype) - exponential(second, shape, dtype)


def cauchy(key: Any, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """Values of the standard Cauchy distribution."""
    return ops.tan(uniform(key, shape, dtype, -0.5, 0.5) * math.pi)


def lognormal(key: Any, sigma: Any = 1.0, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """exp(sigma·z) of standard normal z."""
    (sigma,) = _as(dtype, sigma)
    return ops.exp(normal(key, _dims(shape, sigma), dtype) * sigma)


def pareto(key: Any, b: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values from 1 on with density b·x^-(b+1)."""
    (b,) = _as(dtype, b)
    return ops.exp(exponential(key, _dims(shape, b), dtype) / b)


def rayleigh(key: Any, scale: Any = 1.0, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """scale·√(2e) of exponential e."""
    (scale,) = _as(dtype, scale)
    return scale * ops.sqrt(2.0 * exponential(key, _dims(shape, scale), dtype))


def weibull_min(key: Any, scale: Any, concentration: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """scale·e^(1/concentration) of exponential e."""
    scale, concentration = _as(dtype, scale, concentration)
    drawn = exponential(key, _dims(shape, scale, concentration), dtype)
    return scale * ops.pow_(drawn, 1.0 / concentration)


def maxwell(key: Any, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """The length of a vector of three standard normal values."""
    drawn = normal(key, (*shape, 3), dtype)
    return ops.sqrt(ops.reduce_sum(drawn * drawn, -1))


def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """loc ± scale·maxwell."""
    first, second = split(key)
    loc, scale = _as(dtype, loc, scale)
    dims = _dims(None, loc, scale)
    dims = (*shape, *dims)
    return rademacher(second, dims, dtype) * maxwell(first, dims, dtype) * scale + loc


def triangular(key: Any, left: Any, mode: Any, right: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values between left and right, most of them at `mode`."""
    left, mode, right = _as(dtype, left, mode, right)
    u = uniform(key, _dims(shape, left, mode, right), dtype)
    width = right - left
    share = (mode - left) / width
    rising = left + ops.sqrt(u * width * (mode - left))
    falling = right - ops.sqrt((1.0 - u) * width * (right - mode))
    return ops.where(ops.lt(u, share), rising, falling)


def geometric(key: Any, p: Any, shape: Dimensions = None, dtype: DTypeLike = DType.I32) -> Any:
    """How many trials, each a success with probability p, it takes to the first success."""
    (p,) = promote_inexact(p)
    drawn = exponential(key, _dims(shape, p), DType.F32)
    return convert(ops.floor(drawn / -ops.log1p(-p)) + 1.0, DType.of(dtype))


def wald(key: Any, mean: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values of the inverse Gaussian distribution with the given mean and scale 1."""
    first, second = split(key)
    (mean,) = _as(dtype, mean)
    dims = _dims(shape, mean)
    y = ops.square(normal(first, dims, dtype))
    lower = mean + mean * mean * y / 2.0 - mean / 2.0 * ops.sqrt(4.0 * mean * y + mean * mean * y * y)
    is_lower = ops.le(uniform(second, dims, dtype), mean / (mean + lower))
    return ops.where(is_lower, lower, mean * mean / lower)


def orthogonal(key: Any, n: int, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """Orthogonal n×n matrices, all equally likely."""
    q, r = ops.qr(normal(key, (*shape, n, n), dtype))
    # The signs of the diagonal of r make the choice unique, and so even.
    diagonal = ops.diagonal(r, 0, -2, -1)
    return q * ops.expand_dims(ops.where(ops.lt(diagonal, 0.0), -1.0, 1.0), -2)


def ball(key: Any, d: int, p: float = 2, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """Points in the unit ball of d dimensions in the p-norm, all equally likely."""
    first, second = split(key)
    drawn = generalized_normal(first, p, (*shape, d), dtype)
    radius = ops.reduce_sum(ops.pow_(ops.abs_(drawn), float(p)), -1) + exponential(second, shape, dtype)
    return drawn / ops.expand_dims(ops.pow_(radius, 1.0 / p), -1)


def generalized_normal(key: Any, p: float, shape: Sequence[Any] = (), dtype: DTypeLike = float) -> Any:
    """Values with density proportional to exp(-|x|^p)."""
    first, second = split(key)
    size = ops.pow_(gamma(first, 1.0 / p, shape, dtype), 1.0 / p)
    return size * rademacher(second, shape, dtype)


def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Dimensions = None, dtype: DTypeLike = float, method: str = "cholesky"
) -> Any:
    """Normal vectors with the given mean [..., n] and covariance [..., n, n]."""
    mean, cov = _as(dtype, mean, cov)
    lead = broadcast_dims(dims_of(mean)[:-1], dims_of(cov)[:-2], "multivariate_normal")
    if method == "cholesky":
        factor = ops.cholesky(cov)
    elif method in ("eigh", "svd"):
        values, vectors = ops.eigh(cov) if method == "eigh" else ops.svd(cov)[1::-1]
        factor = vectors * ops.expand_dims(ops.sqrt(ops.maximum(values, 0.0)), -2)
    else:
        raise ShapeError(f"multivariate_normal: method is cholesky, eigh or svd, got {method!r}")
    dims = tuple(lead if shape is None else shape)
    drawn = normal(key, (*dims, dims_of(mean)[-1]), dtype)
    return mean + ops.squeeze(ops.matmul(factor, ops.expand_dims(drawn, -1)), -1)


def _accepted(key: Any, dims: Dims, dtype: Any, draw: Callable[[Any], tuple[Any, Any]]) -> Any:
    """What `draw(key)` proposes, (values, which are accepted), drawn again where it is not, until all are."""
    blank = ops.zeros(dims, dtype)

    def round_(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        number, values, done = state
        proposed, taken = draw(fold_in(key, number))
        return number + 1, ops.where(done, values, proposed), ops.or_(done, taken)

    def unfinished(state: tuple[Any, Any, Any]) -> Any:
        return ops.not_(ops.reduce_all(state[2]))

    start = (ops.full((), 0, DType.I32), blank, ops.zeros(dims, DType.BOOL))
    return while_loop(unfinished, round_, start)[1]


@functools.cache
def _following_shape() -> Callable[[Any, Any], Any]:
    """The function (a, log x) -> log x of a gamma variable x of shape a, which moves with a so that its quantile stays:
    by the derivatives of the distribution function, dx/da = -(dP/da) / (dP/dx)."""
    from rlx.autodiff import custom_jvp

    def follow(a: Any, log_x: Any) -> Any:
        return log_x

    def follow_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        from rlx.lax.special import igamma_grad_a

        a, log_x = primals[0], follows(*primals)
        # Next to 0 the distribution function is x^a / Γ(a + 1), also where x itself is too small to be held.
        tiny = ops.lt(log_x, -37.0)
        log_safe = ops.where(tiny, -1.0, log_x)
        x = ops.exp(log_safe)
        rate = ops.neg(igamma_grad_a(a, x)) * ops.exp(x - a * log_safe + ops.lgamma(a))
        return log_x, ops.where(tiny, (ops.digamma(a + 1.0) - log_x) / a, rate) * tangents[0]

    follows: Any = custom_jvp(follow)
    follows.defjvp(follow_jvp)
    found: Callable[[Any, Any], Any] = follows
    return found


def loggamma(key: Any, a: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Logarithms of gamma variables, which may be too small themselves when `a` is."""
    (a,) = _as(dtype, a)
    kind, dims = DType.of(dtype), _dims(shape, a)
    first, second = split(key)
    small = ops.lt(a, 1.0)
    # Marsaglia and Tsang for a >= 1; below, that of a + 1 times u^(1/a).
    d = ops.where(small, a + 1.0, a) - 1.0 / 3.0
    c = 1.0 / ops.sqrt(9.0 * d)

    def draw(key: Any) -> tuple[Any, Any]:
        for_x, for_u = split(key)
        x = normal(for_x, dims, kind)
        v = 1.0 + c * x
        positive = ops.gt(v, 0.0)
        log_v = 3.0 * ops.log(ops.where(positive, v, 1.0))
        log_u = ops.neg(exponential(for_u, dims, kind))
        bound = 0.5 * x * x + d - d * ops.exp(log_v) + d * log_v
        return ops.broadcast_to(ops.log(d) + log_v, dims), ops.and_(positive, ops.lt(log_u, bound))

    drawn = _accepted(first, dims, kind, draw)
    boost = ops.where(small, exponential(second, dims, kind) / ops.where(small, a, 1.0), 0.0)
    return _following_shape()(ops.broadcast_to(a, dims), ops.stop_gradient(drawn - boost))


def gamma(key: Any, a: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values of the gamma distribution of shape a and scale 1."""
    return ops.exp(loggamma(key, a, shape, dtype))


def beta(key: Any, a: Any, b: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values of the beta distribution."""
    first, second = split(key)
    a, b = _as(dtype, a, b)
    dims = _dims(shape, a, b)
    # In logarithms, so that two variables that are both too small still have a quotient.
    return ops.sigmoid(loggamma(first, a, dims, dtype) - loggamma(second, b, dims, dtype))


def dirichlet(key: Any, alpha: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Vectors that sum to 1, of the Dirichlet distribution with parameters alpha [..., n]."""
    (alpha,) = _as(dtype, alpha)
    dims = dims_of(alpha)[:-1] if shape is None else tuple(shape)
    return ops.softmax(loggamma(key, alpha, (*dims, dims_of(alpha)[-1]), dtype), -1)


def chisquare(key: Any, df: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values of the χ² distribution with df degrees of freedom."""
    (df,) = _as(dtype, df)
    return 2.0 * gamma(key, df / 2.0, shape, dtype)


def f(key: Any, dfnum: Any, dfden: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values of the F distribution."""
    first, second = split(key)
    dfnum, dfden = _as(dtype, dfnum, dfden)
    dims = _dims(shape, dfnum, dfden)
    upper, lower = chisquare(first, dfnum, dims, dtype), chisquare(second, dfden, dims, dtype)
    return (upper / dfnum) / (lower / dfden)


def t(key: Any, df: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """Values of Student's t distribution with df degrees of freedom."""
    first, second = split(key)
    (df,) = _as(dtype, df)
    dims = _dims(shape, df)
    return normal(first, dims, dtype) * ops.sqrt(df / 2.0 / gamma(second, df / 2.0, dims, dtype))


def poisson(key: Any, lam: Any, shape: Dimensions = None, dtype: DTypeLike = DType.I32) -> Any:
    """Counts with mean lam: by waiting times below 10, by Hörmann's transformed rejection from there on."""
    (lam,) = promote_inexact(lam)
    kind, dims = DType.F32, _dims(shape, lam)
    (lam,) = _as(kind, lam)
    first, second = split(key)
    is_large = ops.ge(lam, 10.0)
    large = ops.where(is_large, lam, 10.0)
    b = 0.931 + 2.53 * ops.sqrt(large)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    surely = 0.9277 - 3.6224 / (b - 2.0)

    def draw(key: Any) -> tuple[Any, Any]:
        for_u, for_v = split(key)
        u, v = uniform(for_u, dims, kind) - 0.5, _open_uniform(for_v, dims, kind)
        us = 0.5 - ops.abs_(u)
        k = ops.floor((2.0 * a / us + b) * u + large + 0.43)
        height = ops.log(v * inverse_alpha / (a / (us * us) + b))
        fits = ops.le(height, k * ops.log(large) - large - ops.lgamma(ops.maximum(k, 0.0) + 1.0))
        sure = ops.and_(ops.ge(us, 0.07), ops.le(v, surely))
        possible = ops.and_(ops.ge(k, 0.0), ops.or_(ops.ge(us, 0.013), ops.le(v, us)))
        return k, ops.and_(possible, ops.or_(sure, fits))

    many = _accepted(first, dims, kind, draw)
    few = _arrivals(second, dims, ops.where(is_large, 0.0, lam), lambda key: exponential(key, dims, kind))
    return convert(ops.where(is_large, many, few), DType.of(dtype))


def _arrivals(key: Any, dims: Dims, time: Any, waiting: Callable[[Any], Any]) -> Any:
    """How many waiting times fit one after the other into `time`, as f32."""

    def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        number, count, elapsed = state
        elapsed = elapsed + waiting(fold_in(key, number))
        return number + 1, count + convert(ops.le(elapsed, time), DType.F32), elapsed

    def unfinished(state: tuple[Any, Any, Any]) -> Any:
        return ops.reduce_any(ops.le(state[2], time))

    zero = ops.zeros(dims, DType.F32)
    return while_loop(unfinished, step, (ops.full((), 0, DType.I32), zero, zero))[1]


def binomial(key: Any, n: Any, p: Any, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """How many of n trials succeed, each with probability p: by gaps between successes where they are few, else by
    Hörmann's transformed rejection."""
    n, p = _as(DType.F32, n, p)
    kind, dims = DType.F32, _dims(shape, n, p)
    first, second = split(key)
    # The rarer outcome is counted.
    flipped = ops.gt(p, 0.5)
    q = ops.where(flipped, 1.0 - p, p)
    is_large = ops.ge(n * q, 10.0)
    size, rate = ops.where(is_large, n, 40.0), ops.where(is_large, q, 0.5)
    spread = ops.sqrt(size * rate * (1.0 - rate))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * rate
    alpha = (2.83 + 5.1 / b) * spread
    mode = ops.floor((size + 1.0) * rate)
    odds = ops.log(rate / (1.0 - rate))
    at_mode = ops.lgamma(mode + 1.0) + ops.lgamma(size - mode + 1.0)

    def draw(key: Any) -> tuple[Any, Any]:
        for_u, for_v = split(key)
        u, v = uniform(for_u, dims, kind) - 0.5, _open_uniform(for_v, dims, kind)
        us = 0.5 - ops.abs_(u)
        k = ops.floor((2.0 * a / us + b) * u + size * rate + 0.5)
        inside = ops.and_(ops.ge(k, 0.0), ops.le(k, size))
        kept = ops.clamp(k, 0.0, size)
        ratio = at_mode - ops.lgamma(kept + 1.0) - ops.lgamma(size - kept + 1.0) + (kept - mode) * odds
        fits = ops.le(ops.log(v * alpha / (a / (us * us) + b)), ratio)
        sure = ops.and_(ops.ge(us, 0.07), ops.le(v, 0.92 - 4.2 / b))
        return kept, ops.and_(inside, ops.or_(sure, fits))

    many = _accepted(first, dims, kind, draw)
    never = ops.le(q, 0.0)
    slope = -ops.log1p(-ops.where(ops.or_(is_large, never), 0.5, q))
    time = ops.where(ops.or_(is_large, never), 0.0, n)
    # Gaps are geometric: the number of trials up to and with the next success.
    few = _arrivals(second, dims, time, lambda key: ops.floor(exponential(key, dims, kind) / slope) + 1.0)
    counted = ops.where(is_large, many, few)
    return convert(ops.where(flipped, n - counted, counted), DType.of(dtype))


def multinomial(key: Any, n: Any, p: Any, *, shape: Dimensions = None, dtype: DTypeLike = float) -> Any:
    """How many of n trials have each outcome, of which outcome i has probability p[..., i]."""
    n, p = _as(DType.F32, n, p)
    dims = tuple(dims_of(p)[:-1] if shape is None else tuple(shape)[:-1])
    count = int(dims_of(p)[-1])
    left, rest = ops.broadcast_to(n, dims), ops.broadcast_to(ops.reduce_sum(p, -1), dims)
    counts = []
    for i in range(count):
        share = ops.index(p, (..., i))
        rate = ops.clamp(share / ops.where(ops.gt(rest, 0.0), rest, 1.0), 0.0, 1.0)
        drawn = left if i == count - 1 else binomial(fold_in(key, i), left, rate, dims, DType.F32)
        counts.append(drawn)
        left, rest = left - drawn, rest - share
    return convert(ops.stack(counts, -1), DType.of(dtype))


def key_data(keys: Any) -> Any:
    """The numbers that keys are."""
    return keys


wrap_key_data = clone = key_data

__all__ = [
    *("ball", "beta", "binomial", "cauchy", "chisquare", "clone", "dirichlet", "double_sided_maxwell", "f", "gamma"),
    *("generalized_normal", "geometric", "key_data", "laplace", "loggamma", "logistic", "lognormal", "maxwell"),
    *("multinomial", "multivariate_normal", "orthogonal", "pareto", "poisson", "rademacher", "rayleigh", "t"),
    *("triangular", "wald", "weibull_min", "wrap_key_data"),
]
