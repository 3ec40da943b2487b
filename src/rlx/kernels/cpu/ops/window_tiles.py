"""Windows of pictures whose channels lie side by side, times weights, in register tiles of the products of matrices.

An iteration computes some rows and columns of one picture. What its windows see is copied to scratch once, with the
zeros around the picture: from there the pixels that neighbouring windows see at the same taps lie a fixed distance
apart, so that each row of taps is a product of a matrix that is read where it is.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.kernels.cpu.matmul.blocks import BlockShape, block_shape
from rlx.kernels.cpu.matmul.tiles import (
    MatrixView,
    TileStep,
    copy_gathered,
    copy_panel,
    copy_transposed,
    in_vectors,
    panel_tile,
)
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Const, Value, ValueType
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.lowered.window_products import WindowMatMul

# Positions of a block, of a row of them, and columns of its sums, about.
POSITIONS, WIDEST, COLUMNS = 128, 64, 128
# Elements of what windows see, and lines of weights, in a step along the channels.
SEEN, LINES = 32 << 10, 256


class _Block(NamedTuple):
    """Some positions of a picture, and columns of the result from `column` on."""

    image: Value
    row: Value
    rows: Value
    place: Value
    places: Value
    column: Value
    columns: Value


class _Sizes(NamedTuple):
    """How the positions, channels and outputs of a product over windows are cut, and what a block keeps in scratch."""

    shape: BlockShape
    columns: int
    block_rows: int
    block_places: int
    seen_rows: int
    seen_places: int
    # Taps of a row that lie side by side in what is seen: one product takes them all.
    joined_taps: int
    # Channels that are copied and multiplied before the next ones.
    step: int

    @property
    def seen(self) -> int:
        return self.seen_rows * self.seen_places * self.step

    @property
    def row_of_sums(self) -> int:
        """A tile may have one position more than there are."""
        return (self.block_places + 1) * self.columns

    @property
    def panel(self) -> int:
        return self.joined_taps * self.step * self.shape.width

    @property
    def scratch(self) -> int:
        """Elements of all scratch."""
        return self.seen + self.block_rows * self.row_of_sums + self.panel


def _sizes(site: OpSite) -> _Sizes:
    op, (x, w), (y,) = site.op, site.inputs, site.outputs
    assert isinstance(op, WindowMatMul)
    rows, places = op.result
    channels, outputs = int(x.shape.dims[3]), int(w.shape.static_dims[0])
    shape = block_shape(site.machine, compute_dtype(y.shape.dtype), outputs, copies_b=True)
    columns = min(-(-outputs // shape.width), max(1, COLUMNS // shape.width)) * shape.width
    # Blocks of equal width, as far as whole tiles allow.
    in_part = -(-places // -(-places // WIDEST))
    block_places = min(places, -(-in_part // shape.tile_rows) * shape.tile_rows)
    block_rows = max(1, min(rows, POSITIONS // block_places))
    seen_rows, seen_places = (
        (count - 1) * stride + (taps - 1) * dilation + 1
        for count, stride, taps, dilation in zip((block_rows, block_places), op.stride, op.window, op.dilation)
    )
    joined_taps = op.window[1] if op.dilation[1] == 1 and op.window[1] <= LINES else 1
    most = max(1, min(SEEN // (seen_rows * seen_places), LINES // joined_taps))
    step = channels if most >= channels else max(1, most // shape.lanes * shape.lanes)
    return _Sizes(shape, columns, block_rows, block_places, seen_rows, seen_places, joined_taps, step)


def has_tiles(site: OpSite) -> bool:
    """Whether windows of a site are taken this way: all pixels are there, sizes are known, and scratch holds what the
    windows of one block see. That of windows with thousands of taps, or taps that far apart, may be too much."""
    assert isinstance(site.op, WindowMatMul)
    shapes = (site.inputs[0].shape, site.outputs[0].shape)
    is_known = all(isinstance(d, int) and d > 0 for shape in shapes for d in shape.dims[1:])
    if not is_known or set(site.op.spread) != {1} or not site.machine.holds_windows:
        return False
    return _sizes(site).scratch * compute_dtype(shapes[1].dtype).size_bytes <= site.machine.line_bytes


class WindowTiles:
    """y[n, p, q, o] as `WindowMatMul` has it."""

    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, WindowMatMul)
        k = self.k = site.k
        self.op, self.machine = site.op, site.machine
        (self.x, self.w), (self.y,) = site.inputs, site.outputs
        self.acc = compute_dtype(self.y.shape.dtype)
        _, self.height, self.width, self.channels = (int(d) if isinstance(d, int) else 0 for d in self.x.shape.dims)
        sizes = _sizes(site)
        self.shape, self.columns, self.block_rows, self.block_places = sizes[:4]
        self.seen_rows, self.seen_places, self.joined_taps, self.step = sizes[4:]
        self.row_of_sums = sizes.row_of_sums
        self.seen = k.local("seen", self.acc, sizes.seen)
        self.sums = k.local("sums", self.acc, self.block_rows * self.row_of_sums)
        self.zero = k.as_index(0)
        self.lies_in_lines, self.lies_along = (
            isinstance(stride, Const) and stride.literal == 1 for stride in self.w.strides
        )
        is_panel = self.lies_in_lines and self.w.shape.dims[0] == self.shape.width and self.step == self.channels
        is_panel = is_panel and self.w.buffer.dtype is self.acc
        self.panel = None if is_panel else k.local("panel", self.acc, sizes.panel)

    def build(self) -> None:
        k, (rows, places) = self.k, self.op.result
        outputs = self.y.dims[3]
        sizes = [
            self.y.dims[0],
            k.as_index(-(-rows // self.block_rows)),
            k.as_index(-(-places // self.block_places)),
            k.ceildiv(outputs, self.columns),
        ]
        with k.parallel("block", total(k, sizes)) as number:
            image, row_block, place_block, column_block = unflatten(number, sizes)
            row, place, column = (
                n * size
                for n, size in zip(
                    (row_block, place_block, column_block), (self.block_rows, self.block_places, self.columns)
                )
            )
            held = k.min(self.y.dims[1] - row, self.block_rows), k.min(self.y.dims[2] - place, self.block_places)
            block = _Block(image, row, held[0], place, held[1], column, k.min(outputs - column, self.columns))
            with k.loop("step", 0, self.channels, self.step) as first:
                is_whole = self.step == self.channels
                channels = k.as_index(self.step) if is_whole else k.min(self.x.dims[3] - first, self.step)
                self.see(block, first, channels)
                self.multiply(block, first, channels)
            self.finish(block)

    def see(self, block: _Block, first: Value, channels: Value) -> None:
        """Copy what the windows of a block see of some channels; beyond the picture are zeros."""
        k, op, lanes = self.k, self.op, self.shape.lanes
        has_masks = lanes > 1 and self.machine.has_masked_access(self.x.buffer.dtype)
        top, left = block.row * op.stride[0] - op.padding[0], block.place * op.stride[1] - op.padding[1]
        with k.loop("seen_row", 0, self.seen_rows) as i:
            row = top + i
            has_row = (row >= 0) & (row < self.height)
            line = self.x.at(block.image, row, 0, first)
            with k.loop("seen_place", 0, self.seen_places) as j:
                place = left + j
                to = (i * self.seen_places + j) * channels
                source = line + self.x.strides[2] * place

                def copy(c: Value, width: int, mask: Value | None) -> None:
                    value = k.load(self.x.buffer, source + c, lanes=width, mask=mask)
                    k.store(self.seen, to + c, k.cast(value, self.acc), mask=mask)

                def blank(c: Value, width: int, mask: Value | None) -> None:
                    k.store(self.seen, to + c, k.const(0, ValueType(self.acc, width)), mask=mask)

                with k.when(has_row & (place >= 0) & (place < self.width)):
                    in_vectors(k, "c", channels, lanes, has_masks, copy)
                with k.otherwise():
                    in_vectors(k, "c", channels, lanes, has_masks, blank)

    def multiply(self, block: _Block, first: Value, channels: Value) -> None:
        """Add what some channels give, one row of taps after the other, to the sums of all panels."""
        k, (rows, places), shape = self.k, self.op.window, self.shape
        is_first = k.eq(first, 0)
        with (
            k.loop("panel", 0, block.columns, shape.width) as inside,
            k.loop("tap_row", 0, rows) as a,
            k.loop("tap", 0, places, self.joined_taps) as b,
        ):
            tap = a * places + b
            panel = self.weights(block.column + inside, tap, first, channels)
            is_new = is_first & k.eq(tap, 0)
            lines = channels * self.joined_taps
            with k.loop("row", 0, block.rows) as row:
                seen_row = row * self.op.stride[0] + a * self.op.dilation[0]
                start = (seen_row * self.seen_places + b * self.op.dilation[1]) * channels
                pixels = MatrixView(self.seen, start, channels * self.op.stride[1], k.as_index(1))
                place = row * self.row_of_sums + inside
                sums = MatrixView(self.sums, place, k.as_index(self.columns), k.as_index(1))
                self.tiles(block.places, TileStep(pixels, panel, lines, sums, is_new))

    def weights(self, column: Value, tap: Value, first: Value, channels: Value) -> MatrixView:
        """The weights of some columns for the channels of neighbouring taps, as lines of a panel."""
        k, shape, w = self.k, self.shape, self.w
        width, one = k.as_index(shape.width), k.as_index(1)
        start = w.at(column, tap * self.channels + first)
        if self.panel is None:
            return MatrixView(w.buffer, start, w.strides[1], one)
        to = MatrixView(self.panel, self.zero, width, one)
        last = k.min(w.dims[0] - column, shape.width) - 1
        has_masks = shape.lanes > 1 and self.machine.has_masked_access(w.buffer.dtype)
        with k.loop("joined", 0, self.joined_taps) as joined:
            source = MatrixView(w.buffer, start + w.strides[1] * (joined * self.channels), w.strides[1], w.strides[0])
            part = to.moved(joined * channels, 0)
            if self.lies_along and shape.lanes > 1:
                copy_transposed(k, source, part, channels, last, shape.lanes, shape.vectors)
            elif not self.lies_in_lines:
                copy_gathered(k, source, part, channels, last, shape.lanes, shape.vectors)
            else:
                copy_panel(k, source, part, channels, last + 1, (shape.lanes, shape.vectors), has_masks)
        return to

    def tiles(self, places: Value, step: TileStep) -> None:
        """All positions of a row times one panel; where a tile is not full, its last position stands in."""
        k, size = self.k, self.shape.tile_rows
        whole = places // size * size
        with k.loop("place", 0, whole, size) as place:
            panel_tile(k, size, self.shape, step.from_row(place))
        left, below = places - whole, 0
        rest = step._replace(a=step.a._replace(last_row=places - 1)).from_row(whole)
        for count in self.shape.row_counts:
            with k.when((left > below) & (left <= count)):
                for_count = rest if count > 1 else rest._replace(a=rest.a._replace(last_row=None))
                panel_tile(k, count, self.shape, for_count)
            below = count

    def finish(self, block: _Block) -> None:
        """The sums to where they belong."""
        k, y, lanes = self.k, self.y, self.shape.lanes
        has_masks = lanes > 1 and self.machine.has_masked_access(y.buffer.dtype)
        with k.loop("row", 0, block.rows) as row, k.loop("place", 0, block.places) as place:
            source = row * self.row_of_sums + place * self.columns
            to = y.at(block.image, block.row + row, block.place + place, block.column)

            def store(j: Value, width: int, mask: Value | None) -> None:
                value = k.load(self.sums, source + j, lanes=width)
                k.store(y.buffer, to + j, k.cast(value, y.buffer.dtype), mask=mask)

            in_vectors(k, "j", block.columns, lanes, has_masks, store)
