"""Functions that change the shape and the order of elements, not their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.ir.shape import Dims, Shape, broadcast_dims, normalize_axis, reshape_shape
from rlx.numpy.arguments import (
    Axis,
    array_function,
    axes_of,
    axis_of,
    concrete,
    convert,
    dims_from,
    operand,
    rank_of,
    static_size,
    value,
)
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "delete",
    "expand_dims",
    "flip",
    "fliplr",
    "flipud",
    "insert",
    "moveaxis",
    "ndim",
    "pad",
    "permute_dims",
    "ravel",
    "repeat",
    "reshape",
    "resize",
    "roll",
    "rollaxis",
    "rot90",
    "shape",
    "size",
    "squeeze",
    "swapaxes",
    "tile",
    "transpose",
    "trim_zeros",
]


def shape(x: Any) -> Dims:
    """The sizes of the axes; symbolic sizes are `Dim` objects."""
    return dims_of(x)


def ndim(x: Any) -> int:
    """The number of axes."""
    return rank_of(x)


def size(x: Any, axis: int | None = None) -> int | Dim:
    """The number of elements, or the size of one axis."""
    dims = dims_of(x)
    return Shape(dims).element_count if axis is None else dims[axis_of(axis, x, "size")]


@array_function
def reshape(x: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """`x` with other dims; one of them may be -1. Order "F" reads and writes with the first axis fastest."""
    x = value(x)
    dims = dims_from(shape)
    if order in ("C", "A", "K"):
        return ops.reshape(x, dims)
    if order != "F":
        raise OpError(f"reshape: order must be 'C' or 'F', got {order!r}")
    wanted = reshape_shape(Shape(dims_of(x)), dims).dims
    return ops.transpose(ops.reshape(ops.transpose(x), wanted[::-1]))


@array_function
def ravel(x: Any, order: str = "C") -> Any:
    """All elements as one axis."""
    return reshape(x, (-1,), order) if order == "F" else ops.flatten(value(x))


@array_function
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Axis i of the result is axis axes[i] of `x`; without `axes` their order is reversed."""
    return ops.transpose(value(x), axes)


@array_function
def permute_dims(x: Any, /, axes: Sequence[int]) -> Any:
    """Axis i of the result is axis axes[i] of `x`."""
    return ops.transpose(value(x), axes)


@array_function
def moveaxis(x: Any, /, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Axes `source` moved to the positions `destination`; the others keep their order."""
    return ops.moveaxis(value(x), source, destination)


@array_function
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    return ops.swapaxes(value(x), axis1, axis2)


@array_function
def rollaxis(x: Any, axis: int, start: int = 0) -> Any:
    """`axis` moved back until it stands before axis `start`."""
    axis, start = axis_of(axis, x, "rollaxis"), start + rank_of(x) if start < 0 else start
    return ops.moveaxis(value(x), axis, start - 1 if axis < start else start)


@array_function
def squeeze(x: Any, /, axis: Axis = None) -> Any:
    """Axes of size 1 dropped: all of them, or those given, which must have that size."""
    return ops.squeeze(value(x), axis)


@array_function
def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Any:
    """Axes of size 1 added, at these positions of the result."""
    return ops.expand_dims(value(x), axis)


@array_function
def broadcast_to(x: Any, /, shape: Any) -> Any:
    """`x` repeated along new axes and axes of size 1 until it has `shape`."""
    return ops.broadcast_to(value(x), dims_from(shape))


def broadcast_shapes(*shapes: Any) -> Dims:
    """The shape in which operands of these shapes meet.

    >>> broadcast_shapes((3, 1), (4,), 1)
    (3, 4)
    """
    result: Dims = ()
    for each in shapes:
        result = broadcast_dims(result, Shape(dims_from(each)).dims, "broadcast_shapes")
    return result


@array_function
def broadcast_arrays(*arrays: Any) -> list[Any]:
    """The operands broadcast against each other."""
    values = [value(x) for x in arrays]
    dims = broadcast_shapes(*(dims_of(x) for x in values))
    return [ops.broadcast_to(x, dims) for x in values]


@array_function
def flip(x: Any, /, axis: Axis = None) -> Any:
    """The order of elements turned round along `axis` (all axes by default)."""
    x = value(x)
    return ops.reverse(x, axes_of(axis, rank_of(x), "flip"))


@array_function
def fliplr(x: Any) -> Any:
    """Columns in reverse order: flip along axis 1."""
    return flip(x, axis=1)


@array_function
def flipud(x: Any) -> Any:
    """Rows in reverse order: flip along axis 0."""
    return flip(x, axis=0)


@array_function
def rot90(x: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """`x` turned k times by 90 degrees, from the first of `axes` toward the second."""
    x = value(x)
    a, b = (axis_of(i, x, "rot90") for i in axes)
    if a == b:
        raise ShapeError(f"rot90: needs two different axes, got {axes}")
    k %= 4
    if k == 2:
        return ops.reverse(x, (a, b))
    if k == 1:
        return ops.swapaxes(ops.reverse(x, (b,)), a, b)
    return ops.reverse(ops.swapaxes(x, a, b), (b,)) if k == 3 else x


@array_function
def roll(x: Any, /, shift: Any, axis: Axis = None) -> Any:
    """Elements moved `shift` places toward the end; those pushed out come in at the front."""
    return ops.roll(value(x), shift, axis)


@array_function
def tile(x: Any, /, reps: int | Sequence[int]) -> Any:
    """`x` laid side by side: reps[i] times along axis i."""
    return ops.tile(value(x), reps)


@array_function
def repeat(x: Any, /, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Any:
    """Every element of `axis` (of the flattened x without one) `repeats` times in a row.

    Counts are known numbers, unless `total_repeat_length` says how many there are in all: what is too much is then left
    out, and the last element fills up.
    """
    if total_repeat_length is not None:
        x = value(x) if axis is not None else ops.flatten(value(x))
        axis = normalize_axis(axis or 0, rank_of(x), "repeat")
        ends = ops.cumsum(ops.broadcast_to(operand(repeats), (dims_of(x)[axis],)), 0)
        place = ops.expand_dims(ops.iota((total_repeat_length,), DType.I32), -1)
        source = ops.reduce_sum(ops.cast(ops.ge(place, ops.cast(ends, DType.I32)), DType.I32), -1)
        return ops.take(x, source, axis, "clip")
    return ops.repeat(value(x), concrete(repeats, "repeat", "repeats"), axis)


@array_function
def resize(x: Any, new_shape: Any) -> Any:
    """`x` repeated or cut to fill `new_shape`, in row-major order."""
    x = value(x)
    dims = tuple(static_size(d, "resize") for d in dims_from(new_shape))
    have, wanted = static_size(size(x), "resize"), math.prod(dims)
    if have == 0:
        raise ShapeError(f"resize: an empty array has nothing to fill {dims} with")
    long_enough = ops.tile(ops.flatten(x), -(-wanted // have))
    return ops.reshape(ops.narrow(long_enough, 0, 0, wanted), dims)


@array_function
def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Any:
    """Elements added before and after each axis: `pad_width` is n, (before, after), or such a pair for each axis.

    Modes: constant (with `constant_values`, given like the widths), edge, reflect, symmetric, wrap; empty means 0.
    """
    x = value(x)
    if mode != "constant" or isinstance(constant_values, int | float | complex) or rank_of(constant_values) == 0:
        fill = constant_values if mode == "constant" else 0
        return ops.pad_mode(x, pad_width, "constant" if mode == "empty" else mode, convert(fill, dtype_of(x)))
    rank = rank_of(x)
    widths = np.broadcast_to(concrete(pad_width, "pad", "pad_width"), (rank, 2))
    fills = np.broadcast_to(concrete(constant_values, "pad", "constant_values"), (rank, 2))
    for axis in range(rank):
        for side in (0, 1):
            one = [(int(widths[axis, s]) * (s == side) if a == axis else 0) for a in range(rank) for s in (0, 1)]
            x = ops.pad_mode(x, np.reshape(one, (rank, 2)), "constant", fills[axis, side].item())
    return x


@array_function
def atleast_1d(*arrays: Any) -> Any:
    """Scalars as arrays with one axis."""
    return _each(arrays, lambda x: ops.reshape(x, (1,)) if rank_of(x) == 0 else x)


@array_function
def atleast_2d(*arrays: Any) -> Any:
    """Scalars and vectors as matrices with one row."""
    return _each(arrays, lambda x: ops.expand_dims(x, tuple(range(2 - rank_of(x)))) if rank_of(x) < 2 else x)


@array_function
def atleast_3d(*arrays: Any) -> Any:
    """At least three axes: a vector becomes [1, n, 1], a matrix [m, n, 1]."""
    new_axes = {0: (0, 1, 2), 1: (0, 2), 2: (2,)}
    return _each(arrays, lambda x: ops.expand_dims(x, new_axes[rank_of(x)]) if rank_of(x) < 3 else x)


def _each(arrays: Sequence[Any], change: Any) -> Any:
    results = [change(value(x)) for x in arrays]
    return results[0] if len(results) == 1 else tuple(results)


@array_function
def delete(x: Any, obj: Any, axis: int | None = None) -> Any:
    """`x` without the entries at `obj` (an index, slice, mask or list of known numbers) along `axis`."""
    x, axis, length = _line(x, axis, "delete")
    kept = np.delete(
        np.arange(length, dtype=np.int32), obj if isinstance(obj, slice) else concrete(obj, "delete", "obj")
    )
    return ops.gather(x, kept, axis)


@array_function
def insert(x: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """`x` with `values` put before the positions `obj` (an index, slice, mask or list of known numbers) of `axis`."""
    x, axis, length = _line(x, axis, "insert")
    where = obj if isinstance(obj, slice) else concrete(obj, "insert", "obj")
    added = convert(value(values), dtype_of(x))
    one_index = not isinstance(where, slice) and where.ndim == 0
    count = 1 if one_index else len(np.insert(np.arange(length), where, 0)) - length
    if one_index and rank_of(added) == rank_of(x):
        # One position takes a whole block.
        count = static_size(dims_of(added)[axis], "insert")
    elif one_index and rank_of(added):
        added = ops.expand_dims(added, axis)
    dims = dims_of(x)
    added = ops.broadcast_to(added, (*dims[:axis], count, *dims[axis + 1 :]))
    order = np.insert(np.arange(length), where, np.arange(length, length + count))
    return ops.gather(ops.concat([x, added], axis), order.astype(np.int32), axis)


def _line(x: Any, axis: int | None, function: str) -> tuple[Any, int, int]:
    """The operand and the axis to work on, with its fixed size; without an axis the operand is flattened."""
    x = ops.flatten(value(x)) if axis is None else value(x)
    axis = 0 if axis is None else axis_of(axis, x, function)
    return x, axis, static_size(dims_of(x)[axis], function)


def trim_zeros(filt: Any, trim: Literal["f", "b", "fb", "bf"] = "fb") -> Any:
    """A vector without the zeros at its front ("f") and back ("b"); how many there are must be known."""
    from rlx.numpy.creation import asarray

    return asarray(np.trim_zeros(concrete(filt, "trim_zeros", "filt"), trim))
