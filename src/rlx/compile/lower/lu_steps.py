"""Blocked LU with look-ahead, for the threads of a CPU: each step applies a panel of columns to all columns behind it,
which threads share, while one of them factorises the next panel already (`LuStep`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.dtype import DType
from rlx.ops.linalg.factorizations import Lu, row_gather
from rlx.ops.linalg.solve import TriangularSolve
from rlx.ops.lowered.lu_steps import LuStep
from rlx.ops.shape.indexing import GatherNd, IndexMode
from rlx.ops.shape.movement import concat, expand_dims, narrow

Form = Callable[..., Any]

# Matrices up to this size stay in the nearest caches of one thread.
SMALL = 96
# Larger ones are halved first: a program has a kernel for each panel, and puts together blocks of all of them.
MOST = 1024
# Columns of a panel: of wider ones one thread has more to do alone, with narrower ones all pass over the matrix more
# often.
PANEL = 64


def lu_in_steps(a: Any) -> Form | None:
    """The form of an LU of real matrices of a size that is known, neither small nor very large."""
    is_sized = a.dtype is DType.F64 and all(isinstance(s, int) and s > 0 for s in a.shape)
    return _factors if is_sized and SMALL < min(a.shape[-2:]) <= MOST else None


def _factors(a: Any) -> tuple[Any, Any, Any]:
    rows, columns = a.shape[-2:]
    steps = min(rows, columns)
    panel, pivots, order = Lu()(narrow(a, -1, 0, PANEL))
    rest = narrow(a, -1, PANEL, columns - PANEL)
    panels, orders, uppers, exchanges = [panel], [order], [], [pivots]
    for done in range(PANEL, steps, PANEL):
        upper, panel, rest, pivots, order = LuStep(min(PANEL, steps - done))(panel, order, rest)
        uppers.append(upper)
        panels.append(panel)
        orders.append(order)
        exchanges.append(pivots + done)
    if columns > steps:
        uppers.append(TriangularSolve(unit_diagonal=True)(panel, row_gather(order)(rest, expand_dims(order, -1))))
    orders = _composed(orders)
    return _put_together(panels, orders, uppers), concat(exchanges, -1), orders[0]


def _composed(orders: list[Any]) -> list[Any]:
    """The order in which each panel finds its rows in the end: its own, and behind that of its own rows all later."""
    found = [orders[-1]]
    lead = orders[0].ndim - 1
    for order in reversed(orders[:-1]):
        after = found[0]
        count = order.shape[-1] - after.shape[-1]
        kept, moved = narrow(order, -1, 0, count), narrow(order, -1, count, after.shape[-1])
        moved = GatherNd((lead,), lead, IndexMode.Clip)(moved, expand_dims(after, -1))
        found.insert(0, concat([kept, moved], -1))
    return found


def _put_together(panels: list[Any], orders: list[Any], uppers: list[Any]) -> Any:
    """All of L and U, one line of blocks after the other; rows of L where later panels have brought them to."""
    below: list[Any] = []
    lines: list[Any] = []
    for number, panel in enumerate(panels):
        width = panel.shape[-1]
        left = [narrow(x, -2, x.shape[-2] - panel.shape[-2], width) for x in below]
        right = uppers[number : number + 1]
        lines.append(concat([*left, narrow(panel, -2, 0, width), *right], -1))
        if number + 1 < len(panels):
            order = orders[number + 1]
            rest = narrow(panel, -2, width, panel.shape[-2] - width)
            below.append(row_gather(order)(rest, expand_dims(order, -1)))
    # Rows that have no panel of their own.
    missing = panels[-1].shape[-2] - panels[-1].shape[-1]
    if missing:
        last = narrow(panels[-1], -2, panels[-1].shape[-1], missing)
        lines.append(concat([*(narrow(x, -2, x.shape[-2] - missing, missing) for x in below), last], -1))
    return concat(lines, -2)
