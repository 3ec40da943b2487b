"""Elementwise functions of rlx.numpy against NumPy: values, special values, integers, complex numbers, bools."""

import numpy as np
import pytest
from oracle_cases import case, check, precisions

import rlx.numpy as rnp

_rng = np.random.default_rng(0)
X = _rng.uniform(-2, 2, (3, 4))
UNIT = _rng.uniform(-0.95, 0.95, (2, 5))
POSITIVE = _rng.uniform(0.1, 5, (7,))
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.5, 1.5, 2.5])
INTS = np.array([0, 1, -1, 7, -8, 100], np.int32)
NATURALS = np.array([0, 1, 2, 7, 200], np.uint8)
Z = _rng.normal(size=(4, 3)) + 1j * _rng.normal(size=(4, 3))
BOOLS = np.array([True, False, True])

_ANYWHERE = [
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "atan",
    "cbrt",
    "square",
    "negative",
    "positive",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "fix",
    "rint",
    "abs",
    "absolute",
    "fabs",
    "deg2rad",
    "rad2deg",
    "radians",
    "degrees",
    "sinc",
    "signbit",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "spacing",
]
_POSITIVE = ["log", "log2", "log10", "log1p", "sqrt", "reciprocal"]
_UNIT = ["asin", "acos", "atanh", "arcsin", "arccos", "arctanh", "arctan", "arcsinh"]
_COMPLEX = [
    "exp",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "square",
    "negative",
    "positive",
    "sign",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "abs",
    "reciprocal",
    "rint",
    "isnan",
    "isinf",
    "isfinite",
    "real",
    "imag",
    "conj",
    "conjugate",
    "angle",
    "exp2",
    "iscomplex",
    "isreal",
]
_ON_INTS = [
    "negative",
    "positive",
    "abs",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "square",
    "signbit",
    "isfinite",
    "isnan",
    "isinf",
    "invert",
    "bitwise_not",
    "bitwise_invert",
    "bitwise_count",
]

CASES = [
    *(case(n, x) for n in _ANYWHERE for x in (X, SPECIAL)),
    *(case(n, x) for n in _POSITIVE for x in (POSITIVE, SPECIAL)),
    *(case(n, x) for n in _UNIT for x in (UNIT, SPECIAL)),
    case("acosh", POSITIVE + 1),
    case("arccosh", SPECIAL),
    *(case(n, Z) for n in _COMPLEX if n not in ("isreal",)),
    *(case(n, x) for n in _ON_INTS for x in (INTS,)),
    *(case(n, NATURALS) for n in ("positive", "abs", "floor", "square", "invert", "bitwise_count")),
    case("exp", INTS, oracle=lambda x: np.exp(x.astype("f4")), rtol={"f8": 1e-6}),
    case("exp", np.array([0, 1, 5])),
    case("invert", BOOLS),
    case("logical_not", BOOLS),
    case("logical_not", X.round()),
    *(case("round", X * 10, d) for d in (0, 1, 2, -1)),
    case("round", SPECIAL),
    case("round", Z, 1),
    case("round", INTS, -1),
    case("around", X, decimals=1),
    case("modf", SPECIAL),
    case("modf", X),
    case("frexp", np.array([0.0, 1.0, -6.0, 0.1, 1e-30, 1e30, np.inf, 0.75])),
    case("frexp", np.array([5e-324, -2e-310]), oracle=np.frexp),
    case("nan_to_num", SPECIAL),
    case("nan_to_num", SPECIAL, nan=1.0, posinf=2.0, neginf=-3.0),
    case("nan_to_num", np.array([np.nan + 1j, complex(1, np.inf)]), posinf=9.0),
    case("i0", np.array([0.0, -0.5, 1.0, 5.0, 20.0, 39.9, 40.1, 80.0])),
    case("angle", Z, deg=True),
    case("angle", X),
]

A, B = X, _rng.uniform(0.5, 3, (4,))
SIGNED = np.array([7, -7, 7, -7, 0, 5], np.int32), np.array([2, 2, -2, -2, 3, 5], np.int32)
FLOATS = np.array([7.5, -7.5, 7.5, -7.5, 0.0, 1.0, -0.0, 6.0]), np.array([2, 2, -2, -2, 3, 0.1, 2, 3.0])
EDGES = np.array([1.0, -1.0, np.inf, 1.0, np.nan, 0.0]), np.array([0.0, 0.0, 2.0, np.inf, 1.0, -5.0])
_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "true_divide",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "arctan2",
    "hypot",
    "logaddexp",
    "logaddexp2",
    "copysign",
    "nextafter",
    "fmod",
    "remainder",
    "mod",
    "floor_divide",
    "divmod",
    "heaviside",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
]
_BINARY_INTS = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "remainder",
    "mod",
    "floor_divide",
    "divmod",
    "fmod",
    "gcd",
    "lcm",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "less",
    "logical_and",
    "fmax",
]

CASES += [
    *(case(n, A, B) for n in _BINARY if n != "nextafter"),
    case("nextafter", A, B, rtol={"f8": 0, "f4": 0}),
    *(case(n, *FLOATS) for n in ("remainder", "fmod", "floor_divide", "divmod", "mod")),
    *(
        case(n, *EDGES)
        for n in ("remainder", "fmod", "maximum", "fmax", "fmin", "divide", "heaviside", "logaddexp", "hypot")
    ),
    *(case(n, *SIGNED) for n in _BINARY_INTS if n != "divide"),
    case("divide", *SIGNED, oracle=lambda a, b: (a / b).astype("f4"), rtol={"f8": 1e-6}),
    *(
        case(n, NATURALS, NATURALS[::-1].copy())
        for n in ("add", "subtract", "multiply", "bitwise_xor", "gcd", "maximum")
    ),
    *(
        case(n, BOOLS, BOOLS[::-1].copy())
        for n in ("add", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "equal")
    ),
    *(case(n, Z, Z[::-1].copy() + 1) for n in ("add", "subtract", "multiply", "divide", "power", "equal")),
    case("pow", np.abs(A), B),
    case("power", A, np.array(2.0)),
    case("power", INTS[:4], np.array([0, 3, 5, 2], np.int32)),
    case(
        "float_power", INTS[:4], np.array([0, 3, 5, 2], np.int32), oracle=lambda a, b: np.float_power(a, b).astype("f4")
    ),
    case("power", np.array([0j, 0j, 1 + 1j]), np.array([2 + 0j, 0j, 0.5 + 0j])),
    case("left_shift", np.array([1, -3, 5], np.int32), np.array([3, 2, 0], np.int32)),
    case("bitwise_left_shift", np.array([1, 3, 5], np.uint8), np.array([3, 7, 0], np.uint8)),
    case("right_shift", np.array([100, -100, 5], np.int32), np.array([3, 2, 31], np.int32)),
    case("bitwise_right_shift", np.array([100, 200, 5], np.uint8), np.array([3, 2, 7], np.uint8)),
    case("ldexp", A, np.array([1, -2, 3, 40], np.int32)),
    case("ldexp", np.array([1.0, 2.0**-1022, 1.5, 2.0**1023]), np.array([-1074, 2044, 1023, 1], np.int32)),
    case("clip", X, -0.5, 0.7),
    case("clip", X, None, np.array([0.1, 0.2, 0.3, 0.4])),
    case("clip", INTS, -1, 7),
    case("clip", X, min=0.5),
    case(
        "isclose", np.array([1.0, 1.0, np.inf, np.nan, 1e10]), np.array([1.0 + 1e-7, 1.1, np.inf, np.nan, 1.00001e10])
    ),
    case("isclose", np.array([np.nan, np.inf, -np.inf]), np.array([np.nan, -np.inf, -np.inf]), equal_nan=True),
    case("allclose", X, X + 1e-9),
    case("allclose", X, X + 1e-2),
    case("array_equal", X, X),
    case("array_equal", X, X[:2]),
    case("array_equal", SPECIAL, SPECIAL, equal_nan=True),
    case("array_equiv", X, X[None]),
    case("array_equiv", X, X[:2]),
    case("unpackbits", NATURALS),
    case("unpackbits", NATURALS.reshape(5, 1), axis=1, bitorder="little"),
    case("unpackbits", NATURALS, count=11),
    case("unpackbits", NATURALS, count=-3),
    case("packbits", np.arange(13) % 3 == 1),
    case("packbits", (np.arange(30) % 4).reshape(10, 3), axis=0, bitorder="little"),
    case("unwrap", np.array([0.0, 1.0, 5.0, 12.0, 11.0, 3.0])),
    case("unwrap", np.array([[0.0, 7, 14, 5], [1, 9, 2, 4]]), axis=0, period=8),
    case("unwrap", np.array([0.0, 1.0, 5.0, 12.0, 11.0, 3.0]), discont=4.0),
]


@pytest.mark.parametrize(("one", "precision"), [(c, p) for c in CASES for p in precisions(c)], ids=str)
def test_matches_numpy(one, precision):
    check(one, precision)


@pytest.mark.parametrize("name", ["log2", "log10"])
def test_logarithms_of_complex_zero_and_infinity(name):
    """The infinite real part leaves the angle as it is."""
    z = np.array([0, np.inf, 1 + 1j, -2])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(getattr(rnp, name)(z), getattr(np, name)(z), rtol=1e-14)
