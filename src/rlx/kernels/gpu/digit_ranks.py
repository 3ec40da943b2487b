"""Where elements of a tile go when they are ordered by eight bits of their keys, by the threads of a block of a GPU.

Warps count for themselves, in the order of their elements: of the threads that have the same digit one adds how many
they are, and the number before it, which all of them learn, is where they begin. Then the counts of all warps are
summed up. Everybody has its place by adding three numbers; equal digits keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Buffer, Const, Value, ValueType
from rlx.ops.lowered.radix_passes import DIGITS

WARP = 32


def digit_of(k: KernelBuilder, key: Value, shift: Value) -> Value:
    """Eight bits of a key, taken as a number without sign: a u8."""
    bits = 8 * key.dtype.size_bytes
    unsigned = k.bitcast(key, DType.of(f"u{bits}"))
    if key.dtype.is_signed:
        unsigned = unsigned ^ (1 << (bits - 1))
    wide = k.cast(unsigned, DType.U64 if bits == 64 else DType.U32)
    if not (isinstance(shift, Const) and shift.literal == 0):
        wide = k.op("shr", wide, k.cast(shift, wide.dtype))
    return k.cast(wide & (DIGITS - 1), DType.U8)


def before_each(k: GroupBuilder, value: Value, lane: Value) -> Value:
    """What threads of a warp have, summed up to each of them, itself included."""
    distance = 1
    while distance < WARP:
        other = k.exchange("lane", value, k.max(lane - distance, 0))
        value = k.select(lane >= distance, value + other, value)
        distance *= 2
    return value


class DigitSums:
    """Exclusive sums over all digits, by the first threads of a block; a thread has several digits where threads are
    few."""

    def __init__(self, k: GroupBuilder, name: str, threads: int) -> None:
        self.k, self.each = k, max(1, DIGITS // threads)
        self.active = min(threads, DIGITS)
        self.starts = k.shared(name, DType.I32, DIGITS)
        self.sums = k.shared(f"{name}_sums", DType.I32, max(1, self.active // WARP))

    def numbers(self, thread: Value) -> list[Value]:
        """The digits of a thread."""
        return [thread * self.each + i for i in range(self.each)]

    def inside(self, thread: Value, totals: Sequence[Value]) -> None:
        """What each digit has before it among those of its warp; for active threads, which meet afterwards."""
        k, lane = self.k, thread % WARP
        own = totals[0]
        for total in totals[1:]:
            own = own + total
        summed = before_each(k, own, lane)
        with k.when(k.eq(lane, WARP - 1)):
            k.store(self.sums, thread // WARP, summed)
        start = summed - own
        for digit, total in zip(self.numbers(thread), totals):
            k.store(self.starts, digit, start)
            start = start + total

    def join(self, thread: Value) -> None:
        """Add what warps before have; for active threads, which meet afterwards."""
        k = self.k
        with k.fold("other", 0, thread // WARP, init=[k.const(0, DType.I32)]) as before:
            before.next(before.values[0] + k.load(self.sums, before.index))
        for digit in self.numbers(thread):
            k.store(self.starts, digit, k.load(self.starts, digit) + before.results[0])


class DigitRanks:
    def __init__(self, k: GroupBuilder, threads: int) -> None:
        self.k, self.threads, self.warps = k, threads, threads // WARP
        self.counts: Buffer = k.shared("counts", DType.U16, self.warps * DIGITS)
        self.digits = DigitSums(k, "starts", threads)

    def places(self, thread: Value, digits: Sequence[Value]) -> list[Value]:
        """The place in the tile of each of a thread's elements, which follow each other by warps: the first of all
        threads of a warp, then the second. There is a barrier in front, and all have met behind it."""
        k, row = self.k, thread // WARP * DIGITS
        each = self.warps * DIGITS // self.threads
        k.store(self.counts, thread * each, k.const(0, ValueType(DType.U16, each)), align=2 * each)
        k.barrier()
        ranks = [self.rank(row, digit) for digit in digits]
        k.barrier()
        with k.when(thread < self.digits.active):
            self.digits.inside(thread, [self.summed(digit) for digit in self.digits.numbers(thread)])
        k.barrier()
        with k.when(thread < self.digits.active):
            self.digits.join(thread)
        k.barrier()
        return [self.place(row, digit, rank) for digit, rank in zip(digits, ranks)]

    def rank(self, row: Value, digit: Value) -> Value:
        """How many of a warp have the same digit and come before."""
        k = self.k
        peers, at = k.peers(digit), row + k.cast(digit, DType.I64)

        def add() -> list[Value]:
            before = k.load(self.counts, at)
            k.store(self.counts, at, before + k.cast(peers.count, DType.U16))
            return [k.cast(before, DType.I32)]

        (before,) = k.choose(k.eq(peers.before, 0), add, lambda: [k.const(0, DType.I32)])
        return k.exchange("lane", before, peers.first) + peers.before

    def summed(self, digit: Value) -> Value:
        """The counts of a digit summed up over warps, in place; the sum of all is returned."""
        k, so_far = self.k, self.k.const(0, DType.I32)
        total: Value = so_far
        for warp in range(self.warps):
            at = digit + warp * DIGITS
            count = k.load(self.counts, at)
            k.store(self.counts, at, k.cast(total, DType.U16))
            total = total + k.cast(count, DType.I32)
        return total

    def place(self, row: Value, digit: Value, rank: Value) -> Value:
        k, number = self.k, self.k.cast(digit, DType.I64)
        start, before = k.load(self.digits.starts, number), k.load(self.counts, row + number)
        return k.cast(start + k.cast(before, DType.I32) + rank, DType.I64)
