"""Iterative solvers against dense solutions: values, gradients, batches, and honesty about what did not converge."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
import rlx.numpy as rnp
import rlx.sparse as rs
import sparse_matrices as matrices

HERMITIAN = [
    *((rs.cg, kind) for kind in (None, "jacobi", "ic0")),
    *((rs.minres, kind) for kind in (None, "jacobi", "ic0")),
]
GENERAL = [(rs.bicgstab, None), (rs.bicgstab, "ilu0"), (rs.gmres, None), (rs.gmres, "jacobi"), (rs.gmres, "ilu0")]
CASES = [
    *(pytest.param(f, k, matrices.positive, id=f"{f.__name__}-{k}") for f, k in HERMITIAN),
    *(pytest.param(f, k, matrices.regular, id=f"{f.__name__}-{k}") for f, k in GENERAL),
]


@pytest.mark.parametrize("solver, kind, make", CASES)
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_solutions(solver, kind, make, dtype):
    a = make(30, dtype)
    tol = 1e-5 if dtype == "f4" else 1e-11
    b = np.random.default_rng(0).normal(size=30).astype(dtype)
    x, info = solver(rs.from_scipy(a), b, tol=tol, preconditioner=kind)
    assert x.dtype == dtype and info.converged.dtype == bool and bool(info.converged)
    left = np.linalg.norm(b - a @ np.asarray(x)) / np.linalg.norm(b)
    assert left <= tol * 1.01
    np.testing.assert_allclose(info.residual, left, rtol=1e-2, atol=1e-7 if dtype == "f4" else 1e-15)
    np.testing.assert_allclose(x, np.linalg.solve(a.toarray(), b), atol=100 * tol)
    assert info.check() is info


@pytest.mark.parametrize("solver, kind, make", [CASES[i] for i in (0, 2, 5, 7, 10)])
def test_many_right_sides_and_jit(solver, kind, make):
    a = make(20)
    b = np.random.default_rng(0).normal(size=(20, 3))
    ours = rs.from_scipy(a)
    solve = functools.partial(solver, tol=1e-10, preconditioner=kind)
    wanted = np.linalg.solve(a.toarray(), b)
    x, info = solve(ours, b)
    np.testing.assert_allclose(x, wanted, atol=1e-9)
    assert info.converged.shape == (3,) and info.converged.all()
    again, _ = rlx.jit(solve)(ours, b[:, 0])
    np.testing.assert_allclose(again, wanted[:, 0], atol=1e-9)
    stacked = np.stack([ours.values, 2 * ours.values])
    each = rlx.vmap(lambda v: solve(ours.with_values(v), b[:, 0])[0])(stacked)
    np.testing.assert_allclose(each, [wanted[:, 0], wanted[:, 0] / 2], atol=1e-9)


def symmetric_direction(a, rng):
    """A change of the values that keeps the matrix Hermitian."""
    moved = sp.csr_array((rng.normal(size=a.nnz), a.indices, a.indptr), shape=a.shape)
    both = sp.csr_array(moved + moved.T)
    both.sort_indices()
    assert np.array_equal(both.indices, a.indices)
    return both.data


SOLVERS = [
    pytest.param(lambda m, b: rs.cg(m, b, tol=1e-13, preconditioner="ic0")[0], matrices.positive, id="cg"),
    pytest.param(lambda m, b: rs.minres(m, b, tol=1e-13)[0], matrices.positive, id="minres"),
    pytest.param(lambda m, b: rs.bicgstab(m, b, tol=1e-13, preconditioner="ilu0")[0], matrices.regular, id="bicgstab"),
    pytest.param(lambda m, b: rs.gmres(m, b, tol=1e-13, preconditioner="ilu0")[0], matrices.regular, id="gmres"),
    pytest.param(lambda m, b: rs.lsqr(m, b, tol=1e-13)[0], matrices.regular, id="lsqr"),
    pytest.param(rs.solve, matrices.regular, id="solve"),
    pytest.param(lambda m, b: rs.cholesky(m).solve(b), matrices.positive, id="cholesky"),
]


@pytest.mark.parametrize("solve, make", SOLVERS)
def test_derivatives(solve, make):
    """Gradients against central differences of a dense solution, and forward mode against the gradient."""
    a = make(12)
    rng = np.random.default_rng(0)
    b, weights = rng.normal(size=12), rng.normal(size=12)
    ours = rs.from_scipy(a)
    dv = symmetric_direction(a, rng) if make is matrices.positive else rng.normal(size=a.nnz)
    db = rng.normal(size=12)

    def loss(values, b):
        return rnp.sum(rnp.sin(solve(ours.with_values(values), b)) * weights)

    def dense_loss(step):
        moved = sp.csr_array((a.data + step * dv, a.indices, a.indptr), shape=a.shape)
        return np.sum(np.sin(np.linalg.solve(moved.toarray(), b + step * db)) * weights)

    gv, gb = rlx.grad(loss, argnums=(0, 1))(ours.values, b)
    slope = float(gv @ dv + gb @ db)
    h = 1e-5
    np.testing.assert_allclose(slope, (dense_loss(h) - dense_loss(-h)) / (2 * h), rtol=1e-6)
    _, forward = rlx.jvp(loss, (ours.values, b), (dv, db))
    np.testing.assert_allclose(float(forward), slope, rtol=1e-9)
    compiled = rlx.jit(rlx.grad(loss))(ours.values, b)
    np.testing.assert_allclose(compiled, gv, rtol=1e-8, atol=1e-12)
    # Second derivatives: the gradient has the slope of a symmetric Hessian.
    _, pushed = rlx.jvp(rlx.grad(loss, argnums=1), (ours.values, b), (np.zeros_like(dv), db))
    _, other = rlx.jvp(rlx.grad(loss, argnums=1), (ours.values, b), (np.zeros_like(dv), weights))
    np.testing.assert_allclose(float(pushed @ weights), float(other @ db), rtol=1e-6, atol=1e-12)


def test_gradient_of_a_matrix_is_a_matrix():
    ours = rs.from_scipy(matrices.regular(8))
    gradient = rlx.grad(lambda m: rnp.sum(rs.solve(m, np.ones(8))))(ours)
    assert isinstance(gradient, rs.CSR) and gradient.pattern is ours.pattern


@pytest.mark.parametrize("shape", [(20, 8), (8, 20), (12, 12)])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_least_squares(shape, dtype):
    a = matrices.random(*shape, density=0.6, dtype=dtype)
    b = np.random.default_rng(1).normal(size=shape[0]).astype(dtype)
    x, info = rs.lsqr(rs.from_scipy(a), b, tol=1e-12)
    assert info.converged
    np.testing.assert_allclose(x, np.linalg.lstsq(a.toarray(), b, rcond=None)[0], atol=1e-8)


@pytest.mark.parametrize("shape", [(10, 4), (4, 10)])
def test_derivative_of_least_squares(shape):
    a = matrices.random(*shape, density=0.9)
    rng = np.random.default_rng(1)
    ours, b, dv = rs.from_scipy(a), rng.normal(size=shape[0]), rng.normal(size=a.nnz)

    def dense(step):
        moved = sp.csr_array((a.data + step * dv, a.indices, a.indptr), shape=shape)
        return np.sum(np.linalg.lstsq(moved.toarray(), b, rcond=None)[0] ** 2)

    gradient = rlx.grad(lambda v: rnp.sum(rs.lsqr(ours.with_values(v), b, tol=1e-13)[0] ** 2))(ours.values)
    np.testing.assert_allclose(gradient @ dv, (dense(1e-6) - dense(-1e-6)) / 2e-6, rtol=1e-5)


def test_indefinite_systems_need_minres():
    dense = np.diag(np.concatenate([np.linspace(1, 3, 10), -np.linspace(1, 2, 10)]))
    dense[0, 19] = dense[19, 0] = 0.5
    ours = rs.csr(dense)
    x, info = rs.minres(ours, np.ones(20), tol=1e-10)
    assert info.converged
    np.testing.assert_allclose(dense @ np.asarray(x), np.ones(20), atol=1e-8)


SINGULAR = np.diag([1.0, 2.0, 0.0])


@pytest.mark.parametrize("solver", [rs.cg, rs.minres, rs.bicgstab, rs.gmres])
def test_what_does_not_converge_says_so(solver):
    for matrix, b in (
        (SINGULAR, np.ones(3)),
        (np.diag([1.0, np.nan, 2.0]), np.ones(3)),
        (np.eye(3), np.array([1.0, np.nan, 0.0])),
    ):
        _, info = solver(rs.csr(matrix), b, tol=1e-8)
        assert not info.converged
        with pytest.raises(rlx.errors.OpError, match="did not converge"):
            info.check()
    a = matrices.positive(30)
    x, info = solver(rs.from_scipy(a), np.ones(30), tol=1e-12, maxiter=2)
    assert not info.converged and info.iterations <= 2
    np.testing.assert_allclose(info.residual, np.linalg.norm(a @ np.asarray(x) - 1) / np.sqrt(30), rtol=1e-6)


def test_a_gradient_whose_solve_does_not_converge_is_nan():
    a = matrices.positive(30)
    ours = rs.from_scipy(a)
    gradient = rlx.grad(lambda v: rnp.sum(rs.cg(ours.with_values(v), np.ones(30), tol=1e-12, maxiter=2)[0]))
    assert np.isnan(gradient(ours.values)).all()


def test_a_right_side_of_zeros():
    ours = rs.from_scipy(matrices.positive(10))
    for solver in (rs.cg, rs.minres, rs.bicgstab, rs.gmres):
        x, info = solver(ours, np.zeros(10), x0=np.ones(10))
        assert info.converged and not np.any(x), solver


def test_a_start_near_the_solution_saves_iterations():
    a = matrices.grid(12)
    ours, b = rs.from_scipy(a), np.ones(144)
    x, info = rs.cg(ours, b, tol=1e-10)
    _, again = rs.cg(ours, b, x0=x, tol=1e-10)
    assert again.iterations <= 1 < info.iterations


def test_preconditioners_save_iterations():
    ours, b = rs.from_scipy(matrices.grid(20)), np.ones(400)
    plain = rs.cg(ours, b, tol=1e-10)[1].iterations
    better = rs.cg(ours, b, tol=1e-10, preconditioner="ic0")[1].iterations
    assert better < 0.6 * plain


def test_functions_in_the_place_of_matrices():
    a = matrices.positive(20)
    ours, b = rs.from_scipy(a), np.ones(20)
    wanted = np.linalg.solve(a.toarray(), b)
    for matrix, preconditioner in ((lambda x: ours @ x, None), (ours, rs.ic0(ours)), (ours, lambda r: r / 40.0)):
        for solver in (rs.cg, rs.bicgstab):
            x, info = solver(matrix, b, tol=1e-10, preconditioner=preconditioner)
            assert info.converged
            np.testing.assert_allclose(x, wanted, atol=1e-9)
    x, info = rs.gmres(ours, np.ones((20, 2)), tol=1e-10, preconditioner=rs.ilu0(ours))
    assert info.converged.all()
    np.testing.assert_allclose(x[:, 1], wanted, atol=1e-9)


def test_incomplete_factors_are_those_of_scipy_where_nothing_fills_in():
    a = sp.csr_array(sp.diags_array([-1.0, 4.0, -1.5], offsets=[-1, 0, 1], shape=(9, 9)))
    b = np.arange(9.0)
    exact = sla.spsolve(a.tocsc(), b)
    np.testing.assert_allclose(rs.ilu0(rs.from_scipy(a))(b), exact, rtol=1e-13)
    s = sp.csr_array(sp.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(9, 9)))
    np.testing.assert_allclose(rs.ic0(rs.from_scipy(s))(b), sla.spsolve(s.tocsc(), b), rtol=1e-13)


@pytest.mark.parametrize("largest", [True, False])
def test_lobpcg(largest):
    a = matrices.grid(9)
    start = np.random.default_rng(0).normal(size=(81, 3))
    w, v, info = rs.lobpcg(rs.from_scipy(a), start, largest=largest, tol=1e-8)
    assert info.converged
    values = np.linalg.eigvalsh(a.toarray())
    np.testing.assert_allclose(np.sort(w), values[-3:] if largest else values[:3], atol=1e-7)
    np.testing.assert_allclose(a @ np.asarray(v), np.asarray(v) * np.asarray(w), atol=1e-6)
    _, _, info = rs.lobpcg(rs.from_scipy(a), start, tol=1e-12, maxiter=2)
    assert not info.converged


def test_derivative_of_eigenvalues():
    a = matrices.positive(15)
    ours, rng = rs.from_scipy(a), np.random.default_rng(0)
    start, dv = rng.normal(size=(15, 2)), symmetric_direction(a, rng)
    gradient = rlx.grad(lambda v: rnp.sum(rs.lobpcg(ours.with_values(v), start, tol=1e-10)[0]))(ours.values)

    def dense(step):
        moved = sp.csr_array((a.data + step * dv, a.indices, a.indptr), shape=a.shape)
        return np.linalg.eigvalsh(moved.toarray())[-2:].sum()

    np.testing.assert_allclose(gradient @ dv, (dense(1e-5) - dense(-1e-5)) / 2e-5, rtol=1e-6)


def test_names_of_the_rust_library():
    a = matrices.positive(12)
    b = np.ones(12)
    triple = a.data, a.indices, a.indptr
    wanted = np.linalg.solve(a.toarray(), b)
    transposed = a.T.tocsr()
    t = transposed.data, transposed.indices, transposed.indptr
    found = [
        rs.lu_solve(*triple, b),
        rs.lu_solve_general(*triple, b, *t),
        rs.cholesky_solve(*triple, b),
        rs.cg_solve(*triple, b, max_iter=50, tol=1e-12),
        rs.pcg_solve(*triple, b, max_iter=50, tol=1e-12),
        rs.ilu_pcg_solve(*triple, b, max_iter=50, tol=1e-12),
        rs.gmres_solve(*triple, b, *t, max_iter=50, tol=1e-12),
        rs.bicgstab_solve(*triple, b, max_iter=50, tol=1e-12, transpose=True),
        rs.lsqr_solve(*triple, b, max_iter=100, tol=1e-13, n_cols=12),
    ]
    for x in found:
        np.testing.assert_allclose(x, wanted, atol=1e-9)
    np.testing.assert_allclose(rs.mat_vec(*triple, b), a @ b)
    np.testing.assert_allclose(rs.values_grad(*triple[1:], b, wanted), wanted[a.indices])
    np.testing.assert_array_equal(rs.transpose_values(*triple, *t[1:]), t[0])
    for one, other in zip(rs.csr_transpose_pattern(*triple[1:]), t[1:]):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(rs.cg_solve(*triple, b, max_iter=1, tol=1e-12)).all()


@settings(max_examples=15)
@given(st.integers(1, 12), st.integers(0, 2**16), st.sampled_from(["cg", "minres", "bicgstab", "gmres"]))
def test_any_positive_system(size, seed, name):
    a = matrices.positive(size, seed=seed)
    b = np.random.default_rng(seed).normal(size=size)
    x, info = getattr(rs, name)(rs.from_scipy(a), b, tol=1e-9)
    assert info.converged
    np.testing.assert_allclose(a @ np.asarray(x), b, atol=1e-7)


BAD = [
    (lambda m: rs.cg(m, np.ones(4)), "needs a square A and b with as many rows"),
    (lambda m: rs.cg(m, np.ones((3, 1, 1))), "b must be a vector"),
    (lambda m: rs.cg(m, np.ones(3), preconditioner="amg"), "preconditioner must be None, 'jacobi', 'ilu0', 'ic0'"),
    (lambda m: rs.cg(lambda x: x, np.ones(3), preconditioner="ic0"), "needs the entries of A"),
    (lambda m: rs.cg(m, np.ones(3), tol=0.0), "needs tol > 0"),
    (lambda m: rs.cg(m, np.ones(3), x0=np.ones(4)), "needs vectors with the 3 rows of A"),
    (lambda m: rs.cg(m, np.ones((3, 2)), x0=np.ones((3, 1))), "b and x0 must have one shape"),
    (lambda m: rs.mat_vec(np.ones(2), [0, 1, 2], [0, 1, 2, 3], np.ones(3)), "as many values as indices"),
    (lambda m: rs.lsqr(m, np.ones(4)), "must have the 3 rows"),
    (lambda m: rs.lobpcg(m, np.ones((3, 2))), "3k <= n"),
    (lambda m: rlx.jit(lambda b: rs.cg(m, b)[1].check())(np.ones(3)), "still being traced"),
]


@pytest.mark.parametrize("call, message", BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(rlx.RlxError, match=message):
        call(rs.eye(3, dtype="f64"))
