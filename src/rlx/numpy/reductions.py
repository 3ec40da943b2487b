"""Reductions along axes, and running sums. `where=` chooses the elements that count, `initial=` joins a start value.

Integers narrower than the default ones are summed and multiplied in int32 or uint32.
"""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.errors import ShapeError
from rlx.ir.dims import product
from rlx.ir.dtype import DType, DTypeLike
from rlx.numpy.arguments import Axis, array_function, axes_of, axis_of, convert, inexact, operand, rank_of, value
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.ops.reduction.reductions import ReduceOp, identity_of

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "max",
    "mean",
    "min",
    "prod",
    "ptp",
    "std",
    "sum",
    "var",
]


def summing_dtype(dtype: DType) -> DType:
    """The type in which sums and products of `dtype` are returned."""
    if dtype is DType.BOOL:
        return DType.I32
    if dtype.is_int and dtype.size_bytes < 4:
        return DType.I32 if dtype.is_signed else DType.U32
    return dtype


def _summand(x: Any, dtype: DTypeLike | None) -> Any:
    x = value(x)
    return convert(x, summing_dtype(dtype_of(x)) if dtype is None else DType.of(dtype))


def _chosen(x: Any, where: Any, kind: ReduceOp) -> Any:
    """`x` with what does not count replaced by a value that changes nothing."""
    return x if where is None else ops.where(operand(where), x, convert(identity_of(kind, dtype_of(x)), dtype_of(x)))


@array_function
def sum(
    x: Any,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    *,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """Σ x along `axis`; all axes by default."""
    x = _chosen(_summand(x, dtype), where, ReduceOp.Sum)
    result = ops.reduce_sum(x, axes_of(axis, rank_of(x), "sum"), keepdims)
    return result if initial is None else ops.add(result, convert(operand(initial), dtype_of(x)))


@array_function
def prod(
    x: Any,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    *,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """Π x along `axis`; all axes by default."""
    x = _chosen(_summand(x, dtype), where, ReduceOp.Prod)
    result = ops.reduce_prod(x, axes_of(axis, rank_of(x), "prod"), keepdims)
    return result if initial is None else ops.mul(result, convert(operand(initial), dtype_of(x)))


def _extreme(kind: ReduceOp, name: str, x: Any, axis: Axis, keepdims: bool, initial: Any, where: Any) -> Any:
    x = value(x)
    axes = axes_of(axis, rank_of(x), name)
    if initial is None and product([dims_of(x)[a] for a in axes]) == 0:
        raise ShapeError(f"{name}: nothing to choose from along axis {axis} of shape {dims_of(x)}; give initial=")
    if initial is None and where is not None:
        raise ShapeError(f"{name}: where= may leave nothing to choose from, so initial= is needed with it")
    result = ops.reduce(_chosen(x, where, kind), kind, axes, keepdims)
    join = ops.maximum if kind is ReduceOp.Max else ops.minimum
    return result if initial is None else join(result, convert(operand(initial), dtype_of(x)))


@array_function
def max(x: Any, /, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Any:
    """The largest element along `axis`; NaN where there is one."""
    return _extreme(ReduceOp.Max, "max", x, axis, keepdims, initial, where)


@array_function
def min(x: Any, /, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Any:
    """The smallest element along `axis`; NaN where there is one."""
    return _extreme(ReduceOp.Min, "min", x, axis, keepdims, initial, where)


amax, amin = max, min


@array_function
def ptp(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """The largest minus the smallest element."""
    return ops.sub(max(x, axis, keepdims=keepdims), min(x, axis, keepdims=keepdims))


@array_function
def any(x: Any, /, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Any:
    """Whether any element along `axis` is non-zero."""
    x = ops.ne(value(x), 0)
    return ops.reduce_any(_chosen(x, where, ReduceOp.Any), axes_of(axis, rank_of(x), "any"), keepdims)


@array_function
def all(x: Any, /, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Any:
    """Whether all elements along `axis` are non-zero."""
    x = ops.ne(value(x), 0)
    return ops.reduce_all(_chosen(x, where, ReduceOp.All), axes_of(axis, rank_of(x), "all"), keepdims)


@array_function
def count_nonzero(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """How many elements along `axis` are not 0, as i32."""
    return sum(ops.ne(value(x), 0), axis, keepdims=keepdims)


@array_function
def mean(
    x: Any, /, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False, where: Any = None
) -> Any:
    """The arithmetic mean along `axis`; NaN of nothing."""
    (x,) = inexact(x if dtype is None else convert(operand(x), DType.of(dtype)))
    axes = axes_of(axis, rank_of(x), "mean")
    if where is None:
        return ops.mean(x, axes, keepdims)
    return ops.div(sum(x, axes, keepdims=keepdims, where=where), _count(x, axes, keepdims, where))


def _count(x: Any, axes: tuple[int, ...], keepdims: bool, where: Any) -> Any:
    """How many elements count along `axes`, in the real dtype of `x`."""
    mask = ops.broadcast_to(ops.ne(operand(where), 0), dims_of(x))
    return convert(ops.reduce_sum(mask, axes, keepdims), dtype_of(x).real)


@array_function
def var(
    x: Any,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    *,
    ddof: float = 0,
    correction: float | None = None,
    keepdims: bool = False,
    where: Any = None,
) -> Any:
    """Σ|x - mean|² / (n - correction) along `axis`; `ddof` is NumPy's older name of the correction."""
    (x,) = inexact(x if dtype is None else convert(operand(x), DType.of(dtype)))
    axes = axes_of(axis, rank_of(x), "var")
    correction = ddof if correction is None else correction
    if where is None:
        return ops.variance(x, axes, correction, keepdims)
    centred = ops.sub(x, mean(x, axes, keepdims=True, where=where))
    squares = ops.complex_norm_sq(centred) if dtype_of(x).is_complex else ops.mul(centred, centred)
    count = ops.maximum(ops.sub(_count(x, axes, keepdims, where), correction), 0)
    return ops.div(sum(squares, axes, keepdims=keepdims, where=where), count)


@array_function
def std(
    x: Any,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    *,
    ddof: float = 0,
    correction: float | None = None,
    keepdims: bool = False,
    where: Any = None,
) -> Any:
    """The square root of `var`."""
    return ops.sqrt(var(x, axis, dtype, ddof=ddof, correction=correction, keepdims=keepdims, where=where))


@array_function
def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Where the first largest element is along `axis`, or in the flattened x; i32. NaN counts as largest."""
    return ops.argmax(value(x), axis, keepdims)


@array_function
def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Where the first smallest element is along `axis`, or in the flattened x; i32. NaN counts as smallest."""
    return ops.argmin(value(x), axis, keepdims)


@array_function
def cumsum(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> Any:
    """Running sums along `axis`, or of the flattened x."""
    x = _summand(x, dtype)
    return ops.cumsum(x, axis) if axis is not None else ops.cumsum(ops.flatten(x), 0)


@array_function
def cumprod(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> Any:
    """Running products along `axis`, or of the flattened x."""
    x = _summand(x, dtype)
    return ops.cumprod(x, axis) if axis is not None else ops.cumprod(ops.flatten(x), 0)


def _running(name: str, x: Any, axis: int | None, dtype: DTypeLike | None, include_initial: bool, initial: int) -> Any:
    x = _summand(x, dtype)
    if axis is None and rank_of(x) != 1:
        raise ShapeError(f"{name}: needs axis= for an array with {rank_of(x)} axes")
    axis = axis_of(0 if axis is None else axis, x, name)
    result = (ops.cumsum if initial == 0 else ops.cumprod)(x, axis)
    if not include_initial:
        return result
    return ops.pad(result, initial, low=[int(i == axis) for i in range(rank_of(x))])


@array_function
def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Any:
    """Running sums along `axis`, which a vector need not name; with `include_initial` they begin with 0."""
    return _running("cumulative_sum", x, axis, dtype, include_initial, 0)


@array_function
def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Any:
    """Running products along `axis`, which a vector need not name; with `include_initial` they begin with 1."""
    return _running("cumulative_prod", x, axis, dtype, include_initial, 1)
