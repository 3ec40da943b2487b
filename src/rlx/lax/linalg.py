"""`rlx.lax.linalg`: matrix factors with the arguments and results of `jax.lax.linalg`; matrices are the last axes."""

from __future__ import annotations

from typing import Any

from rlx import linalg as full
from rlx import ops
from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.linalg.factors import adjoint, permutation_of_pivots
from rlx.numpy.arguments import array_function
from rlx.ops.define.operands import convert, dims_of

__all__ = [
    "cholesky",
    "eig",
    "eigh",
    "lu",
    "lu_pivots_to_permutation",
    "qr",
    "schur",
    "svd",
    "symmetric_product",
    "triangular_solve",
    "tridiagonal_solve",
]


@array_function
def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangle L with L·Lᴴ = x; of (x + xᴴ) / 2, unless told that x is symmetric."""
    return full.cholesky(0.5 * (x + adjoint(x)) if symmetrize_input else x)


@array_function
def eigh(x: Any, *, lower: bool = True, symmetrize_input: bool = True, sort_eigenvalues: bool = True) -> Any:
    """(eigenvectors, eigenvalues) of a symmetric matrix, in this order; eigenvalues ascend."""
    values, vectors = full.eigh(0.5 * (x + adjoint(x)) if symmetrize_input else x, UPLO="L" if lower else "U")
    return vectors, values


@array_function
def eig(x: Any, *, compute_left_eigenvectors: bool = True, compute_right_eigenvectors: bool = True) -> list[Any]:
    """[eigenvalues, left eigenvectors, right eigenvectors], without those that are not asked for."""
    values, right = full.eig(x)
    found = [values]
    if compute_left_eigenvectors:
        # Columns of V⁻ᴴ, each brought to length 1.
        left = adjoint(full.inv(right))
        found.append(left / full.norm(left, axis=-2, keepdims=True))
    return [*found, right] if compute_right_eigenvectors else found


@array_function
def lu(x: Any) -> tuple[Any, Any, Any]:
    """(both triangles in one matrix, rows exchanged at each step, the permutation that they make)."""
    packed, pivots, order = ops.lu(x)
    return packed, pivots, order


def _known(size: Any) -> int:
    if not isinstance(size, int):
        raise OpError(f"lax.linalg: a matrix of known size is needed here, got {size} rows")
    return size


@array_function
def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of rows that a list of exchanges makes."""
    return permutation_of_pivots(convert(pivots, DType.I32), permutation_size)


@array_function
def qr(x: Any, *, full_matrices: bool = True) -> Any:
    """(Q, R) with Q·R = x."""
    return full.qr(x, mode="complete" if full_matrices else "reduced")


@array_function
def schur(x: Any, *, compute_schur_vectors: bool = True) -> Any:
    """(T, U) with U·T·Uᴴ = x; (T,) alone unless vectors are asked for."""
    form, vectors = full.schur(x)
    return (form, vectors) if compute_schur_vectors else (form,)


@array_function
def svd(x: Any, *, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """(U, s, Vᴴ) with U·diag(s)·Vᴴ = x, or s alone."""
    return full.svd(x, full_matrices=full_matrices, compute_uv=compute_uv)


@array_function
def symmetric_product(a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """alpha·A·Aᵀ + beta·C."""
    return alpha * ops.matmul(a_matrix, ops.swapaxes(a_matrix, -1, -2)) + beta * c_matrix


@array_function
def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """x with op(a)·x = b, or x·op(a) = b unless `left_side`, for a triangular a."""
    a = ops.conjugate(a) if conjugate_a else a
    if left_side:
        return full.solve_triangular(a, b, trans=int(transpose_a), lower=lower, unit_diagonal=unit_diagonal)
    # x·A = b is Aᵀ·xᵀ = bᵀ.
    turned = full.solve_triangular(
        a, ops.swapaxes(b, -1, -2), trans=int(not transpose_a), lower=lower, unit_diagonal=unit_diagonal
    )
    return ops.swapaxes(turned, -1, -2)


@array_function
def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Any:
    """x of a system with three diagonals: dl below (its first number is not used), d, du above (its last is not)."""
    rows = _known(dims_of(d)[-1])
    place = ops.iota((rows, rows), DType.I32, 0) - ops.iota((rows, rows), DType.I32, 1)
    matrix = ops.where(ops.eq(place, 0), ops.expand_dims(d, -1), 0.0)
    matrix = matrix + ops.where(ops.eq(place, 1), ops.expand_dims(dl, -1), 0.0)
    return full.solve(matrix + ops.where(ops.eq(place, -1), ops.expand_dims(du, -1), 0.0), b)
