"""`expert_route` on GPUs: a block for each expert, which finds its rows among all.

Threads of a block look through parts of the ids; how many of a smaller expert there are says where the rows of this one
begin, and how many of its own earlier threads have found where those of a thread do. Nothing depends on who is first.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.ir.extents import clipped_id
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.ops.lowered.expert_products import ExpertRoute

THREADS = 128
# Experts whose marks have room in shared memory.
MOST_EXPERTS = 4096


def is_block_route(site: OpSite) -> bool:
    return isinstance(site.op, ExpertRoute) and site.op.experts <= MOST_EXPERTS


def expert_route_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_block_route` holds."""
    k, op, (ids,), (route,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, ExpertRoute)
    experts, rows, lists = op.experts, ids.dims[0], route.buffer
    part = k.ceildiv(rows, THREADS)
    zero, one = (k.const(n, DType.I32) for n in (0, 1))

    def expert_of(row: Value) -> Value:
        return clipped_id(k, k.load(ids.buffer, ids.offset + row * ids.strides[0]), experts)

    def added(buffer: Buffer, start: Value | int, stop: Value | int) -> Value:
        with k.fold("other", start, stop, init=[zero]) as fold:
            fold.next(fold.values[0] + k.load(buffer, fold.index))
        return fold.results[0]

    own, smaller = (k.shared(name, DType.I32, THREADS) for name in ("own", "smaller"))
    marks = k.shared("marks", DType.I32, experts)
    with k.parallel("expert", experts) as expert, k.threads("thread", THREADS) as thread:
        with k.loop("mark", thread, experts, THREADS) as mark:
            k.store(marks, mark, zero)
        k.barrier()
        start = k.min(thread * part, rows)
        stop = k.min(start + part, rows)
        with k.fold("row", start, stop, init=[zero, zero]) as fold:
            chosen = expert_of(fold.index)
            k.atomic("max", marks, chosen, one)
            is_own, is_smaller = k.eq(chosen, expert), chosen < expert
            fold.next(fold.values[0] + k.select(is_own, one, zero), fold.values[1] + k.select(is_smaller, one, zero))
        k.store(own, thread, fold.results[0])
        k.store(smaller, thread, fold.results[1])
        k.barrier()
        begin, count = added(smaller, 0, THREADS), added(own, 0, THREADS)
        first = begin + added(own, 0, thread)
        with k.fold("row", start, stop, init=[first]) as fold:
            is_own = k.eq(expert_of(fold.index), expert)
            place = fold.values[0]
            with k.when(is_own):
                k.store(lists, route.offset + k.cast(place, DType.I64) + 2 * experts, k.cast(fold.index, DType.I32))
            fold.next(place + k.select(is_own, one, zero))
        with k.when(k.eq(thread, 0)):
            before, all_chosen = added(marks, 0, expert), added(marks, 0, experts)
            number = k.cast(expert, DType.I32)
            is_chosen = count > 0
            # Those without rows fill up the lists.
            slot = k.select(is_chosen, before, all_chosen + (number - before))
            at = route.offset + k.cast(slot, DType.I64)
            k.store(lists, at, k.select(is_chosen, number, zero))
            k.store(lists, at + experts, k.select(is_chosen, begin + count, k.cast(rows, DType.I32)))
    return k.build()
