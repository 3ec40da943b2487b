"""Which tiles the outlines of splats touch, and the lists of the tiles.

Boxes are found splat by splat. Counts and lists are made block by block: a block of outlines that follow each other
counts its entries of every tile; from all counts follows where its part of each list begins, and there it puts them. So
lists come out in order, and blocks do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.splat.projection import TOLERANCE
from rlx.ops.splat.steps import (
    BLOCKS,
    FIRST_COLUMN,
    FIRST_ROW,
    LAST_COLUMN,
    LAST_ROW,
    OUTLINE_WIDTH,
    TILES,
    SplatBoxes,
    SplatTileCounts,
    SplatTileLists,
)

# Splats whose boxes one iteration finds.
TOGETHER = 512


class _Outline:
    """One outline, and whether tiles touch it: the formulas of `tiles_touched`, in the same order."""

    def __init__(self, k: KernelBuilder, outlines: Slab, rank: Value, size: int) -> None:
        self.k, self.size = k, float(size)
        first = rank * OUTLINE_WIDTH
        self.x, self.y, self.a, self.b, self.c, seen = (
            k.load(outlines.buffer, first + i) for i in range(OUTLINE_WIDTH)
        )
        self.is_seen = seen > 0.0
        one = k.const(1.0, DType.F32)
        self.down = -self.b / k.select(self.c > 0.0, self.c, one)
        self.along = -self.b / k.select(self.a > 0.0, self.a, one)

    def touches(self, row: Value, column: Value) -> Value:
        k = self.k
        left, top = (k.cast(i, DType.F32) * self.size - start for i, start in ((column, self.x), (row, self.y)))
        right, bottom = left + self.size, top + self.size
        on_edges = [self.value(x, self.clamped(self.down * x, top, bottom)) for x in (left, right)]
        on_edges += [self.value(self.clamped(self.along * y, left, right), y) for y in (top, bottom)]
        least = k.min(k.min(on_edges[0], on_edges[1]), k.min(on_edges[2], on_edges[3]))
        around = (left <= 0.0) & (right >= 0.0) & (top <= 0.0) & (bottom >= 0.0)
        return self.is_seen & (around | (least <= 1.0 + TOLERANCE))

    def value(self, x: Value, y: Value) -> Value:
        return self.a * x * x + self.b * 2.0 * x * y + self.c * y * y

    def clamped(self, v: Value, low: Value, high: Value) -> Value:
        return self.k.min(self.k.max(v, low), high)

    def span(self, center: Value, squared: Value, other: Value, count: int) -> tuple[Value, Value]:
        """The tiles along one axis that may be touched; all of them if the conic has no extent.

        The half extent is sqrt(other/(a·c - b²)). Conics that are almost lines have been made discs, so that three
        digits of the determinant are right, and a little more than it says is enough.
        """
        k = self.k
        determinant = squared * other - self.b * self.b
        is_ellipse = determinant > 0.0
        half = k.sqrt(other / k.select(is_ellipse, determinant, k.const(1.0, DType.F32))) * 1.01 + 0.05
        ends = []
        for end in (center - half, center + half):
            tile = k.cast(k.op("floor", end * (1.0 / self.size)), DType.I64)
            ends.append(k.max(k.min(tile, count - 1), 0))
        first, last = ends
        return k.select(is_ellipse, first, k.as_index(0)), k.select(is_ellipse, last, k.as_index(count - 1))


def _is_f32(op: Op, operands: Sequence[Shape]) -> bool:
    return operands[0].dtype is DType.F32


@op_kernel(SplatBoxes, kind="splat", supports=_is_f32)
def splat_boxes(site: OpSite) -> None:
    k, op = site.k, site.op
    assert isinstance(op, SplatBoxes)
    (outlines,), (boxes,) = site.inputs, site.outputs
    count = outlines.dims[0]
    with (
        k.parallel("part", k.ceildiv(count, TOGETHER)) as part,
        k.loop("rank", part * TOGETHER, k.min(part * TOGETHER + TOGETHER, count)) as rank,
    ):
        outline = _Outline(k, outlines, rank, op.tile_size)
        columns = outline.span(outline.x, outline.a, outline.c, op.columns)
        rows = outline.span(outline.y, outline.c, outline.a, op.rows)
        stop_row = k.select(outline.is_seen, rows[1] + 1, rows[0])
        nothing = [k.as_index(v) for v in (op.rows, -1, op.columns, -1, 0)]
        with k.fold("row", rows[0], stop_row, init=nothing) as by_row:
            row = by_row.index
            with k.fold("column", columns[0], columns[1] + 1, init=by_row.values) as found:
                column = found.index
                touched = outline.touches(row, column)
                low, high, left, right, tiles = found.values
                found.next(
                    k.select(touched, k.min(low, row), low),
                    k.select(touched, k.max(high, row), high),
                    k.select(touched, k.min(left, column), left),
                    k.select(touched, k.max(right, column), right),
                    k.select(touched, tiles + 1, tiles),
                )
            by_row.next(*found.results)
        low, high, left, right, tiles = by_row.results
        has_any = tiles > 0
        for line, value in (
            (FIRST_ROW, k.select(has_any, low, k.as_index(0))),
            (LAST_ROW, high),
            (FIRST_COLUMN, k.select(has_any, left, k.as_index(0))),
            (LAST_COLUMN, right),
            (TILES, tiles),
        ):
            k.store(boxes.buffer, count * line + rank, k.cast(value, DType.I32))


class _Blocks:
    """Goes through the outlines of one block after the other; `visit` gets the rank and the tile of each entry."""

    def __init__(self, site: OpSite) -> None:
        op = site.op
        assert isinstance(op, SplatTileCounts | SplatTileLists)
        self.k, self.op = site.k, op
        self.outlines, self.boxes, self.before = site.inputs[:3]
        self.count = self.outlines.dims[0]
        self.tiles = op.rows * op.columns

    def go_through(self, block: Value, visit: Callable[[Value, Value], None]) -> None:
        k = self.k
        length = k.max(k.ceildiv(self.count, BLOCKS), 1)
        start = k.min(block * length, self.count)
        with k.loop("rank", start, k.min(start + length, self.count)) as rank:
            first, last, left, right = (
                k.cast(k.load(self.boxes.buffer, self.count * line + rank), DType.I64)
                for line in (FIRST_ROW, LAST_ROW, FIRST_COLUMN, LAST_COLUMN)
            )
            room = self.op.limit - k.cast(k.load(self.before.buffer, rank), DType.I64)
            with k.when((first <= last) & (room > 0)):
                # Boxes come from the outlines; others must not lead out of the tiles.
                first, left = k.max(first, 0), k.max(left, 0)
                last, right = k.min(last, self.op.rows - 1), k.min(right, self.op.columns - 1)
                outline = _Outline(k, self.outlines, rank, self.op.tile_size)
                with k.fold("row", first, last + 1, init=[k.as_index(0)]) as by_row:
                    row = by_row.index
                    with k.fold("column", left, right + 1, init=by_row.values) as found:
                        number = found.values[0]
                        touched = outline.touches(row, found.index)
                        with k.when(touched & (number < room)):
                            visit(rank, row * self.op.columns + found.index)
                        found.next(k.select(touched, number + 1, number))
                    by_row.next(*found.results)


@op_kernel(SplatTileCounts, kind="splat", supports=_is_f32)
def splat_tile_counts(site: OpSite) -> None:
    blocks, k = _Blocks(site), site.k
    (counts,) = site.outputs
    with k.parallel("block", BLOCKS) as block:
        first = block * blocks.tiles
        with k.loop("tile", 0, blocks.tiles) as tile:
            k.store(counts.buffer, first + tile, 0)

        def add(rank: Value, tile: Value) -> None:
            k.store(counts.buffer, first + tile, k.load(counts.buffer, first + tile) + 1)

        blocks.go_through(block, add)


@op_kernel(SplatTileLists, kind="splat", supports=_is_f32)
def splat_tile_lists(site: OpSite) -> None:
    blocks, k = _Blocks(site), site.k
    order, starts = site.inputs[3:]
    lists, ends = site.outputs
    limit = blocks.op.limit
    with k.parallel("block", BLOCKS) as block:
        first = block * blocks.tiles
        with k.loop("tile", 0, blocks.tiles) as tile:
            k.store(ends.buffer, first + tile, k.load(starts.buffer, first + tile))

        def put(rank: Value, tile: Value) -> None:
            at = k.load(ends.buffer, first + tile)
            k.store(ends.buffer, first + tile, at + 1)
            # Starts come from counts that were made with the same numbers; others must not be trusted.
            place = k.cast(at, DType.I64)
            with k.when((place >= 0) & (place < limit)):
                k.store(lists.buffer, place, k.cast(k.load(order.buffer, rank), DType.F32))

        blocks.go_through(block, put)
        # Behind the last list there are zeros.
        with k.when(k.eq(block, BLOCKS - 1)):
            end = k.cast(k.load(ends.buffer, first + (blocks.tiles - 1)), DType.I64)
            with k.loop("rest", k.max(end, 0), limit) as rest:
                k.store(lists.buffer, rest, 0.0)
