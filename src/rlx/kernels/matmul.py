"""`matmul_kernel`: C = epilogue(A @ B) by register tiles, with run-time or fixed sizes and plain or packed B.

A tile of accumulators stays in registers over the whole of K: 6 rows by 4 vectors where there are 32 registers, by 2
where there are 16. Taller tiles load less of B, but 8 rows and more meet in one set of the first-level cache when the
row stride is a multiple of 4 KiB, and lost a quarter of the speed there. Rows that do not fill a tile are done by tiles
of 4, 2 and 1; columns that do not fill a panel by masks, or one by one where a target has none. Each parallel iteration
is a block of rows times a few panels, cut by the shape alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.kernels.builder import KernelBuilder
from rlx.kernels.expr import Expr, compute_dtype, instruction_count, lower_expr
from rlx.kernels.extents import Extent, Extents
from rlx.kernels.loop_ir import FLOATS, Kernel, Value, ValueType
from rlx.kernels.targets import Target

MAX_TILE_ROWS = 6
# A block of about 48 x 64: tens of microseconds of work for the depths of transformer layers.
TILES_PER_BLOCK = 8
BLOCK_COLUMNS = 64
# The columns beside the whole panels are few: a small tile there keeps the code short.
TAIL_ROWS = 4
# Above this many instructions an epilogue is a loop over the finished tile instead of code for each of its vectors.
INLINE_EPILOGUE_COST = 4


@dataclass(frozen=True)
class Matrix:
    """A matrix operand: `offset of (batch, i, j) = batch*batch_stride + i*row_stride + j*col_stride`, in elements."""

    name: str
    dtype: DType
    row_stride: Extent
    col_stride: Extent = 1
    batch_stride: Extent = 0


@dataclass(frozen=True)
class Epilogue:
    """What is done to the product before it is stored. Operand 0 of `expr` is the accumulator, the others are
    `operands`, read at the element's place: a bias has row_stride 0, a scale per row col_stride 0, a residual neither.
    Its `index` axes are batch, row, column.
    """

    expr: Expr
    operands: tuple[Matrix, ...] = ()


def panel_vectors(target: Target) -> int:
    """Vectors side by side in a register tile."""
    return 4 if target.vector_registers >= 32 else 2


def tile_rows(target: Target) -> int:
    """Rows of a register tile: as many as leave registers for a row of B and one element of A."""
    vectors = panel_vectors(target)
    return min(MAX_TILE_ROWS, max(1, (target.vector_registers - vectors - 1) // vectors))


def panel_width(target: Target, accumulator: DType) -> int:
    """Columns of one packed panel of B."""
    return panel_vectors(target) * target.lanes(accumulator)


def pack_panels(b: np.ndarray[Any, np.dtype[Any]], width: int) -> np.ndarray[Any, np.dtype[Any]]:
    """B[K, N] as panels [ceil(N / width), K, width], the last one filled up with zeros: the layout of a packed B."""
    if b.ndim != 2:
        raise ShapeError(f"pack_panels: a matrix is wanted, got shape {b.shape}")
    k, n = b.shape
    panels = -(-n // width)
    packed = np.zeros((panels, k, width), b.dtype)
    for panel in range(panels):
        part = b[:, panel * width : (panel + 1) * width]
        packed[panel, :, : part.shape[1]] = part
    return packed


def matmul_kernel(
    name: str,
    target: Target,
    *,
    m: Extent,
    n: Extent,
    k: Extent,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    epilogue: Epilogue | None = None,
    packed: bool = False,
    batch: Extent = 1,
    accumulator: DType | None = None,
) -> Kernel:
    """C[batch, m, n] = epilogue(A[batch, m, k] @ B[batch, k, n]), accumulated in f32 for f16 and bf16.

    A residual in the epilogue may be the same memory as C. With `packed`, B is laid out by `pack_panels` with
    `panel_width(target, accumulator)`, and of its strides only that of the batch is used.
    Parameters: pointers of A, B, C and the epilogue's operands, then every named extent once, in the order m, n, k,
    batch and (batch, row, column) strides of A, B, C and the operands.
    """
    acc = accumulator or compute_dtype(a.dtype)
    if epilogue is None and acc not in (c.dtype, compute_dtype(c.dtype)):
        raise OpError(f"matmul {name}: accumulates in {acc} and stores {c.dtype}; say the conversion in an epilogue")
    return _MatmulMaker(name, target, (m, n, k, batch), (a, b, c), epilogue, packed, acc).build()


class _Operand:
    """A matrix as the kernel sees it: its buffer, and its strides once they are declared."""

    def __init__(self, k: KernelBuilder, matrix: Matrix, write: bool = False, noalias: bool = True) -> None:
        self.buffer = k.pointer(matrix.name, matrix.dtype, write=write, noalias=noalias)
        self.matrix = matrix

    def declare_strides(self, extents: Extents) -> None:
        m = self.matrix
        self.strides = tuple(extents(s) for s in (m.batch_stride, m.row_stride, m.col_stride))

    def place(self, batch: Value, row: Value, column: Value) -> Value:
        return batch * self.strides[0] + row * self.strides[1] + column * self.strides[2]


@dataclass(frozen=True)
class _Columns:
    """The columns that a tile covers: from `start`, `vectors` of `lanes`; masked where they may pass the last one."""

    start: Value
    lanes: int
    vectors: int
    is_masked: bool = False


class _MatmulMaker:
    def __init__(
        self,
        name: str,
        target: Target,
        sizes: tuple[Extent, Extent, Extent, Extent],
        matrices: tuple[Matrix, Matrix, Matrix],
        epilogue: Epilogue | None,
        packed: bool,
        acc: DType,
    ) -> None:
        k = self.k = KernelBuilder(name)
        self.epilogue, self.packed, self.acc = epilogue, packed, acc
        self.a, self.b = _Operand(k, matrices[0]), _Operand(k, matrices[1])
        # An operand of the epilogue may be C itself: each element is read before it is written.
        self.c = _Operand(k, matrices[2], write=True, noalias=False)
        self.extra = [_Operand(k, operand, noalias=False) for operand in (epilogue.operands if epilogue else ())]
        extents = Extents(k)
        self.m, self.n, self.depth, self.batches = (extents(s) for s in sizes)
        for operand in (self.a, self.b, self.c, *self.extra):
            operand.declare_strides(extents)
        self.lanes = target.lanes(acc)
        self.width = panel_width(target, acc)
        self.vectors = panel_vectors(target)
        self.tile_rows = tile_rows(target)
        self.panels_per_block = max(1, BLOCK_COLUMNS // self.width)
        self.has_column_tail = not (isinstance(sizes[1], int) and sizes[1] % self.width == 0)
        masked = [self.c, *self.extra, *([] if packed else [self.b])]
        self.has_masks = self.lanes > 1 and all(target.has_masked_access(o.matrix.dtype) for o in masked)
        is_long = epilogue is not None and instruction_count([epilogue.expr]) > INLINE_EPILOGUE_COST
        self.tile = k.local("tile", acc, self.tile_rows * self.width) if is_long else None

    def build(self) -> Kernel:
        k = self.k
        block_rows = TILES_PER_BLOCK * self.tile_rows
        row_blocks = k.ceildiv(self.m, block_rows)
        panel_groups = k.ceildiv(k.ceildiv(self.n, self.width), self.panels_per_block)
        with k.parallel("block", row_blocks * panel_groups * self.batches) as block:
            # Neighbouring iterations share their panels of B, the larger operand of most products.
            first_row = block % row_blocks * block_rows
            rest = block // row_blocks
            group, batch = rest % panel_groups, rest // panel_groups
            rows = (first_row, k.min(first_row + block_rows, self.m))
            self.panels(batch, rows, group)
        return k.build()

    def panels(self, batch: Value, rows: tuple[Value, Value], group: Value) -> None:
        k = self.k
        whole = self.n // self.width
        first = group * self.panels_per_block
        with k.loop("panel", first, k.min(first + self.panels_per_block, whole)) as panel:
            self.all_rows(batch, rows, _Columns(panel * self.width, self.lanes, self.vectors), self.tile_rows)
        if not self.has_column_tail:
            return
        start = whole * self.width
        with k.when(k.eq(whole // self.panels_per_block, group) & (start < self.n)):
            if self.has_masks:
                self.all_rows(batch, rows, _Columns(start, self.lanes, self.vectors, is_masked=True), TAIL_ROWS)
            else:
                with k.loop("column", start, self.n) as column:
                    self.all_rows(batch, rows, _Columns(column, 1, 1), TAIL_ROWS)

    def all_rows(self, batch: Value, rows: tuple[Value, Value], columns: _Columns, largest: int) -> None:
        """The largest tile as often as it fits, then each smaller power of two at most once."""
        k = self.k
        start, stop = rows
        whole = start + (stop - start) // largest * largest
        with k.loop("row", start, whole, largest) as row:
            self.tile_of(batch, row, largest, columns)
        left = stop - whole
        for bit in reversed(range((largest - 1).bit_length())):
            size = 1 << bit
            with k.when(k.ne(left & size, 0)):
                # The larger tiles before this one have taken the higher bits of `left`.
                self.tile_of(batch, whole + (left & -(2 * size)), size, columns)

    def tile_of(self, batch: Value, row: Value, count: int, columns: _Columns) -> None:
        """Rows row .. row+count-1 of the given columns, from zero accumulators to stored results."""
        k = self.k
        zero = k.const(0, ValueType(self.acc, columns.lanes))
        starts = [columns.start + v * columns.lanes for v in range(columns.vectors)]
        masks = [self.mask(columns, start) for start in starts]
        a_rows = [self.a.place(batch, row + r, k.as_index(0)) for r in range(count)]
        b_start, b_row_stride, b_stride = self.b_layout(batch, columns.start)
        b_masks = [None] * len(masks) if self.packed else masks  # panels are filled up with zeros
        with k.fold("p", 0, self.depth, init=[zero] * (count * columns.vectors)) as fold:
            b_row = b_start + fold.index * b_row_stride
            b_places = [b_row + b_stride * (v * columns.lanes) for v in range(columns.vectors)]
            b = [
                k.cast(k.load(self.b.buffer, place, lanes=columns.lanes, stride=b_stride, mask=mask), self.acc)
                for place, mask in zip(b_places, b_masks)
            ]
            step = fold.index * self.a.strides[2]
            sums: list[Value] = []
            for a_row in a_rows:
                a = k.splat(k.cast(k.load(self.a.buffer, a_row + step), self.acc), columns.lanes)
                sums += [_multiply_add(k, a, b_vector, fold.values[len(sums) + v]) for v, b_vector in enumerate(b)]
            fold.next(*sums)
        if self.tile is None:
            for position, value in enumerate(fold.results):
                r, v = divmod(position, columns.vectors)
                self.finish(batch, row + r, starts[v], value, masks[v])
            return
        for position, value in enumerate(fold.results):
            k.store(self.tile, position * columns.lanes, value)
        with k.loop("done", 0, len(fold.results)) as done:
            start = columns.start + done % columns.vectors * columns.lanes
            value = k.load(self.tile, done * columns.lanes, lanes=columns.lanes)
            self.finish(batch, row + done // columns.vectors, start, value, self.mask(columns, start))

    def mask(self, columns: _Columns, start: Value) -> Value | None:
        return self.k.lane_mask(self.n - start, columns.lanes) if columns.is_masked else None

    def b_layout(self, batch: Value, column: Value) -> tuple[Value, Value, Value]:
        """Where B[batch, 0, column] is, and how far the next row and the next column are from there."""
        if not self.packed:
            return self.b.place(batch, self.k.as_index(0), column), self.b.strides[1], self.b.strides[2]
        panel = column // self.width * (self.depth * self.width)
        start = batch * self.b.strides[0] + panel + column % self.width
        return start, self.k.as_index(self.width), self.k.as_index(1)

    def finish(self, batch: Value, row: Value, column: Value, value: Value, mask: Value | None) -> None:
        """Epilogue and store of one vector of a tile."""
        k, lanes = self.k, value.lanes
        if self.epilogue is not None:
            operands = [value]
            for extra in self.extra:
                place, stride = extra.place(batch, row, column), extra.strides[2]
                operands.append(k.load(extra.buffer, place, lanes=lanes, stride=stride, mask=mask))
            indices = (batch, row, k.iota(DType.I64, lanes) + column)
            [value] = lower_expr(k, [self.epilogue.expr], operands, lanes, indices)
        place, stride = self.c.place(batch, row, column), self.c.strides[2]
        k.store(self.c.buffer, place, k.cast(value, self.c.matrix.dtype), stride=stride, mask=mask)


def _multiply_add(k: KernelBuilder, a: Value, b: Value, c: Value) -> Value:
    return k.fma(a, b, c) if c.dtype in FLOATS else a * b + c
