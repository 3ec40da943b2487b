"""Rows of quantised tables: `panel_gather` decodes the rows that are asked for, straight from their panels."""

from __future__ import annotations

from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.quant_codes import CHUNK, Codes
from rlx.kernels.ir.extents import clipped_id, total
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.quantized_panels import PanelGather
from rlx.quant.panels import PANEL_ROWS, RECORD

# Rows of one parallel iteration: one takes less time than threads need to agree on who takes it.
TOGETHER = 16


def _has_kernel(op: Any, operands: list[Shape]) -> bool:
    return operands[1].dtype in (DType.I32, DType.I64)


@op_kernel(PanelGather, kind="lookup", supports=_has_kernel)
def panel_gather(site: OpSite) -> None:
    """One parallel iteration for some ids, on a GPU for each; ids count from the end if negative, and are clipped."""
    k, op, (panels, ids), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, PanelGather)
    layout = op.layout(op.k)
    # The elements of a row lie side by side where they go to, not in a panel: the steps of a row are single numbers.
    steps = Codes(k, site.machine, layout, panels.buffer, lanes=1)
    lanes = 1 if site.machine.is_gpu else min(site.machine.lanes(DType.F32), layout.group, PANEL_ROWS)
    codes = Codes(k, site.machine, layout, panels.buffer, lanes) if lanes > 1 else steps
    count = total(k, ids.dims)
    together = 1 if site.machine.is_gpu else TOGETHER
    with (
        k.parallel("ids", k.ceildiv(count, together)) as part,
        k.loop("id", part * together, k.min(count, (part + 1) * together)) as number,
    ):
        row = clipped_id(k, k.load(ids.buffer, number), op.n)
        base, lane = row // PANEL_ROWS * layout.panel_bytes(op.k), row % PANEL_ROWS
        codes.load_tables()
        with k.loop("record", 0, op.k // RECORD) as record:
            place, to = codes.place(base, record), number * op.k + record * RECORD
            heads = steps.heads(base, lane, record)
            for group in range(layout.groups):
                scale, minimum = steps.unbiased_scales(place, lane, group, heads)

                def store(at: Value, value: Value, scale: Value = scale, minimum: Value | None = minimum) -> None:
                    value = value * k.splat(scale, lanes)
                    k.store(y.buffer, at, value if minimum is None else value + k.splat(minimum, lanes))

                start, stop = group * layout.group, (group + 1) * layout.group
                if lanes > 1:
                    for first in range(start, stop, lanes):
                        store(to + first, codes.run(place, lane, first))
                    continue
                with k.loop("chunk", start // CHUNK, stop // CHUNK) as chunk:
                    for j, code in enumerate(codes.values(place, lane, chunk)):
                        store(to + (chunk * CHUNK + j), code * 2.0 ** -codes.shifts[j])
