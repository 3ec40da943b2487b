"""The position of the largest or smallest element of rows on GPUs: a block for each row.

Threads look at every so many elements; of what they have found the best is the one with the largest key, and of equals
the first, whichever way they are joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.arg_reduce import Search
from rlx.kernels.cpu.ops.strips import is_one
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Const, Kernel, Value
from rlx.ops.reduction.reductions import ArgReduce

THREADS = 512
WARP = 32
# Elements that a thread loads at once.
AHEAD = 4
# Rows of fewer elements have a thread each.
SHORTEST = 64


def is_block_search(site: OpSite) -> bool:
    """Whether elements of a row lie side by side, and are enough for a block."""
    if not isinstance(site.op, ArgReduce):
        return False
    _, length, inner = Search(site).sizes
    return is_one(inner) and not (isinstance(length, Const) and length.literal < SHORTEST)


def search_rows_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_block_search` holds."""
    search, k = Search(site), site.k
    assert isinstance(k, GroupBuilder)
    rows, length, _ = search.sizes
    warps = THREADS // WARP
    keys, places = k.shared("keys", search.key_dtype, warps), k.shared("places", DType.I32, warps)

    def first_of_best(a: Sequence[Value], b: Sequence[Value]) -> tuple[Value, Value]:
        is_better = (b[0] > a[0]) | (k.eq(b[0], a[0]) & (b[1] < a[1]))
        return k.select(is_better, b[0], a[0]), k.select(is_better, b[1], a[1])

    with k.parallel("row", rows) as row, k.threads("thread", THREADS) as thread:
        base, lane = row * length, thread % WARP
        with k.fold("i", thread, length, THREADS * AHEAD, init=search.start(1)) as fold:
            # Elements behind the last one are the last one again.
            at = [k.min(fold.index + i * THREADS, length - 1) for i in range(AHEAD)]
            loaded = [k.load(search.x.buffer, base + i) for i in at]
            best, place = fold.values
            for i, number in zip(at, loaded):
                best, place = search.better((best, place), search.key(number), k.cast(i, DType.I32))
            fold.next(best, place)
        best, place = fold.results
        distance = WARP // 2
        while distance:
            best, place = first_of_best((best, place), [k.exchange("xor", v, distance) for v in (best, place)])
            distance //= 2
        with k.when(k.eq(lane, 0)):
            k.store(keys, thread // WARP, best)
            k.store(places, thread // WARP, place)
        k.barrier()
        with k.when(k.eq(thread, 0)):
            with k.fold("warp", 1, warps, init=[best, place]) as others:
                other = k.load(keys, others.index), k.load(places, others.index)
                others.next(*first_of_best(others.values, other))
            k.store(search.y.buffer, row, others.results[1])
    return k.build()
