"""What kernels that slide a window share: where the taps of a window read, and sums over all of them.

An axis of windows is read by position: window p looks with tap a at p·stride + a·dilation - padding (`forward`), or is
looked at from there (`backward`: the position whose window has p at tap a, if there is one).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import Slab
from rlx.kernels.cpu.ops.strips import is_one
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value

# Taps along the last axis that are written out instead of looped over.
UNROLLED = 4


class TapsInside(NamedTuple):
    """The taps from `begin` to `end` of a window are inside; tap t is at first + t·dilation."""

    first: Value
    begin: Value
    end: Value
    dilation: int


class WindowAxis(NamedTuple):
    """One axis of windows over an operand of `size`."""

    taps: int
    stride: int
    dilation: int
    padding: int
    size: Value
    is_backward: bool = False

    def read(self, k: KernelBuilder, position: Value, tap: Value) -> tuple[Value, Value]:
        """Where a tap reads, and whether that is inside; `position` may have several lanes."""
        lanes = position.lanes
        shift = self.padding - tap * self.dilation
        if not self.is_backward:
            place = position * self.stride - k.splat(shift, lanes)
            return place, self._is_inside(k, place)
        distance = position + k.splat(shift, lanes)
        if self.stride == 1:
            return distance, self._is_inside(k, distance)
        # Division is toward zero: what is negative is ruled out by itself.
        place = distance // self.stride
        hits = k.eq(place * self.stride, distance) & (distance >= 0)
        return place, hits & self._is_inside(k, place)

    def taps_inside(self, k: KernelBuilder, position: Value) -> TapsInside:
        """Which taps of a window that looks forward are inside."""
        first, gap = position * self.stride - self.padding, self.dilation
        begin = k.max(k.as_index(gap - 1) - first, 0) // gap
        end = k.max(k.min(k.max(self.size - first + (gap - 1), 0) // gap, self.taps), begin)
        return TapsInside(first, begin, end, gap)

    def _is_inside(self, k: KernelBuilder, place: Value) -> Value:
        return (place >= 0) & (place < k.splat(self.size, place.lanes))

    def load(
        self, k: KernelBuilder, slab: Slab, row: Value, start: Value, lanes: int, tap: Value, has_row: Value | None
    ) -> tuple[Value, Value]:
        """What windows start, start + 1, .. see of a row, which begins at `row` and may not be there at all: the
        values, and which of them are inside."""
        step = slab.strides[-1]
        if lanes == 1 or (self.is_backward and self.stride > 1):
            place, mask = self.read(k, positions(k, start, lanes), tap)
            if has_row is not None:
                mask = mask & k.splat(has_row, lanes)
            return k.load(slab.buffer, k.splat(row, lanes) + place * k.splat(step, lanes), mask=mask), mask
        # Neighbours are a fixed distance apart: those inside are the lanes from one number to another.
        apart = 1 if self.is_backward else self.stride
        shift = self.padding - tap * self.dilation
        place = start + shift if self.is_backward else start * self.stride - shift
        mask = self._inside_lanes(k, place, apart, lanes, has_row)
        if apart == 2 and is_one(step):
            # Everything in between is loaded too, and left out: cheaper than to collect single elements.
            between = self._inside_lanes(k, place, 1, 2 * lanes, has_row)
            wide = k.load(slab.buffer, row + place, lanes=2 * lanes, mask=between)
            return k.shuffle(wide, range(0, 2 * lanes, 2)), mask
        return k.load(slab.buffer, row + place * step, lanes=lanes, stride=step * apart, mask=mask), mask

    def _inside_lanes(self, k: KernelBuilder, place: Value, apart: int, lanes: int, has_row: Value | None) -> Value:
        """Which of the lanes at place, place + apart, .. are inside."""
        end = lanes_below(k, self.size - place, apart)
        mask = k.lane_mask(end if has_row is None else k.select(has_row, end, 0), lanes)
        if self.padding or self.is_backward:
            mask = mask & ~k.lane_mask(lanes_below(k, -place, apart), lanes)
        return mask


def lanes_below(k: KernelBuilder, distance: Value, apart: int) -> Value:
    """How many of the lanes 0, 1, .. lie less than `distance` away, `apart` from each other."""
    return distance if apart == 1 else (k.max(distance, 0) + (apart - 1)) // apart


def inside_rows(
    k: KernelBuilder, axes: Sequence[WindowAxis], place: Sequence[Value], taps: Sequence[Value]
) -> tuple[list[Value], Value | None]:
    """Where the taps of all axes but the last read, and whether that is inside on all of them."""
    index, is_inside = [], None
    for axis, position, tap in zip(axes, place, taps):
        at, inside = axis.read(k, position, tap)
        index.append(at)
        is_inside = inside if is_inside is None else is_inside & inside
    return index, is_inside


def fold_taps(
    k: KernelBuilder,
    counts: Sequence[int],
    init: Sequence[Value],
    step: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
) -> Sequence[Value]:
    """Carry values through all taps in row-major order: `step(taps, values)` gives the next values."""
    return _fold_taps(k, list(counts), [], init, step)


def _fold_taps(
    k: KernelBuilder,
    counts: Sequence[int],
    taps: Sequence[Value],
    init: Sequence[Value],
    step: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
) -> Sequence[Value]:
    if not counts:
        return step(taps, init)
    count, *rest = counts
    if count == 1 or (not rest and count <= UNROLLED):
        values = init
        for tap in range(count):
            values = _fold_taps(k, rest, [*taps, k.as_index(tap)], values, step)
        return values
    with k.fold(f"tap{len(taps)}", 0, count, init=list(init)) as fold:
        fold.next(*_fold_taps(k, rest, [*taps, fold.index], fold.values, step))
    return fold.results


def lane_count(widest: int, size: object) -> int:
    """Lanes for an axis of windows: no more than it has elements, where that is known; a power of two."""
    if not isinstance(size, int):
        return widest
    lanes = widest
    while lanes > 1 and lanes // 2 >= size:
        lanes //= 2
    return lanes


def positions(k: KernelBuilder, start: Value, lanes: int) -> Value:
    """start, start + 1, .. in the lanes."""
    return start if lanes == 1 else k.iota(DType.I64, lanes) + k.splat(start, lanes)
