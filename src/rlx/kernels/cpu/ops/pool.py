"""Reductions over sliding windows, and the gradient of max pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.matmul.tiles import in_vectors
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.windows import TapsInside, WindowAxis, fold_taps, inside_rows, lane_count, positions
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, NUMBERS, Value, ValueType
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.pooling import MaxPool2dBackward
from rlx.ops.reduction.reductions import ReduceOp, identity_of
from rlx.ops.reduction.window_reductions import ReduceWindow

# Vectors of entries that are joined side by side.
VECTORS = 4
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
    if not site.machine.is_gpu and {op.window[-1], op.stride[-1]} == {1} and not op.low[-1] + op.high[-1]:
        _join_entries(site, axes[:-1], nothing, join_op)
        return
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


def _join_entries(site: OpSite, axes: Sequence[WindowAxis], nothing: Any, join_op: str) -> None:
    """Windows that join whole entries of the last axis, as those over pictures with channels last do: of each window
    only the taps that are inside, and of the last axis some vectors at a time."""
    k, (x,), (y,) = site.k, site.inputs, site.outputs
    wide, lanes = compute_dtype(x.shape.dtype), site.machine.lanes(compute_dtype(x.shape.dtype))
    identity = nothing if isinstance(nothing, int | float) else nothing.item()
    has_masks = lanes > 1 and all(site.machine.has_masked_access(s.buffer.dtype) for s in (x, y))
    *outer, last = y.dims
    with k.parallel("place", total(k, outer)) as place:
        at = unflatten(place, outer)
        inside = [axis.taps_inside(k, position) for axis, position in zip(axes, at)]

        def entries(c: Value, width: int, mask: Value | None) -> None:
            each = min(width, lanes)
            start = [k.const(identity, ValueType(wide, each))] * (width // each)

            def join(left: Sequence[TapsInside], found: list[Value], values: Sequence[Value]) -> Sequence[Value]:
                if not left:
                    base = x.at(*found, c)
                    seen = [
                        k.load(x.buffer, base + n * each * x.strides[-1], lanes=each, stride=x.strides[-1], mask=mask)
                        for n in range(len(values))
                    ]
                    return [k.op(join_op, value, k.cast(one, wide)) for value, one in zip(values, seen)]
                taps = left[0]
                with k.fold(f"tap{len(found)}", taps.begin, taps.end, init=list(values)) as fold:
                    here = taps.first + fold.index * taps.dilation
                    fold.next(*join(left[1:], [*found, here], fold.values))
                return fold.results

            for n, joined in enumerate(join(inside, [], start)):
                k.store(y.buffer, y.at(*at, c + n * each), k.cast(joined, y.shape.dtype), mask=mask)

        whole = last // (VECTORS * lanes) * (VECTORS * lanes)
        with k.loop("c", 0, whole, VECTORS * lanes) as c:
            entries(c, VECTORS * lanes, None)
        in_vectors(k, "rest", last - whole, lanes, has_masks, lambda c, n, mask: entries(whole + c, n, mask))


@op_kernel(MaxPool2dBackward, kind="pool", supports=_adds_exactly)
def max_pool_gradient(site: OpSite) -> None:
    """One iteration does one channel of one image. Windows that may share a winner add to it one after the other; those
    that do not overlap are done in lanes, for no two of them write to one place."""
    op = site.op
    assert isinstance(op, MaxPool2dBackward)
    k, (x, dy), (dx,) = site.k, site.inputs, site.outputs
    dtype = x.shape.dtype
    axes = [WindowAxis(*one) for one in zip(op.kernel_size, op.stride, (1,) * op.spatial_rank, op.padding, x.dims[2:])]
    is_apart = all(size <= step for size, step in zip(op.kernel_size, op.stride))
    lanes = lane_count(site.machine.lanes(dtype), dy.shape.dims[-1]) if is_apart else 1
    with k.parallel("plane", x.dims[0] * x.dims[1]) as plane:
        image, channel = plane // x.dims[1], plane % x.dims[1]
        _fill_plane(k, dx, image, channel, site.machine.lanes(dtype))
        rows = dy.dims[2:-1]
        with k.loop("row", 0, total(k, rows)) as row, k.loop("q", 0, dy.dims[-1], lanes) as q:
            place = unflatten(row, rows)
            columns = positions(k, q, lanes)

            def compare(taps: Sequence[Value], best: Sequence[Value]) -> list[Value]:
                """The largest so far, and where it was; NaN is larger than everything and stays."""
                index, has_row = inside_rows(k, axes[:-1], place, taps)
                seen, is_inside = axes[-1].load(k, x, x.at(image, channel, *index), q, lanes, taps[-1], has_row)
                highest, winner = best
                wins = is_inside & ((seen > highest) | k.ne(seen, seen))
                column, _ = axes[-1].read(k, columns, taps[-1])
                target = k.splat(dx.at(image, channel, *index), lanes) + column * k.splat(dx.strides[-1], lanes)
                return [k.select(wins, seen, highest), k.select(wins, target, winner)]

            start = [k.const(-math.inf, ValueType(dtype, lanes)), k.splat(k.as_index(-1), lanes)]
            highest, winner = fold_taps(k, op.kernel_size, start, compare)
            counts = (winner >= 0) & k.eq(highest, highest)
            upstream_at = dy.at(image, channel, *place, q)
            if is_apart:
                here = counts & k.lane_mask(dy.dims[-1] - q, lanes) if lanes > 1 else counts
                upstream = k.load(dy.buffer, upstream_at, lanes=lanes, stride=dy.strides[-1], mask=here)
                k.store(dx.buffer, winner, upstream, mask=here)
            else:
                with k.when(counts):
                    k.store(dx.buffer, winner, k.load(dx.buffer, winner) + k.load(dy.buffer, upstream_at))


def _fill_plane(k: KernelBuilder, dx: Slab, image: Value, channel: Value, lanes: int) -> None:
    """Zeros everywhere in one channel of one image."""
    rows, zero = dx.dims[2:-1], k.const(0, ValueType(dx.shape.dtype, lanes))
    with k.loop("line", 0, total(k, rows)) as line, k.loop("c", 0, dx.dims[-1], lanes) as c:
        mask = k.lane_mask(dx.dims[-1] - c, lanes) if lanes > 1 else None
        offset = dx.at(image, channel, *unflatten(line, rows), c)
        k.store(dx.buffer, offset, zero, stride=dx.strides[-1], mask=mask)
