"""Windows whose place is only known at run time: `DynamicSlice` reads one, `DynamicUpdateSlice` writes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.dims import require_at_most
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape, Size, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, dims_of, dtype_of, require_same_dtype, same_graph
from rlx.ops.define.rules import put_batch_first, zeros_like, zeros_of
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.pointwise.arithmetic import add, clamp, lt, where
from rlx.ops.pointwise.conversion import convert_array
from rlx.ops.shape.creation import dim_value, iota
from rlx.ops.shape.indexing import GatherNd, IndexMode, ScatterKind, ScatterNd, require_ids
from rlx.ops.shape.movement import broadcast_to, expand_dims, moveaxis, narrow, reshape, squeeze, stack

__all__ = [
    "DynamicSlice",
    "DynamicUpdateSlice",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
]

Array = np.ndarray[Any, np.dtype[Any]]


def _require_window(op: Op, x: Shape, sizes: Dims, starts: tuple[Shape, ...]) -> None:
    if not x.rank == len(sizes) == len(starts):
        raise op.fail(f"needs one size and one start per axis of {x}, got {len(sizes)} sizes and {len(starts)} starts")
    if not all(require_at_most(window, size, op.mnemonic) for window, size in zip(sizes, x.dims)):
        raise op.fail(f"a window of {list(sizes)} does not fit into {x}")
    for start in starts:
        require_ids(op, start)
        if start.rank != 0:
            raise op.fail(f"starts must be scalars, got {start}")


def _window(x: Array, sizes: Sequence[int], starts: tuple[Array, ...]) -> tuple[slice, ...]:
    places = []
    for start, window, size in zip(starts, sizes, x.shape):
        first = int(convert_array(np.asarray(start), DType.I64))
        first = min(max(first + size if first < 0 else first, 0), size - window)
        places.append(slice(first, first + window))
    return tuple(places)


@op("dynamic_slice")
class DynamicSlice(Op):
    """The window of `sizes` that begins at the scalar operands start_0, start_1, ..., one per axis of x.

    A negative start counts from the end; then starts are moved so that the window lies inside x.
    """

    primitive = True
    precision_class = "data_movement"
    linear_in = (0,)

    sizes: Dims

    def infer(self, x: Shape, *starts: Shape) -> Shape:
        _require_window(self, x, self.sizes, starts)
        return x.with_dims(self.sizes)

    def eval(self, x: Array, *starts: Array) -> Array:
        return x[_window(x, Shape(self.sizes).static_dims, starts)]

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor, *starts: Tensor) -> Any:
        return DynamicUpdateSlice()(zeros_like(x), ct, *starts), *(None for _ in starts)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        x, *starts = operands
        if not any(batched[1:]):
            return DynamicSlice((size, *self.sizes))(x, _zero(x), *starts)
        dims = x.shape[1:] if batched[0] else x.shape
        axes = _placed_axes(dims, self.sizes)
        if not axes:
            return put_batch_first(x, batched[0], size)
        places = _window_places(size, dims, self.sizes, axes, starts)
        gather = GatherNd(tuple(a + batched[0] for a in axes), int(batched[0]), IndexMode.Clip)
        return moveaxis(gather(x, places), range(1, len(axes) + 1), [a + 1 for a in axes])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        start = spec(dtype="i32", low=0, high=4)
        yield sample(cls((2, 3)), spec(4, 5), start, start, dtypes=(*FLOATS, *INTS, "bool", "c64"))
        yield sample(cls((2, 3)), spec(4, 5), spec(dtype="i64", values=-2), spec(dtype="f32", values=9.5))
        yield sample(cls((0,)), spec(3), start)
        yield sample(cls(()), spec())
        yield sample(cls((1, "S")), spec("B", "S"), start, spec(dtype="u8", values=0), B=3, S=2)


@op("dynamic_update_slice")
class DynamicUpdateSlice(Op):
    """x with the window that begins at the scalar operands start_0, start_1, ... replaced by `update`.

    Starts are those of `DynamicSlice`. On a buffer that is not needed any more this is a store in place.
    """

    primitive = True
    precision_class = "data_movement"
    linear_in = (0, 1)

    def infer(self, x: Shape, update: Shape, *starts: Shape) -> Shape:
        require_same_dtype(self, x, update)
        _require_window(self, x, update.dims, starts)
        return x

    def eval(self, x: Array, update: Array, *starts: Array) -> Array:
        result = x.copy()
        result[_window(x, update.shape, starts)] = update
        return result

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor, update: Tensor, *starts: Tensor) -> Any:
        outside = self(ct, zeros_like(update), *starts)
        return outside, DynamicSlice(update.shape)(ct, *starts), *(None for _ in starts)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        x, update = (put_batch_first(operands[i], batched[i], size) for i in (0, 1))
        starts = operands[2:]
        if not any(batched[2:]):
            return self(x, update, _zero(x), *starts)
        dims, window = x.shape[1:], update.shape[1:]
        axes = _placed_axes(dims, window)
        if not axes:
            return update
        places = _window_places(size, dims, window, axes, starts)
        scatter = ScatterNd(ScatterKind.Set, tuple(a + 1 for a in axes), 1, IndexMode.Clip)
        return scatter(x, places, moveaxis(update, [a + 1 for a in axes], range(1, len(axes) + 1)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        start = spec(dtype="i32", low=0, high=4)
        yield sample(cls(), spec(4, 5), spec(2, 3), start, start, dtypes=(*FLOATS, *INTS, "bool", "c64"))
        yield sample(cls(), spec(4, 5), spec(2, 3), spec(dtype="i64", values=-2), spec(dtype="f32", values=9.5))
        yield sample(cls(), spec(3), spec(0), start)
        yield sample(cls(), spec(), spec())
        yield sample(cls(), spec("B", "S"), spec(1, "S"), start, spec(dtype="u8", values=0), B=3, S=2)


def _zero(near: Tensor) -> Tensor:
    """The start of a window that spans the whole axis."""
    return zeros_of(Shape((), DType.I32), near)


def _placed_axes(dims: Dims, window: Dims) -> list[int]:
    """The axes along which a window can lie in more than one place."""
    return [i for i, (d, w) in enumerate(zip(dims, window)) if d != w]


def _window_places(size: Size, dims: Dims, window: Dims, axes: list[int], starts: Sequence[Tensor]) -> Any:
    """Coordinates [size, window of `axes`.., one per axis] of the elements of one window per example.

    `starts` are scalars, or [size] with one start per example.
    """
    grid = (size, *(window[a] for a in axes))
    coordinates = []
    with same_graph(*starts):
        for position, axis in enumerate(axes, start=1):
            # Narrower starts could not hold the size that is added to negative ones.
            start = starts[axis] if starts[axis].dtype is DType.I64 else convert(starts[axis], DType.I32)
            length, room = (dim_value(d, start.dtype) for d in (dims[axis], dims[axis] - window[axis]))
            first = clamp(where(lt(start, 0), add(start, length), start), 0, room)
            offset = iota([window[axis] if i == position else 1 for i in range(len(grid))], start.dtype, position)
            column = reshape(first, (*first.shape, *(1,) * len(axes)))
            coordinates.append(convert(broadcast_to(add(column, offset), grid), DType.I32))
    return stack(coordinates, -1)


def _scalars(starts: Any, count: int) -> list[Any]:
    """One start per axis, from a sequence of scalars or a tensor of rank 1."""
    if isinstance(starts, Sequence):
        scalars = list(starts)
    else:
        if len(dims_of(starts)) != 1:
            raise ShapeError(f"starts must be scalars or one tensor of rank 1, got dims {dims_of(starts)}")
        scalars = [reshape(narrow(starts, 0, i, 1), ()) for i in range(count)]
    # A start beyond 32 bits is clamped to the edge of the axis anyway.
    return [np.int32(min(max(s, -(2**31)), 2**31 - 1)) if isinstance(s, int) else s for s in scalars]


def dynamic_slice(x: Any, starts: Any, sizes: Sequence[Size]) -> Any:
    """The window of `sizes` at `starts` (scalars, or a tensor with one start per axis); see `DynamicSlice`."""
    return DynamicSlice(tuple(sizes))(x, *_scalars(starts, len(dims_of(x))))


def dynamic_update_slice(x: Any, update: Any, starts: Any) -> Any:
    """`x` with the window at `starts` replaced by `update`; see `DynamicUpdateSlice`."""
    return DynamicUpdateSlice()(x, convert(update, dtype_of(x)), *_scalars(starts, len(dims_of(x))))


def dynamic_slice_in_dim(x: Any, start: Any, size: Size, axis: int = 0) -> Any:
    """`size` elements of one axis from `start` on."""
    dims = dims_of(x)
    axis = normalize_axis(axis, len(dims), "dynamic_slice_in_dim")
    sizes = [size if i == axis else d for i, d in enumerate(dims)]
    return dynamic_slice(x, [start if i == axis else 0 for i in range(len(dims))], sizes)


def dynamic_index_in_dim(x: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """One element of an axis, which stays with size 1 or goes."""
    element = dynamic_slice_in_dim(x, index, 1, axis)
    return element if keepdims else squeeze(element, axis)


def dynamic_update_slice_in_dim(x: Any, update: Any, start: Any, axis: int = 0) -> Any:
    """`x` with elements of one axis replaced by `update`, from `start` on."""
    rank = len(dims_of(x))
    axis = normalize_axis(axis, rank, "dynamic_update_slice_in_dim")
    return dynamic_update_slice(x, update, [start if i == axis else 0 for i in range(rank)])


def dynamic_update_index_in_dim(x: Any, update: Any, index: Any, axis: int = 0) -> Any:
    """`x` with one element of an axis replaced; `update` has that axis with size 1, or not at all."""
    if len(dims_of(update)) < len(dims_of(x)):
        update = expand_dims(update, axis)
    return dynamic_update_slice_in_dim(x, update, index, axis)
