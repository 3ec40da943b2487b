"""Gradients with respect to the weights of first layers: few channels, seen by large windows.

The taps of all channels are the rows of a product with positions as its depth, and output channels are its columns:

    dwᵀ[(c, taps..), o] = Σ over images and positions p of x[c, p·stride + tap·dilation - padding]·dy[o, p]

A tap reads x where it is: the part of a picture that some rows of positions see is copied as it lies, with zeros around
it, and an element stands for all taps that meet it. What windows see is never written out; only dy is turned.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BlockShape
from rlx.kernels.cpu.matmul.tiles import in_vectors, transposed
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.conv_tiles import BlockParts, ConvTiles, Panel, RowOperand, Step, part_sizes
from rlx.kernels.ir.extents import unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.convolution_gradients import Conv2dBackwardWeight

# Channels that are few, positions of a step at most, and bytes of a part of a picture at most.
FEW_CHANNELS, STEP_POSITIONS, PICTURE_BYTES = 16, 256, 96 << 10
# Sums of a register tile, rows of one at most, and rows of a block for which it pays to turn dy once more.
TILE_SUMS, MOST_TILE_ROWS, MANY_ROWS = 24, 12, 192


class TapAxis(NamedTuple):
    """One axis of x and of positions; `step` positions along it are computed together."""

    taps: int
    stride: int
    dilation: int
    padding: int
    size: int
    positions: int
    step: int

    @property
    def seen(self) -> int:
        """How many elements all taps of a step see."""
        return (self.step - 1) * self.stride + (self.taps - 1) * self.dilation + 1


def tap_axes(site: OpSite) -> tuple[TapAxis, TapAxis] | None:
    """Rows and columns of pictures, where this way is the better one; None elsewhere."""
    op, machine, (x, dy) = site.op, site.machine, site.inputs
    assert isinstance(op, Conv2dBackwardWeight)
    dims = (*x.shape.dims, *dy.shape.dims)
    sizes = [d for d in dims if isinstance(d, int)]
    if len(sizes) < len(dims) or 0 in sizes or op.spatial_rank > 2:
        return None
    acc = compute_dtype(dy.shape.dtype)
    reads, writes = (sizes[at] // op.groups for at in (1, 3 + op.spatial_rank))
    if reads > FEW_CHANNELS or writes < machine.lanes(acc) or math.prod(op.kernel_size) < 2:
        return None
    settings = list(zip(op.kernel_size, op.stride, op.dilation, op.padding, sizes[2:], sizes[4 + op.spatial_rank :]))
    if len(settings) == 1:
        settings.insert(0, (1, 1, 1, 0, 1, 1))
    height, width = (s[-1] for s in settings)
    steps = (min(height, max(1, STEP_POSITIONS // width)), min(width, STEP_POSITIONS))
    first, last = (TapAxis(*s) for s in ((*settings[0], steps[0]), (*settings[1], steps[1])))
    fits = reads * first.seen * _pitch(machine, acc, last) * acc.size_bytes <= PICTURE_BYTES
    return (first, last) if fits else None


def _pitch(machine: Machine, acc: DType, last: TapAxis) -> int:
    """Elements from one row of a part of a picture to the next: whole vectors."""
    lanes = machine.lanes(acc)
    return -(-last.seen // lanes) * lanes


class TapRows:
    def __init__(self, site: OpSite, axes: tuple[TapAxis, TapAxis]) -> None:
        assert isinstance(site.op, Conv2dBackwardWeight)
        k = self.k = site.k
        self.op, self.machine, self.axes = site.op, site.machine, axes
        (self.x, self.dy), (self.dw,) = site.inputs, site.outputs
        self.acc = acc = compute_dtype(self.dw.shape.dtype)
        self.writes, self.reads, *_ = (int(d) for d in self.dw.shape.dims if isinstance(d, int))
        self.writes //= site.op.groups
        self.rows = self.reads * math.prod(site.op.kernel_size)
        self.pitch = _pitch(site.machine, acc, axes[1])
        self.shape = self._shape()
        steps = self.shape.depth + self.shape.lanes
        self.picture = k.local("picture", acc, self.reads * axes[0].seen * self.pitch)
        self.panel = Panel(k.local("panel", acc, steps * self.shape.columns), self.shape.columns)
        self.places = k.local("places", DType.I64, self.shape.depth)
        self.begins = k.local("begins", DType.I64, self.shape.rows)
        parts = BlockParts(part_sizes(self.rows, self.shape.rows), part_sizes(self.writes, self.shape.columns))
        self.tiles = ConvTiles(k, self.shape, acc, self.panel, parts)

    def _shape(self) -> BlockShape:
        """A block: all taps and a few vectors of output channels, or half of the taps where that gives an even number
        of blocks, or there are many of them."""
        lanes = self.machine.lanes(self.acc)
        most = 4 if self.machine.vector_registers >= 32 else 2
        count = -(-self.writes // lanes)
        vectors = next((v for v in range(most, 0, -1) if count % (2 * v) == 0), min(most, count))
        is_odd = -(-count // vectors) % 2 == 1
        tile_rows = max(2, min(MOST_TILE_ROWS, TILE_SUMS * most // 4 // vectors // 2 * 2))
        parts = (2 if is_odd and self.rows > tile_rows else 1) * (2 if self.rows >= MANY_ROWS else 1)
        tiles = -(-self.rows // (parts * tile_rows))
        return BlockShape(lanes, vectors, tile_rows, tiles * tile_rows, 1, self.axes[0].step * self.axes[1].step, 0)

    def build(self) -> None:
        k, shape = self.k, self.shape
        row_blocks, column_blocks = -(-self.rows // shape.rows), -(-self.writes // shape.columns)
        sizes = [k.as_index(n) for n in (self.op.groups, column_blocks, row_blocks)]
        with k.parallel("block", self.op.groups * column_blocks * row_blocks) as number:
            group, column_block, row_block = unflatten(number, sizes)
            row, column = row_block * shape.rows, column_block * shape.columns
            rows, columns = k.min(self.rows - row, shape.rows), k.min(self.writes - column, shape.columns)
            self.find_places(row, rows)
            self.block(group, rows, column, columns)
            self.finish(group, row, rows, column, columns)

    def find_places(self, row: Value, rows: Value) -> None:
        """Where taps begin in a part of a picture, and where positions are from there on."""
        k, (first, last) = self.k, self.axes
        with k.loop("tap", 0, rows) as tap:
            sizes = [k.as_index(n) for n in (self.reads, first.taps, last.taps)]
            channel, down, across = unflatten(row + tap, sizes)
            line = channel * first.seen + down * first.dilation
            k.store(self.begins, tap, line * self.pitch + across * last.dilation)
        with k.loop("down", 0, first.step) as down, k.loop("across", 0, last.step) as across:
            place = down * (first.stride * self.pitch) + across * last.stride
            k.store(self.places, down * last.step + across, place)

    def block(self, group: Value, rows: Value, column: Value, columns: Value) -> None:
        """Step by step over all positions: some rows of them, or a part of one."""
        k, (first, last), zero = self.k, self.axes, self.k.as_index(0)
        operand = RowOperand(self.picture, zero, zero, self.places, self.begins)
        with (
            k.loop("image", 0, self.x.dims[0]) as image,
            k.loop("down", 0, first.positions, first.step) as down,
            k.loop("across", 0, last.positions, last.step) as across,
        ):
            count = k.min(first.positions - down, first.step) * k.min(last.positions - across, last.step)
            self.see(image * self.op.groups + group, down, across)
            channel = (image * self.op.groups + group) * self.writes + column
            self.turn(channel, columns, down * last.positions + across, count)
            self.tiles.add(Step(operand, rows, columns, count, k.eq(image + down + across, 0)))

    def see(self, group: Value, down: Value, across: Value) -> None:
        """What windows from a position on see of all channels of a group, zeros where there is nothing."""
        k, (first, last), lanes = self.k, self.axes, self.shape.lanes
        with k.loop("channel", 0, self.reads) as channel, k.loop("line", 0, first.seen) as line:
            row = down * first.stride + line - first.padding
            is_there = (row >= 0) & (row < first.size)
            start = ((group * self.reads + channel) * first.size + row) * last.size
            to = (channel * first.seen + line) * self.pitch
            with k.loop("at", 0, last.seen, lanes) as at:
                column = across * last.stride + at - last.padding
                mask = k.lane_mask(k.select(is_there, last.size - column, 0), lanes) & ~k.lane_mask(-column, lanes)
                value = k.load(self.x.buffer, start + column, lanes=lanes, mask=mask)
                k.store(self.picture, to + at, k.cast(value, self.acc))

    def turn(self, channel: Value, columns: Value, first: Value, count: Value) -> None:
        """dy at some positions, output channels side by side; after the last channel come copies of it."""
        k, lanes, size = self.k, self.shape.lanes, self.axes[0].positions * self.axes[1].positions
        read = self.tiles.columns_read(columns)
        # Position after position of a few channels: so many lines of memory are read ahead.
        with k.loop("column", 0, read, lanes) as column:
            rows = [(channel + k.min(column + i, columns - 1)) * size + first for i in range(lanes)]
            with k.loop("at", 0, count, lanes) as at:
                mask = k.lane_mask(count - at, lanes)
                vectors = [k.cast(k.load(self.dy.buffer, r + at, lanes=lanes, mask=mask), self.acc) for r in rows]
                for i, vector in enumerate(transposed(k, vectors)):
                    k.store(self.panel.buffer, (at + i) * self.panel.pitch + column, vector)

    def finish(self, group: Value, row: Value, rows: Value, column: Value, columns: Value) -> None:
        k, width = self.k, self.shape.columns
        has_masks = self.shape.lanes > 1 and self.machine.has_masked_access(self.dw.buffer.dtype)
        with k.loop("done", 0, columns) as done:
            to = (group * self.writes + column + done) * self.rows + row

            def store(at: Value, lanes: int, mask: Value | None) -> None:
                # The sums of a block are whole tiles, but not whole vectors of rows.
                value = k.load(self.tiles.sums, at * width + done, lanes=lanes, stride=width, mask=mask)
                k.store(self.dw.buffer, to + at, k.cast(value, self.dw.buffer.dtype), mask=mask)

            in_vectors(k, "at", rows, self.shape.lanes, has_masks, store)
