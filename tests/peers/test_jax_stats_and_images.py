"""`rlx.scipy.stats` and `rlx.image` beside those of JAX: values, and derivatives by every argument."""

import numpy as np
import pytest
from libraries import jax

import rlx
import rlx.scipy.stats
from rlx import image

pytestmark = pytest.mark.peers

RNG = np.random.default_rng(0)
PLACES, SHARES = np.array([-3.1, -0.4, 0.21, 0.55, 1.2, 2.05, 3.3]), np.array([0.01, 0.3, 0.5, 0.99])
WITHOUT_PLACE = ("vonmises", "wrapcauchy", "gennorm")
PARAMETERS = {"gamma": (2.5,), "chi2": (3.0,), "beta": (2.0, 3.5), "t": (4.5,), "pareto": (2.5,), "gennorm": (1.7,)}
PARAMETERS |= {"truncnorm": (-1.0, 2.0), "vonmises": (1.5,), "wrapcauchy": (0.3,)}
FAMILIES = ["norm", "cauchy", "expon", "laplace", "logistic", "uniform", "gumbel_l", "gumbel_r", *PARAMETERS]
FUNCTIONS = ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf")
COUNTS = {"bernoulli": (0.3,), "binom": (5.0, 0.3), "nbinom": (4.0, 0.3), "geom": (0.3,), "poisson": (2.5,)}


def agree(found, wanted):
    """Trees of arrays that are equal to ten digits, infinities at the same places."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), found, jax.tree.map(np.asarray, wanted)
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_continuous(name):
    theirs, ours = getattr(jax.scipy.stats, name), getattr(rlx.scipy.stats, name)
    parameters = PARAMETERS.get(name, ()) + (() if name in WITHOUT_PLACE else (0.3, 1.7))
    for function in (f for f in FUNCTIONS if hasattr(theirs, f)):
        x = SHARES if function in ("ppf", "isf") else PLACES
        arguments = tuple(map(np.float64, parameters))
        agree(getattr(ours, function)(x, *arguments), getattr(theirs, function)(x, *arguments))
        if function != "logpdf" or name.startswith("gumbel"):
            continue  # The derivatives of Gumbel's are errors in JAX.
        inside = x[np.isfinite(np.asarray(getattr(ours, function)(x, *arguments)))]
        numbers = tuple(range(1 + len(arguments)))
        wanted = jax.grad(lambda x, *a: theirs.logpdf(x, *a).sum(), numbers)(inside, *arguments)
        found = rlx.grad(lambda x, *a: ours.logpdf(x, *a).sum(), numbers)(inside, *arguments)
        agree(found, wanted)


@pytest.mark.parametrize("name", COUNTS)
def test_discrete(name):
    theirs, ours = getattr(jax.scipy.stats, name), getattr(rlx.scipy.stats, name)
    k = np.arange(-1.0, 7.0)
    for function in ("pmf", "logpmf"):
        agree(getattr(ours, function)(k, *COUNTS[name]), getattr(theirs, function)(k, *COUNTS[name]))


def test_vectors_and_samples():
    x, mean, cov = RNG.normal(size=(6, 3)), RNG.normal(size=3), np.cov(RNG.normal(size=(3, 9)))
    ranked = RNG.integers(0, 4, (3, 6)).astype(float)
    calls = [
        lambda s: s.multivariate_normal.logpdf(x, mean, cov),
        lambda s: s.dirichlet.logpdf(np.array([0.2, 0.3, 0.5]), np.array([1.0, 2.0, 3.0])),
        lambda s: s.multinomial.logpmf(np.array([1, 2, 3]), 6, np.array([0.2, 0.3, 0.5])),
        lambda s: [s.rankdata(ranked, m, axis=1) for m in ("average", "min", "max", "dense", "ordinal")],
        lambda s: (s.sem(x), s.sem(x, axis=None, ddof=0)),
        lambda s: (s.gaussian_kde(x.T)(x.T), s.gaussian_kde(x[:, 0], "silverman", np.abs(x[:, 1])).logpdf(x[:, 2])),
    ]
    for call in calls:
        agree(call(rlx.scipy.stats), call(jax.scipy.stats))
    for axis in (0, 1, None):
        found, wanted = rlx.scipy.stats.mode(ranked, axis), jax.scipy.stats.mode(ranked, axis)
        np.testing.assert_array_equal(found.mode, wanted.mode)
        np.testing.assert_array_equal(found.count, wanted.count)


@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos3", "lanczos5", "area", "bicubic-pytorch"])
def test_images(method):
    x = RNG.normal(size=(2, 5, 7, 3))
    for size in ((10, 14), (3, 4), (5, 9), (8, 3), (1, 1)):
        for antialias in (True, False):
            shape = (2, *size, 3)
            theirs, ours = (m.resize(x, shape, method, antialias=antialias) for m in (jax.image, image))
            agree(ours, theirs)
    if method in ("nearest", "bicubic-pytorch"):
        return
    scale, shift = np.array([1.31, 0.613]), np.array([0.4, -1.2])
    results = [
        m.value_and_grad(
            lambda x, s, t, f=f: (f.scale_and_translate(x, (2, 6, 8, 3), (1, 2), s, t, method) ** 2).sum(), (0, 1, 2)
        )(x, scale, shift)
        for m, f in ((jax, jax.image), (rlx, image))
    ]
    agree(results[1], results[0])
