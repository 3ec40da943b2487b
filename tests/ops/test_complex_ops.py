"""Complex numbers against NumPy."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError

rng = np.random.default_rng(4)


def complex_array(dtype):
    return (rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))).astype(dtype)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_parts(both, dtype):
    z = complex_array(dtype)
    np.testing.assert_array_equal(both(ops.real, z), z.real)
    np.testing.assert_array_equal(both(ops.imag, z), z.imag)
    np.testing.assert_array_equal(both(ops.conjugate, z), z.conj())
    np.testing.assert_array_equal(both(ops.complex_, z.real.copy(), z.imag.copy()), z)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.complex64, 1e-6), (np.complex128, 1e-14)])
def test_modulus_and_angle(both, dtype, rtol):
    z = complex_array(dtype)
    np.testing.assert_allclose(both(ops.complex_norm_sq, z), np.abs(z) ** 2, rtol=rtol)
    np.testing.assert_allclose(both(ops.complex_abs, z), np.abs(z), rtol=rtol)
    np.testing.assert_allclose(both(ops.angle, z), np.angle(z), rtol=rtol)
    g = rng.standard_normal((3, 4)).astype(z.real.dtype)
    np.testing.assert_allclose(both(ops.complex_norm_sq_backward, z, g), g * z, rtol=rtol)


@pytest.mark.parametrize("exponent", [0, 1, 2, 7, -1, -3, 99, 100, 0.5, -1.25, 2j, 1 - 1j])
def test_powers(both, exponent):
    z = complex_array(np.complex128)
    np.testing.assert_allclose(both(lambda z: z**exponent, z), z**exponent, rtol=1e-12)


def test_powers_of_zero_and_of_real_numbers(both):
    zero, x = np.zeros(1, np.complex128), rng.uniform(0.5, 2, 4)
    for exponent in (0, 1, 3, 0.5, 1 + 1j):
        np.testing.assert_array_equal(both(lambda z, n=exponent: z**n, zero), zero**exponent)
    np.testing.assert_allclose(both(lambda x: x ** (1 + 2j), x), x ** (1 + 2j), rtol=1e-13)
    np.testing.assert_allclose(both(lambda x: (1 + 2j) ** x, x), (1 + 2j) ** x, rtol=1e-13)


def test_powers_of_zero_without_a_limit(both):
    """As in NumPy: 0 to a power with a real part that is not positive is NaN, except 0 to the power 0."""
    powers = np.array([-1, 1j, -1 + 1j, 0, 2, 1 - 1j])
    with np.errstate(all="ignore"):
        expected = np.power(np.zeros(6, complex), powers)
    np.testing.assert_array_equal(both(lambda b: ops.complex_pow(0j * b, b), powers), expected)


def test_infinite_parts_survive(both):
    z = both(ops.complex_, np.array([np.inf, 1.0]), np.array([1.0, -np.inf]))
    assert z.real.tolist() == [np.inf, 1.0]
    assert z.imag.tolist() == [1.0, -np.inf]


def test_real_operands(both):
    x = np.array([-1.0, -0.0, 0.0, 2.0, np.inf])
    np.testing.assert_array_equal(both(lambda v: ops.real(v) + 0, x), x)
    np.testing.assert_array_equal(both(ops.imag, x), np.zeros(5))
    np.testing.assert_allclose(both(ops.angle, x), np.angle(x))


def test_parts_choose_the_complex_type():
    assert ops.complex_(np.ones(2, "f2"), 1).dtype == np.complex64
    assert ops.complex_(np.ones(2, "i4"), 0).dtype == np.complex64
    assert ops.complex_(np.ones(2, "f8"), np.ones(2, "f4")).dtype == np.complex128


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda: ops.Real()(np.ones(2)), "real: needs complex operands, got f64[2]"),
        (lambda: ops.Conjugate()(np.ones(2)), "conjugate: needs complex operands, got f64[2]"),
        (lambda: ops.complex_norm_sq(np.ones(2)), "complex_norm_sq: needs complex operands"),
        (
            lambda: ops.complex_norm_sq_backward(np.ones(2, "c8"), np.ones(2)),
            "complex_norm_sq_backward: needs complex and f32 operands, got c64[2], f64[2]",
        ),
        (
            lambda: ops.MakeComplex()(np.ones(2, "f2"), np.ones(2, "f2")),
            "make_complex: needs f32 or f64 operands, got f16[2], f16[2]",
        ),
    ],
)
def test_wrong_dtypes_are_named(build, wanted):
    with pytest.raises(OpError) as error:
        build()
    assert str(error.value).startswith(wanted)
