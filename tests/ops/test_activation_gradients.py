"""Derivatives of all elementwise functions against differences of the functions, and against published ones."""

import numpy as np
import pytest
from scipy import special, stats

from rlx import ops
from rlx.errors import OpError
from rlx.ops import Activation, ActivationKind

STEPS = ("round", "floor", "ceil", "trunc", "sign")
# Where the function is smooth.
RANGES = {
    "log": (0.3, 4), "log2": (0.3, 4), "log1p": (-0.6, 4), "sqrt": (0.3, 4), "rsqrt": (0.3, 4), "recip": (0.4, 3),
    "tan": (-1.2, 1.2), "asin": (-0.8, 0.8), "acos": (-0.8, 0.8), "atanh": (-0.8, 0.8), "erf_inv": (-0.8, 0.8),
    "acosh": (1.3, 4), "cbrt": (0.3, 3), "lgamma": (0.4, 6), "digamma": (0.4, 6), "relu": (0.1, 2), "abs": (0.1, 2),
}  # fmt: skip


def derivative(kind, x):
    return ops.activation_backward(kind, x, np.ones_like(x))


@pytest.mark.parametrize("kind", [k.value for k in ActivationKind if k not in STEPS])
def test_every_kind_has_its_derivative(kind):
    low, high = RANGES.get(kind, (-3, 3))
    x = np.linspace(low, high, 41)
    h = 1e-4
    values = [Activation(kind).eval(x + i * h) for i in (-2, -1, 1, 2)]
    # Fourth order: the error is h⁴f⁽⁵⁾/30.
    numeric = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
    np.testing.assert_allclose(derivative(kind, x), numeric, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["tanh", "exp", "log", "sqrt", "neg", "sin", "cos", "recip", "square"])
def test_complex_kinds_take_the_conjugate(kind):
    rng = np.random.default_rng(13)
    z = rng.uniform(0.5, 1.5, 9) + 1j * rng.uniform(0.5, 1.5, 9)
    dy = rng.standard_normal(9) + 1j * rng.standard_normal(9)
    h = 1e-5
    slope = (Activation(kind).eval(z + h) - Activation(kind).eval(z - h)) / (2 * h)
    np.testing.assert_allclose(ops.activation_backward(kind, z, dy), np.conj(slope) * dy, rtol=1e-8)


def test_step_functions():
    x = np.array([-1.5, -0.5, 0.0, 0.25, 2.0])
    for kind in STEPS:
        np.testing.assert_array_equal(derivative(kind, x), np.full(5, 1.0 if kind == "round" else 0.0))


def test_kinks():
    x = np.array([-2.0, -0.0, 0.0, 4.0])
    assert derivative("relu", x).tolist() == [0, 0, 0, 1]
    assert derivative("abs", x).tolist() == [-1, 1, 1, 1]
    np.testing.assert_array_equal(derivative("rsqrt", x), [np.nan, -np.inf, -np.inf, -0.0625])
    np.testing.assert_array_equal(derivative("sqrt", x), [np.nan, -np.inf, np.inf, 0.25])


def test_far_tails_keep_their_digits():
    x = np.array([-12.0, -8.0, 8.0, 12.0, 30.0])
    expected = stats.norm.cdf(x) + x * stats.norm.pdf(x)
    np.testing.assert_allclose(derivative("gelu", x), expected, rtol=1e-12)
    np.testing.assert_allclose(derivative("sigmoid", x), special.expit(x) * special.expit(-x), rtol=1e-12)


def test_gamma_functions():
    x = np.array([-7.3, -2.5, -0.1, 0.1, 0.5, 1.0, 3.7, 25.0, 1e6])
    np.testing.assert_allclose(derivative("digamma", x), special.polygamma(1, x), rtol=1e-12)
    np.testing.assert_allclose(derivative("lgamma", x), special.digamma(x), rtol=1e-12)


def test_upstream_gradient_multiplies(both):
    x, dy = np.array([0.5, -1.0], np.float32), np.array([2.0, 3.0], np.float32)
    got = both(lambda x, dy: ops.activation_backward("square", x, dy), x, dy)
    assert got.tolist() == [2.0, -6.0]


def test_relu_backward_selects(both):
    x = np.array([-1.0, 0.0, np.nan, 2.0])
    got = both(ops.relu_backward, x, np.array([np.inf, np.nan, 1.0, 5.0]))
    assert got.tolist() == [0.0, 0.0, 0.0, 5.0]


def test_errors_teach():
    x = np.ones(3, np.float32)
    with pytest.raises(OpError, match="needs float or complex operands"):
        ops.ActivationBackward("relu")(x.astype(np.int32), x.astype(np.int32))
    with pytest.raises(OpError, match="x and dy need the same dims"):
        ops.activation_backward("exp", x, x[:2])
    with pytest.raises(OpError, match="one dtype for all"):
        ops.ReluBackward()(x, x.astype(np.float64))
    with pytest.raises(OpError, match="needs float operands"):
        ops.activation_backward("gelu", x.astype(np.complex64), x)
