"""Elementwise functions of one operand against NumPy, SciPy and cmath."""

import cmath

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from rlx import ops
from rlx.errors import OpError
from rlx.ops.pointwise.unary import ActivationKind

TINY, SMALL, LARGE = 5e-324, 3e-310, 1e300
SPECIAL = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 30.0, -30.0, TINY, -TINY, SMALL, LARGE, -LARGE])
SPECIAL = np.concatenate([SPECIAL, [np.inf, -np.inf, np.nan], np.linspace(-3, 3, 41)])

ORACLES = {
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_approx": lambda x: x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * special.expit(x),
    "relu": lambda x: np.where(x > 0, x, x * 0.0),
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x.astype(np.longdouble))).astype(np.float64),
    "neg": lambda x: -1.0 * x,
    "abs": np.fabs,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "round": lambda x: np.copysign(np.floor(x) + ((x - np.floor(x)) + (np.floor(x) % 2) * 1e-9 > 0.5), x),
    "recip": lambda x: x**-1.0,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.fix,
    "sign": lambda x: np.heaviside(x, 0.5) * 2 - 1,
    "square": lambda x: x**2,
    "expm1": special.expm1,
    "log1p": special.log1p,
    "log2": np.log2,
    "exp2": special.exp2,
    "erf": special.erf,
    "erfc": special.erfc,
    "erf_inv": special.erfinv,
    "asin": np.arcsin,
    "acos": np.arccos,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": special.cbrt,
    "lgamma": special.gammaln,
    "digamma": special.psi,
}
# Where conventions differ, the oracle fails (gammaln of denormals) or the tail amplifies its rounding (gelu).
EXCLUDED = {
    "gelu": lambda x: np.isinf(x) | (x < -10),
    "gelu_approx": lambda x: np.isinf(x),
    "silu": lambda x: np.isinf(x),
    "relu": lambda x: np.isinf(x),
    "digamma": lambda x: (x <= 0) & (x == np.floor(x)) | np.isinf(x),
    "lgamma": lambda x: (x == -np.inf) | ((np.abs(x) < 1e-307) & (x != 0)),
}


def oracle_points(kind):
    return SPECIAL[~EXCLUDED[kind](SPECIAL)] if kind in EXCLUDED else SPECIAL


def test_every_kind_has_an_oracle():
    assert set(ORACLES) == {k.value for k in ActivationKind}


@pytest.mark.parametrize("kind", ORACLES)
@np.errstate(all="ignore")
def test_against_numpy_and_scipy(kind):
    x = oracle_points(kind)
    expected = ORACLES[kind](x)
    # log-gamma crosses zero, where only the absolute error is bounded.
    atol = 1e-15 if kind == "lgamma" else 1e-300
    np.testing.assert_allclose(np.asarray(ops.activation(kind, x)), expected, rtol=2e-14, atol=atol)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=["f16", "bf16", "f32"])
@pytest.mark.parametrize("kind", ["exp", "tanh", "erf", "gelu", "sigmoid", "sqrt", "cbrt", "log1p"])
@np.errstate(all="ignore")
def test_narrow_floats_are_rounded_once(kind, dtype):
    x = np.linspace(0.01, 4, 200).astype(dtype)
    result = np.asarray(ops.activation(kind, x))
    assert result.dtype == dtype
    expected = ORACLES[kind](x.astype(np.float64)).astype(dtype)
    # The oracle itself may be an ulp of f64 away, which changes a rounding once in a long while.
    assert np.mean(result != expected) <= 0.01
    np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), rtol=2.0**-7)


@pytest.mark.parametrize(
    "kind", ["neg", "abs", "sin", "tan", "atan", "sqrt", "sinh", "asinh", "cbrt", "tanh", "trunc", "sign"]
)
def test_odd_functions_keep_the_sign_of_zero(kind):
    result = np.asarray(ops.activation(kind, np.array([0.0, -0.0], "f4")))
    expected = {"neg": [True, False], "abs": [False, False]}.get(kind, [False, True])
    assert np.signbit(result).tolist() == expected


def test_gelu_keeps_small_negative_tails():
    assert float(ops.gelu(np.array(-8.0))) == pytest.approx(-8.0 * special.ndtr(-8.0), rel=1e-13)


def test_round_goes_to_even():
    assert np.asarray(ops.round_(np.array([0.5, 1.5, 2.5, -0.5, -1.5]))).tolist() == [0.0, 2.0, 2.0, -0.0, -2.0]


def test_lgamma_of_denormals_is_minus_their_log():
    assert float(ops.lgamma(np.array(TINY))) == pytest.approx(-np.log(TINY), rel=1e-15)


def test_poles_of_gamma():
    assert np.asarray(ops.lgamma(np.array([0.0, -1.0, np.inf, -np.inf, 1e306]))).tolist() == [np.inf] * 5
    assert np.isnan(np.asarray(ops.digamma(np.array([0.0, -1.0, -7.0, -np.inf])))).all()
    assert float(ops.digamma(np.array(np.inf))) == np.inf


def test_erf_inv_to_the_last_bits():
    y = np.concatenate([1 - np.logspace(-16, -1, 200), -np.linspace(0, 0.999, 200), np.logspace(-300, -1, 50)])
    np.testing.assert_allclose(np.asarray(ops.erf_inv(y)), special.erfinv(y), rtol=2e-15)
    edge = np.asarray(ops.erf_inv(np.array([1.0, -1.0, 1.5, np.nan])))
    assert edge[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(edge[2:]).all()


@pytest.mark.parametrize("dtype", ["i64", "u64", "i8"])
def test_integers_are_exact(dtype):
    info = np.iinfo(ops.cast(0, dtype).dtype)
    x = np.array([info.max, info.max - 1, info.min + 1, 3], info.dtype)
    for kind in ("round", "floor", "ceil", "trunc"):
        assert np.asarray(ops.activation(kind, x)).tolist() == x.tolist()
    signs = [(v > 0) - (v < 0) for v in x.tolist()]
    assert np.asarray(ops.sign(x)).tolist() == signs
    assert np.asarray(ops.abs_(x)).tolist() == [abs(v) for v in x.tolist()]
    assert np.asarray(ops.relu(x)).tolist() == [max(v, 0) for v in x.tolist()]
    modulus = 2**info.bits
    wrapped = [(-v) % modulus - (modulus if info.min < 0 and (-v) % modulus > info.max else 0) for v in x.tolist()]
    assert np.asarray(ops.neg(x)).tolist() == wrapped


@pytest.mark.parametrize("kind", ["exp", "log", "sqrt", "sin", "cos", "tanh"])
def test_complex_functions_take_the_principal_branch(kind):
    z = np.array([1 + 2j, -1 + 0.5j, -1 - 0.5j, -4 + 0j, 0.3 - 2j])
    expected = [getattr(cmath, kind)(v) for v in z.tolist()]
    np.testing.assert_allclose(np.asarray(ops.activation(kind, z)), expected, rtol=1e-14)


def test_abs_of_complex_is_real():
    z = np.array([3 + 4j, 1e200 + 1e200j, complex(np.inf, np.nan)])
    result = np.asarray(ops.abs_(z))
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, [5.0, np.sqrt(2) * 1e200, np.inf])


def test_promotion():
    assert ops.exp(np.array([1], "i4")).dtype == np.float32
    assert ops.exp(np.array([1], "i8")).dtype == np.float64
    assert ops.exp(1).dtype == np.float32
    assert ops.neg(np.array([1], "i2")).dtype == np.int16


@pytest.mark.parametrize(
    ("kind", "dtype", "wanted"),
    [
        ("exp", "int32", "exp: needs float or complex operands, got i32[2]"),
        ("neg", "bool", "neg: needs float or integer or complex operands, got bool[2]"),
        ("erf", "complex64", "erf: needs float operands, got c64[2]"),
    ],
)
def test_wrong_dtypes_are_named(kind, dtype, wanted):
    with pytest.raises(OpError) as error:
        ops.Activation(kind)(np.ones(2, dtype))
    assert str(error.value).startswith(wanted)


def test_unknown_kind():
    with pytest.raises(ValueError, match="swish"):
        ops.activation("swish", np.ones(2))


def test_stop_gradient_is_the_identity(both):
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(both(ops.stop_gradient, x), x)
