"""The passes of a sort of long rows on GPUs: how often digits occur in a tile, and a tile put where it belongs.

A block has a tile of a row. It orders the tile by the digit in shared memory first, so that what it stores are runs of
neighbours, one for each digit.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.sort_keys import key_dtype, sort_key
from rlx.kernels.gpu.digit_ranks import WARP, DigitRanks, DigitSums, digit_of
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.ops.lowered.radix_passes import DIGITS, RadixCounts, RadixPass, RadixPlaces, tile_of

THREADS = 512


def radix_kernel(site: OpSite) -> Kernel:
    """The kernel of a pass."""
    tile = _Tile(site)
    if isinstance(site.op, RadixCounts):
        tile.count()
    else:
        tile.place()
    return site.k.build()


class _Tile:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.k, GroupBuilder) and isinstance(site.op, RadixPass)
        self.site, self.op = site, site.op
        k = self.k = site.k
        self.x = site.inputs[0]
        *self.lead, self.length = self.x.dims
        self.size = tile_of(self.x.shape.dtype)
        self.items = self.size // THREADS
        self.tiles = k.ceildiv(self.length, self.size)
        self.blocks = total(k, self.lead) * self.tiles
        self.shift = k.as_index(self.op.shift)

    def key(self, first: Value, i: Value) -> Value:
        loaded = self.k.load(self.x.buffer, first + self.x.strides[-1] * i)
        return sort_key(self.k, loaded, self.op.descending) if self.op.raw else loaded

    def count_place(self, row: Value, tile: Value, digit: Value) -> Value:
        """Where the count of a digit in a tile lies."""
        if self.op.summed:
            return (row * DIGITS + digit) * self.tiles + tile
        return (row * self.tiles + tile) * DIGITS + digit

    def count(self) -> None:
        k, (counts,) = self.k, self.site.outputs
        found = k.shared("found", DType.I32, DIGITS)
        with k.parallel("tile", self.blocks) as block, k.threads("thread", THREADS) as thread:
            row, tile = block // self.tiles, block % self.tiles
            first, start = self.x.at(*unflatten(row, self.lead)), tile * self.size
            with k.loop("digit", thread, DIGITS, THREADS) as digit:
                k.store(found, digit, k.const(0, DType.I32))
            k.barrier()
            for item in range(self.items):
                i = start + thread + item * THREADS
                with k.when(i < self.length):
                    digit = digit_of(k, self.key(first, i), self.shift)
                    k.atomic("add", found, k.cast(digit, DType.I64), k.const(1, DType.I32))
            k.barrier()
            with k.loop("digit", thread, DIGITS, THREADS) as digit:
                k.store(counts.buffer, self.count_place(row, tile, digit), k.load(found, digit))

    def place(self) -> None:
        k, size, items = self.k, self.size, self.items
        assert isinstance(self.op, RadixPlaces)
        new_keys, new_order = (slab.buffer for slab in self.site.outputs)
        keys = k.shared("keys", key_dtype(self.x.shape.dtype), size)
        places = k.shared("places", DType.I32, size)
        shifts = k.shared("shifts", DType.I64, DIGITS)
        ranks, sums = DigitRanks(k, THREADS), DigitSums(k, "row_starts", THREADS)
        with k.parallel("tile", self.blocks) as block, k.threads("thread", THREADS) as thread:
            row, tile = block // self.tiles, block % self.tiles
            first, start = self.x.at(*unflatten(row, self.lead)), tile * size
            base, end = row * self.length, k.min(self.length - start, size)
            last = k.const(DIGITS - 1, DType.U8)
            own = [thread // WARP * (WARP * items) + item * WARP + thread % WARP for item in range(items)]
            inside = [k.min(start + i, self.length - 1) for i in own]
            found = [self.key(first, i) for i in inside]
            # What fills up the tile comes last in it, and is not stored.
            digits = [k.select(i < end, digit_of(k, key, self.shift), last) for i, key in zip(own, found)]
            goals = ranks.places(thread, digits)
            for goal, key, i in zip(goals, found, inside):
                k.store(keys, goal, key)
                k.store(places, goal, self.origin(row, i))
            with k.when(thread < sums.active):
                self.row_starts(sums, shifts, row, tile, thread)
                for digit in sums.numbers(thread):
                    in_tile = k.cast(k.load(ranks.digits.starts, digit), DType.I64)
                    k.store(shifts, digit, k.load(shifts, digit) - in_tile)
            k.barrier()
            if not self.op.summed:
                with k.when(thread < sums.active):
                    sums.join(thread)
                    for digit in sums.numbers(thread):
                        in_row = k.cast(k.load(sums.starts, digit), DType.I64)
                        k.store(shifts, digit, k.load(shifts, digit) + in_row)
                k.barrier()
            for item in range(items):
                i = thread + item * THREADS
                with k.when(i < end):
                    key = k.load(keys, i)
                    to = i + k.load(shifts, k.cast(digit_of(k, key, self.shift), DType.I64))
                    to = base + k.max(k.min(to, self.length - 1), 0)
                    k.store(new_keys, to, key)
                    k.store(new_order, to, k.load(places, i))

    def origin(self, row: Value, i: Value) -> Value:
        """Where the element at a place was before all passes."""
        if len(self.site.inputs) == 2:
            return self.k.cast(i, DType.I32)
        order = self.site.inputs[2]
        return self.k.load(order.buffer, order.at(*unflatten(row, self.lead), i))

    def row_starts(self, sums: DigitSums, shifts: Buffer, row: Value, tile: Value, thread: Value) -> None:
        """How many elements with a thread's digits lie in tiles before this one; `sums` learns how many there are in
        all, so that those with smaller digits can be added."""
        k, counts = self.k, self.site.inputs[1].buffer
        zero, totals = k.const(0, DType.I32), []
        for digit in sums.numbers(thread):
            if self.op.summed:
                before: Value = k.load(counts, self.count_place(row, tile, digit))
            else:
                with k.fold("other", 0, self.tiles, init=[zero, zero]) as fold:
                    count = k.load(counts, self.count_place(row, fold.index, digit))
                    fold.next(fold.values[0] + count, fold.values[1] + k.select(fold.index < tile, count, zero))
                all_of_row, before = fold.results
                totals.append(all_of_row)
            k.store(shifts, digit, k.cast(before, DType.I64))
        if totals:
            sums.inside(thread, totals)
