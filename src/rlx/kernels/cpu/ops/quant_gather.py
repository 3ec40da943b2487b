"""Rows of quantised tables: `panel_gather` decodes the rows that are asked for, straight from their panels."""

from __future__ import annotations

from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.quant_codes import CHUNK, Codes
from rlx.ops.lowered.quantized_panels import PanelGather
from rlx.quant.panels import PANEL_ROWS, RECORD


def _has_kernel(op: Any, operands: list[Shape]) -> bool:
    return operands[1].dtype in (DType.I32, DType.I64)


@op_kernel(PanelGather, kind="lookup", supports=_has_kernel)
def panel_gather(site: OpSite) -> None:
    """One parallel iteration for each id; ids count from the end if negative, and are clipped."""
    k, op, (panels, ids), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, PanelGather)
    layout = op.layout(op.k)
    codes = Codes(k, site.machine, layout, panels.buffer, lanes=1)
    count = k.as_index(1)
    for size in ids.dims:
        count = count * size
    with k.parallel("id", count) as number:
        given = k.cast(k.load(ids.buffer, number), DType.I64)
        row = k.max(k.min(k.select(given < 0, given + op.n, given), op.n - 1), 0)
        base, lane = row // PANEL_ROWS * layout.panel_bytes(op.k), row % PANEL_ROWS
        codes.load_tables()
        with k.loop("record", 0, op.k // RECORD) as record:
            place = codes.place(base, record)
            heads = codes.heads(base, lane, record)
            for group in range(layout.groups):
                scale, minimum = codes.unbiased_scales(place, lane, group, heads)
                chunks = layout.group // CHUNK
                with k.loop("chunk", group * chunks, (group + 1) * chunks) as chunk:
                    first = number * op.k + (record * RECORD + chunk * CHUNK)
                    for j, code in enumerate(codes.values(place, lane, chunk)):
                        value = code * 2.0 ** -codes.shifts[j] * scale
                        k.store(y.buffer, first + j, value if minimum is None else value + minimum)
