"""Collectives of a program that runs alone: every participant holds the same operand, and this is the first of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.parallel.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AxisIndex,
    Collective,
    PPermute,
    ReduceScatter,
)
from rlx.ops.shape.movement import expand, narrow, reshaped

Form = Callable[..., Any]


def _alone(op: Op, *operands: Any) -> Form:
    assert isinstance(op, Collective)

    def build(*operands: Any) -> Any:
        count = op.participants
        same = [expand(x, (count, *x.shape)) for x in operands]
        with same_graph(*operands):
            results = op.over_leading_axis(*same)
        return reshaped(narrow(results, 0, 0, 1), results.shape[1:])

    return build


COLLECTIVE_FORMS: dict[type[Op], Callable[..., Form | None]] = dict.fromkeys(
    (AllGather, AllReduce, AllToAll, AxisIndex, PPermute, ReduceScatter), _alone
)
