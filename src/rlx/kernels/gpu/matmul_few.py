"""Products of few rows on a GPU: all that counts is that B is read once, in whole vectors, with much of it in flight.

Threads of a block share K. Where the columns of B lie side by side along K (a weight [n, k]), a block takes a few
columns and every thread adds up its part of each; where rows of B lie side by side (a weight [k, n]), a thread takes a
vector of columns and every so many-th row. The parts meet in shared memory, in an order that the shape alone decides;
where threads that run together add up their values by an instruction, one part of each of these groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, MatrixOperand, Product
from rlx.kernels.cpu.matmul.tiles import MatrixView
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.groups import OWN_WIDTH
from rlx.kernels.ir.loop_ir import Buffer, Const, Value, ValueType
from rlx.kernels.ir.subgroups import TYPES as SUBGROUP_TYPES

VECTOR_BYTES = 16
# Rows up to which a product is one of few rows.
FEW_ROWS = 8
# Columns of a block where columns lie side by side along K.
COLUMNS = 4
# Threads side by side along a row of B, and rows of it that a thread has on their way at the same time.
ROW_THREADS = 8
UNROLLED = 4
# Rows whose parts meet at the same time.
ROWS_AT_ONCE = 2

Store = Callable[[Value, Value, int, Sequence[Value]], None]


class FewForm(NamedTuple):
    """How B is read: along K or along its rows, `lanes` elements at a time, in whole vectors if `is_aligned`."""

    along_k: bool
    lanes: int
    is_aligned: bool

    def align(self, matrix: Matrix) -> int:
        """What the vectors of a matrix begin at multiples of, in bytes; 0 where nothing is known."""
        return min(VECTOR_BYTES, self.lanes * matrix.dtype.size_bytes) if self.is_aligned else 0

    def reads(self, product: Product) -> list[Matrix]:
        """The matrices that are read in vectors."""
        return [*([product.a] if self.along_k else []), *product.bs]


def few_form(product: Product) -> FewForm:
    """16 bytes at a time, where all that is read lies side by side and sizes are multiples of it."""
    bs = product.bs
    along_k = all(b.row_stride == 1 for b in bs) and any(b.col_stride != 1 for b in bs)
    is_plain = product.a.col_stride == 1 if along_k else all(b.col_stride == 1 for b in bs)
    form = FewForm(along_k, 1, False)
    if not is_plain:
        return form
    size = product.k if along_k else product.n
    lanes = VECTOR_BYTES // min(m.dtype.size_bytes for m in form.reads(product))
    while lanes > 1 and not (isinstance(size, int) and size % lanes == 0):
        lanes //= 2

    def begins_whole(matrix: Matrix) -> bool:
        other = matrix.col_stride if along_k and matrix is not product.a else matrix.row_stride
        return all(isinstance(s, int) and s % lanes == 0 for s in (other, matrix.batch_stride, matrix.offset))

    form = FewForm(along_k, lanes, False)
    return form._replace(is_aligned=lanes > 1 and all(map(begins_whole, form.reads(product))))


class FewRows:
    """The way for few rows of one product; `sizes` are m, n and k."""

    def __init__(
        self,
        k: KernelBuilder,
        a: MatrixOperand,
        bs: Sequence[MatrixOperand],
        sizes: tuple[Value, Value, Value],
        acc: DType,
        threads: int,
        form: FewForm,
        most: int = FEW_ROWS,
        has_subgroups: bool = False,
    ) -> None:
        self.has_subgroups = has_subgroups and form.along_k and acc in SUBGROUP_TYPES
        self.k, self.a, self.bs, self.acc, self.threads, self.form = k, a, bs, acc, threads, form
        self.most = most
        self.m, self.n, self.depth = sizes
        self.along_k, self.lanes = form.along_k, form.lanes

    def read(self, view: MatrixView, place: Value, matrix: Matrix) -> Value:
        """A vector of elements that lie side by side, from a place on."""
        return self.k.load(view.buffer, place, lanes=self.lanes, align=self.form.align(matrix))

    @property
    def columns(self) -> int:
        """Of a block."""
        return COLUMNS if self.along_k else ROW_THREADS * self.lanes

    def blocks(self) -> Value:
        return self.k.ceildiv(self.n, self.columns)

    def run(self, batch: Value, block: Value, thread: Value, store: Store) -> None:
        """The results of a block; for each number of rows its own code."""
        k, below = self.k, 0
        for rows in sorted({r for r in (1, 4) if r < self.most} | {self.most}):
            if isinstance(self.m, Const):
                if below < self.m.literal <= rows:
                    self.rows(rows, batch, block, thread, store)
            else:
                with k.when((self.m > below) & (self.m <= rows)):
                    self.rows(rows, batch, block, thread, store)
            below = rows

    def rows(self, count: int, batch: Value, block: Value, thread: Value, store: Store) -> None:
        """`count` rows, of which the last one stands in for those that are not there."""
        k = self.k
        zero = k.as_index(0)
        a = [self.a.at(batch, k.min(k.as_index(r), self.m - 1), zero) for r in range(count)]
        parts = self.by_columns(a, batch, block, thread) if self.along_k else self.by_rows(a, batch, block, thread)
        self.meet(count, parts, block, thread, store)

    def by_columns(self, a: Sequence[MatrixView], batch: Value, block: Value, thread: Value) -> list[list[Value]]:
        """One number for each row and each column of the block, [row][b * COLUMNS + column]."""
        k, lanes = self.k, self.lanes
        first = block * COLUMNS
        # Few sums stay vectors, each lane by itself; many would not fit into the registers.
        width = lanes if len(a) == 1 else 1
        zero = k.const(0, ValueType(self.acc, width))
        columns = [k.min(first + c, self.n - 1) for c in range(COLUMNS)]
        lines = [(b.matrix, b.at(batch, k.as_index(0), column)) for b in self.bs for column in columns]
        sums: list[Value] = [zero] * (len(a) * len(lines))
        with k.fold("p", thread * lanes, self.depth, self.threads * lanes, init=sums) as fold:
            x = [k.cast(self.read(r, r.at(0, fold.index), self.a.matrix), self.acc) for r in a]
            w = [k.cast(self.read(c, c.at(fold.index, 0), matrix), self.acc) for matrix, c in lines]
            pairs = [(row, column) for row in x for column in w]
            fold.next(*(self.added(row, column, s) for (row, column), s in zip(pairs, fold.values)))
        joined = [k.reduce("add", value) for value in fold.results]
        return [joined[r * len(lines) : (r + 1) * len(lines)] for r in range(len(a))]

    def by_rows(self, a: Sequence[MatrixView], batch: Value, block: Value, thread: Value) -> list[list[Value]]:
        """One vector of neighbouring columns for each row and each B, [row][b]."""
        k, lanes = self.k, self.lanes
        column = k.min(block * self.columns + thread % ROW_THREADS * lanes, self.n - lanes)
        lines = [(b.matrix, b.at(batch, k.as_index(0), column)) for b in self.bs]
        step = self.threads // ROW_THREADS
        zero = k.const(0, ValueType(self.acc, lanes))

        def added(start: Value, rows: int, sums: Sequence[Value]) -> list[Value]:
            totals = list(sums)
            w = [[self.read(c, c.at(start + i * step, 0), matrix) for matrix, c in lines] for i in range(rows)]
            for i in range(rows):
                number = 0
                for row in a:
                    x = k.splat(k.cast(k.load(row.buffer, row.at(0, start + i * step)), self.acc), lanes)
                    for vector in w[i]:
                        totals[number] = self.multiply_add(x, k.cast(vector, self.acc), totals[number])
                        number += 1
            return totals

        sums: list[Value] = [zero] * (len(a) * len(lines))
        many = step * UNROLLED
        whole = self.depth // many * many
        start = thread // ROW_THREADS
        with k.fold("p", start, whole, many, init=sums) as fold:
            fold.next(*added(fold.index, UNROLLED, fold.values))
        with k.fold("p", whole + start, self.depth, step, init=fold.results) as rest:
            rest.next(*added(rest.index, 1, rest.values))
        return [list(rest.results[r * len(lines) : (r + 1) * len(lines)]) for r in range(len(a))]

    def added(self, a: Value, b: Value, total: Value) -> Value:
        """The products of two vectors added to a vector, or one by one to a number."""
        if total.lanes == a.lanes:
            return self.multiply_add(a, b, total)
        for lane in range(a.lanes):
            total = self.multiply_add(self.k.extract(a, lane), self.k.extract(b, lane), total)
        return total

    def multiply_add(self, a: Value, b: Value, total: Value) -> Value:
        return self.k.fma(a, b, total) if self.acc.is_float else total + a * b

    def meet(self, count: int, parts: Sequence[Sequence[Value]], block: Value, thread: Value, store: Store) -> None:
        """Add up the parts of all threads, some rows at a time, and store them: a thread for each element."""
        k = self.k
        if self.has_subgroups:
            self.meet_subgroups(parts, block, thread, store)
            return
        if self.along_k:
            at_once = min(count, ROWS_AT_ONCE)
            exchange = _Exchange(self.threads, at_once * COLUMNS, 1, self.threads)
        else:
            at_once = 1
            exchange = _Exchange(self.threads // ROW_THREADS, self.columns, self.columns, 1)
        for first in range(0, count, at_once):
            for number, buffer in enumerate(self.buffers):
                self.put(buffer, parts[first : first + at_once], number, thread)
            k.barrier()
            self.join(exchange, thread)
            row, column = (thread // self.columns, thread % self.columns) if at_once > 1 else (k.as_index(0), thread)
            row, column = row + first, block * self.columns + column
            with k.when((thread < exchange.columns) & (column < self.n) & (row < self.m)):
                store(row, column, 1, [k.load(b, thread * exchange.column_step) for b in self.buffers])
            # The next rows begin when these have been read.
            k.barrier()

    def meet_subgroups(self, parts: Sequence[Sequence[Value]], block: Value, thread: Value, store: Store) -> None:
        """The same with one part of each subgroup in shared memory; a thread for each column adds these up."""
        k = self.k
        assert isinstance(k, GroupBuilder)
        for row, values in enumerate(parts):
            place = k.subgroup_place()
            sums = [k.exchange("add", value, width=OWN_WIDTH) for value in values]
            with k.when(k.eq(place.lane, 0)):
                for number, value in enumerate(sums):
                    start = number % COLUMNS * self.threads
                    k.store(self.buffers[number // COLUMNS], place.number + start, value)
            k.barrier()
            column = block * COLUMNS + thread
            with k.when((thread < COLUMNS) & (column < self.n) & (k.as_index(row) < self.m)):
                zero = k.const(0, self.acc)
                with k.fold("subgroup", 0, place.count, init=[zero] * len(self.buffers)) as fold:
                    found = [k.load(b, fold.index + thread * self.threads) for b in self.buffers]
                    fold.next(*(total + part for total, part in zip(fold.values, found)))
                store(k.as_index(row), column, 1, fold.results)
            # The next row begins when this one has been read.
            k.barrier()

    @cached_property
    def buffers(self) -> list[Buffer]:
        """Memory for the parts of each B, the same for every number of rows."""
        per_thread = ROWS_AT_ONCE * COLUMNS if self.along_k else self.lanes
        return [self.k.shared(f"parts{b}", self.acc, self.threads * per_thread) for b in range(len(self.bs))]

    def put(self, buffer: Buffer, rows: Sequence[Sequence[Value]], number: int, thread: Value) -> None:
        """What this thread has for some rows, of the B of that number."""
        k = self.k
        if not self.along_k:
            place = thread // ROW_THREADS * self.columns + thread % ROW_THREADS * self.lanes
            k.store(buffer, place, rows[0][number])
            return
        values = [row[number * COLUMNS + c] for row in rows for c in range(COLUMNS)]
        for column, value in enumerate(values):
            k.store(buffer, thread + column * self.threads, value)

    def join(self, exchange: _Exchange, thread: Value) -> None:
        """Fold shares until one is left, up to 16 of a column by one thread."""
        k, (shares, columns, share_step, column_step) = self.k, exchange
        while shares > 1:
            factor = min(16, shares)
            shares //= factor
            work = shares * columns
            for start in range(0, work, self.threads):
                item = thread + start
                with k.when(item < work):
                    place = item % columns * column_step + item // columns * share_step
                    for buffer in self.buffers:
                        values = [k.load(buffer, place + i * shares * share_step) for i in range(factor)]
                        while len(values) > 1:
                            half = len(values) // 2
                            values = [a + b for a, b in zip(values[:half], values[half:])]
                        k.store(buffer, place, values[0])
            k.barrier()


class _Exchange(NamedTuple):
    """Parts in shared memory: `shares` of each of so many columns, and how far from each other they lie."""

    shares: int
    columns: int
    share_step: int
    column_step: int
