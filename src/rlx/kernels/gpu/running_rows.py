"""Running sums and their like on GPUs: a block for each row, which goes along it tile by tile, or a thread for each
column.

In a tile a warp has a few runs of neighbours, an element for each thread. Threads join what they have by giving it to
each other, and warps through shared memory; what a tile has brought so far goes on to the next. All runs of a thread
are loaded before they are joined, and so are a few elements of a column, so that threads wait once for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.cumulative import Running
from rlx.kernels.cpu.ops.strips import is_one
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Const, Kernel, Value
from rlx.ops.lowered.running_from import RunningFrom
from rlx.ops.reduction.cumulative import Cumulative

THREADS = 256
WARP = 32
# Elements of a thread in a tile.
ITEMS = 8
# Rows of fewer elements have a thread each.
SHORTEST = 64


# Threads of a block of columns, elements that each loads at once, and columns side by side at least.
COLUMNS = 128
AHEAD = 8
FEWEST = 32


def is_block_running(site: OpSite) -> bool:
    """Whether elements of a row lie side by side, and are enough for a block."""
    if not isinstance(site.op, Cumulative | RunningFrom):
        return False
    _, length, inner = Running(site).sizes
    return is_one(inner) and not (isinstance(length, Const) and length.literal < SHORTEST)


def is_column_running(site: OpSite) -> bool:
    """Whether neighbours belong to different sequences, enough of them for a block."""
    if not isinstance(site.op, Cumulative | RunningFrom):
        return False
    _, _, inner = Running(site).sizes
    return not isinstance(inner, Const) or inner.literal >= FEWEST


def running_columns_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_column_running` holds."""
    running, k = Running(site), site.k
    outer, length, inner = running.sizes
    parts = k.ceildiv(inner, COLUMNS)
    whole = length // AHEAD * AHEAD
    with k.parallel("part", outer * parts) as part, k.threads("thread", COLUMNS) as thread:
        row, column = part // parts, part % parts * COLUMNS + thread
        with k.when(column < inner):
            base = row * length * inner + column

            def place(j: Value) -> Value:
                return base + (length - 1 - j if running.op.reverse else j) * inner

            with k.fold("tile", 0, whole, AHEAD, init=[running.start(row * inner + column, 1)]) as tile:
                places = [place(tile.index + i) for i in range(AHEAD)]
                so_far = tile.values[0]
                for at, value in zip(places, [running.load(at, 1) for at in places]):
                    joined = running.join(so_far, value)
                    running.store(at, so_far if running.op.exclusive else joined)
                    so_far = joined
                tile.next(so_far)
            with k.fold("j", whole, length, init=[tile.results[0]]) as rest:
                rest.next(running.step(rest.values[0], place(rest.index), 1))
    return k.build()


def running_rows_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_block_running` holds."""
    running, k = Running(site), site.k
    assert isinstance(k, GroupBuilder)
    rows, length, _ = running.sizes
    warps = THREADS // WARP
    totals = k.shared("totals", running.wide, warps)
    with k.parallel("block", rows) as block, k.threads("thread", THREADS) as thread:
        # Parts were summed up from the first to the last one: what came last is still near.
        row = rows - 1 - block if running.before else block
        lane, warp, base = thread % WARP, thread // WARP, row * length
        with k.fold("tile", 0, length, THREADS * ITEMS, init=[running.start(row, 1)]) as tile:
            first = tile.index + warp * (WARP * ITEMS) + lane
            own = [first + i * WARP for i in range(ITEMS)]
            places = [_place(running, i, length, base) for i in own]
            loaded = [running.load(place, 1) for place in places]
            values = [k.select(i < length, value, running.identity(1)) for i, value in zip(own, loaded)]
            inside = [_over_warp(k, running.join, value, lane) for value in values]
            runs = [k.exchange("lane", value, WARP - 1) for value in inside]
            # Everybody has read the totals of the tile before.
            k.barrier()
            with k.when(k.eq(lane, WARP - 1)):
                k.store(totals, warp, reduce(running.join, runs))
            k.barrier()
            with k.fold("other", 0, warp, init=[tile.values[0]]) as fold:
                fold.next(running.join(fold.values[0], k.load(totals, fold.index)))
            before = fold.results[0]
            with k.fold("other", warp, warps, init=[before]) as fold:
                fold.next(running.join(fold.values[0], k.load(totals, fold.index)))
            for i, place, scanned, run in zip(own, places, inside, runs):
                stored = running.join(before, scanned)
                if running.op.exclusive:
                    earlier = k.exchange("lane", stored, k.max(lane - 1, 0))
                    stored = k.select(lane > 0, earlier, before)
                with k.when(i < length):
                    running.store(place, stored)
                before = running.join(before, run)
            tile.next(fold.results[0])
    return k.build()


def _place(running: Running, index: Value, length: Value, base: Value) -> Value:
    """Where an element of a row lies; behind the last one it is that of the last."""
    inside = running.k.min(index, length - 1)
    return base + (length - 1 - inside if running.op.reverse else inside)


def _over_warp(k: GroupBuilder, join: Callable[[Value, Value], Value], value: Value, lane: Value) -> Value:
    """Every thread's value joined with those of all threads before it in its warp."""
    distance = 1
    while distance < WARP:
        other = k.exchange("lane", value, k.max(lane - distance, 0))
        value = k.select(lane >= distance, join(other, value), value)
        distance *= 2
    return value
