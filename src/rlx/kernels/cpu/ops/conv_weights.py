"""The gradient of a convolution with respect to its weights: dy times what windows see, summed over all positions.

A parallel iteration computes some output channels of some input channels at all taps. What windows see at some hundred
positions is copied as lines (`conv_lines`) and turned, so that the taps are side by side: dw is a product like the
convolution itself, with positions as its depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.matmul.blocks import BlockShape, block_shape
from rlx.kernels.cpu.matmul.tiles import in_vectors, transposed
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.conv_depthwise import DepthwiseWeights, has_planes
from rlx.kernels.cpu.ops.conv_lines import LineAxis, LinePart, Lines, plain_axis
from rlx.kernels.cpu.ops.conv_tap_rows import TapRows, tap_axes
from rlx.kernels.cpu.ops.conv_tiles import BlockParts, ConvTiles, Panel, RowOperand, Step, part_sizes
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, Value
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.convolution_gradients import Conv2dBackwardWeight

# Positions of one step, bytes of a row of a block at most, and blocks that are few for several threads.
STEP_POSITIONS, MOST_COLUMN_BYTES, FEW_BLOCKS = 192, 768, 3
# Bytes of scratch that a kernel of this kind takes at most.
SCRATCH = 512 << 10


def _supports(op: Op, operands: Sequence[Shape]) -> bool:
    return all(compute_dtype(t.dtype) in FLOATS for t in operands)


def _runs_on(machine: Machine) -> bool:
    return not machine.is_gpu and machine.line_bytes >= SCRATCH and machine.vector_bytes > 4


@op_kernel(Conv2dBackwardWeight, kind="conv", supports=_supports, runs_on=_runs_on)
def conv_weights(site: OpSite) -> None:
    x, dy = site.inputs
    if (axes := tap_axes(site)) is not None:
        TapRows(site, axes).build()
    elif has_planes(site.machine, site.op, x, dy, is_backward=False):
        DepthwiseWeights(site).build()
    else:
        _WeightProduct(site).build()


class _WeightProduct:
    """dw[o, c, taps..] = Σ over images and positions of dy[n, o, p..]·x[n, c, ..]."""

    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, Conv2dBackwardWeight)
        k = self.k = site.k
        self.op, self.machine = site.op, site.machine
        (self.x, self.dy), (self.dw,) = site.inputs, site.outputs
        self.acc = compute_dtype(self.dw.shape.dtype)
        self.reads, self.writes = (slab.dims[1] // site.op.groups for slab in (self.x, self.dy))
        self.taps = math.prod(site.op.kernel_size)
        shape = block_shape(site.machine, self.acc, "n", copies_b=True, copies_a=False, reuse=2)
        self.channels = _channels_together(self.taps, shape, MOST_COLUMN_BYTES // self.acc.size_bytes)
        panels = -(-self.channels * self.taps // shape.width)
        self.shape = shape._replace(rows=self._rows(shape), panels=panels, depth=STEP_POSITIONS)
        lanes, columns = self.shape.lanes, self.shape.columns
        self.pitch = STEP_POSITIONS + lanes
        self.seen = k.local("seen", self.acc, columns * self.pitch + lanes)
        self.panel = Panel(k.local("panel", self.acc, self.pitch * columns), columns)
        self.tiles = ConvTiles(k, self.shape, self.acc, self.panel, self._parts())
        settings = zip(site.op.kernel_size, site.op.stride, site.op.dilation, site.op.padding)
        sizes = zip(settings, self.x.dims[2:], self.dy.dims[2:])
        axes = [LineAxis(k.as_index(n), p, x, s, d, k.as_index(-low)) for (n, s, d, low), x, p in sizes]
        plain = plain_axis(k, site.op, self.x.dims[2:])
        self.lines = Lines(k, plain or axes, self.seen, self.pitch, lanes)

    def _rows(self, shape: BlockShape) -> int:
        """Rows of a block: fewer where there would be no more than a few blocks to deal out."""
        writes, reads = self.dy.shape.dims[1], self.x.shape.dims[1]
        if not isinstance(writes, int) or not isinstance(reads, int):
            return shape.rows
        each = writes // self.op.groups
        blocks = -(-(reads // self.op.groups) // self.channels) * -(-each // shape.rows) * self.op.groups
        return shape.rows if blocks >= FEW_BLOCKS else max(1, -(-each // (2 * shape.tile_rows))) * shape.tile_rows

    def _parts(self) -> BlockParts:
        """The rows and columns of blocks, as `build` cuts them."""
        writes, reads = (slab.shape.dims[1] // self.op.groups for slab in (self.dy, self.x))
        tile_rows, rows = self.shape.tile_rows, None
        if isinstance(writes, int):
            tiles = -(-writes // tile_rows)
            blocks = max(1, -(-tiles // (self.shape.rows // tile_rows)))
            rows = part_sizes(writes, max(1, -(-tiles // blocks)) * tile_rows)
        channels = part_sizes(reads, self.channels)
        return BlockParts(rows, None if channels is None else {c * self.taps for c in channels})

    def build(self) -> None:
        k, shape = self.k, self.shape
        tiles = k.ceildiv(self.writes, shape.tile_rows)
        row_blocks = k.ceildiv(tiles, shape.rows // shape.tile_rows)
        sizes = [k.as_index(self.op.groups), k.ceildiv(self.reads, self.channels), row_blocks]
        with k.parallel("block", total(k, sizes)) as number:
            group, channel_block, row_block = unflatten(number, sizes)
            height = (tiles + row_blocks - 1) // row_blocks * shape.tile_rows
            row, channel = row_block * height, channel_block * self.channels
            rows = k.max(k.min(height, self.writes - row), 0)
            channels = k.min(self.reads - channel, self.channels)
            with k.when(rows > 0):
                self.block(group, row, rows, channel, channels)

    def block(self, group: Value, row: Value, rows: Value, channel: Value, channels: Value) -> None:
        k, columns = self.k, channels * self.taps
        size, positions = (total(k, slab.dims[2:]) for slab in (self.x, self.dy))
        # One step even where there is nothing to sum up.
        images = k.max(self.x.dims[0], 1)
        with k.loop("image", 0, images) as image, k.loop("step", 0, k.max(positions, 1), STEP_POSITIONS) as first:
            is_there = k.min(self.x.dims[0], 1)
            steps = k.min(positions - first, STEP_POSITIONS) * is_there
            source = ((image * self.op.groups + group) * self.reads + channel) * size
            part = LinePart(self.x.buffer, source, size, channels, first, first + steps)
            self.lines.fill(part, k.ceildiv(steps, self.shape.lanes) * self.shape.lanes)
            self.turn(steps, columns)
            start = ((image * self.op.groups + group) * self.writes + row) * positions + first
            operand = RowOperand(self.dy.buffer, start, positions)
            self.tiles.add(Step(operand, rows, columns, steps, k.eq(image + first, 0)))
        has_masks = self.shape.lanes > 1 and self.machine.has_masked_access(self.dw.buffer.dtype)
        with k.loop("done", 0, rows) as done:
            to = ((group * self.writes + row + done) * self.reads + channel) * self.taps

            def store(j: Value, width: int, mask: Value | None) -> None:
                value = k.load(self.tiles.sums, done * self.shape.columns + j, lanes=width)
                k.store(self.dw.buffer, to + j, k.cast(value, self.dw.buffer.dtype), mask=mask)

            in_vectors(k, "j", columns, self.shape.lanes, has_masks, store)

    def turn(self, steps: Value, columns: Value) -> None:
        """From one line per tap to one per position; after the last tap come copies of it."""
        k, lanes = self.k, self.shape.lanes
        read = self.tiles.columns_read(columns)
        with k.loop("column", 0, read, lanes) as column, k.loop("at", 0, steps, lanes) as at:
            taps = [k.min(column + i, columns - 1) for i in range(lanes)]
            vectors = [k.load(self.seen, tap * self.pitch + at, lanes=lanes) for tap in taps]
            for i, vector in enumerate(transposed(k, vectors)):
                k.store(self.panel.buffer, (at + i) * self.panel.pitch + column, vector)


def _channels_together(taps: int, shape: BlockShape, most: int) -> int:
    """As many channels as leave the fewest columns of register tiles empty; the last tile may have fewer vectors."""

    def share(channels: int) -> float:
        whole, left = divmod(channels * taps, shape.width)
        vectors = next(v for v in (0, 1, 2, shape.vectors) if left <= v * shape.lanes)
        return channels * taps / (whole * shape.width + vectors * shape.lanes)

    return max(range(1, max(1, most // taps) + 1), key=lambda n: (round(share(n), 2), -n))
