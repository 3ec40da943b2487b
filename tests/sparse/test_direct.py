"""Direct sparse solvers against dense ones: LU of SuperLU and our own, Cholesky in all orders, triangular systems."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
import rlx.sparse as rs
import sparse_matrices as matrices
from rlx.sparse import direct, ordering, supernodes


@pytest.fixture(params=["superlu", "own"])
def engine(request, monkeypatch):
    """Both engines; the second is what is there without SciPy."""
    direct.forget_factors()
    if request.param == "own":
        monkeypatch.setattr(direct, "has_scipy", lambda: False)
    yield request.param
    direct.forget_factors()


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_solve(engine, dtype):
    a = matrices.random(25, 25, 0.3, dtype, seed=3)
    b = np.random.default_rng(0).normal(size=(25, 3)).astype(dtype)
    for kind in ("csr", "csc", "coo"):
        x = rs.solve(rs.from_scipy(a.asformat(kind)), b)
        assert x.dtype == dtype
        wanted = np.linalg.solve(a.toarray().astype("c16" if dtype[0] == "c" else "f8"), b)
        np.testing.assert_allclose(x, wanted, rtol=2e-4 if dtype in ("f4", "c8") else 1e-9)
    np.testing.assert_allclose(
        rs.solve(rs.from_scipy(a).T, b[:, 0]), np.linalg.solve(a.T.toarray(), b[:, 0]), rtol=2e-3
    )


def test_solve_that_needs_pivots(engine):
    dense = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0], [4.0, 1e-20, 0.0]])
    np.testing.assert_allclose(rs.solve(rs.csr(dense), np.arange(3.0)), np.linalg.solve(dense, np.arange(3.0)))
    for transpose in (False, True):
        a = (
            matrices.random(40, 40, 0.1, seed=5)
            + sp.eye_array(40, k=3)
            + sp.eye_array(40, k=-4)
            + sp.eye_array(40) * 1e-9
        )
        m = rs.csr(a)
        x = rs.solve(m.T if transpose else m, np.ones(40))
        np.testing.assert_allclose((a.T if transpose else a) @ np.asarray(x), np.ones(40), atol=1e-8)


@pytest.mark.parametrize("dense", [np.diag([1.0, 0.0]), np.ones((2, 2)), np.zeros((2, 2))], ids=str)
def test_singular_matrices_are_an_error(engine, dense):
    a = rs.csr(dense)
    with pytest.raises(rlx.errors.OpError, match="singular"):
        rs.solve(a, np.ones(2))
    with pytest.raises(rlx.errors.OpError, match="singular"):
        rlx.jit(lambda b: rs.solve(a, b))(np.ones(2))


def test_nan_is_an_error_in_the_matrix_and_stays_in_the_right_side(engine):
    with pytest.raises(rlx.errors.OpError, match="NaN or inf"):
        rs.solve(rs.csr(np.diag([1.0, np.nan])), np.ones(2))
    assert np.isnan(rs.solve(rs.eye(2, dtype="f64"), np.array([np.nan, 1.0]))[0])


def test_empty_systems(engine):
    empty = rs.csr(np.zeros((0, 0)))
    assert rs.solve(empty, np.zeros(0)).shape == (0,)
    assert rs.solve(rs.eye(3, dtype="f64"), np.zeros((3, 0))).shape == (3, 0)
    assert rs.cholesky(empty).solve(np.zeros(0)).shape == (0,)


def test_factors_are_found_again(monkeypatch):
    direct.forget_factors()
    made = []
    monkeypatch.setattr(direct, "SuperLu", lambda *args, real=direct.SuperLu: made.append(1) or real(*args))
    m = rs.from_scipy(matrices.regular(10))
    f = rs.lu(m)
    f.solve(np.ones(10))
    rlx.grad(lambda v: rs.solve(m.with_values(v), np.ones(10)).sum())(m.values)
    assert len(made) == 1
    rs.solve(m * 2, np.ones(10))
    assert len(made) == 2


@pytest.mark.parametrize("order", ordering.ORDERS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_cholesky(order, dtype):
    a = matrices.positive(30, dtype)
    b = np.random.default_rng(0).normal(size=(30, 4)).astype(dtype)
    factor = rs.cholesky(rs.from_scipy(a), order)
    wide = a.toarray().astype("c16" if dtype[0] == "c" else "f8")
    tolerance = 1e-4 if dtype in ("f4", "c8") else 1e-12
    np.testing.assert_allclose(factor.solve(b), np.linalg.solve(wide, b), rtol=tolerance, atol=tolerance)
    permuted = wide[np.ix_(factor.order, factor.order)]
    np.testing.assert_allclose(factor.L.todense(), np.linalg.cholesky(permuted), rtol=tolerance, atol=100 * tolerance)
    np.testing.assert_allclose(factor.logdet(), np.linalg.slogdet(wide)[1], rtol=tolerance)


def test_cholesky_inside_of_a_program():
    a = matrices.positive(20)
    m, b = rs.from_scipy(a), np.ones(20)
    wanted = np.linalg.solve(a.toarray(), b)
    factor = rlx.jit(rs.cholesky)(m)
    assert isinstance(factor, rs.Cholesky)
    np.testing.assert_allclose(factor.solve(b), wanted, rtol=1e-12)
    np.testing.assert_allclose(rlx.jit(lambda f, b: f.solve(b))(factor, b), wanted, rtol=1e-12)
    stacked = np.stack([m.values, 3 * m.values])
    each = rlx.vmap(lambda v: rs.cholesky(m.with_values(v)).solve(b))(stacked)
    np.testing.assert_allclose(each, [wanted, wanted / 3], rtol=1e-12)
    assert np.isnan(rlx.jit(lambda m: rs.cholesky(m).solve(b))(-m)).any()


@pytest.mark.parametrize("dense", [-np.eye(2), np.array([[1.0, 2.0], [2.0, 1.0]]), np.zeros((2, 2))], ids=str)
def test_cholesky_needs_a_positive_definite_matrix(dense):
    with pytest.raises(rlx.errors.OpError, match="not positive definite"):
        rs.cholesky(rs.csr(dense))


def test_the_log_determinant_has_no_derivative():
    m = rs.from_scipy(matrices.positive(6))
    with pytest.raises(rlx.errors.NoVjpRule, match="entries of the inverse"):
        rlx.grad(lambda v: rs.cholesky(m.with_values(v)).logdet())(m.values)


def test_orders_reduce_fill_in():
    m = rs.from_scipy(matrices.grid(16))
    fill = {order: rs.cholesky(m, order).L.nnz for order in ordering.ORDERS}
    assert fill["amd"] < 0.7 * fill["natural"] and fill["rcm"] < fill["natural"]
    shuffled = m[np.ix_(*(np.random.default_rng(0).permutation(256),) * 2)]
    assert rs.cholesky(shuffled, "rcm").L.nnz < rs.cholesky(shuffled, "natural").L.nnz


@settings(max_examples=30)
@given(st.integers(1, 14), st.floats(0.0, 0.6), st.integers(0, 2**16), st.sampled_from(ordering.ORDERS))
def test_fill_in_is_that_of_a_dense_factorisation(size, density, seed, order):
    a = matrices.positive(size, seed=seed, density=density)
    pattern = rs.from_scipy(a).pattern
    plan = supernodes.analysed(pattern, order)
    permutation, lower = plan.order, plan.pattern
    assert sorted(permutation) == list(range(size))
    # Entries that are 0 by chance have measure 0; every other entry of L must have its place.
    dense = np.linalg.cholesky(a.toarray()[np.ix_(permutation, permutation)])
    found = np.zeros((size, size), bool)
    found[lower.rows, lower.indices] = True
    assert found[np.abs(dense) > 1e-13].all()
    assert not found[np.triu_indices(size, 1)].any()


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_triangular_systems(lower, transpose, unit, dtype):
    a = matrices.regular(15, dtype)
    b = np.random.default_rng(0).normal(size=(15, 2)).astype(dtype)
    dense = np.tril(a.toarray()) if lower else np.triu(a.toarray())
    if unit:
        np.fill_diagonal(dense, 1.0)
    options = {"lower": lower, "transpose": transpose, "unit_diagonal": unit}
    x = rs.triangular_solve(rs.from_scipy(a), b, **options)
    np.testing.assert_allclose(x, np.linalg.solve(dense.T if transpose else dense, b), rtol=1e-9, atol=1e-9)


def test_a_triangle_without_diagonal_is_an_error():
    with pytest.raises(rlx.errors.OpError, match="zero on its diagonal"):
        rs.triangular_solve(rs.csr(np.array([[1.0, 0.0], [1.0, 0.0]])), np.ones(2))
    with pytest.raises(rlx.errors.ShapeError, match="square"):
        rs.cholesky(rs.csr(np.ones((2, 3))))
    with pytest.raises(rlx.errors.ShapeError, match="square"):
        rs.lu(rs.csr(np.ones((2, 3))))
    with pytest.raises(rlx.errors.OpError, match="order must be one of"):
        rs.cholesky(rs.eye(2), "metis")
