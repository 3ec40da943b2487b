"""Sparse matrices of all formats against SciPy's: conversions, products, elementwise functions, reductions, slices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
import rlx.numpy as rnp
import rlx.sparse as rs
import sparse_matrices as matrices

SHAPES = [(7, 5), (5, 7), (0, 4), (4, 0), (1, 1), (6, 6)]
DTYPES = ["f4", "f8", "c8", "c16"]
FORMATS = ["csr", "csc", "coo", "bsr"]


def as_format(a, kind):
    if kind != "bsr":
        return a.asformat(kind)
    rows, columns = a.shape
    block = (1 if rows % 2 else 2, 1 if columns % 3 else 3)
    return sp.bsr_array(a, blocksize=block if rows and columns else (1, 1))


def assert_matrix(got, wanted):
    dense = np.asarray(got.todense() if hasattr(got, "todense") else got)
    wanted = wanted.toarray() if sp.issparse(wanted) else np.asarray(wanted)
    assert dense.shape == wanted.shape
    assert dense.dtype == wanted.dtype
    tolerance = 64 * np.finfo(wanted.dtype).eps
    np.testing.assert_allclose(dense, wanted, rtol=tolerance, atol=tolerance * 4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_formats_convert_into_each_other(shape, kind):
    a = matrices.random(*shape)
    ours = rs.from_scipy(as_format(a, kind))
    assert ours.format == kind and ours.shape == shape
    assert_matrix(ours, a)
    assert_matrix(ours.tocsr(), a)
    assert_matrix(ours.tocsc(), a)
    assert_matrix(ours.tocoo(), a)
    assert_matrix(ours.tobsr((1, 1)), a)
    assert_matrix(ours.T, a.T)
    assert_matrix(rs.to_scipy(ours), a)
    assert rs.to_scipy(ours).format == kind


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_products_with_dense_operands(kind, dtype, index):
    a = matrices.random(6, 9, dtype=dtype, index=index)
    ours = rs.from_scipy(as_format(a, kind))
    assert ours.dtype == dtype
    rng = np.random.default_rng(1)
    for tail in ((), (1,), (5,), (20,)):
        x, y = rng.normal(size=(9, *tail)).astype(dtype), rng.normal(size=(6, *tail)).astype(dtype)
        assert_matrix(ours @ x, a @ x)
        assert_matrix(ours.T @ y, a.T @ y)
        assert_matrix(ours.H @ y, a.conj().T @ y)
        assert_matrix(rlx.jit(lambda m, x: m @ x)(ours, x), a @ x)
        assert_matrix(y.T @ ours, y.T @ a)
        assert_matrix(rlx.jit(lambda m, y: y.T @ m)(ours, y), y.T @ a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_products(dtype):
    a, b = matrices.random(6, 9, dtype=dtype), matrices.random(9, 4, dtype=dtype, seed=1)
    assert_matrix(rs.from_scipy(a) @ rs.from_scipy(b), a @ b)
    assert_matrix(rs.spgemm(a, b), a @ b)
    assert_matrix(rlx.jit(lambda m, n: m @ n.tocsc())(rs.from_scipy(a), rs.from_scipy(b)), a @ b)


def test_sparse_products_of_many_rows_find_their_pattern_in_pieces(monkeypatch):
    monkeypatch.setattr("rlx.sparse.products._AT_ONCE", 50)
    a, b = matrices.random(40, 30, 0.2), matrices.random(30, 50, 0.2, seed=1)
    assert_matrix(rs.from_scipy(a) @ rs.from_scipy(b), a @ b)


@pytest.mark.parametrize("blocksize", [(2, 3), (4, 4), (12, 18), (1, 6)])
def test_blocks_of_any_size(blocksize):
    a = matrices.random(24, 36, 0.1)
    ours = rs.from_scipy(sp.bsr_array(a, blocksize=blocksize))
    rng = np.random.default_rng(0)
    for tail in ((), (3,)):
        x = rng.normal(size=(36, *tail))
        assert_matrix(ours @ x, a @ x)
        assert_matrix(rlx.jit(lambda m, x: m @ x)(ours, x), a @ x)
    v = rng.normal(size=36)
    gradient = rlx.grad(lambda m: rnp.sum((m @ v) ** 2))(ours)
    assert isinstance(gradient, rs.BSR)
    wanted = np.where(rs.to_scipy(ours.map(lambda u: u * 0 + 1)).toarray() != 0, 2 * np.outer(a @ v, v), 0)
    assert_matrix(gradient, wanted)


def test_sddmm():
    a = matrices.random(6, 9)
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(6, 4)), rng.normal(size=(9, 4))
    assert_matrix(rs.sddmm(rs.from_scipy(a), u, v), np.where(a.toarray() != 0, u @ v.T, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise(dtype):
    a, b = matrices.random(6, 9, dtype=dtype), matrices.random(6, 9, dtype=dtype, seed=1)
    m, n = rs.from_scipy(a), rs.from_scipy(b)
    dense = np.random.default_rng(0).normal(size=(6, 9)).astype(dtype)
    assert_matrix(m + n, a + b)
    assert_matrix(m - n, a - b)
    assert_matrix(m + m, a + a)
    assert_matrix(m * n, a.multiply(b))
    assert_matrix(-m * 2, -a * 2)
    assert_matrix(m / 4, (a / 4).astype(dtype))
    assert_matrix(m * dense, a.toarray() * dense)
    assert_matrix(m * dense[0], a.toarray() * dense[0])
    assert_matrix(m / dense[:, :1], a.toarray() / dense[:, :1])
    assert_matrix(dense + m, dense + a.toarray())
    assert_matrix(dense - m, dense - a.toarray())
    assert_matrix(abs(m), abs(a))
    assert_matrix(m**2, a.power(2))
    assert_matrix(m.conj(), a.conj())
    assert_matrix(m.real, a.real)
    assert_matrix(m.map(rnp.sin), np.sin(a.toarray()))


@pytest.mark.parametrize("kind", FORMATS)
def test_reductions(kind):
    a = matrices.random(6, 9, 0.6)
    ours, dense = rs.from_scipy(as_format(a, kind)), a.toarray()
    for axis in (None, 0, 1):
        for name in ("sum", "mean", "max", "min"):
            np.testing.assert_allclose(getattr(ours, name)(axis), getattr(dense, name)(axis), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(ours.trace(), dense.trace())
    np.testing.assert_allclose(ours.diagonal(), np.diagonal(dense))
    np.testing.assert_allclose(ours.norm(), np.linalg.norm(dense))


def test_extremes_know_the_zeros_that_are_not_stored():
    a = rs.csr(np.array([[-1.0, 0.0], [-2.0, -3.0]]))
    assert float(a.max()) == 0.0
    assert np.asarray(a.max(1)).tolist() == [0.0, -2.0]
    assert np.asarray(a.min(0)).tolist() == [-2.0, -3.0]
    with pytest.raises(rlx.errors.OpError, match="max of nothing"):
        rs.csr(np.zeros((0, 3))).max()


KEYS = [
    np.s_[2],
    np.s_[-1],
    np.s_[1:4],
    np.s_[::-2],
    np.s_[:, 3],
    np.s_[1:5, ::2],
    np.s_[[4, 0, 0], :],
    np.s_[:, [8, 1, 1]],
    np.s_[np.arange(6) % 2 == 0],
    np.s_[0:0, :],
    np.s_[np.ix_([3, 1], [0, 5, 2])],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_slices(key):
    a = matrices.random(6, 9, 0.5)
    wanted = a.toarray()[key]
    if wanted.ndim == 1:
        wanted = wanted[:, None] if isinstance(key, tuple) else wanted[None]
    assert_matrix(rs.from_scipy(a)[key], wanted)
    assert_matrix(rlx.jit(lambda m: m[key].todense())(rs.from_scipy(a)), wanted)


def test_single_entries_and_lists_of_them():
    a = matrices.random(6, 9, 0.5)
    ours, dense = rs.from_scipy(a), a.toarray()
    assert float(ours[2, -3]) == dense[2, -3]
    rows, columns = [0, 5, 2, 2], [3, -1, 0, 1]
    np.testing.assert_array_equal(ours[rows, columns], dense[rows, columns])
    np.testing.assert_array_equal(rs.csr(np.zeros((3, 3)))[[0, 1], [1, 2]], [0.0, 0.0])


def test_nothing_is_copied():
    a = matrices.random(6, 9)
    for kind in ("csr", "csc"):
        given_ = a.asformat(kind)
        ours = rs.from_scipy(given_)
        assert np.shares_memory(ours.values, given_.data)
        assert np.shares_memory(ours.indices, given_.indices)
        assert np.shares_memory(ours.indptr, given_.indptr)
        back = rs.to_scipy(ours)
        assert np.shares_memory(back.data, given_.data) and np.shares_memory(back.indices, given_.indices)
    ours = rs.from_scipy(a)
    assert ours.T.values is ours.values


def test_values_keep_the_order_and_the_dtype_of_scipy():
    a = matrices.random(6, 9)
    ours = rs.from_scipy(a)
    np.testing.assert_array_equal(ours.values, a.data)
    assert ours.values.dtype == np.float64
    twice = ours.with_values(2 * a.data)
    assert_matrix(twice, 2 * a)
    assert_matrix(ours.astype("f32"), a.astype("f4"))


def test_entries_that_scipy_has_not_sorted_are_sorted():
    a = sp.csr_array((np.array([1.0, 2, 3]), np.array([2, 0, 0]), np.array([0, 3])), shape=(1, 3))
    assert not a.has_canonical_format
    ours = rs.from_scipy(a)
    assert ours.indices.tolist() == [0, 2] and np.asarray(ours.values).tolist() == [5.0, 1.0]
    # The original stays as it was.
    assert a.indices.tolist() == [2, 0, 0]


def test_a_matrix_is_a_tree_with_its_values_as_leaf():
    ours = rs.from_scipy(matrices.random(6, 9))
    leaves, structure = rlx.tree.flatten(ours)
    assert len(leaves) == 1 and leaves[0] is ours.values
    again = rs.from_scipy(matrices.random(6, 9))
    assert rlx.tree.structure(again) == structure
    assert rlx.tree.structure(rs.from_scipy(matrices.random(6, 9, seed=1))) != structure
    kept = rlx.jit(lambda m: m * 2)(ours)
    assert isinstance(kept, rs.CSR) and kept.pattern is ours.pattern


def test_one_program_serves_all_sizes_outside_of_jit():
    x = np.ones(9)
    rs.from_scipy(matrices.random(6, 9)) @ x
    before = rlx.compile_count()
    for rows in (1, 3, 11):
        rs.from_scipy(matrices.random(rows, 9, seed=rows)) @ x
    assert rlx.compile_count() == before


def test_makers():
    assert_matrix(rs.eye(3, 4, "f64"), np.eye(3, 4))
    wanted = sp.diags_array([[1.0, 2.0], [3.0, 4.0, 5.0]], offsets=[1, 0]).toarray()
    assert_matrix(rs.diags([np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])], [1, 0]), wanted)
    dense = matrices.random(4, 6).toarray()
    assert_matrix(rs.csr(dense), dense)
    assert_matrix(rs.bsr(dense, blocksize=(2, 3)), dense)
    assert_matrix(rlx.jit(lambda x: rs.csr(x) @ np.ones(6))(dense), dense @ np.ones(6))
    repeated = rs.coo(([1.0, 2.0, 4.0], ([0, 1, 0], [2, 0, 2])), shape=(2, 3))
    assert_matrix(repeated, np.array([[0, 0, 5], [2, 0, 0]], "f4"))


@settings(max_examples=40)
@given(st.data())
def test_any_pattern(data):
    rows, columns = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    bits = data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    mask = np.array(bits, bool).reshape(rows, columns)
    dense = np.where(mask, 1.0 + np.arange(rows * columns).reshape(rows, columns), 0)
    a, ours = sp.csr_array(dense), rs.from_scipy(sp.csr_array(dense))
    np.testing.assert_array_equal(ours.todense(), dense)
    np.testing.assert_array_equal(ours @ np.ones(columns), a @ np.ones(columns))
    np.testing.assert_array_equal(ours.T @ np.ones(rows), a.T @ np.ones(rows))
    np.testing.assert_array_equal((ours.T @ ours).todense(), dense.T @ dense)
    np.testing.assert_array_equal(ours.tocsc().tocsr().values, a.data)
    if rows and columns:
        i, j = data.draw(st.integers(-rows, rows - 1)), data.draw(st.integers(-columns, columns - 1))
        assert float(ours[i, j]) == dense[i, j]


BAD = [
    (lambda: rs.csr(([1.0, 2.0], [0, 5], [0, 2]), (1, 3)), r"indices\[1\] is 5, but there are 3"),
    (lambda: rs.csr(([1.0, 2.0], [-1, 0], [0, 2]), (1, 3)), r"indices\[0\] is -1"),
    (
        lambda: rs.csr(([1.0, 2.0], [2, 0], [0, 2]), (1, 3)),
        "must ascend without repetition, but number 0 has 2 before 0",
    ),
    (lambda: rs.csr(([1.0, 2.0], [1, 1], [0, 2]), (1, 3)), "has 1 before 1"),
    (lambda: rs.csr(([1.0, 2.0], [0, 1], [0, 2]), (2, 3)), "2 rows need 3 bounds in indptr, got 2"),
    (lambda: rs.csr(([1.0, 2.0], [0, 1], [0, 3]), (1, 3)), "end with the number of entries, 2"),
    (lambda: rs.csr(([1.0, 2.0], [0, 1], [0, 2, 1, 2]), (3, 3)), "must not fall, but goes from 2 to 1 at 1"),
    (lambda: rs.csr(([1.0], [0, 1], [0, 2]), (1, 3)), r"needs values of shape \(2,\)"),
    (lambda: rs.csr(([1.0, 2.0], [0.5, 1], [0, 2]), (1, 3)), "must be integers"),
    (lambda: rs.csr((np.ones(1, "f2"), [0], [0, 1]), (1, 3)), "must be f32, f64, c64 or c128, got f16"),
    (lambda: rs.csc(([1.0, 2.0], [0, 5], [0, 1, 2]), (3, 2)), r"indices\[1\] is 5"),
    (lambda: rs.coo(([1.0], ([3], [0])), (3, 3)), r"rows\[0\] is 3, but there are 3"),
    (lambda: rs.coo(([1.0], ([0, 1], [0])), (3, 3)), "as many rows as columns"),
    (lambda: rs.bsr((np.ones((1, 2, 2)), [0], [0, 1]), (3, 2)), "do not divide"),
    (lambda: rs.csr(([1.0], [0], [0, 1]), (1, -3)), "cannot be negative"),
    (lambda: rs.csr(([1.0], [0], [0, 1]), 3), "two sizes"),
    (lambda: rs.eye(3) @ np.ones(4), r"needs x of shape \(3,\) or \(3, k\), got \(4,\)"),
    (lambda: rs.eye(3) @ rs.eye(4), "as many columns as rows"),
    (lambda: rs.eye(3) + rs.eye(4), "needs matrices of one shape"),
    (lambda: rs.eye(3) + 1.0, "not sparse"),
    (lambda: rs.eye(3) / rs.eye(3), "divides by its zeros"),
    (lambda: rs.eye(3)[3], "out of range"),
    (lambda: rs.eye(3).sum(2), "axes 0 and 1"),
    (lambda: rs.from_scipy(np.eye(3)), "needs a SciPy sparse matrix"),
    (lambda: rs.eye(3).with_values(np.ones(4)), r"needs values of shape \(3,\)"),
]


@pytest.mark.parametrize("make, message", BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(rlx.RlxError, match=message):
        make()


def test_traced_indices_are_refused():
    with pytest.raises(rlx.errors.TraceError, match="must be known when the program is traced"):
        rlx.jit(lambda i: rs.csr((np.ones(2), i, [0, 2]), (1, 3)) @ np.ones(3))(np.array([0, 1]))
