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
from rlx.scipy.bessel import bessel_jn as bessel_jn
from rlx.scipy.bessel import i0 as i0
from rlx.scipy.bessel import i0e as i0e
from rlx.scipy.bessel import i1 as i1
from rlx.scipy.bessel import i1e as i1e
from rlx.scipy.bessel import sph_harm_y as sph_harm_y
from rlx.scipy.error_functions import dawsn as dawsn
from rlx.scipy.error_functions import erfcx as erfcx
from rlx.scipy.error_functions import fresnel as fresnel
from rlx.scipy.error_functions import wofz as wofz
from rlx.scipy.exponential_integrals import bernoulli as bernoulli
from rlx.scipy.exponential_integrals import exp1 as exp1
from rlx.scipy.exponential_integrals import expi as expi
from rlx.scipy.exponential_integrals import expn as expn
from rlx.scipy.exponential_integrals import owens_t as owens_t
from rlx.scipy.exponential_integrals import sici as sici
from rlx.scipy.exponential_integrals import spence as spence
from rlx.scipy.hypergeometric import hyp1f1 as hyp1f1
from rlx.scipy.hypergeometric import hyp2f1 as hyp2f1
from rlx.scipy.hypergeometric import polygamma as polygamma
from rlx.scipy.hypergeometric import zeta as zeta
from rlx.scipy.incomplete import betainc as betainc
from rlx.scipy.incomplete import gammainc as gammainc
from rlx.scipy.incomplete import gammaincc as gammaincc

__all__ = [
    "bernoulli",
    "bessel_jn",
    "beta",
    "betainc",
    "betaln",
    "boxcox",
    "boxcox1p",
    "cbrt",
    "comb",
    "dawsn",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp1",
    "exp2",
    "expi",
    "expit",
    "expm1",
    "expn",
    "exprel",
    "factorial",
    "fresnel",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gammasgn",
    "huber",
    "hyp1f1",
    "hyp2f1",
    "i0",
    "i0e",
    "i1",
    "i1e",
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
    "owens_t",
    "poch",
    "polygamma",
    "pseudo_huber",
    "psi",
    "rel_entr",
    "sici",
    "sinc",
    "softmax",
    "spence",
    "sph_harm_y",
    "wofz",
    "xlog1py",
    "xlogy",
    "zeta",
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
    # A finite logarithm stays, because it is the derivative by x.
    nothing = ops.and_(ops.eq(x, 0.0), ops.or_(ops.le(y, 0.0), ops.eq(y, math.inf)))
    return ops.where(nothing, 0.0, x * ops.log(ops.where(nothing, 1.0, y)))


@array_function
def xlog1py(x: Any, y: Any) -> Any:
    """x·log(1 + y), 0 where x is."""
    x, y = inexact(x, y)
    nothing = ops.and_(ops.eq(x, 0.0), ops.or_(ops.le(y, -1.0), ops.eq(y, math.inf)))
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
    """log(ndtr(x)), exact where ndtr is too small to be held."""
    (x,) = inexact(x)
    low = ops.lt(x, 0.0)
    below, above = ops.where(low, x, -1.0), ops.where(low, 1.0, x)
    tail = ops.log(0.5 * erfcx(below * -math.sqrt(0.5))) - 0.5 * below * below
    return ops.where(low, tail, ops.log1p(-ndtr(-above)))


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
