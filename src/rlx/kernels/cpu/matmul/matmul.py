"""`matmul_kernel`: C = epilogue(A @ B) block by block, with run-time or fixed sizes and plain or packed B.

Each parallel iteration is a block of rows times a few panels of columns, cut by the shape alone (`matmul_blocks`). Its
sums stay in scratch while register tiles add to them step by step along K (`matmul_tiles`), and the epilogue passes
over the finished block. So tiles know neither epilogues nor the last columns: code is short, and several products of
the same A meet in one epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BLOCK_SIZES, BlockShape, BlockSizes, block_shape
from rlx.kernels.cpu.matmul.blocks import pack_panels as pack_panels
from rlx.kernels.cpu.matmul.blocks import panel_width as panel_width
from rlx.kernels.cpu.matmul.tiles import (
    DOT_COLUMNS,
    MatrixView,
    TileStep,
    VectorLoop,
    add_rows,
    copy_elements,
    copy_gathered,
    copy_lines,
    copy_panel,
    copy_transposed,
    dot_tile,
    in_vectors,
    panel_tile,
)
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extents
from rlx.kernels.ir.loop_ir import Buffer, Const, Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import compute_dtype, lower_expr, uniform_nodes
from rlx.kernels.specs.products import Epilogue as Epilogue
from rlx.kernels.specs.products import Matrix as Matrix
from rlx.kernels.specs.products import Product as Product

# Rows up to which columns of B that are contiguous along K are better multiplied as they are than copied into panels.
DOT_ROWS = 8
# Rows up to which rows of B pass by once, and how many of them at a time.
STREAM_ROWS = 4
STREAM_STEPS = 4
# A copied panel of B takes no more than this, and serves so many times the rows of a packed one.
PANEL_BYTES = 64 << 10
REUSE = 4
# Blocks are this low where higher ones would be fewer than so many, too few for the threads of large machines.
LEAST_ROWS = 96
WANTED_BLOCKS = 16


def matmul_kernel(
    name: str,
    machine: Machine,
    product: Product,
    *,
    packed: bool = False,
    accumulator: DType | None = None,
    sizes: BlockSizes = BLOCK_SIZES[0],
) -> Kernel:
    """A product of numbers, accumulated in f32 for f16 and bf16.

    With `packed`, each B is laid out by `pack_panels` with `panel_width(machine, accumulator, n)`, and of its strides
    only that of the batch is used.
    """
    stored = product.cs[0].dtype
    acc = accumulator or compute_dtype(product.a.dtype)
    if product.epilogue is None and (len(product.bs) > 1 or acc.is_float != stored.is_float):
        raise OpError(f"matmul {name}: accumulates in {acc} and stores {stored}; say the conversion in an epilogue")
    return MatmulMaker(name, machine, product, packed, acc, number_block(machine, product, packed, acc, sizes)).build()


def number_block(machine: Machine, product: Product, packed: bool, acc: DType, sizes: BlockSizes) -> BlockShape:
    """The block of a product of numbers."""
    copies_a = product.a.col_stride != 1 or product.a.dtype is not acc
    shape = block_shape(
        machine,
        acc,
        product.n,
        len(product.bs),
        copies_b=not packed,
        copies_a=copies_a,
        reuse=REUSE,
        sizes=sizes,
        scratch_bytes=machine.copies_bytes,
    )
    steps = shape.depth if packed else PANEL_BYTES // (shape.width * acc.size_bytes)
    return shape._replace(depth=min(shape.depth, steps))


class MatrixOperand:
    """A matrix as the kernel sees it: its buffer, and its strides once they are declared."""

    def __init__(
        self, k: KernelBuilder, matrix: Matrix, write: bool = False, noalias: bool = True, align: int = 0
    ) -> None:
        self.buffer = k.pointer(matrix.name, matrix.dtype, write=write, noalias=noalias, align=align)
        self.matrix = matrix

    def declare_strides(self, extents: Extents) -> None:
        m = self.matrix
        self.strides = tuple(extents(s) for s in (m.batch_stride, m.row_stride, m.col_stride))
        self.offset = extents(m.offset)

    def at(self, batch: Value, row: Value, column: Value) -> MatrixView:
        """The matrix from an element on."""
        place = self.offset + batch * self.strides[0] + row * self.strides[1] + column * self.strides[2]
        return MatrixView(self.buffer, place, self.strides[1], self.strides[2])


@dataclass(frozen=True)
class ResultBlock:
    """What one parallel iteration computes: `rows` rows from `row`, `columns` columns from `column`."""

    batch: Value
    row: Value
    rows: Value
    column: Value
    columns: Value


class PanelPart(NamedTuple):
    """What is read of a panel in a step along K: `steps` lines of B from `start` on, columns from `inside` of a block
    on."""

    block: ResultBlock
    b: MatrixOperand
    start: Value
    steps: Value
    inside: Value

    @property
    def column(self) -> Value:
        return self.block.column + self.inside


def _heights(m: Value, height: Value, blocks: Value) -> frozenset[int] | None:
    """How many rows blocks of this height have that follow each other, if that is known."""
    if not (isinstance(m, Const) and isinstance(height, Const) and isinstance(blocks, Const)):
        return None
    rows, most = int(m.literal), int(height.literal)
    return frozenset(max(min(most, rows - i * most), 0) for i in range(int(blocks.literal)))


class MatmulMaker:
    # Elements one by one, and not words of several.
    multiplies_elements = True

    def __init__(
        self, name: str, machine: Machine, product: Product, packed: bool, acc: DType, shape: BlockShape | None = None
    ) -> None:
        k = self.k = KernelBuilder(name)
        n, bs, epilogue = product.n, product.bs, product.epilogue
        self.machine, self.epilogue, self.packed, self.acc = machine, epilogue, packed, acc
        self.a = MatrixOperand(k, product.a)
        self.bs = [MatrixOperand(k, b) for b in bs]
        # An operand of the epilogue may be C itself: each element is read before it is written.
        self.cs = [MatrixOperand(k, c, write=True, noalias=False) for c in product.cs]
        self.extra = [MatrixOperand(k, operand, noalias=False) for operand in (epilogue.operands if epilogue else ())]
        self.declare_pointers()
        extents = self.extents = Extents(k)
        self.m, self.n, self.depth, self.batches = (extents(s) for s in (product.m, n, product.k, product.batch))
        for operand in (self.a, *self.bs, *self.cs, *self.extra):
            operand.declare_strides(extents)
        reads_plain = not packed and self.multiplies_elements
        self.has_dots = reads_plain and product.a.col_stride == 1 and all(b.row_stride == 1 != b.col_stride for b in bs)
        self.has_streams = reads_plain and all(b.col_stride == 1 for b in bs)
        # One panel of a few columns would be mostly empty.
        self.has_panels = not (self.has_dots and isinstance(n, int) and n <= DOT_COLUMNS)
        shape = self.shape = shape or block_shape(machine, acc, n, len(bs), copies_b=not packed)
        self.zero = k.const(0, DType.I64)
        # The numbers of rows that blocks have, where they are known when code is made.
        self.heights: frozenset[int] | None = None
        self.sums = k.local("sums", acc, len(bs) * shape.rows * shape.columns)
        if self.has_panels:
            self.panel = None if packed else self.make_panel()

    @cached_property
    def rows_of_a(self) -> Buffer:
        """Scratch for a step of the rows of A."""
        return self.k.local("rows", self.acc, self.shape.rows * (self.shape.depth + self.shape.pad))

    def make_panel(self) -> Buffer:
        """Scratch for a panel of B."""
        return self.k.local("panel", self.acc, self.shape.depth * self.shape.width)

    def declare_pointers(self) -> None:
        """Pointers behind those of the matrices."""

    def row_of(self, position: Value) -> Value:
        """The row of A, C and the operands of the epilogue that a row of blocks stands for."""
        return position

    def build(self) -> Kernel:
        k, shape = self.k, self.shape
        tiles = k.ceildiv(self.m, shape.tile_rows)
        step = self.step = self.block_columns()
        groups = (self.n + step - 1) // step
        # Blocks of equal height, as far as whole tiles allow.
        across = k.max(groups * self.batches, 1)
        wanted = k.min((across + (WANTED_BLOCKS - 1)) // across, self.row_blocks(tiles, self.least_rows))
        row_blocks = k.max(self.row_blocks(tiles, shape.rows), wanted)
        # Three blocks below each other, with none beside them, would let one of two threads wait.
        row_blocks = row_blocks + k.max(2 - across, 0) * k.min(row_blocks - 1, 1) * (row_blocks % 2)
        with k.parallel("block", row_blocks * groups * self.batches) as block:
            height = (tiles + row_blocks - 1) // row_blocks * shape.tile_rows
            self.heights = _heights(self.m, height, row_blocks)
            # Neighbouring iterations share their panels of B, the larger operand of most products.
            row = block % row_blocks * height
            rest = block // row_blocks
            column, batch = rest % groups * step, rest // groups
            rows = k.max(k.min(height, self.m - row), 0)
            columns = k.min(self.n - column, step)
            self.block(ResultBlock(batch, row, rows, column, columns))
        return k.build()

    @property
    def least_rows(self) -> int:
        """Rows of a block where higher ones would be few."""
        return min(self.shape.rows, LEAST_ROWS)

    def row_blocks(self, tiles: Value, rows: int) -> Value:
        """How many blocks of up to so many rows these tiles are."""
        return self.k.ceildiv(tiles, rows // self.shape.tile_rows)

    def block_columns(self) -> Value:
        """Columns of one parallel iteration. Few rows go through long parts of the rows of a B that is not packed,
        but leave some for other threads."""
        k, columns = self.k, self.shape.columns
        # As many for each, as far as whole panels allow.
        panels = k.max(k.ceildiv(self.n, self.shape.width), 1)
        groups = k.ceildiv(panels, self.shape.panels)
        equal = (panels + groups - 1) // groups * self.shape.width
        if not self.has_streams:
            return equal
        is_few = k.min(k.max(k.as_index(STREAM_ROWS + 1) - self.m, 0), 1)
        most = self.shape.rows // STREAM_ROWS * columns
        wide = k.max(k.min(k.ceildiv(self.n, 8 * columns) * columns, most), columns)
        return is_few * wide + (1 - is_few) * equal

    def block(self, block: ResultBlock) -> None:
        k, few = self.k, self.few_rows()
        if not self.has_panels or not self.may_have(few):
            self.few(block)
        elif self.may_have(0, few):
            with k.when(block.rows <= few):
                self.few(block)
            with k.otherwise():
                self.panels(block)
        else:
            self.panels(block)
        self.finish(block)

    def may_have(self, above: int, most: int | None = None, of: int = 0) -> bool:
        """Whether there may be a block with more than `above` rows and at most `most`, or so many besides whole
        multiples of `of`: code for others is not written."""
        if self.heights is None:
            return True
        found = [height % of if of else height for height in self.heights]
        return any(above < rows and (most is None or rows <= most) for rows in found)

    def few_rows(self) -> int:
        """Rows up to which `few` is the better way."""
        return DOT_ROWS if self.has_dots else STREAM_ROWS if self.has_streams else 0

    def few(self, block: ResultBlock) -> None:
        """The sums of a block of few rows, B read as it lies."""
        if self.has_dots:
            self.dots(block)
            return
        k, below = self.k, 0
        for count in (1, 2, STREAM_ROWS):
            if self.may_have(below, count):
                with k.when((block.rows > below) & (block.rows <= count)):
                    self.stream(block, count)
            below = count

    def stream(self, block: ResultBlock, count: int) -> None:
        """Every row of B times an element of each row of A, added to the sums; the last row of A stands in for those
        that are not there."""
        k = self.k
        zero = k.const(0, ValueType(self.acc, self.shape.lanes))
        origin = self.a.at(block.batch, self.zero, self.zero)
        rows = [origin.moved(k.min(block.row + r, self.m - 1), 0) for r in range(count)]
        whole = self.depth // STREAM_STEPS * STREAM_STEPS
        for number, b in enumerate(self.bs):
            sums, lines = self.sums_of(number), b.at(block.batch, self.zero, block.column)
            vector = VectorLoop(self.shape.lanes, self.has_masks([b]))
            for r in range(count):
                with k.loop("j", 0, block.columns, self.shape.lanes) as j:
                    k.store(self.sums, sums.at(r, j), zero)
            with k.loop("p", 0, whole, STREAM_STEPS) as p:
                add_rows(k, rows, lines, p, STREAM_STEPS, block.columns, sums, vector)
            with k.loop("p", whole, self.depth) as p:
                add_rows(k, rows, lines, p, 1, block.columns, sums, vector)

    def sums_of(self, number: int) -> MatrixView:
        start = self.k.as_index(number * self.shape.rows * self.shape.columns)
        return MatrixView(self.sums, start, self.step, self.k.as_index(1))

    # Panels.

    def panels(self, block: ResultBlock) -> None:
        """Step by step along K: rows of A, where they are or in scratch, times every panel of every B."""
        k, shape, length = self.k, self.shape, self.step_length()
        # One step even where there is none to make: it stores the sums of nothing.
        with k.loop("step", 0, k.max(self.depth, 1), length) as start:
            steps = k.min(self.depth - start, length)
            a = self.rows_in_step(block, start, steps)
            with k.loop("panel", 0, block.columns, shape.width) as inside:
                for number, b in enumerate(self.bs):
                    panel = self.panel_of(PanelPart(block, b, start, steps, inside))
                    sums = self.sums_of(number).moved(0, inside)
                    self.tiles(block.rows, TileStep(a, panel, steps, sums, k.eq(start, 0)))

    def step_length(self) -> Value:
        """How far a step goes along K: all about as far, where panels are copied."""
        k, shape = self.k, self.shape
        if self.packed:
            return k.as_index(shape.depth)
        depth = k.max(self.depth, 1)
        count = k.ceildiv(depth, shape.depth)
        return k.ceildiv((depth + count - 1) // count, shape.lanes) * shape.lanes

    def rows_in_step(self, block: ResultBlock, start: Value, steps: Value) -> MatrixView:
        """A[rows, start : start+steps]; with an odd number of rows the last one twice.

        Rows whose elements lie side by side are read where they are, at the speed of multiplication, while a copy
        would wait for memory; others are copied to scratch.
        """
        k, shape = self.k, self.shape
        source = self.a.at(block.batch, block.row, start)
        if self.a.matrix.col_stride == 1 and self.a.matrix.dtype is self.acc:
            return source._replace(last_row=block.rows - 1)
        side_by_side = k.as_index(1)
        has_masks = self.has_masks([self.a])
        if self.a.matrix.row_stride == 1 != self.a.matrix.col_stride:
            to = MatrixView(self.rows_of_a, self.zero, side_by_side, k.as_index(shape.rows))
            copy_lines(k, source.turned(), to.turned(), steps, block.rows, shape.lanes, has_masks)
            self.repeat_last_row(block, to, steps)
            return to
        to = MatrixView(self.rows_of_a, self.zero, k.as_index(shape.depth + shape.pad), side_by_side)
        if self.a.matrix.col_stride == 1:
            copy_lines(k, source, to, block.rows, steps, shape.lanes, has_masks)
        else:
            copy_elements(k, source, to, block.rows, steps)
        self.repeat_last_row(block, to, steps)
        return to

    def repeat_last_row(self, block: ResultBlock, rows: MatrixView, steps: Value) -> None:
        k = self.k
        with k.when(k.ne(block.rows % 2, 0) & (block.rows > 1)):
            copy_elements(k, rows.moved(block.rows - 1, 0), rows.moved(block.rows, 0), k.as_index(1), steps)

    def panel_of(self, part: PanelPart) -> MatrixView:
        """A part of a panel, where it lies in memory or copied to scratch."""
        b, width = part.b, self.k.as_index(self.shape.width)
        if self.packed:
            place = b.offset + part.block.batch * b.strides[0] + (part.column * self.depth + part.start * width)
            return MatrixView(b.buffer, place, width, self.k.as_index(1))
        source = b.at(part.block.batch, part.start, part.column)
        panel = self.panel_in_scratch()
        if b.matrix.col_stride != 1:
            self.copy_columns(b, source, panel, part.steps, part.column)
        else:
            self.copy_panel(b, source, panel, part.steps, self.n - part.column)
        return panel

    def panel_in_scratch(self) -> MatrixView:
        assert self.panel is not None
        return MatrixView(self.panel, self.zero, self.k.as_index(self.shape.width), self.k.as_index(1))

    def copy_columns(self, b: MatrixOperand, source: MatrixView, to: MatrixView, steps: Value, column: Value) -> None:
        """A panel of a B whose neighbouring columns are not neighbours in memory."""
        k, shape = self.k, self.shape
        last = k.min(self.n - column, shape.width) - 1
        copy = copy_transposed if b.matrix.row_stride == 1 and shape.lanes > 1 else copy_gathered
        copy(k, source, to, steps, last, shape.lanes, shape.vectors)

    def copy_panel(self, b: MatrixOperand, source: MatrixView, to: MatrixView, steps: Value, left: Value) -> None:
        """A panel whose columns lie side by side; `left` columns of B are left from its first on."""
        panel = (self.shape.lanes, self.shape.vectors)
        copy_panel(self.k, source, to, steps, left, panel, self.has_masks([b]))

    def tiles(self, rows: Value, step: TileStep) -> None:
        """All rows of a block times one panel."""
        k, size = self.k, self.shape.tile_rows
        whole = rows // size * size
        all_there = step._replace(a=step.a._replace(last_row=None))
        with k.loop("row", 0, whole, size) as row:
            self.tile(size, all_there.from_row(row))
        self.last_tile(rows - whole, step.from_row(whole))

    def last_tile(self, left: Value, step: TileStep) -> None:
        """The smallest tile that holds the rows that are left, at most as many as a whole tile has."""
        k, below = self.k, 0
        for count in self.shape.row_counts:
            if self.may_have(below, count, self.shape.tile_rows):
                with k.when((left > below) & (left <= count)):
                    self.tile(count, step)
            below = count

    def tile(self, count: int, step: TileStep) -> None:
        panel_tile(self.k, count, self.shape, step)

    # Dot products.

    def dots(self, block: ResultBlock) -> None:
        k = self.k
        for number, b in enumerate(self.bs):
            sums = self.sums_of(number)
            lines = b.at(block.batch, self.zero, block.column)
            rows = self.a.at(block.batch, block.row, self.zero)
            whole = block.columns // DOT_COLUMNS * DOT_COLUMNS
            with k.loop("column", 0, whole, DOT_COLUMNS) as column:
                self.dot_rows(block.rows, DOT_COLUMNS, rows, lines.moved(0, column), sums.moved(0, column))
            with k.loop("column", whole, block.columns) as column:
                self.dot_rows(block.rows, 1, rows, lines.moved(0, column), sums.moved(0, column))

    def dot_rows(self, rows: Value, columns: int, a: MatrixView, b: MatrixView, sums: MatrixView) -> None:
        k, size = self.k, 4
        whole = rows // size * size
        with k.loop("row", 0, whole, size) as row:
            dot_tile(k, size, columns, self.shape.lanes, a.moved(row, 0), b, self.depth, sums.moved(row, 0))
        for count in (2, 1):
            if not self.may_have(count - 1, 2 * count - 1, 2 * count):
                continue
            with k.when(k.ne(rows & count, 0)):
                row = rows & -(2 * count)
                dot_tile(k, count, columns, self.shape.lanes, a.moved(row, 0), b, self.depth, sums.moved(row, 0))

    # The result.

    def has_masks(self, operands: Sequence[MatrixOperand]) -> bool:
        return self.shape.lanes > 1 and all(self.machine.has_masked_access(o.matrix.dtype) for o in operands)

    def finish(self, block: ResultBlock) -> None:
        """The epilogue of a block, row by row, and its store."""
        k, shape = self.k, self.shape
        has_masks = self.has_masks([*self.cs, *self.extra])
        exprs = self.epilogue.exprs if self.epilogue is not None else ()
        # In front of the loops, where the builder finds them again: numbers that are passed are made ready once.
        lower_expr(k, uniform_nodes(exprs), (), extents=self.extents)
        with k.loop("done", 0, block.rows) as r:
            row = self.row_of(block.row + r)
            places = [o.at(block.batch, row, block.column) for o in (*self.cs, *self.extra)]

            def store(j: Value, lanes: int, mask: Value | None) -> None:
                values = [k.load(self.sums, self.sums_of(p).at(r, j), lanes=lanes) for p in range(len(self.bs))]
                if self.epilogue is not None:
                    for place in places[len(self.cs) :]:
                        values.append(
                            k.load(place.buffer, place.at(0, j), lanes=lanes, stride=place.column_stride, mask=mask)
                        )
                    indices = (block.batch, row, k.iota(DType.I64, lanes) + (block.column + j))
                    values = lower_expr(k, exprs, values, lanes, indices, self.extents)
                for place, value in zip(places, values):
                    data = k.cast(value, place.buffer.dtype)
                    k.store(place.buffer, place.at(0, j), data, stride=place.column_stride, mask=mask)

            in_vectors(k, "j", block.columns, shape.lanes, has_masks, store)
