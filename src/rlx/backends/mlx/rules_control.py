"""Rules for loops, branches and checks. MLX has none: the host decides, with numbers that it waits for.

Steps of a scan need no decision, so they are told one after the other. Where `mlx.compile` traces a program, only scans
of few steps are part of it; see `is_traceable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.mlx.device import mx
from rlx.backends.mlx.dtypes import mlx_type
from rlx.backends.mlx.rules_movement import whole
from rlx.backends.mlx.rules_pointwise import truth
from rlx.backends.mlx.walk import Call, rule
from rlx.backends.op_lowering import failed_factors
from rlx.errors import AssertionFailed
from rlx.ir.graph import Graph
from rlx.ir.rewrite.rebuild import all_bodies
from rlx.ops.control.branches import If, Switch, While
from rlx.ops.control.effects import RuntimeAssert
from rlx.ops.control.recomputation import Barrier
from rlx.ops.control.scans import Scan, checkpoint_steps
from rlx.ops.lowered.factor_steps import RequireFactors

# A scan of more steps would make a compiled program long; and so many steps are told before MLX begins to compute.
_FEW_STEPS = 16


def is_traceable(graph: Graph) -> bool:
    """Whether MLX can be told all of a program before there are numbers."""
    return not any(_needs_host(node.op) for g in (graph, *all_bodies(graph)) for node in g.nodes)


def _needs_host(op: Any) -> bool:
    return isinstance(op, If | Switch | While) or (isinstance(op, Scan) and int(op.length) > _FEW_STEPS)


def driven_from_host(graph: Graph) -> int:
    """The loops and branches of a program, none of which MLX has a form for."""
    return sum(isinstance(n.op, If | Switch | While | Scan) for g in (graph, *all_bodies(graph)) for n in g.nodes)


def _inside(call: Call, body: Graph, operands: Sequence[Any]) -> list[Any]:
    return call.walk.body(body, operands)


@rule(If)
def _if(call: Call, pred: Any, *captures: Any) -> list[Any]:
    op = call.op
    return _inside(call, op.then_body if _holds(pred) else op.else_body, captures)


def _all(condition: Any) -> Any:
    """Whether no element is 0; nothing has none, which MLX sees otherwise."""
    return mx.all(truth(condition)) if condition.size else mx.array(True)


def _holds(condition: Any) -> bool:
    return bool(_all(condition).item())


@rule(Switch)
def _switch(call: Call, index: Any, *captures: Any) -> list[Any]:
    number = int(whole(index, call.dtypes[0]).reshape(()).item())
    branches = call.op.branches
    return _inside(call, branches[min(max(number, 0), len(branches) - 1)], captures)


@rule(While)
def _while(call: Call, *operands: Any) -> list[Any]:
    op = call.op
    split = len(operands) - op.num_bcast
    carries, bcasts = list(operands[:split]), operands[split:]
    step = 0
    while op.max_iterations is None or step < op.max_iterations:
        (condition,) = _inside(call, op.cond, [*carries, *bcasts])
        if not _holds(condition):
            break
        carries = _inside(call, op.body, [*carries, *bcasts])
        step += 1
    return carries


@rule(Scan)
def _scan(call: Call, *operands: Any) -> list[Any]:
    op = call.op
    carries, bcasts, xs = (list(part) for part in op.split(operands))
    length, count = int(op.length), op.num_carry
    empty = [mx.zeros(s.static_dims, mlx_type(s.dtype)) for s in call.results]
    if not length:
        return [*(empty[:count] if op.save_trajectory else carries), *empty[count:]]
    kept = set(range(length))
    if op.save_trajectory and op.num_checkpoints:
        kept = {int(k) for k in np.asarray(checkpoint_steps(length, op.num_checkpoints))}
    made: list[list[Any]] = []
    saved: list[list[Any]] = []
    for step in range(length):
        row = length - 1 - step if op.reverse else step
        results = _inside(call, op.body, [*carries, *bcasts, *(x[row] for x in xs)])
        carries = results[:count]
        made.append(results[count:])
        if op.save_trajectory and step in kept:
            saved.append(carries)
        if not call.walk.is_traced and step % _FEW_STEPS == _FEW_STEPS - 1:
            mx.async_eval(*results)
    rows = [mx.stack(column) for column in zip(*(made[::-1] if op.reverse else made))]
    if op.save_trajectory:
        carries = [mx.stack(column) for column in zip(*(saved[::-1] if op.reverse else saved))]
    return [*carries, *rows]


@rule(Barrier)
def _barrier(call: Call, *operands: Any) -> list[Any]:
    return list(operands)


@rule(RuntimeAssert)
def _runtime_assert(call: Call, x: Any, condition: Any) -> Any:
    call.walk.require(_all(condition), AssertionFailed(f"{call.op.mnemonic}: {call.op.message}"))
    return x


@rule(RequireFactors)
def _require_factors(call: Call, found: Any) -> Any:
    call.walk.require(_all(found), failed_factors(call.op, found.shape))
    return found
