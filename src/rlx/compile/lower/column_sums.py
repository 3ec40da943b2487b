"""Sums of long columns in two steps, for targets that have more threads than there are columns.

    f32[768] = reduce_sum(f32[8,1024,768]) {axes=(0, 1)}
    ->
    f32[8,16,768] = reduce_sum(f32[8,16,64,768]) {axes=(2,)}; f32[768] = reduce_sum of that {axes=(0, 1)}

Gradients of biases and of the scales of norms are such sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.dims import product
from rlx.ir.shape import normalize_axes
from rlx.ops.define.widening import accumulators, rounded_tensor
from rlx.ops.reduction.reductions import Reduce, ReduceOp
from rlx.ops.shape.movement import reshape

# Columns beyond which there are threads enough, elements below which one step is as fast, and rows of a part at least.
MOST_COLUMNS, FEWEST_ELEMENTS, SHORTEST_PART = 1 << 15, 1 << 18, 16
# Sums of parts, each formed by a thread, and how many of them a thread of the second step adds up.
MOST_SUMS, MOST_PARTS = 1 << 19, 128


def column_parts(op: Reduce, x: Any) -> Callable[[Any], Any] | None:
    """How a sum along the first axes is formed in parts; None if it need not be, or sizes are not known."""
    if op.kind is ReduceOp.Mean or x.dtype.is_complex or isinstance(x.node.op, Reduce):
        return None
    axes = sorted(normalize_axes(op.axes, x.ndim, op.mnemonic))
    count = len(axes)
    if not axes or axes != list(range(count)) or count == x.ndim or not all(isinstance(d, int) for d in x.shape):
        return None
    *lead, length = x.shape[:count]
    groups, columns = product(lead), product(x.shape[count:])
    if columns > MOST_COLUMNS or groups * length * columns < FEWEST_ELEMENTS:
        return None
    most = min(MOST_SUMS // max(1, groups * columns), MOST_PARTS // max(1, groups), length // SHORTEST_PART)
    parts = next((p for p in range(most, 1, -1) if length % p == 0), 1)
    if parts == 1:
        return None
    result = op.infer(x.type)

    def build(x: Any) -> Any:
        (wide,) = accumulators(reshape(x, (*lead, parts, length // parts, *x.shape[count:])))
        sums = Reduce(op.kind, (count,), False)(wide)
        # `lead` and the parts.
        total = Reduce(op.kind, tuple(range(count)), False)(sums)
        return rounded_tensor(reshape(total, result.dims), x.dtype)

    return build
