"""The ops of the Rust RLX's sparse library under their names, on raw arrays or tensors of a matrix in compressed rows.

    x = cg_solve(values, col_idx, row_ptr, b, max_iter=200, tol=1e-10)

`tol` is relative to |b|. A solver that does not converge gives NaN, since there is nothing beside x to say so. Adjoints
are exact also where the matrix is not symmetric, so the transposed triple that some of these take is not needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx.ops.define.operands import dims_of, promote_inexact
from rlx.sparse.arrays import CSR, SparseArray
from rlx.sparse.construct import csr
from rlx.sparse.eager import apply
from rlx.sparse.factors import cholesky
from rlx.sparse.ops_direct import CsrDirectSolve
from rlx.sparse.ops_masked import CsrTranspose
from rlx.sparse.ops_products import CsrMatMul, CsrSampledProduct
from rlx.sparse.ops_solvers import CsrIterativeSolve, CsrLeastSquares
from rlx.sparse.patterns import Pattern
from rlx.sparse.products import sampled_product

Array = np.ndarray[Any, np.dtype[Any]]


def mat_vec(values: Any, col_idx: Any, row_ptr: Any, x: Any) -> Any:
    """A x."""
    values, x = promote_inexact(values, x)
    return apply(CsrMatMul(), values, col_idx, row_ptr, x)


def values_grad(col_idx: Any, row_ptr: Any, u: Any, v: Any) -> Any:
    """u[row]·v[column] for each entry."""
    u, v = promote_inexact(u, v)
    return apply(CsrSampledProduct(), col_idx, row_ptr, u, v)


def transpose_values(values: Any, col_idx: Any, row_ptr: Any, col_idx_t: Any, row_ptr_t: Any) -> Any:
    """The values in the order of the transpose."""
    (values,) = promote_inexact(values)
    return apply(CsrTranspose(int(dims_of(row_ptr_t)[0]) - 1), values, col_idx, row_ptr)[0]


def csr_transpose_pattern(col_idx: Any, row_ptr: Any, columns: int | None = None) -> tuple[Array, Array]:
    """(col_idx, row_ptr) of the transpose; the matrix is square unless `columns` says otherwise."""
    rows = len(row_ptr) - 1
    pattern = Pattern.of(col_idx, row_ptr, (rows, rows if columns is None else columns)).transposed.pattern
    return pattern.indices, pattern.indptr


def lu_solve(values: Any, col_idx: Any, row_ptr: Any, b: Any) -> Any:
    """A⁻¹ b by sparse LU."""
    values, b = promote_inexact(values, b)
    return CsrDirectSolve()(values, col_idx, row_ptr, b)


def lu_solve_general(values: Any, col_idx: Any, row_ptr: Any, b: Any, *transposed: Any) -> Any:
    """`lu_solve`; the transposed triple is not needed."""
    return lu_solve(values, col_idx, row_ptr, b)


def cholesky_solve(values: Any, col_idx: Any, row_ptr: Any, b: Any) -> Any:
    """A⁻¹ b by sparse Cholesky."""
    size = int(dims_of(row_ptr)[0]) - 1
    return cholesky(csr((values, col_idx, row_ptr), (size, size))).solve(b)


def _iterated(op: Any, values: Any, col_idx: Any, row_ptr: Any, b: Any) -> Any:
    values, b = promote_inexact(values, b)
    start = () if isinstance(op, CsrLeastSquares) else (rnp.zeros_like(b),)
    vectors = (("N",),) * (1 + len(start))
    sizes = (("Z",), ("Z",), ("N + 1",), *vectors)
    x, _, converged = apply(op, values, col_idx, row_ptr, b, *start, sizes=sizes)
    return rnp.where(converged, x, rnp.full_like(x, np.nan))


def cg_solve(values: Any, col_idx: Any, row_ptr: Any, b: Any, max_iter: int, tol: float) -> Any:
    """A⁻¹ b by conjugate gradients."""
    return _iterated(CsrIterativeSolve("cg", tol, max_iter), values, col_idx, row_ptr, b)


def pcg_solve(values: Any, col_idx: Any, row_ptr: Any, b: Any, max_iter: int, tol: float) -> Any:
    """`cg_solve` with the diagonal as preconditioner."""
    return _iterated(CsrIterativeSolve("cg", tol, max_iter, "jacobi"), values, col_idx, row_ptr, b)


def ilu_pcg_solve(values: Any, col_idx: Any, row_ptr: Any, b: Any, max_iter: int, tol: float) -> Any:
    """`cg_solve` with ILU(0) as preconditioner."""
    return _iterated(CsrIterativeSolve("cg", tol, max_iter, "ilu0"), values, col_idx, row_ptr, b)


def gmres_solve(
    values: Any, col_idx: Any, row_ptr: Any, b: Any, *transposed: Any, max_iter: int, tol: float, restart: int = 30
) -> Any:
    """A⁻¹ b by GMRES; the transposed triple is not needed."""
    return _iterated(CsrIterativeSolve("gmres", tol, max_iter, restart=restart), values, col_idx, row_ptr, b)


def bicgstab_solve(
    values: Any, col_idx: Any, row_ptr: Any, b: Any, max_iter: int, tol: float, transpose: bool = False
) -> Any:
    """A⁻¹ b, or A⁻ᵀ b, by stabilised bi-conjugate gradients."""
    op = CsrIterativeSolve("bicgstab", tol, max_iter, transpose=transpose)
    return _iterated(op, values, col_idx, row_ptr, b)


def lsqr_solve(values: Any, col_idx: Any, row_ptr: Any, b: Any, max_iter: int, tol: float, n_cols: int) -> Any:
    """The x [n_cols] that makes |b - A x| smallest."""
    return _iterated(CsrLeastSquares(tol, max_iter, n_cols), values, col_idx, row_ptr, b)


def spmv(A: SparseArray, x: Any) -> Any:
    """A x for a vector, or a matrix of vectors: `A @ x`."""
    return A @ x


def sddmm(A: SparseArray, u: Any, v: Any) -> CSR:
    """The matrix with the entries of A, and in them those of U Vᵀ: u is (rows, k), v is (columns, k)."""
    pattern = A.tocsr().pattern
    return CSR(sampled_product(pattern, u, v), pattern)


def spgemm(a: Any, b: Any) -> CSR:
    """A B of two sparse matrices: `A @ B`."""
    product: CSR = csr(a) @ csr(b)
    return product
