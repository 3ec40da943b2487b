"""`rlx.scipy.special` beside SciPy: values in f64 and f32, derivatives by differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

import rlx
from rlx.scipy import special as ours

POSITIVE = np.array([0.1, 0.5, 1.0, 1.7, 3.2, 8.0])
UNIT = np.array([0.01, 0.2, 0.5, 0.77, 0.99])
REAL = np.array([-7.5, -3.3, -1.2, -0.4, 0.3, 1.0, 2.6, 9.0])

ONE = {
    **dict.fromkeys(("erf", "erfc", "expit", "log_expit", "exprel", "ndtr", "sinc", "gamma", "gammasgn"), REAL),
    **dict.fromkeys(("gammaln", "loggamma", "digamma", "psi", "entr", "factorial", "i0"), POSITIVE),
    **dict.fromkeys(("logit", "ndtri"), UNIT),
    "erfinv": UNIT,
    "log_ndtr": np.array([-200.0, -40.0, -12.0, -6.0, -5.0, -4.9, -1.0, 0.0, 3.0]),
}
TWO = {
    **dict.fromkeys(
        ("xlogy", "xlog1py", "rel_entr", "kl_div", "beta", "betaln", "poch", "boxcox", "boxcox1p"), POSITIVE
    ),
    **dict.fromkeys(("huber", "pseudo_huber"), POSITIVE),
}


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name):
    x = ONE[name]
    wanted = getattr(special, name)(x) if name != "sinc" else np.sinc(x)
    np.testing.assert_allclose(getattr(ours, name)(x), wanted, rtol=2e-6 if name == "log_ndtr" else 1e-9, atol=1e-13)
    narrow = rlx.jit(getattr(ours, name))(x.astype("f4"))
    np.testing.assert_allclose(narrow, wanted, rtol=3e-4, atol=1e-5)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers(name):
    a, b = TWO[name][:, None], TWO[name][None, :]
    np.testing.assert_allclose(getattr(ours, name)(a, b), getattr(special, name)(a, b), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["logit", "log_expit", "exprel", "entr", "ndtri", "gamma", "log_ndtr", "gammaln"])
def test_derivatives(name):
    x = ONE[name]
    x = x[np.abs(x) < 20]
    step = 1e-6
    wanted = (getattr(special, name)(x + step) - getattr(special, name)(x - step)) / (2 * step)
    found = rlx.grad(lambda x: getattr(ours, name)(x).sum())(x)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-7)


def test_edges():
    zero = np.zeros(3)
    np.testing.assert_array_equal(ours.xlogy(zero, np.array([0.0, 1.0, np.nan])), [0, 0, np.nan])
    np.testing.assert_array_equal(ours.xlog1py(zero, np.array([-1.0, 1.0, np.nan])), [0, 0, np.nan])
    np.testing.assert_array_equal(ours.entr(np.array([-1.0, 0.0, 1.0])), special.entr(np.array([-1.0, 0.0, 1.0])))
    pairs = np.array([0.0, 0.0, -1.0, 1.0, 1.0]), np.array([0.0, 2.0, 1.0, 0.0, -1.0])
    np.testing.assert_array_equal(ours.rel_entr(*pairs), special.rel_entr(*pairs))
    np.testing.assert_array_equal(ours.kl_div(*pairs), special.kl_div(*pairs))
    assert ours.factorial(-1.0) == 0 and ours.exprel(0.0) == 1 and rlx.grad(ours.exprel)(0.0) == 0.5
    n, k = np.meshgrid(np.arange(6.0), np.arange(-1, 7.0))
    np.testing.assert_allclose(ours.comb(n, k), special.comb(n, k), rtol=1e-10)


def test_more_arguments():
    np.testing.assert_allclose(ours.multigammaln(POSITIVE + 3, 4), special.multigammaln(POSITIVE + 3, 4), rtol=1e-10)
    for n in (0, 1, 2):
        np.testing.assert_allclose(ours.polygamma(n, POSITIVE), special.polygamma(n, POSITIVE), rtol=1e-8)
    x = np.float64([[1, 2], [3, 5]])
    np.testing.assert_allclose(ours.logsumexp(x, axis=1), special.logsumexp(x, axis=1))
    np.testing.assert_allclose(ours.softmax(x, axis=1), special.softmax(x, axis=1))
    np.testing.assert_allclose(ours.log_softmax(x, axis=1), special.log_softmax(x, axis=1))
