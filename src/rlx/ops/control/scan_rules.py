"""How a `Scan` is differentiated and batched.

Forward mode and batching make one larger scan. Reverse mode runs the scan in a form that saves the carry before every
step (beside the ys), and then a second scan from the last step to the first, whose body computes the step again from
the saved carry and pulls the cotangents back through it. Nothing else is kept, and the result consists of ordinary
scans, which can be differentiated again.

With `num_checkpoints` = K the form is a scan over segments, each of which is a scan over its steps: length mod K
segments of n + 1 steps, where n = length // K, and then the others of n. Only the K carries between the segments are
saved; the backward step of the outer scan runs one segment again and saves its carries meanwhile: K + n + 1 carries at
most instead of length. A segment longer than K is cut in the same way. A symbolic length has K segments of n steps and
a last scan over the rest, fewer than K steps, which saves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Shape, Size
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
from rlx.ops.control.scan_sums import split_sums
from rlx.ops.define.operands import convert
from rlx.ops.define.rules import put_batch_first, zeros_of
from rlx.ops.shape.movement import concat, moveaxis, narrow, reshape

if TYPE_CHECKING:
    from rlx.ops.control.scans import Scan


def _row(shape: Shape) -> Shape:
    return shape.with_dims(shape.dims[1:])


def _rows(xs: Sequence[Tensor]) -> list[Shape]:
    return [_row(x.type) for x in xs]


# Forward mode


def value_and_jvp(op: Scan, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
    """The results and their tangents from one scan, which carries the tangents beside the values."""
    carries, bcasts, xs = op.split(primals)
    active = tuple(t is not None for t in tangents)
    moving = _moving_carries(op, active)
    d_carries, d_bcasts, d_xs = op.split(tangents)
    start = filled(chosen(d_carries, moving), chosen(types(carries), moving))
    fixed, rows = [d for d in d_bcasts if d is not None], [d for d in d_xs if d is not None]
    flags = (*moving, *active[op.num_carry :])
    moved: list[bool] = []

    def step(*groups: list[Tensor]) -> list[Tensor]:
        c, dc, b, db, x, dx = groups
        outputs, pushed = push_body(op.body, [*c, *b, *x], spread([*dc, *db, *dx], flags))
        moved.extend(t is not None for t in pushed[op.num_carry :])
        after = filled(chosen(pushed[: op.num_carry], moving), types(dc))
        stacked = [t for t in pushed[op.num_carry :] if t is not None]
        return [*outputs[: op.num_carry], *after, *outputs[op.num_carry :], *stacked]

    body = build_step(
        f"{op.body.name}_jvp",
        step,
        ("carry", types(carries)),
        ("d_carry", types(start)),
        ("bcast", types(bcasts)),
        ("d_bcast", types(fixed)),
        ("x", _rows(xs)),
        ("d_x", _rows(rows)),
    )
    joint = op.replace(
        body=body,
        num_carry=len(carries) + len(start),
        num_bcast=len(bcasts) + len(fixed),
        num_xs=len(xs) + len(rows),
    )
    results = iter(as_tuple(joint(*carries, *start, *bcasts, *fixed, *xs, *rows)))
    value = [next(results) for _ in carries]
    pushed_carries = spread([next(results) for _ in start], moving)
    value += [next(results) for _ in moved]
    return one_or_tuple(value), one_or_tuple([*pushed_carries, *spread(results, moved)])


def _moving_carries(op: Scan, active: Flags) -> Flags:
    """The carries that depend on active operands at some step."""
    return settle_carries(moving_outputs, op.body, active[: op.num_carry], active[op.num_carry :])


# Reverse mode


def reverse_form(op: Scan, active: Flags) -> Callable[..., Any] | None:
    """What replaces the scan before reverse mode: a form that saves the carries it needs. None when `op` does."""
    if op.save_trajectory and op.num_checkpoints not in (0, op.length):
        return lambda *operands: _trajectory_by_segments(op, operands)
    if op.save_trajectory:
        return lambda *operands: _trajectory_as_ys(op, operands)
    if op.num_checkpoints and op.num_checkpoints != op.length:
        return lambda *operands: _scan_of_segments(op, operands)
    saved = saved_carries(op)
    missing = [i for i in _needed_carries(op, active) if i not in saved]
    return (lambda *operands: _saving(op, missing, operands)) if missing else None


def saved_carries(op: Scan) -> dict[int, int]:
    """The carries whose value before each step is among the ys: number of the carry -> number of the result."""
    inputs = {n.id: i for i, n in enumerate(op.body.inputs[: op.num_carry])}
    ys = enumerate(op.body.outputs)
    return {inputs[o]: j for j, o in ys if j >= op.num_carry and o in inputs}


def _needed_carries(op: Scan, active: Flags) -> list[int]:
    """The carries that the backward step reads, when all results have cotangents."""
    moving = moving_outputs(op.body, (*_moving_carries(op, active), *active[op.num_carry :]))
    program = _backward_program(op, active, moving[op.num_carry :])
    return [i for i in range(op.num_carry) if program.used[i]]


def _backward_program(op: Scan, active: Flags, given: Flags) -> VjpProgram:
    """The derivative of the body to what moves, for cotangents of the moving carries and the given ys."""
    moving = _moving_carries(op, active)
    return vjp_program(op.body, (*moving, *active[op.num_carry :]), (*moving, *given))


def _with_more_ys(op: Scan, more: Callable[[list[Tensor], tuple[Tensor, ...]], Sequence[Tensor]]) -> Scan:
    """The scan with the ys that `more(inputs, outputs of the body)` adds, and without trajectory or checkpoints."""

    def step(inputs: list[Tensor]) -> list[Tensor]:
        outputs = inline_graph(op.body, inputs)
        return [*outputs, *more(inputs, outputs)]

    shapes = [n.shape for n in op.body.inputs]
    body = build_step(op.body.name, step, ("x", shapes))
    longer = op.replace(body=body, save_trajectory=False, num_checkpoints=0)
    assert isinstance(longer, type(op))
    return longer


def _saving(op: Scan, missing: Sequence[int], operands: Sequence[Tensor]) -> Any:
    scan = _with_more_ys(op, lambda inputs, outputs: [inputs[i] for i in missing])
    return one_or_tuple(as_tuple(scan(*operands))[: len(op.body.outputs)])


def _trajectory_as_ys(op: Scan, operands: Sequence[Tensor]) -> Any:
    scan = _with_more_ys(op, lambda inputs, outputs: outputs[: op.num_carry])
    results = as_tuple(scan(*operands))
    count = len(op.body.outputs)
    return one_or_tuple([*results[count:], *results[op.num_carry : count]])


def _scan_of_segments(op: Scan, operands: Sequence[Tensor]) -> Any:
    """One scan over each of the `_segments`; the later ones read later rows, so in reverse they come first."""
    carries, bcasts, xs = op.split(operands)
    # With each scan, whether its rows are segments.
    parts: list[tuple[Op, list[Tensor], bool]] = []
    start: Size = 0
    for count, steps in _segments(op.length, op.num_checkpoints):
        rows = [narrow(x, 0, start, count * steps) for x in xs]
        start = start + count * steps
        if steps == 1:
            parts.append((op.replace(length=count, num_checkpoints=0), rows, False))
            continue
        segment = op.replace(length=steps, num_checkpoints=_inner_checkpoints(op.num_checkpoints, steps), unroll=1)
        rows = [reshape(x, (count, steps, *x.shape[1:])) for x in rows]
        body = build_step(
            f"{op.body.name}_segment",
            lambda c, b, x, segment=segment: as_tuple(segment(*c, *b, *x)),
            ("carry", types(carries)),
            ("bcast", types(bcasts)),
            ("x", _rows(rows)),
        )
        parts.append((op.replace(body=body, length=count, num_checkpoints=0, unroll=1), rows, True))
    stacked: list[Sequence[Tensor]] = []
    for part, part_rows, is_cut in reversed(parts) if op.reverse else parts:
        results = as_tuple(part(*carries, *bcasts, *part_rows))
        carries, ys = results[: op.num_carry], results[op.num_carry :]
        flat = [reshape(y, (y.shape[0] * y.shape[1], *y.shape[2:])) for y in ys] if is_cut else ys
        stacked.insert(0 if op.reverse else len(stacked), flat)
    return one_or_tuple([*carries, *(concat(list(column)) for column in zip(*stacked))])


def _segments(length: Size, count: int) -> list[tuple[Size, Size]]:
    """(how many, of how many steps) in the order of the rows."""
    steps = length // count
    rest = length - count * steps
    if isinstance(rest, int):
        return [(number, n) for number, n in ((rest, steps + 1), (count - rest, steps)) if number]
    # How many segments have a step more is known with the length only, and so is whether these have one.
    return [(count, steps), (rest, 1)]


def _inner_checkpoints(count: int, steps: Size) -> int:
    """How many carries a segment of `steps` keeps while it runs again: all (0), or again few when it is long."""
    fewest = max(count, 2)
    return fewest if isinstance(steps, int) and steps > fewest else 0


def _trajectory_by_segments(op: Scan, operands: Sequence[Tensor]) -> Any:
    """The carries after the steps of `checkpoint_steps`, from one recomputed segment after the other."""
    from rlx.ops.control.recomputation import Checkpoint
    from rlx.ops.control.scans import checkpoint_steps

    carries, bcasts, xs = op.split(operands)
    kept: list[Sequence[Tensor]] = []
    stacked: list[Sequence[Tensor]] = []
    start: Size = 0
    for last in checkpoint_steps(op.length, op.num_checkpoints):
        steps = last + 1 - start
        first = op.length - 1 - last if op.reverse else start
        rows = [narrow(x, 0, first, steps) for x in xs]
        segment = op.replace(length=steps, save_trajectory=False, num_checkpoints=0)
        body = build_step(
            f"{op.body.name}_segment", lambda inputs, segment=segment: as_tuple(segment(*inputs)),
            ("x", types([*carries, *bcasts, *rows])),
        )  # fmt: skip
        results = as_tuple(Checkpoint(body)(*carries, *bcasts, *rows))
        carries = results[: op.num_carry]
        kept.append(carries)
        stacked.append(results[op.num_carry :])
        start = last + 1
    if op.reverse:
        kept, stacked = kept[::-1], stacked[::-1]
    trajectories = [concat([reshape(c, (1, *c.shape)) for c in column]) for column in zip(*kept)]
    return one_or_tuple([*trajectories, *(concat(list(column)) for column in zip(*stacked))])


def vjp_wrt(op: Scan, wrt: Flags, ct: Any, y: Any, operands: Sequence[Tensor]) -> list[Tensor | None]:
    """Cotangents of the operands in `wrt`. The scan is in the form of `reverse_form`."""
    results, cotangents = as_tuple(y), as_tuple(ct)
    carries, bcasts, xs = op.split(operands)
    moving = _moving_carries(op, wrt)
    given = _moving_ys(op, wrt, cotangents)
    program = _backward_program(op, wrt, given)
    reads_carries, reads_bcasts, reads_xs = op.split(program.used[: len(operands)])
    _, found_bcasts, found_xs = op.split(program.found)
    saved = saved_carries(op)
    before = [results[saved[i]] for i, read in enumerate(reads_carries) if read]
    d_carries = filled(chosen(cotangents[: op.num_carry], moving), chosen(types(carries), moving))
    fixed, rows, d_rows = chosen(bcasts, reads_bcasts), chosen(xs, reads_xs), chosen(cotangents[op.num_carry :], given)
    stacks = [*(results[saved[i]] if read else None for i, read in enumerate(reads_carries)), *(None for _ in bcasts)]
    split = split_sums(program, op, [*stacks, *xs, *(None for m in moving if m), *d_rows])
    is_later = [product is not None for product in split.later]
    sums = [_accumulator(b) for b, later in zip(chosen(bcasts, found_bcasts), is_later) if not later]

    def step(*groups: list[Tensor]) -> list[Tensor]:
        dc, total, b, c, x, dy = groups
        inputs = [*spread(c, reads_carries), *spread(b, reads_bcasts), *spread(x, reads_xs)]
        pulled_carries, pulled_bcasts, pulled_xs = op.split(split(inputs, [*dc, *dy]))
        after = filled(chosen(pulled_carries, moving), types(dc))
        added = [t + convert(g, t.dtype) for t, g in zip(total, (g for g in pulled_bcasts if g is not None))]
        return [*after, *added, *chosen(pulled_xs, found_xs)]

    body = build_step(
        f"{op.body.name}_backward",
        step,
        ("d_carry", types(d_carries)),
        ("sum", types(sums)),
        ("bcast", types(fixed)),
        ("before", _rows(before)),
        ("x", _rows(rows)),
        ("d_y", _rows(d_rows)),
    )
    backward = op.replace(
        body=body,
        num_carry=len(d_carries) + len(sums),
        num_bcast=len(fixed),
        num_xs=len(before) + len(rows) + len(d_rows),
        reverse=not op.reverse,
        num_checkpoints=0,
    )
    pulled = iter(as_tuple(backward(*d_carries, *sums, *fixed, *before, *rows, *d_rows)))
    d_init = spread([next(pulled) for _ in d_carries], moving)
    in_loop = [next(pulled) for _ in sums]
    d_xs = list(pulled)
    totals = zip(split.totals(in_loop, d_xs), chosen(bcasts, found_bcasts))
    d_bcasts = [convert(total, b.dtype) for total, b in totals]
    gradients = [*d_init, *spread(d_bcasts, found_bcasts), *spread(d_xs, found_xs)]
    return [g if wanted else None for g, wanted in zip(gradients, wrt)]


def _moving_ys(op: Scan, active: Flags, cotangents: Sequence[Tensor | None]) -> Flags:
    """The ys that have a cotangent and depend on active operands."""
    moving = moving_outputs(op.body, (*_moving_carries(op, active), *active[op.num_carry :]))
    return tuple(m and c is not None for m, c in zip(moving, cotangents))[op.num_carry :]


def _accumulator(x: Tensor) -> Tensor:
    """The zero in which cotangents of a bcast are summed up; 16-bit floats are summed in f32."""
    narrow_float = x.dtype in (DType.F16, DType.BF16)
    return zeros_of(x.type.with_dtype(DType.F32) if narrow_float else x.type, x)


# Batching


def batch(op: Scan, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    """One scan over the batch: carries that differ along it at any step have the axis from the start."""
    wide = settle_carries(batched_outputs, op.body, batched[: op.num_carry], batched[op.num_carry :])
    carries, bcasts, xs = op.split(operands)
    _, _, xs_batched = op.split(batched)
    flags = (*wide, *batched[op.num_carry :])
    start = [put_batch_first(c, b, size) if w else c for c, b, w in zip(carries, batched, wide)]
    rows = [moveaxis(x, 0, 1) if b else x for x, b in zip(xs, xs_batched)]
    stacked: list[bool] = []

    def step(*groups: list[Tensor]) -> list[Tensor]:
        outputs, found = batch_body(op.body, size, [x for group in groups for x in group], flags)
        stacked.extend(found[op.num_carry :])
        after = [put_batch_first(o, f, size) if w else o for o, f, w in zip(outputs, found, wide)]
        return [*after, *outputs[op.num_carry :]]

    body = build_step(
        op.body.name, step, ("carry", types(start)), ("bcast", types(bcasts)), ("x", _rows(rows))
    )  # fmt: skip
    results = as_tuple(op.replace(body=body)(*start, *bcasts, *rows))
    # A trajectory has its axis of steps before the batch axis, as ys have.
    lengthwise = [op.save_trajectory] * op.num_carry + [True] * len(stacked)
    widened = [moveaxis(r, 1, 0) if w and t else r for r, w, t in zip(results, (*wide, *stacked), lengthwise)]
    return one_or_tuple(with_batch_axis(widened, (*wide, *stacked), size))
