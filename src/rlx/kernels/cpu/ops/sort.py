"""Sorting and searching along the last axis: orders of whole rows, the first few of a row, places in sorted rows.

All compare keys (`order_keys`), so that ties and NaN are what the ops promise. Rows are dealt out whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.sort_keys import key_dtype, largest, sort_key
from rlx.kernels.cpu.ops.sort_network import RowNetwork, deal_out_rows
from rlx.kernels.cpu.ops.strips import along, are_native, strips, whole_rows
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.reduction.sort import SearchSorted, TopK, TopKWithValues

# Rows up to a length are ranked by comparing all pairs, many at once, the second where there are so many lanes: dealing
# a row out costs 256 counts for each digit, so that eight lanes are faster up to about 140 elements, sixteen up to 180.
SHORT, SHORT_IN_LANES, ENOUGH_LANES = 64, 128, 8
# So many first elements of a row are kept in a list; for more, rows are sorted.
MOST_KEPT = 64
DIGIT = 256


def _is_native(op: Op, operands: Sequence[Shape]) -> bool:
    return are_native(*operands)


@op_kernel(SortOrder, kind="sort", supports=_is_native, strided=range(16))
def sort_order(site: OpSite) -> None:
    _Sort(site).build()


class _Sort:
    """One row: its order and its ranks. Sorting by digits needs a second list of positions: the ranks, before they are
    ranks."""

    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, SortOrder)
        self.site, self.k, self.descending = site, site.k, site.op.descending
        self.order, self.rank = (slab.buffer for slab in site.outputs)
        *self.lead, self.length = site.inputs[0].dims
        self.counts = self.k.local("counts", DType.I32, DIGIT)
        lanes = min(site.machine.lanes(key_dtype(x.shape.dtype)) for x in site.inputs)
        self.lanes = min(lanes, site.machine.lanes(DType.I32))
        self.short = SHORT_IN_LANES if self.lanes >= ENOUGH_LANES else SHORT

    def build(self) -> None:
        k, rows = self.k, total(self.k, self.lead)
        first = self.site.inputs[0].shape
        if len(self.site.inputs) > 1 or key_dtype(first.dtype).size_bytes > 4:
            with whole_rows(k, rows, self.length * 8) as row:
                self.one_row(row)
            return
        size = first.dims[-1]
        deal_out_rows(k, self.site.machine, DType.U64, rows, size, self.length, self.side_by_side, self.one_row)

    def one_row(self, row: Value) -> None:
        place = unflatten(row, self.lead)
        with self.k.when(self.length <= self.short):
            self.compare_all(row, place)
        with self.k.otherwise():
            self.by_digits(row, place)

    def side_by_side(self, network: RowNetwork, first: Value, count: Value) -> None:
        """Rows from the first one on, as words of a key and its position; lanes behind them sort the last one again."""
        k, lanes = self.k, network.lanes
        (x,) = self.site.inputs

        def load(r: int, i: Value, mask: Value) -> Value:
            place = unflatten(first + k.min(count - 1, r), self.lead)
            key = self.unsigned_key(self.key(x, place, i, lanes, mask))
            position = k.splat(k.cast(i, DType.U64), lanes) + k.iota(DType.U64, lanes)
            return (k.cast(key, DType.U64) << 32) | position

        def store(r: int, i: Value, words: Value, mask: Value) -> None:
            exists = k.lane_mask(k.select(count > r, self.length - i, 0), lanes)
            k.store(self.order, (first + r) * self.length + i, k.cast(words, DType.I32), mask=exists)

        network.sort(self.length, load, store)
        with k.loop("row", first, first + count) as row:
            self.ranks(row * self.length)

    def ranks(self, base: Value) -> None:
        """The rank of each element of a row, of which the order is known."""
        k = self.k
        with k.loop("i", 0, self.length) as i:
            position = k.cast(k.load(self.order, base + i), DType.I64)
            k.store(self.rank, base + position, k.cast(i, DType.I32))

    def key(self, x: Slab, place: Sequence[Value], i: Value, lanes: int = 1, mask: Value | None = None) -> Value:
        step = x.strides[-1]
        loaded = self.k.load(x.buffer, x.at(*place) + step * i, lanes=lanes, stride=step, mask=mask)
        return sort_key(self.k, loaded, self.descending)

    def compare_all(self, row: Value, place: Sequence[Value]) -> None:
        """The rank of an element is how many come before it."""
        k = self.k
        base = row * self.length
        lanes = self.lanes
        with k.loop("i", 0, self.length, lanes) as i:
            exists = k.lane_mask(self.length - i, lanes)
            mine = [self.key(x, place, i, lanes, exists) for x in self.site.inputs]
            own = k.splat(k.cast(i, DType.I32), lanes) + k.iota(DType.I32, lanes)
            with k.fold("j", 0, self.length, init=[k.const(0, own.type)]) as f:
                before = k.splat(k.cast(f.index, DType.I32), lanes) < own
                for x, key in reversed([*zip(self.site.inputs, mine)]):
                    other = k.splat(self.key(x, place, f.index), lanes)
                    before = (other < key) | (k.eq(other, key) & before)
                f.next(f.values[0] + k.cast(before, DType.I32))
            k.store(self.rank, base + i, f.results[0], mask=exists)
        with k.loop("i", 0, self.length) as i:
            rank = k.cast(k.load(self.rank, base + i), DType.I64)
            k.store(self.order, base + rank, k.cast(i, DType.I32))

    def by_digits(self, row: Value, place: Sequence[Value]) -> None:
        """Least digit of the last key first; each pass keeps the order of equals."""
        k = self.k
        base = row * self.length
        with k.loop("i", 0, self.length) as i:
            k.store(self.order, base + i, k.cast(i, DType.I32))
        for x in reversed(self.site.inputs):
            bits = max(16, 8 * key_dtype(x.shape.dtype).size_bytes)
            with k.loop("shift", 0, bits, 16) as shift:
                self.one_pass(x, place, base, shift, self.order, self.rank)
                self.one_pass(x, place, base, shift + 8, self.rank, self.order)
        self.ranks(base)

    def one_pass(
        self, x: Slab, place: Sequence[Value], base: Value, shift: Value, source: Buffer, goal: Buffer
    ) -> None:
        k = self.k
        with k.loop("d", 0, DIGIT) as d:
            k.store(self.counts, d, 0)
        with k.loop("i", 0, self.length) as i:
            # Which order they are counted in does not matter.
            digit = self.digit(x, place, i, shift)
            k.store(self.counts, digit, k.load(self.counts, digit) + 1)
        with k.fold("d", 0, DIGIT, init=[k.const(0, DType.I32)]) as f:
            count = k.load(self.counts, f.index)
            k.store(self.counts, f.index, f.values[0])
            f.next(f.values[0] + count)
        with k.loop("i", 0, self.length) as i:
            position = k.load(source, base + i)
            digit = self.digit(x, place, k.cast(position, DType.I64), shift)
            to = k.load(self.counts, digit)
            k.store(self.counts, digit, to + 1)
            k.store(goal, base + k.cast(to, DType.I64), position)

    def unsigned_key(self, key: Value) -> Value:
        """The same order among numbers without sign."""
        bits = 8 * key.dtype.size_bytes
        unsigned = self.k.bitcast(key, DType.of(f"u{bits}"))
        return unsigned ^ (1 << (bits - 1)) if key.dtype.is_signed else unsigned

    def digit(self, x: Slab, place: Sequence[Value], i: Value, shift: Value) -> Value:
        """Eight bits of the key as a number without sign."""
        k = self.k
        unsigned = self.unsigned_key(self.key(x, place, i))
        if unsigned.dtype.size_bytes < 2:
            unsigned = k.cast(unsigned, DType.U16)
        shifted = k.op("shr", unsigned, k.cast(shift, unsigned.dtype))
        return k.cast(shifted & (DIGIT - 1), DType.I64)


def _keeps_few(op: Op, operands: Sequence[Shape]) -> bool:
    assert isinstance(op, TopK | TopKWithValues)
    return are_native(*operands) and 0 < op.k <= MOST_KEPT


@op_kernel(TopK, TopKWithValues, kind="top", supports=_keeps_few, strided={0})
def top(site: OpSite) -> None:
    """The first k of each row in a short sorted list; most vectors hold nothing that belongs into it."""
    _Top(site).build()


class _Top:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, TopK | TopKWithValues)
        self.site, self.k, self.count = site, site.k, site.op.k
        (self.x,) = site.inputs
        *self.values, self.ids = site.outputs
        self.dtype = key_dtype(self.x.shape.dtype)
        self.keys = self.k.local("keys", self.dtype, self.count)
        self.places = self.k.local("places", DType.I32, self.count)

    def key(self, first: Value, i: Value, lanes: int = 1) -> Value:
        step = self.x.strides[-1]
        return sort_key(self.k, self.k.load(self.x.buffer, first + step * i, lanes=lanes, stride=step), descending=True)

    def build(self) -> None:
        k = self.k
        *lead, length = self.x.dims
        lanes = self.site.machine.lanes(self.dtype)
        with whole_rows(k, total(k, lead), length) as row:
            first = self.x.at(*unflatten(row, lead))
            # Rows are at least as long as the list; symbolic sizes that are not must not be read beyond their end.
            filled = k.min(length, self.count)
            with k.loop("j", 0, self.count) as j:
                k.store(self.keys, j, largest(k, k.const(0, ValueType(self.dtype))))
                k.store(self.places, j, 0)
            with k.loop("i", 0, filled) as i:
                self.insert(self.key(first, i), i, i)
            whole = filled + (length - filled) // lanes * lanes
            with k.loop("v", filled, whole, lanes) as v:
                found = self.key(first, v, lanes) < k.splat(self.last(), lanes)
                with k.when(k.reduce("or", found)):
                    self.offer(first, v, v + lanes)
            self.offer(first, whole, length)
            self.store(row, first)

    def last(self) -> Value:
        return self.k.load(self.keys, self.count - 1)

    def offer(self, first: Value, start: Value, stop: Value) -> None:
        k = self.k
        with k.loop("i", start, stop) as i:
            key = self.key(first, i)
            with k.when(key < self.last()):
                self.insert(key, i, k.as_index(self.count))

    def insert(self, key: Value, i: Value, count: Value) -> None:
        """Put an element behind all of the list that are not larger; what it displaces moves on by one."""
        k = self.k
        with k.fold("j", 0, count, init=[key, k.cast(i, DType.I32), k.const(0, DType.BOOL)]) as f:
            moving, place, is_in = f.values
            other, other_place = k.load(self.keys, f.index), k.load(self.places, f.index)
            is_in = is_in | (moving < other)
            k.store(self.keys, f.index, k.select(is_in, moving, other))
            k.store(self.places, f.index, k.select(is_in, place, other_place))
            f.next(k.select(is_in, other, moving), k.select(is_in, other_place, place), is_in)
        with k.when(count < self.count):
            k.store(self.keys, count, f.results[0])
            k.store(self.places, count, f.results[1])

    def store(self, row: Value, first: Value) -> None:
        k = self.k
        with k.loop("j", 0, self.count) as j:
            place = k.load(self.places, j)
            k.store(self.ids.buffer, row * self.count + j, place)
            for values in self.values:
                found = k.load(self.x.buffer, first + self.x.strides[-1] * k.cast(place, DType.I64))
                k.store(values.buffer, row * self.count + j, found)


@op_kernel(SearchSorted, kind="search", supports=_is_native)
def search_sorted(site: OpSite) -> None:
    """Binary search, a value per lane: from the largest power of two on, go so far if everything up to there comes
    before the value."""
    k, op = site.k, site.op
    assert isinstance(op, SearchSorted)
    (sequence, values), (y,) = site.inputs, site.outputs
    count, size = sequence.dims[-1], sequence.shape.dims[-1]
    has_rows = len(sequence.dims) > 1
    rows, length = (total(k, values.dims[:-1]), values.dims[-1]) if has_rows else (k.as_index(1), total(k, values.dims))
    powers = size.bit_length() if isinstance(size, int) else 31
    # Nothing is read of an empty sequence.
    steps = k.select(count > 0, k.as_index(powers), 0)

    with strips(k, rows, length, 512) as (row, start, stop):

        def search(i: Value, lanes: int, mask: Value | None) -> None:
            value = _key(k, k.load(values.buffer, row * length + i, lanes=lanes, mask=mask))
            found = k.const(0, ValueType(DType.I64, lanes))
            with k.fold("step", 0, steps, init=[found]) as f:
                further = f.values[0] + k.splat(k.as_index(1) << (powers - 1 - f.index), lanes)
                place = k.min(further, k.splat(count, lanes)) - 1
                other = _key(k, k.load(sequence.buffer, place + k.splat(row * count, lanes), lanes=lanes))
                before = (other <= value) if op.right else (other < value)
                f.next(k.select(before & (further <= k.splat(count, lanes)), further, f.values[0]))
            k.store(y.buffer, row * length + i, k.cast(f.results[0], DType.I32), mask=mask)

        along(k, site.machine, [values.shape.dtype, DType.I64], start, stop, search)


def _key(k: KernelBuilder, x: Value) -> Value:
    """Keys in ascending order, NaN the last."""
    return sort_key(k, x, descending=False)
