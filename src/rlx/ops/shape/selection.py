"""Choosing elements by number or by condition: take, take_along_axis, put_along_axis, one_hot, nonzero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.errors import OpError, OutOfRange, ShapeError
from rlx.ir.dims import Dim, require_at_most
from rlx.ir.dtype import DType, DTypeLike, integer_limits
from rlx.ir.shape import Dims, Size, broadcast_dims, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, dims_of, dtype_of, recording, same_graph
from rlx.ops.pointwise.arithmetic import eq, ne, rem, sub, where
from rlx.ops.pointwise.conversion import convert_array
from rlx.ops.reduction.cumulative import cumsum
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.creation import full, iota, ones
from rlx.ops.shape.indexing import GatherNd, IndexMode, ScatterKind, ScatterNd, resolve_ids
from rlx.ops.shape.movement import broadcast_to, expand_dims, flatten, moveaxis

__all__ = ["nonzero", "one_hot", "put_along_axis", "take", "take_along_axis"]


def as_ids(ids: Any) -> Any:
    """Ids as an operand: known numbers become i32 (i64 where they do not fit), tensors stay."""
    if dtype_of(ids) is DType.BOOL:
        raise OpError("a bool mask was given where ids are needed; use x[mask], where or nonzero")
    if isinstance(ids, Tensor):
        return ids
    numbers = convert_array(np.asarray(ids), DType.I64)
    small = numbers.astype(np.int32)
    return small if (small == numbers).all() else numbers


def require_known_ids(x: Any, ids: Any, size: Size, what: str) -> None:
    """Refuse ids that are known already and lie outside of an axis of x; one of symbolic size must be long enough."""
    if isinstance(ids, Tensor) or 0 in dims_of(ids):
        return
    if isinstance(size, Dim):
        with recording(x):
            require_at_most(max(int(np.max(ids)) + 1, -int(np.min(ids))), size, what)
        return
    wrong = np.asarray(ids)[~resolve_ids(np.asarray(ids), size)[1]]
    if wrong.size:
        raise OutOfRange(f"{what}: index {wrong.flat[0]} is out of range for an axis of size {size}")


def default_fill(dtype: DType) -> Any:
    """What mode "fill" reads without a `fill_value`: NaN, the lowest signed or highest unsigned integer, or True."""
    if dtype.is_inexact:
        return math.nan
    if dtype is DType.BOOL:
        return True
    info = integer_limits(dtype)
    return int(info.min if dtype.is_signed else info.max)


def read_mode(mode: IndexMode | str | None, fill_value: Any = None) -> IndexMode:
    """The mode of a read: a `fill_value` alone asks for "fill", and what is dropped when written cannot be read."""
    chosen = IndexMode.Checked if mode is None else IndexMode(mode)
    filled = chosen is IndexMode.Drop or (chosen is IndexMode.Checked and fill_value is not None)
    return IndexMode.Fill if filled else chosen


def take(
    x: Any, ids: Any, axis: int | None = None, mode: IndexMode | str = IndexMode.Checked, fill_value: Any = None
) -> Any:
    """Entries of x along `axis` (of the flattened x without one), with the axes of `ids` in place of it.

    Modes are those of `IndexMode`, and "wrap" for ids modulo the size. With "fill", which a `fill_value` alone asks
    for, invalid ids give that value, or NaN (the lowest signed or highest unsigned integer, or True).

    >>> print(take(np.array([10, 20, 30]), [2, 5], mode="clip"))
    [30 30]
    """
    if axis is None:
        x, axis = flatten(x), 0
    axis = normalize_axis(axis, len(dims_of(x)), "take")
    size = dims_of(x)[axis]
    ids = as_ids(ids)
    if mode == "wrap":
        ids, mode = _wrapped(ids, size), IndexMode.Clip
    mode = read_mode(mode, fill_value)
    if mode is IndexMode.Checked:
        require_known_ids(x, ids, size, "take")
    taken = Gather(axis, mode)(x, ids)
    if mode is not IndexMode.Fill:
        return taken
    if fill_value is None:
        fill_value = default_fill(dtype_of(x))
    trailing = len(dims_of(x)) - axis - 1
    found = valid_ids(ids, size)
    return where(
        expand_dims(found, range(-trailing, 0)) if trailing else found, taken, convert(fill_value, dtype_of(x))
    )


def _wrapped(ids: Any, size: Size) -> Any:
    if isinstance(size, Dim):
        raise ShapeError(f"take: mode 'wrap' needs an axis of fixed size, got the symbolic size {size}")
    # The remainder lies between -(size-1) and size-1, and negative ids count from the end.
    return rem(ids, size)


def valid_ids(ids: Any, size: Size) -> Any:
    """Which ids lie in an axis of `size`, as bool: reading a row of True with fill gives False elsewhere."""
    with same_graph(ids):
        row = ones(size, DType.BOOL)
        return Gather(0, IndexMode.Fill)(row, ids)


def _rows(x: Any, ids: Any, axis: int, op: str) -> tuple[Any, Any, int]:
    """x and ids with `axis` last and all other axes broadcast against each other."""
    dims, id_dims = dims_of(x), dims_of(ids)
    if len(dims) != len(id_dims):
        raise ShapeError(f"{op}: x and ids need one rank, got dims {dims} and {id_dims}")
    axis = normalize_axis(axis, len(dims), op)
    x, ids = moveaxis(x, axis, -1), moveaxis(ids, axis, -1)
    lead: Dims = broadcast_dims(dims_of(x)[:-1], dims_of(ids)[:-1], op)
    return broadcast_to(x, (*lead, dims[axis])), broadcast_to(ids, (*lead, id_dims[axis])), axis


def take_along_axis(
    x: Any, ids: Any, axis: int | None = None, mode: IndexMode | str = IndexMode.Checked, fill_value: Any = None
) -> Any:
    """y[.., i, ..] = x[.., ids[.., i, ..], ..] with i at `axis`; the other axes go together (and broadcast).

    Modes and `fill_value` are those of `take`, without "wrap".
    """
    if axis is None:
        x, ids, axis = flatten(x), flatten(ids), 0
    x, ids, axis = _rows(x, as_ids(ids), axis, "take_along_axis")
    size, last = dims_of(x)[-1], len(dims_of(x)) - 1
    mode = read_mode(mode, fill_value)
    if mode is IndexMode.Checked:
        require_known_ids(x, ids, size, "take_along_axis")
    taken = GatherNd((last,), last, mode)(x, expand_dims(ids, -1))
    if mode is IndexMode.Fill:
        other = default_fill(dtype_of(x)) if fill_value is None else fill_value
        taken = where(valid_ids(ids, size), taken, convert(other, dtype_of(x)))
    return moveaxis(taken, -1, axis)


def put_along_axis(
    x: Any,
    ids: Any,
    values: Any,
    axis: int,
    kind: ScatterKind | str = ScatterKind.Set,
    mode: IndexMode | str = IndexMode.Checked,
) -> Any:
    """`x` with `values` brought to the places that `take_along_axis` reads."""
    dims = dims_of(x)
    with same_graph(x, ids, values):
        values = moveaxis(broadcast_to(convert(values, dtype_of(x)), dims_of(ids)), axis, -1)
    x, ids, axis = _rows(x, as_ids(ids), axis, "put_along_axis")
    if dims_of(moveaxis(x, -1, axis)) != tuple(dims):
        raise ShapeError(f"put_along_axis: ids of dims {dims_of(ids)} do not broadcast to x of dims {dims}")
    if mode == IndexMode.Checked:
        require_known_ids(x, ids, dims_of(x)[-1], "put_along_axis")
    last = len(dims_of(x)) - 1
    values = broadcast_to(values, dims_of(ids))
    scatter = ScatterNd(ScatterKind(kind), (last,), last, IndexMode(mode))
    return moveaxis(scatter(x, expand_dims(ids, -1), values), -1, axis)


def one_hot(ids: Any, depth: Size, dtype: DTypeLike = DType.F32, axis: int = -1) -> Any:
    """1 where a new axis of size `depth` equals the id, else 0; ids outside of it give only zeros.

    >>> print(one_hot(np.array([1, 3]), 3))
    [[0. 1. 0.]
     [0. 0. 0.]]
    """
    ids = as_ids(ids)
    if dtype_of(ids).is_float or dtype_of(ids).size_bytes < 4:
        ids = convert(ids, DType.I32)
    rank = len(dims_of(ids)) + 1
    axis = normalize_axis(axis, rank, "one_hot")
    with same_graph(ids):
        places = iota([depth if i == axis else 1 for i in range(rank)], dtype_of(ids), axis)
    return convert(eq(expand_dims(ids, axis), places), DType.of(dtype))


def nonzero(x: Any, size: Size | None = None, fill_value: int = 0) -> tuple[Any, ...]:
    """Positions of elements that are not 0, in row-major order: one i32 tensor of rank 1 per axis of x.

    How many there are is only known at run time, so their number is fixed by `size`: more are cut off, fewer are
    followed by `fill_value`. Without `size` x must be known numbers.
    """
    if size is None:
        if isinstance(x, Tensor):
            raise OpError("nonzero: the number of results depends on values; give `size`, an upper bound")
        return tuple(ids.astype(np.int32) for ids in np.nonzero(np.asarray(x)))
    found = flatten(ne(x, 0))
    # The n-th found element goes to place n; all others to a place that does not exist.
    order = cumsum(convert(found, DType.I32), 0)
    place = expand_dims(where(found, sub(order, 1), np.int32(2**31 - 1)), -1)
    results = []
    with same_graph(x):
        for axis in range(len(dims_of(x))):
            positions = flatten(iota(dims_of(x), DType.I32, axis))
            blank = full(size, fill_value, DType.I32)
            results.append(ScatterNd(ScatterKind.Set, (0,), mode=IndexMode.Drop)(blank, place, positions))
    return tuple(results)
