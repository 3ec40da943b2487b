"""CPU kernels of products with a matrix in compressed rows.

Rows are dealt out in chunks of equal work, where a row costs one more than its entries, so that neither long rows nor
many empty ones make a chunk heavy. Every row belongs to one chunk and every sum to one row: the result is the same for
any number of threads. Columns from outside are cut to the operand that they select from before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Const, Value
from rlx.sparse import kernel_numbers as numbers
from rlx.sparse.kernel_numbers import Number, Pattern
from rlx.sparse.ops_products import CsrMatMul, CsrRowIds, CsrSampledProduct, CsrTransposedMatMul

# Rows and entries of one parallel iteration, some tens of microseconds of memory traffic; and of a thread of a GPU.
CHUNK = 32768
GPU_CHUNK = 32
# Products of a long row that are summed side by side, so that one addition need not wait for the last. Where a loop
# ends is hard to predict: there is one for each row, and what is left of a long one is summed without.
SIDE_BY_SIDE = 4
LONG = 8
# Vectors of columns that are summed at once.
VECTORS = 4

# Threads of a warp of a GPU, and warps of a block.
WARP, WARPS = 32, 4

# What is done with some columns: the first, the lanes of a vector, the number of vectors, and which exist (None: all).
# Where an entry reads; see `Pattern.selects_from`.
Place = Callable[[Value], Value]
ColumnStep = Callable[[Value, int, int, Value | None], None]


class Row(NamedTuple):
    """A row that an iteration works on, and where its entries begin and end."""

    number: Value
    start: Value
    stop: Value


@contextmanager
def balanced_rows(site: OpSite, pattern: Pattern, columns: Value, size: Value | None = None) -> Iterator[Row]:
    """Deal out all rows in chunks of equal work; one entry costs as many columns as there are.

    Rows have no entries where their columns select from an axis of `size` 0.
    """
    k = site.k
    on_cpu = k.max(256, k.as_index(8 * CHUNK) // k.max(columns, 8))
    chunk = k.as_index(GPU_CHUNK) if site.machine.is_gpu else on_cpu
    with k.parallel("chunk", (pattern.rows + pattern.count + (chunk - 1)) // chunk) as number:
        first, last = pattern.first_row(number * chunk), pattern.first_row((number + 1) * chunk)
        with k.fold("row", first, last, init=[pattern.bound(first)]) as fold:
            row, start = fold.index, fold.values[0]
            stop = k.max(start, pattern.bound(row + 1))
            yield Row(row, start, stop if size is None else pattern.up_to(start, stop, size))
            fold.next(stop)


@op_kernel(CsrMatMul, kind="sparse")
def csr_matmul(site: OpSite) -> None:
    k, (values, indices, indptr, x), (y,) = site.k, site.inputs, site.outputs
    pattern = Pattern(k, indices, indptr)
    place = pattern.selects_from(x.dims[0])
    if len(x.dims) == 1:
        with balanced_rows(site, pattern, k.as_index(1), x.dims[0]) as row:
            numbers.store(k, y, y.at(row.number), _row_sum(k, values, x, row, place))
        return

    if site.machine.gpu == "nvptx":
        _rows_of_warps(site, pattern, place)
        return
    with balanced_rows(site, pattern, x.dims[1], x.dims[0]) as row:
        for_columns(site, x, lambda *columns: _row_sums(site, row, place, *columns))


def _rows_of_warps(site: OpSite, pattern: Pattern, place: Place) -> None:
    """A row of A X is the work of a warp of a GPU: its threads read neighbouring columns of X, of a few entries at
    once, and add them one after the other."""
    k, (values, _, _, x), (y,) = site.k, site.inputs, site.outputs
    columns, zero = x.dims[1], numbers.zero(site.k, x)
    each = 1 if isinstance(columns, Const) and int(columns.literal) <= WARP else 2
    parts = len(zero)
    with (
        k.parallel("rows", k.ceildiv(pattern.rows, WARPS)) as block,
        k.threads("thread", WARP * WARPS) as thread,
        k.when(block * WARPS + thread // WARP < pattern.rows),
    ):
        row = block * WARPS + thread // WARP
        start, stop = pattern.readable(row, x.dims[0])
        whole = start + ((stop - start) & -SIDE_BY_SIDE)
        with k.loop("column", thread % WARP, columns, WARP * each) as first:
            own = [first, *(k.min(first + i * WARP, columns - 1) for i in range(1, each))]

            def added(entries: list[Value], totals: Number, own: list[Value] = own) -> list[Value]:
                factors = [numbers.load(k, values, values.at(entry)) for entry in entries]
                sources = [place(entry) for entry in entries]
                known = [[numbers.load(k, x, x.at(source, column)) for column in own] for source in sources]
                sums = [totals[i * parts : (i + 1) * parts] for i in range(each)]
                for factor, row_of_x in zip(factors, known):
                    sums = [numbers.multiply_add(k, factor, a, total) for a, total in zip(row_of_x, sums)]
                return [value for total in sums for value in total]

            with k.fold("entry", start, whole, SIDE_BY_SIDE, init=list(zero) * each) as fold:
                fold.next(*added([fold.index + i for i in range(SIDE_BY_SIDE)], fold.values))
            with k.fold("entry", whole, stop, init=list(fold.results)) as rest:
                rest.next(*added([rest.index], rest.values))
            for i in range(each):
                with k.when(first + i * WARP < columns):
                    numbers.store(k, y, y.at(row, first + i * WARP), rest.results[i * parts : (i + 1) * parts])


def _row_sum(k: KernelBuilder, values: Slab, x: Slab, row: Row, place: Place) -> Number:
    """Σ value · x[column] over the entries of a row."""
    zero = numbers.zero(k, x)
    parts = len(zero)

    def pair(entry: Value) -> tuple[Number, Number]:
        return numbers.load(k, values, values.at(entry)), numbers.load(k, x, x.at(place(entry)))

    def short() -> Number:
        with k.fold("entry", row.start, row.stop, init=list(zero)) as fold:
            fold.next(*numbers.multiply_add(k, *pair(fold.index), fold.values))
        return fold.results

    def long() -> Number:
        whole = row.start + ((row.stop - row.start) & -SIDE_BY_SIDE)
        with k.fold("entry", row.start, whole, SIDE_BY_SIDE, init=list(zero) * SIDE_BY_SIDE) as fold:
            totals = [fold.values[i * parts : (i + 1) * parts] for i in range(SIDE_BY_SIDE)]
            moved = [numbers.multiply_add(k, *pair(fold.index + i), total) for i, total in enumerate(totals)]
            fold.next(*(value for total in moved for value in total))
        totals = [fold.results[i * parts : (i + 1) * parts] for i in range(SIDE_BY_SIDE)]
        for i in range(SIDE_BY_SIDE - 1):
            # The last entry stands in for those that are not there, and counts as 0·0 then.
            exists = whole + i < row.stop
            value, known = (numbers.choose(k, exists, a, zero) for a in pair(k.min(whole + i, row.stop - 1)))
            totals[i] = numbers.multiply_add(k, value, known, totals[i])
        return numbers.add(numbers.add(totals[0], totals[1]), numbers.add(totals[2], totals[3]))

    return k.choose(row.stop - row.start < LONG, short, long)


def for_columns(site: OpSite, x: Slab, step: ColumnStep, vectors: int = VECTORS) -> None:
    """Visit the columns of a matrix: several vectors at once, then one vector at a time, then what is left, masked."""
    k, columns = site.k, x.dims[1]
    dtype = x.buffer.dtype
    lanes = site.machine.lanes(dtype)
    wide = lanes * vectors
    whole, single = columns // wide * wide, columns // lanes * lanes
    with k.loop("columns", 0, whole, wide) as first:
        step(first, lanes, vectors, None)
    with k.loop("columns", whole, single, lanes) as first:
        step(first, lanes, 1, None)
    if isinstance(columns, Const) and int(columns.literal) % lanes == 0:
        return
    if lanes > 1 and site.machine.has_masked_access(dtype):
        with k.when(single < columns):
            step(single, lanes, 1, k.lane_mask(columns - single, lanes))
    else:
        with k.loop("columns", single, columns) as first:
            step(first, 1, 1, None)


def _row_sums(site: OpSite, row: Row, place: Place, first: Value, lanes: int, count: int, mask: Value | None) -> None:
    """Some columns of one row of A X: for each entry, its value times a row of X."""
    k, (values, _, _, x), (y,) = site.k, site.inputs, site.outputs
    zero = numbers.zero(k, x, lanes)
    parts = len(zero)
    with k.fold("entry", row.start, row.stop, init=list(zero) * count) as fold:
        source = x.at(place(fold.index), first)
        factor = numbers.splat(k, numbers.load(k, values, values.at(fold.index)), lanes)
        sums: list[Value] = []
        for i in range(count):
            known = numbers.load(k, x, source + i * lanes, lanes, mask)
            sums += numbers.multiply_add(k, factor, known, fold.values[i * parts : (i + 1) * parts])
        fold.next(*sums)
    for i in range(count):
        numbers.store(k, y, y.at(row.number, first + i * lanes), fold.results[i * parts : (i + 1) * parts], mask)


@op_kernel(CsrTransposedMatMul, kind="sparse")
def csr_transposed_matmul(site: OpSite) -> None:
    """y[column] += value · x[row], entry by entry; threads share the columns of x."""
    k, (values, indices, indptr, x), (y,) = site.k, site.inputs, site.outputs
    pattern = Pattern(k, indices, indptr)
    place = pattern.selects_from(y.dims[0])

    def scatter(first: Value, lanes: int, mask: Value | None) -> None:
        tail = [first] * (len(x.dims) - 1)
        with k.loop("column", 0, y.dims[0]) as column:
            numbers.store(k, y, y.at(column, *tail), numbers.zero(k, y, lanes), mask)
        with k.loop("row", 0, pattern.rows) as row:
            start, stop = pattern.readable(row, y.dims[0])
            known = numbers.load(k, x, x.at(row, *tail), lanes, mask)
            with k.loop("entry", start, stop) as entry:
                factor = numbers.splat(k, numbers.load(k, values, values.at(entry)), lanes)
                goal = y.at(place(entry), *tail)
                there = numbers.load(k, y, goal, lanes, mask)
                numbers.store(k, y, goal, numbers.multiply_add(k, factor, known, there), mask)

    if len(x.dims) == 1:
        with k.parallel("all", 1):
            scatter(k.as_index(0), 1, None)
        return
    lanes = site.machine.lanes(x.buffer.dtype)
    if not site.machine.has_masked_access(x.buffer.dtype):
        lanes = 1
    with k.parallel("columns", k.ceildiv(x.dims[1], lanes)) as block:
        first = block * lanes
        scatter(first, lanes, k.lane_mask(x.dims[1] - first, lanes) if lanes > 1 else None)


@op_kernel(CsrSampledProduct, kind="sparse")
def csr_sampled_product(site: OpSite) -> None:
    """The scalar product of a row of u with the row of v that each entry selects."""
    k, (indices, indptr, u, v), (y,) = site.k, site.inputs, site.outputs
    pattern = Pattern(k, indices, indptr)
    width = u.dims[1] if len(u.dims) == 2 else k.as_index(1)
    place = pattern.selects_from(v.dims[0])
    with (
        balanced_rows(site, pattern, width, v.dims[0]) as row,
        k.loop("entry", row.start, row.stop) as entry,
    ):
        numbers.store(k, y, y.at(entry), _dot(site, row.number, place(entry)))


def _dot(site: OpSite, row: Value, column: Value) -> Number:
    k, (_, _, u, v) = site.k, site.inputs
    if len(u.dims) == 1:
        return numbers.multiply_add(
            k, numbers.load(k, u, u.at(row)), numbers.load(k, v, v.at(column)), numbers.zero(k, u)
        )
    width = u.dims[1]
    lanes = site.machine.lanes(u.buffer.dtype)
    whole = width // lanes * lanes
    with k.fold("c", 0, whole, lanes, init=list(numbers.zero(k, u, lanes))) as fold:
        left, right = (numbers.load(k, s, s.at(i, fold.index), lanes) for s, i in ((u, row), (v, column)))
        fold.next(*numbers.multiply_add(k, left, right, fold.values))
    total = [k.reduce("add", part) for part in fold.results]
    with k.fold("c", whole, width, init=total) as rest:
        left, right = (numbers.load(k, s, s.at(i, rest.index)) for s, i in ((u, row), (v, column)))
        rest.next(*numbers.multiply_add(k, left, right, rest.values))
    return rest.results


@op_kernel(CsrRowIds, kind="sparse")
def csr_row_ids(site: OpSite) -> None:
    """Rows write their number to all their entries."""
    k, (indptr,), (y,) = site.k, site.inputs, site.outputs
    pattern = Pattern(k, y, indptr)
    with balanced_rows(site, pattern, k.as_index(1)) as row, k.loop("entry", row.start, row.stop) as entry:
        k.store(y.buffer, y.at(entry), k.cast(row.number, y.shape.dtype))
