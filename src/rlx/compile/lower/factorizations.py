"""Forms of dense solves and factorisations that suit kernels; part of the table of `kernel_forms`.

Kernels factorise in double precision and never fail: a matrix that cannot be factorised leaves a 0 on the diagonal, or
is said not to be. The one step that the host does, `RequireFactors`, looks at that and raises the op's own error.
Complex operands stay with the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx.ir.dims import dim_min
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.linalg.contraction import matmul
from rlx.ops.linalg.factorizations import Cholesky, Eigh, Lu, Qr, Svd, row_gather
from rlx.ops.linalg.matrix_functions import Pinv, pinv_by_svd
from rlx.ops.linalg.solve import BatchedDenseSolve, DenseSolve, TriangularSolve
from rlx.ops.lowered.factor_steps import CholeskyFactor, OrthogonalRows, ReflectedBasis, Reflectors, RequireFactors
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.pointwise.arithmetic import ge, maximum, ne, or_, where
from rlx.ops.pointwise.bits import isfinite, not_
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import abs_
from rlx.ops.reduction.reductions import reduce_all, reduce_max, reduce_sum
from rlx.ops.shape.creation import eye, tril, triu
from rlx.ops.shape.movement import concat, exceeds, expand_dims, narrow, reshaped, swapaxes

Form = Callable[..., Any]


def require(op: Op, factor: Any) -> None:
    """Let the program stop if there is a 0 on the diagonal of a factor."""
    RequireFactors(op.mnemonic)(_has_pivots(factor))


def _has_pivots(factor: Any) -> Any:
    """Whether there is no 0 on the diagonal, row by row."""
    with same_graph(factor):
        on_diagonal = eye(factor.shape[-1], dtype=DType.BOOL)
        return reduce_all(where(on_diagonal, ne(factor, 0.0), True), -1)


def require_solved(op: Op, a: Any, factors: Any, x: Any) -> Any:
    """The solutions of systems whose matrices A have these factors, NaN where a matrix is not finite. The program stops
    if another one is singular; last, so that kernels are not interrupted."""
    is_finite = reduce_all(isfinite(a), (-2, -1))
    result = where(expand_dims(is_finite, tuple(range(-(x.ndim - is_finite.ndim), 0))), x, math.nan)
    RequireFactors(op.mnemonic)(or_(_has_pivots(factors), expand_dims(not_(is_finite), -1)))
    return result


def _solve(op: Op, a: Any, b: Any) -> Form | None:
    """P A = L U; then L y = P b and U x = y."""
    if a.dtype.is_complex:
        return None

    def build(a: Any, b: Any) -> Any:
        columns = cast(expand_dims(b, -1) if b.ndim < a.ndim else b, DType.F64)
        factors, _, permutation = Lu()(cast(a, DType.F64))
        rows = in_order(columns, permutation)
        y = TriangularSolve(unit_diagonal=True)(factors, rows)
        x = TriangularSolve(lower=False)(factors, y)
        return require_solved(op, a, factors, cast(reshaped(x, b.shape), b.dtype))

    return build


def _cholesky(op: Op, a: Any) -> Form | None:
    if a.dtype.is_complex:
        return None

    def build(a: Any) -> Any:
        factor = CholeskyFactor()(cast(a, DType.F64))
        result = cast(factor, a.dtype)
        require(op, factor)
        return result

    return build


def _lu(op: Op, a: Any) -> Form | None:
    """In double precision, rounded once."""
    if a.dtype is not DType.F32:
        return None

    def build(a: Any) -> Any:
        factors, pivots, permutation = op(cast(a, DType.F64))
        return cast(factors, a.dtype), pivots, permutation

    return build


def _qr(op: Op, a: Any) -> Form | None:
    assert isinstance(op, Qr)
    if a.dtype.is_complex:
        return None

    def build(a: Any) -> Any:
        rows, columns = a.shape[-2:]
        inner = rows if op.full_matrices else dim_min(rows, columns)
        packed, scales = Reflectors()(cast(a, DType.F64))
        q = ReflectedBasis(inner)(packed, scales)
        r = triu(narrow(packed, -2, 0, inner))
        return cast(q, a.dtype), cast(r, a.dtype)

    return build


def in_order(rows: Any, order: Any) -> Any:
    """Rows of matrices, or elements of vectors, by their numbers."""
    return row_gather(order)(rows, expand_dims(order, -1))


def _svd(op: Op, a: Any) -> Form | None:
    """The columns of A, or its rows if these are fewer, rotated until they are orthogonal: their lengths are the
    singular values, the rotation is one set of vectors, and their directions are the other."""
    assert isinstance(op, Svd)
    if a.dtype.is_complex:
        return None

    def build(a: Any) -> Any:
        wide = cast(a, DType.F64)
        is_flat = exceeds(a.shape[-1], a.shape[-2])
        rotated, rotation, lengths, is_found = OrthogonalRows()(wide if is_flat else swapaxes(wide, -1, -2))
        count = dim_min(*a.shape[-2:])
        order, _ = SortOrder(descending=True)(lengths)
        values = cast(narrow(in_order(lengths, order), -1, 0, count), a.dtype)
        if not op.compute_uv:
            RequireFactors("svd")(is_found)
            return values
        kept = narrow(order, -1, 0, count)
        rotation = in_order(rotation, order if op.full_matrices else kept)
        across = _directions(in_order(rotated, kept), op.full_matrices)
        left, right = (rotation, across) if is_flat else (across, rotation)
        u, vh = cast(swapaxes(left, -1, -2), a.dtype), cast(right, a.dtype)
        RequireFactors("svd")(is_found)
        return u, values, vh

    return build


def _directions(rows: Any, is_full: bool) -> Any:
    """Orthonormal rows along orthogonal ones, which may be 0; with `is_full`, and others to fill up the space.

    In the QR of their transpose R is diagonal: its signs say which columns of Q point the other way.
    """
    count, size = rows.shape[-2:]
    packed, scales = Reflectors()(swapaxes(rows, -1, -2))
    basis = swapaxes(ReflectedBasis(size if is_full else count)(packed, scales), -1, -2)
    along = narrow(basis, -2, 0, count)
    signed = where(ge(reduce_sum(along * rows, -1, keepdims=True), 0.0), along, -along)
    return concat([signed, narrow(basis, -2, count, size - count)], -2) if is_full else signed


def _eigh(op: Op, a: Any) -> Form | None:
    """A + c has the eigenvectors of A. With c = max_i (Σ_{j≠i} |a[i, j]| - a[i, i]), or 0 if that is more, none of
    its eigenvalues is negative, so that they are its singular values, and the vectors the rotation that makes its rows
    orthogonal. The eigenvalues are then the diagonal of V A Vᵀ. What could not be found is NaN."""
    assert isinstance(op, Eigh)
    if a.dtype.is_complex:
        return None

    def build(a: Any) -> Any:
        wide = cast(a, DType.F64)
        whole = symmetric(wide, op.lower)
        with same_graph(a):
            on_diagonal = eye(a.shape[-1], dtype=DType.BOOL)
        sizes = where(on_diagonal, -whole, abs_(whole))
        lowest = reduce_max(reduce_sum(sizes, -1, keepdims=True), -2, keepdims=True)
        _, rotation, _, is_found = OrthogonalRows()(whole + where(on_diagonal, maximum(lowest, 0.0), 0.0))
        rotation = where(expand_dims(is_found, (-2, -1)), rotation, math.nan)
        values = reduce_sum(matmul(rotation, whole) * rotation, -1)
        order, _ = SortOrder()(values)
        vectors = swapaxes(in_order(rotation, order), -1, -2)
        return cast(in_order(values, order), a.dtype), cast(vectors, a.dtype)

    return build


def symmetric(a: Any, lower: bool) -> Any:
    """The symmetric matrix with one triangle of A."""
    return tril(a) + swapaxes(tril(a, -1), -1, -2) if lower else triu(a) + swapaxes(triu(a, 1), -1, -2)


def _pinv(op: Op, a: Any) -> Form | None:
    """In double precision, rounded once."""
    assert isinstance(op, Pinv)
    if a.dtype.is_complex:
        return None
    relative = op.tolerance(a.shape, a.dtype)
    return lambda a: cast(pinv_by_svd(cast(a, DType.F64), relative), a.dtype)


# Ops that a matrix can be wrong for; their forms have a check in them, or others of these.
CAN_FAIL: dict[type[Op], Callable[..., Form | None]] = {
    DenseSolve: _solve,
    BatchedDenseSolve: _solve,
    Cholesky: _cholesky,
    Svd: _svd,
    Pinv: _pinv,
}
FACTOR_FORMS: dict[type[Op], Callable[..., Form | None]] = {**CAN_FAIL, Lu: _lu, Qr: _qr, Eigh: _eigh}
