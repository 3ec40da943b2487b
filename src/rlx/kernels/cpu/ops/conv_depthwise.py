"""Convolutions of single channels (`groups` as large as the channels), their adjoints and gradients of weights.

There is nothing to multiply but a few taps, so all depends on how x is read. Some rows of a channel are copied to
scratch with the zeros around them, every `stride`-th column side by side: from there on every load is a whole vector,
and what one row of the result loads serves the next ones too.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.op import Op
from rlx.ir.shape import Size
from rlx.kernels.cpu.matmul.tiles import multiply_add
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.cpu.ops.windows import lane_count
from rlx.kernels.ir.extents import unflatten
from rlx.kernels.ir.loop_ir import FLOATS, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.convolution import ConvBase
from rlx.ops.nn.convolution_gradients import Conv2dBackwardWeight

# Rows of the result that share what they load, at most: their sums fit into registers. Bytes of a strip in scratch.
MOST_ROWS, STRIP_BYTES = 8, 48 << 10
# Rows of an image of unknown height, and what a block of rows costs beside its rows: a sum waits for the one before it.
USUAL_ROWS, ROWS_OF_WAITING = 4, 2
MOST_TAPS, WIDEST = 49, 4096


class PlaneAxis(NamedTuple):
    """Position p sees, at tap a, the element (p·stride + a·dilation - padding) / spread of x, where there is one."""

    taps: int
    stride: int
    dilation: int
    padding: int
    spread: int

    @property
    def reach(self) -> int:
        return (self.taps - 1) * self.dilation


def plane_axes(op: ConvBase, is_backward: bool) -> list[PlaneAxis] | None:
    """Two axes, rows and columns; None where planes are not the way."""
    settings = list(zip(op.kernel_size, op.stride, op.dilation, op.padding))
    if len(settings) > 2 or math.prod(op.kernel_size) > MOST_TAPS:
        return None
    axes = [PlaneAxis(1, 1, 1, 0, 1)] * (2 - len(settings))
    for taps, stride, dilation, padding in settings:
        if not is_backward:
            axes.append(PlaneAxis(taps, stride, dilation, padding, 1))
            continue
        # Windows over dy with zeros between its elements, the taps in opposite order.
        around = (taps - 1) * dilation - padding
        if around < 0:
            return None
        axes.append(PlaneAxis(taps, 1, dilation, around, stride))
    return axes if all(axis.stride <= 2 for axis in axes[1:]) else None


def has_planes(machine: Machine, op: Op, source: Slab, result: Slab, is_backward: bool) -> bool:
    """Whether single channels of these are convolved by planes."""
    assert isinstance(op, ConvBase)
    widths = (source.shape.dims[-1], result.shape.dims[-1])
    return (
        not machine.is_gpu
        and machine.line_bytes >= 2 * STRIP_BYTES
        and source.shape.dims[1] == op.groups
        and all(isinstance(w, int) and 0 < w <= WIDEST for w in widths)
        and compute_dtype(result.shape.dtype) in FLOATS
        and plane_axes(op, is_backward) is not None
    )


class Planes:
    """Strips of rows of the source, in scratch."""

    def __init__(self, site: OpSite, source: Slab, positions: Slab, axes: Sequence[PlaneAxis]) -> None:
        k = self.k = site.k
        self.source, (self.row_axis, self.column_axis) = source, axes
        self.acc = compute_dtype(positions.shape.dtype)
        width = positions.shape.dims[-1]
        assert isinstance(width, int)
        self.width, self.lanes = width, lane_count(site.machine.lanes(self.acc), width)
        self.rows_of_result = positions.dims[-2] if len(positions.dims) > 3 else k.as_index(1)
        self.height, self.source_width = source.dims[-2] if len(source.dims) > 3 else k.as_index(1), source.dims[-1]
        column = self.column_axis
        vectors = -(-width // self.lanes)
        # Of each phase of the columns as many as whole vectors of positions see.
        seen = vectors * self.lanes + column.reach // column.stride
        self.pitch = -(-seen // self.lanes) * self.lanes
        row_size = self.pitch * column.stride
        most = STRIP_BYTES // self.acc.size_bytes // row_size
        fitting = (most - self.row_axis.reach - 1) // self.row_axis.stride
        height = positions.shape.dims[-2] if len(positions.dims) > 3 else 1
        self.together = self._together(height)
        # Whether every block of rows is a whole one.
        self.is_whole = isinstance(height, int) and height % self.together == 0
        self.rows = max(self.together, fitting // self.together * self.together)
        held = (self.rows - 1) * self.row_axis.stride + self.row_axis.reach + 1
        self.row_size = row_size
        self.scratch = k.local("rows", self.acc, held * row_size)

    def _together(self, height: Size) -> int:
        """Rows that are computed together: many, but few of them beyond the end of the image."""
        if not isinstance(height, int):
            return USUAL_ROWS
        return min(range(1, MOST_ROWS + 1), key=lambda n: -(-height // n) * (n + ROWS_OF_WAITING))

    def fill(self, plane: Value, first: Value, rows: Value) -> None:
        """What `rows` rows of the result from `first` on see of a plane, which begins at `plane`."""
        k, axis = self.k, self.row_axis
        # Rows are computed together, whether or not all of them exist.
        held = (k.ceildiv(rows, self.together) * self.together - 1) * axis.stride + (axis.reach + 1)
        with k.loop("held", 0, held) as row:
            to = row * self.row_size
            spread = first * axis.stride + row - axis.padding
            place = spread // axis.spread
            is_there = (spread >= 0) & (place < self.height)
            if axis.spread > 1:
                is_there = is_there & k.eq(place * axis.spread, spread)
            start = plane + place * self.source_width
            if self.column_axis.spread > 1:
                self.blank_row(to)
                with k.when(is_there):
                    self.spread_row(start, to)
            else:
                with k.when(is_there):
                    self.copy_row(start, to)
                with k.otherwise():
                    self.blank_row(to)

    def blank_row(self, to: Value) -> None:
        zero = self.k.const(0, ValueType(self.acc, self.lanes))
        with self.k.loop("blank", 0, self.row_size, self.lanes) as i:
            self.k.store(self.scratch, to + i, zero)

    def copy_row(self, start: Value, to: Value) -> None:
        """Every `stride`-th column side by side, one phase after the other, with zeros around."""
        k, axis, lanes = self.k, self.column_axis, self.lanes
        wide = lanes * axis.stride
        with k.loop("i", 0, self.pitch, lanes) as i:
            at = i * axis.stride - axis.padding
            mask = k.lane_mask(self.source_width - at, wide)
            if axis.padding:
                mask = mask & ~k.lane_mask(-at, wide)
            seen = k.cast(k.load(self.source.buffer, start + at, lanes=wide, mask=mask), self.acc)
            for phase in range(axis.stride):
                value = seen if axis.stride == 1 else k.shuffle(seen, range(phase, wide, axis.stride))
                k.store(self.scratch, to + phase * self.pitch + i, value)

    def spread_row(self, start: Value, to: Value) -> None:
        k, axis = self.k, self.column_axis
        with k.loop("i", 0, k.min(self.source_width, self.most_spread)) as i:
            value = k.cast(k.load(self.source.buffer, start + i), self.acc)
            k.store(self.scratch, to + axis.padding + i * axis.spread, value)

    @property
    def most_spread(self) -> int:
        """How many elements of a row any position sees, with what is between them."""
        seen = self.width + self.column_axis.reach - self.column_axis.padding
        return -(-seen // self.column_axis.spread)

    def at(self, row: Value, q: Value, tap: tuple[int, int]) -> Value:
        """Where positions from q on, in a row of the strip, see a tap."""
        ahead = tap[1] * self.column_axis.dilation
        phase, further = ahead % self.column_axis.stride, ahead // self.column_axis.stride
        line = row * self.row_axis.stride + tap[0] * self.row_axis.dilation
        return line * self.row_size + (q + (phase * self.pitch + further))

    @property
    def taps(self) -> list[tuple[int, int]]:
        return [(a, b) for a in range(self.row_axis.taps) for b in range(self.column_axis.taps)]


class DepthwiseConv:
    """y[n, o, p..] = Σ over taps of x[n, o / multiplier, ..]·w[o, taps..]."""

    def __init__(self, site: OpSite, is_backward: bool) -> None:
        assert isinstance(site.op, ConvBase)
        self.k, self.machine, self.is_backward = site.k, site.machine, is_backward
        (self.x, self.w), (self.y,) = site.inputs, site.outputs
        axes = plane_axes(site.op, is_backward)
        assert axes is not None
        self.planes = Planes(site, self.x, self.y, axes)

    def build(self) -> None:
        k, planes = self.k, self.planes
        strips = k.ceildiv(planes.rows_of_result, planes.rows)
        sizes = [self.y.dims[0], self.y.dims[1], strips]
        each = self.y.dims[1] // self.x.dims[1]
        with k.parallel("strip", sizes[0] * sizes[1] * sizes[2]) as number:
            image, channel, strip = unflatten(number, sizes)
            first = strip * planes.rows
            rows = k.min(planes.rows_of_result - first, planes.rows)
            planes.fill(self.x.at(image, channel // each), first, rows)
            self.rows(channel, self.y.at(image, channel) + first * planes.width, rows)

    def rows(self, channel: Value, to: Value, rows: Value) -> None:
        k, planes, lanes = self.k, self.planes, self.planes.lanes
        taps = planes.taps
        # The weights of a channel lie side by side, in the order of the taps or the other way round.
        start = channel * len(taps)
        order = range(len(taps) - 1, -1, -1) if self.is_backward else range(len(taps))
        weights = [k.splat(k.cast(k.load(self.w.buffer, start + i), planes.acc), lanes) for i in order]
        # Few rows have several sums each, so that as many grow at a time.
        together = planes.together
        parts = min(MOST_ROWS // together, len(taps))
        with k.loop("row", 0, rows, together) as row, k.loop("q", 0, planes.width, lanes) as q:
            sums: list[list[Value]] = [[k.const(0, ValueType(planes.acc, lanes))] * parts for _ in range(together)]
            known: dict[tuple[int, int], Value] = {}
            # Column by column of the window: what rows share of one column fits into registers.
            for number, (weight, (a, b)) in enumerate(sorted(zip(weights, taps), key=lambda at: at[1][::-1])):
                for r in range(together):
                    # Rows of the result meet at the rows that they see.
                    line = (r * planes.row_axis.stride + a * planes.row_axis.dilation, b)
                    if line not in known:
                        last = (planes.rows - 1) * planes.row_axis.stride + planes.row_axis.reach
                        place = planes.at(row + r, q, (a, b)) if line[0] <= last else q
                        known[line] = k.load(planes.scratch, place, lanes=lanes)
                    sums[r][number % parts] = multiply_add(k, known[line], weight, sums[r][number % parts])
            totals = [functools.reduce(operator.add, each) for each in sums]
            self.store(to + row * planes.width, q, rows - row, totals)

    def store(self, to: Value, q: Value, rows: Value, sums: Sequence[Value]) -> None:
        """The sums of one vector of some rows, of which `rows` exist. Conditions are masks where these are cheap, as
        LLVM would compute the sums of a row behind the branch for it, one after the other."""
        k, planes, y, lanes = self.k, self.planes, self.y, self.planes.lanes
        left = k.as_index(planes.width) - q
        has_masks = lanes > 1 and self.machine.has_masked_access(y.buffer.dtype)
        for r, total in enumerate(sums):
            place, value = to + r * planes.width + q, k.cast(total, y.buffer.dtype)
            if planes.is_whole or has_masks:
                seen = left if planes.is_whole else k.select(r < rows, left, 0)
                is_full = planes.is_whole and planes.width % lanes == 0
                k.store(y.buffer, place, value, mask=None if is_full else k.lane_mask(seen, lanes))
                continue
            with k.when(r < rows):
                mask = None if planes.width % lanes == 0 else k.lane_mask(left, lanes)
                k.store(y.buffer, place, value, mask=mask)


class DepthwiseWeights:
    """dw[o, taps..] = Σ over images and positions of dy[n, o, p..]·x[n, o / multiplier, ..]."""

    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, Conv2dBackwardWeight)
        self.k = site.k
        (self.x, self.dy), (self.dw,) = site.inputs, site.outputs
        axes = plane_axes(site.op, False)
        assert axes is not None
        self.planes = Planes(site, self.x, self.dy, axes)

    def build(self) -> None:
        k, planes, lanes = self.k, self.planes, self.planes.lanes
        each = self.dy.dims[1] // self.x.dims[1]
        zero = k.const(0, ValueType(planes.acc, lanes))
        with k.parallel("channel", self.dy.dims[1]) as channel:
            with k.fold("image", 0, self.x.dims[0], init=[zero] * len(planes.taps)) as images:
                with k.fold("first", 0, planes.rows_of_result, planes.rows, init=images.values) as strips:
                    rows = k.min(planes.rows_of_result - strips.index, planes.rows)
                    planes.fill(self.x.at(images.index, channel // each), strips.index, rows)
                    start = self.dy.at(images.index, channel) + strips.index * planes.width
                    strips.next(*self.rows(start, rows, strips.values))
                images.next(*strips.results)
            for i, total in enumerate(images.results):
                value = k.cast(k.reduce("add", total), self.dw.buffer.dtype)
                k.store(self.dw.buffer, channel * len(planes.taps) + i, value)

    def rows(self, start: Value, rows: Value, sums: Sequence[Value]) -> Sequence[Value]:
        k, planes, lanes = self.k, self.planes, self.planes.lanes
        with k.fold("row", 0, rows, init=sums) as lines:
            row = lines.index
            with k.fold("q", 0, planes.width, lanes, init=lines.values) as at:
                q = at.index
                mask = None if planes.width % lanes == 0 else k.lane_mask(k.as_index(planes.width) - q, lanes)
                place = start + row * planes.width + q
                dy = k.cast(k.load(self.dy.buffer, place, lanes=lanes, mask=mask), planes.acc)
                # What no position sees must not count, whatever it is.
                places = [planes.at(row, q, tap) for tap in planes.taps]
                seen = [k.load(planes.scratch, place, lanes=lanes, mask=mask) for place in places]
                at.next(*(multiply_add(k, x, dy, total) for x, total in zip(seen, at.values)))
            lines.next(*at.results)
        return lines.results
