"""Forms of running joins: in log n steps, each of which joins every element with the one twice as far before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx.ir.op import Op
from rlx.ir.shape import normalize_axis
from rlx.ops.define.widening import accumulators, rounded_tensor
from rlx.ops.pointwise.arithmetic import add, logaddexp, maximum, minimum, mul
from rlx.ops.reduction.cumulative import Cumulative, CumulativeOp
from rlx.ops.reduction.reductions import ReduceOp, identity_of
from rlx.ops.shape.movement import narrow, pad

Form = Callable[..., Any]

_JOIN: dict[CumulativeOp, Callable[[Any, Any], Any]] = {
    CumulativeOp.Sum: add,
    CumulativeOp.Prod: mul,
    CumulativeOp.Max: maximum,
    CumulativeOp.Min: minimum,
    CumulativeOp.LogSumExp: logaddexp,
}


def _cumulative(op: Op, *operands: Any) -> Form:
    assert isinstance(op, Cumulative)

    def build(x: Any) -> Any:
        axis = normalize_axis(op.axis, x.ndim, op.mnemonic)
        length = int(x.shape[axis])
        (wide,) = accumulators(x)
        is_logarithm = op.kind is CumulativeOp.LogSumExp
        identity = -math.inf if is_logarithm else identity_of(ReduceOp(op.kind.value), x.dtype)

        def moved(value: Any, steps: int) -> Any:
            """The element so many steps before each, the identity where there is none."""
            low, high = (0, steps) if op.reverse else (steps, 0)
            sides = [[n if i == axis else 0 for i in range(x.ndim)] for n in (low, high)]
            padded = pad(value, wide.dtype.numpy.type(identity), *sides)
            return narrow(padded, axis, steps if op.reverse else 0, length)

        steps = 1
        while steps < length:
            wide = _JOIN[op.kind](moved(wide, steps), wide)
            steps *= 2
        return rounded_tensor(moved(wide, 1) if op.exclusive and length else wide, x.dtype)

    return build


ORDER_FORMS: dict[type[Op], Callable[..., Form | None]] = {Cumulative: _cumulative}
