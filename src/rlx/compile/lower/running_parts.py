"""Scans (running sums and their like) along an axis that too few threads of a GPU would go along: the axis is cut into
parts, reduced first and scanned then.

    cumulative_sum(x[.., n, ..])    ->    sums of parts, their running sums, and running_from for all parts at once

All of x is read twice and the result is stored once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.dims import product
from rlx.ir.shape import normalize_axis
from rlx.ops.define.widening import accumulators
from rlx.ops.lowered.running_from import RunningFrom
from rlx.ops.reduction.cumulative import Cumulative, CumulativeOp
from rlx.ops.reduction.reductions import Reduce, ReduceOp
from rlx.ops.shape.movement import reshape

# Rows are the work of a block each: so many blocks are enough, and what a part of a row has at most and at least.
ENOUGH_ROWS, LONGEST, SHORTEST = 264, 8192, 1024
# Columns are the work of a thread each.
ENOUGH_COLUMNS, SHORTEST_COLUMN = 1 << 17, 32


def parts_form(op: Cumulative, x: Any) -> Callable[..., Any] | None:
    """Parts, joined; None where there are enough rows or columns, or no parts of one length."""
    axis = normalize_axis(op.axis, x.ndim, op.mnemonic)
    rows, length, inner = product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :])
    if x.dtype.is_complex or op.kind is CumulativeOp.LogSumExp:
        return None
    if not isinstance(length, int):
        return None
    if inner == 1:
        # Where nobody knows how many there are, rows are taken to be few.
        part = _row_part(rows if isinstance(rows, int) else 1, length)
    else:
        part = _column_part(rows * inner, length) if isinstance(rows, int) and isinstance(inner, int) else 0
    if not part:
        return None

    def build(x: Any) -> Any:
        lead, rest = x.shape[:axis], x.shape[axis + 1 :]
        cut = reshape(x, (*lead, length // part, part, *rest))
        (wide,) = accumulators(cut)
        totals = Reduce(ReduceOp(op.kind.value), (axis + 1,), False)(wide)
        before = Cumulative(op.kind, axis, exclusive=True, reverse=op.reverse)(totals)
        return RunningFrom(op.kind, axis, part, op.exclusive, op.reverse)(x, before)

    return build


def _row_part(rows: int, length: int) -> int:
    if rows >= ENOUGH_ROWS or length < 4 * LONGEST:
        return 0
    return next((p for p in range(LONGEST, SHORTEST - 1, -1) if length % p == 0), 0)


def _column_part(columns: int, length: int) -> int:
    """The shortest part that gives no more than enough columns, if that is a part at all."""
    if columns * 2 > ENOUGH_COLUMNS or length < 4 * SHORTEST_COLUMN or not columns:
        return 0
    least = max(SHORTEST_COLUMN, -(-length * columns // ENOUGH_COLUMNS))
    return next((p for p in range(least, min(length // 2, 8 * least) + 1) if length % p == 0), 0)
