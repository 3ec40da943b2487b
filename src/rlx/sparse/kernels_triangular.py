"""CPU kernels of triangular systems and incomplete factorisations: row after row, since each needs those before it.

Threads share the right sides of a system. In a row columns ascend, so a triangle has its first entries, or its last.
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
        self.place = self.pattern.selects_from(self.pattern.rows)

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
        start, stop = self.triangle(row)
        begin = numbers.load(k, self.b, self.b.at(row, *tail), lanes, mask)
        with k.fold("entry", start, stop, init=list(begin)) as fold:
            value = numbers.splat(k, numbers.load(k, self.values, self.values.at(fold.index)), lanes)
            solved = numbers.load(k, self.x, self.x.at(self.place(fold.index), *tail), lanes, mask)
            fold.next(*numbers.multiply_subtract(k, value, solved, fold.values))
        total = fold.results
        if not self.op.unit_diagonal:
            pivot = sum_pivot(k, self.pattern, self.values, row)
            total = numbers.divide(k, total, numbers.splat(k, pivot, lanes))
        numbers.store(k, self.x, self.x.at(row, *tail), total, mask)

    def push(self, row: Value, tail: list[Value], lanes: int, mask: Value | None) -> None:
        """x[row] is known: take it out of those that are not."""
        k = self.k
        start, stop = self.triangle(row)
        value = numbers.load(k, self.x, self.x.at(row, *tail), lanes, mask)
        if not self.op.unit_diagonal:
            pivot = sum_pivot(k, self.pattern, self.values, row)
            value = numbers.divide(k, value, numbers.splat(k, pivot, lanes))
            numbers.store(k, self.x, self.x.at(row, *tail), value, mask)
        with k.loop("entry", start, stop) as entry:
            factor = numbers.splat(k, numbers.load(k, self.values, self.values.at(entry)), lanes)
            goal = self.x.at(self.place(entry), *tail)
            there = numbers.load(k, self.x, goal, lanes, mask)
            numbers.store(k, self.x, goal, numbers.multiply_subtract(k, factor, value, there), mask)

    def triangle(self, row: Value) -> tuple[Value, Value]:
        """The entries of a row that lie in the triangle, off the diagonal: the first ones, or the last ones.

        They are counted first: that needs no x, so it goes on while the last row is still being solved for.
        """
        k = self.k
        start, stop = self.pattern.span(row)
        here = k.cast(row, self.pattern.unsigned_dtype)
        with k.fold("column", start, stop, init=[k.as_index(0)]) as fold:
            column = self.pattern.unsigned(fold.index)
            in_triangle = column < here if self.op.lower else column > here
            fold.next(fold.values[0] + k.select(in_triangle, k.as_index(1), 0))
        count = fold.results[0]
        return (start, start + count) if self.op.lower else (stop - count, stop)


def sum_pivot(k: KernelBuilder, pattern: Pattern, values: Slab, row: Value) -> Number:
    """The sum of the entries on the diagonal in a row, which begins at 0 as that of the definition does."""
    start, stop = pattern.span(row)
    with k.fold("entry", start, stop, init=list(numbers.zero(k, values))) as fold:
        value = numbers.load(k, values, values.at(fold.index))
        is_pivot = k.eq(pattern.column(fold.index), row)
        fold.next(*numbers.choose(k, is_pivot, numbers.add(fold.values, value), fold.values))
    return fold.results


def find_pivot(k: KernelBuilder, pattern: Pattern, values: Slab, row: Value) -> Number:
    """The diagonal entry of a row, the last one of several, 0 where there is none."""
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
