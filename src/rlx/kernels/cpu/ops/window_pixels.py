"""What the windows of a block see of a picture, copied to scratch with the zeros around it.

From there the pixels that a window sees at one row of its taps lie side by side, and those of neighbouring windows a
fixed distance apart, also at the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlx.compile.fuse.matmul_nest import WindowForm
from rlx.kernels.cpu.matmul.tiles import in_vectors
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType


class BlockPlaces(NamedTuple):
    """Positions of one block: some rows of some places each, at most."""

    rows: int
    places: int

    @property
    def total(self) -> int:
        return self.rows * self.places


class SeenSize(NamedTuple):
    """How many rows and places of a picture the windows of a block see."""

    rows: int
    places: int


def seen_size(windows: WindowForm, block: BlockPlaces) -> SeenSize:
    settings = zip(block, windows.stride, windows.window, windows.dilation)
    rows, places = ((count - 1) * step + (taps - 1) * apart + 1 for count, step, taps, apart in settings)
    return SeenSize(rows, places)


def block_places(windows: WindowForm, channels: int, most: int, most_seen: int, widest: int) -> BlockPlaces:
    """Positions of a block: of about equal width and height, at most so many, that see at most so many elements of so
    many channels, as far as a row of windows allows."""
    rows, width = windows.result
    places = -(-width // -(-width // widest))

    def fits(count: int) -> bool:
        seen = seen_size(windows, BlockPlaces(count, places))
        return count * places <= most and seen.rows * seen.places * channels <= most_seen

    most_rows = max((n for n in range(1, rows + 1) if fits(n)), default=1)
    return BlockPlaces(-(-rows // -(-rows // most_rows)), places)


class Source(NamedTuple):
    """Pictures in memory: pixel (row, place) begins at start + row*row_stride + place*place_stride. Where
    `is_joined`, a row of pixels with the channels that are copied is one run of elements."""

    buffer: Buffer
    start: Value
    row_stride: Value
    place_stride: Value
    is_joined: bool


class SeenPixels:
    """`rows` x `places` pixels in scratch, each with `pitch` elements from the one before."""

    def __init__(
        self, k: KernelBuilder, to: Buffer, size: SeenSize, lanes: int, has_masks: bool, zero: int = 0
    ) -> None:
        """`zero` is what is beyond the picture."""
        self.k, self.to, self.size, self.lanes, self.has_masks, self.zero = k, to, size, lanes, has_masks, zero

    def copy(self, source: Source, windows: WindowForm, top: Value, left: Value, channels: Value, pitch: Value) -> None:
        """The pixels from row `top` and place `left` on, which may be outside; beyond the picture is `zero`."""
        k, (rows, places) = self.k, self.size
        first = k.max(k.min(-left, places), 0)
        end = k.max(k.min(k.as_index(windows.width) - left, places), first)
        with k.loop("seen_row", 0, rows) as i:
            row, to = top + i, i * places * pitch
            is_there = (row >= 0) & (row < windows.height)
            line = source.start + row * source.row_stride
            with k.when(is_there):
                self.blank(to, first * pitch)
                self.blank(to + end * pitch, (k.as_index(places) - end) * pitch)
                if source.is_joined:
                    self.run(
                        source.buffer, line + (left + first) * channels, to + first * pitch, (end - first) * channels
                    )
                else:
                    with k.loop("seen_place", first, end) as j:
                        at = line + (left + j) * source.place_stride
                        self.run(source.buffer, at, to + j * pitch, channels)
            with k.otherwise():
                self.blank(to, places * pitch)

    def run(self, source: Buffer, start: Value, to: Value, count: Value) -> None:
        k = self.k

        def copy(c: Value, width: int, mask: Value | None) -> None:
            value = k.load(source, start + c, lanes=width, mask=mask)
            k.store(self.to, to + c, k.cast(value, self.to.dtype), mask=mask)

        self.vectors("c", count, copy)

    def blank(self, to: Value, count: Value) -> None:
        k = self.k

        def store(c: Value, width: int, mask: Value | None) -> None:
            k.store(self.to, to + c, k.const(self.zero, ValueType(self.to.dtype, width)), mask=mask)

        self.vectors("blank", count, store)

    def vectors(self, name: str, count: Value, body: Callable[[Value, int, Value | None], None]) -> None:
        in_vectors(self.k, name, count, self.lanes, self.has_masks, body)
