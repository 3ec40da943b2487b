"""Steps of factorisations as loops of ops: what our own kernels do inside, written so that any engine can run it.

Everything is in double precision, as in the definitions, and batches are leading axes. Numbers meet in the order of the
definitions, so that what is not finite spoils the same elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.compile.lower.factorizations import FACTOR_FORMS, require, require_solved
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ops.control.bodies import build_body
from rlx.ops.control.branches import While
from rlx.ops.control.scans import Scan
from rlx.ops.define.operands import same_graph
from rlx.ops.define.rules import zeros_of
from rlx.ops.linalg.contraction import conjugated, matmul
from rlx.ops.linalg.factorizations import Cholesky, Lu, row_gather
from rlx.ops.linalg.solve import BatchedDenseSolve, DenseSolve, TriangularSolve
from rlx.ops.lowered.factor_steps import CholeskyFactor, OrthogonalRows, ReflectedBasis, Reflectors
from rlx.ops.pointwise.arithmetic import and_, copysign, eq, ge, gt, hypot, le, lt, ne, or_, where
from rlx.ops.pointwise.bits import isfinite
from rlx.ops.pointwise.complex_numbers import complex_norm_sq, imag, real
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import abs_, sqrt
from rlx.ops.reduction.reductions import argmax, reduce_all, reduce_max, reduce_sum
from rlx.ops.shape.creation import eye, full_like, iota, tril, triu
from rlx.ops.shape.dynamic_slices import dynamic_index_in_dim
from rlx.ops.shape.movement import concat, expand_dims, moveaxis, narrow, pad, reshaped, squeeze, swapaxes
from rlx.ops.shape.rearrange import diagonal

Form = Callable[..., Any]

# Rounds of rotations over all pairs of rows; a matrix of a thousand rows needs some ten.
_MOST_SWEEPS = 40
_ORTHOGONAL = 2.0**-52


def _wide(dtype: DType) -> DType:
    return DType.C128 if dtype.is_complex else DType.F64


def _steps(length: int, body: Callable[..., Any], carries: list[Any], constants: list[Any], xs: list[Any]) -> Any:
    """`length` steps of a body of carries, constants, rows of xs and the number of the step."""
    return _scan(length, body, carries, constants, xs, reverse=False)


def _scan(
    length: int, body: Callable[..., Any], carries: list[Any], constants: list[Any], xs: list[Any], reverse: bool
) -> tuple[Any, ...]:
    with same_graph(*carries):
        numbers = iota((length,), DType.I32)
    rows = [*xs, numbers]
    types = [*(c.type for c in (*carries, *constants)), *(Shape(x.shape[1:], x.dtype) for x in rows)]
    program = build_body("step", body, **{f"v{i}": t for i, t in enumerate(types)})
    loop = Scan(program, length, len(carries), len(constants), len(rows), reverse=reverse)
    results = loop(*carries, *constants, *rows)
    return results if isinstance(results, tuple) else (results,)


def _column(a: Any, k: Any) -> Any:
    """Column k of matrices, without its axis."""
    return dynamic_index_in_dim(a, k, a.ndim - 1, keepdims=False)


def _row(a: Any, k: Any) -> Any:
    return dynamic_index_in_dim(a, k, a.ndim - 2, keepdims=False)


def _squares(x: Any) -> Any:
    """|x|², which is real."""
    return complex_norm_sq(x) if x.dtype.is_complex else x * x


def _real(x: Any) -> Any:
    return real(x) if x.dtype.is_complex else x


def _eyes(lead: list[int], rows: int, columns: int, near: Any) -> Any:
    """Ones on the diagonals of a batch of matrices."""
    return eye(rows, columns, dtype=near.dtype) + zeros_of(Shape((*lead, rows, columns), near.dtype), near)


def _triangular_solve(op: Op, *operands: Any) -> Form:
    """Substitution, a row of x at a time."""
    assert isinstance(op, TriangularSolve)

    def build(a: Any, b: Any) -> Any:
        size, dtype = int(a.shape[-1]), _wide(b.dtype)
        if not size:
            return b
        matrix = cast(a, dtype)
        strict = tril(matrix, -1) if op.lower else triu(matrix, 1)
        strict = swapaxes(strict, -1, -2) if op.transpose else strict
        right = cast(b, dtype)
        pivots = moveaxis(diagonal(matrix, 0, -2, -1), -1, 0)

        def step(x: Any, row: Any, value: Any, pivot: Any, i: Any) -> Any:
            known = squeeze(matmul(expand_dims(row, -2), x), -2)
            found = value - known
            found = found if op.unit_diagonal else found / expand_dims(pivot, -1)
            return where(eq(expand_dims(iota((size,), DType.I32), -1), i), expand_dims(found, -2), x)

        rows = [moveaxis(strict, -2, 0), moveaxis(right, -2, 0), pivots]
        start = [zeros_of(right.type, right)]
        (x,) = _scan(size, step, start, [], rows, reverse=op.lower == op.transpose)
        return cast(x, b.dtype)

    return build


def _cholesky_factor(op: Op, *operands: Any) -> Form:
    def build(a: Any) -> Any:
        size = int(a.shape[-1])
        if not size:
            return a

        def step(factor: Any, column: Any, j: Any) -> Any:
            place = iota((size,), DType.I32)
            known = squeeze(matmul(factor, expand_dims(conjugated(_row(factor, j)), -1)), -1)
            column = column - known
            pivot = expand_dims(dynamic_index_in_dim(column, j, column.ndim - 1, keepdims=False), -1)
            pivot = _real(pivot)
            root = cast(sqrt(where(le(pivot, 0.0), 0.0, pivot)), a.dtype)
            made = where(eq(place, j), root, where(gt(place, j), column / root, 0.0))
            return where(eq(place, j), expand_dims(made, -1), factor)

        (factor,) = _steps(size, step, [zeros_of(a.type, a)], [], [moveaxis(a, -1, 0)])
        return factor

    return build


def _complex_cholesky(op: Op, a: Any) -> Form | None:
    """As that of real matrices, with the numbers of the other side conjugated."""
    if not a.dtype.is_complex:
        return FACTOR_FORMS[Cholesky](op, a)

    def build(a: Any) -> Any:
        factor = _cholesky_factor(op)(cast(a, DType.C128))
        require(op, factor)
        return cast(factor, a.dtype)

    return build


def _lu(op: Op, *operands: Any) -> Form:
    """Elimination with the largest element of each column as pivot."""

    def build(a: Any) -> Any:
        *lead, rows, columns = (int(d) for d in a.shape)
        count = min(rows, columns)
        with same_graph(a):
            order = iota((*lead, rows), DType.I32, len(lead))
        if not count:
            return a, zeros_of(Shape((*lead, count), DType.I32), a), order

        def step(matrix: Any, order: Any, k: Any) -> Any:
            place, across = iota((rows,), DType.I32), iota((columns,), DType.I32)
            sizes = where(ge(place, k), abs_(_column(matrix, k)), -1.0)
            pivot = argmax(sizes, -1)
            chosen = expand_dims(pivot, -1)
            swapped = where(eq(place, k), chosen, where(eq(place, chosen), k, place))
            at = expand_dims(swapped, -1)
            matrix, order = row_gather(swapped)(matrix, at), row_gather(swapped)(order, at)
            column, row = _column(matrix, k), _row(matrix, k)
            head = expand_dims(dynamic_index_in_dim(column, k, column.ndim - 1, keepdims=False), -1)
            below = and_(gt(place, k), ne(head, 0.0))
            factors = where(below, column / head, column)
            changed = matrix - expand_dims(factors, -1) * expand_dims(row, -2)
            inside = and_(expand_dims(below, -1), gt(across, k))
            matrix = where(inside, changed, matrix)
            return where(eq(across, k), expand_dims(factors, -1), matrix), order, pivot

        matrix, order, pivots = _steps(count, step, [cast(a, _wide(a.dtype)), order], [], [])
        return cast(matrix, a.dtype), moveaxis(pivots, 0, -1), order

    return build


def _complex_solve(op: Op, a: Any, b: Any) -> Form | None:
    """As that of real matrices: P A = L U, then L y = P b and U x = y."""
    if not a.dtype.is_complex:
        return FACTOR_FORMS[type(op)](op, a, b)

    def build(a: Any, b: Any) -> Any:
        columns = cast(expand_dims(b, -1) if b.ndim < a.ndim else b, DType.C128)
        factors, _, order = Lu()(cast(a, DType.C128))
        rows = row_gather(order)(columns, expand_dims(order, -1))
        y = TriangularSolve(unit_diagonal=True)(factors, rows)
        x = TriangularSolve(lower=False)(factors, y)
        return require_solved(op, a, factors, cast(reshaped(x, b.shape), b.dtype))

    return build


def reflectors(op: Op, *operands: Any) -> Form:
    """Householder's vectors below R, and their scales, as LAPACK packs them."""

    def build(a: Any) -> Any:
        *lead, rows, columns = (int(d) for d in a.shape)
        count = min(rows, columns)
        if not count:
            return a, zeros_of(Shape((*lead, count), a.dtype), a)

        def step(matrix: Any, j: Any) -> Any:
            place, across = iota((rows,), DType.I32), iota((columns,), DType.I32)
            column = _column(matrix, j)
            alpha = expand_dims(dynamic_index_in_dim(column, j, column.ndim - 1, keepdims=False), -1)
            tail = where(gt(place, j), column, 0.0)
            # Scaled by its largest element, so that no square overflows.
            largest = reduce_max(abs_(tail), -1, keepdims=True)
            safe = where(eq(largest, 0.0), 1.0, largest)
            length = largest * sqrt(reduce_sum(_squares(tail / safe), -1, keepdims=True))
            whole = _real(alpha)
            is_flat = eq(length, 0.0)
            if a.dtype.is_complex:
                is_flat = and_(is_flat, eq(imag(alpha), 0.0))
                length = hypot(length, imag(alpha))
            beta = -copysign(hypot(whole, length), whole)
            scale = where(is_flat, 0.0, (beta - alpha) / where(is_flat, 1.0, beta))
            vector = where(eq(place, j), 1.0, tail / where(is_flat, 1.0, alpha - beta))
            along = squeeze(matmul(expand_dims(conjugated(vector), -2), matrix), -2)
            changed = matrix - expand_dims(vector * conjugated(scale), -1) * expand_dims(along, -2)
            inside = and_(expand_dims(ge(place, j), -1), gt(across, j))
            matrix = where(inside, changed, matrix)
            stored = where(gt(place, j), vector, where(eq(place, j), where(is_flat, alpha, beta), column))
            return where(eq(across, j), expand_dims(stored, -1), matrix), squeeze(scale, -1)

        packed, scales = _steps(count, step, [a], [], [])
        return packed, moveaxis(scales, 0, -1)

    return build


def reflected_basis(op: Op, *operands: Any) -> Form:
    """The first columns of the product of all reflections."""
    assert isinstance(op, ReflectedBasis)

    def build(packed: Any, scales: Any) -> Any:
        *lead, rows, _ = (int(d) for d in packed.shape)
        count, columns = int(scales.shape[-1]), int(op.columns)
        with same_graph(packed):
            start = _eyes(lead, rows, columns, packed)
        if not count:
            return start

        def step(basis: Any, packed: Any, scale: Any, j: Any) -> Any:
            place = iota((rows,), DType.I32)
            vector = where(eq(place, j), 1.0, where(gt(place, j), _column(packed, j), 0.0))
            along = squeeze(matmul(expand_dims(conjugated(vector), -2), basis), -2) * expand_dims(scale, -1)
            changed = basis - expand_dims(vector, -1) * expand_dims(along, -2)
            return where(expand_dims(ge(place, j), -1), changed, basis)

        (basis,) = _scan(count, step, [start], [packed], [moveaxis(scales, -1, 0)], reverse=True)
        return basis

    return build


def _pairings(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rounds in which everybody of an even number meets somebody, and after which everybody has met everybody: who
    sits where in each round, halves facing each other, and how to get back."""
    seats = list(range(count))
    orders = []
    for _ in range(max(count - 1, 1)):
        orders.append([*seats[: count // 2], *reversed(seats[count // 2 :])])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    table = np.array(orders, np.int32)
    return table, np.argsort(table, axis=1).astype(np.int32)


def _turned_pairs(x: Any, y: Any, columns: int) -> tuple[Any, Any]:
    """Rows x and then y after the rotations that make the first `columns` of each pair orthogonal, and how far from
    that they were: |x·y| / (|x| |y|)."""
    p, q = narrow(x, -1, 0, columns), narrow(y, -1, 0, columns)
    alpha, beta = (reduce_sum(_squares(u), -1, keepdims=True) for u in (p, q))
    gamma = reduce_sum(p * conjugated(q), -1, keepdims=True)
    size, bound = abs_(gamma), sqrt(alpha) * sqrt(beta)
    share = where(gt(bound, 0.0), size / where(gt(bound, 0.0), bound, 1.0), 0.0)
    turns = gt(share, _ORTHOGONAL)
    size = where(turns, size, 1.0)
    phase = where(turns, gamma, 0.0) / size
    zeta = (beta - alpha) / (2.0 * size)
    tangent = copysign(1.0 / (abs_(zeta) + hypot(zeta, full_like(zeta, 1.0))), zeta)
    cosine = 1.0 / hypot(tangent, full_like(tangent, 1.0))
    cosine, sine = where(turns, cosine, 1.0), where(turns, cosine * tangent, 0.0)
    after = concat([cosine * x - sine * phase * y, sine * conjugated(phase) * x + cosine * y], -2)
    return after, share


def orthogonal_rows(op: Op, *operands: Any) -> Form:
    """Jacobi's rotations of pairs of rows, all pairs of a round at once, until no two rows have a product to speak
    of."""

    def build(a: Any) -> Any:
        *lead, rows, columns = (int(d) for d in a.shape)
        is_found = reduce_all(isfinite(a), (-2, -1))
        safe = where(expand_dims(is_found, (-2, -1)), a, 0.0)
        even = rows + rows % 2
        with same_graph(a):
            turn = _eyes(lead, even, even, a)
        if not rows:
            return a, turn, zeros_of(Shape((*lead, 0), DType.F64), a), is_found
        widened = pad(safe, a.dtype.numpy.type(0), (0,) * a.ndim, (*(0,) * len(lead), even - rows, 0))
        whole = concat([widened, turn], -1)
        half = even // 2
        seats, back = _pairings(even)
        rounds = len(seats)

        def rotated(whole: Any, worst: Any, order: Any, home: Any, _: Any) -> Any:
            from rlx.ops.shape.axis_indexing import gather

            seated = gather(whole, order, whole.ndim - 2, "clip")
            x, y = narrow(seated, -2, 0, half), narrow(seated, -2, half, half)
            after, share = _turned_pairs(x, y, columns)
            highest = reduce_max(share, tuple(range(share.ndim)))
            return gather(after, home, whole.ndim - 2, "clip"), where(gt(highest, worst), highest, worst)

        def sweep(whole: Any, worst: Any, count: Any, seats: Any, back: Any) -> Any:
            start = [whole, zeros_of(worst.type, worst)]
            whole, worst = _steps(rounds, rotated, start, [], [seats, back])
            return whole, worst, count + 1

        def goes_on(whole: Any, worst: Any, count: Any, seats: Any, back: Any) -> Any:
            # Rows below a rounding of others never settle, so the number of sweeps is bounded.
            return and_(gt(worst, 8 * _ORTHOGONAL), lt(count, _MOST_SWEEPS))

        types = {"whole": whole.type, "worst": Shape((), DType.F64), "count": Shape((), DType.I32)}
        types |= {"seats": Shape(seats.shape, DType.I32), "back": Shape(back.shape, DType.I32)}
        loop = While(build_body("goes_on", goes_on, **types), build_body("sweep", sweep, **types), num_bcast=2)
        whole, _, _ = loop(whole, np.float64(1), np.int32(0), seats, back)
        rotated_rows = narrow(narrow(whole, -2, 0, rows), -1, 0, columns)
        turn = narrow(narrow(whole, -2, 0, rows), -1, columns, rows)
        largest = reduce_max(abs_(rotated_rows), -1, keepdims=True)
        scale = where(or_(eq(largest, 0.0), ne(largest, largest)), 1.0, largest)
        lengths = squeeze(largest * sqrt(reduce_sum(_squares(rotated_rows / scale), -1, keepdims=True)), -1)
        return rotated_rows, turn, lengths, is_found

    return build


FACTOR_STEPS: dict[type[Op], Callable[..., Form | None]] = {
    TriangularSolve: _triangular_solve,
    CholeskyFactor: _cholesky_factor,
    Cholesky: _complex_cholesky,
    Lu: _lu,
    DenseSolve: _complex_solve,
    BatchedDenseSolve: _complex_solve,
    Reflectors: reflectors,
    ReflectedBasis: reflected_basis,
    OrthogonalRows: orthogonal_rows,
}
