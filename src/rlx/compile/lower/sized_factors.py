"""Forms of factorisations for matrices of a size that is known. Of large ones the work is in products, or in loops that
all threads share; small ones are solved many at a time. Part of the table of `kernel_forms`; others have the forms of
`factorizations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx.compile.lower import blocked_factors as blocked
from rlx.compile.lower.divided_eigenvalues import divided_eigenvalues
from rlx.compile.lower.factorizations import FACTOR_FORMS, in_order, require, symmetric
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.linalg.contraction import matmul
from rlx.ops.linalg.factorizations import Cholesky, Eigh, Lu, Qr, Svd
from rlx.ops.linalg.solve import BatchedDenseSolve, DenseSolve, TriangularSolve
from rlx.ops.lowered.bidiagonal_steps import Bidiagonalized, BidiagonalRotations
from rlx.ops.lowered.factor_steps import (
    MOST_SHARED,
    ReflectedBasis,
    Reflectors,
    RequireFactors,
    SmallCholesky,
    SmallSolve,
    shared_matrix,
)
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.lowered.tridiagonal_steps import (
    RotatedRows,
    Tridiagonalized,
    TridiagonalRotations,
    most_rotations,
)
from rlx.ops.pointwise.arithmetic import and_, ge, gt, lt, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import abs_
from rlx.ops.reduction.reductions import reduce_max
from rlx.ops.shape.creation import eye, triu
from rlx.ops.shape.movement import broadcast_to, concat, expand_dims, narrow, pad_zeros, reverse, squeeze, swapaxes
from rlx.ops.shape.rearrange import diagonal

Form = Callable[..., Any]

# From this size on it is faster to make a symmetric matrix tridiagonal first than to rotate all pairs of rows.
TRIDIAGONAL = 16
# From this size on products of divide and conquer are faster than rotations.
DIVIDED = 64
FEW_COLUMNS = 32
# Rotations that are kept at most, of 16 bytes each.
MOST_ROTATIONS = 1 << 24
# Up to this size systems are solved many at a time.
SMALL = 6


def has_room(a: Any, size: int) -> bool:
    """Whether the rotations of all matrices of a batch can be kept: Jacobi's method needs no room for them. For a
    single matrix it would take too long."""
    lead = a.shape[:-2]
    if not all(isinstance(d, int) for d in lead):
        return False
    count = math.prod(lead)
    return count <= 1 or count * most_rotations(size) <= MOST_ROTATIONS


def _eigh(op: Op, a: Any) -> Form | None:
    """A = Q T Qᵀ; rotations make T diagonal, and Qᵀ the transposed eigenvectors. What could not be found is NaN."""
    assert isinstance(op, Eigh)
    size = a.shape[-1]
    if a.dtype.is_complex or not isinstance(size, int) or size < TRIDIAGONAL or not has_room(a, size):
        return FACTOR_FORMS[Eigh](op, a)

    if size >= DIVIDED:
        return lambda a: _divided_eigh(symmetric(cast(a, DType.F64), op.lower), a.dtype)

    def build(a: Any) -> Any:
        packed, scales, diagonal, beside, unit, _ = Tridiagonalized()(symmetric(cast(a, DType.F64), op.lower))
        scaled, rotations, sweeps, count, is_found, _ = TridiagonalRotations()(diagonal, beside)
        # The other way round, the direction of row k begins with element k + 1.
        turned = _basis_rows(reverse(packed, (-2, -1)), reverse(scales, -1))
        rows = RotatedRows()(reverse(turned, (-2, -1)), rotations, sweeps, count)
        found = expand_dims(is_found, -1)
        values = where(found, scaled * expand_dims(unit, -1), math.nan)
        order, _ = SortOrder()(values)
        vectors = swapaxes(in_order(where(expand_dims(found, -1), rows, math.nan), order), -1, -2)
        return cast(in_order(values, order), a.dtype), cast(vectors, a.dtype)

    return build


def _divided_eigh(a: Any, dtype: DType) -> tuple[Any, Any]:
    """A = Q T Qᵀ; the vectors of T come from products, and so does what Q makes of them."""
    packed, scales, diagonal, beside, unit, _ = Tridiagonalized()(a)
    scaled, columns, is_found = divided_eigenvalues(diagonal, beside)
    # The other way round, the direction of row k begins with element k + 1.
    turned = reverse(columns, -2)
    directions = _as_of_qr(reverse(packed, (-2, -1)), reverse(scales, -1))
    rest = blocked.reflected(*directions, narrow(turned, -2, 1, a.shape[-1] - 1))
    vectors = reverse(concat([narrow(turned, -2, 0, 1), rest], -2), -2)
    values = where(expand_dims(is_found, -1), scaled * expand_dims(unit, -1), math.nan)
    return cast(values, dtype), cast(where(expand_dims(is_found, (-2, -1)), vectors, math.nan), dtype)


def _as_of_qr(directions: Any, scales: Any) -> tuple[Any, Any]:
    """Reflections whose direction of row k begins with element k + 1: all leave the first row alone, and without it
    they are those of a QR, whose columns are directions."""
    size = directions.shape[-1] - 1
    packed = narrow(narrow(swapaxes(directions, -1, -2), -2, 1, size), -1, 0, size)
    return packed, narrow(scales, -1, 0, size)


def _basis_rows(directions: Any, scales: Any) -> Any:
    """The transposed product of reflections, the first one first: the direction of row k begins with element k + 1."""
    size = directions.shape[-1] - 1
    basis = ReflectedBasis(size)(*_as_of_qr(directions, scales))
    none = (0,) * (directions.ndim - 1)
    with same_graph(directions):
        first = broadcast_to(eye(1, size + 1, dtype=DType.F64), (*directions.shape[:-2], 1, size + 1))
    return concat([first, pad_zeros(swapaxes(basis, -1, -2), (*none, 1), (*none, 0))], -2)


def _svd(op: Op, a: Any) -> Form | None:
    """A = U B Vᵀ; rotations make B diagonal, and Vᵀ the transposed singular vectors of one side. Those of the other are
    the directions of A V, whose columns are orthogonal: the Q of their QR, in which rounding has no say even where a
    column is as good as 0, as the longest comes first. A matrix that has more columns than rows is turned over first.
    """
    assert isinstance(op, Svd)
    sizes = a.shape[-2:]
    is_sized = not a.dtype.is_complex and all(isinstance(s, int) for s in sizes)
    if not is_sized or min(sizes) < TRIDIAGONAL or not has_room(a, min(sizes)):
        return FACTOR_FORMS[Svd](op, a)
    is_flat = sizes[1] > sizes[0]
    rows = max(sizes)
    is_long = rows * 5 >= min(sizes) * 8 and not (op.full_matrices and op.compute_uv)

    def build(a: Any) -> Any:
        wide = cast(a, DType.F64)
        tall = swapaxes(wide, -1, -2) if is_flat else wide
        if is_long:
            return _svd_of_factor(op, tall, is_flat, a.dtype)
        _, _, right, right_scales, kept, beside, unit, _, _ = Bidiagonalized()(tall)
        signed, _, of_columns, sweeps, count, is_found, _ = BidiagonalRotations()(kept, beside)
        sizes = abs_(signed)
        order, _ = SortOrder(descending=True)(sizes)
        values = cast(in_order(sizes * expand_dims(unit, -1), order), a.dtype)
        if not op.compute_uv:
            RequireFactors("svd")(is_found)
            return values
        v = RotatedRows(downwards=True)(_basis_rows(right, right_scales), of_columns, sweeps, count)
        v = in_order(v, order)
        u = _directions(matmul(tall / expand_dims(unit, (-2, -1)), swapaxes(v, -1, -2)), rows, op.full_matrices)
        result = (swapaxes(v, -1, -2), values, swapaxes(u, -1, -2)) if is_flat else (u, values, v)
        RequireFactors("svd")(is_found)
        return cast(result[0], a.dtype), values, cast(result[2], a.dtype)

    return build


def _svd_of_factor(op: Svd, tall: Any, is_flat: bool, dtype: DType) -> Any:
    """That of R in A = Q R, which is much smaller."""
    unit = unit_of(tall)
    q, r = qr_factors(tall / unit, tall.shape[-1])
    small = op(r)
    if not op.compute_uv:
        return cast(small * squeeze(unit, -1), dtype)
    u, values, v = small
    u = matmul(q, u)
    left, right = (swapaxes(v, -1, -2), swapaxes(u, -1, -2)) if is_flat else (u, v)
    return cast(left, dtype), cast(values * squeeze(unit, -1), dtype), cast(right, dtype)


def unit_of(a: Any) -> Any:
    """What matrices are divided by for numbers around 1, whose squares can be summed."""
    largest = reduce_max(abs_(a), (-2, -1), keepdims=True)
    return where(and_(gt(largest, 0.0), lt(largest, math.inf)), largest, 1.0)


def _directions(columns: Any, rows: int, is_full: bool) -> Any:
    """Orthonormal columns along orthogonal ones; with `is_full`, and others to fill up the space."""
    count = columns.shape[-1]
    q, r = qr_factors(columns, rows if is_full else count)
    signs = where(ge(diagonal(narrow(r, -2, 0, count), 0, -2, -1), 0.0), 1.0, -1.0)
    known = narrow(q, -1, 0, count) * expand_dims(signs, -2)
    return concat([known, narrow(q, -1, count, rows - count)], -1) if is_full and rows > count else known


def qr_factors(a: Any, columns: int) -> tuple[Any, Any]:
    """Q with so many columns, and R."""
    if _is_large(a, 2 * blocked.PANEL):
        return blocked.qr_factors(a, columns)
    packed, scales = Reflectors()(a)
    return ReflectedBasis(columns)(packed, scales), triu(narrow(packed, -2, 0, columns))


def _is_large(a: Any, limit: int) -> bool:
    """Whether the matrices are real, of a size that is known, and larger than a limit in both directions."""
    sizes = a.shape[-2:]
    return not a.dtype.is_complex and all(isinstance(s, int) and s > limit for s in sizes)


def _solve(op: Op, a: Any, b: Any) -> Form | None:
    """Small systems many at a time, without factors."""
    size = a.shape[-1]
    columns = 1 if b.ndim < a.ndim else b.shape[-1]
    is_small = all(isinstance(n, int) and n <= limit for n, limit in ((size, SMALL), (columns, 2 * SMALL)))
    if a.dtype.is_complex or not is_small or size == 0:
        return FACTOR_FORMS[type(op)](op, a, b)
    return lambda a, b: _solved_at_once(op, a, b)


def _solved_at_once(op: Op, a: Any, b: Any) -> Any:
    x, found = SmallSolve()(a, b)
    RequireFactors(op.mnemonic)(found)
    return x


def _cholesky(op: Op, a: Any) -> Form | None:
    size = a.shape[-1]
    if isinstance(size, int) and 0 < size <= SMALL and not a.dtype.is_complex:
        return lambda a: _factorized_at_once(op, a)
    if not _is_large(a, blocked.CHOLESKY):
        return FACTOR_FORMS[Cholesky](op, a)
    return lambda a: _factorized_in_blocks(op, a, blocked.CHOLESKY)


def _factorized_in_blocks(op: Op, a: Any, limit: int) -> Any:
    factor = blocked.cholesky_factor(cast(a, DType.F64), limit)
    result = cast(factor, a.dtype)
    require(op, factor)
    return result


def _factorized_at_once(op: Op, a: Any) -> Any:
    factor, found = SmallCholesky()(a)
    RequireFactors(op.mnemonic)(found)
    return factor


def shared_form(op: Op, operands: Sequence[Any], room: int) -> Form | None:
    """The form of a factorisation by threads that share so many bytes, in which they have a whole matrix; larger ones
    are cut until they fit, and the rest is products."""
    if not isinstance(op, BatchedDenseSolve | Cholesky | DenseSolve | Lu) or operands[0].dtype.is_complex:
        return None
    a, *b = operands
    rows, columns = a.shape[-2:]
    sides = [1 if x.ndim < a.ndim else x.shape[-1] for x in b]
    if not all(isinstance(n, int) and n > 0 for n in (rows, columns)) or not all(isinstance(n, int) for n in sides):
        return None

    def fits(rows: int, columns: int) -> bool:
        return columns <= MOST_SHARED and shared_matrix(rows, columns) <= room

    def is_whole(rows: int, columns: int) -> bool:
        """What is too high even where it is narrow is not cut: a thread has a whole one then."""
        return fits(rows, columns) or min(rows, columns) <= blocked.STEP

    if isinstance(op, Lu):
        if is_whole(rows, columns):
            return None
        return lambda a: _rounded_lu(blocked.lu_factors(cast(a, DType.F64), is_whole), a)
    if b:
        is_fitting = fits(rows, columns + sum(sides))
        return (lambda a, b: _solved_at_once(op, a, b)) if is_fitting else None
    if fits(rows, columns):
        return lambda a: _factorized_at_once(op, a)
    limit = max(n for n in range(1, columns) if fits(n, n))
    return lambda a: _factorized_in_blocks(op, a, limit)


def _rounded_lu(factors: tuple[Any, Any, Any], a: Any) -> tuple[Any, Any, Any]:
    packed, pivots, permutation = factors
    return cast(packed, a.dtype), pivots, permutation


def _lu(op: Op, a: Any) -> Form | None:
    if not _is_large(a, blocked.LU):
        return FACTOR_FORMS[Lu](op, a)
    return lambda a: _rounded_lu(blocked.lu_factors(cast(a, DType.F64)), a)


def _qr(op: Op, a: Any) -> Form | None:
    assert isinstance(op, Qr)
    if not _is_large(a, 2 * blocked.PANEL):
        return FACTOR_FORMS[Qr](op, a)

    def build(a: Any) -> Any:
        rows, columns = a.shape[-2:]
        q, r = blocked.qr_factors(cast(a, DType.F64), rows if op.full_matrices else min(rows, columns))
        return cast(q, a.dtype), cast(r, a.dtype)

    return build


def _triangular_solve(op: Op, a: Any, b: Any) -> Form | None:
    assert isinstance(op, TriangularSolve)
    columns = b.shape[-1]
    # Products with few columns are no faster than substitution.
    if not _is_large(a, blocked.SOLVE) or not isinstance(columns, int) or columns < FEW_COLUMNS:
        return None

    def build(a: Any, b: Any) -> Any:
        x = blocked.triangular_solve(op, cast(a, DType.F64), cast(b, DType.F64))
        return cast(x, b.dtype)

    return build


SIZED_FORMS: dict[type[Op], Callable[..., Form | None]] = {
    BatchedDenseSolve: _solve,
    Cholesky: _cholesky,
    DenseSolve: _solve,
    Eigh: _eigh,
    Lu: _lu,
    Qr: _qr,
    Svd: _svd,
    TriangularSolve: _triangular_solve,
}
