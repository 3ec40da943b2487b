"""Forms of factorisations of complex matrices, and of general eigenvalues, for kernels that know real numbers only.

Real and imaginary parts go their own ways as two operands. Cholesky factors and triangular systems become real ones of
twice the size, in which a number is the block [[re, -im], [im, re]]: these blocks of a triangular matrix are triangular
where its diagonal is real. Hermitian matrices become tridiagonal and others bidiagonal with real elements, whose
rotations act on both parts alike. Large matrices are cut into blocks, as real ones are. All is done in double
precision, rounded once. Part of the table of `kernel_forms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx.compile.lower import blocked_factors as blocked
from rlx.compile.lower.complex_numbers import parts
from rlx.compile.lower.factorizations import in_order, require, require_solved, symmetric
from rlx.compile.lower.sized_factors import has_room
from rlx.ir.dims import dim_min
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.linalg.contraction import adjoint, matmul
from rlx.ops.linalg.factorizations import Cholesky, Eigh, Lu, Qr, Svd
from rlx.ops.linalg.general_eigen import SPECTRAL_STEPS, Eig
from rlx.ops.linalg.matrix_functions import Pinv, pinv_by_svd
from rlx.ops.linalg.schur import Schur
from rlx.ops.linalg.solve import BatchedDenseSolve, DenseSolve, TriangularSolve
from rlx.ops.lowered.bidiagonal_steps import BidiagonalRotations
from rlx.ops.lowered.factor_steps import CholeskyFactor, ReflectedBasis, RequireFactors
from rlx.ops.lowered.pair_steps import (
    Hessenberg,
    PairBasis,
    PairBidiagonal,
    PairLu,
    SchurSteps,
    SplitPairs,
    TriangularVectors,
)
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.lowered.tridiagonal_steps import RotatedRows, TridiagonalRotations
from rlx.ops.pointwise.arithmetic import and_, eq, ge, gt, lt, maximum, where
from rlx.ops.pointwise.bits import isfinite
from rlx.ops.pointwise.complex_numbers import MakeComplex
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import abs_, round_, sqrt
from rlx.ops.reduction.reductions import argmax, reduce_all, reduce_max, reduce_sum
from rlx.ops.shape.creation import eye, iota, tril, triu
from rlx.ops.shape.movement import broadcast_to, concat, expand_dims, narrow, pad_zeros, reshaped, squeeze, swapaxes
from rlx.ops.shape.rearrange import diagonal

Form = Callable[..., Any]


def _wide_parts(a: Any) -> list[Any]:
    """The parts of a matrix, of which a real one has one, in double precision."""
    return [cast(x, DType.F64) for x in (parts(a) if a.dtype.is_complex else (a,))]


def _rounded(pair: Sequence[Any], dtype: DType) -> Any:
    """The complex value of two parts."""
    re, im = (cast(x, dtype.real) for x in pair)
    return MakeComplex()(re, im)


def _on_diagonal(a: Any) -> Any:
    with same_graph(a):
        return eye(a.shape[-2], a.shape[-1], dtype=DType.BOOL)


def _beside(x: Any, y: Any, axis: int) -> Any:
    """Two matrices with their columns (-1) or rows (-2) in turn."""
    joined = concat([expand_dims(x, axis), expand_dims(y, axis)], axis)
    dims = list(x.shape)
    dims[axis] = 2 * dims[axis]
    return reshaped(joined, tuple(dims))


def _real_form(re: Any, im: Any) -> Any:
    """[[re, -im], [im, re]] in place of every number."""
    return _beside(_beside(re, -im, -1), _beside(im, re, -1), -2)


def _taken_apart(x: Any, axis: int) -> list[Any]:
    """What `_beside` has put together."""
    at = x.ndim + axis
    dims = (*x.shape[:at], x.shape[at] // 2, 2, *x.shape[at + 1 :])
    both = reshaped(x, dims)
    return [squeeze(narrow(both, at + 1, i, 1), at + 1) for i in (0, 1)]


def _cholesky(op: Op, a: Any) -> Form | None:
    """The real form of L is the Cholesky factor of that of A."""

    def build(a: Any) -> Any:
        re, im = _wide_parts(a)
        on_diagonal = _on_diagonal(re)
        whole = _real_form(re, where(on_diagonal, 0.0, im))
        size = whole.shape[-1]
        is_large = isinstance(size, int) and size > blocked.CHOLESKY
        factor = blocked.cholesky_factor(whole) if is_large else CholeskyFactor()(whole)
        first, _ = _taken_apart(factor, -1)
        l_re, l_im = _taken_apart(first, -2)
        result = _rounded((l_re, where(on_diagonal, 0.0, l_im)), a.dtype)
        require(op, factor)
        return result

    return build


def _triangular_solve(op: Op, a: Any, b: Any) -> Form | None:
    """Rows are divided by their diagonal elements first: the real form is triangular then, and has a unit diagonal."""
    assert isinstance(op, TriangularSolve)

    def build(a: Any, b: Any) -> Any:
        matrix, right = (cast(x, DType.C128) for x in (a, b))
        lower = op.lower != op.transpose
        matrix = swapaxes(matrix, -1, -2) if op.transpose else matrix
        strict = tril(matrix, -1) if lower else triu(matrix, 1)
        if not op.unit_diagonal:
            heads = expand_dims(diagonal(matrix, 0, -2, -1), -1)
            strict, right = strict / heads, right / heads
        solve = TriangularSolve(lower=lower, unit_diagonal=True)
        x = solve(_real_form(*parts(strict)), _beside(*parts(right), -2))
        return _rounded(_taken_apart(x, -2), b.dtype)

    return build


def _is_large(a: Any, limit: int) -> bool:
    return all(isinstance(s, int) and s > limit for s in a.shape[-2:])


def _lu(op: Op, a: Any) -> Form | None:
    def build(a: Any) -> Any:
        if _is_large(a, blocked.LU):
            packed, pivots, order = blocked.lu_factors(cast(a, DType.C128))
            return cast(packed, a.dtype), pivots, order
        re, im, pivots, order = PairLu()(*_wide_parts(a))
        return _rounded((re, im), a.dtype), pivots, order

    return build


def _solve(op: Op, a: Any, b: Any) -> Form | None:
    """P A = L U; then L y = P b and U x = y."""

    def build(a: Any, b: Any) -> Any:
        columns = cast(expand_dims(b, -1) if b.ndim < a.ndim else b, DType.C128)
        factors, _, order = Lu()(cast(a, DType.C128))
        y = TriangularSolve(unit_diagonal=True)(factors, in_order(columns, order))
        x = TriangularSolve(lower=False)(factors, y)
        return require_solved(op, a, factors, cast(reshaped(x, b.shape), b.dtype))

    return build


def _qr_factors(a: Any, columns: Any) -> tuple[Any, Any]:
    """Q with so many columns, and R, of a matrix in double precision."""
    if _is_large(a, 2 * blocked.PANEL):
        return blocked.qr_factors(a, columns)
    packed, scales = blocked.reflectors(a)
    q = MakeComplex()(*PairBasis(columns)(*parts(packed), *parts(scales)))
    return q, triu(narrow(packed, -2, 0, columns))


def _qr(op: Op, a: Any) -> Form | None:
    assert isinstance(op, Qr)

    def build(a: Any) -> Any:
        rows, columns = a.shape[-2:]
        q, r = _qr_factors(cast(a, DType.C128), rows if op.full_matrices else dim_min(rows, columns))
        return cast(q, a.dtype), cast(r, a.dtype)

    return build


def _unit(pieces: Sequence[Any]) -> Any:
    """The largest part of an element of each matrix, by which all others are divided; 1 if it cannot be."""
    largest = [reduce_max(abs_(x), (-2, -1), keepdims=True) for x in pieces]
    found = largest[0] if len(largest) == 1 else maximum(*largest)
    return where(and_(gt(found, 0.0), lt(found, math.inf)), found, 1.0)


def _basis(pieces: Sequence[Any], scales: Sequence[Any]) -> list[Any]:
    """The parts of Q, the product of reflections that leave the first row alone: those of a QR without it."""
    size = pieces[0].shape[-1]
    lead = pieces[0].shape[:-2]
    with same_graph(pieces[0]):
        first = broadcast_to(eye(1, size, dtype=DType.F64), (*lead, 1, size))
    none = (0,) * (len(lead) + 1)
    if size == 1:
        return [first, *(first * 0.0 for _ in pieces[1:])]
    inner = [narrow(narrow(x, -2, 1, size - 1), -1, 0, size - 1) for x in pieces]
    lines = [narrow(s, -1, 0, size - 1) for s in scales]
    if len(pieces) == 1:
        found = [ReflectedBasis(size - 1)(*inner, *lines)]
    else:
        found = list(PairBasis(size - 1)(*inner, *lines))
    widened = [pad_zeros(x, (*none, 1), (*none, 0)) for x in found]
    return [concat([first if i == 0 else first * 0.0, x], -2) for i, x in enumerate(widened)]


def _is_sized(a: Any) -> bool:
    """Whether the size of matrices is known, and not 0."""
    return all(isinstance(s, int) and s > 0 for s in a.shape[-2:])


def _turned(x: Any) -> Any:
    return swapaxes(x, -1, -2)


def _halves(x: Any, count: int) -> list[Any]:
    """The two matrices of `count` columns that lie beside each other."""
    return [narrow(x, -1, at, count) for at in (0, count)]


def _eigh(op: Op, a: Any) -> Form | None:
    """A = Q T Qᴴ with real T; rotations make T diagonal, and Qᵀ the transposed eigenvectors."""
    assert isinstance(op, Eigh)
    if not _is_sized(a) or not has_room(a, a.shape[-1]):
        return None

    def build(a: Any) -> Any:
        re, im = _wide_parts(a)
        size = a.shape[-1]
        triangle = tril if op.lower else triu
        is_finite = reduce_all(and_(isfinite(triangle(re)), isfinite(triangle(im))), (-2, -1))
        half = tril(im, -1) if op.lower else triu(im, 1)
        whole = [symmetric(re, op.lower), half - _turned(half)]
        unit = _unit(whole)
        p_re, p_im, s_re, s_im, _, _ = Hessenberg()(*(x / unit for x in whole))
        none = (0,) * (len(a.shape) - 2)
        beside = pad_zeros(diagonal(p_re, -1, -2, -1), (*none, 0), (*none, 1))
        scaled, rotations, sweeps, count, is_found, _ = TridiagonalRotations()(diagonal(p_re, 0, -2, -1), beside)
        q = concat([_turned(x) for x in _basis((p_re, p_im), (s_re, s_im))], -1)
        rows = RotatedRows()(q, rotations, sweeps, count)
        found = expand_dims(and_(is_found, is_finite), -1)
        values = where(found, scaled * squeeze(unit, -1), math.nan)
        order, _ = SortOrder()(values)
        rows = in_order(where(expand_dims(found, -1), rows, math.nan), order)
        vectors = [_turned(x) for x in _halves(rows, size)]
        return cast(in_order(values, order), a.dtype.real), _rounded(vectors, a.dtype)

    return build


def _svd(op: Op, a: Any) -> Form | None:
    """A = U B Vᴴ with real B; rotations make B diagonal, and Vᵀ the transposed singular vectors of one side. Those of
    the other are the directions of A V, as for real matrices. One with more columns than rows is turned over first."""
    assert isinstance(op, Svd)
    if not _is_sized(a) or not has_room(a, min(a.shape[-2:])):
        return None
    is_flat = a.shape[-1] > a.shape[-2]

    def build(a: Any) -> Any:
        wide = cast(a, DType.C128)
        tall = adjoint(wide) if is_flat else wide
        rows, size = tall.shape[-2:]
        pieces = _wide_parts(tall)
        unit = _unit(pieces)
        b_re, b_im, s_re, s_im, kept, beside, _, _ = PairBidiagonal()(*(x / unit for x in pieces))
        signed, _, of_columns, sweeps, count, is_found, _ = BidiagonalRotations()(kept, beside)
        lengths = abs_(signed)
        order, _ = SortOrder(descending=True)(lengths)
        values = cast(in_order(lengths * squeeze(unit, -1), order), a.dtype.real)
        if not op.compute_uv:
            RequireFactors("svd")(is_found)
            return values
        square = [_turned(narrow(x, -2, 0, size)) for x in (b_re, b_im)]
        q = concat([_turned(x) for x in _basis(square, (s_re, s_im))], -1)
        turned = in_order(RotatedRows(downwards=True)(q, of_columns, sweeps, count), order)
        v = MakeComplex()(*(_turned(x) for x in _halves(turned, size)))
        u = _directions(matmul(MakeComplex()(*(x / unit for x in pieces)), v), rows, op.full_matrices)
        left, right = (v, u) if is_flat else (u, v)
        RequireFactors("svd")(is_found)
        return cast(left, a.dtype), values, cast(adjoint(right), a.dtype)

    return build


def _directions(columns: Any, rows: int, is_full: bool) -> Any:
    """Orthonormal columns along orthogonal ones; with `is_full`, and others to fill up the space."""
    count = columns.shape[-1]
    q, r = _qr_factors(columns, rows if is_full else count)
    heads, _ = parts(diagonal(narrow(r, -2, 0, count), 0, -2, -1))
    signs = cast(where(ge(heads, 0.0), 1.0, -1.0), DType.C128)
    known = narrow(q, -1, 0, count) * expand_dims(signs, -2)
    return concat([known, narrow(q, -1, count, rows - count)], -1) if is_full and rows > count else known


def _pinv(op: Op, a: Any) -> Form | None:
    assert isinstance(op, Pinv)
    relative = op.tolerance(a.shape, a.dtype)
    return lambda a: cast(pinv_by_svd(cast(a, DType.C128), relative), a.dtype)


def _triangles(a: Any) -> tuple[list[Any], list[Any], Any, Any]:
    """The parts of T and Zᵀ with A = Z T Zᴴ in units that come next, and whether they were found."""
    pieces = _wide_parts(a)
    count, unit = len(pieces), _unit(pieces)
    found = Hessenberg()(*(x / unit for x in pieces))
    packed, scales = found[:count], found[count : 2 * count]
    q = [_turned(x) for x in _basis(packed, scales)]
    result = SchurSteps()(*(triu(x, -1) for x in packed), *q)
    return list(result[:count]), list(result[count:-1]), unit, result[-1]


def _schur(op: Op, a: Any) -> Form | None:
    if not _is_sized(a):
        return None

    def build(a: Any) -> Any:
        t, z, unit, is_found = _triangles(a)
        found = expand_dims(is_found, (-2, -1))
        below = -1 if len(t) == 1 else 0
        ts = [where(found, triu(x, below) * unit, math.nan) for x in t]
        zs = [where(found, _turned(x), math.nan) for x in z]
        if len(t) == 1:
            return cast(ts[0], a.dtype), cast(zs[0], a.dtype)
        return _rounded(ts, a.dtype), _rounded(zs, a.dtype)

    return build


def _eig(op: Op, a: Any) -> Form | None:
    assert isinstance(op, Eig)
    if not _is_sized(a):
        return None

    def build(a: Any) -> Any:
        dtype = a.dtype.complex
        t, z, unit, is_found = _triangles(a)
        if len(t) == 1:
            *t, z_re, z_im = SplitPairs()(triu(t[0], -1), z[0])
            z = [z_re, z_im]
        found = expand_dims(is_found, -1)
        scaled = [diagonal(x, 0, -2, -1) for x in t]
        order = _ascending(*scaled)
        values = [where(found, in_order(x, order) * squeeze(unit, -1), math.nan) for x in scaled]
        w = _rounded(values, dtype)
        if not op.compute_v:
            return w
        x = TriangularVectors()(*(triu(p) for p in t))
        v = matmul(MakeComplex()(*(_turned(p) for p in z)), MakeComplex()(*x))
        v_re, v_im = (_turned(in_order(_turned(p), order)) for p in _upright(*parts(v)))
        if not a.dtype.is_complex:
            # The real part of a vector that belongs to a real eigenvalue does, too.
            v_im = where(expand_dims(eq(values[1], 0.0), -2), 0.0, v_im)
        length = sqrt(reduce_sum(v_re * v_re + v_im * v_im, -2, keepdims=True))
        is_known = expand_dims(found, -1)
        return w, _rounded([where(is_known, p / length, math.nan) for p in (v_re, v_im)], dtype)

    return build


def _ascending(re: Any, im: Any) -> Any:
    """The order of eigenvalues, as positions; see `Eig`."""
    largest = reduce_max(maximum(abs_(re), abs_(im)), -1, keepdims=True)
    largest = where(gt(largest, 0.0), largest, 1.0)
    order, _ = SortOrder()(*(round_(x / largest * SPECTRAL_STEPS) for x in (re, im)))
    return order


def _upright(re: Any, im: Any) -> list[Any]:
    """Columns divided by their largest elements, which are 1 then."""
    longest = reduce_max(maximum(abs_(re), abs_(im)), -2, keepdims=True)
    re, im = re / longest, im / longest
    sizes = re * re + im * im
    with same_graph(re):
        rows = expand_dims(iota((re.shape[-2],), DType.I32), -1)
    is_largest = eq(rows, expand_dims(argmax(sizes, -2), -2))
    head = [reduce_sum(where(is_largest, x, 0.0), -2, keepdims=True) for x in (re, im)]
    size = head[0] * head[0] + head[1] * head[1]
    return [(re * head[0] + im * head[1]) / size, (im * head[0] - re * head[1]) / size]


# Of complex matrices; those that a matrix can be wrong for have a check in their forms, or others of these.
PAIRS_CAN_FAIL: dict[type[Op], Callable[..., Form | None]] = {
    BatchedDenseSolve: _solve,
    Cholesky: _cholesky,
    DenseSolve: _solve,
    Pinv: _pinv,
    Svd: _svd,
}
PAIR_FORMS: dict[type[Op], Callable[..., Form | None]] = {
    **PAIRS_CAN_FAIL,
    Eigh: _eigh,
    Lu: _lu,
    Qr: _qr,
    TriangularSolve: _triangular_solve,
}
# Of real and complex matrices.
GENERAL_FORMS: dict[type[Op], Callable[..., Form | None]] = {Eig: _eig, Schur: _schur}
