"""Derivatives of factorisations where generated tests cannot look: phases of vectors, equal values, refusals."""

import numpy as np
import pytest
from derivatives import difference, gradients, tangent

from rlx import ops
from rlx.errors import NoJvpRule, NoVjpRule


def complex_matrix(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) + 1j * rng.normal(size=(rows, columns))


def hermitian(size, seed=0):
    a = complex_matrix(size, size, seed)
    return a + a.conj().T


def log_modulus(a):
    """A function of A by its eigenvectors that does not depend on their phases."""
    w, v = ops.eigh(a)
    return ops.matmul(
        v * ops.expand_dims(ops.cast(ops.log(w * w), a.dtype), -2), ops.conjugate(ops.swapaxes(v, -1, -2))
    )


def log_modulus_by_numpy(a):
    w, v = np.linalg.eigh(a)
    return (v * np.log(w * w)) @ v.conj().T


def unitary_factor(a):
    u, _, vh = ops.svd(a)
    return ops.matmul(u, vh)


def unitary_factor_by_numpy(a):
    u, _, vh = np.linalg.svd(a, full_matrices=False)
    return u @ vh


@pytest.mark.parametrize(
    ("function", "reference", "a", "direction"),
    [
        (log_modulus, log_modulus_by_numpy, hermitian(4), hermitian(4, 1)),
        (unitary_factor, unitary_factor_by_numpy, complex_matrix(4, 4), complex_matrix(4, 4, 1)),
        (unitary_factor, unitary_factor_by_numpy, complex_matrix(5, 3), complex_matrix(5, 3, 1)),
        (unitary_factor, unitary_factor_by_numpy, complex_matrix(3, 5), complex_matrix(3, 5, 1)),
    ],
    ids=["eigh", "svd square", "svd tall", "svd wide"],
)
def test_what_does_not_depend_on_phases(function, reference, a, direction):
    moved = tangent(function, [a], [direction])
    np.testing.assert_allclose(moved, difference(reference, [a], [direction]), rtol=1e-6, atol=1e-7)
    # dL = 2 Re <∂L/∂conj(A), dA> for L with the cotangent ct.
    ct = complex_matrix(*moved.shape, seed=2)
    (gradient,) = gradients(function, [a], ct)
    np.testing.assert_allclose(np.vdot(gradient, direction).real, np.vdot(ct, moved).real, rtol=1e-9)


def test_eigenvalues_of_equal_size_have_gradients():
    (gradient,) = gradients(lambda a: ops.eigh(a)[0], [np.eye(3)], np.array([1.0, 2.0, 3.0]))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(np.trace(gradient), 6.0)


def test_singular_values_of_equal_size_have_gradients():
    for options in ({"compute_uv": False}, {"full_matrices": True}, {}):
        (gradient,) = gradients(lambda a: _values(ops.svd(a, **options)), [2 * np.eye(4, 3)], np.ones(3))  # noqa: B023
        np.testing.assert_allclose(gradient, np.eye(4, 3), atol=1e-12)


def _values(factors):
    return factors[1] if isinstance(factors, tuple) else factors


def test_only_the_triangle_that_is_read_has_a_gradient():
    a = np.array([[4.0, 99.0], [1.0, 3.0]])
    for function, upper in ((ops.cholesky, False), (lambda a: ops.eigh(a)[1], False), (_upper_vectors, True)):
        (gradient,) = gradients(function, [a], np.ones((2, 2)))
        unread = gradient[1, 0] if upper else gradient[0, 1]
        assert unread == 0


def _upper_vectors(a):
    return ops.eigh(a, lower=False)[1]


def test_vectors_that_a_matrix_does_not_determine_are_refused():
    tall = np.ones((4, 3)) + np.eye(4, 3)
    with pytest.raises(NoJvpRule, match=r"qr has no derivative: .*f64\[4,3\].*full_matrices=False"):
        tangent(lambda a: ops.qr(a, "complete")[0], [tall], [tall])
    with pytest.raises(NoVjpRule, match=r"qr has no gradient"):
        gradients(lambda a: ops.qr(a, "complete")[0], [tall], np.ones((4, 4)))
    with pytest.raises(NoVjpRule, match=r"svd has no gradient: .*full_matrices=False"):
        gradients(lambda a: ops.svd(a, full_matrices=True)[0], [tall], np.ones((4, 4)))


def test_determinant_and_inverse_have_their_textbook_gradients():
    a = np.random.default_rng(0).normal(size=(2, 3, 3))
    inverse = np.swapaxes(np.linalg.inv(a), -1, -2)
    ct = np.array([2.0, -1.0])
    (gradient,) = gradients(ops.det, [a], ct)
    np.testing.assert_allclose(gradient, (ct * np.linalg.det(a))[:, None, None] * inverse, rtol=1e-10)
    (gradient,) = gradients(lambda a: ops.slogdet(a)[1], [a], ct)
    np.testing.assert_allclose(gradient, ct[:, None, None] * inverse, rtol=1e-10)
    (gradient,) = gradients(ops.inv, [a], np.ones((2, 3, 3)))
    np.testing.assert_allclose(gradient, -inverse @ np.ones((3, 3)) @ inverse, rtol=1e-9)


def test_pseudo_inverse_of_equal_singular_values():
    a, direction = np.eye(3, 2), np.random.default_rng(0).normal(size=(3, 2))
    moved = tangent(ops.pinv, [a], [direction])
    np.testing.assert_allclose(moved, difference(np.linalg.pinv, [a], [direction]), atol=1e-8)


@pytest.mark.parametrize(("order", "slope"), [(None, np.nan), (2, np.nan), (1, 1.0), (3, np.nan)])
def test_norm_of_zero_has_the_slope_of_its_root(order, slope):
    (gradient,) = gradients(lambda x: ops.norm(x, order), [np.zeros(3)], 1.0)
    np.testing.assert_array_equal(gradient, np.full(3, slope))
