"""Ops that move elements without changing them: reshape, transpose, expand, slice, concat, pad, reverse.

All of them work on any dtype and with symbolic sizes. `rearrange` builds tile, roll, diagonal, ... from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.dims import (
    Dim,
    ceildiv,
    dim_max,
    dim_min,
    dims_equal,
    product,
    require_at_most,
    require_equal,
)
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import (
    Dims,
    Offset,
    Shape,
    Size,
    concat_shape,
    normalize_axes,
    normalize_axis,
    reshape_shape,
    transpose_shape,
)
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, dims_of, dtype_of, promote_operands, recording
from rlx.ops.define.rules import put_batch_first, unbroadcast, zeros_of
from rlx.ops.define.samples import FLOATS, Sample, sample, spec
from rlx.ops.pointwise.arithmetic import where

__all__ = [
    "Concat",
    "Expand",
    "Narrow",
    "Pad",
    "Reshape",
    "Reverse",
    "Slice",
    "Transpose",
    "broadcast_in_dim",
    "broadcast_to",
    "concat",
    "expand",
    "expand_dims",
    "flatten",
    "moveaxis",
    "narrow",
    "pad",
    "reshape",
    "reverse",
    "slice_",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "transpose",
]

Array = np.ndarray[Any, np.dtype[Any]]

_ANY_DTYPE = (*FLOATS, "i32", "bool", "c64")


@op("reshape")
class Reshape(Op):
    """The same elements in row-major order with other dims; the element count stays the same."""

    only_moves = True
    keeps_elements = True
    primitive = True
    precision_class = "data_movement"
    linear_in = (0,)

    new_shape: Dims

    def infer(self, x: Shape) -> Shape:
        return reshape_shape(x, self.new_shape)

    def eval(self, x: Array) -> Array:
        return x.reshape(self.new_shape)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return Reshape(x.shape)(ct)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        return Reshape((size, *self.new_shape))(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((4, 3)), spec(3, 4), dtypes=_ANY_DTYPE)
        yield sample(cls((2, 1, 3)), spec(6))
        yield sample(cls(()), spec(1, 1))
        yield sample(cls((1,)), spec())
        yield sample(cls((5, 0)), spec(0, 3))
        yield sample(cls(("B*S", 4)), spec("B", "S", 4), B=2, S=3)
        yield sample(cls(("B", "S", 2, 2)), spec("B", "S", 4), B=2, S=3)


@op("transpose")
class Transpose(Op):
    """Axes reordered: axis i of the result is axis perm[i] of the operand."""

    only_moves = True
    keeps_elements = True
    primitive = True
    precision_class = "data_movement"
    linear_in = (0,)

    perm: tuple[int, ...]

    def infer(self, x: Shape) -> Shape:
        return transpose_shape(x, self.perm)

    def eval(self, x: Array) -> Array:
        return x.transpose(self.perm)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return Transpose(tuple(self.perm.index(axis) for axis in range(x.ndim)))(ct)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        return Transpose((0, *(p + 1 for p in self.perm)))(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((1, 0)), spec(3, 4), dtypes=_ANY_DTYPE)
        yield sample(cls((2, 0, 1)), spec(2, 3, 4))
        yield sample(cls((0, 2, 1)), spec(2, 0, 4))
        yield sample(cls(()), spec())
        yield sample(cls((0, 2, 1, 3)), spec("B", "S", 2, 3), B=2, S=3)


@op("expand")
class Expand(Op):
    """Broadcast to `target_shape`: missing axes are added in front, axes of size 1 are repeated."""

    only_moves = True
    keeps_elements = True
    primitive = True
    precision_class = "data_movement"
    linear_in = (0,)

    target_shape: Dims

    def infer(self, x: Shape) -> Shape:
        missing = len(self.target_shape) - x.rank
        fits = missing >= 0 and all(
            d == 1 or require_equal(d, wanted, "expand") for d, wanted in zip(x.dims, self.target_shape[missing:])
        )
        if not fits:
            raise self.fail(f"{x} cannot be expanded to {_text(self.target_shape)}; only axes of size 1 can grow")
        return x.with_dims(self.target_shape)

    def eval(self, x: Array) -> Array:
        return np.broadcast_to(x, Shape(self.target_shape).static_dims)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return unbroadcast(ct, x.type)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        (x,) = operands
        missing = len(self.target_shape) - (x.ndim - 1)
        aligned = reshaped(x, (size, *(1,) * missing, *x.shape[1:]))
        return Expand((size, *self.target_shape))(aligned)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 4)), spec(3, 1), dtypes=_ANY_DTYPE)
        yield sample(cls((2, 3, 4)), spec(4))
        yield sample(cls((2, 3)), spec())
        yield sample(cls((0, 3)), spec(1, 3))
        yield sample(cls((3, 4)), spec(3, 4))
        yield sample(cls(("B", 2, 4)), spec("B", 1, 4), B=3)
        yield sample(cls(("B", "S")), spec(1), B=2, S=3)


@op("slice")
class Slice(Op):
    """Elements starts[i], starts[i] + strides[i], ... below limits[i] of every axis i.

    `0 <= start <= limit <= size` and `stride >= 1`; for negative steps reverse first. Nothing is clamped.
    """

    only_moves = True
    primitive = True
    precision_class = "data_movement"
    linear_in = (0,)

    starts: Dims
    limits: Dims
    strides: tuple[int, ...]

    def check(self) -> None:
        if not len(self.starts) == len(self.limits) == len(self.strides):
            raise self.fail(f"starts, limits and strides need one length, got {self._bounds_text()}")
        if any(s < 1 for s in self.strides):
            raise self.fail(f"strides must be positive, got {self.strides}; use reverse for negative steps")

    def infer(self, x: Shape) -> Shape:
        if x.rank != len(self.starts):
            raise self.fail(f"needs one start, limit and stride per axis, got {self._bounds_text()} for {x}")
        for start, limit, size in zip(self.starts, self.limits, x.dims):
            if not (require_at_most(start, limit, "slice") and require_at_most(limit, size, "slice")):
                raise self.fail(f"{self._bounds_text()} leaves {x}; 0 <= start <= limit <= size is needed")
        return x.with_dims(ceildiv(b - a, step) for a, b, step in zip(self.starts, self.limits, self.strides))

    def _bounds_text(self) -> str:
        return f"starts {_text(self.starts)}, limits {_text(self.limits)}, strides {list(self.strides)}"

    def eval(self, x: Array) -> Array:
        return x[tuple(slice(a, b, step) for a, b, step in zip(self.starts, self.limits, self.strides))]

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        gaps = [step - 1 for step in self.strides]
        covered = [a + _dilated(n, gap) for a, n, gap in zip(self.starts, y.shape, gaps)]
        behind = [size - end for size, end in zip(x.shape, covered)]
        return pad_zeros(ct, self.starts, behind, gaps)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        return Slice((0, *self.starts), (size, *self.limits), (1, *self.strides))(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((1, 0), (3, 4), (1, 1)), spec(3, 4), dtypes=_ANY_DTYPE)
        yield sample(cls((0, 1, 2), (4, 6, 3), (3, 2, 1)), spec(4, 7, 5))
        yield sample(cls((2,), (2,), (1,)), spec(4))
        yield sample(cls((), (), ()), spec())
        yield sample(cls((0, 1), ("B", 3), (1, 1)), spec("B", 4), B=3)
        yield sample(cls(("S - 2", 0), ("S", 4), (1, 2)), spec("S", 4), S=5)


@op("narrow")
class Narrow(Op):
    """`len` elements of one axis from `start` on."""

    only_moves = True
    precision_class = "data_movement"
    linear_in = (0,)

    axis: int
    start: Size
    len: Size

    def infer(self, x: Shape) -> Shape:
        axis = normalize_axis(self.axis, x.rank, "narrow")
        if not require_at_most(self.start + self.len, x.dims[axis], "narrow"):
            raise self.fail(f"{self.start}..{self.start + self.len} exceeds axis {self.axis} of {x}")
        return x.with_dim(axis, self.len)

    def eval(self, x: Array) -> Array:
        return np.moveaxis(np.moveaxis(x, self.axis, 0)[self.start : self.start + self.len], 0, self.axis)

    def decompose(self, x: Tensor) -> Any:
        axis = normalize_axis(self.axis, x.ndim, "narrow")
        starts = [self.start if i == axis else 0 for i in range(x.ndim)]
        limits = [self.start + self.len if i == axis else d for i, d in enumerate(x.shape)]
        return slice_(x, starts, limits)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        axis = normalize_axis(self.axis, x.ndim, "narrow")
        before = [self.start if i == axis else 0 for i in range(x.ndim)]
        behind = [d - self.start - self.len if i == axis else 0 for i, d in enumerate(x.shape)]
        return pad_zeros(ct, before, behind)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        (x,) = operands
        return Narrow(normalize_axis(self.axis, x.ndim - 1, "narrow") + 1, self.start, self.len)(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 1, 2), spec(3, 4), dtypes=_ANY_DTYPE)
        yield sample(cls(-2, 0, 2), spec(2, 3, 4))
        yield sample(cls(0, 3, 0), spec(3, 2))
        yield sample(cls(0, 1, "B - 1"), spec("B", 4), B=3)
        yield sample(cls(1, "S", 1), spec("B", "S + 1"), B=2, S=3)


@op("concat")
class Concat(Op):
    """Operands joined along `axis`; all other sizes agree."""

    primitive = True
    precision_class = "data_movement"
    linear_in = "all"

    axis: int

    def infer(self, *xs: Shape) -> Shape:
        return concat_shape(xs, self.axis)

    def eval(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def vjp(self, ct: Tensor, y: Tensor, *xs: Tensor) -> Any:
        axis = normalize_axis(self.axis, ct.ndim, "concat")
        cotangents = []
        start: Size = 0
        for x in xs:
            cotangents.append(reshaped(narrow(ct, axis, start, x.shape[axis]), x.shape))
            start = start + x.shape[axis]
        return tuple(cotangents)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        xs = [put_batch_first(x, b, size) for x, b in zip(operands, batched)]
        return Concat(normalize_axis(self.axis, xs[0].ndim - 1, "concat") + 1)(*xs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0), spec(3, 4), spec(2, 4), dtypes=_ANY_DTYPE)
        yield sample(cls(-1), spec(2, 3, 1), spec(2, 3, 0), spec(2, 3, 4))
        yield sample(cls(0), spec(3))
        yield sample(cls(1), spec("B", "S"), spec("B", 2), spec("B", "S"), B=2, S=3)


@op("pad")
class Pad(Op):
    """Pads every axis with `value`, a scalar: low in front, high behind, interior between neighbours.

    Negative low and high remove elements (after the interior padding).
    """

    primitive = True
    precision_class = "data_movement"
    linear_in = "all"

    low: tuple[Offset, ...]
    high: tuple[Offset, ...]
    interior: tuple[int, ...]

    def check(self) -> None:
        if not len(self.low) == len(self.high) == len(self.interior):
            raise self.fail(f"low, high and interior need one length, got {self.low}, {self.high}, {self.interior}")
        if any(i < 0 for i in self.interior):
            raise self.fail(f"interior padding cannot be negative, got {self.interior}")

    def infer(self, x: Shape, value: Shape) -> Shape:
        if x.rank != len(self.low):
            raise self.fail(f"needs one low, high and interior amount per axis, got {len(self.low)} for {x}")
        if value.rank != 0 or value.dtype is not x.dtype:
            raise self.fail(f"the padding value must be a scalar of {x.dtype}, got {value}")
        dims = []
        for size, low, high, interior in zip(x.dims, self.low, self.high, self.interior):
            padded = low + _dilated(size, interior) + high
            if not require_at_most(0, padded, "pad"):
                raise self.fail(f"low={low}, high={high} remove more than there is of an axis of size {size} in {x}")
            dims.append(padded)
        return x.with_dims(dims)

    def eval(self, x: Array, value: Array) -> Array:
        for axis, (low, high, interior) in enumerate(zip(self.low, self.high, self.interior)):
            x = np.moveaxis(_pad_leading(np.moveaxis(x, axis, 0), value, low, high, interior), 0, axis)
        return x

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor, value: Tensor) -> Any:
        from rlx.ops.reduction.reductions import reduce_sum

        trimmed = pad_zeros(ct, [-n for n in self.low], [-n for n in self.high])
        kept = Slice((0,) * x.ndim, trimmed.shape, tuple(n + 1 for n in self.interior))(trimmed)
        added = where(self._added(x.shape, x), ct, zeros_of(value.type, ct))
        return reshaped(kept, x.shape), reduce_sum(added, tuple(range(ct.ndim)))

    def _added(self, dims: Dims, near: Tensor) -> Any:
        """True where the result for an operand of `dims` is the padding value."""
        return self(zeros_of(Shape(dims, DType.BOOL), near), np.True_)

    def batch(self, size: Size, operands: tuple[Tensor, Tensor], batched: tuple[bool, bool]) -> Any:
        x, value = operands
        wider = Pad((0, *self.low), (0, *self.high), (0, *self.interior)) if batched[0] else self
        if not batched[1]:
            return wider(x, value)
        # The padding value is a scalar operand, so one value per example is put in afterwards.
        padded = wider(x, zeros_of(Shape((), x.dtype), x))
        values = reshaped(value, (size, *(1,) * len(self.low)))
        return where(self._added(x.shape[1:] if batched[0] else x.shape, x), values, padded)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((1, 0), (0, 2), (0, 0)), spec(3, 2), spec(), dtypes=_ANY_DTYPE)
        yield sample(cls((0, 1), (2, -1), (2, 1)), spec(3, 4), spec())
        yield sample(cls((-2,), (1,), (1,)), spec(4), spec())
        yield sample(cls((-3,), (5,), (0,)), spec(2), spec())
        yield sample(cls((1,), (1,), (3,)), spec(0), spec())
        yield sample(cls((), (), ()), spec(), spec())
        yield sample(cls(("S - B", 0), (1, 2), (0, 1)), spec("B", "S"), spec(), B=2, S=3)


def _dilated(size: Size, interior: int) -> Size:
    return size + interior * dim_max(size - 1, 0) if interior else size


def _pad_leading(x: Array, value: Array, low: Any, high: Any, interior: int) -> Array:
    dilated = np.full((_dilated(x.shape[0], interior), *x.shape[1:]), value, x.dtype)
    dilated[:: interior + 1] = x
    front = np.full((max(low, 0), *x.shape[1:]), value, x.dtype)
    back = np.full((max(high, 0), *x.shape[1:]), value, x.dtype)
    # Removal may reach into the padding of the other side, so it comes last.
    whole = np.concatenate([front, dilated, back])
    return whole[max(-low, 0) : len(whole) - max(-high, 0)]


@op("reverse")
class Reverse(Op):
    """The order of elements turned round along each of `axes`."""

    only_moves = True
    keeps_elements = True
    primitive = True
    precision_class = "data_movement"
    linear_in = (0,)

    axes: tuple[int, ...]

    def infer(self, x: Shape) -> Shape:
        normalize_axes(self.axes, x.rank, "reverse")
        return x

    def eval(self, x: Array) -> Array:
        return np.flip(x, self.axes)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return self(ct)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        (x,) = operands
        return Reverse(tuple(a + 1 for a in normalize_axes(self.axes, x.ndim - 1, "reverse")))(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((0,)), spec(3, 4), dtypes=_ANY_DTYPE)
        yield sample(cls((-1, 0)), spec(2, 3, 4))
        yield sample(cls(()), spec(3))
        yield sample(cls((1,)), spec("B", "S"), B=2, S=3)


def _text(dims: Sequence[Size]) -> str:
    return f"[{','.join(str(d) for d in dims)}]"


def exceeds(a: Size, b: Size) -> bool:
    """True when a > b for every binding of their symbols."""
    return dims_equal(a, b) is False and dim_max(a, b) == a


def _as_dims(dims: Any) -> tuple[Any, ...]:
    return (dims,) if isinstance(dims, int | str | Dim) else tuple(dims)


def reshape(x: Any, dims: Sequence[int | str | Dim] | int) -> Any:
    """`x` with other dims; one of them may be -1.

    >>> print(reshape(np.arange(6), (2, -1)))
    [[0 1 2]
     [3 4 5]]
    """
    return Reshape(reshape_shape(Shape(dims_of(x)), _as_dims(dims)).dims)(x)


def reshaped(x: Any, dims: Dims) -> Any:
    """`reshape` that leaves a tensor alone when nothing changes."""
    return x if isinstance(x, Tensor) and x.shape == dims else Reshape(dims)(x)


def flatten(x: Any) -> Any:
    """All elements in row-major order, rank 1."""
    return Reshape((product(dims_of(x)),))(x)


def transpose(x: Any, perm: Sequence[int] | None = None) -> Any:
    """Axis i of the result is axis perm[i] of x; without `perm` the order of axes is reversed."""
    rank = len(dims_of(x))
    if perm is None:
        perm = range(rank)[::-1]
    return Transpose(tuple(normalize_axis(p, rank, "transpose") for p in perm))(x)


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Axes `source` moved to the positions `destination`; the others keep their order."""
    rank = len(dims_of(x))
    old = [normalize_axis(a, rank, "moveaxis") for a in _as_dims(source)]
    new = [normalize_axis(a, rank, "moveaxis") for a in _as_dims(destination)]
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise ShapeError(f"moveaxis: needs as many distinct sources as destinations, got {source} and {destination}")
    perm = [a for a in range(rank) if a not in old]
    for position, axis in sorted(zip(new, old)):
        perm.insert(position, axis)
    return transposed(x, perm)


def transposed(x: Any, perm: Sequence[int]) -> Any:
    """`transpose` that leaves a tensor alone when nothing changes."""
    return x if isinstance(x, Tensor) and list(perm) == list(range(x.ndim)) else Transpose(tuple(perm))(x)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    rank = len(dims_of(x))
    a, b = normalize_axis(axis1, rank, "swapaxes"), normalize_axis(axis2, rank, "swapaxes")
    perm = list(range(rank))
    perm[a], perm[b] = b, a
    return transposed(x, perm)


def expand(x: Any, dims: Sequence[int | str | Dim]) -> Any:
    """`x` broadcast to `dims`; -1 keeps the size of x there."""
    have, wanted = dims_of(x), list(_as_dims(dims))
    missing = len(wanted) - len(have)
    for i, d in enumerate(wanted):
        if not (isinstance(d, int) and d == -1):
            continue
        if i < missing:
            raise ShapeError(f"expand: axis {i} of {tuple(wanted)} is new, so its size cannot be kept (-1)")
        wanted[i] = have[i - missing]
    return Expand(tuple(wanted))(x)


def broadcast_to(x: Any, dims: Sequence[int | str | Dim]) -> Any:
    """`x` broadcast to `dims`, by NumPy's rules; a tensor that already fits is returned as it is."""
    wanted = Shape(_as_dims(dims)).dims
    return x if isinstance(x, Tensor) and x.shape == wanted else Expand(wanted)(x)


def broadcast_in_dim(x: Any, dims: Sequence[int | str | Dim], axes: Sequence[int]) -> Any:
    """`x` broadcast to `dims`, where axis i of x becomes axis axes[i] of the result; `axes` is increasing."""
    have = dims_of(x)
    if len(axes) != len(have) or list(axes) != sorted({a for a in axes if 0 <= a < len(dims)}):
        raise ShapeError(f"broadcast_in_dim: {len(have)} increasing axes below {len(dims)} are needed, got {axes}")
    place = dict(zip(axes, have))
    return broadcast_to(reshaped(x, tuple(place.get(i, 1) for i in range(len(dims)))), dims)


def narrow(x: Any, axis: int, start: Size, length: Size) -> Any:
    """`length` elements of `axis` from `start` on; both may be symbolic.

    >>> print(narrow(np.arange(6), 0, 2, 3))
    [2 3 4]
    """
    return Narrow(axis, start, length)(x)


def slice_(x: Any, starts: Sequence[Size], limits: Sequence[Size], strides: Sequence[int] | None = None) -> Any:
    """Elements starts[i]:limits[i]:strides[i] of every axis; nothing is clamped and nothing counts from the end."""
    return Slice(tuple(starts), tuple(limits), tuple(strides or (1,) * len(starts)))(x)


def concat(xs: Sequence[Any], axis: int = 0) -> Any:
    """Operands joined along an existing axis, in their common dtype."""
    return Concat(axis)(*promote_operands(*xs))


def stack(xs: Sequence[Any], axis: int = 0) -> Any:
    """Operands of one shape joined along a new axis."""
    if not xs:
        raise ShapeError("stack: needs at least one operand")
    parts = promote_operands(*xs)
    other = next((x for x in parts if not _may_be_one(dims_of(x), dims_of(parts[0]))), None)
    if other is not None:
        first = Shape(dims_of(parts[0]), dtype_of(parts[0]))
        raise ShapeError(f"stack: needs operands of one shape, got {first} and {first.with_dims(dims_of(other))}")
    return concat([expand_dims(x, axis) for x in parts], axis)


def _may_be_one(a: Dims, b: Dims) -> bool:
    """Whether two shapes are equal, or may be when symbols have values."""
    return len(a) == len(b) and all(m == n or isinstance(m, Dim) or isinstance(n, Dim) for m, n in zip(a, b))


def split(x: Any, sections: int | Sequence[Size], axis: int = 0) -> list[Any]:
    """Pieces of `x` along `axis`: `sections` equal ones, or cut before each position of a list, as in np.split."""
    dims = dims_of(x)
    axis = normalize_axis(axis, len(dims), "split")
    size = dims[axis]
    if isinstance(sections, int):
        with recording(x):
            step = size // sections if sections > 0 else 0
            if sections < 1 or not require_equal(step * sections, size, "split"):
                raise ShapeError(f"split: axis {axis} of size {size} does not divide into {sections} equal pieces")
        return [narrow(x, axis, step * i, step) for i in range(sections)]
    cuts = [0, *(dim_min(c, size) for c in sections), size]
    return [narrow(x, axis, a, dim_max(b - a, 0)) for a, b in pairwise(cuts)]


def pad(
    x: Any,
    value: Any = 0,
    low: Sequence[Offset] | None = None,
    high: Sequence[Offset] | None = None,
    interior: Sequence[int] | None = None,
) -> Any:
    """`x` with `value` added around (low, high) and between (interior) its elements; see `Pad`.

    >>> print(pad(np.array([1, 2, 3]), 0, low=[1], high=[-1], interior=[1]))
    [0 1 0 2 0]
    """
    nothing = (0,) * len(dims_of(x))
    padding = Pad(tuple(low or nothing), tuple(high or nothing), tuple(interior or nothing))
    return padding(x, convert(value, dtype_of(x)))


def pad_zeros(x: Tensor, low: Sequence[Offset], high: Sequence[Offset], interior: Sequence[int] | None = None) -> Any:
    """`pad` of a tensor with zeros, in its own program."""
    padding = Pad(tuple(low), tuple(high), tuple(interior or (0,) * x.ndim))
    return padding(x, zeros_of(Shape((), x.dtype), x))


def reverse(x: Any, axes: int | Sequence[int]) -> Any:
    """`x` turned round along `axes`."""
    return Reverse(_as_dims(axes))(x)


def squeeze(x: Any, axes: int | Sequence[int] | None = None) -> Any:
    """Axes of size 1 dropped: all of them, or those given."""
    dims = dims_of(x)
    if axes is None:
        axes = [i for i, d in enumerate(dims) if d == 1]
    chosen = normalize_axes(_as_dims(axes), len(dims), "squeeze")
    for a in chosen:
        if not require_equal(dims[a], 1, "squeeze"):
            raise ShapeError(f"squeeze: axis {a} of {_text(dims)} has size {dims[a]}, not 1")
    return reshaped(x, tuple(d for i, d in enumerate(dims) if i not in chosen))


def expand_dims(x: Any, axes: int | Sequence[int]) -> Any:
    """Axes of size 1 added, at positions of the result."""
    dims, new = dims_of(x), _as_dims(axes)
    rank = len(dims) + len(new)
    added = normalize_axes(new, rank, "expand_dims")
    rest = iter(dims)
    return reshaped(x, tuple(1 if i in added else next(rest) for i in range(rank)))
