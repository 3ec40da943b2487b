"""Rules for ops that speak of many devices."""

from __future__ import annotations

from rlx.backends.xla.shardy import attribute
from rlx.backends.xla.stablehlo import Emitter, rule
from rlx.backends.xla.text import Kind, Value
from rlx.ops.parallel.sharding_constraint import ShardingConstraint


@rule(ShardingConstraint)
def _sharding_constraint(e: Emitter, op: ShardingConstraint, operands: list[Value], kinds: tuple[Kind, ...]) -> Value:
    (x,) = operands
    if e.mesh is None:
        return x
    return e.block.op("sdy.sharding_constraint", [x], x.kind, f"sharding = {attribute(op.sharding, x.kind.rank)}")
