"""Distributions over real numbers, by the names of `scipy.stats`."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.nn.activations import softplus
from rlx.scipy import special
from rlx.scipy.stats.distributions import Continuous

__all__ = ["beta", "cauchy", "chi2", "expon", "gamma", "gennorm", "gumbel_l", "gumbel_r", "laplace", "logistic"]
__all__ += ["lognorm", "norm", "pareto", "t", "truncnorm", "uniform", "vonmises", "weibull_min", "wrapcauchy"]

_LOG_2PI = math.log(2 * math.pi)


def _log_normal_density(z: Any) -> Any:
    return -0.5 * z * z - 0.5 * _LOG_2PI


norm = Continuous(
    "norm",
    logpdf=_log_normal_density,
    cdf=special.ndtr,
    sf=lambda z: special.ndtr(-z),
    logcdf=special.log_ndtr,
    logsf=lambda z: special.log_ndtr(-z),
    ppf=special.ndtri,
    isf=lambda q: -special.ndtri(q),
)

lognorm = Continuous(
    "lognorm",
    "s",
    logpdf=lambda z, s: _log_normal_density(ops.log(z) / s) - ops.log(s) - ops.log(z),
    cdf=lambda z, s: special.ndtr(ops.log(z) / s),
    sf=lambda z, s: special.ndtr(-ops.log(z) / s),
    ppf=lambda q, s: ops.exp(s * special.ndtri(q)),
    support=(0.0, math.inf),
)

expon = Continuous(
    "expon",
    logpdf=lambda z: -z,
    cdf=lambda z: -ops.expm1(-z),
    logsf=lambda z: -z,
    ppf=lambda q: -ops.log1p(-q),
    isf=lambda q: -ops.log(q),
    support=(0.0, math.inf),
)

gamma = Continuous(
    "gamma",
    "a",
    logpdf=lambda z, a: special.xlogy(a - 1.0, z) - z - special.gammaln(a),
    cdf=lambda z, a: special.gammainc(a, z),
    sf=lambda z, a: special.gammaincc(a, z),
    support=(0.0, math.inf),
)

chi2 = Continuous(
    "chi2",
    "df",
    logpdf=lambda z, df: special.xlogy(df / 2.0 - 1.0, z / 2.0) - z / 2.0 - special.gammaln(df / 2.0) - math.log(2.0),
    cdf=lambda z, df: special.gammainc(df / 2.0, z / 2.0),
    sf=lambda z, df: special.gammaincc(df / 2.0, z / 2.0),
    support=(0.0, math.inf),
)

weibull_min = Continuous(
    "weibull_min",
    "c",
    logpdf=lambda z, c: ops.log(c) + special.xlogy(c - 1.0, z) - ops.pow_(z, c),
    logsf=lambda z, c: -ops.pow_(z, c),
    ppf=lambda q, c: ops.pow_(-ops.log1p(-q), 1.0 / c),
    support=(0.0, math.inf),
)

beta = Continuous(
    "beta",
    "a",
    "b",
    logpdf=lambda z, a, b: special.xlogy(a - 1.0, z) + special.xlog1py(b - 1.0, -z) - special.betaln(a, b),
    cdf=lambda z, a, b: special.betainc(a, b, z),
    sf=lambda z, a, b: special.betainc(b, a, 1.0 - z),
    support=(0.0, 1.0),
)


def _from_middle(z: Any, is_close: Any, slope: Any, half: Any) -> Any:
    """½ + half with the sign of z; next to 0 it is a straight line, where `half` has no derivative by its formula."""
    return 0.5 + ops.where(is_close, z * slope, ops.where(z < 0.0, -half, half))


def _t_log_density(z: Any, df: Any) -> Any:
    log_scale = special.gammaln((df + 1.0) / 2.0) - special.gammaln(df / 2.0) - 0.5 * ops.log(df * math.pi)
    return log_scale - (df + 1.0) / 2.0 * ops.log1p(z * z / df)


def _t_cdf(z: Any, df: Any) -> Any:
    square = z * z
    is_far, is_close = square > df, square < 1e-12
    # Of x and 1 - x the one that is small is known to all digits.
    tail = 0.5 * special.betainc(df / 2.0, 0.5, ops.where(is_far, df / (df + square), 0.5))
    inner = ops.where(ops.or_(is_far, is_close), 0.5, square / (df + square))
    near = _from_middle(z, is_close, ops.exp(_t_log_density(z, df)), 0.5 * special.betainc(0.5, df / 2.0, inner))
    return ops.where(is_far, ops.where(z < 0.0, tail, 1.0 - tail), near)


t = Continuous(
    "t",
    "df",
    logpdf=_t_log_density,
    cdf=_t_cdf,
    sf=lambda z, df: _t_cdf(-z, df),
)

cauchy = Continuous(
    "cauchy",
    logpdf=lambda z: -math.log(math.pi) - ops.log1p(z * z),
    # The angle between two axes keeps what 1 - cdf would lose far out.
    cdf=lambda z: ops.atan2(1.0, -z) / math.pi,
    sf=lambda z: ops.atan2(1.0, z) / math.pi,
    ppf=lambda q: ops.tan(math.pi * (q - 0.5)),
    isf=lambda q: ops.tan(math.pi * (0.5 - q)),
)

laplace = Continuous(
    "laplace",
    logpdf=lambda z: -ops.abs_(z) - math.log(2.0),
    cdf=lambda z: ops.where(z < 0.0, 0.5 * ops.exp(-ops.abs_(z)), 1.0 - 0.5 * ops.exp(-ops.abs_(z))),
    sf=lambda z: ops.where(z > 0.0, 0.5 * ops.exp(-ops.abs_(z)), 1.0 - 0.5 * ops.exp(-ops.abs_(z))),
    ppf=lambda q: ops.where(q < 0.5, ops.log(2.0 * q), -ops.log(2.0 - 2.0 * q)),
)

logistic = Continuous(
    "logistic",
    logpdf=lambda z: -ops.abs_(z) - 2.0 * softplus(-ops.abs_(z)),
    cdf=ops.sigmoid,
    sf=lambda z: ops.sigmoid(-z),
    logcdf=lambda z: -softplus(-z),
    logsf=lambda z: -softplus(z),
    ppf=special.logit,
    isf=lambda q: -special.logit(q),
)

gumbel_r = Continuous(
    "gumbel_r",
    logpdf=lambda z: -(z + ops.exp(-z)),
    logcdf=lambda z: -ops.exp(-z),
    ppf=lambda q: -ops.log(-ops.log(q)),
)

gumbel_l = Continuous(
    "gumbel_l",
    logpdf=lambda z: z - ops.exp(z),
    logsf=lambda z: -ops.exp(z),
    ppf=lambda q: ops.log(-ops.log1p(-q)),
)

uniform = Continuous(
    "uniform",
    logpdf=ops.zeros_like,
    cdf=lambda z: z,
    sf=lambda z: 1.0 - z,
    ppf=lambda q: q,
    support=(0.0, 1.0),
)

pareto = Continuous(
    "pareto",
    "b",
    logpdf=lambda z, b: ops.log(b) - (b + 1.0) * ops.log(z),
    logsf=lambda z, b: -b * ops.log(z),
    ppf=lambda q, b: ops.pow_(1.0 - q, -1.0 / b),
    support=(1.0, math.inf),
)


def _gennorm_cdf(z: Any, beta: Any) -> Any:
    power = ops.pow_(ops.abs_(z), beta)
    is_close = power < 1e-14
    half = 0.5 * special.gammainc(1.0 / beta, ops.where(is_close, 1.0, power))
    return _from_middle(z, is_close, 0.5 * beta * ops.exp(-special.gammaln(1.0 / beta)), half)


gennorm = Continuous(
    "gennorm",
    "beta",
    logpdf=lambda z, beta: ops.log(0.5 * beta) - special.gammaln(1.0 / beta) - ops.pow_(ops.abs_(z), beta),
    cdf=_gennorm_cdf,
    sf=lambda z, beta: _gennorm_cdf(-z, beta),
)

vonmises = Continuous(
    "vonmises",
    "kappa",
    logpdf=lambda z, kappa: kappa * (ops.cos(z) - 1.0) - _LOG_2PI - ops.log(special.i0e(kappa)),
)

wrapcauchy = Continuous(
    "wrapcauchy",
    "c",
    logpdf=lambda z, c: ops.log((1.0 - c * c) / (2.0 * math.pi * (1.0 + c * c - 2.0 * c * ops.cos(z)))),
    support=(0.0, 2 * math.pi),
)


def _log_mass(low: Any, high: Any) -> Any:
    """log(Φ(high) - Φ(low)), from the tails in which both lie."""
    is_right = ops.gt(low, 0.0)
    a, b = ops.where(is_right, -high, low), ops.where(is_right, -low, high)
    # Both at most 0: a difference of tails. One on each side: what the tails leave of 1.
    is_tail = ops.le(b, 0.0)
    far, near = special.log_ndtr(ops.where(is_tail, a, -2.0)), special.log_ndtr(ops.where(is_tail, b, -1.0))
    in_tail = near + ops.log1p(-ops.exp(far - near))
    across = ops.log1p(-special.ndtr(ops.where(is_tail, -1.0, a)) - special.ndtr(ops.where(is_tail, -1.0, -b)))
    return ops.where(is_tail, in_tail, across)


class _TruncatedNormal(Continuous):
    """Its support depends on its parameters, which tell the ends in units of the scale."""

    def __init__(self) -> None:
        super().__init__(
            "truncnorm",
            "a",
            "b",
            logpdf=lambda z, a, b: _inside(z, a, b, _log_normal_density(z) - _log_mass(a, b), (-math.inf, -math.inf)),
            logcdf=lambda z, a, b: _inside(
                z, a, b, _log_mass(a, _clipped(z, a, b)) - _log_mass(a, b), (-math.inf, 0.0)
            ),
            logsf=lambda z, a, b: _inside(z, a, b, _log_mass(_clipped(z, a, b), b) - _log_mass(a, b), (0.0, -math.inf)),
        )


def _clipped(z: Any, a: Any, b: Any) -> Any:
    """z where it lies between the ends, the middle elsewhere."""
    return ops.where(ops.and_(ops.gt(z, a), ops.lt(z, b)), z, 0.5 * (ops.maximum(a, -9.0) + ops.minimum(b, 9.0)))


def _inside(z: Any, a: Any, b: Any, value: Any, ends: tuple[float, float]) -> Any:
    below = ops.lt(z, a) if ends[0] == ends[1] else ops.le(z, a)
    above = ops.gt(z, b) if ends[0] == ends[1] else ops.ge(z, b)
    return ops.where(below, ends[0], ops.where(above, ends[1], value))


truncnorm = _TruncatedNormal()
