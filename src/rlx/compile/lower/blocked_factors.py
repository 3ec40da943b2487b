"""Factorisations and triangular solves in blocks: most of their work is in products, which have the fastest kernels.

Sizes are fixed, and operands in double precision. What is left for the kernels of whole factorisations are blocks of a
size that the nearest caches hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rlx.compile.lower.complex_numbers import parts
from rlx.ir.dtype import DType
from rlx.ops.define.operands import same_graph
from rlx.ops.linalg.contraction import adjoint, conjugated, matmul
from rlx.ops.linalg.factorizations import Lu, row_gather
from rlx.ops.linalg.solve import TriangularSolve
from rlx.ops.lowered.factor_steps import CholeskyFactor, Reflectors
from rlx.ops.lowered.pair_steps import PairReflectors
from rlx.ops.pointwise.arithmetic import ne, where
from rlx.ops.pointwise.complex_numbers import MakeComplex
from rlx.ops.shape.creation import eye, tril, triu
from rlx.ops.shape.indexing import GatherNd, IndexMode
from rlx.ops.shape.movement import broadcast_to, concat, expand_dims, narrow, pad_zeros, swapaxes

# Sizes of blocks that are not cut any more, and multiples of which are cut off.
CHOLESKY, LU, SOLVE, PANEL, STEP = 512, 512, 512, 256, 32


def _first_part(size: int) -> int:
    """Where to cut: near the middle, and so that products have whole vectors."""
    return max(-(-size // 2) // STEP, 1) * STEP


def _blocks(a: Any, k: int) -> tuple[Any, Any, Any, Any]:
    """The four blocks of a square matrix of which the first is k wide."""
    size = a.shape[-1]
    upper, lower = narrow(a, -2, 0, k), narrow(a, -2, k, size - k)
    halves = (narrow(x, -1, at, count) for x in (upper, lower) for at, count in ((0, k), (k, size - k)))
    a11, a12, a21, a22 = halves
    return a11, a12, a21, a22


def _turned(a: Any) -> Any:
    return swapaxes(a, -1, -2)


def _widened(a: Any, before: int, behind: int) -> Any:
    """With columns of zeros before and behind it."""
    none = (0,) * (a.ndim - 1)
    return pad_zeros(a, (*none, before), (*none, behind))


def cholesky_factor(a: Any, limit: int = CHOLESKY) -> Any:
    """L of [[A11, .], [A21, A22]]: L11, L21 = A21 L11⁻ᵀ, and L22 from A22 - L21 L21ᵀ; of up to `limit` at once."""
    size = a.shape[-1]
    if size <= limit:
        return CholeskyFactor()(a)
    k = _first_part(size)
    a11, _, a21, a22 = _blocks(a, k)
    l11 = cholesky_factor(a11, limit)
    l21 = _turned(triangular_solve(TriangularSolve(), l11, _turned(a21)))
    l22 = cholesky_factor(a22 - matmul(l21, _turned(l21)), limit)
    return concat([_widened(l11, 0, size - k), concat([l21, l22], -1)], -2)


def triangular_solve(op: TriangularSolve, a: Any, b: Any) -> Any:
    """The part of x that needs no other first; its product with A taken from the right sides of the rest."""
    size = a.shape[-1]
    if size <= SOLVE:
        return op(a, b)
    k = _first_part(size)
    a11, a12, a21, a22 = _blocks(a, k)
    top, bottom = narrow(b, -2, 0, k), narrow(b, -2, k, size - k)
    beside = a21 if op.lower else a12
    beside = _turned(beside) if op.transpose else beside
    if op.lower != op.transpose:
        top = triangular_solve(op, a11, top)
        bottom = triangular_solve(op, a22, bottom - matmul(beside, top))
    else:
        bottom = triangular_solve(op, a22, bottom)
        top = triangular_solve(op, a11, top - matmul(beside, bottom))
    return concat([top, bottom], -2)


def _is_one_block(rows: int, columns: int) -> bool:
    return min(rows, columns) <= LU


def lu_factors(a: Any, is_whole: Callable[[int, int], bool] = _is_one_block) -> tuple[Any, Any, Any]:
    """`Lu` of [A1 A2]: that of A1, whose exchanges and eliminations A2 goes through, and that of what is left of A2.
    Matrices of sizes for which `is_whole` holds, rows and columns, are not cut."""
    rows, columns = a.shape[-2:]
    steps = min(rows, columns)
    if is_whole(rows, columns):
        packed, pivots, order = Lu()(a)
        return packed, pivots, order
    k = _first_part(steps)
    left, right = narrow(a, -1, 0, k), narrow(a, -1, k, columns - k)
    first, pivots, order = lu_factors(left, is_whole)
    right = _rows(right, order)
    above, below = narrow(first, -2, 0, k), narrow(first, -2, k, rows - k)
    upper = triangular_solve(TriangularSolve(unit_diagonal=True), above, narrow(right, -2, 0, k))
    rest = narrow(right, -2, k, rows - k) - matmul(below, upper)
    second, more_pivots, more_order = lu_factors(rest, is_whole)
    packed = concat([concat([above, upper], -1), concat([_rows(below, more_order), second], -1)], -2)
    kept, moved = narrow(order, -1, 0, k), narrow(order, -1, k, rows - k)
    lead = more_order.ndim - 1
    moved = GatherNd((lead,), lead, IndexMode.Clip)(moved, expand_dims(more_order, -1))
    return packed, concat([pivots, more_pivots + k], -1), concat([kept, moved], -1)


def _rows(a: Any, order: Any) -> Any:
    return row_gather(order)(a, expand_dims(order, -1))


class _Panel(NamedTuple):
    """Some reflections as one: 1 - V S⁻¹ Vᴴ, S upper triangular."""

    v: Any
    s: Any

    def apply(self, x: Any, transposed: bool) -> Any:
        """That, or its adjoint, times x."""
        solve = TriangularSolve(lower=False, transpose=transposed)
        s = conjugated(self.s) if transposed else self.s
        return x - matmul(self.v, solve(s, matmul(adjoint(self.v), x)))


def _panel(packed: Any, scales: Any) -> _Panel:
    """S has 1 / scales on its diagonal, and VᴴV above it; a reflection that is none has no part in V."""
    count = scales.shape[-1]
    with same_graph(packed):
        ones = eye(packed.shape[-2], packed.shape[-1], dtype=packed.dtype)
        on_diagonal = eye(count, dtype=DType.BOOL)
    is_one = ne(scales, 0.0)
    v = where(expand_dims(is_one, -2), tril(packed, -1) + ones, 0.0)
    inverse = expand_dims(where(is_one, 1.0 / where(is_one, scales, 1.0), 1.0), -1)
    return _Panel(v, where(on_diagonal, inverse, triu(matmul(adjoint(v), v), 1)))


def reflectors(a: Any) -> tuple[Any, Any]:
    """The reflections of real or complex columns, packed, and their scales."""
    if not a.dtype.is_complex:
        packed, scales = Reflectors()(a)
        return packed, scales
    re, im, scales_re, scales_im = PairReflectors()(*parts(a))
    return MakeComplex()(re, im), MakeComplex()(scales_re, scales_im)


def qr_factors(a: Any, columns_of_q: int) -> tuple[Any, Any]:
    """Q, with so many columns, and R: panel by panel, each applied to all columns behind it at once."""
    rows, columns = a.shape[-2:]
    steps = min(rows, columns)
    panels: list[_Panel] = []
    lines: list[Any] = []
    rest = a
    for start in range(0, steps, PANEL):
        width = min(PANEL, steps - start)
        packed, scales = reflectors(narrow(rest, -1, 0, width))
        panels.append(_panel(packed, scales))
        behind = columns - start - width
        line = triu(narrow(packed, -2, 0, width))
        if behind:
            right = panels[-1].apply(narrow(rest, -1, width, behind), transposed=True)
            line = concat([line, narrow(right, -2, 0, width)], -1)
            rest = narrow(right, -2, width, rows - start - width)
        lines.append(_widened(line, start, 0))
    r = concat(lines, -2) if len(lines) > 1 else lines[0]
    missing = columns_of_q - steps
    if missing:
        r = pad_zeros(r, (0,) * r.ndim, (*(0,) * (r.ndim - 2), missing, 0))
    return _basis(panels, a, columns_of_q), r


def reflected(packed: Any, scales: Any, x: Any) -> Any:
    """The product of packed reflections times x: panel by panel, the last one first, each in the rows it changes."""
    rows, steps = x.shape[-2], scales.shape[-1]
    done: list[Any] = []
    end = rows
    for start in reversed(range(0, steps, PANEL)):
        width = min(PANEL, steps - start)
        directions = narrow(narrow(packed, -2, start, rows - start), -1, start, width)
        changed = concat([narrow(x, -2, start, end - start), *done], -2)
        done = [_panel(directions, narrow(scales, -1, start, width)).apply(changed, transposed=False)]
        end = start
    return done[0]


def _basis(panels: list[_Panel], a: Any, count: int) -> Any:
    """The product of the panels, the last one first, each in the rows and columns that it has to do with."""
    rows = a.shape[-2]
    start = (len(panels) - 1) * PANEL
    with same_graph(a):
        q = broadcast_to(eye(rows - start, count - start, dtype=a.dtype), (*a.shape[:-2], rows - start, count - start))
    for number, panel in reversed(list(enumerate(panels))):
        if number < len(panels) - 1:
            here = count - number * PANEL
            with same_graph(a):
                top = broadcast_to(eye(PANEL, here, dtype=a.dtype), (*a.shape[:-2], PANEL, here))
            q = concat([top, _widened(q, PANEL, 0)], -2)
        q = panel.apply(q, transposed=False)
    return q
