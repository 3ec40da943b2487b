"""What all threads of a block have, joined by subgroups as wide as the machine has them.

A subgroup combines its values by one instruction, its first thread puts the result into shared memory, and after a
barrier every subgroup combines what all of them have put there: with 256 threads and subgroups of 32 each thread reads
one number, with subgroups of 8 it reads four.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.groups import OWN_WIDTH
from rlx.kernels.ir.loop_ir import Buffer, Value

# What machines combine values by, and the types of one word that they have it for.
JOINS = ("add", "min", "max")
TYPES = (DType.F32, DType.I32, DType.U32)


def has_subgroup_join(join: str, value: Value) -> bool:
    """Whether subgroups combine such values."""
    return join in JOINS and value.dtype in TYPES and value.lanes == 1


def join_subgroups(
    k: GroupBuilder, joins: Sequence[str], values: Sequence[Value], shared: Sequence[Buffer]
) -> list[Value]:
    """Each value of all threads of the block joined, and known to all of them. `shared` has, for each value, room for
    one of every subgroup; nobody may read or write it between this and the next barrier."""
    place = k.subgroup_place()
    parts = [k.exchange(join, value, width=OWN_WIDTH) for join, value in zip(joins, values)]
    with k.when(k.eq(place.lane, 0)):
        for buffer, part in zip(shared, parts):
            k.store(buffer, place.number, part)
    k.barrier()
    # Begun with a part of one's own where there is none to read: of sums it counts as 0, else it changes nothing.
    starts = [k.const(0, part.type) if join == "add" else part for join, part in zip(joins, parts)]
    with k.fold("subgroup", place.lane, place.count, place.width, init=starts) as fold:
        found = (k.load(buffer, fold.index) for buffer in shared)
        fold.next(*(k.op(join, value, part) for join, value, part in zip(joins, fold.values, found)))
    return [k.exchange(join, value, width=OWN_WIDTH) for join, value in zip(joins, fold.results)]
