"""What windows see, as the lines of a panel: one line for each channel and tap, one column for each position.

A convolution is a product with these lines, of which only a few hundred are ever stored at a time, for some tens of
positions. Neighbouring positions see neighbours, or every second element, so that lines are copied in vectors; rows of
positions that end within a panel are copied one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.kernels.cpu.ops.windows import lanes_below
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.nn.convolution import ConvBase


class LineAxis(NamedTuple):
    """One axis of positions: position p sees at tap t the element p·step + t·turn + shift, if it is one of `size`."""

    taps: Value
    positions: Value
    size: Value
    step: int
    turn: int
    shift: Value

    def seen(self, position: Value, tap: Value) -> Value:
        return position * self.step + tap * self.turn + self.shift


def plain_axis(k: KernelBuilder, op: ConvBase, sizes: Sequence[Value]) -> list[LineAxis] | None:
    """All axes as one, where windows of one element go everywhere; None for others."""
    if {*op.kernel_size, *op.stride} != {1} or any(op.padding):
        return None
    count, zero = total(k, sizes), k.as_index(0)
    return [LineAxis(k.as_index(1), count, count, 1, 1, zero)]


class LinePart(NamedTuple):
    """The lines to be copied: `channels` of them from `start` on, each `distance` elements behind the one before, at
    the columns from `column` up to `end`."""

    source: Buffer
    start: Value
    distance: Value
    channels: Value
    column: Value
    end: Value


class Lines:
    """Lines in scratch, `pitch` apart: vectors are stored as a whole, the last one of a line beyond its end."""

    def __init__(self, k: KernelBuilder, axes: Sequence[LineAxis], to: Buffer, pitch: int, lanes: int) -> None:
        self.k, self.axes, self.to, self.pitch, self.lanes = k, axes, to, pitch, lanes
        self.taps = total(k, [axis.taps for axis in axes])

    def fill(self, part: LinePart, wanted: Value) -> None:
        """Row by row of positions: what is stored beyond the end of one row is stored again for the next. So many
        columns are `wanted`; those that do not exist are 0."""
        k, (*outer, last) = self.k, self.axes
        whole = (part.end - part.column) // self.lanes * self.lanes
        lines, zero = part.channels * self.taps, k.const(0, ValueType(self.to.dtype, self.lanes))
        with k.loop("blank", whole, wanted, self.lanes) as column, k.loop("line", 0, lines) as line:
            k.store(self.to, line * self.pitch + column, zero)
        width = k.max(last.positions, 1)
        with k.loop("line_row", part.column // width, (part.end + (width - 1)) // width) as row:
            first, stop = k.max(row * width, part.column), k.min((row + 1) * width, part.end)
            place = unflatten(row, [axis.positions for axis in outer])
            with k.loop("at", first, stop, self.lanes) as at:
                self.each_tap(outer, place, [], None, lambda i, ok: self.copy(part, at, at - row * width, i, ok))

    def each_tap(
        self,
        axes: Sequence[LineAxis],
        place: Sequence[Value],
        found: Sequence[tuple[Value, Value]],
        is_inside: Value | None,
        visit: Callable[[Sequence[tuple[Value, Value]], Value | None], None],
    ) -> None:
        """All taps of some axes: (tap, what it sees) for each of them, and whether that is inside."""
        if not axes:
            visit(found, is_inside)
            return
        axis, k = axes[0], self.k
        with k.loop(f"tap{len(found)}", 0, axis.taps) as tap:
            seen = axis.seen(place[0], tap)
            inside = (seen >= 0) & (seen < axis.size)
            both = inside if is_inside is None else inside & is_inside
            self.each_tap(axes[1:], place[1:], [*found, (tap, seen)], both, visit)

    def copy(
        self,
        part: LinePart,
        at: Value,
        position: Value,
        found: Sequence[tuple[Value, Value]],
        is_inside: Value | None,
    ) -> None:
        """One vector of every channel, at each tap of the last axis."""
        k, (*outer, last), lanes = self.k, self.axes, self.lanes
        row, line = k.as_index(0), k.as_index(0)
        for axis, (tap, seen) in zip(outer, found):
            row, line = row * axis.size + seen, line * axis.taps + tap
        with k.loop("tap", 0, last.taps) as tap:
            seen = last.seen(position, tap)
            width = lanes if last.step == 1 else 2 * lanes if last.step == 2 else lanes
            apart = 1 if last.step == 2 else last.step
            end = lanes_below(k, last.size - seen, apart)
            mask = k.lane_mask(end if is_inside is None else k.select(is_inside, end, 0), width)
            mask = mask & ~k.lane_mask(lanes_below(k, -seen, apart), width)
            start = part.start + row * last.size + seen
            to = (line * last.taps + tap) * self.pitch + (at - part.column)
            with k.loop("channel", 0, part.channels) as channel:
                place = start + channel * part.distance
                value = k.load(part.source, place, lanes=width, stride=apart, mask=mask)
                if width != lanes:
                    value = k.shuffle(value, range(0, width, 2))
                k.store(self.to, to + channel * self.taps * self.pitch, k.cast(value, self.to.dtype))
