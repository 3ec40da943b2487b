"""Rules for loops, branches and checks. The programs that ops hold become regions.

A check cannot stop a program of XLA: every region that has one hands on the number of the first that did not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.op_lowering import failed_factors, has_checks
from rlx.backends.xla.rules_pointwise import truth
from rlx.backends.xla.stablehlo import CODE, Emitter, rule
from rlx.backends.xla.text import Block, Kind, Value
from rlx.errors import AssertionFailed
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ops.control.branches import If, Switch, While
from rlx.ops.control.effects import RuntimeAssert
from rlx.ops.control.recomputation import Barrier
from rlx.ops.control.scans import Scan, checkpoint_steps
from rlx.ops.lowered.factor_steps import RequireFactors

Kinds = tuple[Kind, ...]
# What a loop is made of: functions of the region, the number of the step and the values that are carried.
GoesOn = Callable[[Emitter, Value, list[Value]], Value]
Step = Callable[[Emitter, Value, list[Value]], list[Value]]


def _all(block: Block, x: Value) -> Value:
    """Whether no element is 0, as a scalar."""
    return block.reduce(truth(block, x), range(x.kind.rank), "and", True)


@rule(If)
def _if(e: Emitter, op: If, operands: list[Value], kinds: Kinds) -> list[Value]:
    pred, *captures = operands
    return _one_of(e, "if", _all(e.block, pred), [op.then_body, op.else_body], captures, kinds)


@rule(Switch)
def _switch(e: Emitter, op: Switch, operands: list[Value], kinds: Kinds) -> list[Value]:
    index, *captures = operands
    block = e.block
    number = block.convert(block.reshape(index, ()), DType.I64)
    number = block.binary("minimum", block.binary("maximum", number, 0), len(op.branches) - 1)
    return _one_of(e, "case", block.convert(number, DType.I32), op.branches, captures, kinds)


def _one_of(
    e: Emitter, name: str, choice: Value, bodies: Sequence[Graph], captures: list[Value], kinds: Kinds
) -> list[Value]:
    """One of several programs on the same values. If one of them checks something, all of them return a code."""
    checked = any(map(has_checks, bodies))
    before = e.current_code() if checked else None
    regions = []
    for body in bodies:
        inside = e.inside(before)
        results = inside.body(body, captures)
        inside.block.returns([*results, *([inside.current_code()] if checked else [])])
        regions.append(inside.block)
    results = e.block.ops(name, [choice], [*kinds, *([CODE] if checked else [])], regions=regions)
    if checked:
        e.code = results.pop()
    return results


@rule(While)
def _while(e: Emitter, op: While, operands: list[Value], kinds: Kinds) -> list[Value]:
    split = len(operands) - op.num_bcast
    bcasts = operands[split:]

    def goes_on(inside: Emitter, step: Value, carries: list[Value]) -> Value:
        (condition,) = inside.body(op.cond, [*carries, *bcasts])
        holds = _all(inside.block, condition)
        if op.max_iterations is None:
            return holds
        few = inside.block.compare("LT", step, op.max_iterations)
        return inside.block.binary("and", holds, few)

    def body(inside: Emitter, step: Value, carries: list[Value]) -> list[Value]:
        return inside.body(op.body, [*carries, *bcasts])

    return _loop(e, operands[:split], goes_on, body, has_checks(op.body))


@rule(Scan)
def _scan(e: Emitter, op: Scan, operands: list[Value], kinds: Kinds) -> list[Value]:
    block = e.block
    carries, bcasts, xs = (list(part) for part in op.split(operands))
    length, count = int(op.length), op.num_carry
    ys = [block.full(0, kind) for kind in kinds[count:]]
    saved = [block.full(0, kind) for kind in kinds[:count]] if op.save_trajectory else []
    if not length:
        return [*(saved or carries), *ys]
    kept = checkpoint_steps(length, op.num_checkpoints) if op.save_trajectory and op.num_checkpoints else None

    def goes_on(inside: Emitter, step: Value, values: list[Value]) -> Value:
        return inside.block.compare("LT", step, length)

    def body(inside: Emitter, step: Value, values: list[Value]) -> list[Value]:
        now = inside.block
        row = now.binary("subtract", now.full(length - 1, step.kind), step) if op.reverse else step
        results = inside.body(op.body, [*values[:count], *bcasts, *(_row(now, x, row) for x in xs)])
        after, made = results[:count], results[count:]
        rows = [_with_row(now, y, row, r) for y, r in zip(values[count : count + len(ys)], made)]
        stored = values[count + len(ys) :]
        if stored:
            place = row if kept is None else _checkpoint(now, step, [int(k) for k in kept], op.reverse)
            stored = [_with_row(now, s, place, c) for s, c in zip(stored, after)]
            if kept is not None:
                is_kept = now.compare("GE", place, 0)
                stored = [
                    now.select(now.broadcast(is_kept, s.dims, ()), s, b)
                    for s, b in zip(stored, values[count + len(ys) :])
                ]
        return [*after, *rows, *stored]

    results = _loop(e, [*carries, *ys, *saved], goes_on, body, has_checks(op.body))
    last = results[count + len(ys) :] if op.save_trajectory else results[:count]
    return [*last, *results[count : count + len(ys)]]


def _checkpoint(block: Block, step: Value, kept: list[int], reverse: bool) -> Value:
    """The row of the trajectory that the carry after a step has; -1 for none."""
    place = block.full(-1, step.kind)
    for row, number in enumerate(kept):
        row = len(kept) - 1 - row if reverse else row
        place = block.select(block.compare("EQ", step, number), row, place)
    return place


def _row(block: Block, x: Value, row: Value) -> Value:
    zeros = [block.full(0, row.kind)] * (x.kind.rank - 1)
    sizes = ", ".join(map(str, (1, *x.dims[1:])))
    kind = x.kind.with_dims((1, *x.dims[1:]))
    taken = block.op("dynamic_slice", [x, row, *zeros], kind, f"slice_sizes = array<i64: {sizes}>")
    return block.reshape(taken, x.dims[1:])


def _with_row(block: Block, x: Value, row: Value, value: Value) -> Value:
    zeros = [block.full(0, row.kind)] * (x.kind.rank - 1)
    return block.op("dynamic_update_slice", [x, block.reshape(value, (1, *value.dims)), row, *zeros], x.kind)


def _loop(e: Emitter, start: list[Value], goes_on: GoesOn, body: Step, checked: bool) -> list[Value]:
    """`start` carried round as long as `goes_on` says, with the number of the step before and a code behind."""
    first = [e.block.constant(0, DType.I64), *start]
    if checked:
        first.append(e.current_code())
    test, step = e.inside(), e.inside()
    for region in (test, step):
        for value in first:
            region.block.argument(value.kind)
        region.code = region.block.arguments[-1] if checked else None
    count = len(start)
    arguments = test.block.arguments
    test.block.returns([goes_on(test, arguments[0], arguments[1 : 1 + count])])
    arguments = step.block.arguments
    after = body(step, arguments[0], arguments[1 : 1 + count])
    following = step.block.binary("add", arguments[0], 1)
    step.block.returns([following, *after, *([step.current_code()] if checked else [])])
    results = e.block.ops("while", first, [v.kind for v in first], regions=[test.block, step.block])
    if checked:
        e.code = results.pop()
    return results[1:]


@rule(Barrier)
def _barrier(e: Emitter, op: Barrier, operands: list[Value], kinds: Kinds) -> list[Value]:
    return e.block.ops("optimization_barrier", operands, [v.kind for v in operands])


@rule(RuntimeAssert)
def _runtime_assert(e: Emitter, op: RuntimeAssert, operands: list[Value], kinds: Kinds) -> Value:
    x, condition = operands
    e.require(_all(e.block, condition), AssertionFailed(f"{op.mnemonic}: {op.message}"))
    return x


@rule(RequireFactors)
def _require_factors(e: Emitter, op: RequireFactors, operands: list[Value], kinds: Kinds) -> Value:
    (found,) = operands
    e.require(_all(e.block, found), failed_factors(op, found.dims))
    return found
