"""`matmul_kernel`: C = epilogue(A @ B) by register tiles, with run-time or fixed sizes and plain or packed B.

A tile of `rows x (2 vectors)` accumulators stays in registers over the whole of K. Rows that do not fill a tile are
done by tiles of 8, 4, 2 and 1; columns that do not fill a panel by masks, or one by one where a target has none.
Each parallel iteration is a block of rows times a few panels, cut by the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
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

PANEL_VECTORS = 2
ROW_TILES_PER_BLOCK = 4
PANELS_PER_BLOCK = 2
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
    """

    expr: Expr
    operands: tuple[Matrix, ...] = ()


def panel_width(target: Target, accumulator: DType) -> int:
    """Columns of one packed panel of B."""
    return PANEL_VECTORS * target.lanes(accumulator)


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

    With `packed`, B is laid out by `pack_panels` with `panel_width(target, accumulator)` and its strides are not used.
    Parameters: pointers of A, B, C and the epilogue's operands, then every named extent in the order m, n, k, batch and
    strides of A, B, C, operands.
    """
    acc = accumulator or compute_dtype(a.dtype)
    if epilogue is None and acc not in (c.dtype, compute_dtype(c.dtype)):
        raise OpError(f"matmul {name}: accumulates in {acc} and stores {c.dtype}; say the conversion in an epilogue")
    return _MatmulMaker(name, target, (m, n, k, batch), (a, b, c), epilogue, packed, acc).build()


class _Operand:
    """A matrix as the kernel sees it: its buffer, and its strides once they are declared."""

    def __init__(self, k: KernelBuilder, matrix: Matrix, write: bool = False) -> None:
        self.buffer = k.pointer(matrix.name, matrix.dtype, write=write)
        self.matrix = matrix

    def declare_strides(self, extents: Extents) -> None:
        m = self.matrix
        self.strides = tuple(extents(s) for s in (m.batch_stride, m.row_stride, m.col_stride))

    def place(self, batch: Value, row: Value, column: Value) -> Value:
        return batch * self.strides[0] + row * self.strides[1] + column * self.strides[2]


@dataclass(frozen=True)
class _Columns:
    """The columns that a tile covers: from `start`, some vectors of `lanes`, each with a mask or without."""

    start: Value
    lanes: int
    masks: tuple[Value | None, ...]


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
        self.c = _Operand(k, matrices[2], write=True)
        self.extra = [_Operand(k, operand) for operand in (epilogue.operands if epilogue else ())]
        extents = Extents(k)
        self.m, self.n, self.depth, self.batches = (extents(s) for s in sizes)
        for operand in (self.a, self.b, self.c, *self.extra):
            operand.declare_strides(extents)
        self.lanes = target.lanes(acc)
        self.width = panel_width(target, acc)
        self.tile_rows = tile_rows(target)
        self.has_column_tail = not (isinstance(sizes[1], int) and sizes[1] % self.width == 0)
        masked = [self.c, *self.extra, *([] if packed else [self.b])]
        self.has_masks = self.lanes > 1 and all(target.has_masked_access(o.matrix.dtype) for o in masked)
        is_long = epilogue is not None and instruction_count([epilogue.expr]) > INLINE_EPILOGUE_COST
        self.tile = k.local("tile", acc, self.tile_rows * self.width) if is_long else None

    def build(self) -> Kernel:
        k = self.k
        block_rows = ROW_TILES_PER_BLOCK * self.tile_rows
        row_blocks = k.ceildiv(self.m, block_rows)
        panel_groups = k.ceildiv(k.ceildiv(self.n, self.width), PANELS_PER_BLOCK)
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
        first = group * PANELS_PER_BLOCK
        with k.loop("panel", first, k.min(first + PANELS_PER_BLOCK, whole)) as panel:
            columns = _Columns(panel * self.width, self.lanes, (None,) * PANEL_VECTORS)
            self.all_rows(batch, rows, columns, self.tile_rows)
        if not self.has_column_tail:
            return
        start = whole * self.width
        with k.when(k.eq(whole // PANELS_PER_BLOCK, group)):
            if self.has_masks:
                masks = tuple(k.lane_mask(self.n - start - v * self.lanes, self.lanes) for v in range(PANEL_VECTORS))
                with k.when(start < self.n):
                    self.all_rows(batch, rows, _Columns(start, self.lanes, masks), TAIL_ROWS)
            else:
                with k.loop("column", start, self.n) as column:
                    self.all_rows(batch, rows, _Columns(column, 1, (None,)), TAIL_ROWS)

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
        vectors = range(len(columns.masks))
        zero = k.const(0, ValueType(self.acc, columns.lanes))
        a_rows = [self.a.place(batch, row + r, k.as_index(0)) for r in range(count)]
        with k.fold("p", 0, self.depth, init=[zero] * (count * len(vectors))) as fold:
            b = [self.load_b(batch, fold.index, columns, v) for v in vectors]
            step = fold.index * self.a.strides[2]
            sums = []
            for r, a_row in enumerate(a_rows):
                a = k.splat(k.cast(k.load(self.a.buffer, a_row + step), self.acc), columns.lanes)
                sums += [_multiply_add(k, a, b[v], fold.values[r * len(vectors) + v]) for v in vectors]
            fold.next(*sums)
        if self.tile is None:
            for r in range(count):
                self.finish(batch, row + r, columns, fold.results[r * len(vectors) : (r + 1) * len(vectors)])
            return
        for position, value in enumerate(fold.results):
            k.store(self.tile, position * columns.lanes, value)
        with k.loop("done", 0, count) as done:
            base = done * (len(vectors) * columns.lanes)
            finished = [k.load(self.tile, base + v * columns.lanes, lanes=columns.lanes) for v in vectors]
            self.finish(batch, row + done, columns, finished)

    def load_b(self, batch: Value, p: Value, columns: _Columns, vector: int) -> Value:
        k = self.k
        if self.packed:
            # Panels are filled up with zeros, so no mask is needed.
            panel, inside = columns.start // self.width, columns.start % self.width
            place = batch * self.b.strides[0] + panel * (self.depth * self.width) + p * self.width + inside
            return k.cast(k.load(self.b.buffer, place + vector * columns.lanes, lanes=columns.lanes), self.acc)
        place = self.b.place(batch, p, columns.start + vector * columns.lanes)
        mask = columns.masks[vector]
        return k.cast(k.load(self.b.buffer, place, lanes=columns.lanes, stride=self.b.strides[2], mask=mask), self.acc)

    def finish(self, batch: Value, row: Value, columns: _Columns, values: Sequence[Value]) -> None:
        """Epilogue and store of one row of a tile."""
        k = self.k
        for vector, value in enumerate(values):
            column, mask = columns.start + vector * columns.lanes, columns.masks[vector]
            if self.epilogue is not None:
                operands = [value]
                for extra in self.extra:
                    place = extra.place(batch, row, column)
                    operands.append(
                        k.load(extra.buffer, place, lanes=columns.lanes, stride=extra.strides[2], mask=mask)
                    )
                [value] = lower_expr(k, [self.epilogue.expr], operands, columns.lanes)
            stored = k.cast(value, self.c.matrix.dtype)
            k.store(self.c.buffer, self.c.place(batch, row, column), stored, stride=self.c.strides[2], mask=mask)


def tile_rows(target: Target) -> int:
    """Rows of a register tile: as many as leave registers for a row of B and one element of A."""
    return min(14, max(1, (target.vector_registers - PANEL_VECTORS - 1) // PANEL_VECTORS))


def _multiply_add(k: KernelBuilder, a: Value, b: Value, c: Value) -> Value:
    return k.fma(a, b, c) if c.dtype in FLOATS else a * b + c
