"""Special functions under the names of `scipy.special`, on traced values and on arrays, with derivatives.

>>> import numpy as np
>>> [round(float(x), 4) for x in (gamma(0.5), logit(0.75), xlogy(0.0, 0.0), comb(5.0, 2.0))]
[1.7725, 1.0986, 0.0, 10.0]
"""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.nn.activations import log_softmax as log_softmax
from rlx.nn.activations import logsumexp as logsumexp
from rlx.nn.activations import softmax as softmax
from rlx.numpy.arguments import array_function, inexact
from rlx.numpy.elementwise import sinc as sinc
from rlx.numpy.grids import i0 as i0

__all__ = [
    "beta",
    "betaln",
    "boxcox",
    "boxcox1p",
    "cbrt",
    "comb",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "exprel",
    "factorial",
    "gamma",
    "gammaln",
    "gammasgn",
    "huber",
    "i0",
    "kl_div",
    "log1p",
    "log_expit",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "poch",
    "polygamma",
    "pseudo_huber",
    "psi",
    "rel_entr",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
]

erf, erfc, erfinv = ops.erf, ops.erfc, ops.erf_inv
gammaln = loggamma = ops.lgamma
digamma = psi = ops.digamma
expit = ops.sigmoid
cbrt, exp2, expm1, log1p = ops.cbrt, ops.exp2, ops.expm1, ops.log1p


@array_function
def logit(x: Any) -> Any:
    """log(x / (1 - x)), the inverse of expit."""
    (x,) = inexact(x)
    return ops.log(x) - ops.log1p(-x)


@array_function
def log_expit(x: Any) -> Any:
    """log(expit(x)), exact where expit is small."""
    (x,) = inexact(x)
    return -ops.logaddexp(-x, 0.0)


@array_function
def exprel(x: Any) -> Any:
    """(exp(x) - 1) / x, 1 at 0."""
    (x,) = inexact(x)
    zero = ops.eq(x, 0.0)
    safe = ops.where(zero, 1.0, x)
    # Around 0 the first terms of the series, so that the slope there is ½.
    return ops.where(zero, 1.0 + 0.5 * x, ops.expm1(safe) / safe)


@array_function
def xlogy(x: Any, y: Any) -> Any:
    """x·log(y), 0 where x is."""
    x, y = inexact(x, y)
    nothing = ops.and_(ops.eq(x, 0.0), ops.eq(y, y))
    return ops.where(nothing, 0.0, x * ops.log(ops.where(nothing, 1.0, y)))


@array_function
def xlog1py(x: Any, y: Any) -> Any:
    """x·log(1 + y), 0 where x is."""
    x, y = inexact(x, y)
    nothing = ops.and_(ops.eq(x, 0.0), ops.eq(y, y))
    return ops.where(nothing, 0.0, x * ops.log1p(ops.where(nothing, 0.0, y)))


@array_function
def entr(x: Any) -> Any:
    """-x·log(x): 0 at 0, -inf below."""
    (x,) = inexact(x)
    return ops.where(ops.lt(x, 0.0), -math.inf, -xlogy(ops.maximum(x, 0.0), ops.maximum(x, 0.0)))


@array_function
def rel_entr(x: Any, y: Any) -> Any:
    """x·log(x / y) for positive numbers, 0 for x = 0 and y >= 0, inf elsewhere."""
    x, y = inexact(x, y)
    positive = ops.and_(ops.gt(x, 0.0), ops.gt(y, 0.0))
    safe_x, safe_y = ops.where(positive, x, 1.0), ops.where(positive, y, 1.0)
    nothing = ops.and_(ops.eq(x, 0.0), ops.ge(y, 0.0))
    return ops.where(positive, safe_x * ops.log(safe_x / safe_y), ops.where(nothing, 0.0, math.inf))


@array_function
def kl_div(x: Any, y: Any) -> Any:
    """x·log(x / y) - x + y for positive numbers, y for x = 0 and y >= 0, inf elsewhere."""
    x, y = inexact(x, y)
    return rel_entr(x, y) - x + y


@array_function
def ndtr(x: Any) -> Any:
    """The standard normal distribution function."""
    (x,) = inexact(x)
    return 0.5 * ops.erfc(x * -math.sqrt(0.5))


@array_function
def ndtri(p: Any) -> Any:
    """The inverse of ndtr."""
    (p,) = inexact(p)
    return math.sqrt(2.0) * ops.erf_inv(2.0 * p - 1.0)


@array_function
def log_ndtr(x: Any) -> Any:
    """log(ndtr(x)), by an asymptotic series where ndtr is too small."""
    (x,) = inexact(x)
    far = ops.lt(x, -5.0)
    z = ops.where(far, x, -5.0)
    inverse = 1.0 / (z * z)
    # 1 - 1/z² + 3/z⁴ - 15/z⁶ + ..., whose terms shrink for a while; nine of them reach 1e-7 at 5.
    series, term = 1.0 + 0.0 * z, 1.0 + 0.0 * z
    for k in range(1, 10):
        term = term * (-(2.0 * k - 1.0)) * inverse
        series = series + term
    tail = -0.5 * z * z - ops.log(-z) - 0.5 * math.log(2.0 * math.pi) + ops.log(series)
    return ops.where(far, tail, ops.log(ndtr(ops.where(far, 0.0, x))))


@array_function
def gammasgn(x: Any) -> Any:
    """The sign of gamma(x)."""
    (x,) = inexact(x)
    whole = ops.floor(x)
    odd = ops.ne(whole - 2.0 * ops.floor(whole * 0.5), 0.0)
    sign = ops.where(ops.and_(ops.lt(x, 0.0), odd), -1.0, 1.0)
    pole = ops.and_(ops.lt(x, 0.0), ops.eq(whole, x))
    return ops.where(pole, math.nan, sign)


@array_function
def gamma(x: Any) -> Any:
    """The gamma function."""
    (x,) = inexact(x)
    return gammasgn(x) * ops.exp(ops.lgamma(x))


@array_function
def factorial(n: Any) -> Any:
    """gamma(n + 1); 0 for negative n."""
    (n,) = inexact(n)
    return ops.where(ops.lt(n, 0.0), 0.0, ops.exp(ops.lgamma(ops.maximum(n, 0.0) + 1.0)))


@array_function
def betaln(a: Any, b: Any) -> Any:
    """log |beta(a, b)|."""
    a, b = inexact(a, b)
    return ops.lgamma(a) + ops.lgamma(b) - ops.lgamma(a + b)


@array_function
def beta(a: Any, b: Any) -> Any:
    """gamma(a)·gamma(b) / gamma(a + b)."""
    a, b = inexact(a, b)
    return gammasgn(a) * gammasgn(b) * gammasgn(a + b) * ops.exp(betaln(a, b))


@array_function
def comb(n: Any, k: Any) -> Any:
    """n over k; 0 where k is not in 0..n."""
    n, k = inexact(n, k)
    inside = ops.and_(ops.ge(k, 0.0), ops.le(k, n))
    n, k = ops.where(inside, n, 1.0), ops.where(inside, k, 0.0)
    chosen = ops.exp(ops.lgamma(n + 1.0) - ops.lgamma(k + 1.0) - ops.lgamma(n - k + 1.0))
    return ops.where(inside, chosen, 0.0)


@array_function
def poch(z: Any, m: Any) -> Any:
    """gamma(z + m) / gamma(z)."""
    z, m = inexact(z, m)
    return gammasgn(z + m) * gammasgn(z) * ops.exp(ops.lgamma(z + m) - ops.lgamma(z))


@array_function
def multigammaln(a: Any, d: int) -> Any:
    """log of the multivariate gamma function of dimension d."""
    (a,) = inexact(a)
    total = d * (d - 1) / 4.0 * math.log(math.pi) + ops.lgamma(a)
    for j in range(1, d):
        total = total + ops.lgamma(a - j / 2.0)
    return total


@array_function
def polygamma(n: int, x: Any) -> Any:
    """The n-th derivative of digamma."""
    from rlx.autodiff import jvp

    (x,) = inexact(x)
    fn = ops.digamma
    for _ in range(int(n)):
        fn = _derivative(fn, jvp)
    return fn(x)


def _derivative(fn: Any, jvp: Any) -> Any:
    return lambda x: jvp(fn, (x,), (ops.ones_like(x),))[1]


@array_function
def boxcox(x: Any, lmbda: Any) -> Any:
    """(x^lmbda - 1) / lmbda, log(x) for lmbda = 0."""
    x, lmbda = inexact(x, lmbda)
    zero = ops.eq(lmbda, 0.0)
    safe = ops.where(zero, 1.0, lmbda)
    return ops.where(zero, ops.log(x), ops.expm1(safe * ops.log(x)) / safe)


@array_function
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """boxcox(1 + x, lmbda)."""
    x, lmbda = inexact(x, lmbda)
    zero = ops.eq(lmbda, 0.0)
    safe = ops.where(zero, 1.0, lmbda)
    return ops.where(zero, ops.log1p(x), ops.expm1(safe * ops.log1p(x)) / safe)


@array_function
def huber(delta: Any, r: Any) -> Any:
    """r²/2 for |r| <= delta, else delta·(|r| - delta/2); inf for negative delta."""
    delta, r = inexact(delta, r)
    size = ops.abs_(r)
    loss = ops.where(ops.le(size, delta), 0.5 * r * r, delta * (size - 0.5 * delta))
    return ops.where(ops.lt(delta, 0.0), math.inf, loss)


@array_function
def pseudo_huber(delta: Any, r: Any) -> Any:
    """delta²·(sqrt(1 + (r/delta)²) - 1)."""
    delta, r = inexact(delta, r)
    ratio = r / delta
    return delta * delta * (ops.sqrt(1.0 + ratio * ratio) - 1.0)
