"""Reductions that leave NaN out. Quantiles that do so are in `rlx.numpy.statistics`."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.ir.dtype import DTypeLike
from rlx.numpy.arguments import Axis, array_function, convert, value
from rlx.numpy.reductions import argmax, argmin, cumprod, cumsum, max, mean, min, prod, sum, var
from rlx.ops.define.operands import dtype_of

__all__ = [
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def _filled(x: Any, fill: float) -> Any:
    """x with `fill` in place of NaN; integers have none."""
    x = value(x)
    return ops.where(ops.isnan(x), convert(fill, dtype_of(x)), x) if dtype_of(x).is_inexact else x


def _present(x: Any) -> Any:
    return ops.logical_not(ops.isnan(value(x)))


@array_function
def nansum(x: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Any:
    """`sum` with NaN as 0."""
    return sum(_filled(x, 0), axis, dtype, keepdims=keepdims)


@array_function
def nanprod(x: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Any:
    """`prod` with NaN as 1."""
    return prod(_filled(x, 1), axis, dtype, keepdims=keepdims)


@array_function
def nancumsum(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> Any:
    """`cumsum` with NaN as 0."""
    return cumsum(_filled(x, 0), axis, dtype)


@array_function
def nancumprod(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> Any:
    """`cumprod` with NaN as 1."""
    return cumprod(_filled(x, 1), axis, dtype)


def _nan_where_all(result: Any, x: Any, axis: Axis, keepdims: bool) -> Any:
    if not dtype_of(result).is_inexact:
        return result
    count = sum(_present(x), axis, keepdims=keepdims)
    return ops.where(ops.gt(count, 0), result, convert(math.nan, dtype_of(result)))


@array_function
def nanmax(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """The largest element that is not NaN; NaN where all are."""
    return _nan_where_all(max(_filled(x, -math.inf), axis, keepdims=keepdims), x, axis, keepdims)


@array_function
def nanmin(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """The smallest element that is not NaN; NaN where all are."""
    return _nan_where_all(min(_filled(x, math.inf), axis, keepdims=keepdims), x, axis, keepdims)


@array_function
def nanargmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Where the largest element is that is not NaN; 0 where all are."""
    return argmax(_filled(x, -math.inf), axis, keepdims=keepdims)


@array_function
def nanargmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Where the smallest element is that is not NaN; 0 where all are."""
    return argmin(_filled(x, math.inf), axis, keepdims=keepdims)


@array_function
def nanmean(x: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Any:
    """`mean` of what is not NaN."""
    return mean(_filled(x, 0), axis, dtype, keepdims=keepdims, where=_present(x))


@array_function
def nanvar(
    x: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, ddof: float = 0, keepdims: bool = False
) -> Any:
    """`var` of what is not NaN; NaN where too few are."""
    result = var(_filled(x, 0), axis, dtype, ddof=ddof, keepdims=keepdims, where=_present(x))
    enough = ops.gt(sum(_present(x), axis, keepdims=keepdims), ddof)
    return ops.where(enough, result, convert(math.nan, dtype_of(result)))


@array_function
def nanstd(
    x: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, ddof: float = 0, keepdims: bool = False
) -> Any:
    """The square root of `nanvar`."""
    return ops.sqrt(nanvar(x, axis, dtype, ddof=ddof, keepdims=keepdims))
