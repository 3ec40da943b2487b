"""Tensors made from nothing: iota, full, arange, linspace, eye, triangles, and the run-time value of a symbolic size.

Without operands there is nothing that says which program a value belongs to. While a function is traced it is that
program; on plain arrays everything is computed at once; `*_like` functions and triangles follow their operand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.dims import Dim, as_dim, ceildiv, dim_max
from rlx.ir.dtype import DType, DTypeLike, promote
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Dims, Shape, Size, broadcast_dims, normalize_axis
from rlx.ops.define.operands import common_dtype, convert, dims_of, dtype_of, inexact_dtype, require_dtype, same_graph
from rlx.ops.define.samples import Sample, sample
from rlx.ops.pointwise.arithmetic import add, div, eq, ge, mul, sub, where
from rlx.ops.pointwise.conversion import cast

__all__ = [
    "DimValue",
    "Iota",
    "arange",
    "dim_value",
    "eye",
    "full",
    "full_like",
    "iota",
    "linspace",
    "ones",
    "ones_like",
    "tri",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]

Array = np.ndarray[Any, np.dtype[Any]]
DimsLike = Size | str | Sequence[int | str | Dim]


@op("iota")
class Iota(Op):
    """y[i_0, i_1, ...] = i_axis: positions along one axis of `dims`, in any numeric dtype."""

    only_moves = True
    primitive = True
    precision_class = "data_movement"

    dims: Dims
    dtype: DType = DType.I32
    axis: int = 0

    def infer(self) -> Shape:
        shape = Shape(self.dims, self.dtype)
        require_dtype(self, self.dtype is not DType.BOOL and not self.dtype.is_storage, "numeric", shape)
        normalize_axis(self.axis, shape.rank, self.mnemonic)
        return shape

    def eval(self) -> Array:
        dims = Shape(self.dims, self.dtype).static_dims
        axis = normalize_axis(self.axis, len(dims), self.mnemonic)
        positions = np.arange(dims[axis]).astype(self.dtype.numpy)
        return np.broadcast_to(positions.reshape(-1, *(1,) * (len(dims) - 1 - axis)), dims)

    jvp = vjp = batch = NoRule("it has no operands")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in ("i8", "u8", "i32", "i64", "f16", "bf16", "f32", "f64", "c64"):
            yield sample(cls((5,), dtype), dtypes=(dtype,))
        for axis in (0, 1, 2, -1):
            yield sample(cls((2, 3, 4), "i32", axis), dtypes=("i32",))
        yield sample(cls((0, 3), "f32", 1), dtypes=("f32",))
        yield sample(cls((1,)), dtypes=("i32",))
        yield sample(cls(("B", "B+1"), "i32", 1), dtypes=("i32",), B=2)


@op("dim_value")
class DimValue(Op):
    """y = the size `size` as a scalar, known when the program runs."""

    only_moves = True
    primitive = True
    precision_class = "data_movement"

    size: Size
    dtype: DType = DType.I32

    def infer(self) -> Shape:
        shape = Shape((), self.dtype)
        ok = (self.dtype.is_int or self.dtype.is_float) and not self.dtype.is_storage
        require_dtype(self, ok, "integer or float", shape)
        return shape

    def eval(self) -> Array:
        size = int(self.size)
        if self.dtype.is_int and size > np.iinfo(self.dtype.numpy).max:
            raise self.fail(f"{size} does not fit into {self.dtype}; ask for i64")
        return np.asarray(size, dtype=np.int64).astype(self.dtype.numpy)

    jvp = vjp = batch = NoRule("it has no operands")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in ("i32", "i64", "f32"):
            yield sample(cls(7, dtype), dtypes=(dtype,))


def as_dims(dims: DimsLike) -> Dims:
    """One size or several, as a tuple."""
    sizes = (dims,) if isinstance(dims, int | str | Dim) else dims
    return tuple(as_dim(d) for d in sizes)


def dim_value(size: Size | str, dtype: DTypeLike = DType.I32) -> Any:
    """A size as a scalar to compute with: symbolic sizes are read when the program runs."""
    size, chosen = as_dim(size), DType.of(dtype)
    return DimValue(size, chosen)() if isinstance(size, Dim) else convert(size, chosen)


def iota(dims: DimsLike, dtype: DTypeLike = DType.I32, axis: int = 0) -> Any:
    """Positions along `axis`.

    >>> print(iota((2, 3), axis=1))
    [[0 1 2]
     [0 1 2]]
    """
    return Iota(as_dims(dims), DType.of(dtype), axis)()


def full(dims: DimsLike, value: Any, dtype: DTypeLike | None = None) -> Any:
    """`value` everywhere; it may be a tensor that broadcasts to `dims`. Python scalars are f32, i32 or bool."""
    from rlx.ops.shape.movement import broadcast_to

    with same_graph(value):
        filled = convert(value, common_dtype(value) if dtype is None else DType.of(dtype))
        return broadcast_to(filled, as_dims(dims))


def zeros(dims: DimsLike, dtype: DTypeLike = float) -> Any:
    """0 everywhere."""
    return full(dims, 0, dtype)


def ones(dims: DimsLike, dtype: DTypeLike = float) -> Any:
    """1 everywhere."""
    return full(dims, 1, dtype)


def full_like(x: Any, value: Any, dtype: DTypeLike | None = None) -> Any:
    """`value` with the dims of x, and its dtype unless another is given."""
    with same_graph(x):
        return full(dims_of(x), value, dtype_of(x) if dtype is None else dtype)


def zeros_like(x: Any, dtype: DTypeLike | None = None) -> Any:
    """0 with the dims and dtype of x."""
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: DTypeLike | None = None) -> Any:
    """1 with the dims and dtype of x."""
    return full_like(x, 1, dtype)


def arange(
    start: float | Size, stop: float | Size | None = None, step: float = 1, dtype: DTypeLike | None = None
) -> Any:
    """start, start + step, ... below stop, as np.arange; i32 or the default float by itself. Bounds may be symbolic.

    >>> print(arange(2, 10, 3))
    [2 5 8]
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise OpError("arange: the step cannot be 0")
    integral = all(isinstance(v, int | Dim) for v in (start, stop, step))
    chosen = DType.of(dtype) if dtype is not None else (DType.I32 if integral else DType.of(float))
    if chosen.is_int and not integral:
        raise OpError(f"arange: {chosen} needs integer bounds and step, got {start}, {stop}, {step}")
    # Positions are counted and scaled in f32 even when the result has fewer digits.
    wide = chosen.accumulator
    positions = iota((_arange_length(start, stop, step),), wide)
    if not (step == 1 and isinstance(start, int) and start == 0):
        first = dim_value(start, wide) if isinstance(start, Dim) else start
        positions = add(mul(positions, convert(step, wide)), convert(first, wide))
    return convert(positions, chosen)


def _arange_length(start: float | Size, stop: float | Size, step: float) -> Size:
    if isinstance(start, Dim) or isinstance(stop, Dim):
        if not all(isinstance(v, int | Dim) for v in (start, stop, step)):
            raise OpError(f"arange: a symbolic bound needs integers beside it, got {start}, {stop}, {step}")
        distance: Any = stop - start if step > 0 else start - stop
        return ceildiv(dim_max(distance, 0), abs(int(step)))
    return max(0, math.ceil((stop - start) / step))


def linspace(start: Any, stop: Any, num: Size, endpoint: bool = True, dtype: DTypeLike | None = None) -> Any:
    """`num` numbers evenly spaced from start to stop along a new first axis, as np.linspace; stop is met exactly.

    >>> print(linspace(0, 1, 5))
    [0.   0.25 0.5  0.75 1.  ]
    """
    from rlx.ops.shape.movement import broadcast_to, expand_dims

    with same_graph(start, stop):
        found = common_dtype(start, stop)
        found = inexact_dtype(found)
        chosen = found if dtype is None else DType.of(dtype)
        # Python numbers go to the wide dtype at once: rounded to f32 before, they would spoil an f64 result.
        wide = promote(found, chosen).accumulator
        dims = broadcast_dims(dims_of(start), dims_of(stop), "linspace")
        start, stop = (expand_dims(broadcast_to(convert(x, wide), dims), 0) for x in (start, stop))
        positions = iota((num, *(1,) * len(dims)), wide.real)
        last = num - 1 if endpoint else num
        intervals = dim_value(dim_max(last, 1), wide.real)
        values = add(start, mul(positions, div(sub(stop, start), intervals)))
        if endpoint:
            # With a single number there is no end to meet, and no position equals 1.
            values = where(eq(positions, intervals), stop, values)
        return convert(values, chosen)


def _diagonal_offset(rows: Size, columns: Size, k: int) -> tuple[Any, Any]:
    """Row numbers + k as a column and column numbers as a row; comparing them tells the side of diagonal k."""
    row = iota((rows, 1), axis=0)
    return add(row, k) if k else row, iota((1, columns), axis=1)


def eye(rows: Size, columns: Size | None = None, k: int = 0, dtype: DTypeLike = float) -> Any:
    """Ones on diagonal k, zeros elsewhere."""
    row, column = _diagonal_offset(rows, rows if columns is None else columns, k)
    return cast(eq(row, column), dtype)


def tri(rows: Size, columns: Size | None = None, k: int = 0, dtype: DTypeLike = float) -> Any:
    """Ones on and below diagonal k, zeros above."""
    row, column = _diagonal_offset(rows, rows if columns is None else columns, k)
    return cast(ge(row, column), dtype)


def _check_matrix(x: Any, name: str) -> Dims:
    dims = dims_of(x)
    if len(dims) < 2:
        raise OpError(f"{name}: needs an operand of rank 2 or more, got dims {dims}")
    return dims


def tril(x: Any, k: int = 0) -> Any:
    """x with zeros above diagonal k of its last two axes."""
    dims = _check_matrix(x, "tril")
    with same_graph(x):
        return where(tri(dims[-2], dims[-1], k, DType.BOOL), x, convert(0, dtype_of(x)))


def triu(x: Any, k: int = 0) -> Any:
    """x with zeros below diagonal k of its last two axes."""
    dims = _check_matrix(x, "triu")
    with same_graph(x):
        return where(tri(dims[-2], dims[-1], k - 1, DType.BOOL), convert(0, dtype_of(x)), x)
