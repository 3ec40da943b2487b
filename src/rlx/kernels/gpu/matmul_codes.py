"""`gpu_codes_kernel`: products with GGUF weights straight from their panels (`rlx.quant.panels`), a column per thread.

A thread walks along K of its column: every code becomes a number once and meets a few rows of A. Neighbouring threads
have neighbouring columns of a panel, whose words lie side by side. No weight is ever stored as floats. Where each row
has the matrix of its own expert, a block has rows of one expert, which it finds in the `Route`.

Where the machine has dot products of bytes, a single row is multiplied in whole numbers, as `quant_digits` of CPUs
does: the threads of a block put the digits of its records into shared memory, each record with a scale of its own, and
codes meet them four at a time as they are stored.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import MatrixOperand, Product
from rlx.kernels.cpu.matmul.route import Route, RoutedRows
from rlx.kernels.cpu.quant_codes import CHUNK, Codes, Panel
from rlx.kernels.cpu.quant_digits import DIGITS, DigitRow, has_digits
from rlx.kernels.gpu.matmul import store_elements
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extents
from rlx.kernels.ir.loop_ir import Const, Kernel, Value
from rlx.kernels.machines import Machine
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

THREADS = 64
# Rows that a thread has sums for; a single row has code of its own.
ROWS = 4


class CodesOrigin(NamedTuple):
    """What a kernel with stored blocks was made of: the product, the type of its sums, and how B is stored."""

    product: Product
    acc: DType
    layout: PanelFormat


def gpu_codes_kernel(name: str, machine: Machine, layout: PanelFormat, product: Product, experts: int = 0) -> Kernel:
    """C[m, n] = epilogue(A[m, k] @ W), where B is u8 and holds the panels of W[k, n]; with `experts` those of the W of
    each of them, one `batch_stride` after the other, and the pointer of the route follows those of the product."""
    return _Maker(name, machine, layout, product, experts).build()


class _Rows(NamedTuple):
    """Rows of A and C that a thread has sums for, which of them are there, and whose B they meet."""

    rows: list[Value]
    exist: list[Value]
    batch: Value  # of A and C
    matrix: Value  # of B


class _Maker:
    def __init__(self, name: str, machine: Machine, layout: PanelFormat, product: Product, experts: int) -> None:
        k = self.k = KernelBuilder(name)
        self.layout, self.product, self.machine = layout, product, machine
        self.a = MatrixOperand(k, product.a)
        self.bs = [MatrixOperand(k, b) for b in product.bs]
        # An operand of the epilogue may be C itself: each element is read before it is written.
        self.cs = [MatrixOperand(k, c, write=True, noalias=False) for c in product.cs]
        operands = product.epilogue.operands if product.epilogue else ()
        self.extra = [MatrixOperand(k, operand, noalias=False) for operand in operands]
        lists = k.pointer("route", DType.I32) if experts else None
        extents = Extents(k)
        sizes = (product.m, product.n, product.k, product.batch)
        self.m, self.n, _, self.batches = (extents(s) for s in sizes)
        for operand in (self.a, *self.bs, *self.cs, *self.extra):
            operand.declare_strides(extents)
        self.codes = [Codes(k, machine, layout, b.buffer, lanes=1) for b in self.bs]
        self.route = None if lists is None else Route(k, lists, experts, self.m)

    def build(self) -> Kernel:
        k = self.k
        column_blocks = k.ceildiv(self.n, THREADS)
        tiles = column_blocks * (k.ceildiv(self.m, ROWS) if self.route is None else self.route.most_blocks(ROWS))
        with k.parallel("block", tiles * self.batches) as block, k.threads("thread", THREADS) as thread:
            batch, tile = block // tiles, block % tiles
            column = tile % column_blocks * THREADS + thread
            for codes in self.codes:
                codes.load_tables()
            number = tile // column_blocks
            row = number * ROWS
            if self.route is not None:
                self.routed(self.route, self.route.block(number, ROWS), column)
            elif isinstance(self.m, Const):
                self.rows(min(ROWS, int(self.m.literal)), batch, row, column, thread)
            else:
                with k.when(self.m <= 1):
                    self.rows(1, batch, row, column, thread)
                with k.otherwise():
                    self.rows(ROWS, batch, row, column, thread)
        return k.build()

    def rows(self, count: int, batch: Value, row: Value, column: Value, thread: Value) -> None:
        k, is_plain = self.k, self.product.a.col_stride == 1 and not self.layout.table
        if count == 1 and is_plain and has_digits(self.machine, self.layout, 1):
            self.digit_row(batch, column, thread)
            return
        with k.when(column < self.n):
            # The last row stands in for those that are not there.
            rows = [k.min(row + r, self.m - 1) for r in range(count)]
            self.float_rows(_Rows(rows, [row + r < self.m for r in range(count)], batch, batch), column)

    def routed(self, route: Route, block: RoutedRows, column: Value) -> None:
        """Rows of one expert; a single one, as when a token is decoded, has code of its own."""
        k, zero = self.k, self.k.as_index(0)
        last = block.first + block.height - 1

        def some(count: int) -> None:
            rows = [route.row(k.min(block.first + r, last)) for r in range(count)]
            exist = [block.height > r for r in range(count)]
            self.float_rows(_Rows(rows, exist, zero, block.expert), column)

        with k.when((block.height > 0) & (column < self.n)):
            with k.when(block.height <= 1):
                some(1)
            with k.otherwise():
                some(ROWS)

    def base(self, number: int, batch: Value, column: Value) -> Value:
        """Where the panel with a column of a B begins."""
        b, depth = self.bs[number], self.product.weight_shape[0]
        return b.offset + batch * b.strides[0] + column // PANEL_ROWS * self.layout.panel_bytes(depth)

    def digit_row(self, batch: Value, column: Value, thread: Value) -> None:
        """One row: some records of it at a time as digits in shared memory, a thread for each of them."""
        k, zero = self.k, self.k.as_index(0)
        words, scales = k.shared("digits", DType.I32, THREADS * RECORD), k.shared("digit_scales", DType.F32, THREADS)
        digits = _SharedDigits(k, self.layout, words, 1, THREADS, row_lanes=DIGITS)
        records = self.product.weight_shape[0] // RECORD
        row = self.a.at(batch, zero, zero)
        # Threads without a column of their own help with the row; they read the last one.
        here = k.min(column, self.n - 1)
        panels = [Panel(c, self.base(n, batch, here), here % PANEL_ROWS) for n, c in enumerate(self.codes)]
        sums: list[Value] = [k.const(0.0, DType.F32)] * len(self.bs)
        with k.fold("first", 0, records, THREADS, init=sums) as parts:
            k.barrier()
            own = parts.index + thread
            with k.when(own < records):
                k.store(scales, thread, digits.take_record(row, own, thread))
            k.barrier()
            stop = k.min(parts.index + THREADS, records)
            with k.fold("record", parts.index, stop, init=parts.values) as fold:
                inside = fold.index - parts.index
                scale = k.load(scales, inside)
                found = [digits.record_product(panel, fold.index, inside) for panel in panels]
                fold.next(*(k.fma(scale, value, total) for value, total in zip(found, fold.values)))
            parts.next(*fold.results)
        with k.when(column < self.n):
            store_elements(k, self.product.epilogue, self.cs, self.extra, (batch, zero, column), 1, parts.results)

    def float_rows(self, found: _Rows, column: Value) -> None:
        """The elements of a column in some rows."""
        k, zero, count = self.k, self.k.as_index(0), len(found.rows)
        a = [self.a.at(found.batch, row, zero) for row in found.rows]
        depth = self.product.weight_shape[0]
        lane = column % PANEL_ROWS
        sums: list[Value] = [k.const(0.0, DType.F32)] * (count * len(self.bs))
        with k.fold("record", 0, depth // RECORD, init=sums) as fold:
            sums = list(fold.values)
            for number, codes in enumerate(self.codes):
                base = self.base(number, found.matrix, column)
                place, heads = codes.place(base, fold.index), codes.heads(base, lane, fold.index)
                own = slice(number * count, (number + 1) * count)
                for group in range(self.layout.groups):
                    scale, minimum = codes.unbiased_scales(place, lane, group, heads)
                    chunks = self.layout.group // CHUNK
                    with k.fold("chunk", group * chunks, (group + 1) * chunks, init=sums[own]) as inner:
                        totals = list(inner.values)
                        first = fold.index * RECORD + inner.index * CHUNK
                        for j, code in enumerate(codes.values(place, lane, inner.index)):
                            weight = code * 2.0 ** -codes.shifts[j] * scale
                            weight = weight if minimum is None else weight + minimum
                            for r, line in enumerate(a):
                                x = k.cast(k.load(line.buffer, line.at(0, first + j)), DType.F32)
                                totals[r] = k.fma(x, weight, totals[r])
                        inner.next(*totals)
                    sums[own] = inner.results
            fold.next(*sums)
        for r, (row, exists) in enumerate(zip(found.rows, found.exist)):
            with k.when(exists):
                values = [fold.results[number * count + r] for number in range(len(self.bs))]
                store_elements(k, self.product.epilogue, self.cs, self.extra, (found.batch, row, column), 1, values)


class _SharedDigits(DigitRow):
    """The digits of a row in memory that a block shares, for dot products of bytes with signs."""

    has_signs = is_shared = True
