"""Forms of scatters, running joins and sorts that suit kernels; part of the table of `kernel_forms`.

Each function gives a builder of the better form, or None if the op is better left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import normalize_axis
from rlx.ops.define.operands import same_graph
from rlx.ops.define.widening import accumulators, rounded_tensor
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.pointwise.arithmetic import add, eq, maximum, minimum, mul, where
from rlx.ops.pointwise.unary import abs_, exp, log1p, neg
from rlx.ops.reduction.cumulative import Cumulative, CumulativeOp
from rlx.ops.reduction.reductions import ReduceOp, identity_of, reduce_sum
from rlx.ops.reduction.sort import Sort
from rlx.ops.shape.creation import Iota, zeros
from rlx.ops.shape.indexing import IndexMode, ScatterKind, ScatterNd
from rlx.ops.shape.movement import Expand, broadcast_to, expand_dims, moveaxis, narrow, pad, reshape, squeeze
from rlx.ops.shape.selection import take_along_axis

Form = Callable[..., Any]

# A running join of a long row is formed in parts of this length, if there are too few rows for all threads.
PART = 8192
FEW_ROWS = 8


def wide_scatter(op: Op, *operands: Any) -> Form | None:
    """Sums and products of half floats are formed in f32 and rounded once."""
    assert isinstance(op, ScatterNd)
    parts = _scatter_parts(op, *operands)
    if parts:
        return lambda x, indices, updates: _scattered_in_parts(op, parts, x, indices, updates)
    if operands[0].dtype.accumulator is operands[0].dtype or op.kind not in (ScatterKind.Add, ScatterKind.Mul):
        return None

    def build(x: Any, indices: Any, updates: Any) -> Any:
        wide_x, wide_updates = accumulators(x, updates)
        return rounded_tensor(op(wide_x, indices, wide_updates), x.dtype)

    return build


def _scatter_parts(op: ScatterNd, x: Any, indices: Any, updates: Any) -> int:
    """Into how many parts the updates of a vector are cut, which threads share: many sums of integers, whose order does
    not matter, at few places. 0: they stay together."""
    is_sum = op.kind is ScatterKind.Add and x.dtype.is_int and x.ndim == 1 and op.batch_dims == 0
    sizes = (x.shape[0], *indices.shape)
    if not is_sum or len(sizes) != 3 or updates.ndim != 1 or not all(isinstance(s, int) for s in sizes):
        return 0
    places, count, _ = sizes
    fits = (p for p in range(FEW_ROWS, 1, -1) if count % p == 0)
    return next(fits, 0) if count >= 8 * PART and count >= 16 * places else 0


def _scattered_in_parts(op: ScatterNd, parts: int, x: Any, indices: Any, updates: Any) -> Any:
    """A row of sums for each part, and their sum."""
    each = indices.shape[0] // parts
    with same_graph(x):
        rows = zeros((parts, x.shape[0]), x.dtype)
    made = updates.node
    if isinstance(made.op, Expand) and product(updates.graph.shape(made.inputs[0]).dims) == 1:
        # One number for all stays one number.
        updates = broadcast_to(reshape(updates.graph.tensor(made.inputs[0]), (1, 1)), (parts, each))
    apart = op.replace(batch_dims=1, axes=(1,))
    found = apart(rows, reshape(indices, (parts, each, 1)), reshape(updates, (parts, each)))
    return x + reduce_sum(found, 0)


def running_parts(op: Op, x: Any) -> Form | None:
    """Few long rows: every part by itself, then joined with the whole of all parts before it."""
    assert isinstance(op, Cumulative)
    if normalize_axis(op.axis, x.ndim, op.mnemonic) != x.ndim - 1 or x.dtype.is_complex:
        return None
    length, rows = x.shape[-1], product(x.shape[:-1])
    if not isinstance(length, int) or not isinstance(rows, int) or length < 4 * PART or rows > FEW_ROWS:
        return None

    def build(x: Any) -> Any:
        (wide,) = accumulators(x)
        lead, count = x.shape[:-1], -(-length // PART)
        cut = reshape(_filled_up(op, wide, count * PART - length), (*lead, count, PART))
        inside = op.replace(axis=x.ndim)(cut)
        before = op.replace(axis=x.ndim - 1, exclusive=True)(_whole(op, cut, inside))
        joined = reshape(_join(op.kind, expand_dims(before, -1), inside), (*lead, count * PART))
        start = count * PART - length if op.reverse else 0
        return rounded_tensor(narrow(joined, -1, start, length), x.dtype)

    return build


def _filled_up(op: Cumulative, x: Any, missing: int) -> Any:
    """x with elements that change nothing where its joins end."""
    if missing == 0:
        return x
    is_sum = op.kind is CumulativeOp.LogSumExp
    identity = -math.inf if is_sum else identity_of(ReduceOp(op.kind.value), x.dtype)
    along = (*(0,) * (x.ndim - 1), missing)
    nothing = (0,) * x.ndim
    low, high = (along, nothing) if op.reverse else (nothing, along)
    return pad(x, x.dtype.numpy.type(identity), low, high)


def _whole(op: Cumulative, cut: Any, inside: Any) -> Any:
    """All elements of each part joined."""
    last = 0 if op.reverse else PART - 1
    joined, element = (squeeze(narrow(v, -1, last, 1), -1) for v in (inside, cut))
    return _join(op.kind, joined, element) if op.exclusive else joined


def _join(kind: CumulativeOp, a: Any, b: Any) -> Any:
    if kind is not CumulativeOp.LogSumExp:
        return _JOINS[kind](a, b)
    apart = maximum(a, b) + log1p(exp(neg(abs_(a - b))))
    return where(eq(a, b), a + math.log(2.0), apart)


def sorted_by_order(op: Op, *operands: Any) -> Form | None:
    """A sort finds the order of its keys; then all operands are looked up in that order."""
    assert isinstance(op, Sort)

    def build(*operands: Any) -> Any:
        keys = (moveaxis(x, op.axis, -1) for x in operands[: op.num_keys])
        order, _ = SortOrder(op.descending)(*keys)
        order = moveaxis(order, -1, op.axis)
        moved = [order if _is_positions(x, op.axis) else _in_order(x, order, op.axis) for x in operands]
        return tuple(moved) if len(moved) > 1 else moved[0]

    return build


def _is_positions(x: Any, axis: int) -> bool:
    """Whether an operand counts along the axis, as that of an argsort does: in order, it is the order itself."""
    op = x.node.op
    return isinstance(op, Iota) and op.dtype is DType.I32 and (op.axis - axis) % x.ndim == 0


def _in_order(x: Any, order: Any, axis: int) -> Any:
    return take_along_axis(x, order, axis, IndexMode.Clip)


_JOINS: dict[CumulativeOp, Callable[[Any, Any], Any]] = {
    CumulativeOp.Sum: add,
    CumulativeOp.Prod: mul,
    CumulativeOp.Max: maximum,
    CumulativeOp.Min: minimum,
}

ORDER_FORMS: dict[type[Op], Callable[..., Form | None]] = {
    Cumulative: running_parts,
    ScatterNd: wide_scatter,
    Sort: sorted_by_order,
}
