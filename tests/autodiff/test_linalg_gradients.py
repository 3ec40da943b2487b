"""Gradients of rlx.linalg: symmetric ones of symmetric matrices, functions of matrices, equal eigenvalues, batches."""

import numpy as np
import pytest

import rlx
import rlx.linalg as linalg
import rlx.numpy as rnp


def drawn(*dims, is_complex=False, seed=0):
    rng = np.random.default_rng([seed, *dims])
    real = rng.normal(size=dims)
    return real + 1j * rng.normal(size=dims) if is_complex else real


def positive(size, is_complex=False):
    a = drawn(size, size, is_complex=is_complex)
    return a @ a.conj().T + np.eye(size)


def slope(function, a, direction, h=1e-6):
    return (float(function(a + h * direction)) - float(function(a - h * direction))) / (2 * h)


def weighed(function, seed=7):
    """A real number made from what a function returns, every element with its own weight."""

    def total(a):
        y = function(a)
        weights = drawn(*y.shape, seed=seed)
        return rnp.sum(rnp.real(y) * weights + rnp.imag(y) * (1 - weights))

    return total


def check(function, a, tolerance=1e-6):
    """The gradient against differences, in every direction."""
    gradient = np.asarray(rlx.grad(function)(a))
    assert gradient.dtype == a.dtype
    units = [np.eye(a.size)[i].reshape(a.shape) for i in range(a.size)]
    # The gradient of a real function of complex numbers z = x + i·y is dL/dz̄ = (dL/dx + i·dL/dy)/2.
    wanted = np.array([slope(function, a, u) for u in units]).reshape(a.shape)
    if np.iscomplexobj(a):
        wanted = (wanted + 1j * np.array([slope(function, a, 1j * u) for u in units]).reshape(a.shape)) / 2
    np.testing.assert_allclose(gradient, wanted, rtol=tolerance, atol=tolerance * (1 + np.abs(wanted).max()))
    return gradient


kinds = pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])


@kinds
def test_gradients_of_symmetric_matrices_are_symmetric(is_complex):
    a = positive(4, is_complex)
    vectors = lambda a: _of_spectrum(linalg.eigh(a))  # noqa: E731
    for function in (weighed(linalg.cholesky), weighed(linalg.eigvalsh), weighed(vectors), linalg.logdet):
        gradient = check(function, a)
        np.testing.assert_allclose(gradient, gradient.T.conj(), rtol=1e-9, atol=1e-9)


def _of_spectrum(factors):
    """A function of a Hermitian matrix that does not depend on the phases of its vectors."""
    w, v = factors
    return (v * rnp.exp(-w)) @ rnp.conj(v.T)


def test_gradient_of_a_logarithmic_determinant_is_the_inverse():
    a = positive(4)
    by_factor = rlx.grad(lambda a: 2 * rnp.sum(rnp.log(rnp.diagonal(linalg.cholesky(a)))))(a)
    np.testing.assert_allclose(np.asarray(by_factor), np.linalg.inv(a), rtol=1e-10)


def test_only_the_triangle_that_is_read_has_a_gradient_on_request():
    a = positive(3)
    lower = rlx.grad(lambda a: rnp.sum(linalg.cholesky(a, symmetrize_input=False)))(a)
    upper = rlx.grad(lambda a: rnp.sum(linalg.eigvalsh(a, "U") ** 2))(a)
    assert not np.triu(lower, 1).any() and not np.tril(upper, -1).any()


@kinds
@pytest.mark.parametrize("name", ["expm", "sqrtm", "logm", "sinm"])
def test_functions_of_matrices(name, is_complex):
    check(weighed(getattr(linalg, name)), positive(3, is_complex) + 0.3 * drawn(3, 3))


@pytest.mark.parametrize("name", ["expm", "sqrtm", "logm"])
def test_functions_of_matrices_with_equal_eigenvalues(name):
    check(weighed(getattr(linalg, name)), 2.0 * np.eye(3) + np.eye(3, k=1))
    check(weighed(getattr(linalg, name)), 2.0 * np.eye(3))


@kinds
@pytest.mark.parametrize("dims", [(3, 3), (4, 2), (2, 4)], ids=str)
def test_polar_factors(dims, is_complex):
    for i in range(2):
        check(weighed(lambda a: linalg.polar(a)[i]), drawn(*dims, is_complex=is_complex))  # noqa: B023
    check(weighed(lambda a: linalg.polar(a)[0]), 2.0 * np.eye(*dims))


@kinds
def test_general_eigenvalues_and_vectors(is_complex):
    a = drawn(4, 4, is_complex=is_complex)
    check(lambda a: rnp.sum(rnp.abs(linalg.eigvals(a)) ** 2), a)

    def spectral(a):
        w, v = linalg.eig(a)
        return rnp.real(rnp.sum(drawn(4, 4, seed=3) * ((v * rnp.exp(w)) @ linalg.inv(v))))

    check(spectral, a)
    # Lengths of components do not depend on phases, but on how long the vectors are.
    check(lambda a: rnp.sum(rnp.abs(linalg.eig(a)[1]) ** 2 * drawn(4, 1, seed=4)), a)


def test_what_equal_values_leave_open_is_left_out():
    """A sum over all vectors of a degenerate subspace has a gradient, and it is the right one."""
    a, inside = np.diag([1.0, 1.0, 3.0]), np.diag([1.0, 1.0, 0.0])

    def projection(a):
        _, v = linalg.eigh(a)
        return rnp.sum((v[:, :2] @ v[:, :2].T) * drawn(3, 3, seed=5))

    gradient = np.asarray(rlx.grad(projection)(a))
    for direction in (np.ones((3, 3)), np.eye(3)[[2, 1, 0]]):
        np.testing.assert_allclose(np.sum(gradient * direction), slope(projection, a, direction), atol=1e-7)
    u_and_vh = rlx.grad(lambda a: rnp.sum(linalg.svd(a, False).U @ linalg.svd(a, False).Vh * inside))(np.eye(3))
    assert np.isfinite(u_and_vh).all()
    zero = rlx.grad(lambda a: rnp.sum(linalg.svd(a, False).U ** 2))(np.zeros((3, 2)))
    assert np.isfinite(zero).all()


@kinds
def test_solves_with_kept_factors(is_complex):
    a, spd = drawn(3, 3, is_complex=is_complex) + 3 * np.eye(3), positive(3, is_complex)
    b = drawn(3, 2, is_complex=is_complex, seed=1)
    for trans in (0, 1, 2):
        check(weighed(lambda a: linalg.lu_solve(linalg.lu_factor(a), b, trans)), a)  # noqa: B023
        check(weighed(lambda a: linalg.solve_triangular(a, b, trans, True)), a)  # noqa: B023
    check(weighed(lambda a: linalg.cho_solve(linalg.cho_factor(a), b)), spd)


def test_structured_solves_and_least_squares():
    c, b = drawn(4) + 5 * np.eye(4)[0], drawn(4)
    for function in (linalg.solve_toeplitz, linalg.solve_circulant, linalg.matmul_toeplitz):
        check(weighed(lambda c: function(c, b)), c)  # noqa: B023
        check(weighed(lambda b: function(c, b)), b)  # noqa: B023
    for dims in ((5, 3), (3, 5), (3, 3)):
        check(weighed(lambda a: linalg.lstsq(a, np.ones(len(a)))[0]), drawn(*dims))
    check(weighed(lambda a: linalg.lstsq(a, b)[0]), np.eye(4, 2))
    check(weighed(lambda v: linalg.diag_set(v)), drawn(3))
    check(weighed(lambda a: linalg.diag_extract(a)), drawn(3, 3))


def test_batches_are_loops_and_second_derivatives_exist():
    a = np.stack([positive(3), 2 * positive(3) + 0.1 * drawn(3, 3)])
    for function in (linalg.expm, linalg.sqrtm, lambda a: linalg.polar(a)[1], lambda a: rnp.abs(linalg.eigvals(a))):
        one = weighed(function)
        together = np.asarray(rlx.vmap(rlx.grad(one))(a))
        for i in range(2):
            np.testing.assert_allclose(together[i], np.asarray(rlx.grad(one)(a[i])), rtol=1e-9, atol=1e-10)
    direction = drawn(3, 3, seed=2)
    for function in (linalg.expm, linalg.logm, lambda a: linalg.polar(a)[0]):
        first = lambda a: rnp.sum(rlx.grad(weighed(function))(a) * direction)  # noqa: B023, E731
        check(first, a[1], 1e-5)
