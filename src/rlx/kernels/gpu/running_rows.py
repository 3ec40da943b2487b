"""Running sums and their like along rows on GPUs: a block for each row, which goes along it tile by tile.

A thread joins a few neighbouring elements, threads of a warp what they have by giving it to each other, and warps
through shared memory; what a tile has brought so far goes on to the next.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.cumulative import Running
from rlx.kernels.cpu.ops.strips import is_one
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Const, Kernel, Value
from rlx.ops.reduction.cumulative import Cumulative

THREADS = 256
WARP = 32
# Elements of a thread in a tile.
ITEMS = 4
# Rows of fewer elements have a thread each.
SHORTEST = 64


def is_block_running(site: OpSite) -> bool:
    """Whether elements of a row lie side by side, and are enough for a block."""
    if not isinstance(site.op, Cumulative):
        return False
    _, length, inner = Running(site).sizes
    return is_one(inner) and not (isinstance(length, Const) and length.literal < SHORTEST)


def running_rows_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_block_running` holds."""
    running, k = Running(site), site.k
    assert isinstance(k, GroupBuilder)
    rows, length, _ = running.sizes
    warps = THREADS // WARP
    totals = k.shared("totals", running.wide, warps)
    with k.parallel("row", rows) as row, k.threads("thread", THREADS) as thread:
        lane, warp, base = thread % WARP, thread // WARP, row * length
        with k.fold("tile", 0, length, THREADS * ITEMS, init=[running.identity(1)]) as tile:
            first = tile.index + thread * ITEMS
            places = [_place(running, first + i, length, base) for i in range(ITEMS)]
            joined: list[Value] = []
            for i, place in enumerate(places):
                exists = first + i < length
                value = k.select(exists, running.load(place, 1), running.identity(1))
                joined.append(running.join(joined[-1], value) if joined else value)
            inside = _over_warp(k, running.join, joined[-1], lane)
            # Everybody has read the totals of the tile before.
            k.barrier()
            with k.when(k.eq(lane, WARP - 1)):
                k.store(totals, warp, inside)
            k.barrier()
            with k.fold("other", 0, warp, init=[tile.values[0]]) as fold:
                fold.next(running.join(fold.values[0], k.load(totals, fold.index)))
            before_warp = fold.results[0]
            with k.fold("other", warp, warps, init=[before_warp]) as fold:
                fold.next(running.join(fold.values[0], k.load(totals, fold.index)))
            earlier = k.exchange("lane", inside, k.max(lane - 1, 0))
            before = k.select(lane > 0, running.join(before_warp, earlier), before_warp)
            for i, place in enumerate(places):
                so_far = running.join(before, joined[i - 1]) if i else before
                stored = so_far if running.op.exclusive else running.join(before, joined[i])
                with k.when(first + i < length):
                    running.store(place, stored)
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
