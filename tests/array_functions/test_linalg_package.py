"""rlx.linalg beyond NumPy's names against SciPy: real, complex, batched, empty, singular, NaN; at once and compiled."""

import numpy as np
import pytest
import scipy.linalg

import rlx
import rlx.linalg as linalg
import rlx.numpy as rnp
import rlx.scipy
from rlx.errors import OpError, ShapeError


def drawn(*dims, is_complex=False, seed=0):
    rng = np.random.default_rng([seed, *dims])
    real = rng.normal(size=dims)
    return real + 1j * rng.normal(size=dims) if is_complex else real


def positive(*dims, is_complex=False):
    a = drawn(*dims, is_complex=is_complex)
    return a @ a.swapaxes(-1, -2).conj() + np.eye(dims[-1])


def each(function, *arrays):
    """A function of SciPy for one matrix, on every matrix of a batch."""
    lead = arrays[0].shape[:-2]
    found = [function(*(a[at] for a in arrays)) for at in np.ndindex(*lead)]
    return np.array(found).reshape(*lead, *np.shape(found[0]))


def both(function, *arrays):
    """The results at once, which are those inside a program."""
    now, later = function(*arrays), rlx.jit(function)(*arrays)
    for a, b in zip(now, later, strict=True) if isinstance(now, tuple) else [(now, later)]:
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-9, atol=1e-9)
    return now


def close(found, wanted, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=tolerance, atol=tolerance * (1 + np.abs(wanted).max()))


kinds = pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
batches = pytest.mark.parametrize("lead", [(), (3,), (2, 1)], ids=str)


@kinds
@batches
@pytest.mark.parametrize("name", ["expm", "sqrtm", "logm", "sinm", "cosm"])
def test_functions_of_matrices(name, lead, is_complex):
    a = drawn(*lead, 5, 5, is_complex=is_complex)
    close(both(getattr(linalg, name), a), each(getattr(scipy.linalg, name), a), 1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-8, 1.0, 30.0, 300.0])
def test_expm_of_every_size(size):
    a = size * drawn(4, 4)
    found, wanted = np.asarray(both(linalg.expm, a)), scipy.linalg.expm(a)
    np.testing.assert_allclose(found, wanted, rtol=1e-9 * max(1.0, size), atol=1e-9 * np.abs(wanted).max())


def test_expm_of_jordan_blocks_and_of_half_precision():
    jordan = 3.0 * np.eye(4) + np.eye(4, k=1)
    close(both(linalg.expm, jordan), np.exp(3.0) * scipy.linalg.toeplitz([1, 0, 0, 0], [1, 1, 1 / 2, 1 / 6]), 1e-14)
    f4 = drawn(4, 4).astype("f4")
    found = both(linalg.expm, f4)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.asarray(found), scipy.linalg.expm(f4.astype("f8")), rtol=1e-6)


@kinds
def test_powers_and_frechet_derivative(is_complex):
    a, e = drawn(4, 4, is_complex=is_complex), drawn(4, 4, is_complex=is_complex, seed=1)
    close(both(lambda a: linalg.fractional_matrix_power(a, 0.3), a), scipy.linalg.fractional_matrix_power(a, 0.3), 1e-9)
    for found, wanted in zip(both(linalg.expm_frechet, a, e), scipy.linalg.expm_frechet(a, e), strict=True):
        close(found, wanted)


def test_functions_where_there_is_nothing_to_find():
    singular, nilpotent = np.diag([1.0, 0.0]), np.eye(2, k=1)
    has_nan = np.array([[1.0, np.nan], [0.0, 1.0]])
    close(both(linalg.sqrtm, singular), singular)
    assert not np.isfinite(linalg.sqrtm(nilpotent)).all()
    for function, a in (
        (linalg.logm, singular),
        (linalg.expm, has_nan),
        (linalg.logm, has_nan),
        (linalg.sqrtm, has_nan),
    ):
        assert np.isnan(both(function, a)).all()
    for function in (linalg.expm, linalg.logm, linalg.sqrtm):
        assert np.shape(function(np.zeros((0, 0)))) == (0, 0)
        assert np.shape(function(np.zeros((0, 2, 2)))) == (0, 2, 2)


@kinds
@batches
@pytest.mark.parametrize("output", ["real", "complex"])
def test_schur(output, lead, is_complex):
    a = drawn(*lead, 6, 6, is_complex=is_complex)
    # Signs of vectors are up to who computes them.
    for schur in (linalg.schur, rlx.jit(linalg.schur, static_argnums=1)):
        t, z = (np.asarray(x) for x in schur(a, output))
        close(z @ t @ z.swapaxes(-1, -2).conj(), a)
        close(z @ z.swapaxes(-1, -2).conj(), np.broadcast_to(np.eye(6), a.shape))
        is_triangular = is_complex or output == "complex"
        assert t.dtype.kind == ("c" if is_triangular else "f")
        assert not np.tril(t, -1 if is_triangular else -2).any()
        values = np.linalg.eigvals(a)
        close(np.sort_complex(np.round(np.linalg.eigvals(t), 8)), np.sort_complex(np.round(values, 8)), 1e-7)


def test_real_schur_has_standard_blocks():
    for seed in range(20):
        t = np.asarray(linalg.schur(drawn(7, 7, seed=seed)).T)
        for k in np.flatnonzero(np.diag(t, -1)):
            assert t[k, k] == t[k + 1, k + 1] and t[k, k + 1] * t[k + 1, k] < 0
            assert k + 2 == len(t) or t[k + 2, k + 1] == 0


@pytest.mark.parametrize(
    "a",
    [np.zeros((4, 4)), np.eye(5, k=-1) + np.eye(5, k=4), np.ones((5, 5)), 1e200 * drawn(4, 4), 1e-200 * drawn(4, 4)],
    ids=["zero", "cyclic", "ones", "huge", "tiny"],
)
def test_schur_of_hard_matrices(a):
    for matrix in (a, a.astype("c16")):
        t, z = (np.asarray(x) for x in linalg.schur(matrix))
        np.testing.assert_allclose(z @ t @ z.conj().T, a, atol=1e-13 * max(np.abs(a).max(), 1e-300))


@kinds
@batches
def test_eig(lead, is_complex):
    a = drawn(*lead, 5, 5, is_complex=is_complex)
    # Phases are up to who computes them.
    for eig, eigvals in ((linalg.eig, linalg.eigvals), (rlx.jit(linalg.eig), rlx.jit(linalg.eigvals))):
        w, v = (np.asarray(x) for x in eig(a))
        close(a @ v, v * w[..., None, :])
        close(np.linalg.norm(v, axis=-2), np.ones(w.shape))
        close(eigvals(a), np.sort_complex(np.linalg.eigvals(a)))
        close(w, np.sort_complex(np.linalg.eigvals(a)))
        assert w.dtype == v.dtype == np.complex128


# Real parts are equal but for rounding, or all are 0.
LEVEL = {
    "skew": lambda n: drawn(n, n) - drawn(n, n).T,
    "cycle": lambda n: np.roll(np.eye(n), 1, axis=0),
    "imaginary": lambda n: 1j * (drawn(n, n) + drawn(n, n).T),
    "minus zero": lambda n: np.eye(n, k=1) * -0.0 + np.diag(np.arange(n) - 2.0),
    "symmetric": lambda n: drawn(n, n) + drawn(n, n).T,
    "zero": lambda n: np.zeros((n, n)),
    "huge": lambda n: 1e300 * (drawn(n, n) - drawn(n, n).T),
}


@pytest.mark.parametrize("kind", LEVEL)
def test_eigenvalues_come_in_one_order(kind):
    a = LEVEL[kind](7)
    unit = max(np.abs(a).max(), 1.0)
    eager, compiled = (np.asarray(f(a)) / unit for f in (linalg.eigvals, rlx.jit(linalg.eigvals)))
    with_vectors = [np.asarray(f(a)[0]) / unit for f in (linalg.eig, rlx.jit(linalg.eig))]
    for other in (compiled, *with_vectors):
        np.testing.assert_allclose(other, eager, rtol=0, atol=1e-13)
    steps = np.round(eager * 2.0**30)
    np.testing.assert_array_equal(steps, np.sort_complex(steps))
    if kind == "symmetric":
        np.testing.assert_allclose(eager.real, np.linalg.eigvalsh(a / unit), atol=1e-13)


def test_eig_of_nan_is_nan_there_only():
    a = drawn(2, 3, 3)
    a[1, 0, 2] = np.nan
    for eig in (linalg.eig, rlx.jit(linalg.eig)):
        w, v = (np.asarray(x) for x in eig(a))
        assert np.isfinite(w[0]).all() and np.isnan(w[1]).all() and np.isnan(v[1]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dims", [(3, 2), (3,), (40, 2)], ids=str)
@kinds
def test_solve_of_a_matrix_that_is_not_finite_is_nan_there_only(dims, bad, is_complex):
    """Small systems, large ones and complex ones have programs of their own. None calls such a matrix singular, be its
    pivots 0 or not; one that is singular beside it is an error."""
    size = dims[0]
    a, b = drawn(2, size, size, is_complex=is_complex), drawn(2, *dims, is_complex=is_complex)
    for others in (a[1].copy(), np.zeros((size, size))):
        a[1] = others
        a[1, 0, size - 1] = a[1, size - 1, 0] = bad
        for solve in (rlx.ops.batched_dense_solve, rlx.jit(rlx.ops.batched_dense_solve)):
            x = np.asarray(solve(a, b))
            assert np.isnan(x[1]).all()
            close(a[0] @ x[0], b[0])
            with pytest.raises(OpError, match="singular"):
                solve(np.stack([a[1], np.zeros((size, size))]), b)


@kinds
@batches
@pytest.mark.parametrize("dims", [(4, 4), (5, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("side", ["right", "left"])
def test_polar(side, dims, lead, is_complex):
    a = drawn(*lead, *dims, is_complex=is_complex)
    u, p = both(lambda a: linalg.polar(a, side), a)
    close(u, each(lambda m: scipy.linalg.polar(m, side)[0], a))
    close(p, each(lambda m: scipy.linalg.polar(m, side)[1], a))


@kinds
@batches
def test_factors_are_kept_and_used_again(lead, is_complex):
    a, spd = drawn(*lead, 4, 4, is_complex=is_complex), positive(*lead, 4, 4, is_complex=is_complex)
    b = drawn(*lead, 4, 2, is_complex=is_complex, seed=1)
    for lower in (False, True):
        close(both(lambda a, b: linalg.cho_solve(linalg.cho_factor(a, lower), b), spd, b), np.linalg.solve(spd, b))  # noqa: B023
        triangle = np.tril(a) if lower else np.triu(a)
        for trans, turned in enumerate((triangle, triangle.swapaxes(-1, -2), triangle.swapaxes(-1, -2).conj())):
            found = both(lambda a, b: linalg.solve_triangular(a, b, trans, lower), a, b)  # noqa: B023
            close(found, np.linalg.solve(turned, b))
    for trans, turned in enumerate((a, a.swapaxes(-1, -2), a.swapaxes(-1, -2).conj())):
        close(both(lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b, trans), a, b), np.linalg.solve(turned, b))  # noqa: B023
    close(both(linalg.logdet, spd), np.linalg.slogdet(spd)[1])


@pytest.mark.parametrize("dims", [(4, 4), (5, 3), (3, 5), (2, 4, 4)], ids=str)
def test_lu(dims):
    a = drawn(*dims)
    for i in range(3):
        close(both(linalg.lu, a)[i], each(lambda m: scipy.linalg.lu(m)[i], a))  # noqa: B023
    for i in range(2):
        close(both(lambda a: linalg.lu(a, True), a)[i], each(lambda m: scipy.linalg.lu(m, True)[i], a))  # noqa: B023


def test_lu_of_complex_matrices():
    """LAPACK compares |re| + |im| when it looks for pivots, and these are moduli; so factors may differ."""
    a = drawn(5, 3, is_complex=True)
    p, l, u = (np.asarray(x) for x in both(linalg.lu, a))
    close(p @ l @ u, a)
    assert np.abs(l).max() <= 1 + 1e-12 and not np.tril(u, -1).any() and not np.triu(l, 1).any()


@kinds
def test_toeplitz_and_circulant(is_complex):
    c, r = drawn(5, is_complex=is_complex), drawn(4, is_complex=is_complex)
    row, b = drawn(5, is_complex=is_complex, seed=1), drawn(5, 2, is_complex=is_complex)
    close(both(linalg.toeplitz, c), scipy.linalg.toeplitz(c))
    close(both(linalg.toeplitz, c, r), scipy.linalg.toeplitz(c, r))
    close(both(linalg.circulant, c), scipy.linalg.circulant(c))
    for right in (b, b[:, 0]):
        found = both(lambda c, r, b: linalg.solve_toeplitz((c, r), b), c, row, right)
        close(found, scipy.linalg.solve_toeplitz((c, row), right), 1e-9)
        close(both(linalg.solve_toeplitz, c, right), np.linalg.solve(scipy.linalg.toeplitz(c), right), 1e-9)
        close(both(linalg.solve_circulant, c, right), scipy.linalg.solve_circulant(c, right), 1e-9)
        found = both(lambda c, r, b: linalg.matmul_toeplitz((c, r), b), c, row, right)
        close(found, scipy.linalg.matmul_toeplitz((c, row), right), 1e-9)


def test_toeplitz_of_batches():
    c, b = drawn(3, 4), drawn(3, 4, 2)
    close(both(linalg.toeplitz, c), np.stack([scipy.linalg.toeplitz(x) for x in c]))
    close(
        both(linalg.solve_circulant, c, b), np.stack([scipy.linalg.solve_circulant(x, y) for x, y in zip(c, b)]), 1e-9
    )
    close(both(linalg.solve_toeplitz, c, b), np.stack([scipy.linalg.solve_toeplitz(x, y) for x, y in zip(c, b)]), 1e-9)


def test_singular_circulant():
    c, b = np.array([1.0, -1.0, 0.0, 0.0]), drawn(4)
    found = both(lambda c, b: linalg.solve_circulant(c, b, "lstsq"), c, b)
    close(found, np.linalg.lstsq(scipy.linalg.circulant(c), b)[0])
    assert not np.isfinite(linalg.solve_circulant(c, b)).all()


def test_blocks_and_diagonals():
    a, b = drawn(2, 3), drawn(2, 2)
    close(both(linalg.block_diag, a, b, b[0]), scipy.linalg.block_diag(a, b, b[0]))
    close(both(linalg.block_diag, np.stack([b, b]), a)[1], scipy.linalg.block_diag(b, a))
    close(both(linalg.diag_set, a), np.stack([np.diag(row) for row in a]))
    close(both(linalg.diag_extract, drawn(2, 3, 3)), np.diagonal(drawn(2, 3, 3), axis1=-2, axis2=-1))
    close(both(linalg.kron, a, b), np.kron(a, b))


@kinds
def test_least_squares_of_batches_and_of_less_than_full_rank(is_complex):
    a, b = drawn(3, 5, 2, is_complex=is_complex), drawn(3, 5, 2, is_complex=is_complex, seed=1)
    x, residual, rank, _ = both(linalg.lstsq, a, b)
    for i in range(3):
        wanted = np.linalg.lstsq(a[i], b[i])
        close(x[i], wanted[0])
        close(residual[i], wanted[1])
    assert np.asarray(rank).tolist() == [2, 2, 2]
    flat = np.ones((4, 3))
    close(both(linalg.lstsq, flat, drawn(4))[0], np.linalg.lstsq(flat, drawn(4))[0])


@pytest.mark.parametrize("p", [None, 1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"])
def test_condition_of_regular_singular_and_nan_matrices(p):
    a, has_nan = drawn(2, 3, 3), np.array([[np.nan, 1.0], [1.0, 2.0]])
    close(both(lambda a: linalg.cond(a, p), a), np.linalg.cond(a, p))
    if p not in (2, -2, None, "nuc"):
        assert both(lambda a: linalg.cond(a, p), np.ones((2, 2))) == np.inf
        assert np.isnan(both(lambda a: linalg.cond(a, p), has_nan))


@kinds
@pytest.mark.parametrize("p", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_norms_of_matrices(p, is_complex):
    a = drawn(2, 3, 4, is_complex=is_complex)
    close(both(lambda a: linalg.norm(a, p, (-2, -1)), a), np.linalg.norm(a, p, (-2, -1)))


@kinds
@pytest.mark.parametrize("p", [None, 0, 0.5, 1, 2, 3, -1, -2.5, np.inf, -np.inf])
def test_norms_of_vectors(p, is_complex):
    a = drawn(3, 4, is_complex=is_complex)
    close(both(lambda a: linalg.norm(a, p, -1), a), np.linalg.norm(a, p, -1))


def test_which_part_of_a_matrix_is_read():
    spd = positive(3, 3)
    skewed = spd + np.triu(drawn(3, 3), 1)
    close(linalg.cholesky(skewed), np.linalg.cholesky((skewed + skewed.T) / 2))
    close(linalg.cholesky(skewed, symmetrize_input=False), np.linalg.cholesky(skewed))
    close(linalg.eigvalsh(skewed), np.linalg.eigvalsh((skewed + skewed.T) / 2))
    for uplo in "LU":
        close(linalg.eigvalsh(skewed, uplo), np.linalg.eigvalsh(skewed, uplo))


def test_what_is_wrong_is_said():
    square = np.eye(3)
    for call, error, message in (
        (lambda: linalg.schur(square, "both"), OpError, "output must be real or complex, got 'both'"),
        (lambda: linalg.polar(square, "up"), OpError, "side must be 'left' or 'right', got 'up'"),
        (lambda: linalg.lu_solve(linalg.lu_factor(square), square, 3), OpError, "trans must be 0, 1 or 2, got 3"),
        (lambda: linalg.solve_triangular(square, square, "X"), OpError, "trans must be .* got 'X'"),
        (lambda: linalg.solve_circulant(square[0], square, "x"), OpError, "singular must be 'nan' or 'lstsq'"),
        (lambda: linalg.solve_circulant(square[0], np.ones(4)), ShapeError, "needs 3 rows in b"),
        (lambda: linalg.solve_toeplitz((np.ones(3), np.ones(2)), np.ones(3)), ShapeError, "of one length"),
        (lambda: linalg.solve_toeplitz(np.ones(3), np.ones(3)), OpError, "singular"),
        (lambda: linalg.expm(np.ones((2, 3))), OpError, "needs square matrices"),
        (lambda: linalg.logdet(-square), OpError, "not positive definite"),
        (lambda: linalg.expm_frechet(square, np.eye(2)), ShapeError, "two matrices of one shape"),
        (lambda: linalg.block_diag(), ShapeError, "needs a matrix or more"),
        (lambda: linalg.diag_set(2.0), ShapeError, "needs diagonals in the last axis"),
    ):
        with pytest.raises(error, match=message):
            call()


@kinds
def test_general_eigenvalues_by_numpys_names(is_complex):
    a = drawn(2, 4, 4, is_complex=is_complex)
    # The phase of vectors may differ between the two.
    for eig in (rnp.linalg.eig, rlx.jit(rnp.linalg.eig)):
        values, vectors = map(np.asarray, eig(a))
        close(a @ vectors, vectors * values[..., None, :])
        close(np.linalg.norm(vectors, axis=-2), np.ones(values.shape))
    close(np.sort_complex(np.asarray(rnp.linalg.eigvals(a))), np.sort_complex(np.linalg.eigvals(a)))


@kinds
@pytest.mark.parametrize("lower", [False, True])
def test_scipy_arguments(is_complex, lower):
    """`rlx.scipy.linalg` has SciPy's defaults, and reads the triangles that SciPy reads."""
    a, b = positive(4, 4, is_complex=is_complex), positive(4, 4, is_complex=is_complex).T + np.eye(4)
    columns, tall = drawn(4, 2, is_complex=is_complex), drawn(5, 3, is_complex=is_complex)
    ours, theirs = rlx.scipy.linalg, scipy.linalg
    read = np.tril(a) if lower else np.triu(a)
    for factor in (lambda m, x: m.cholesky(x, lower=lower), lambda m, x: m.eigh(x, lower=lower, eigvals_only=True)):
        close(both(lambda x: factor(ours, x), read), factor(theirs, read))  # noqa: B023
    values, vectors = ours.eigh(read, np.tril(b) if lower else np.triu(b), lower=lower)
    close(values, theirs.eigh(a, b, eigvals_only=True))
    close(a @ vectors, b @ vectors * values)
    for kind in ("gen", "her", "pos"):
        close(
            ours.solve(a if kind == "gen" else read, columns, lower=lower, assume_a=kind), np.linalg.solve(a, columns)
        )
    symmetric = drawn(4, 4, is_complex=is_complex)
    symmetric = symmetric + symmetric.T
    triangle = np.tril(symmetric) if lower else np.triu(symmetric)
    close(ours.solve(triangle, columns, lower=lower, assume_a="sym"), np.linalg.solve(symmetric, columns))
    close(ours.inv(a, overwrite_a=True, check_finite=False), np.linalg.inv(a))
    assert [x.shape for x in ours.qr(tall)] == [(5, 5), (5, 3)]
    assert [x.shape for x in ours.qr(tall, mode="economic")] == [(5, 3), (3, 3)]
    assert [x.shape for x in ours.qr(tall, mode="r")] == [(5, 3)]


def test_tridiagonal_eigenvalues():
    d, e = drawn(5), drawn(4)
    values, vectors = rlx.scipy.linalg.eigh_tridiagonal(d, e)
    close(values, scipy.linalg.eigh_tridiagonal(d, e, eigvals_only=True))
    close((vectors * values) @ vectors.T, np.diag(d) + np.diag(e, 1) + np.diag(e, -1))
