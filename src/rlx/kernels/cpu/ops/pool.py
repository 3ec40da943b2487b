"""Reductions over sliding windows, and the gradient of max pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.windows import WindowAxis, fold_taps, inside_rows, lane_count
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, NUMBERS, Value, ValueType
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.pooling import MaxPool2dBackward
from rlx.ops.reduction.reductions import ReduceOp, identity_of
from rlx.ops.reduction.window_reductions import ReduceWindow

_JOINS = {ReduceOp.Sum: "add", ReduceOp.Prod: "mul", ReduceOp.Max: "max", ReduceOp.Min: "min"}
_LOGIC = {ReduceOp.Any: "or", ReduceOp.All: "and", ReduceOp.Max: "or", ReduceOp.Min: "and"}


def _has_join(op: Op, operands: Sequence[Shape]) -> bool:
    assert isinstance(op, ReduceWindow)
    dtype = compute_dtype(operands[0].dtype)
    joins = _LOGIC if dtype is DType.BOOL else _JOINS if dtype in NUMBERS else {}
    return op.kind in joins and operands[0].rank > 0


def _adds_exactly(op: Op, operands: Sequence[Shape]) -> bool:
    """Half floats would be rounded at every addition; their decomposition adds in f32."""
    return operands[0].dtype in FLOATS


@op_kernel(ReduceWindow, kind="pool", supports=_has_join)
def reduce_window(site: OpSite) -> None:
    """One iteration joins a row of windows, those at neighbouring positions of the last axis in the lanes."""
    op = site.op
    assert isinstance(op, ReduceWindow)
    k, (x,), (y,) = site.k, site.inputs, site.outputs
    wide = compute_dtype(x.shape.dtype)
    axes = [WindowAxis(*one) for one in zip(op.window, op.stride, op.dilation, op.low, x.dims)]
    lanes = lane_count(site.machine.lanes(wide), y.shape.dims[-1])
    nothing = identity_of(op.kind, wide)
    identity = k.const(nothing if isinstance(nothing, int | float) else nothing.item(), ValueType(wide, lanes))
    join_op = (_LOGIC if wide is DType.BOOL else _JOINS)[op.kind]
    rows = y.dims[:-1]
    with k.parallel("row", total(k, rows)) as row, k.loop("q", 0, y.dims[-1], lanes) as q:
        place = unflatten(row, rows)

        def join(taps: Sequence[Value], values: Sequence[Value]) -> list[Value]:
            index, has_row = inside_rows(k, axes[:-1], place, taps)
            seen, mask = axes[-1].load(k, x, x.at(*index), q, lanes, taps[-1], has_row)
            return [k.op(join_op, values[0], k.select(mask, k.cast(seen, wide), identity))]

        [joined] = fold_taps(k, op.window, [identity], join)
        mask = k.lane_mask(y.dims[-1] - q, lanes) if lanes > 1 else None
        k.store(y.buffer, y.at(*place, q), k.cast(joined, y.shape.dtype), mask=mask)


@op_kernel(MaxPool2dBackward, kind="pool", supports=_adds_exactly)
def max_pool_gradient(site: OpSite) -> None:
    """One iteration does one channel of one image: windows that share a winner add to it one after the other."""
    op = site.op
    assert isinstance(op, MaxPool2dBackward)
    k, (x, dy), (dx,) = site.k, site.inputs, site.outputs
    dtype = x.shape.dtype
    axes = [WindowAxis(*one) for one in zip(op.kernel_size, op.stride, (1,) * op.spatial_rank, op.padding, x.dims[2:])]
    with k.parallel("plane", x.dims[0] * x.dims[1]) as plane:
        image, channel = plane // x.dims[1], plane % x.dims[1]
        with k.loop("i", 0, total(k, x.dims[2:])) as i:
            k.store(dx.buffer, dx.at(image, channel, *unflatten(i, x.dims[2:])), k.const(0, dtype))
        with k.loop("window", 0, total(k, dy.dims[2:])) as window:
            place = unflatten(window, dy.dims[2:])

            def compare(taps: Sequence[Value], best: Sequence[Value], place: Sequence[Value] = place) -> list[Value]:
                """The largest so far, and where it was; NaN is larger than everything and stays."""
                index, is_inside = inside_rows(k, axes, place, taps)
                assert is_inside is not None
                offset = x.at(image, channel, *index)
                seen = k.load(x.buffer, offset, mask=is_inside)
                highest, winner = best
                wins = is_inside & ((seen > highest) | k.ne(seen, seen))
                return [k.select(wins, seen, highest), k.select(wins, dx.at(image, channel, *index), winner)]

            start = [k.const(-math.inf, dtype), k.as_index(-1)]
            highest, winner = fold_taps(k, op.kernel_size, start, compare)
            with k.when((winner >= 0) & k.eq(highest, highest)):
                upstream = k.load(dy.buffer, dy.at(image, channel, *place))
                k.store(dx.buffer, winner, k.load(dx.buffer, winner) + upstream)
