"""Matrices as codes of 8 bits in panels: `int8_panels` and `int8_lines` of `rlx.ops.lowered.int8_products`."""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.int8_products import LEVELS, WORD, ZERO, Int8Lines, Int8Panels

F32, I8, I32 = DType.F32, DType.I8, DType.I32


@op_kernel(Int8Panels, kind="layout", supports=lambda op, operands: operands[0].dtype is F32, strided=(0,))
def int8_panels(site: OpSite) -> None:
    """One panel in each parallel iteration: the largest of each column, then the codes."""
    k, op, (w,), (panels, scales) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, Int8Panels)
    rows, columns = w.dims
    lanes = site.machine.lanes(F32)
    lanes = lanes if op.width % lanes == 0 else 1
    lines = rows // WORD
    zeros = k.const(0.0, ValueType(F32, lanes))
    with k.parallel("panel", (columns + (op.width - 1)) // op.width) as panel, k.loop("v", 0, op.width, lanes) as v:
        column = panel * op.width + v
        exists = k.lane_mask(columns - column, lanes)

        def weights(row: Value) -> Value:
            return k.load(w.buffer, w.at(row, column), lanes=lanes, stride=w.strides[1], mask=exists)

        with k.fold("row", 0, rows, init=[zeros]) as largest:
            largest.next(k.max(largest.values[0], k.abs(weights(largest.index))))
        scale = largest.results[0] / float(LEVELS)
        k.store(scales.buffer, column, scale, mask=exists)
        divisor = k.select(scale > 0.0, scale, 1.0)
        _fill_panel(k, panels.buffer, panel, v, (lines, op.width, lanes), lambda row: _code(k, weights(row) / divisor))


@op_kernel(Int8Lines, kind="layout", strided=(0,))
def int8_lines(site: OpSite) -> None:
    """One panel in each parallel iteration."""
    k, op, (w,), (panels,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, Int8Lines)
    rows, columns = w.dims
    lanes = site.machine.lanes(I32)
    lanes = lanes if op.width % lanes == 0 else 1
    with k.parallel("panel", (columns + (op.width - 1)) // op.width) as panel, k.loop("v", 0, op.width, lanes) as v:
        column = panel * op.width + v
        exists = k.lane_mask(columns - column, lanes)

        def codes(row: Value) -> Value:
            return k.load(w.buffer, w.at(row, column), lanes=lanes, stride=w.strides[1], mask=exists)

        _fill_panel(k, panels.buffer, panel, v, (rows // WORD, op.width, lanes), codes)


def _fill_panel(
    k: KernelBuilder,
    panels: Buffer,
    panel: Value,
    column: Value,
    sizes: tuple[Value, int, int],
    codes: Callable[[Value], Value],
) -> None:
    """Some columns of a panel of (lines, width, lanes), whose rows `codes` gives: four of them in a line, and the sums
    to start from in the first one."""
    lines, width, lanes = sizes
    line_bytes = width * WORD
    first = panel * ((lines + 1) * line_bytes) + column * WORD
    with k.fold("line", 0, lines, init=[k.const(0, ValueType(I32, lanes))]) as fold:
        found = [codes(fold.index * WORD + j) for j in range(WORD)]
        place = first + (fold.index + 1) * line_bytes
        for j, part in enumerate(_interleaved(k, found)):
            k.store(panels, place + j, part)
        total = fold.values[0]
        for code in found:
            total = total + k.cast(code, I32)
        fold.next(total)
    k.store(panels, first, k.bitcast(fold.results[0] * -ZERO, ValueType(I8, lanes * WORD)))


def _code(k: KernelBuilder, found: Value) -> Value:
    """What is no number has no code; its scale makes the whole column one that is none."""
    number = k.select(k.eq(found, found), found, 0.0)
    return k.cast(k.max(k.min(k.op("round", number), float(LEVELS)), float(-LEVELS)), I8)


def _interleaved(k: KernelBuilder, codes: list[Value]) -> list[Value]:
    """The codes of each column side by side, as one vector if they are vectors."""
    lanes = codes[0].lanes
    if lanes == 1:
        return codes
    halves = [k.shuffle(x, range(2 * lanes), y) for x, y in (codes[:2], codes[2:])]
    return [k.shuffle(halves[0], [j * lanes + column for column in range(lanes) for j in range(WORD)], halves[1])]
