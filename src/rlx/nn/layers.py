"""Layers as functions of their weights: linear, embedding, normalisation, convolution, pooling, dropout.

A linear weight is [in, out], so that a layer is `x @ weight + bias`. Images are [N, C, spatial..], convolution weights
[C_out, C_in/groups, kernel..], with one, two or three spatial axes (or more).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import (
    Axis,
    array_function,
    axes_of,
    axis_of,
    convert,
    inexact,
    operand,
    promoted,
    rank_of,
    value,
)
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.ops.nn.sliding_windows import per_axis
from rlx.ops.reduction.reductions import ReduceOp

__all__ = [
    "avg_pool",
    "batch_norm",
    "conv",
    "conv_transpose",
    "dropout",
    "embedding",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "linear",
    "lora_linear",
    "max_pool",
    "min_pool",
    "rms_norm",
]

Sizes = int | Sequence[int]
Padding = int | Sequence[int] | Sequence[tuple[int, int]] | str


@array_function
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x @ weight + bias, with weight [in, out] and bias [out]."""
    result = ops.matmul(*promoted(x, weight))
    return result if bias is None else ops.add(result, operand(bias))


@array_function
def lora_linear(x: Any, weight: Any, a: Any, b: Any, scale: float = 1.0, bias: Any = None) -> Any:
    """x @ weight + scale·(x @ a) @ b + bias: a weight [in, out] with a low-rank correction [in, r], [r, out]."""
    x, weight, a, b = inexact(x, weight, a, b)
    result = ops.lora_matmul(x, weight, a, b, scale)
    return result if bias is None else ops.add(result, operand(bias))


@array_function
def embedding(ids: Any, table: Any) -> Any:
    """Rows of `table` [count, width] by number; the result has the axes of ids, then the width."""
    return ops.take(value(table), operand(ids), 0)


def _features(x: Any, axis: int, vector: Any, default: float) -> Any:
    """A gain or offset along `axis`, in the dtype of x; `default` everywhere when there is none."""
    if vector is None:
        return ops.full((dims_of(x)[axis],), default, dtype_of(x))
    return convert(operand(vector), dtype_of(x))


@array_function
def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, axis: Axis = -1, eps: float = 1e-5) -> Any:
    """(x - mean)/√(variance + eps)·weight + bias, over one axis or several; the result has the dtype of x.

    Over one axis weight and bias are vectors; over several they have the sizes of these axes.
    """
    (x,) = inexact(x)
    axes = axes_of(axis, rank_of(x), "layer_norm")
    if len(axes) == 1:
        return ops.layer_norm(x, _features(x, axes[0], weight, 1), _features(x, axes[0], bias, 0), axes[0], eps)
    wide = convert(x, dtype_of(x).accumulator)
    centred = wide - ops.mean(wide, axes, True)
    result = centred * ops.rsqrt(ops.mean(centred * centred, axes, True) + eps)
    kept = tuple(d if i in axes else 1 for i, d in enumerate(dims_of(x)))
    if weight is not None:
        result = ops.mul(result, ops.reshape(convert(operand(weight), dtype_of(wide)), kept))
    if bias is not None:
        result = ops.add(result, ops.reshape(convert(operand(bias), dtype_of(wide)), kept))
    return convert(result, dtype_of(x))


@array_function
def rms_norm(x: Any, weight: Any = None, bias: Any = None, *, axis: int = -1, eps: float = 1e-6) -> Any:
    """x/√(mean(x²) + eps)·weight + bias over `axis`; the result has the dtype of x."""
    (x,) = inexact(x)
    axis = axis_of(axis, x, "rms_norm")
    return ops.rms_norm(x, _features(x, axis, weight, 1), _features(x, axis, bias, 0), axis, eps)


@array_function
def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    """x [N, C, spatial..] normalised over each group of C/num_groups channels; weight and bias are [C]."""
    (x,) = inexact(x)
    return ops.group_norm(x, _features(x, 1, weight, 1), _features(x, 1, bias, 0), num_groups, eps)


@array_function
def instance_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    """x [N, C, spatial..] normalised over the spatial axes of each channel."""
    channels = dims_of(x)[1]
    if not isinstance(channels, int):
        raise ShapeError(f"instance_norm: needs a fixed number of channels, got the symbolic size {channels}")
    return group_norm(x, channels, weight, bias, eps=eps)


@array_function
def batch_norm(
    x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, *, axis: int = 1, eps: float = 1e-5
) -> Any:
    """(x - mean)/√(variance + eps)·weight + bias with given statistics along `axis`: batch norm at inference."""
    (x,) = inexact(x)
    axis = axis_of(axis, x, "batch_norm")
    gain, offset = _features(x, axis, weight, 1), _features(x, axis, bias, 0)
    mean, variance = (convert(operand(s), dtype_of(x)) for s in (mean, variance))
    last = ops.moveaxis(x, axis, -1)
    return ops.moveaxis(ops.batch_norm_inference(last, gain, offset, mean, variance, eps), -1, axis)


@array_function
def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Convolution (cross-correlation) over the spatial axes, plus bias [C_out].

    `padding` is a number, one per axis, a (low, high) pair per axis, "same" or "valid".
    """
    x, weight = promoted(x, weight)
    return _with_channel_bias(ops.conv(x, weight, stride, padding, dilation, groups), bias)


@array_function
def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """The transpose of `conv` with respect to x, plus bias; weight is [C_in, C_out/groups, kernel..]."""
    x, weight = promoted(x, weight)
    return _with_channel_bias(ops.conv_transpose(x, weight, stride, padding, dilation, output_padding, groups), bias)


def _with_channel_bias(x: Any, bias: Any) -> Any:
    if bias is None:
        return x
    return ops.add(x, ops.reshape(value(bias), (-1, *(1,) * (rank_of(x) - 2))))


def _pool_sides(x: Any, window: Sequence[int], stride: Sequence[int], padding: Padding) -> list[tuple[int, int]]:
    if isinstance(padding, int):
        return [(padding, padding)] * len(window)
    if not isinstance(padding, str):
        return [(p, p) if isinstance(p, int) else p for p in padding]
    if padding.lower() not in ("same", "valid"):
        raise OpError(f"pool: padding must be numbers, 'same' or 'valid', got {padding!r}")
    if padding.lower() == "valid":
        return [(0, 0)] * len(window)
    sides = []
    for size, w, s in zip(dims_of(x)[2:], window, stride):
        if not isinstance(size, int):
            raise ShapeError(f"pool: padding='same' needs fixed spatial sizes, got {size}; give numbers")
        total = max((-(-size // s) - 1) * s + w - size, 0)
        sides.append((total // 2, total - total // 2))
    return sides


def _pooled(kind: ReduceOp, x: Any, window: Sizes, stride: Sizes | None, padding: Padding) -> tuple[Any, Any, int]:
    """The pooled x, a function that pools another array alike, and the number of elements of a window."""
    rank = rank_of(x) - 2
    if rank < 1:
        raise ShapeError(f"pool: needs x [N, C, spatial..], got shape {dims_of(x)}")
    sizes = per_axis(window, rank)
    steps = sizes if stride is None else per_axis(stride, rank)
    sides = [(0, 0), (0, 0), *_pool_sides(x, sizes, steps, padding)]

    def pool(y: Any) -> Any:
        if kind in (ReduceOp.Max, ReduceOp.Min) and all(low == high for low, high in sides):
            # Its gradient is one kernel that looks for the winners again.
            return ops.pool(y, kind, sizes, steps, [low for low, _ in sides[2:]])
        return ops.reduce_window(y, kind, (1, 1, *sizes), (1, 1, *steps), sides)

    return pool(x), pool, math.prod(sizes)


@array_function
def max_pool(x: Any, window: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> Any:
    """The largest element of each window of x [N, C, spatial..]; the stride is the window's size unless given."""
    return _pooled(ReduceOp.Max, value(x), window, stride, padding)[0]


@array_function
def min_pool(x: Any, window: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> Any:
    """The smallest element of each window of x [N, C, spatial..]."""
    return _pooled(ReduceOp.Min, value(x), window, stride, padding)[0]


@array_function
def avg_pool(
    x: Any, window: Sizes, stride: Sizes | None = None, padding: Padding = 0, count_include_pad: bool = True
) -> Any:
    """The mean of each window; with `count_include_pad` zeros around x count as elements."""
    (x,) = inexact(x)
    total, pool, count = _pooled(ReduceOp.Sum, x, window, stride, padding)
    return total / (count if count_include_pad else pool(ops.ones_like(x)))


@array_function
def dropout(x: Any, rate: float, key: Any = None, *, training: bool = True) -> Any:
    """x with elements set to 0 with probability `rate` and the others divided by 1 - rate; x itself unless training."""
    if not training or rate == 0:
        return value(x)
    if key is None:
        raise OpError("dropout: needs a random key while training, such as rlx.random.key(0); or training=False")
    return ops.dropout(operand(x), rate, operand(key))
