"""The kernel of a product over windows on Hopper's tensor cores: an implicit product, nothing is copied beforehand.

Rows of A are what windows see, tap by tap and channel by channel. Threads that fill the ring find the pixel of each tap
in the picture and bring 16 bytes of it at a time to where the copy engine would have put them; taps outside of the
picture become zeros. The copy engine brings tiles of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cuda.hopper.epilogue import FinishCall
from rlx.backends.cuda.hopper.gathering import CHUNK_BYTES, CHUNKS, GatheringWriter, gatherers
from rlx.backends.cuda.hopper.instructions import Ring
from rlx.backends.cuda.hopper.product_shape import ProductShape, check_shape
from rlx.backends.cuda.hopper.writer import Val
from rlx.ops.lowered.window_products import WindowMatMul

# Channels that a thread copies at a time.
UNIT = CHUNK_BYTES // 2


class WindowShape(NamedTuple):
    """Tiles of the product, the op, and the dims of the picture."""

    tile: ProductShape
    op: WindowMatMul
    picture: tuple[int, int, int, int]


def window_product_text(name: str, shape: WindowShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: the tensor map of the weights, the address of the picture (i64), tiles of rows, of
    columns and of depth (i32), then those of the epilogue."""
    check_shape(shape.tile)
    return _Windows(name, shape, finish).text(triple)


class _Line(NamedTuple):
    """A row of A: the address of its picture, where its window begins there, and that place's address; which of its
    taps see something, bit by bit, where they are known beforehand."""

    picture: Val
    row: Val
    column: Val
    start: Val
    seen: Val | None


class _Windows(GatheringWriter):
    def __init__(self, name: str, shape: WindowShape, finish: FinishCall) -> None:
        self.op, self.picture, self.producers = shape.op, shape.picture, gatherers(shape.tile.columns)
        super().__init__(name, shape.tile, finish)

    def produce(self) -> None:
        w, shape = self.w, self.shape
        self.give_registers()
        chunk, own = self.own_lines()
        ring = Ring(w, shape.stages)
        with w.loop(self.first, self.tiles, self.stride) as tile:
            row, column = self.origin(tile)
            lines = [self.line(row + number) for number in own]
            self.fill(
                ring,
                lambda to, depth, barrier: self.copy_b(to, self.map_b, column, depth, barrier),
                lambda stage, step: self.gather(stage, lines, step * CHUNKS + chunk),
            )

    def line(self, place: Val) -> _Line:
        """Places behind the last one are as the last; they are not stored."""
        w, op = self.w, self.op
        images, height, width, channels = self.picture
        pixels = op.result[0] * op.result[1]
        place = w.least(place, images * pixels - 1)
        image, inside = place // pixels, place % pixels
        row = inside // op.result[1] * op.stride[0] - op.padding[0]
        column = inside % op.result[1] * op.stride[1] - op.padding[1]
        picture = self.source + w.wide(image) * (2 * height * width * channels)
        ahead = w.emit(f"sext i32 {((row * width + column) * (2 * channels)).name} to i64", "i64")
        return _Line(picture, row, column, picture + ahead, self.seen(row, column) if self.has_bits else None)

    @property
    def has_bits(self) -> bool:
        """Whether taps of a window are as many as the bits of a word, and lie at the same distance in all windows."""
        return self.op.window[0] * self.op.window[1] <= 64 and set(self.op.spread) == {1}

    @property
    def bits(self) -> str:
        return "i32" if self.op.window[0] * self.op.window[1] <= 32 else "i64"

    def seen(self, row: Val, column: Val) -> Val:
        """A bit for every tap that is inside of the picture."""
        w, op, kind = self.w, self.op, self.bits
        _, height, width, _ = self.picture

        def inside(place: Val, size: int, bits: Val) -> Val:
            is_there = w.emit(f"icmp ult i32 {place.name}, {size}", "i1")
            return w.select(is_there, bits, 0, kind)

        across = w.value(0, kind)
        for b in range(op.window[1]):
            across = across | inside(column + b * op.dilation[1], width, w.value(1 << b, kind))
        found = w.value(0, kind)
        for a in range(op.window[0]):
            found = found | inside(row + a * op.dilation[0], height, across << a * op.window[1])
        return found

    def gather(self, stage: Val, lines: list[_Line], number: Val) -> None:
        """A chunk of each line of this thread, by its number along K."""
        w, op = self.w, self.op
        _, height, width, channels = self.picture
        tap, part = number // (channels // UNIT), number % (channels // UNIT)
        below, aside = tap // op.window[1] * op.dilation[0], tap % op.window[1] * op.dilation[1]
        is_tap = tap < op.window[0] * op.window[1]
        if self.has_bits:
            kind = self.bits
            place = tap if kind == "i32" else w.wide(tap)
            bit = w.select(is_tap, w.value(1, kind) << (place & (31 if kind == "i32" else 63)), 0, kind)
            ahead = w.wide((below * width + aside) * (2 * channels) + part * CHUNK_BYTES)
            for i, line in enumerate(lines):
                assert line.seen is not None
                is_there = w.emit(f"icmp ne {kind} {(line.seen & bit).name}, 0", "i1")
                # Nothing is read at addresses beyond the picture: no byte of them is asked for.
                self.put(stage, i, line.start + ahead, w.select(is_there, CHUNK_BYTES, 0))
            return
        for i, line in enumerate(lines):
            row, has_row = self.met(line.row + below, height, op.spread[0])
            column, has_column = self.met(line.column + aside, width, op.spread[1])
            is_there = is_tap & has_row & has_column
            pixel = (row * width + column) * (2 * channels) + part * CHUNK_BYTES
            ahead = w.select(is_there, pixel, 0)
            size = w.select(is_there, CHUNK_BYTES, 0)
            self.put(stage, i, line.picture + w.wide(ahead), size)

    def met(self, place: Val, size: int, spread: int) -> tuple[Val, Val]:
        """The row or column at a place of a picture that is spread out, and whether there is one. Places before the
        first are, as numbers without a sign, behind the last."""
        found = place // spread if spread > 1 else place
        is_there = self.w.emit(f"icmp ult i32 {found.name}, {size}", "i1")
        return found, is_there & (found * spread).equals(place) if spread > 1 else is_there
