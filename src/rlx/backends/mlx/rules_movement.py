"""Rules for ops that move elements or make positions, and those that read and write at positions found at run time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rlx.backends.mlx.device import mx
from rlx.backends.mlx.dtypes import mlx_type
from rlx.backends.mlx.rules_pointwise import cast, narrow
from rlx.backends.mlx.walk import Call, rule
from rlx.ir.dtype import DType
from rlx.ir.shape import normalize_axes, normalize_axis
from rlx.ops.shape.creation import DimValue, Iota
from rlx.ops.shape.dynamic_slices import DynamicSlice, DynamicUpdateSlice
from rlx.ops.shape.indexing import GatherNd, IndexMode, ScatterKind, ScatterNd
from rlx.ops.shape.movement import Concat, Expand, Pad, Reshape, Reverse, Slice, Transpose


@rule(Reshape)
def _reshape(call: Call, x: Any) -> Any:
    return mx.reshape(x, call.dims)


@rule(Transpose)
def _transpose(call: Call, x: Any) -> Any:
    return mx.transpose(x, [p % x.ndim for p in call.op.perm]) if x.ndim else x


@rule(Expand)
def _expand(call: Call, x: Any) -> Any:
    return mx.broadcast_to(x, call.dims)


def part(x: Any, starts: Any, limits: Any, strides: Any) -> Any:
    """What is between starts and limits, by strides."""
    return x[tuple(map(slice, starts, limits, strides))] if x.ndim else x


@rule(Slice)
def _slice(call: Call, x: Any) -> Any:
    if not math.prod(call.dims):
        return call.zeros()
    return part(x, [int(s) for s in call.op.starts], [int(n) for n in call.op.limits], call.op.strides)


@rule(Concat)
def _concat(call: Call, *operands: Any) -> Any:
    if not math.prod(call.dims):
        return call.zeros()
    return mx.concatenate(list(operands), axis=normalize_axis(call.op.axis, len(call.dims), "concat"))


@rule(Pad)
def _pad(call: Call, x: Any, value: Any) -> Any:
    low, high = ([int(n) for n in amounts] for amounts in (call.op.low, call.op.high))
    return padded(x, value, low, high, call.op.interior)


def padded(x: Any, value: Any, low: Any, high: Any, interior: Any) -> Any:
    """x with a value around it and between its elements; negative amounts cut."""
    if any(interior):
        wide = [max((d - 1) * (i + 1) + 1, 0) for d, i in zip(x.shape, interior)]
        x = _spread(x, mx.broadcast_to(value, wide), interior)
    if any(n > 0 for n in (*low, *high)):
        x = mx.pad(x, [(max(a, 0), max(b, 0)) for a, b in zip(low, high)], constant_values=value)
    if any(n < 0 for n in (*low, *high)):
        starts = [max(-a, 0) for a in low]
        x = part(x, starts, [d - max(-b, 0) for d, b in zip(x.shape, high)], [1] * x.ndim)
    return x


def _spread(x: Any, background: Any, interior: Any) -> Any:
    """The elements of x with those of a background between them."""
    if not x.size:
        return background
    result = mx.contiguous(background)
    result[tuple(slice(0, None, i + 1) for i in interior)] = x
    return result


def windows(x: Any, sizes: Any, strides: Any, dilations: Any, places: Any) -> Any:
    """What windows see of x, without a copy: axes of their places, then axes inside of them."""
    x = mx.contiguous(x)
    steps = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    moves = [*(s * n for s, n in zip(steps, strides)), *(s * n for s, n in zip(steps, dilations))]
    return mx.as_strided(x, [*places, *sizes], moves)


@rule(Reverse)
def _reverse(call: Call, x: Any) -> Any:
    axes = normalize_axes(call.op.axes, x.ndim, "reverse")
    if not x.size or not axes:
        return x
    return x[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(x.ndim))]


@rule(Iota)
def _iota(call: Call) -> Any:
    if not call.dims:
        return call.zeros()
    axis = call.op.axis % len(call.dims)
    # Positions are exact integers before they are rounded.
    positions = cast(mx.arange(call.dims[axis], dtype=mx.int64), DType.I64, call.dtype)
    return mx.broadcast_to(positions.reshape([-1 if i == axis else 1 for i in range(len(call.dims))]), call.dims)


@rule(DimValue)
def _dim_value(call: Call) -> Any:
    return mx.array(int(call.op.size), mlx_type(call.dtype))


def whole(ids: Any, dtype: DType) -> Any:
    """Ids as integers that can hold any size: floats lose what is behind the point, and NaN is 0."""
    return cast(ids, dtype, DType.I64)


class _Places(NamedTuple):
    """A gather or scatter as one of rows: `rows` is how many there are, `width` how long one is."""

    numbers: Any
    valid: Any
    rows: int
    width: int
    order: list[int]
    moved: tuple[int, ...]


def _places(call: Call, x: Any, indices: Any) -> _Places:
    """Which rows of x, with the indexed axes in front of the others, ids stand for: clipped, and which were valid."""
    op, dims = call.op, tuple(x.shape)
    batch, axes = op.batch_dims, list(op.axes)
    rest = [a for a in range(batch, len(dims)) if a not in axes]
    order = [*range(batch), *axes, *rest]
    moved = tuple(dims[a] for a in order)
    ids = whole(indices, call.dtypes[1])
    numbers, valid = mx.zeros(indices.shape[:-1], mx.int64), mx.ones(indices.shape[:-1], mx.bool_)
    # A row's number, from its coordinates; each matrix of a batch has rows of its own.
    for axis in range(batch):
        own = mx.arange(dims[axis], dtype=mx.int64).reshape([-1 if i == axis else 1 for i in range(numbers.ndim)])
        numbers = numbers * dims[axis] + own
    for j, axis in enumerate(axes):
        size, column = dims[axis], ids[..., j]
        valid = valid & (column >= -size) & (column < size)
        column = mx.where(column < 0, column + size, column)
        numbers = numbers * size + mx.clip(column, 0, max(size - 1, 0))
    rows = math.prod(moved[: batch + len(axes)])
    return _Places(numbers.reshape(-1), valid, rows, math.prod(moved[batch + len(axes) :]), order, moved)


@rule(GatherNd)
def _gather(call: Call, x: Any, indices: Any) -> Any:
    if not x.size or not math.prod(call.dims):
        return call.zeros()
    places = _places(call, x, indices)
    table = mx.transpose(x, places.order).reshape(places.rows, places.width)
    found = mx.take(table, places.numbers, axis=0).reshape(call.dims)
    if call.op.mode is not IndexMode.Fill:
        return found
    valid = places.valid.reshape([*places.valid.shape, *[1] * (len(call.dims) - places.valid.ndim)])
    return mx.where(valid, found, mx.zeros((), found.dtype))


_MEET = {
    ScatterKind.Add: "add",
    ScatterKind.Mul: "multiply",
    ScatterKind.Max: "maximum",
    ScatterKind.Min: "minimum",
}


@rule(ScatterNd)
def _scatter(call: Call, x: Any, indices: Any, updates: Any) -> Any:
    if not x.size or not updates.size:
        return x
    op, dtype = call.op, call.dtype
    places = _places(call, x, indices)
    numbers = places.numbers
    if op.mode is not IndexMode.Clip:
        # What is dropped goes to a row behind all others.
        numbers = mx.where(places.valid.reshape(-1), numbers, mx.array(places.rows, mx.int64))
    # Sums of short floats are rounded once, and bools have no sum.
    wide = DType.F32 if narrow(dtype) else DType.U8 if dtype is DType.BOOL else dtype
    table = mx.transpose(x, places.order).reshape(places.rows, places.width).astype(mlx_type(wide))
    table = mx.concatenate([table, mx.zeros((1, places.width), table.dtype)])
    values = updates.reshape(-1, places.width).astype(mlx_type(wide))
    if op.kind is ScatterKind.Set:
        written = mx.contiguous(table)
        written[numbers] = values
    else:
        written = getattr(table.at[numbers], _MEET[op.kind])(values)
        if wide.is_float and op.kind in (ScatterKind.Max, ScatterKind.Min):
            # A comparison loses NaN.
            spoilt = (table != table).astype(mx.int32).at[numbers].add((values != values).astype(mx.int32))
            written = mx.where(spoilt > 0, mx.array(math.nan, written.dtype), written)
    back = [places.order.index(a) for a in range(x.ndim)]
    result = mx.transpose(written[: places.rows].reshape(places.moved), back)
    return cast(result, wide, dtype)


def _starts(call: Call, x: Any, starts: Any, dims: Any, dtypes: Any) -> Any:
    """Where a window begins: ids below 0 count from the end, and it is moved inside."""
    made = []
    for start, dtype, size, length in zip(starts, dtypes, x.shape, dims):
        start = whole(start, dtype).reshape(())
        start = mx.where(start < 0, start + size, start)
        made.append(mx.clip(start, 0, size - length).astype(mx.int32))
    return mx.stack(made)


@rule(DynamicSlice)
def _dynamic_slice(call: Call, x: Any, *starts: Any) -> Any:
    if not starts:
        return x
    if not math.prod(call.dims):
        return call.zeros()
    places = _starts(call, x, starts, call.dims, call.dtypes[1:])
    return mx.slice(x, places, list(range(x.ndim)), call.dims)


@rule(DynamicUpdateSlice)
def _dynamic_update_slice(call: Call, x: Any, update: Any, *starts: Any) -> Any:
    if not starts:
        return update
    if not update.size:
        return x
    places = _starts(call, x, starts, update.shape, call.dtypes[2:])
    return mx.slice_update(x, update, places, list(range(x.ndim)))
