"""Linear algebra against NumPy and SciPy, and against the identities that define each factorisation."""

import numpy as np
import pytest
import scipy.linalg

from rlx import ops
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(12)
A = rng.standard_normal((2, 4, 4)) + 4 * np.eye(4)
C = A + 1j * rng.standard_normal((2, 4, 4))
TALL, FLAT = rng.standard_normal((2, 5, 3)), rng.standard_normal((3, 5))
POSITIVE = A @ A.swapaxes(-1, -2)


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


@pytest.mark.parametrize("matrix", [A, C], ids=["real", "complex"])
@pytest.mark.parametrize("dims", [(4,), (4, 3), (2, 4, 3), (1, 4, 2), (5, 1, 4, 2)])
def test_solve(both, matrix, dims):
    b = rng.standard_normal(dims)
    np.testing.assert_allclose(both(ops.solve, matrix, b), np.linalg.solve(matrix, b), rtol=1e-11)


def test_dense_solves_of_the_seed(both):
    b = rng.standard_normal((2, 4))
    np.testing.assert_allclose(both(ops.dense_solve, A[0], b[0]), np.linalg.solve(A[0], b[0]), rtol=1e-12)
    result = both(ops.batched_dense_solve, A, b, dims=[("B", 4, 4), ("B", 4)])
    np.testing.assert_allclose(result, np.linalg.solve(A, b[..., None])[..., 0], rtol=1e-12)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_solve(both, lower, transpose, unit):
    b = rng.standard_normal((4, 3))
    expected = scipy.linalg.solve_triangular(A[0], b, trans=int(transpose), lower=lower, unit_diagonal=unit)
    options = {"lower": lower, "transpose": transpose, "unit_diagonal": unit}
    result = both(lambda a, b: ops.triangular_solve(a, b, **options), A[0], b)
    np.testing.assert_allclose(result, expected, rtol=1e-10)
    column = ops.triangular_solve(A[0], b[:, 0], **options)
    np.testing.assert_allclose(column, expected[:, 0], rtol=1e-10)


def test_triangular_solve_of_batches_and_zero_diagonal():
    b = rng.standard_normal((2, 4, 2))
    for i in range(2):
        expected = scipy.linalg.solve_triangular(C[i], b[i], lower=True)
        np.testing.assert_allclose(ops.triangular_solve(C, b)[i], expected, rtol=1e-10)
    assert np.isinf(ops.triangular_solve(np.zeros((1, 1)), np.ones(1))).all()


def test_cholesky(both):
    np.testing.assert_allclose(both(ops.cholesky, POSITIVE), np.linalg.cholesky(POSITIVE), rtol=1e-12)
    hermitian = C @ adjoint(C)
    factor = ops.cholesky(hermitian)
    np.testing.assert_allclose(factor @ adjoint(factor), hermitian, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("matrix", [TALL, FLAT, C], ids=["tall", "flat", "complex"])
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr(both, matrix, mode):
    q, r = both(lambda a: ops.qr(a, mode), matrix)
    assert (q.shape, r.shape) == tuple(m.shape for m in np.linalg.qr(matrix, mode))
    np.testing.assert_allclose(q @ r, matrix, atol=1e-12)
    np.testing.assert_allclose(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (adjoint(q) @ q).shape), atol=1e-12)
    np.testing.assert_array_equal(r, np.triu(r))


@pytest.mark.parametrize("matrix", [TALL, FLAT, C], ids=["tall", "flat", "complex"])
@pytest.mark.parametrize("full", [True, False])
def test_svd(both, matrix, full):
    u, s, vh = both(lambda a: ops.svd(a, full), matrix)
    expected = np.linalg.svd(matrix, full_matrices=full)
    assert (u.shape, s.shape, vh.shape) == tuple(m.shape for m in expected)
    np.testing.assert_allclose(s, expected[1], rtol=1e-12)
    k = s.shape[-1]
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], matrix, atol=1e-12)
    np.testing.assert_allclose(both(lambda a: ops.svd(a, compute_uv=False), matrix), s, rtol=1e-12)


@pytest.mark.parametrize("lower", [True, False])
def test_eigh_reads_one_triangle(both, lower):
    w, v = both(lambda a: ops.eigh(a, lower), C)
    triangle = np.tril(C, -1) if lower else adjoint(np.triu(C, 1))
    hermitian = triangle + adjoint(triangle) + np.real(C * np.eye(4))
    np.testing.assert_allclose(w, np.linalg.eigvalsh(hermitian), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(hermitian @ v, v * w[..., None, :], atol=1e-11)
    assert w.dtype == np.float64


@pytest.mark.parametrize("matrix", [A, TALL, FLAT, C], ids=["square", "tall", "flat", "complex"])
def test_lu(both, matrix):
    factors, pivots, permutation = both(ops.lu, matrix)
    assert pivots.dtype == permutation.dtype == np.int32
    matrices = matrix.reshape((-1, *matrix.shape[-2:]))
    k = min(matrix.shape[-2:])
    for a, lu, p, order in zip(
        matrices, factors.reshape(matrices.shape), pivots.reshape((-1, k)), permutation.reshape((len(matrices), -1)),
        strict=True,
    ):  # fmt: skip
        expected_lu, expected_pivots = scipy.linalg.lu_factor(a)
        np.testing.assert_allclose(lu, expected_lu, rtol=1e-11, atol=1e-13)
        np.testing.assert_array_equal(p, expected_pivots[:k])
        lower = np.tril(lu, -1)[:, :k] + np.eye(len(a), k)
        np.testing.assert_allclose(lower @ np.triu(lu)[:k], a[order], atol=1e-12)


@pytest.mark.parametrize("matrix", [A, C, A[0]], ids=["real", "complex", "one"])
def test_inverse_and_determinants(both, matrix):
    np.testing.assert_allclose(both(ops.inv, matrix), np.linalg.inv(matrix), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(both(ops.det, matrix), np.linalg.det(matrix), rtol=1e-11)
    for got, expected in zip(both(ops.slogdet, matrix), np.linalg.slogdet(matrix), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_lu_leaves_a_column_of_zeros_alone():
    factors, pivots, permutation = ops.lu(np.array([[0.0, 1.0], [0.0, 2.0]]))
    np.testing.assert_array_equal(factors, [[0.0, 1.0], [0.0, 2.0]])
    np.testing.assert_array_equal(pivots, [0, 1])
    np.testing.assert_array_equal(permutation, [0, 1])


def test_determinant_of_singular_and_permuted_matrices():
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert ops.det(singular) == 0
    assert ops.slogdet(singular)[1] == -np.inf
    assert ops.det(np.eye(3)[[1, 2, 0]]) == 1
    assert ops.det(np.eye(3)[[1, 0, 2]]) == -1


def test_det_of_symbolic_sizes(traced):
    np.testing.assert_allclose(traced(ops.det, A, dims=[("B", "N", "N")]), np.linalg.det(A), rtol=1e-11)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, -1, -2])
def test_matrix_power(both, n):
    result = both(lambda a: ops.matrix_power(a, n), A)
    np.testing.assert_allclose(result, np.linalg.matrix_power(A, n), rtol=1e-9, atol=1e-12)


def test_matrix_power_of_integers_is_exact():
    fibonacci = np.array([[1, 1], [1, 0]])
    assert ops.matrix_power(fibonacci, 30)[0, 1] == 832040


@pytest.mark.parametrize("matrix", [TALL, FLAT, C], ids=["tall", "flat", "complex"])
def test_pinv(both, matrix):
    np.testing.assert_allclose(both(ops.pinv, matrix), np.linalg.pinv(matrix), rtol=1e-10, atol=1e-12)


def test_pinv_with_a_tolerance_per_matrix(both):
    matrices = np.stack([np.diag([1.0, 0.3, 0.01]), np.diag([1.0, 0.3, 0.01])])
    tolerance = np.array([0.1, 0.5])
    expected = np.linalg.pinv(matrices, tolerance)
    np.testing.assert_allclose(both(ops.pinv, matrices, tolerance), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ops.pinv(matrices[0], 0.1), expected[0], rtol=1e-12, atol=1e-14)


def test_pinv_of_a_singular_matrix():
    singular = np.outer([1.0, 2.0, 3.0], [1.0, -1.0])
    np.testing.assert_allclose(ops.pinv(singular), np.linalg.pinv(singular), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("ord", "axis"),
    [
        (None, None),
        (None, 1),
        (None, (0, 2)),
        *((p, -1) for p in (np.inf, -np.inf, 0, 1, 2, 3, 0.5, -1)),
        *((p, (1, 2)) for p in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)),
        (2, (2, 0)),
    ],
)
@pytest.mark.parametrize("keepdims", [True, False])
def test_norm(both, ord, axis, keepdims):
    for x in (TALL, C):
        result = both(lambda x: ops.norm(x, ord, axis, keepdims), x)
        np.testing.assert_allclose(result, np.linalg.norm(x, ord, axis, keepdims), rtol=1e-11)


def test_single_precision_is_rounded_once():
    a = A.astype(np.float32)
    expected = np.linalg.solve(a.astype(np.float64), np.eye(4)).astype(np.float32)
    np.testing.assert_array_equal(ops.inv(a), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.dense_solve(np.ones((3, 3)), np.ones(3)), OpError, "dense_solve: a matrix of A .3x3. is singular"),
        (lambda: ops.inv(np.zeros((2, 2, 2))), OpError, "singular"),
        (lambda: ops.dense_solve(A, np.ones(4)), OpError, "rank 2"),
        (lambda: ops.dense_solve(A[0], np.ones(3)), OpError, "equal leading axes"),
        (lambda: ops.batched_dense_solve(A, np.ones((3, 4))), OpError, "equal leading axes"),
        (lambda: ops.TriangularSolve()(A[0], np.ones(4)), OpError, r"b \[..,N,K\]"),
        (lambda: ops.cholesky(-np.eye(2)), OpError, "not positive definite"),
        (lambda: ops.cholesky(TALL), OpError, "square"),
        (lambda: ops.qr(np.ones(3)), OpError, "matrix in the last two axes"),
        (lambda: ops.qr(A, "raw"), OpError, "mode must be"),
        (lambda: ops.eigh(A.astype(np.float16)), OpError, "cast f16"),
        (lambda: ops.det(TALL), ShapeError, "square"),
        (lambda: ops.matrix_power(A, 0.5), OpError, "Python integer"),
        (lambda: ops.matrix_power(np.ones(3), 2), ShapeError, "square"),
        (lambda: ops.norm(TALL, 2), ShapeError, "give `axis`"),
        (lambda: ops.norm(TALL, "nuc", 0), OpError, "is for matrices"),
        (lambda: ops.norm(TALL, 3, (0, 1)), OpError, "not a matrix norm"),
        (lambda: ops.norm(TALL, 2, (0, 1, 2)), ShapeError, "one or two axes"),
    ],
)
def test_errors_name_the_problem(call, error, message):
    with pytest.raises(error, match=message):
        call()
