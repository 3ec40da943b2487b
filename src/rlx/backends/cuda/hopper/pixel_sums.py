"""Kernels of products whose sums go over all pixels of all pictures, on Hopper's tensor cores: gradients of the weights
of convolutions.

    window_gradient    rows of A are what one tap sees of one channel, gathered pixel by pixel; B is dy, channels last
    pixel_matmul       both as they lie, channels first: the copy engine brings pixels of one picture after the other

There are few tiles and very long sums, so these are cut into parts: a block sums one part of one tile, and stores it by
itself. The rows of a part follow those of the part before.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cuda.hopper.epilogue import FinishCall
from rlx.backends.cuda.hopper.gathering import CHUNK_BYTES, CHUNKS, GatheringWriter, gatherers
from rlx.backends.cuda.hopper.instructions import Ring, copy_box
from rlx.backends.cuda.hopper.product import ProductWriter
from rlx.backends.cuda.hopper.product_shape import DEPTH, DEPTH_BYTES, ROWS, ProductShape, check_shape
from rlx.backends.cuda.hopper.writer import Val
from rlx.ops.lowered.window_gradients import WindowGradient


class PixelShape(NamedTuple):
    """Tiles of the product, its rows and parts, how many steps a part has at most, and how many there are in all; and
    those of one picture where it begins a new one."""

    tile: ProductShape
    rows: int
    parts: int
    each: int
    steps: int
    per_picture: int = 0


class _PartWriter(ProductWriter):
    """Tiles of all parts, those of one part after the other."""

    sums: PixelShape

    def tile_count(self) -> Val:
        return self.row_tiles * self.column_tiles * self.sums.parts

    def origin(self, tile: Val) -> tuple[Val, Val]:
        w, sums = self.w, self.sums
        each = self.row_tiles * self.column_tiles
        self.part = tile // each
        self.first_step = self.part * sums.each
        self.end_step = w.least(self.first_step + sums.each, sums.steps)
        w.assume(self.end_step > self.first_step)
        return super().origin(tile % each)

    def stored_row(self, row: Val) -> Val:
        sums = self.sums
        return self.w.select(row < sums.rows, self.part * sums.rows + row, sums.parts * sums.rows)


def pixel_product_text(name: str, sums: PixelShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module of `pixel_matmul`. Parameters: the tensor maps of both (pixel, channel, picture), tiles of rows,
    of columns and of depth (i32), then those of the epilogue."""
    check_shape(sums.tile)
    return _Pixels(name, sums, finish).text(triple)


class _Pixels(_PartWriter):
    def __init__(self, name: str, sums: PixelShape, finish: FinishCall) -> None:
        self.sums = sums
        super().__init__(name, sums.tile, finish)

    def declare_operands(self) -> None:
        self.map_a, self.map_b = (self.w.tensor_map(n) for n in ("map_a", "map_b"))
        self.declare_tiles()

    def copy_step(self, stage: Val, step: Val, row: Val, column: Val) -> None:
        a = self.memory + stage * self.shape.stage_bytes
        picture, pixel = step // self.sums.per_picture, step % self.sums.per_picture * DEPTH
        copy_box(self.w, a, self.map_a, (pixel, row, picture), self.full(stage))
        b = a + self.shape.rows * DEPTH_BYTES
        copy_box(self.w, b, self.map_b, (pixel, column, picture), self.full(stage))


class GradientOperands(NamedTuple):
    """The op whose gradient it is, and the dims of x and dy."""

    op: WindowGradient
    x: tuple[int, ...]
    dy: tuple[int, ...]


def window_gradient_text(
    name: str, sums: PixelShape, operands: GradientOperands, finish: FinishCall, triple: str
) -> str:
    """The LLVM module of `window_gradient`. Parameters: the tensor map of dy, the address of x (i64), tiles of rows,
    of columns and of depth (i32), then those of the epilogue."""
    check_shape(sums.tile)
    return _Windows(name, sums, operands, finish).text(triple)


class _Tap(NamedTuple):
    """What a thread reads of every pixel for one of its rows of 64: how far below and aside, from which byte of the
    channels on, and whether there is such a tap."""

    below: Val
    aside: Val
    byte: Val
    exists: Val


class _Windows(_PartWriter, GatheringWriter):
    """A lies along its rows: a line of shared memory is one pixel, with 64 rows of A."""

    def __init__(self, name: str, sums: PixelShape, operands: GradientOperands, finish: FinishCall) -> None:
        self.sums = sums
        self.op, self.picture, self.result = operands
        self.producers = gatherers(sums.tile.columns)
        super().__init__(name, sums.tile, finish)

    def produce(self) -> None:
        w, shape = self.w, self.shape
        self.give_registers()
        ring = Ring(w, shape.stages)
        with w.loop(self.first, self.tiles, self.stride) as tile:
            row, column = self.origin(tile)
            taps = [self.tap(row + slab * 64) for slab in range(ROWS // 64)]
            self.fill(
                ring,
                lambda to, depth, barrier: self.copy_b(to, self.map_b, column, depth, barrier),
                lambda stage, step: self.gather(stage, taps, step),
            )

    def tap(self, row: Val) -> _Tap:
        op, channels = self.op, self.picture[3]
        row = row + self.thread % CHUNKS * (CHUNK_BYTES // 2)
        tap = row // channels
        below, aside = tap // op.window[1] * op.dilation[0], tap % op.window[1] * op.dilation[1]
        return _Tap(below, aside, row % channels * 2, row < self.sums.rows)

    def gather(self, stage: Val, taps: list[_Tap], step: Val) -> None:
        """One chunk of each slab, of each pixel of this thread."""
        w, op = self.w, self.op
        _, height, width, channels = self.picture
        images, rows, columns, _ = self.result
        pixels = images * rows * columns
        count = DEPTH // self.lines
        for i in range(count):
            place = step * DEPTH + (self.thread // CHUNKS + i * self.lines)
            is_pixel = place < pixels
            place = w.least(place, pixels - 1)
            picture, inside = place // (rows * columns), place % (rows * columns)
            first = self.source + w.wide(picture) * (2 * height * width * channels)
            top = inside // columns * op.stride[0] - op.padding[0]
            left = inside % columns * op.stride[1] - op.padding[1]
            for slab, tap in enumerate(taps):
                row, column = top + tap.below, left + tap.aside
                # Before the first they are, as numbers without a sign, behind the last.
                has_row = w.emit(f"icmp ult i32 {row.name}, {height}", "i1")
                has_column = w.emit(f"icmp ult i32 {column.name}, {width}", "i1")
                is_there = tap.exists & is_pixel & has_row & has_column
                ahead = w.select(is_there, (row * width + column) * (2 * channels) + tap.byte, 0)
                size = w.select(is_there, CHUNK_BYTES, 0)
                self.put(stage, slab * count + i, first + w.wide(ahead), size)
