"""Some columns of some rows in scratch: what triangular solves, and the products between their blocks, work on.

A block lies as panels of columns, packed as register tiles of products read them. Each column is computed by itself and
in one order, wherever it stands in a block, so that results do not depend on how columns are dealt out. Sums are
rounded as those of other products are: once for each term where a machine has an instruction for that.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import block_shape
from rlx.kernels.cpu.matmul.tiles import MatrixView, TileStep, panel_tile
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType

# Columns of a block: the factors that they meet are read once for all of them.
COLUMNS = 32
# Vectors of a row that substitution has in registers.
VECTORS = 8

# Where a row of a matrix has the first column of a block.
RowStart = Callable[[Value], Value]


class ColumnBlock:
    """Up to so many rows of `COLUMNS` columns in double precision; columns that are not there are zeros."""

    def __init__(self, site: OpSite, name: str, height: int) -> None:
        self.k, self.machine = site.k, site.machine
        self.shape = block_shape(site.machine, DType.F64, "n")
        # Whole tiles may be stored.
        self.height = -(-height // self.shape.tile_rows) * self.shape.tile_rows
        self.lines = site.k.local(name, DType.F64, self.height * COLUMNS)

    def at(self, row: Value, column: int) -> Value:
        """Where a vector begins."""
        panel, inside = divmod(column, self.shape.width)
        return row * self.shape.width + (panel * self.height * self.shape.width + inside)

    def view(self, panel: Value) -> MatrixView:
        """A panel of columns by its number."""
        k, width = self.k, self.shape.width
        return MatrixView(self.lines, panel * (self.height * width), k.as_index(width), k.as_index(1))

    def load(self, source: Buffer, start: RowStart, rows: Value, count: Value, negative: bool = False) -> None:
        """Take over `count` columns of some rows, or their opposites."""
        k = self.k

        def put(row: Value, first: Value, column: int, lanes: int, mask: Value | None) -> None:
            value = k.cast(k.load(source, first + column, lanes=lanes, mask=mask), DType.F64)
            k.store(self.lines, self.at(row, column), -value if negative else value)

        with k.loop("row", 0, rows) as row:
            first = start(row)
            with k.when(count >= COLUMNS):
                for column in range(0, COLUMNS, self.shape.lanes):
                    put(row, first, column, self.shape.lanes, None)
            with k.otherwise():
                if self.has_masks(source):
                    for column in range(0, COLUMNS, self.shape.lanes):
                        put(row, first, column, self.shape.lanes, k.lane_mask(count - column, self.shape.lanes))
                    return
                zero = k.const(0.0, ValueType(DType.F64, self.shape.lanes))
                for column in range(0, COLUMNS, self.shape.lanes):
                    k.store(self.lines, self.at(row, column), zero)
                for column in range(COLUMNS):
                    with k.when(count > column):
                        put(row, first, column, 1, None)

    def store(
        self, to: Buffer, start: RowStart, rows: Value, count: Value, beside: tuple[Buffer, RowStart] | None = None
    ) -> None:
        """Store `count` columns of some rows; or what they leave of those of another matrix, taken away from it."""
        k = self.k

        def put(row: Value, first: Value, other: Value | None, column: int, lanes: int, mask: Value | None) -> None:
            value = k.load(self.lines, self.at(row, column), lanes=lanes)
            if beside is not None and other is not None:
                value = k.load(beside[0], other + column, lanes=lanes, mask=mask) - value
            k.store(to, first + column, k.cast(value, to.dtype), mask=mask)

        with k.loop("row", 0, rows) as row:
            first, other = start(row), None if beside is None else beside[1](row)
            with k.when(count >= COLUMNS):
                for column in range(0, COLUMNS, self.shape.lanes):
                    put(row, first, other, column, self.shape.lanes, None)
            with k.otherwise():
                if self.has_masks(to):
                    for column in range(0, COLUMNS, self.shape.lanes):
                        put(row, first, other, column, self.shape.lanes, k.lane_mask(count - column, self.shape.lanes))
                    return
                for column in range(COLUMNS):
                    with k.when(count > column):
                        put(row, first, other, column, 1, None)

    def has_masks(self, buffer: Buffer) -> bool:
        return self.shape.lanes > 1 and self.machine.has_masked_access(buffer.dtype)

    def substitute(
        self,
        rows: Value,
        factor: Callable[[Value, Value], Value],
        forward: bool = True,
        unit: bool = True,
        negative: bool = False,
    ) -> None:
        """x with A x = these rows, or their opposites, in place of them, for a triangle A[i, p] = factor(i, p)."""
        k, lanes = self.k, self.shape.lanes
        together = min(VECTORS * lanes, COLUMNS)
        with k.loop("step", 0, rows) as step:
            i = step if forward else rows - 1 - step
            known = (k.as_index(0), i) if forward else (i + 1, rows)
            head = None if unit else k.splat(factor(i, i), lanes)
            for begin in range(0, COLUMNS, together):
                columns = range(begin, begin + together, lanes)
                start = [k.load(self.lines, self.at(i, c), lanes=lanes) for c in columns]
                with k.fold("p", *known, init=[-x if negative else x for x in start]) as fold:
                    scale = -k.splat(factor(i, fold.index), lanes)
                    above = [k.load(self.lines, self.at(fold.index, c), lanes=lanes) for c in columns]
                    fold.next(*(k.fma(scale, x, total) for x, total in zip(above, fold.values)))
                for c, value in zip(columns, fold.results):
                    k.store(self.lines, self.at(i, c), value if head is None else value / head)

    def add_product(self, a: MatrixView, rows: Value, steps: Value, other: ColumnBlock, is_new: bool = False) -> None:
        """Add A[rows, steps] times another block to this one, or set it to that. Rows of A from its `last_row` on are
        copies of it, so that all tiles are whole."""
        k, shape = self.k, self.shape
        starts = k.eq(k.as_index(0), 0 if is_new else 1)
        with k.loop("tile", 0, rows, shape.tile_rows) as row:
            part = a.moved(row, 0)
            with k.loop("panel", 0, COLUMNS // shape.width) as panel:
                sums = self.view(panel).moved(row, 0)
                panel_tile(k, shape.tile_rows, shape, TileStep(part, other.view(panel), steps, sums, starts))
