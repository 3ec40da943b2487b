"""CPU kernels of triangular systems and incomplete factorisations: row after row, since each needs those before it.

Threads share the right sides of a system. Rows are read in their order, so columns that are not before the row that is
worked on end the part of it that is read; a column out of range is never read.
"""

from __future__ import annotations

from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value
from rlx.sparse import kernel_numbers as numbers
from rlx.sparse.kernel_numbers import Number, Pattern, merged
from rlx.sparse.ops_triangular import CsrIncompleteCholesky, CsrIncompleteLu, CsrTriangularSolve


@op_kernel(CsrTriangularSolve, kind="sparse")
def csr_triangular_solve(site: OpSite) -> None:
    _Substitution(site).build()


class _Substitution:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, CsrTriangularSolve)
        self.site, self.k, self.op = site, site.k, site.op
        (self.values, indices, indptr, self.b), (self.x,) = site.inputs, site.outputs
        self.pattern = Pattern(self.k, indices, indptr)

    def build(self) -> None:
        k, b = self.k, self.b
        if len(b.dims) == 1:
            with k.parallel("all", 1):
                self.solve(k.as_index(0), 1, None)
            return
        dtype = b.buffer.dtype
        lanes = self.site.machine.lanes(dtype) if self.site.machine.has_masked_access(dtype) else 1
        with k.parallel("columns", k.ceildiv(b.dims[1], lanes)) as block:
            first = block * lanes
            self.solve(first, lanes, k.lane_mask(b.dims[1] - first, lanes) if lanes > 1 else None)

    def solve(self, first: Value, lanes: int, mask: Value | None) -> None:
        k, rows = self.k, self.pattern.rows
        tail = [first] * (len(self.b.dims) - 1)
        if self.op.transpose:
            with k.loop("row", 0, rows) as row:
                value = numbers.load(k, self.b, self.b.at(row, *tail), lanes, mask)
                numbers.store(k, self.x, self.x.at(row, *tail), value, mask)
        with k.loop("step", 0, rows) as step:
            row = step if self.op.lower != self.op.transpose else rows - 1 - step
            (self.push if self.op.transpose else self.pull)(row, tail, lanes, mask)

    def pull(self, row: Value, tail: list[Value], lanes: int, mask: Value | None) -> None:
        """x[row] from those that are known already."""
        k = self.k
        start, stop = self.pattern.span(row)
        begin = numbers.load(k, self.b, self.b.at(row, *tail), lanes, mask)
        nothing = numbers.zero(k, self.values)
        with k.fold("entry", start, stop, init=[*begin, *nothing]) as fold:
            total, pivot = fold.values[: len(begin)], fold.values[len(begin) :]
            column = self.pattern.column(fold.index)
            value = numbers.load(k, self.values, self.values.at(fold.index))
            known = self.is_known(column, row)
            place = self.x.at(k.select(known, column, row), *tail)
            solved = numbers.load(k, self.x, place, lanes, mask)
            rest = numbers.multiply_subtract(k, numbers.splat(k, value, lanes), solved, total)
            here = k.splat(known, lanes)
            fold.next(*numbers.choose(k, here, rest, total), *numbers.choose(k, k.eq(column, row), value, pivot))
        total, pivot = fold.results[: len(begin)], fold.results[len(begin) :]
        if not self.op.unit_diagonal:
            total = numbers.divide(k, total, numbers.splat(k, pivot, lanes))
        numbers.store(k, self.x, self.x.at(row, *tail), total, mask)

    def push(self, row: Value, tail: list[Value], lanes: int, mask: Value | None) -> None:
        """x[row] is known: take it out of those that are not."""
        k = self.k
        start, stop = self.pattern.span(row)
        value = numbers.load(k, self.x, self.x.at(row, *tail), lanes, mask)
        if not self.op.unit_diagonal:
            pivot = find_pivot(k, self.pattern, self.values, row)
            value = numbers.divide(k, value, numbers.splat(k, pivot, lanes))
            numbers.store(k, self.x, self.x.at(row, *tail), value, mask)
        with k.loop("entry", start, stop) as entry:
            column = self.pattern.column(entry)
            with k.when(self.is_known(column, row)):
                factor = numbers.splat(k, numbers.load(k, self.values, self.values.at(entry)), lanes)
                goal = self.x.at(column, *tail)
                there = numbers.load(k, self.x, goal, lanes, mask)
                numbers.store(k, self.x, goal, numbers.multiply_subtract(k, factor, value, there), mask)

    def is_known(self, column: Value, row: Value) -> Value:
        """Whether an entry lies in the triangle, off the diagonal."""
        if self.op.lower:
            return (column >= 0) & (column < row)
        return (column > row) & (column < self.pattern.rows)


def find_pivot(k: KernelBuilder, pattern: Pattern, values: Slab, row: Value) -> Number:
    """The diagonal entry of a row, 0 where there is none."""
    start, stop = pattern.span(row)
    with k.fold("entry", start, stop, init=list(numbers.zero(k, values))) as fold:
        value = numbers.load(k, values, values.at(fold.index))
        fold.next(*numbers.choose(k, k.eq(pattern.column(fold.index), row), value, fold.values))
    return fold.results


@op_kernel(CsrIncompleteLu, kind="sparse")
def csr_incomplete_lu(site: OpSite) -> None:
    """Row by row: for each entry left of the diagonal, its multiple of a finished row is taken away."""
    k, (values, indices, indptr), (y,) = site.k, site.inputs, site.outputs
    pattern = Pattern(k, indices, indptr)
    with k.parallel("all", 1):
        with k.loop("entry", 0, pattern.count) as entry:
            numbers.store(k, y, y.at(entry), numbers.load(k, values, values.at(entry)))
        with k.loop("row", 0, pattern.rows) as row:
            start, stop = pattern.span(row)
            with k.loop("entry", start, stop) as entry:
                column = pattern.column(entry)
                with k.when((column >= 0) & (column < row)):
                    pivot = find_pivot(k, pattern, y, column)
                    factor = numbers.divide(k, numbers.load(k, y, y.at(entry)), pivot)
                    numbers.store(k, y, y.at(entry), factor)
                    above, above_end = pattern.span(column)

                    def meet(i: Value, j: Value, carried: Number, at: Value = column) -> Number:
                        # Entries of the finished row that are right of its diagonal.
                        with k.when(pattern.column(j) > at):
                            there = numbers.load(k, y, y.at(i))
                            term = numbers.load(k, y, y.at(j))
                            numbers.store(k, y, y.at(i), numbers.multiply_subtract(k, factor, term, there))
                        return carried

                    merged(k, (pattern, pattern), ((entry + 1, stop), (above, above_end)), (), meet)


@op_kernel(CsrIncompleteCholesky, kind="sparse")
def csr_incomplete_cholesky(site: OpSite) -> None:
    """L[i, j] = (A[i, j] - Σ L[i, t]·conj(L[j, t])) / L[j, j], over the t < j that both rows have."""
    k, (values, indices, indptr), (y,) = site.k, site.inputs, site.outputs
    pattern = Pattern(k, indices, indptr)
    with k.parallel("all", 1), k.loop("row", 0, pattern.rows) as row:
        start, stop = pattern.span(row)
        with k.loop("entry", start, stop) as entry:
            numbers.store(k, y, y.at(entry), numbers.zero(k, y))
        with k.loop("entry", start, stop) as entry:
            column = pattern.column(entry)
            with k.when((column >= 0) & (column <= row)):
                value = numbers.load(k, values, values.at(entry))
                above, above_end = pattern.span(column)
                # In its own row, what is behind the diagonal entry has not been reached, and is 0.
                spans = ((start, entry), (above, above_end))

                def meet(i: Value, j: Value, carried: Number) -> Number:
                    one, other = numbers.load(k, y, y.at(i)), numbers.load(k, y, y.at(j))
                    return numbers.multiply_subtract(k, one, numbers.conjugate(other), carried)

                rest = merged(k, (pattern, pattern), spans, value, meet)
                with k.when(k.eq(column, row)):
                    root = k.sqrt(rest[0])
                    numbers.store(k, y, y.at(entry), (root, *numbers.zero(k, y)[1:]))
                with k.otherwise():
                    pivot = find_pivot(k, pattern, y, column)
                    numbers.store(k, y, y.at(entry), numbers.divide(k, rest, pivot))
