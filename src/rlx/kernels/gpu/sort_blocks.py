"""Rows that fit into shared memory are sorted by a block of a GPU: their order, or the first few of them.

Short rows by a network of comparisons (bitonic): in every step each thread compares pairs that lie as far apart as the
step says and puts them in order. Equal keys are told apart by their places, so that the order is that of the ops.
Longer rows by the digits of their keys, the lowest first (`digit_ranks`): keys and places stay in registers, and in
every pass they go through shared memory to where the pass puts them.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.cpu.ops.sort_keys import key_dtype, largest, sort_key
from rlx.kernels.gpu.digit_ranks import WARP, DigitRanks, digit_of
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Buffer, Const, Kernel, Value, ValueType
from rlx.ops.lowered.radix_passes import digit_shifts, tile_of
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.reduction.sort import TopK, TopKWithValues

THREADS = 512
# Bytes of a row with the places of its elements.
MOST_BYTES = 32 << 10
# Rows that are longer are sorted by digits, and a thread has so many of their elements at most.
SHORT = 256
ITEMS = 8


def is_block_sort(site: OpSite) -> bool:
    """Whether there is one key, and rows of a known length that fit."""
    if not isinstance(site.op, SortOrder | TopK | TopKWithValues) or len(site.inputs) != 1:
        return False
    (x,) = site.inputs
    length = x.dims[-1]
    if not isinstance(length, Const) or length.literal < 2:
        return False
    size = key_dtype(x.shape.dtype).size_bytes + DType.I32.size_bytes
    return _power(int(length.literal)) * size <= MOST_BYTES


def is_by_digits(site: OpSite) -> bool:
    """Whether there is one key, and rows of a known length that a tile holds."""
    if not isinstance(site.op, SortOrder) or len(site.inputs) != 1:
        return False
    (x,) = site.inputs
    length = x.dims[-1]
    return isinstance(length, Const) and SHORT < length.literal <= tile_of(x.shape.dtype)


def sort_by_digits_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_by_digits` holds."""
    k, (x,), (order, rank) = site.k, site.inputs, site.outputs
    assert isinstance(k, GroupBuilder) and isinstance(site.op, SortOrder)
    *lead, length = x.dims
    assert isinstance(length, Const)
    count, descending = int(length.literal), site.op.descending
    threads = max(WARP, _power(-(-count // ITEMS)))
    items = -(-count // threads)
    dtype = key_dtype(x.shape.dtype)
    keys, places = k.shared("keys", dtype, threads * items), k.shared("places", DType.U16, threads * items)
    ranks, shifts = DigitRanks(k, threads), digit_shifts(x.shape.dtype)
    with k.parallel("row", total(k, lead)) as row, k.threads("thread", threads) as thread:
        first, base = x.at(*unflatten(row, lead)), row * count
        own = [thread // WARP * (WARP * items) + item * WARP + thread % WARP for item in range(items)]
        last = largest(k, k.const(0, ValueType(dtype)))
        loaded: list[Value] = []
        for i in own:
            key = sort_key(k, k.load(x.buffer, first + x.strides[-1] * k.min(i, count - 1)), descending)
            # What fills up the row comes last, as NaN does, and stands behind it.
            loaded.append(k.select(i < count, key, last) if count < threads * items else key)
        init = [*loaded, *(k.cast(i, DType.U16) for i in own)]
        with k.fold("shift", shifts.start, shifts.stop, shifts.step, init=init) as fold:
            goals = ranks.places(thread, [digit_of(k, key, fold.index) for key in fold.values[:items]])
            for goal, key, place in zip(goals, fold.values[:items], fold.values[items:]):
                k.store(keys, goal, key)
                k.store(places, goal, place)
            k.barrier()
            fold.next(*(k.load(keys, i) for i in own), *(k.load(places, i) for i in own))
        sorted_places = fold.results[items:]
        k.barrier()
        for i, place in zip(own, sorted_places):
            with k.when(i < count):
                k.store(order.buffer, base + i, k.cast(place, DType.I32))
            k.store(places, k.cast(place, DType.I64), k.cast(i, DType.U16))
        k.barrier()
        for i in own:
            with k.when(i < count):
                k.store(rank.buffer, base + i, k.cast(k.load(places, i), DType.I32))
    return k.build()


def _power(length: int) -> int:
    """The power of two that a network of comparisons has room for."""
    return 1 << (length - 1).bit_length()


def sort_blocks_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_block_sort` holds."""
    k, op, (x,) = site.k, site.op, site.inputs
    *lead, length = x.dims
    assert isinstance(length, Const)
    count = int(length.literal)
    room = _power(count)
    threads = max(32, min(THREADS, room // 2))
    row_sort = _RowSort(site, x, room, threads)
    with k.parallel("row", total(k, lead)) as row, k.threads("thread", threads) as thread:
        first = x.at(*unflatten(row, lead))
        row_sort.load(first, count, thread)
        row_sort.sort(thread)
        k.barrier()
        if isinstance(op, SortOrder):
            order, rank = (slab.buffer for slab in site.outputs)
            base = row * count
            with k.loop("i", thread, count, threads) as i:
                place = k.load(row_sort.places, i)
                k.store(order, base + i, place)
                k.store(rank, base + k.cast(place, DType.I64), k.cast(i, DType.I32))
        else:
            assert isinstance(op, TopK | TopKWithValues)
            *values, ids = site.outputs
            with k.loop("i", thread, op.k, threads) as i:
                place = k.load(row_sort.places, i)
                k.store(ids.buffer, row * op.k + i, place)
                for result in values:
                    found = k.load(x.buffer, first + x.strides[-1] * k.cast(place, DType.I64))
                    k.store(result.buffer, row * op.k + i, found)
    return k.build()


class _RowSort:
    def __init__(self, site: OpSite, x: Slab, room: int, threads: int) -> None:
        k = self.k = site.k
        self.x, self.room, self.threads = x, room, threads
        self.descending = site.op.descending if isinstance(site.op, SortOrder) else True
        self.dtype = key_dtype(x.shape.dtype)
        self.keys: Buffer = k.shared("keys", self.dtype, room)
        self.places: Buffer = k.shared("places", DType.I32, room)

    def load(self, first: Value, count: int, thread: Value) -> None:
        """Keys and places; what fills up the row comes last, as NaN does, and its places are larger."""
        k = self.k
        last = largest(k, k.const(0, ValueType(self.dtype)))
        with k.loop("i", thread, self.room, self.threads) as i:
            number = k.load(self.x.buffer, first + self.x.strides[-1] * k.min(i, count - 1))
            key = sort_key(k, number, self.descending)
            k.store(self.keys, i, key if count == self.room else k.select(i < count, key, last))
            k.store(self.places, i, k.cast(i, DType.I32))

    def sort(self, thread: Value) -> None:
        size = 2
        while size <= self.room:
            distance = size // 2
            while distance:
                self.step(thread, size, distance)
                distance //= 2
            size *= 2

    def step(self, thread: Value, size: int, distance: int) -> None:
        """Pairs so far apart: those in every second run of `size` ascend, the others descend."""
        k = self.k
        k.barrier()
        with k.loop("pair", thread, self.room // 2, self.threads) as pair:
            low = pair // distance * (2 * distance) + pair % distance
            high = low + distance
            a, b = (k.load(self.keys, i) for i in (low, high))
            p, q = (k.load(self.places, i) for i in (low, high))
            is_behind = (b < a) | (k.eq(a, b) & (q < p))
            ascends = k.eq(low // size % 2, 0)
            with k.when(k.eq(k.cast(is_behind, DType.I32), k.cast(ascends, DType.I32))):
                for buffer, first, second in ((self.keys, b, a), (self.places, q, p)):
                    k.store(buffer, low, first)
                    k.store(buffer, high, second)
