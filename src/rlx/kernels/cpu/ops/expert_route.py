"""Rows by the expert that each has chosen: `expert_route` sorts their numbers by counting."""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.extents import clipped_id
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.expert_products import ExpertRoute


@op_kernel(ExpertRoute, kind="route", supports=lambda op, operands: operands[0].dtype in (DType.I32, DType.I64))
def expert_route(site: OpSite) -> None:
    """One iteration: there are few rows beside what is then done with each."""
    k, op, (ids,), (route,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, ExpertRoute)
    experts, rows, lists = op.experts, ids.dims[0], route.buffer
    zero = k.const(0, DType.I32)

    def expert_of(row: Value) -> Value:
        return clipped_id(k, k.load(ids.buffer, ids.offset + row), experts)

    def end_of(expert: Value) -> Value:
        return expert + experts

    with k.parallel("all", 1):
        with k.loop("expert", 0, experts) as expert:
            k.store(lists, end_of(expert), zero)
        with k.loop("row", 0, rows) as row:
            place = end_of(expert_of(row))
            k.store(lists, place, k.load(lists, place) + 1)
        with k.fold("expert", 0, experts, init=[zero]) as before:
            count = k.load(lists, end_of(before.index))
            k.store(lists, end_of(before.index), before.values[0])
            before.next(before.values[0] + count)
        # Where the rows of an expert begin becomes where they end, one by one.
        with k.loop("row", 0, rows) as row:
            place = end_of(expert_of(row))
            position = k.load(lists, place)
            k.store(lists, place, position + 1)
            k.store(lists, k.cast(position, DType.I64) + 2 * experts, k.cast(row, DType.I32))
        # Experts with rows move to the front; what one without them leaves there is stored over.
        with k.fold("expert", 0, experts, init=[k.as_index(0), zero]) as chosen:
            count, before_it = chosen.values
            end = k.load(lists, end_of(chosen.index))
            k.store(lists, count, k.cast(chosen.index, DType.I32))
            k.store(lists, end_of(count), end)
            chosen.next(k.select(end > before_it, count + 1, count), end)
        with k.loop("expert", chosen.results[0], experts) as expert:
            k.store(lists, expert, zero)
            k.store(lists, end_of(expert), k.cast(rows, DType.I32))
