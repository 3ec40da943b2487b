"""`gpu_codes_kernel`: products with GGUF weights straight from their panels (`rlx.quant.panels`), a column per thread.

A thread walks along K of its column: every code becomes a number once and meets a few rows of A. Neighbouring threads
have neighbouring columns of a panel, whose words lie side by side. No weight is ever stored as floats.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import MatrixOperand, Product
from rlx.kernels.cpu.quant_codes import CHUNK, Codes
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


def gpu_codes_kernel(name: str, machine: Machine, layout: PanelFormat, product: Product) -> Kernel:
    """C[m, n] = epilogue(A[m, k] @ W), where B is u8 and holds the panels of W[k, n]."""
    return _Maker(name, machine, layout, product).build()


class _Maker:
    def __init__(self, name: str, machine: Machine, layout: PanelFormat, product: Product) -> None:
        k = self.k = KernelBuilder(name)
        self.layout, self.product = layout, product
        self.a = MatrixOperand(k, product.a)
        self.bs = [MatrixOperand(k, b) for b in product.bs]
        # An operand of the epilogue may be C itself: each element is read before it is written.
        self.cs = [MatrixOperand(k, c, write=True, noalias=False) for c in product.cs]
        operands = product.epilogue.operands if product.epilogue else ()
        self.extra = [MatrixOperand(k, operand, noalias=False) for operand in operands]
        extents = Extents(k)
        sizes = (product.m, product.n, product.k, product.batch)
        self.m, self.n, _, self.batches = (extents(s) for s in sizes)
        for operand in (self.a, *self.bs, *self.cs, *self.extra):
            operand.declare_strides(extents)
        self.codes = [Codes(k, machine, layout, b.buffer, lanes=1) for b in self.bs]

    def build(self) -> Kernel:
        k = self.k
        row_blocks, column_blocks = k.ceildiv(self.m, ROWS), k.ceildiv(self.n, THREADS)
        tiles = row_blocks * column_blocks
        with k.parallel("block", tiles * self.batches) as block, k.threads("thread", THREADS) as thread:
            batch, tile = block // tiles, block % tiles
            column = tile % column_blocks * THREADS + thread
            row = tile // column_blocks * ROWS
            with k.when(column < self.n):
                for codes in self.codes:
                    codes.load_tables()
                if isinstance(self.m, Const):
                    self.rows(min(ROWS, int(self.m.literal)), batch, row, column)
                else:
                    with k.when(self.m <= 1):
                        self.rows(1, batch, row, column)
                    with k.otherwise():
                        self.rows(ROWS, batch, row, column)
        return k.build()

    def rows(self, count: int, batch: Value, row: Value, column: Value) -> None:
        """The elements of a column in `count` rows; the last one stands in for those that are not there."""
        k, zero = self.k, self.k.as_index(0)
        a = [self.a.at(batch, k.min(row + r, self.m - 1), zero) for r in range(count)]
        depth = self.product.weight_shape[0]
        panel, lane = column // PANEL_ROWS, column % PANEL_ROWS
        sums: list[Value] = [k.const(0.0, DType.F32)] * (count * len(self.bs))
        with k.fold("record", 0, depth // RECORD, init=sums) as fold:
            sums = list(fold.values)
            for number, (b, codes) in enumerate(zip(self.bs, self.codes)):
                base = b.offset + batch * b.strides[0] + panel * self.layout.panel_bytes(depth)
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
        for r in range(count):
            with k.when(row + r < self.m):
                values = [fold.results[number * count + r] for number in range(len(self.bs))]
                store_elements(k, self.product.epilogue, self.cs, self.extra, (batch, row + r, column), 1, values)
