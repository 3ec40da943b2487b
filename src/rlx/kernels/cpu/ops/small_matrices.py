"""Small matrices by the batch: the lanes are matrices, and loops over rows and columns are written out.

One iteration takes some vectors of matrices, whose elements it gathers. Nothing depends on other lanes, so that every
matrix gets the same bits wherever it stands in the batch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import FLOATS, Value
from rlx.ops.lowered.factor_steps import SmallCholesky, SmallSolve

# Vectors of matrices for one parallel iteration.
VECTORS = 32


class Batch:
    """Some matrices side by side: their numbers are `first` and those behind it, as far as `mask` holds."""

    def __init__(self, site: OpSite, first: Value, lanes: int, mask: Value | None) -> None:
        self.k, self.first, self.lanes, self.mask = site.k, first, lanes, mask

    def load(self, slab: Slab, element: int, of: int) -> Value:
        """Element number `element` of each, of which they have `of`; in double precision."""
        k = self.k
        place = slab.offset + self.first * of + element
        value = k.load(slab.buffer, place, lanes=self.lanes, stride=of, mask=self.mask)
        return k.cast(value, DType.F64)

    def store(self, slab: Slab, element: int, of: int, value: Value) -> None:
        place = slab.offset + self.first * of + element
        self.k.store(slab.buffer, place, self.k.cast(value, slab.buffer.dtype), stride=of, mask=self.mask)


@contextmanager
def batches(site: OpSite, count: Value) -> Iterator[Callable[[Callable[[Batch], None]], None]]:
    """Deal out so many matrices; gives what visits them."""
    k = site.k
    lanes = site.machine.lanes(DType.F64)
    width = VECTORS * lanes
    with k.parallel("batch", k.ceildiv(count, width)) as number:
        start = number * width
        end = k.min(start + width, count)

        def visit(each: Callable[[Batch], None]) -> None:
            whole = start + (end - start) // lanes * lanes
            with k.loop("first", start, whole, lanes) as first:
                each(Batch(site, first, lanes, None))
            if lanes > 1:
                with k.loop("one", whole, end) as first:
                    each(Batch(site, first, 1, None))

        yield visit


def _are_small(op: Op, operands: Sequence[Shape]) -> bool:
    return all(t.dtype in FLOATS for t in operands)


@op_kernel(SmallSolve, kind="solve", supports=_are_small)
def small_solve(site: OpSite) -> None:
    """Gauss's elimination with partial pivoting: the larger of two rows moves up, lane by lane."""
    (a, b), (x, found) = site.inputs, site.outputs
    size = int(a.shape.dims[-1])
    columns = int(b.shape.dims[-1]) if b.shape.rank == a.shape.rank else 1

    def solve(batch: Batch) -> None:
        k = site.k
        rows = [
            [
                *(batch.load(a, i * size + j, size * size) for j in range(size)),
                *(batch.load(b, i * columns + j, size * columns) for j in range(columns)),
            ]
            for i in range(size)
        ]
        is_finite = reduce(operator.and_, (k.abs(x) < math.inf for row in rows for x in row[:size]))
        for p in range(size):
            for i in range(p + 1, size):
                is_larger = k.abs(rows[i][p]) > k.abs(rows[p][p])
                for j in range(p, size + columns):
                    upper, lower = rows[p][j], rows[i][j]
                    rows[p][j], rows[i][j] = k.select(is_larger, lower, upper), k.select(is_larger, upper, lower)
            head = rows[p][p]
            batch.store(found, p, size, k.ne(head, 0.0) | ~is_finite)
            for i in range(p + 1, size):
                factor = rows[i][p] / head
                for j in range(p + 1, size + columns):
                    rows[i][j] = rows[i][j] - factor * rows[p][j]
        for c in range(size, size + columns):
            known: list[Value] = []
            for i in reversed(range(size)):
                value = rows[i][c]
                for offset, solved in enumerate(known):
                    value = value - rows[i][size - 1 - offset] * solved
                known.append(value / rows[i][i])
            for i, value in enumerate(reversed(known)):
                batch.store(x, i * columns + c - size, size * columns, k.select(is_finite, value, math.nan))

    with batches(site, total(site.k, a.dims[:-2])) as visit:
        visit(solve)


def small_lu(site: OpSite) -> None:
    """LU with the pivots of `Lu`: the first element of largest modulus, NaN before all others."""
    (a,), (lu, pivots, permutation) = site.inputs, site.outputs
    size = int(a.shape.dims[-1])

    def decompose(batch: Batch) -> None:
        k = site.k
        rows = [[batch.load(a, i * size + j, size * size) for j in range(size)] for i in range(size)]
        order = [k.splat(k.as_index(i), batch.lanes) for i in range(size)]
        for p in range(size):
            best, where = k.abs(rows[p][p]), k.splat(k.as_index(p), batch.lanes)
            for i in range(p + 1, size):
                length = k.abs(rows[i][p])
                is_better = ~(length <= best) & k.eq(best, best)
                best, where = k.select(is_better, length, best), k.select(is_better, i, where)
            batch.store(pivots, p, size, where)
            for i in range(p + 1, size):
                is_here = k.eq(where, i)
                upper, lower = [*rows[p], order[p]], [*rows[i], order[i]]
                *rows[p], order[p] = (k.select(is_here, y, x) for x, y in zip(upper, lower))
                *rows[i], order[i] = (k.select(is_here, x, y) for x, y in zip(upper, lower))
            head = rows[p][p]
            has_pivot = k.ne(head, 0.0)
            for i in range(p + 1, size):
                factor = rows[i][p] / head
                rows[i][p] = k.select(has_pivot, factor, rows[i][p])
                for j in range(p + 1, size):
                    rows[i][j] = k.select(has_pivot, rows[i][j] - factor * rows[p][j], rows[i][j])
        for i in range(size):
            batch.store(permutation, i, size, order[i])
            for j in range(size):
                batch.store(lu, i * size + j, size * size, rows[i][j])

    with batches(site, total(site.k, a.dims[:-2])) as visit:
        visit(decompose)


@op_kernel(SmallCholesky, kind="factorize", supports=_are_small)
def small_cholesky(site: OpSite) -> None:
    """L row by row; see `CholeskyFactor` for what becomes of matrices that have none."""
    (a,), (factor, *found) = site.inputs, site.outputs
    size = int(a.shape.dims[-1])

    def decompose(batch: Batch) -> None:
        k = site.k
        rows: list[list[Value]] = []
        for i in range(size):
            row: list[Value] = []
            for j in range(i + 1):
                value = batch.load(a, i * size + j, size * size)
                other = row if i == j else rows[j]
                for p in range(j):
                    value = value - row[p] * other[p]
                row.append(k.sqrt(k.select(value <= 0.0, 0.0, value)) if i == j else value / rows[j][j])
            for pivots in found:
                batch.store(pivots, i, size, ~(value <= 0.0))
            rows.append(row)
        zero = k.splat(k.const(0.0, DType.F64), batch.lanes)
        for i in range(size):
            for j in range(size):
                batch.store(factor, i * size + j, size * size, rows[i][j] if j <= i else zero)

    with batches(site, total(site.k, a.dims[:-2])) as visit:
        visit(decompose)
