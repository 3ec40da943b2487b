"""Factorisations that are kept and used again, and solves with them.

factor = cho_factor(a)
x = cho_solve(factor, b)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dims import dim_min
from rlx.ir.dtype import DType
from rlx.numpy.arguments import array_function, inexact, rank_of, static_size
from rlx.numpy.indexing import take_along_axis
from rlx.numpy.linalg import cholesky
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.ops.shape.movement import exceeds
from rlx.trace.control import fori_loop

__all__ = [
    "cho_factor",
    "cho_solve",
    "logdet",
    "lu",
    "lu_factor",
    "lu_solve",
    "polar",
    "schur",
    "solve_triangular",
]


class CholeskyFactors(NamedTuple):
    """A triangular factor, and whether it is the lower one."""

    c: Any
    lower: bool


class LUFactors(NamedTuple):
    """L below U in one matrix, and the row with which each row was exchanged, in order."""

    lu: Any
    piv: Any


class PLUResult(NamedTuple):
    """A permutation, a lower triangular matrix with ones on its diagonal, and an upper triangular one."""

    P: Any
    L: Any
    U: Any


class PolarResult(NamedTuple):
    """A factor with orthonormal columns (or rows), and a Hermitian one without negative eigenvalues."""

    u: Any
    p: Any


class SchurResult(NamedTuple):
    """A triangular matrix with the eigenvalues on its diagonal, and the unitary matrix that makes it."""

    T: Any
    Z: Any


def adjoint(x: Any) -> Any:
    """Matrices turned over and conjugated."""
    turned = ops.swapaxes(x, -1, -2)
    return ops.conjugate(turned) if dtype_of(x).is_complex else turned


@array_function
def solve_triangular(a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False) -> Any:
    """x with a·x = b for triangular a; aᵀ·x = b for trans 1 or "T", aᴴ·x = b for 2 or "C".

    Only one triangle of a is read, and with `unit_diagonal` its diagonal counts as ones. A zero on the diagonal gives
    infinity or NaN. b is one vector, or matrices.
    """
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise OpError(f"solve_triangular: trans must be 0, 1, 2, 'N', 'T' or 'C', got {trans!r}")
    a, b = inexact(a, b)
    if trans in (2, "C"):
        a = ops.conjugate(a)
    is_turned = trans not in (0, "N")
    return ops.triangular_solve(a, b, lower=lower, transpose=is_turned, unit_diagonal=unit_diagonal)


@array_function
def cho_factor(a: Any, lower: bool = False) -> CholeskyFactors:
    """A Cholesky factor of positive definite matrices, for `cho_solve`."""
    return CholeskyFactors(cholesky(a, upper=not lower), lower)


@array_function
def cho_solve(c_and_lower: tuple[Any, bool], b: Any) -> Any:
    """x with a·x = b, from the result of `cho_factor(a)`."""
    c, lower = c_and_lower
    c, b = inexact(c, b)
    first, second = (0, 2) if lower else (2, 0)
    return solve_triangular(c, solve_triangular(c, b, first, lower), second, lower)


@array_function
def logdet(a: Any) -> Any:
    """The logarithm of the determinant of positive definite matrices; others are an error."""
    diagonal = ops.diagonal(cholesky(a), 0, -2, -1)
    return 2.0 * ops.reduce_sum(ops.log(ops.real(diagonal) if dtype_of(diagonal).is_complex else diagonal), -1)


@array_function
def lu_factor(a: Any) -> LUFactors:
    """LU with partial pivoting, for `lu_solve`; a singular matrix has a 0 on the diagonal of U."""
    packed, pivots, _ = ops.lu(inexact(a)[0])
    return LUFactors(packed, pivots)


@array_function
def lu_solve(lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0) -> Any:
    """x with a·x = b, from the result of `lu_factor(a)`; trans 1 for aᵀ, 2 for aᴴ. NaN or infinity if a is singular."""
    packed, pivots = lu_and_piv
    packed, b = inexact(packed, b)
    if trans not in (0, 1, 2):
        raise OpError(f"lu_solve: trans must be 0, 1 or 2, got {trans!r}")
    columns = ops.expand_dims(b, -1) if rank_of(b) == 1 else b
    order = permutation_of_pivots(pivots, static_size(dims_of(packed)[-2], "lu_solve"))
    if trans == 0:
        y = solve_triangular(packed, _rows(columns, order), 0, True, True)
        x = solve_triangular(packed, y)
    else:
        y = solve_triangular(packed, columns, trans)
        x = _rows(solve_triangular(packed, y, trans, True, True), ops.argsort(order, -1))
    return ops.squeeze(x, -1) if rank_of(b) == 1 else x


def permutation_of_pivots(pivots: Any, size: int) -> Any:
    """Where the rows come from after exchanging row k with row pivots[k], for k = 0, 1, ..."""
    places = ops.iota((size,), DType.I32, 0)
    start = ops.broadcast_to(places, (*dims_of(pivots)[:-1], size))
    count = static_size(dims_of(pivots)[-1], "lu_solve")

    def exchange(k: Any, order: Any) -> Any:
        is_here = ops.eq(places, ops.cast(k, DType.I32))
        other = ops.reduce_sum(ops.where(is_here[:count], pivots, 0), -1, keepdims=True)
        is_there = ops.eq(places, other)
        here = ops.reduce_sum(ops.where(is_here, order, 0), -1, keepdims=True)
        there = ops.reduce_sum(ops.where(is_there, order, 0), -1, keepdims=True)
        return ops.where(is_here, there, ops.where(is_there, here, order))

    return fori_loop(0, count, exchange, start)


def _rows(x: Any, order: Any) -> Any:
    """Rows of matrices by their numbers; the leading axes of both broadcast."""
    return take_along_axis(x, ops.expand_dims(order, -1), -2)


@array_function
def lu(a: Any, permute_l: bool = False) -> Any:
    """(P, L, U) with a = P·L·U, or (P·L, U) with `permute_l`; P is a permutation matrix."""
    (a,) = inexact(a)
    packed, _, order = ops.lu(a)
    rows, columns = dims_of(a)[-2:]
    inner = dim_min(rows, columns)
    below = ops.narrow(packed, -1, 0, inner)
    lower = ops.tril(below, -1) + ops.eye(rows, inner, dtype=dtype_of(a))
    upper = ops.triu(ops.narrow(packed, -2, 0, inner))
    back = ops.argsort(order, -1)
    if permute_l:
        return _rows(lower, back), upper
    whole = ops.broadcast_to(ops.eye(rows, dtype=dtype_of(a)), (*dims_of(a)[:-1], rows))
    return PLUResult(_rows(whole, back), lower, upper)


@array_function
def polar(a: Any, side: str = "right") -> PolarResult:
    """(u, p) with a = u·p, or a = p·u for side "left": u has orthonormal columns (rows, if a is wide), p is Hermitian.

    p has no negative eigenvalues. Both are smooth functions of a where it has full rank.
    """
    if side not in ("left", "right"):
        raise OpError(f"polar: side must be 'left' or 'right', got {side!r}")
    (a,) = inexact(a)
    if rank_of(a) < 2:
        raise ShapeError(f"polar: needs matrices in the last two axes, got dims {dims_of(a)}")
    is_wide = exceeds(dims_of(a)[-1], dims_of(a)[-2])
    u = adjoint(ops.polar_factor(adjoint(a))) if is_wide else ops.polar_factor(a)
    p = ops.matmul(adjoint(u), a) if side == "right" else ops.matmul(a, adjoint(u))
    return PolarResult(u, 0.5 * (p + adjoint(p)))


@array_function
def schur(a: Any, output: str = "real") -> SchurResult:
    """(T, Z) with a = Z·T·Zᴴ: Z unitary, T upper triangular.

    T of a real matrix is real, with blocks of two rows where eigenvalues are complex pairs, unless `output` is
    "complex". It has no derivative: what does not depend on the choice of Z follows from `eig` or `sqrtm` too.
    """
    return SchurResult(*ops.schur(inexact(a)[0], output))
