"""`rlx.scipy.stats` against formulas of Python's own library and NumPy, and its functions against one another."""

import math
from statistics import NormalDist

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError
from rlx.scipy import stats

# Parameters, and a range in which there is almost all of the probability.
CONTINUOUS = {
    "norm": ((), (-9, 9)),
    "lognorm": ((0.5,), (1e-4, 40)),
    "expon": ((), (0, 40)),
    "gamma": ((2.5,), (0, 60)),
    "chi2": ((3.0,), (0, 90)),
    "weibull_min": ((1.5,), (0, 20)),
    "beta": ((2.0, 3.5), (0, 1)),
    "t": ((6.0,), (-90, 90)),
    "cauchy": ((), (-1e5, 1e5)),
    "laplace": ((), (-40, 40)),
    "logistic": ((), (-40, 40)),
    "gumbel_r": ((), (-5, 45)),
    "gumbel_l": ((), (-45, 5)),
    "uniform": ((), (0, 1)),
    "pareto": ((3.0,), (1, 4000)),
    "gennorm": ((1.7,), (-25, 25)),
    "truncnorm": ((-1.0, 2.0), (-1, 2)),
    "vonmises": ((1.5,), (-math.pi, math.pi)),
    "wrapcauchy": ((0.3,), (0, 2 * math.pi)),
}
WITH_CDF = [n for n in CONTINUOUS if "cdf" in getattr(stats, n).given or "logcdf" in getattr(stats, n).given]
WITH_CDF += ["gumbel_l", "pareto", "weibull_min"]
WITH_PPF = [n for n in CONTINUOUS if "ppf" in getattr(stats, n).given]


def inner(name, count=9):
    """Places in which there is much of the probability, f64."""
    parameters, (low, high) = CONTINUOUS[name]
    middle = {"cauchy": (-4, 4), "pareto": (1.05, 6), "t": (-4, 4), "gennorm": (-4, 4)}.get(name, (low, high))
    shares = (
        np.linspace(0.07, 0.93, count) if name in ("beta", "uniform", "truncnorm") else np.linspace(0.3, 0.62, count)
    )
    return parameters, middle[0] + (middle[1] - middle[0]) * shares


@pytest.mark.parametrize("name", CONTINUOUS)
def test_densities_have_the_integral_one(name):
    parameters, (low, high) = CONTINUOUS[name]
    # Denser in the middle, where heavy tails are wide.
    u = np.linspace(-1, 1, 400_001)
    x = (low + high) / 2 + (high - low) / 2 * (u**5 if name == "cauchy" else u)
    if name == "pareto":
        x = np.geomspace(1, 4000, 400_001)
    density = np.asarray(getattr(stats, name).pdf(x, *parameters))
    assert np.trapezoid(density, x) == pytest.approx(1, abs=2e-5 if name == "cauchy" else 1e-6)


@pytest.mark.parametrize("name", sorted({*WITH_CDF}))
def test_integrals_fit_the_density(name):
    parameters, x = inner(name)
    d, place, width = getattr(stats, name), 0.3, 1.7
    moved = place + width * x
    slopes = rlx.grad(lambda v: rnp.sum(d.cdf(v, *parameters, loc=place, scale=width)))(moved)
    np.testing.assert_allclose(slopes, d.pdf(moved, *parameters, place, width), rtol=1e-8)
    np.testing.assert_allclose(np.asarray(d.cdf(x, *parameters)) + d.sf(x, *parameters), 1, rtol=1e-12)
    np.testing.assert_allclose(d.logcdf(x, *parameters), np.log(d.cdf(x, *parameters)), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(d.logsf(x, *parameters), np.log(d.sf(x, *parameters)), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(d.logpdf(x, *parameters), np.log(d.pdf(x, *parameters)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", WITH_PPF)
def test_quantiles_are_the_inverse(name):
    parameters, _ = CONTINUOUS[name]
    d, q = getattr(stats, name), np.linspace(0.01, 0.99, 7)
    np.testing.assert_allclose(d.cdf(d.ppf(q, *parameters, 0.3, 1.7), *parameters, 0.3, 1.7), q, rtol=1e-9)
    np.testing.assert_allclose(d.sf(d.isf(q, *parameters, 0.3, 1.7), *parameters, 0.3, 1.7), q, rtol=1e-9)
    assert np.isnan(d.ppf(np.array([-0.1, 1.1, np.nan]), *parameters)).all()


def test_the_normal_distribution():
    mine = NormalDist(0.3, 1.7)
    for x in (-4.0, 0.3, 2.0):
        assert float(stats.norm.pdf(np.float64(x), 0.3, 1.7)) == pytest.approx(mine.pdf(x), rel=1e-12)
        assert float(stats.norm.cdf(np.float64(x), loc=0.3, scale=1.7)) == pytest.approx(mine.cdf(x), rel=1e-12)
    assert float(stats.norm.ppf(np.float64(0.2), 0.3, 1.7)) == pytest.approx(mine.inv_cdf(0.2), rel=1e-12)
    # Far out the logarithm keeps what the probability itself cannot hold.
    assert float(stats.norm.logsf(np.float64(40.0))) == pytest.approx(-804.608442, rel=1e-8)
    assert float(stats.norm.logcdf(np.float32(-20.0))) == pytest.approx(-203.917155, rel=1e-6)


@pytest.mark.parametrize(
    "name", [n for n, (_, ends) in CONTINUOUS.items() if n in ("expon", "gamma", "beta", "uniform")]
)
def test_outside_of_the_support(name):
    parameters, _ = CONTINUOUS[name]
    d = getattr(stats, name)
    assert float(d.pdf(np.float32(-0.5), *parameters)) == 0
    assert (float(d.cdf(np.float32(-0.5), *parameters)), float(d.sf(np.float32(-0.5), *parameters))) == (0, 1)
    slope = rlx.grad(lambda x: d.logpdf(x, *parameters))(np.float32(-0.5))
    assert float(slope) == 0, "what is outside has no slope, and no NaN"
    assert np.isnan(d.cdf(np.float32(np.nan), *parameters))


DISCRETE = {
    "bernoulli": ((0.3,), lambda k: 0.3**k * 0.7 ** (1 - k) if k in (0, 1) else 0),
    "binom": ((5, 0.3), lambda k: math.comb(5, k) * 0.3**k * 0.7 ** (5 - k) if 0 <= k <= 5 else 0),
    "nbinom": ((4, 0.3), lambda k: math.comb(k + 3, k) * 0.3**4 * 0.7**k if k >= 0 else 0),
    "geom": ((0.3,), lambda k: 0.3 * 0.7 ** (k - 1) if k >= 1 else 0),
    "poisson": ((2.5,), lambda k: math.exp(-2.5) * 2.5**k / math.factorial(k) if k >= 0 else 0),
    "betabinom": ((5, 2.0, 3.0), lambda k: _beta_binomial(k) if 0 <= k <= 5 else 0),
}


def _beta_binomial(k, n=5, a=2, b=3):
    beta = lambda x, y: math.gamma(x) * math.gamma(y) / math.gamma(x + y)  # noqa: E731
    return math.comb(n, k) * beta(k + a, n - k + b) / beta(a, b)


@pytest.mark.parametrize("name", DISCRETE)
def test_probabilities_of_whole_numbers(name):
    parameters, oracle = DISCRETE[name]
    k, d = np.arange(-2, 9), getattr(stats, name)
    wanted = np.array([oracle(int(i)) for i in k])
    np.testing.assert_allclose(d.pmf(k.astype("f8"), *parameters), wanted, rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(rlx.jit(lambda k: d.pmf(k, *parameters, loc=2))(k + 2), wanted, rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(d.pmf(np.float32([0.5, 1.5]), *parameters), 0)
    if "cdf" in d.given:
        np.testing.assert_allclose(d.cdf(k + 0.4, *parameters), np.cumsum(wanted), rtol=1e-9, atol=1e-12)


def test_vectors():
    rng = np.random.default_rng(0)
    x, mean, root = rng.normal(size=(5, 3)), rng.normal(size=3), rng.normal(size=(3, 4))
    cov = root @ root.T
    far = x - mean
    wanted = -0.5 * np.einsum("ni,ij,nj->n", far, np.linalg.inv(cov), far)
    wanted -= 0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]
    found = stats.multivariate_normal.logpdf(x, mean, cov)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    np.testing.assert_allclose(stats.multivariate_normal.pdf(x[0], mean, cov), np.exp(wanted[0]), rtol=1e-10)
    rows = stats.multivariate_normal.logpdf(x, x * 0 + mean, np.stack([cov] * 5))
    np.testing.assert_allclose(rows, wanted, rtol=1e-10)
    slope = rlx.grad(lambda m: rnp.sum(stats.multivariate_normal.logpdf(x, m, cov)))(mean)
    np.testing.assert_allclose(slope, np.linalg.solve(cov, far.sum(0)), rtol=1e-9)
    with pytest.raises(ShapeError, match=r"cov is \[..., 3, 3\]"):
        stats.multivariate_normal.logpdf(x, mean, cov[:2])

    alpha, point = np.array([1.0, 2.0, 3.0]), np.array([0.2, 0.3, 0.5])
    wanted = math.gamma(6) / (math.gamma(2) * math.gamma(3)) * 0.3 * 0.5**2
    np.testing.assert_allclose(stats.dirichlet.pdf(point, alpha), wanted, rtol=1e-10)
    np.testing.assert_allclose(stats.dirichlet.pdf(point[:2], alpha), wanted, rtol=1e-10)
    assert float(stats.dirichlet.logpdf(np.array([0.5, 0.9, -0.4]), alpha)) == -math.inf
    chance = stats.multinomial.pmf(np.float64([[1, 2, 3], [1, 1, 1]]), 6, np.array([0.2, 0.3, 0.5]))
    np.testing.assert_allclose(chance, [60 * 0.2 * 0.3**2 * 0.5**3, 0], rtol=1e-10)


def test_ranks_and_modes():
    x = np.float32([[3, 1, 3, 2, 1, 3], [0, 0, 0, 5, 5, 5]])
    wanted = {
        "min": [[4, 1, 4, 3, 1, 4], [1, 1, 1, 4, 4, 4]],
        "max": [[6, 2, 6, 3, 2, 6], [3, 3, 3, 6, 6, 6]],
        "average": [[5, 1.5, 5, 3, 1.5, 5], [2, 2, 2, 5, 5, 5]],
        "dense": [[3, 1, 3, 2, 1, 3], [1, 1, 1, 2, 2, 2]],
        "ordinal": [[4, 1, 5, 3, 2, 6], [1, 2, 3, 4, 5, 6]],
    }
    for method, ranks in wanted.items():
        np.testing.assert_array_equal(stats.rankdata(x, method, axis=1), ranks)
        np.testing.assert_array_equal(
            rlx.jit(lambda x, m=method: stats.rankdata(x, m, axis=0))(x.T), np.transpose(ranks)
        )
    found = stats.mode(x, axis=1)
    assert (found.mode.tolist(), found.count.tolist()) == ([3, 0], [3, 3])
    assert [v.tolist() for v in stats.mode(x, axis=None, keepdims=True)] == [[[0]], [[3]]]
    np.testing.assert_allclose(stats.sem(x, axis=1), x.std(1, ddof=1) / math.sqrt(6), rtol=1e-6)
    with pytest.raises(OpError, match="method is average"):
        stats.rankdata(x, "middle")


def test_an_estimated_density():
    rng = np.random.default_rng(0)
    samples, points = rng.normal(size=(2, 20)), rng.normal(size=(2, 5))
    estimate = stats.gaussian_kde(samples)
    cov = np.cov(samples) * (20 ** (-1 / 6)) ** 2
    far = points[:, :, None] - samples[:, None, :]
    kernel = np.exp(-0.5 * np.einsum("imn,ij,jmn->mn", far, np.linalg.inv(cov), far))
    wanted = kernel.mean(1) / np.sqrt(np.linalg.det(2 * np.pi * cov))
    np.testing.assert_allclose(estimate(points), wanted, rtol=1e-9)
    np.testing.assert_allclose(rlx.jit(estimate.logpdf)(points), np.log(wanted), rtol=1e-9)


def test_arguments_are_checked():
    with pytest.raises(OpError, match=r"gamma: functions take \(x, a, loc=0, scale=1\); missing are \['a'\]"):
        stats.gamma.pdf(1.0)
    with pytest.raises(OpError, match=r"unknown \['mean'\]"):
        stats.norm.pdf(1.0, mean=3.0)
    with pytest.raises(OpError, match="t has no ppf; it has logpdf, cdf, sf"):
        stats.t.ppf(0.5, 3.0)
