"""The largest few elements of rows, or of parts of them, by a block of a GPU without sorting all of them.

Each thread has some elements in registers. Of the best one of every thread the k-th is a limit that all of the first k
reach: no more than k threads have better ones. What reaches it, hardly more than k elements, is gathered and sorted.
An element is its key and its place in one number, so that no two are equal and ties go to the first.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.cpu.ops.sort_keys import key_dtype, sort_key
from rlx.kernels.gpu.digit_ranks import WARP, before_each
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Buffer, Const, Kernel, Value
from rlx.ops.lowered.top_of_parts import TopOfParts
from rlx.ops.reduction.sort import TopK, TopKWithValues

THREADS = 512
LEAST_THREADS = 64
# Elements of a thread: as many as threads are enough for, and at most.
FEW_ITEMS, MOST_ITEMS = 8, 16
# Rows that are shorter are sorted; more elements than this are not looked for.
SHORT, MOST_KEPT = 256, 64


def is_top_block(site: OpSite) -> bool:
    """Whether a block holds the rows or parts, and their elements have room beside their places."""
    op = site.op
    if not isinstance(op, TopK | TopKWithValues | TopOfParts) or not 0 < op.k <= MOST_KEPT:
        return False
    (x,) = site.inputs
    length, parts = x.dims[-1], op.parts if isinstance(op, TopOfParts) else 1
    if not isinstance(length, Const) or key_dtype(x.shape.dtype).size_bytes > 4:
        return False
    longest = -(-int(length.literal) // parts)
    return (longest > SHORT or parts > 1) and longest <= THREADS * MOST_ITEMS


def top_block_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_top_block` holds."""
    _Top(site).build()
    return site.k.build()


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


class _Top:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.k, GroupBuilder) and isinstance(site.op, TopK | TopKWithValues | TopOfParts)
        self.k, self.count = site.k, site.op.k
        self.parts = site.op.parts if isinstance(site.op, TopOfParts) else 1
        self.x: Slab = site.inputs[0]
        *self.values, self.ids = (slab.buffer for slab in site.outputs)
        *self.lead, length = self.x.dims
        assert isinstance(length, Const)
        self.length = int(length.literal)
        longest = -(-self.length // self.parts)
        wanted = max(LEAST_THREADS, _power(self.count), _power(-(-longest // FEW_ITEMS)))
        self.threads = min(THREADS, wanted)
        self.items = -(-longest // self.threads)
        # No more than k threads have elements that reach the limit.
        self.room = max(self.threads, _power(self.count * self.items))
        k = self.k
        self.found: Buffer = k.shared("found", DType.U64, self.room)
        self.limit: Buffer = k.shared("limit", DType.U64, 1)
        self.warps: Buffer = k.shared("warps", DType.I32, self.threads // WARP)
        self.none = k.const((1 << 64) - 1, DType.U64)

    def build(self) -> None:
        k, x = self.k, self.x
        rows = total(k, self.lead)
        with k.parallel("part", rows * self.parts) as block, k.threads("thread", self.threads) as thread:
            row, part = block // self.parts, block % self.parts
            first = x.at(*unflatten(row, self.lead))
            start, stop = (self.length * p // self.parts for p in (part, part + 1))
            # Places in 32 bits: threads have many of them.
            place = k.cast(start + thread, DType.U32)
            places = [place + i * self.threads for i in range(self.items)]
            keys = [self.key(first, i, k.cast(stop, DType.U32)) for i in places]
            best, at = keys[0], places[0]
            for key, i in zip(keys[1:], places[1:]):
                is_better = key < best
                best, at = k.select(is_better, key, best), k.select(is_better, i, at)
            best = self.sorted(self.element(best, at), thread)
            with k.when(k.eq(thread, self.count - 1)):
                k.store(self.limit, 0, best)
            k.barrier()
            limit = k.load(self.limit, 0)
            gathered = self.gather(keys, places, limit, thread)
            k.barrier()
            self.store(block, first, thread, self.in_order(gathered, thread))

    def key(self, first: Value, i: Value, stop: Value) -> Value:
        """A number without sign of which the smallest comes first; what does not exist comes last, as NaN does, and
        stands behind it."""
        k = self.k
        inside = k.cast(k.min(i, stop - 1), DType.I64)
        number = k.load(self.x.buffer, first + self.x.strides[-1] * inside)
        key = sort_key(k, number, descending=True)
        bits = 8 * key.dtype.size_bytes
        unsigned = k.bitcast(key, DType.of(f"u{bits}"))
        if key.dtype.is_signed:
            unsigned = unsigned ^ (1 << (bits - 1))
        wide = k.cast(unsigned, DType.U32)
        return k.select(i < stop, wide, k.const((1 << 32) - 1, wide.type))

    def element(self, key: Value, i: Value) -> Value:
        """A key, and behind it the place."""
        k = self.k
        return (k.cast(key, DType.U64) << 32) | k.cast(i, DType.U64)

    def sorted(self, value: Value, thread: Value) -> Value:
        """One number of each thread, in order: pairs of threads as far apart as a step says (bitonic)."""
        k, size = self.k, 2
        while size <= self.threads:
            distance = size // 2
            while distance:
                if distance < WARP:
                    other = k.exchange("xor", value, distance)
                else:
                    k.barrier()
                    k.store(self.found, thread, value)
                    k.barrier()
                    other = k.load(self.found, thread ^ distance)
                is_low, ascends = k.eq(thread & distance, 0), k.eq(thread & size, 0)
                value = k.select(k.eq(is_low, ascends), k.min(value, other), k.max(value, other))
                distance //= 2
            size *= 2
        return value

    def gather(self, keys: list[Value], places: list[Value], limit: Value, thread: Value) -> Value:
        """All elements that reach the limit into one list; gives how many there are."""
        k, lane, warp = self.k, thread % WARP, thread // WARP
        zero, one = (k.const(n, DType.I32) for n in (0, 1))
        # Those with the key of the limit are few: places decide only there.
        last = k.cast(limit >> 32, DType.U32)
        limit_place = k.cast(limit & ((1 << 32) - 1), DType.U32)
        reach = [(key < last) | (k.eq(key, last) & (i <= limit_place)) for key, i in zip(keys, places)]
        count: Value = zero
        for reaches in reach:
            count = count + k.select(reaches, one, zero)
        before = before_each(k, count, lane)
        with k.when(k.eq(lane, WARP - 1)):
            k.store(self.warps, warp, before)
        k.barrier()
        with k.fold("other", 0, self.threads // WARP, init=[zero, zero]) as fold:
            found = k.load(self.warps, fold.index)
            fold.next(fold.values[0] + found, fold.values[1] + k.select(fold.index < warp, found, zero))
        everything, place = fold.results[0], fold.results[1] + before - count
        for key, i, reaches in zip(keys, places, reach):
            with k.when(reaches):
                k.store(self.found, k.cast(place, DType.I64), self.element(key, i))
            place = place + k.select(reaches, one, zero)
        return k.cast(everything, DType.I64)

    def in_order(self, count: Value, thread: Value) -> Value:
        """The list sorted: each thread has the element of its number."""
        k = self.k

        def by_threads() -> list[Value]:
            own = k.load(self.found, k.min(thread, count - 1))
            return [self.sorted(k.select(thread < count, own, self.none), thread)]

        def by_memory() -> list[Value]:
            self.sort_list(count, thread)
            return [k.load(self.found, thread)]

        if self.room == self.threads:
            return by_threads()[0]
        return k.choose(count <= self.threads, by_threads, by_memory)[0]

    def sort_list(self, count: Value, thread: Value) -> None:
        k = self.k
        with k.loop("i", thread, self.room, self.threads) as i, k.when(i >= count):
            k.store(self.found, i, self.none)
        with k.loop("level", 1, self.room.bit_length()) as level, k.loop("step", 0, level) as step:
            shift = level - 1 - step
            distance = k.as_index(1) << shift
            k.barrier()
            with k.loop("pair", thread, self.room // 2, self.threads) as pair:
                low = ((pair >> shift) << (shift + 1)) + (pair & (distance - 1))
                a, b = (k.load(self.found, i) for i in (low, low + distance))
                ascends = k.eq((low >> level) & 1, 0)
                k.store(self.found, low, k.select(ascends, k.min(a, b), k.max(a, b)))
                k.store(self.found, low + distance, k.select(ascends, k.max(a, b), k.min(a, b)))
        k.barrier()

    def store(self, block: Value, first: Value, thread: Value, element: Value) -> None:
        k = self.k
        with k.when(thread < self.count):
            place = k.cast(element & ((1 << 32) - 1), DType.I64)
            goal = block * self.count + thread
            k.store(self.ids, goal, k.cast(place, DType.I32))
            for values in self.values:
                k.store(values, goal, k.load(self.x.buffer, first + self.x.strides[-1] * place))
