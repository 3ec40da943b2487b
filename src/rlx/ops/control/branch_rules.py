"""How `If` and `While` are differentiated and batched.

A branch transforms into a branch of transformed programs, unless the predicate differs along a batch axis: then both
run and `where` chooses. A loop carries tangents beside its values; in reverse mode a loop with a bound becomes a scan
whose steps do nothing once the condition fails. Over a batch, a loop runs until the condition fails everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlx.errors import UnboundedWhile
from rlx.ir.graph import Graph
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import one_or_tuple
from rlx.ops.control.body_transforms import (
    Flags,
    VjpProgram,
    as_tuple,
    batch_body,
    batched_outputs,
    build_step,
    chosen,
    filled,
    moving_outputs,
    push_body,
    settle_carries,
    spread,
    types,
    vjp_program,
    with_batch_axis,
)
from rlx.ops.define.rules import put_batch_first
from rlx.ops.pointwise.arithmetic import ne, where
from rlx.ops.reduction.reductions import reduce_all, reduce_any
from rlx.ops.shape.movement import reshape

if TYPE_CHECKING:
    from rlx.ops.control.branches import If, While


def if_value_and_jvp(op: If, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
    pred, *captures = primals
    known = [t is not None for t in tangents[1:]]
    directions = chosen(tangents[1:], known)
    either = zip(moving_outputs(op.then_body, known), moving_outputs(op.else_body, known))
    moved = [a or b for a, b in either]

    def joint(body: Graph) -> Graph:
        def both(x: list[Tensor], dx: list[Tensor]) -> list[Tensor]:
            outputs, pushed = push_body(body, x, spread(dx, known))
            return [*outputs, *filled(chosen(pushed, moved), chosen(types(outputs), moved))]

        return build_step(f"{body.name}_jvp", both, ("x", types(captures)), ("d_x", types(directions)))

    branches = op.replace(then_body=joint(op.then_body), else_body=joint(op.else_body))
    results = as_tuple(branches(pred, *captures, *directions))
    return one_or_tuple(results[: len(moved)]), one_or_tuple(spread(results[len(moved) :], moved))


def if_vjp_wrt(op: If, wrt: Flags, ct: Any, y: Any, operands: Sequence[Tensor]) -> list[Tensor | None]:
    pred, *captures = operands
    cotangents = as_tuple(ct)
    given = tuple(c is not None for c in cotangents)
    programs = [vjp_program(body, wrt[1:], given) for body in (op.then_body, op.else_body)]
    found = [a or b for a, b in zip(programs[0].found, programs[1].found)]
    used = [a or b for a, b in zip(programs[0].used, programs[1].used)]
    read = chosen([*captures, *chosen(cotangents, given)], used)

    def backward(program: VjpProgram) -> Graph:
        def pull(x: list[Tensor]) -> list[Tensor]:
            values = spread(x, used)
            pulled = program(values[: len(captures)], values[len(captures) :])
            return filled(chosen(pulled, found), chosen(types(captures), found))

        return build_step(program.graph.name, pull, ("x", types(read)))

    branches = op.replace(then_body=backward(programs[0]), else_body=backward(programs[1]))
    pulled = as_tuple(branches(pred, *read)) if any(found) else ()
    return [None, *spread(pulled, found)]


def if_batch(op: If, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    pred, *captures = operands
    flags = tuple(batched[1:])
    if not batched[0]:

        def over_batch(body: Graph) -> Graph:
            return build_step(
                body.name, lambda x: with_batch_axis(*batch_body(body, size, x, flags), size), ("x", types(captures))
            )

        branches = op.replace(then_body=over_batch(op.then_body), else_body=over_batch(op.else_body))
        return branches(pred, *captures)
    chosen_then = with_batch_axis(*batch_body(op.then_body, size, captures, flags), size)
    chosen_else = with_batch_axis(*batch_body(op.else_body, size, captures, flags), size)
    lanes = reshape(ne(pred, 0), (size,))
    return one_or_tuple([_by_lane(lanes, a, b) for a, b in zip(chosen_then, chosen_else)])


def _by_lane(lanes: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Rows of `a` where the lane is true, rows of `b` elsewhere."""
    result: Tensor = where(reshape(lanes, (lanes.shape[0], *(1,) * (a.ndim - 1))), a, b)
    return result


def _split(op: While, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    count = len(values) - op.num_bcast
    return values[:count], values[count:]


def _moving_carries(op: While, active: Sequence[bool]) -> Flags:
    return settle_carries(moving_outputs, op.body, *_split(op, active))


def while_value_and_jvp(op: While, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
    """One loop that carries the tangents beside the values."""
    carries, bcasts = _split(op, primals)
    d_carries, d_bcasts = _split(op, tangents)
    moving = _moving_carries(op, [t is not None for t in tangents])
    known = [d is not None for d in d_bcasts]
    start, fixed = filled(chosen(d_carries, moving), chosen(types(carries), moving)), chosen(d_bcasts, known)
    groups = (
        ("carry", types(carries)),
        ("d_carry", types(start)),
        ("bcast", types(bcasts)),
        ("d_bcast", types(fixed)),
    )

    def step(c: list[Tensor], dc: list[Tensor], b: list[Tensor], db: list[Tensor]) -> list[Tensor]:
        outputs, pushed = push_body(op.body, [*c, *b], [*spread(dc, moving), *spread(db, known)])
        return [*outputs, *filled(chosen(pushed, moving), types(dc))]

    def holds(c: list[Tensor], dc: list[Tensor], b: list[Tensor], db: list[Tensor]) -> tuple[Tensor, ...]:
        return inline_graph(op.cond, [*c, *b])

    joint = op.replace(
        cond=build_step(op.cond.name, holds, *groups),
        body=build_step(f"{op.body.name}_jvp", step, *groups),
        num_bcast=len(bcasts) + len(fixed),
    )
    results = as_tuple(joint(*carries, *start, *bcasts, *fixed))
    return one_or_tuple(results[: len(carries)]), one_or_tuple(spread(results[len(carries) :], moving))


def while_reverse_form(op: While, active: Flags) -> Callable[..., Any] | None:
    """A scan over the most rounds there can be; None when no carry depends on active operands."""
    if not any(_moving_carries(op, active)):
        return None
    if op.max_iterations is None:
        raise UnboundedWhile
    return lambda *operands: _as_scan(op, operands)


def _as_scan(op: While, operands: Sequence[Tensor]) -> Any:
    from rlx.ops.control.branches import If
    from rlx.ops.control.scans import Scan

    carries, _ = _split(op, operands)
    assert op.max_iterations is not None
    stay = build_step("stay", lambda x: x[: len(carries)], ("x", types(operands)))

    def step(x: list[Tensor]) -> tuple[Tensor, ...]:
        goes_on = reduce_all(inline_graph(op.cond, x)[0])
        return as_tuple(If(op.body, stay)(goes_on, *x))

    body = build_step(op.body.name, step, ("x", types(operands)))
    return Scan(body, op.max_iterations, num_carry=len(carries), num_bcast=op.num_bcast)(*operands)


def while_batch(op: While, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    carries, bcasts = _split(op, operands)
    starts_wide, bcasts_wide = _split(op, batched)
    wide = settle_carries(batched_outputs, op.body, starts_wide, bcasts_wide)
    lanes_differ = batched_outputs(op.cond, (*wide, *bcasts_wide))[0]
    if lanes_differ:
        # Lanes stop after different numbers of rounds.
        wide = (True,) * len(carries)
    flags = (*wide, *bcasts_wide)
    start = [put_batch_first(c, b, size) if w else c for c, b, w in zip(carries, starts_wide, wide)]

    def condition(x: Sequence[Tensor]) -> Tensor:
        return batch_body(op.cond, size, x, flags)[0][0]

    def going_on(x: Sequence[Tensor]) -> Tensor:
        """The condition of every lane."""
        value = condition(x)
        lanes: Tensor = reduce_all(value, tuple(range(1, value.ndim))) if value.ndim > 1 else ne(value, 0)
        return lanes

    def step(x: list[Tensor]) -> list[Tensor]:
        outputs, found = batch_body(op.body, size, x, flags)
        after = [put_batch_first(o, f, size) if w else o for o, f, w in zip(outputs, found, wide)]
        if not lanes_differ:
            return after
        lanes = going_on(x)
        return [_by_lane(lanes, a, b) for a, b in zip(after, x)]

    def holds(x: list[Tensor]) -> tuple[Tensor, ...]:
        return (reduce_any(going_on(x)) if lanes_differ else condition(x),)

    groups = ("x", types([*start, *bcasts]))
    loop = op.replace(cond=build_step(op.cond.name, holds, groups), body=build_step(op.body.name, step, groups))
    results = as_tuple(loop(*start, *bcasts))
    return one_or_tuple(with_batch_axis(results, wide, size))
