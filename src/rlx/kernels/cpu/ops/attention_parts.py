"""Attention whose keys are cut into parts, for few heads and long caches: a kernel for the parts, one that joins them.

A part is a parallel iteration. What it finds lies in memory as `rlx.ops.lowered.attention_parts` says; parts beyond the
last key only note that they are empty.
"""

from __future__ import annotations

import math

from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.attention_case import AttentionCase, Heads, KeyRange, by_heads
from rlx.kernels.cpu.ops.attention_lanes import base, even_part, larger, power
from rlx.kernels.ir.loop_ir import INDEX, Value
from rlx.ops.lowered.attention_parts import KEY_STEP, AttentionJoin

# Vectors of a row that are joined at a time.
MOST_VECTORS = 8


class PartSums:
    """Where the parts of one attention store what they find."""

    def __init__(self, case: AttentionCase, sums: Slab, statistics: Slab, parts: Value) -> None:
        self.case, self.k = case, case.k
        # Without parts all keys are those of one.
        self.is_cut, self.count = parts > 0, case.k.max(parts, 1)
        self._sums, self._statistics = sums, statistics

    def own(self, batch: Value, keys: KeyRange, part: Value) -> KeyRange:
        """Those of the keys that belong to a part."""
        k = self.k
        # As `part_length` says.
        step = self.count * KEY_STEP
        length = k.max(2, (self.case.key_count(batch) + step - 1) // step) * KEY_STEP
        first = part * length
        return KeyRange(k.max(keys.first, first), k.min(keys.end, first + length))

    def item(self, batch: Value, head: Value, part: Value) -> Value:
        return (batch * self.case.op.kv_heads + head) * self.count + part

    def rows(self, item: Value, head: Value) -> Heads:
        """The sums of an item by head and query, as if they were those of the result."""
        group, width = self.case.group, self.case.width
        zero, one = (self.k.const(n, INDEX) for n in (0, 1))
        steps = (zero, self.k.const(width, INDEX), self.k.const(group * width, INDEX), one)
        return Heads(self._sums.buffer, self._sums.at(item) - head * (group * width), steps)

    def clear(self, item: Value) -> None:
        """An item without keys."""
        k, acc = self.k, self.case.acc
        with k.loop("row", 0, self.case.rows) as row:
            self.note(item, row, k.const(-math.inf, acc), k.const(0.0, acc))
            with k.loop("d", 0, self.case.width) as d:
                k.store(self._sums.buffer, self._sums.at(item, row) + d, k.const(0.0, acc))

    def note(self, item: Value, row: Value, peak: Value, total: Value) -> None:
        """The statistics of one row."""
        place = self._statistics.at(item, row)
        self.k.store(self._statistics.buffer, place, peak)
        self.k.store(self._statistics.buffer, place + 1, total)


@op_kernel(AttentionJoin, kind="attention_join", updates=0)
def attention_join(site: OpSite) -> None:
    """Heads of k and v are dealt out; where keys were not cut there are no items, and nothing is done."""
    k, op = site.k, site.op
    assert isinstance(op, AttentionJoin)
    sums = site.inputs[1]
    parts, heads, group = site.size(op.parts), op.num_kv_heads, op.num_heads // op.num_kv_heads
    width = sums.shape.dims[2]
    assert isinstance(width, int)
    out = by_heads(site.outputs[0], op.layout, width)
    with k.parallel("head", sums.dims[0] // k.max(parts, 1)) as number, k.loop("row", 0, sums.dims[1]) as row:
        batch, head = number // heads, number % heads
        place = out.row(batch, head * group + row % group, row // group)
        _join_row(site, (number * parts, row), parts, width, out, place)


def _join_row(site: OpSite, where: tuple[Value, Value], parts: Value, width: int, out: Heads, place: Value) -> None:
    """The parts of one row, from an item on, each by its weight over the sum of all weights; if there is one."""
    k, (_, sums, statistics) = site.k, site.inputs
    first, row = where
    acc = sums.buffer.dtype
    lanes = site.machine.lanes(acc)

    def noted(part: Value, which: int) -> Value:
        return k.load(statistics.buffer, statistics.at(first + part, row) + which)

    with k.fold("part", 0, parts, init=[k.const(-math.inf, acc)]) as highest:
        highest.next(larger(k, noted(highest.index, 0), highest.values[0]))
    top = base(k, highest.results[0])
    vectors = even_part(-(-width // lanes), MOST_VECTORS)
    zero = k.const(0.0, acc)
    with k.loop("d", 0, width, vectors * lanes) as start:
        depths = [start + v * lanes for v in range(vectors)]
        masks = [None if width % lanes == 0 else k.lane_mask(width - d, lanes) for d in depths]
        with k.fold("part", 0, parts, init=[zero, *[k.splat(zero, lanes)] * vectors]) as fold:
            total, *found = fold.values
            weight = power(k, noted(fold.index, 0) - top)
            line = sums.at(first + fold.index, row)
            loaded = [k.load(sums.buffer, line + d, lanes=lanes, mask=m) for d, m in zip(depths, masks)]
            added = [k.fma(k.splat(weight, lanes), x, y) for x, y in zip(loaded, found)]
            fold.next(k.fma(weight, noted(fold.index, 1), total), *added)
        total, *found = fold.results
        with k.when(k.ne(total, 0.0)):
            share = k.splat(1.0 / total, lanes)
            for d, mask, x in zip(depths, masks, found):
                y = k.cast(x * share, out.buffer.dtype)
                k.store(out.buffer, place + d * out.step, y, stride=out.step, mask=mask)
