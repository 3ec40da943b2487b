"""The distributions of `rlx.random` beside SciPy's: Kolmogorov-Smirnov for continuous ones, χ² for counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import rlx
import rlx.numpy as rnp
from rlx import random

COUNT = 20_000
KEY = random.key(3)

CONTINUOUS = {
    "logistic": (lambda k, s: random.logistic(k, s), stats.logistic()),
    "laplace": (lambda k, s: random.laplace(k, s), stats.laplace()),
    "cauchy": (lambda k, s: random.cauchy(k, s), stats.cauchy()),
    "lognormal": (lambda k, s: random.lognormal(k, 0.7, s), stats.lognorm(0.7)),
    "pareto": (lambda k, s: random.pareto(k, 2.5, s), stats.pareto(2.5)),
    "rayleigh": (lambda k, s: random.rayleigh(k, 1.5, s), stats.rayleigh(scale=1.5)),
    "weibull_min": (lambda k, s: random.weibull_min(k, 2.0, 1.7, s), stats.weibull_min(1.7, scale=2.0)),
    "maxwell": (lambda k, s: random.maxwell(k, s), stats.maxwell()),
    "triangular": (lambda k, s: random.triangular(k, -1.0, 0.5, 2.0, s), stats.triang(0.5, -1, 3)),
    "wald": (lambda k, s: random.wald(k, 1.3, s), stats.invgauss(1.3)),
    "gamma": (lambda k, s: random.gamma(k, 2.7, s), stats.gamma(2.7)),
    "gamma below 1": (lambda k, s: random.gamma(k, 0.3, s), stats.gamma(0.3)),
    "loggamma": (lambda k, s: random.loggamma(k, 1.2, s), stats.loggamma(1.2)),
    "beta": (lambda k, s: random.beta(k, 0.6, 2.0, s), stats.beta(0.6, 2.0)),
    "chisquare": (lambda k, s: random.chisquare(k, 3.0, s), stats.chi2(3)),
    "f": (lambda k, s: random.f(k, 4.0, 7.0, s), stats.f(4, 7)),
    "t": (lambda k, s: random.t(k, 3.5, s), stats.t(3.5)),
    "generalized_normal": (lambda k, s: random.generalized_normal(k, 1.5, s), stats.gennorm(1.5)),
}
COUNTS = {
    "poisson": (lambda k, s: random.poisson(k, 3.3, s), stats.poisson(3.3)),
    "poisson, large": (lambda k, s: random.poisson(k, 47.0, s), stats.poisson(47.0)),
    "binomial": (lambda k, s: random.binomial(k, 12, 0.3, s), stats.binom(12, 0.3)),
    "binomial, large": (lambda k, s: random.binomial(k, 300, 0.8, s), stats.binom(300, 0.8)),
    "geometric": (lambda k, s: random.geometric(k, 0.25, s), stats.geom(0.25)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name):
    draw, wanted = CONTINUOUS[name]
    found = np.asarray(rlx.jit(lambda k: draw(k, (COUNT,)))(KEY), np.float64)
    assert found.shape == (COUNT,) and np.isfinite(found).all()
    assert stats.kstest(found, wanted.cdf).pvalue > 1e-3
    np.testing.assert_allclose(found[:5], np.asarray(draw(KEY, (COUNT,)))[:5], rtol=1e-4)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    draw, wanted = COUNTS[name]
    found = np.asarray(rlx.jit(lambda k: draw(k, (COUNT,)))(KEY)).astype(int)
    edges = np.unique(wanted.ppf(np.linspace(0.02, 0.98, 25)))
    observed = np.bincount(np.searchsorted(edges, found), minlength=len(edges) + 1)
    expected = np.diff(np.concatenate([[0], wanted.cdf(edges), [1]])) * COUNT
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_vectors():
    alpha = np.float32([0.5, 2, 4])
    drawn = np.asarray(random.dirichlet(KEY, alpha, (COUNT,)))
    np.testing.assert_allclose(drawn.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(drawn.mean(0), alpha / alpha.sum(), atol=0.01)
    cov = np.float32([[2, 0.6], [0.6, 1]])
    for method in ("cholesky", "eigh", "svd"):
        z = np.asarray(random.multivariate_normal(KEY, np.float32([1, -1]), cov, (COUNT,), method=method))
        np.testing.assert_allclose(np.cov(z.T), cov, atol=0.06)
        np.testing.assert_allclose(z.mean(0), [1, -1], atol=0.04)
    p = np.float32([0.2, 0.5, 0.3])
    counts = np.asarray(random.multinomial(KEY, 30, p, shape=(4000, 3)))
    assert (counts.sum(-1) == 30).all()
    np.testing.assert_allclose(counts.mean(0), 30 * p, atol=0.2)
    np.testing.assert_allclose(np.cov(counts.T)[0, 1], -30 * 0.2 * 0.5, atol=0.4)


def test_matrices_balls_and_signs():
    q = np.asarray(random.orthogonal(KEY, 4, (50,)))
    np.testing.assert_allclose(q @ q.transpose(0, 2, 1), np.tile(np.eye(4), (50, 1, 1)), atol=1e-5)
    for p in (1, 2):
        points = np.asarray(random.ball(KEY, 3, p, (COUNT,)))
        radius = np.linalg.norm(points, p, axis=-1)
        assert stats.kstest(radius, lambda r: np.clip(r, 0, 1) ** 3).pvalue > 1e-3
    signs = np.asarray(random.rademacher(KEY, (COUNT,)))
    assert set(signs.tolist()) == {-1, 1} and abs(signs.mean()) < 0.03
    both = np.asarray(random.double_sided_maxwell(KEY, 1.0, 2.0, (COUNT,)))
    assert stats.kstest(np.abs((both - 1) / 2), stats.maxwell().cdf).pvalue > 1e-3


def test_parameters_broadcast_and_types_are_kept():
    a = np.float32([[0.5], [2.0]])
    assert random.gamma(KEY, a, (2, 3)).shape == (2, 3)
    assert random.beta(KEY, a, np.ones(4, "f4")).shape == (2, 4)
    assert random.gamma(KEY, 2.0, (3,), "f64").dtype == np.float64
    assert random.poisson(KEY, 5.0).shape == ()
    assert random.binomial(KEY, np.float32([0, 5]), np.float32([0.5, 0.0])).tolist() == [0, 0]
    assert random.binomial(KEY, 5, 1.0) == 5
    rows = rlx.vmap(lambda k: random.gamma(k, 2.0, (3,)))(random.split(KEY, 4))
    assert rows.shape == (4, 3) and len(np.unique(np.asarray(rows))) == 12
    assert rnp.all(random.key_data(random.wrap_key_data(KEY)) == KEY)


@pytest.mark.parametrize("shape", [0.05, 0.3, 0.9, 1.5, 7.0, 120.0])
def test_gamma_variables_follow_their_quantiles(shape):
    """The derivative by the shape keeps P(shape, x): checked by a difference quotient of the distribution function."""
    key, a, step = random.key(3), np.float64(shape), np.float64(1e-6)
    x, slope = rlx.jvp(lambda a: random.gamma(key, a, (6,), "f64"), (a,), (np.float64(1.0),))
    x, slope = np.asarray(x), np.asarray(slope)
    kept = x > 1e-300
    before = rlx.scipy.special.gammainc(a - step, x - step * slope)
    after = rlx.scipy.special.gammainc(a + step, x + step * slope)
    np.testing.assert_allclose(np.asarray(after)[kept], np.asarray(before)[kept], rtol=1e-8)
    pulled = rlx.jit(rlx.grad(lambda a: rnp.sum(random.gamma(key, a, (6,), "f64"))))(a)
    np.testing.assert_allclose(pulled, slope.sum(), rtol=1e-9)


def test_gradients_of_what_is_made_of_gamma_variables():
    key, count = random.key(0), 40_000
    mean = rlx.grad(lambda a: rnp.mean(random.beta(key, a, 2.0, (count,), "f64")))(np.float64(3.0))
    np.testing.assert_allclose(mean, 2 / 25, rtol=0.02)
    part = rlx.grad(lambda a: rnp.mean(random.dirichlet(key, a, (count,), "f64")[:, 0]))(np.ones(3))
    np.testing.assert_allclose(part, [2 / 9, -1 / 9, -1 / 9], rtol=0.03)
    # Where x is too small to be held its logarithm has a slope all the same.
    slope = rlx.grad(lambda a: random.loggamma(random.key(1), a, (), "f64"))(np.float64(1e-4))
    log_x = np.asarray(random.loggamma(random.key(1), np.float64(1e-4), (), "f64"))
    np.testing.assert_allclose(slope, (rlx.scipy.special.digamma(np.float64(1.0001)) - log_x) / 1e-4, rtol=1e-9)
