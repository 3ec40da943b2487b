"""Supernodal Cholesky: the analysis against dense factors, panels against NumPy, and CHOLMOD in place of it."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
import rlx.sparse as rs
import sparse_matrices as matrices
from backends.op_kernel_checks import Program
from rlx.sparse import cholmod, ordering, supernodes
from rlx.sparse.ops_supernodal import PanelCholesky


def dense_structure(a, order):
    """Where the factor of a matrix in this order has entries, by eliminating column after column."""
    found = a.toarray()[np.ix_(order, order)] != 0
    found |= found.T | np.eye(len(order), dtype=bool)
    for j in range(len(order)):
        below = np.flatnonzero(found[:, j] & (np.arange(len(order)) > j))
        found[np.ix_(below, below)] = True
    return np.tril(found)


@settings(max_examples=40)
@given(st.integers(1, 20), st.floats(0.0, 0.5), st.integers(0, 2**16), st.sampled_from(ordering.ORDERS))
def test_the_tree_the_counts_and_the_panels_are_those_of_the_factor(size, density, seed, order):
    a = matrices.positive(size, seed=seed, density=density)
    pattern = rs.from_scipy(a).pattern
    plan = supernodes.analysed(pattern, order)
    wanted = dense_structure(a, plan.order)
    found = np.zeros((size, size), bool)
    found[plan.pattern.rows, plan.pattern.indices] = True
    np.testing.assert_array_equal(found, wanted)
    low, high = supernodes._lower(pattern, plan.order.astype(np.int64))
    parent = supernodes.elimination_tree(low, high, size)
    below = [np.flatnonzero(wanted[j + 1 :, j]) for j in range(size)]
    np.testing.assert_array_equal(parent, [j + 1 + b[0] if len(b) else -1 for j, b in enumerate(below)])
    post = supernodes.postorder(parent)
    np.testing.assert_array_equal(supernodes.column_counts(low, high, parent, post), wanted.sum(0))
    if order != "natural":
        np.testing.assert_array_equal(post, np.arange(size))
    panels = plan.panels
    assert panels.widths.sum() == size and plan.size == (panels.widths * panels.heights).sum()
    assert len(np.unique(plan.places)) == plan.pattern.nnz


def test_columns_with_the_same_rows_are_one_panel():
    dense = np.full((40, 40), 0.5) + 40 * np.eye(40)
    plan = supernodes.analysed(rs.csr(dense).pattern, "natural")
    assert plan.panels.widths.tolist() == [40]
    # Two blocks that meet in four rows behind them.
    blocks = np.kron(np.eye(2), np.ones((8, 8)))
    joined = np.block([[blocks, np.ones((16, 4))], [np.ones((4, 16)), np.ones((4, 4))]])
    plan = supernodes.analysed(rs.csr(joined).pattern, "natural")
    # The second joins the rows behind it without storing a zero; the first would have to store many.
    assert plan.panels.widths.tolist() == [8, 12]
    assert plan.panels.sources.tolist() == [[0, 8, 12, 0]] and plan.panels.relative.tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("kind", ["grid", "dense"])
def test_panels_wider_than_a_tile(kind, dtype):
    a = matrices.grid(23, dtype) if kind == "grid" else matrices.positive(90, dtype, density=0.9)
    size = a.shape[0]
    factor = rs.cholesky(rs.from_scipy(a), engine="own")
    plan = supernodes.analysed(rs.from_scipy(a).pattern, "amd")
    assert plan.panels.widths.max() > 8
    wide = a.toarray().astype("c16" if dtype[0] == "c" else "f8")
    permuted = wide[np.ix_(factor.order, factor.order)]
    tolerance = 2e-5 if dtype in ("f4", "c8") else 1e-13
    lower = factor.L.todense()
    np.testing.assert_allclose(lower @ lower.conj().T, permuted, atol=tolerance * np.abs(wide).max() * size**0.5)
    assert not np.triu(lower, 1).any() and not np.diag(lower).imag.any()


def test_only_the_lower_triangle_is_read():
    a = matrices.positive(25, "c16")
    wrong = sp.csr_array(a + sp.triu(a, 1) * (3 - 2j))
    wrong.sort_indices()
    b = np.ones(25, "c16")
    np.testing.assert_allclose(rs.cholesky(rs.from_scipy(wrong)).solve(b), np.linalg.solve(a.toarray(), b), rtol=1e-12)


def test_a_program_factorises_in_its_own_kernels():
    m = rs.from_scipy(matrices.grid(12))
    program = rlx.jit(lambda v: rs.cholesky(m.with_values(v)).solve(np.ones(144)))
    lir = program.lower(m.values).compile().compiled_graph._executable.lir
    assert lir.kernels and all(kernel.kind != "call" for kernel in lir.kernels)
    np.testing.assert_allclose(m @ program(m.values), np.ones(144), atol=1e-10)


def test_numbers_that_point_outside_are_left_alone():
    """The interpreter checks every access."""
    values = np.array([4.0, 2.0, 5.0, 2.0, 0.0, 6.0])
    plan = [np.array(x, np.int64) for x in ((0, 2, 6), (1, 2), (2, 2), (0, 0, 1), ((0, 1, 2, 0),), (0,))]
    program = Program(lambda *xs: PanelCholesky()(*xs), ((6,), "f64"), *((p.shape, "i64") for p in plan))
    far = 1 << 62
    wrong = [
        (i, bad) for i, p in enumerate(plan) for bad in (np.full_like(p, far), np.full_like(p, -far), p + 1, p - 1)
    ]
    for which, bad in [(0, plan[0]), *wrong]:
        changed = [bad if i == which else p for i, p in enumerate(plan)]
        wanted = PanelCholesky().eval(values, *changed)
        for (found,) in (program(values, *changed), program.interpreted(values, *changed)):
            np.testing.assert_allclose(found, wanted, rtol=1e-14)


class _Factor:
    """What scikit-sparse calls a factor, by NumPy, in the order that turns rows round."""

    def __init__(self, a):
        dense = a.toarray()
        lower = np.tril(dense)
        self.order = np.arange(len(dense))[::-1].astype(np.int32)
        whole = lower + np.tril(dense, -1).conj().T
        self.lower = np.linalg.cholesky(whole[np.ix_(self.order, self.order)])

    def P(self):
        return self.order

    def L(self):
        return sp.csc_matrix(self.lower)


@pytest.fixture(params=["0.4", "0.5"])
def stand_in(monkeypatch, request):
    """A stand-in for scikit-sparse that has the names we use, as they were before 0.5 and since."""
    calls = []

    class NotPositive(Exception):
        pass

    def factor(a, order):
        calls.append(order)
        try:
            return _Factor(a)
        except np.linalg.LinAlgError:
            raise NotPositive from None

    def cholesky(a, *, lower, order):
        found = factor(a, order)
        assert lower
        return found.L(), found.P()

    module = types.ModuleType("sksparse.cholmod")
    module.CholmodNotPositiveDefiniteError = NotPositive
    if request.param == "0.4":
        module.cholesky = lambda a, ordering_method, mode: factor(a, ordering_method)
    else:
        module.cho_factor, module.cholesky = factor, cholesky
    package = types.ModuleType("sksparse")
    package.cholmod = module
    monkeypatch.setitem(sys.modules, "sksparse", package)
    monkeypatch.setitem(sys.modules, "sksparse.cholmod", module)
    return calls


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_cholmod_where_it_is_installed(stand_in, dtype):
    _check_cholmod(dtype)
    assert stand_in[0] == "amd"


def _check_cholmod(dtype):
    a = matrices.positive(30, dtype)
    m, b = rs.from_scipy(a), np.ones(30, dtype)
    factor = rs.cholesky(m)
    wide = a.toarray().astype("c16" if dtype[0] == "c" else "f8")
    tolerance = 1e-5 if dtype == "f4" else 1e-12
    np.testing.assert_allclose(factor.solve(b), np.linalg.solve(wide, b), rtol=10 * tolerance, atol=tolerance)
    permuted = wide[np.ix_(factor.order, factor.order)]
    np.testing.assert_allclose(factor.L.todense(), np.linalg.cholesky(permuted), atol=100 * tolerance)
    assert factor.L.dtype == dtype
    gradient = rlx.grad(lambda v: rs.cholesky(m.with_values(v)).solve(b).sum())
    if dtype == "f8":
        own = rlx.grad(lambda v: rs.cholesky(m.with_values(v), engine="own").solve(b).sum())
        np.testing.assert_allclose(gradient(m.values), own(m.values), rtol=1e-10)
    with pytest.raises(rlx.errors.OpError, match="not positive definite"):
        rs.cholesky(rs.csr(np.array([[1.0, 2.0], [2.0, 1.0]])))
    with pytest.raises(rlx.errors.OpError, match="CHOLMOD cannot be used here"):
        rs.cholesky(m, "rcm", engine="cholmod")
    with pytest.raises(rlx.errors.OpError, match="inside of one"):
        rlx.jit(lambda m: rs.cholesky(m, engine="cholmod").solve(b))(m)


@pytest.mark.targets
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_cholmod_itself(dtype):
    if not cholmod.is_installed():
        pytest.skip("scikit-sparse is not installed")
    _check_cholmod(dtype)
    a = matrices.grid(40)
    found, own = (rs.cholesky(rs.from_scipy(a), engine=engine).solve(np.ones(1600)) for engine in ("cholmod", "own"))
    np.testing.assert_allclose(found, own, rtol=1e-10)


def test_cholmod_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "sksparse", None)
    monkeypatch.setitem(sys.modules, "sksparse.cholmod", None)
    with pytest.raises(rlx.errors.NotInstalled, match="scikit-sparse"):
        rs.cholesky(rs.eye(3), engine="cholmod")
    with pytest.raises(rlx.errors.OpError, match="engine must be one of"):
        rs.cholesky(rs.eye(3), engine="mumps")
    assert rs.cholesky(rs.eye(3)).solve(np.ones(3)).tolist() == [1.0, 1.0, 1.0]
