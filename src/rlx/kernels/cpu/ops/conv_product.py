"""Convolution and its adjoint as products of the weights with what windows see (`conv_lines`).

A parallel iteration computes some output channels at some tens of positions. Step by step along the channels that are
read it copies lines into a panel, and register tiles add weights times lines to its sums. Weights are read where they
are. In the adjoint of a convolution with strides, positions are computed together that meet the same taps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BlockShape, block_shape
from rlx.kernels.cpu.matmul.tiles import in_vectors
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.conv_lines import LineAxis, LinePart, Lines, plain_axis
from rlx.kernels.cpu.ops.conv_tiles import BlockParts, ConvTiles, Panel, RowOperand, Step, part_sizes
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.convolution import ConvBase

# Lines of one step: with what is stored beyond the ends of lines, a panel is some tens of KiB.
STEP_LINES = 256
# Blocks that several threads share evenly enough, and tiles of a block for which lines are worth copying.
ENOUGH_BLOCKS, LEAST_TILES = 6, 2


class _Block(NamedTuple):
    """What one iteration computes; rows are output channels of a group, columns positions of a phase."""

    image: Value
    group: Value
    row: Value
    rows: Value
    column: Value
    columns: Value


class ConvProduct:
    """y[n, o, p..] = Σ over channels c and taps of x[n, c, ..]·w[..]; w is [o, c, taps..], or [c, o, taps..] in the
    backward direction, the second axis within the group."""

    def __init__(self, site: OpSite, is_backward: bool) -> None:
        assert isinstance(site.op, ConvBase)
        k = self.k = site.k
        self.op, self.machine, self.is_backward = site.op, site.machine, is_backward
        (self.x, self.w), (self.y,) = site.inputs, site.outputs
        self.acc = compute_dtype(self.y.shape.dtype)
        self.reads, self.writes = (slab.dims[1] // site.op.groups for slab in (self.x, self.y))
        self.kernel_taps = total(k, [k.as_index(n) for n in site.op.kernel_size])
        self.shape = self._shape()
        self.step = k.as_index(self.shape.columns)
        self.pitch = self.shape.columns + self.shape.lanes
        self.panel = k.local("panel", self.acc, self.shape.depth * self.pitch + self.shape.lanes)
        self.tiles = ConvTiles(k, self.shape, self.acc, Panel(self.panel, self.pitch), self._parts())
        self.places = k.local("places", DType.I64, self.shape.depth) if is_backward else None
        size = self.shape.rows * self.shape.depth
        self.copied = k.local("weights", self.acc, size) if is_backward and self._reads_weights_once() else None

    def _shape(self) -> BlockShape:
        found = block_shape(self.machine, self.acc, "n", copies_b=True, copies_a=False, reuse=2)
        taps = math.prod(self.op.kernel_size)
        return found._replace(rows=self._rows(found), depth=taps * max(1, STEP_LINES // taps))

    def _rows(self, shape: BlockShape) -> int:
        """Rows of a block: fewer where there would be too few blocks to deal out."""
        images, writes, *sizes = self.y.shape.dims
        if not isinstance(writes, int) or not all(isinstance(d, int) for d in (images, *sizes)):
            return shape.rows
        strides = self.op.stride if self.is_backward else (1,) * len(sizes)
        positions = math.prod(-(-d // s) for d, s in zip(sizes, strides) if isinstance(d, int))
        others = int(images) * self.op.groups * math.prod(strides) * -(-positions // shape.columns)
        tiles, most = -(-(writes // self.op.groups) // shape.tile_rows), shape.rows // shape.tile_rows
        wanted = -(-ENOUGH_BLOCKS // max(1, others))
        # An even number of blocks, as full as can be.
        counts = [n for n in range(2, wanted + 1, 2) if 2 * n >= wanted and LEAST_TILES <= -(-tiles // n) <= most]
        if not counts:
            return shape.rows
        count = min(counts, key=lambda n: (-(-tiles // n) * n, -n))
        return -(-tiles // count) * shape.tile_rows

    def _parts(self) -> BlockParts:
        """The rows and columns of blocks, as `build` and `axes` cut them."""
        _, writes, *sizes = self.y.shape.dims
        rows = None
        if isinstance(writes, int):
            tiles = -(-(writes // self.op.groups) // self.shape.tile_rows)
            blocks = max(1, -(-tiles // (self.shape.rows // self.shape.tile_rows)))
            rows = part_sizes(writes // self.op.groups, max(1, -(-tiles // blocks)) * self.shape.tile_rows)
        known = [d for d in sizes if isinstance(d, int)]
        if len(known) < len(sizes):
            return BlockParts(rows, None)
        strides = self.op.stride if self.is_backward else (1,) * len(known)
        # Positions along each axis of every phase.
        lengths = [{-(-(d - at) // s) for at in range(s)} for d, s in zip(known, strides)]
        positions = {max(0, math.prod(phase)) for phase in itertools.product(*lengths)}
        parts = [part_sizes(count, self.shape.columns) or () for count in positions]
        return BlockParts(rows, frozenset(itertools.chain.from_iterable(parts)))

    def _reads_weights_once(self) -> bool:
        """Whether there are so few positions that weights come from memory, not from a cache."""
        dims = self.y.shape.dims[2:]
        count = math.prod(d for d in dims if isinstance(d, int))
        is_known = all(isinstance(d, int) for d in dims)
        return is_known and count <= self.shape.columns and set(self.op.stride) == {1}

    @property
    def step_channels(self) -> int:
        return self.shape.depth // math.prod(self.op.kernel_size)

    def build(self) -> None:
        k, op, shape = self.k, self.op, self.shape
        phases = [k.as_index(s if self.is_backward else 1) for s in op.stride]
        most = [(size + (phase - 1)) // phase for size, phase in zip(self.y.dims[2:], phases)]
        tiles = k.ceildiv(self.writes, shape.tile_rows)
        row_blocks = k.ceildiv(tiles, shape.rows // shape.tile_rows)
        column_blocks = k.ceildiv(total(k, most), shape.columns)
        sizes = [self.y.dims[0], k.as_index(op.groups), *phases, column_blocks, row_blocks]
        with k.parallel("block", total(k, sizes)) as number:
            image, group, *phase, column_block, row_block = unflatten(number, sizes)
            height = (tiles + row_blocks - 1) // row_blocks * shape.tile_rows
            self.phase = phase
            self.lines = Lines(k, self.axes(phase), self.panel, self.pitch, shape.lanes)
            self.positions = total(k, [axis.positions for axis in self.lines.axes])
            row, column = row_block * height, column_block * self.step
            rows = k.max(k.min(height, self.writes - row), 0)
            columns = k.max(k.min(self.positions - column, self.step), 0)
            with k.when((rows > 0) & (columns > 0)):
                self.block(_Block(image, group, row, rows, column, columns))

    def axes(self, phase: Sequence[Value]) -> list[LineAxis]:
        """The axes of positions: all of them, or those that are `phase` behind a multiple of the stride."""
        k, op, axes = self.k, self.op, plain_axis(self.k, self.op, self.y.dims[2:])
        if axes is not None:
            return axes
        axes = []
        settings = zip(op.kernel_size, op.stride, op.dilation, op.padding, self.x.dims[2:], self.y.dims[2:], phase)
        for taps, stride, dilation, padding, size, positions, at in settings:
            if not self.is_backward:
                axes.append(LineAxis(k.as_index(taps), positions, size, stride, dilation, k.as_index(-padding)))
                continue
            first = (at + padding) % stride
            count = k.max((k.as_index(taps + stride - 1) - first) // stride, 0)
            shift = (at + padding - first) // stride
            left = (positions - at + (stride - 1)) // stride
            axes.append(LineAxis(count, left, size, 1, -dilation, shift))
        return axes

    def block(self, block: _Block) -> None:
        k = self.k
        # One step even where nothing is read: it stores the sums of nothing.
        with k.loop("step", 0, k.max(self.reads, 1), self.step_channels) as first:
            channels = k.max(k.min(self.reads - first, self.step_channels), 0)
            size = total(k, self.x.dims[2:])
            start = ((block.image * self.op.groups + block.group) * self.reads + first) * size
            end = block.column + block.columns
            part = LinePart(self.x.buffer, start, size, channels, block.column, end)
            self.lines.fill(part, self.tiles.columns_read(block.columns))
            weights = self.weights_in_step(block, first, channels)
            lines = channels * self.lines.taps
            self.tiles.add(Step(weights, block.rows, block.columns, lines, k.eq(first, 0)))
        self.finish(block)

    def weights_in_step(self, block: _Block, first: Value, channels: Value) -> RowOperand:
        """The weights of a block for channels from `first` on. In the backward direction those of neighbouring lines
        are far apart, but what the block needs of one channel lies side by side."""
        k, taps, between = self.k, self.kernel_taps, self.writes * self.kernel_taps
        if not self.is_backward:
            start = ((block.group * self.writes + block.row) * self.reads + first) * taps
            return RowOperand(self.w.buffer, start, self.reads * taps)
        start = ((block.group * self.reads + first) * self.writes + block.row) * taps
        if self.copied is None:
            self.find_places(channels, between)
            return RowOperand(self.w.buffer, start, taps, self.places)
        has_masks = self.shape.lanes > 1 and self.machine.has_masked_access(self.w.buffer.dtype)
        copied, distance = self.copied, self.shape.rows * taps
        with k.loop("channel", 0, channels) as channel:

            def copy(i: Value, width: int, mask: Value | None) -> None:
                value = k.load(self.w.buffer, start + channel * between + i, lanes=width, mask=mask)
                k.store(copied, channel * distance + i, k.cast(value, self.acc), mask=mask)

            in_vectors(k, "i", block.rows * taps, self.shape.lanes, has_masks, copy)
        self.find_places(channels, distance)
        return RowOperand(copied, k.as_index(0), taps, self.places)

    def find_places(self, channels: Value, distance: Value) -> None:
        """Where the weights of each line are, from those of the row on."""
        assert self.places is not None
        k, lines = self.k, self.lines
        with k.loop("channel", 0, channels) as channel, k.loop("tap", 0, lines.taps) as tap:
            place = k.as_index(0)
            settings = zip(self.phase, self.op.kernel_size, self.op.stride, self.op.padding)
            for index, (at, size, stride, padding) in zip(unflatten(tap, [a.taps for a in lines.axes]), settings):
                place = place * size + (index * stride + (at + padding) % stride)
            k.store(self.places, channel * lines.taps + tap, channel * distance + place)

    def finish(self, block: _Block) -> None:
        """The sums to where they belong."""
        k, y, lanes = self.k, self.y, self.shape.lanes
        size = total(k, y.dims[2:])
        has_masks = lanes > 1 and self.machine.has_masked_access(y.buffer.dtype)
        strides = self.op.stride if self.is_backward else (1,)
        with k.loop("done", 0, block.rows) as row:
            channel = (block.image * self.op.groups + block.group) * self.writes + block.row + row
            to = channel * size
            if set(strides) != {1}:
                self.spread(block, row, to)
            else:

                def store(j: Value, width: int, mask: Value | None) -> None:
                    value = k.load(self.tiles.sums, row * self.step + j, lanes=width)
                    k.store(y.buffer, to + block.column + j, k.cast(value, y.buffer.dtype), mask=mask)

                in_vectors(k, "j", block.columns, lanes, has_masks, store)

    def spread(self, block: _Block, row: Value, to: Value) -> None:
        """Sums of one row of a phase to every so many positions."""
        k, y, (*outer, last) = self.k, self.y, self.lines.axes
        stride = self.op.stride[-1]
        width = k.max(last.positions, 1)
        end = block.column + block.columns
        with k.loop("line_row", block.column // width, (end + (width - 1)) // width) as line:
            place = unflatten(line, [axis.positions for axis in outer])
            start = k.as_index(0)
            for at, phase, step, size in zip(place, self.phase, self.op.stride, y.dims[2:]):
                start = start * size + (at * step + phase)
            start = start * y.dims[-1] + self.phase[-1]
            with k.loop("at", k.max(line * width, block.column), k.min((line + 1) * width, end)) as at:
                value = k.load(self.tiles.sums, row * self.step + (at - block.column))
                position = to + start + (at - line * width) * stride
                k.store(y.buffer, position, k.cast(value, y.buffer.dtype))
