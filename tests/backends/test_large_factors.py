"""Factorisations of large matrices, in blocks and by reflections and rotations, and of small ones by the batch: against
LAPACK within the bounds that theory gives, the same bits for any number of threads, and hard matrices."""

import numpy as np
import pytest
import scipy.linalg
from test_factorization_kernels import EPS, native, norm, positive, random

import rlx
from rlx import ops
from rlx.compile.lower import blocked_factors
from rlx.errors import OpError
from rlx.ops.lowered import bidiagonal_steps, tridiagonal_steps
from rlx.ops.lowered.factor_steps import SmallSolve

SIZE = 40
GRADED = 10.0 ** -np.arange(float(SIZE))
ROTATION = np.linalg.qr(random(SIZE, SIZE))[0]
HARD = {
    "zero": np.zeros((SIZE, SIZE)),
    "identity": np.eye(SIZE),
    "ones": np.ones((SIZE, SIZE)),
    "diagonal": np.diag(np.arange(float(SIZE))),
    "hilbert": scipy.linalg.hilbert(SIZE),
    "graded": (ROTATION * GRADED) @ ROTATION.T,
    "low rank": random(SIZE, 5) @ random(SIZE, 5).T,
    "wilkinson": np.diag(np.abs(np.arange(SIZE) - SIZE / 2)) + np.eye(SIZE, k=1) + np.eye(SIZE, k=-1),
    "huge": 1e200 * (random(SIZE, SIZE) + random(SIZE, SIZE).T),
    "tiny": 1e-300 * (random(SIZE, SIZE) + random(SIZE, SIZE).T),
    "equal pairs": (ROTATION * np.repeat(np.arange(SIZE // 2), 2)) @ ROTATION.T,
}
UNSYMMETRIC = {
    "nilpotent": np.eye(SIZE, k=1),
    "triangle": np.tril(np.ones((SIZE, SIZE))),
    "strict triangle": np.triu(random(SIZE, SIZE), 1),
    "graded columns": ROTATION * GRADED,
    "graded rows": GRADED[:, None] * ROTATION,
    "zero column": random(SIZE, SIZE) * (np.arange(SIZE) != 7),
}


def check_eigh(a):
    w, v = native(ops.eigh, a)
    whole = np.tril(a) + np.swapaxes(np.tril(a, -1), -1, -2)
    bound = 8 * a.shape[-1] * EPS["f8"] * max(norm(whole), 1e-305)
    assert np.abs(whole @ v - v * w[..., None, :]).max() <= bound
    assert np.abs(np.swapaxes(v, -1, -2) @ v - np.eye(a.shape[-1])).max() <= 8 * a.shape[-1] * EPS["f8"]
    assert np.abs(w - np.linalg.eigvalsh(whole)).max() <= bound and (np.diff(w) >= 0).all()


def check_svd(a, full=False):
    u, s, vh = native(lambda a: ops.svd(a, full), a, checks=1)
    rows, columns = a.shape[-2:]
    count, size = min(rows, columns), max(rows, columns)
    bound = 8 * size * EPS["f8"] * max(norm(a), 1e-305)
    assert np.abs((u[..., :count] * s[..., None, :]) @ vh[..., :count, :] - a).max() <= bound
    for q in (np.swapaxes(u, -1, -2), vh):
        assert np.abs(q @ np.swapaxes(q, -1, -2) - np.eye(q.shape[-2])).max() <= 8 * size * EPS["f8"]
    assert np.abs(s - np.linalg.svd(a, compute_uv=False)).max() <= bound and (np.diff(s) <= 0).all() and (s >= 0).all()
    assert u.shape[-1] == (rows if full else count) and vh.shape[-2] == (columns if full else count)


@pytest.mark.parametrize("dims", [(16, 16), (17, 17), (2, 3, 21, 21), (100, 100)], ids=str)
def test_eigenvalues(dims):
    check_eigh(random(*dims))


@pytest.mark.parametrize("name", HARD)
def test_eigenvalues_of_hard_matrices(name):
    check_eigh(HARD[name])


@pytest.mark.parametrize("dims", [(16, 16), (17, 40), (40, 17), (2, 3, 21, 18), (100, 100)], ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_singular_values(dims, full):
    check_svd(random(*dims), full)


@pytest.mark.parametrize("name", [*HARD, *UNSYMMETRIC])
def test_singular_values_of_hard_matrices(name):
    check_svd((HARD | UNSYMMETRIC)[name])


def test_eigenvalues_of_nan_are_nan_and_singular_values_an_error():
    a = random(2, 20, 20)
    a[1, 5, 3] = np.nan
    w, v = native(ops.eigh, a)
    assert np.isfinite(w[0]).all() and np.isnan(w[1]).all() and np.isnan(v[1]).all()
    with pytest.raises(OpError, match="svd: a matrix has NaN or inf in it"):
        native(lambda a: ops.svd(a), a, checks=1)


def test_steps_do_what_their_definitions_say():
    a = random(2, 19, 19)
    symmetric = a + np.swapaxes(a, -1, -2)
    found = native(tridiagonal_steps.Tridiagonalized(), symmetric)
    for got, wanted in zip(found[:5], tridiagonal_steps.Tridiagonalized().eval(symmetric)[:5], strict=True):
        kept = np.tril(got, -1) if got.ndim == 3 else got
        np.testing.assert_allclose(kept, np.tril(wanted, -1) if got.ndim == 3 else wanted, atol=1e-12)
    tall = random(2, 21, 18)
    found = native(bidiagonal_steps.Bidiagonalized(), tall)
    for got, wanted in zip(found[:7], bidiagonal_steps.Bidiagonalized().eval(tall)[:7], strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-11)
    diagonal, beside = random(2, 9), random(2, 9, seed=1)
    beside[:, -1] = 0
    for steps in (tridiagonal_steps.TridiagonalRotations(), bidiagonal_steps.BidiagonalRotations()):
        values, is_found = native(lambda d, e: [steps(d, e)[i] for i in (0, -2)], diagonal, beside)  # noqa: B023
        wanted = steps.eval(diagonal, beside)
        np.testing.assert_allclose(np.sort(np.abs(values)), np.sort(np.abs(wanted[0])), atol=1e-13)
        assert is_found.all() and wanted[-2].all()


@pytest.fixture
def small_blocks(monkeypatch):
    for name in ("CHOLESKY", "LU", "SOLVE", "PANEL"):
        monkeypatch.setattr(blocked_factors, name, 16)
    monkeypatch.setattr(blocked_factors, "STEP", 8)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_cholesky_and_lu():
    for a in (positive(40, 40), positive(2, 29, 29)):
        (factor,) = native(ops.cholesky, a, checks=1)
        assert np.abs(factor - np.linalg.cholesky(a)).max() <= 50 * EPS["f8"] * norm(a)
        assert not np.triu(factor, 1).any()
    for dims in ((30, 41), (41, 30)):
        a = random(*dims)
        packed, pivots, order = native(ops.lu, a)
        wanted, wanted_pivots = scipy.linalg.lu_factor(a)
        np.testing.assert_allclose(packed, wanted, atol=1e-11)
        np.testing.assert_array_equal(pivots, wanted_pivots)
        lower = np.tril(packed[:, : min(dims)], -1) + np.eye(dims[0], min(dims))
        np.testing.assert_allclose(lower @ np.triu(packed[: min(dims)]), a[order], atol=1e-12)
    bad = positive(40, 40)
    bad[30, 30] = -1
    with pytest.raises(OpError, match="not positive definite"):
        native(ops.cholesky, bad, checks=1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("dims", "mode"), [((35, 40), "reduced"), ((50, 34), "complete"), ((2, 37, 33), "reduced")], ids=str
)
def test_blocks_of_qr(dims, mode):
    a = random(*dims)
    a[..., 3] = 0
    q, r = native(lambda a: ops.qr(a, mode), a)
    assert np.abs(q @ r - a).max() <= 8 * max(dims) * EPS["f8"] * norm(a)
    assert np.abs(np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1])).max() <= 8 * max(dims) * EPS["f8"]
    assert not np.tril(r, -1).any()
    shapes = [x.shape for x in np.linalg.qr(a, mode)]
    assert [q.shape, r.shape] == shapes


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_blocks_of_triangular_solves(lower, transpose, dtype):
    a, b = positive(45, 45, dtype=dtype), random(45, 37, dtype=dtype)
    (x,) = native(lambda a, b: ops.triangular_solve(a, b, lower=lower, transpose=transpose), a, b)
    triangle = np.tril(a) if lower else np.triu(a)
    wanted = scipy.linalg.solve_triangular(triangle.astype("f8"), b.astype("f8"), lower=lower, trans=int(transpose))
    np.testing.assert_allclose(x, wanted, rtol=64 * EPS[dtype], atol=1e3 * EPS[dtype] * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", range(1, 8))
def test_small_systems_by_the_batch(size, dtype):
    a, b = random(3, 37, size, size, dtype=dtype), random(3, 37, size, 2, dtype=dtype)
    (x,) = native(ops.solve, a, b, checks=1)
    wanted = np.linalg.solve(a.astype("f8"), b.astype("f8"))
    np.testing.assert_allclose(x, wanted, rtol=1e-5 if dtype == "f4" else 1e-9, atol=1e-7 if dtype == "f4" else 1e-10)
    (factor,) = native(ops.cholesky, positive(3, 37, size, size), checks=1)
    np.testing.assert_allclose(factor, np.linalg.cholesky(positive(3, 37, size, size)), rtol=1e-9, atol=1e-11)


def test_small_systems_that_have_no_solution():
    a, b = random(20, 3, 3), random(20, 3, 1)
    a[13] = np.ones((3, 3))
    with pytest.raises(OpError, match=r"singular"):
        native(ops.solve, a, b, checks=1)
    a[13] = np.nan
    (x,) = native(ops.solve, a, b, checks=1)
    assert np.isnan(x[13]).all() and np.isfinite(x[12]).all() and np.isfinite(x[14]).all()
    # A permutation needs every exchange of rows that there is.
    turned = np.eye(4)[[3, 0, 1, 2]]
    got, found = native(SmallSolve(), turned, np.arange(4.0)[:, None])
    np.testing.assert_array_equal(got, turned.T @ np.arange(4.0)[:, None])
    assert found.all()


def test_batches_that_would_need_too_much_room_take_another_way(monkeypatch):
    from rlx.compile.lower import sized_factors

    monkeypatch.setattr(sized_factors, "MOST_ROTATIONS", 1000)
    check_eigh(random(2, 18, 18))
    check_svd(random(2, 18, 17))


@pytest.mark.parametrize("dims", [(60, 20), (2, 90, 40)])
def test_least_squares_form_no_inverse(dims):
    """What few vectors are multiplied with is the inverse of R; singular values come from the same R."""
    a, b = random(*dims), random(*dims[:-1], 3)
    a[..., 3] = 2 * a[..., 5]
    graph = rlx.Graph("least_squares")
    x, y = graph.input("a", a.shape, "f64"), graph.input("b", b.shape, "f64")
    graph.set_outputs([ops.pinv(x) @ y, ops.svd(x, compute_uv=False)])
    compiled = rlx.Session("cpu").compile(graph)
    assert sum(row.ops[0] == "bidiagonalized" for row in compiled.report.kernels) == 1
    found, s = compiled.run(a=a, b=b)
    np.testing.assert_allclose(found, np.linalg.pinv(a) @ b, atol=1e-12)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e200, 1e-200])
@pytest.mark.parametrize("dims", [(50, 20), (20, 50), (3, 40, 17)])
def test_long_matrices_are_decomposed_by_their_factor(dims, size):
    a = random(*dims) * size
    a[..., 0, :] = 0
    u, s, v = (np.asarray(x) for x in rlx.jit(lambda a: ops.svd(a))(a))
    np.testing.assert_allclose((u * s[..., None, :]) @ v / size, a / size, atol=1e-13)
    identity = np.broadcast_to(np.eye(min(dims[-2:])), (*dims[:-2], min(dims[-2:]), min(dims[-2:])))
    for x in (np.swapaxes(u, -1, -2), v):
        np.testing.assert_allclose(x @ np.swapaxes(x, -1, -2), identity, atol=1e-13)
    np.testing.assert_allclose(s / size, np.linalg.svd(a / size, compute_uv=False), atol=1e-13)
