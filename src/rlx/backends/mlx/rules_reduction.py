"""Rules for reductions, running joins, positions of extremes, windows and order."""

from __future__ import annotations

import math
from typing import Any

from rlx.backends.mlx.device import mx
from rlx.backends.mlx.dtypes import mlx_type
from rlx.backends.mlx.rules_movement import padded, windows
from rlx.backends.mlx.rules_pointwise import in_accumulator, narrow
from rlx.backends.mlx.walk import Call, rule
from rlx.ir.dtype import DType
from rlx.ir.shape import normalize_axes, normalize_axis
from rlx.ops.reduction.reductions import ArgReduce, ArgReduceOp, Reduce, ReduceOp, identity_of
from rlx.ops.reduction.sort import Sort
from rlx.ops.reduction.window_reductions import ReduceWindow

_JOIN = {
    ReduceOp.Sum: "sum",
    ReduceOp.Prod: "prod",
    ReduceOp.Max: "max",
    ReduceOp.Min: "min",
    ReduceOp.Any: "any",
    ReduceOp.All: "all",
}


def _joined(kind: ReduceOp, dtype: DType, x: Any, axes: Any) -> Any:
    """The elements along axes joined, the axes gone. MLX sums short integers up in longer ones, which wrap alike."""
    if dtype is DType.BOOL:
        kind = {ReduceOp.Max: ReduceOp.Any, ReduceOp.Min: ReduceOp.All}.get(kind, kind)
    join = getattr(mx, _JOIN[kind])
    return in_accumulator(dtype, [x], lambda x: join(x, axis=list(axes))).astype(mlx_type(dtype))


@rule(Reduce)
def _reduce(call: Call, x: Any) -> Any:
    kind, dtype = call.op.kind, call.dtypes[0]
    axes = normalize_axes(call.op.axes, x.ndim, call.op.mnemonic)
    if not axes:
        return x
    if not x.size:
        return mx.full(call.dims, identity_of(kind, dtype), mlx_type(dtype))
    return mx.reshape(_joined(kind, dtype, x, axes), call.dims)


@rule(ArgReduce)
def _arg_reduce(call: Call, x: Any) -> Any:
    """The first position that holds the extreme; where that is NaN, the first NaN."""
    axis = normalize_axis(call.op.axis, x.ndim, call.op.mnemonic)
    if not math.prod(call.dims):
        return call.zeros()
    dtype = call.dtypes[0]
    if dtype is DType.BOOL:
        x = x.astype(mx.uint8)
    elif narrow(dtype):
        x = x.astype(mx.float32)
    extreme = (mx.max if call.op.kind is ArgReduceOp.ArgMax else mx.min)(x, axis=axis, keepdims=True)
    found = x == extreme
    if dtype.is_float:
        found = found | (x != x)
    length = x.shape[axis]
    positions = mx.arange(length, dtype=mx.int32).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    first = mx.min(mx.where(found, positions, mx.array(length, mx.int32)), axis=axis)
    return mx.reshape(first, call.dims).astype(mlx_type(call.dtype))


@rule(ReduceWindow)
def _reduce_window(call: Call, x: Any) -> Any:
    op, dtype, rank = call.op, call.dtypes[0], x.ndim
    if not rank:
        return x
    if not math.prod(call.dims):
        return call.zeros()
    identity = mx.array(identity_of(op.kind, dtype), mlx_type(dtype))
    x = padded(x, identity, list(op.low), list(op.high), [0] * rank)
    seen = windows(x, op.window, op.stride, op.dilation, call.dims)
    return _joined(op.kind, dtype, seen, range(rank, 2 * rank))


@rule(Sort)
def _sort(call: Call, *operands: Any) -> list[Any]:
    """By the last key first: its order stays among equals of the keys before it."""
    axis = normalize_axis(call.op.axis, operands[0].ndim, call.op.mnemonic)
    if operands[0].shape[axis] < 2 or not operands[0].size:
        return list(operands)
    order = None
    for number in reversed(range(call.op.num_keys)):
        key = _ascending(operands[number], call.dtypes[number], call.op.descending)
        if order is None:
            order = mx.argsort(key, axis=axis)
        else:
            order = mx.take_along_axis(
                order, mx.argsort(mx.take_along_axis(key, order, axis=axis), axis=axis), axis=axis
            )
    return [mx.take_along_axis(x, order, axis=axis) for x in operands]


def _ascending(key: Any, dtype: DType, descending: bool) -> Any:
    """Numbers that ascend where the key is to; NaN comes last either way."""
    if dtype is DType.BOOL:
        key = key.astype(mx.uint8)
    elif narrow(dtype):
        key = key.astype(mx.float32)
    if not descending:
        return key
    return mx.negative(key) if dtype.is_float else mx.bitwise_invert(key)
