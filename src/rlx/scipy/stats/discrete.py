"""Distributions over whole numbers, by the names of `scipy.stats`."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.numpy.arguments import array_function, inexact
from rlx.scipy import special
from rlx.scipy.stats.distributions import Discrete

__all__ = ["bernoulli", "betabinom", "binom", "geom", "multinomial", "nbinom", "poisson"]


def _log_choose(n: Any, k: Any) -> Any:
    return special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0)


bernoulli = Discrete(
    "bernoulli",
    "p",
    logpmf=lambda k, p: special.xlogy(k, p) + special.xlog1py(1.0 - k, -p),
    cdf=lambda k, p: ops.where(k < 1.0, 1.0 - p, 1.0),
    ppf=lambda q, p: ops.where(q <= 1.0 - p, 0.0, 1.0),
    last=lambda p: 1.0,
)

binom = Discrete(
    "binom",
    "n",
    "p",
    logpmf=lambda k, n, p: _log_choose(n, k) + special.xlogy(k, p) + special.xlog1py(n - k, -p),
    cdf=lambda k, n, p: ops.where(k >= n, 1.0, special.betainc(ops.maximum(n - k, 1.0), k + 1.0, 1.0 - p)),
    last=lambda n, p: n,
)

nbinom = Discrete(
    "nbinom",
    "n",
    "p",
    logpmf=lambda k, n, p: (
        special.gammaln(k + n)
        - special.gammaln(n)
        - special.gammaln(k + 1.0)
        + special.xlogy(n, p)
        + special.xlog1py(k, -p)
    ),
    cdf=lambda k, n, p: special.betainc(n, k + 1.0, p),
)

geom = Discrete(
    "geom",
    "p",
    logpmf=lambda k, p: special.xlog1py(k - 1.0, -p) + ops.log(p),
    cdf=lambda k, p: -ops.expm1(special.xlog1py(k, -p)),
    first=1,
)

poisson = Discrete(
    "poisson",
    "mu",
    logpmf=lambda k, mu: special.xlogy(k, mu) - special.gammaln(k + 1.0) - mu,
    cdf=lambda k, mu: special.gammaincc(k + 1.0, mu),
)

betabinom = Discrete(
    "betabinom",
    "n",
    "a",
    "b",
    logpmf=lambda k, n, a, b: _log_choose(n, k) + special.betaln(k + a, n - k + b) - special.betaln(a, b),
    last=lambda n, a, b: n,
)


class multinomial:
    """How often each of several outcomes happens in n trials; the last axes of x and p are the outcomes."""

    @staticmethod
    @array_function
    def logpmf(x: Any, n: Any, p: Any) -> Any:
        """The logarithm of the probability of the counts x."""
        x, n, p = inexact(x, n, p)
        found = special.gammaln(n + 1.0) + ops.reduce_sum(special.xlogy(x, p) - special.gammaln(x + 1.0), -1)
        return ops.where(ops.eq(ops.reduce_sum(x, -1), n), found, -math.inf)

    @staticmethod
    @array_function
    def pmf(x: Any, n: Any, p: Any) -> Any:
        """The probability of the counts x."""
        return ops.exp(multinomial.logpmf(x, n, p))
