"""`rlx.scipy.special` beside SciPy: values in f64 and f32, derivatives by differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

import rlx
from rlx.errors import RlxError
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
    **dict.fromkeys(("i0e", "i1", "i1e", "erfcx", "dawsn"), np.array([-9.0, -0.3, 0.0, 0.5, 2.0, 14.0, 19.9, 20.1])),
    **dict.fromkeys(("exp1", "spence"), np.array([0.0, 0.01, 0.4, 0.99, 1.0, 1.01, 2.0, 2.1, 30.0])),
    "expi": np.array([-30.0, -1.0, -0.2, 0.1, 3.0, 39.0, 41.0]),
    "zeta": np.array([1.0, 1.2, 2.0, 7.5, 20.0]),
}
TWO = {
    **dict.fromkeys(
        ("xlogy", "xlog1py", "rel_entr", "kl_div", "beta", "betaln", "poch", "boxcox", "boxcox1p"), POSITIVE
    ),
    **dict.fromkeys(("huber", "pseudo_huber", "gammainc", "gammaincc", "owens_t"), POSITIVE),
}


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name):
    x = ONE[name]
    wanted = getattr(special, name)(x) if name != "sinc" else np.sinc(x)
    np.testing.assert_allclose(getattr(ours, name)(x), wanted, rtol=1e-9, atol=1e-13)
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


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gammainc", ([0.3, 2.0, 9.0], [0.5, 2.5, 8.0])),
        ("gammaincc", ([0.3, 2.0, 9.0], [0.5, 2.5, 8.0])),
        ("betainc", ([0.4, 2.0, 6.0], [1.5, 0.7, 3.0], [0.2, 0.8, 0.6])),
        pytest.param("hyp1f1", ([0.7, 2.0, -1.3], [1.5, 2.5, 3.0], [-2.0, 5.0, 1.0]), marks=pytest.mark.long),
        pytest.param(
            "hyp2f1",
            ([0.7, 2.0, -1.3], [0.5, 1.5, 0.9], [1.9, 2.6, 3.3], [-2.0, 0.9, 0.5]),
            marks=pytest.mark.long,
        ),
        ("zeta", ([1.5, 3.0, 6.0], [0.4, 1.0, 7.0])),
        ("owens_t", ([0.3, 1.0, -2.0], [0.5, 3.0, -0.7])),
    ],
)
def test_derivatives_in_every_argument(name, arguments):
    """In reverse, compiled, beside differences of SciPy's values."""
    arguments = [np.asarray(a) for a in arguments]
    reference = getattr(special, name)
    found = rlx.jit(rlx.grad(lambda *a: getattr(ours, name)(*a).sum(), argnums=tuple(range(len(arguments)))))(
        *arguments
    )
    for place, slope in enumerate(found):
        step = np.zeros((len(arguments), 1))
        step[place] = 1e-5
        up, down = (reference(*(a + sign * s for a, s in zip(arguments, step))) for sign in (1, -1))
        np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-6, atol=1e-8, err_msg=f"argument {place}")


def test_ranges_of_incomplete_functions():
    rng = np.random.default_rng(0)
    a = 10 ** rng.uniform(-2, 3, 200)
    x = a * 10 ** rng.uniform(-1.5, 1, 200)
    np.testing.assert_allclose(ours.gammainc(a, x), special.gammainc(a, x), rtol=1e-11, atol=1e-280)
    np.testing.assert_allclose(ours.gammaincc(a, x), special.gammaincc(a, x), rtol=1e-11, atol=1e-280)
    p, q = 10 ** rng.uniform(-1.5, 2.5, (2, 200))
    y = rng.uniform(0.001, 0.999, 200)
    np.testing.assert_allclose(ours.betainc(p, q, y), special.betainc(p, q, y), rtol=1e-11, atol=1e-280)
    ends = np.array([0.0, 0, 1, 1, -1, 2, np.nan]), np.array([0.0, 1, 0, np.inf, 1, -1, 1])
    np.testing.assert_array_equal(ours.gammainc(*ends), special.gammainc(*ends))
    np.testing.assert_array_equal(ours.gammaincc(*ends), special.gammaincc(*ends))
    ends = np.array([1.0, 1, 1, 1, -1]), 2.0, np.array([0.0, 1, -1, 2, 0.5])
    np.testing.assert_array_equal(ours.betainc(*ends), special.betainc(*ends))


def test_functions_of_complex_numbers_and_of_pairs():
    rng = np.random.default_rng(1)
    z = rng.normal(size=100) * 3 + 1j * rng.normal(size=100) * 2
    np.testing.assert_allclose(ours.wofz(z), special.wofz(z), rtol=1e-12)
    x = np.concatenate([np.linspace(-20, 20, 81), [0.01, 300.0]])
    for found, wanted in zip((*ours.fresnel(x), *ours.sici(x)), (*special.fresnel(x), *special.sici(x))):
        np.testing.assert_allclose(found, np.real(wanted), rtol=1e-11, atol=1e-14)
    orders = np.stack([special.jv(n, x[:81]) for n in range(5)])
    np.testing.assert_allclose(ours.bessel_jn(x[:81], v=4), orders, rtol=1e-10, atol=1e-15)
    n, m = np.meshgrid(np.arange(6), np.arange(-6, 7))
    theta, phi = rng.uniform(0, 3, (2, *n.shape))
    np.testing.assert_allclose(
        ours.sph_harm_y(n, m, theta, phi), special.sph_harm_y(n, m, theta, phi), rtol=1e-11, atol=1e-15
    )
    with pytest.raises(RlxError, match="n_max"):
        rlx.jit(ours.sph_harm_y)(np.int32(1), np.int32(0), 0.5, 0.5)


def test_orders_and_parameters():
    x = np.array([0.0, 0.3, 1.0, 1.5, 20.0])
    for n in (0, 1, 2, 7):
        np.testing.assert_allclose(ours.expn(n, x), special.expn(n, x), rtol=1e-12)
    assert ours.bernoulli(8).dtype == np.float32
    with rlx.default_float("f64"):
        np.testing.assert_allclose(ours.bernoulli(8), special.bernoulli(8), rtol=1e-10, atol=1e-14)
    rng = np.random.default_rng(2)
    a, b, c = rng.uniform(-3, 5, 60), rng.uniform(-3, 5, 60), rng.uniform(0.3, 6, 60)
    far = rng.uniform(-300, 300, 60)
    np.testing.assert_allclose(ours.hyp1f1(a, c, far), special.hyp1f1(a, c, far), rtol=1e-10)
    y = rng.uniform(-6, 0.999, 60)
    np.testing.assert_allclose(ours.hyp2f1(a, b, c, y), special.hyp2f1(a, b, c, y), rtol=1e-8)
    # Where c - a - b is whole and two infinite parts cancel.
    near = np.array([0.8, 0.99, 1.0])
    np.testing.assert_allclose(ours.hyp2f1(1.0, 0.5, 2.5, near), special.hyp2f1(1.0, 0.5, 2.5, near), rtol=1e-8)
    narrow = rlx.jit(ours.hyp2f1)(*np.float32([1, 1, 2]), np.float32([0.9, 0.99]))
    np.testing.assert_allclose(narrow, special.hyp2f1(1, 1, 2, [0.9, 0.99]), rtol=1e-3)


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
