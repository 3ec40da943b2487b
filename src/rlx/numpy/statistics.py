"""Averages with weights, order statistics, correlation."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.ir.tensor import is_python_scalar
from rlx.numpy.arguments import (
    Axis,
    array_function,
    axes_of,
    axis_of,
    convert,
    inexact,
    rank_of,
    value,
)
from rlx.numpy.reductions import mean, sum
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "average",
    "corrcoef",
    "cov",
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
]


@array_function
def average(x: Any, axis: Axis = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """Σ w·x / Σ w along `axis`; `returned` adds the sum of weights. A vector of weights belongs to one axis."""
    (x,) = inexact(x)
    if weights is None:
        total = sum(ops.ones_like(x), axis, keepdims=keepdims)
        result = mean(x, axis, keepdims=keepdims)
        return (result, total) if returned else result
    weights, x = inexact(weights, x)
    if rank_of(weights) == 1 and isinstance(axis, int):
        behind = rank_of(x) - 1 - axis_of(axis, x, "average")
        weights = ops.reshape(weights, (-1, *(1,) * behind))
    elif dims_of(weights) != dims_of(x):
        raise ShapeError(
            f"average: weights must have the shape of x, {dims_of(x)}, or be a vector along one axis; "
            f"got shape {dims_of(weights)} and axis={axis}"
        )
    total = sum(ops.broadcast_to(weights, dims_of(x)), axis, keepdims=keepdims)
    result = ops.div(sum(ops.mul(x, weights), axis, keepdims=keepdims), total)
    return (result, total) if returned else result


# Hyndman and Fan's continuous definitions of a quantile: the place of q among n values is
# n·q + alpha + q·(1 - alpha - beta) - 1. "linear" is the one that everybody uses.
_CONTINUOUS = {
    "linear": (1.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
    "interpolated_inverted_cdf": (0.0, 1.0),
}
_DISCRETE = ("lower", "higher", "midpoint", "nearest")


def _quantile(x: Any, q: Any, axis: Axis, method: str, keepdims: bool, ignore_nan: bool, function: str) -> Any:
    if method not in _CONTINUOUS and method not in _DISCRETE:
        raise OpError(f"{function}: method must be one of {', '.join((*_CONTINUOUS, *_DISCRETE))}, got {method!r}")
    x, q = inexact(x, q)
    if rank_of(q) > 1:
        raise ShapeError(f"{function}: q must be a number or a vector, got shape {dims_of(q)}")
    axes = axes_of(axis, rank_of(x), function)
    rest = tuple(i for i in range(rank_of(x)) if i not in axes)
    lead = tuple(dims_of(x)[i] for i in rest)
    taken = ops.transpose(x, (*rest, *axes))
    given = taken if len(axes) == 1 else ops.reshape(taken, (*lead, -1))
    rows, present = ops.sort(given), ops.logical_not(ops.isnan(given))
    wide = dtype_of(rows).accumulator
    # NaN stands last: without it there are `count` values, and with it every quantile is NaN unless it is ignored.
    count = convert(ops.reduce_sum(present, -1, True), wide)
    place = _place(convert(q, wide), count, method)
    low = ops.floor(place)
    below, above = (_at(rows, ops.minimum(p, count - 1)) for p in (low, ops.ceil(place)))
    share = convert(_share(place - low, method), dtype_of(rows))
    result = ops.where(ops.eq(share, 0), below, below + (above - below) * share)
    if not ignore_nan:
        result = ops.where(ops.reduce_all(present, -1, True), result, math.nan)
    result = ops.where(ops.gt(count, 0), result, math.nan)
    result = ops.moveaxis(result, -1, 0) if rank_of(q) else ops.squeeze(result, -1)
    if not keepdims:
        return result
    kept = tuple(1 if i in axes else d for i, d in enumerate(dims_of(x)))
    return ops.reshape(result, (*dims_of(q), *kept))


def _place(q: Any, count: Any, method: str) -> Any:
    """Where quantile q lies among `count` ordered values, [.., number of quantiles]."""
    alpha, beta = _CONTINUOUS.get(method, (1.0, 1.0))
    place = count * q + (alpha - 1) + q * (1 - alpha - beta)
    place = ops.maximum(ops.minimum(place, count - 1), 0)
    return ops.round_(place) if method == "nearest" else place


def _share(fraction: Any, method: str) -> Any:
    """How much of the upper neighbour is taken."""
    if method == "lower":
        return fraction * 0
    if method == "higher":
        return ops.ceil(fraction)
    return ops.ceil(fraction) * 0.5 if method == "midpoint" else fraction


def _at(rows: Any, place: Any) -> Any:
    places = convert(ops.maximum(place, 0), DType.I32)
    lead = dims_of(rows)[:-1]
    return ops.take_along_axis(rows, ops.broadcast_to(places, (*lead, dims_of(places)[-1])), -1, mode="clip")


@array_function
def quantile(x: Any, q: Any, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """The value below which a share q of the elements lies; a vector of q adds a first axis. NaN where there is one."""
    return _quantile(x, q, axis, method, keepdims, False, "quantile")


@array_function
def nanquantile(x: Any, q: Any, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """`quantile` of what is not NaN."""
    return _quantile(x, q, axis, method, keepdims, True, "nanquantile")


def _from_percent(q: Any) -> Any:
    # A Python number stays one, and so takes the dtype of x later.
    return q / 100 if is_python_scalar(q) else inexact(q)[0] / 100


@array_function
def percentile(x: Any, q: Any, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """`quantile` with q in percent."""
    return _quantile(x, _from_percent(q), axis, method, keepdims, False, "percentile")


@array_function
def nanpercentile(x: Any, q: Any, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """`percentile` of what is not NaN."""
    return _quantile(x, _from_percent(q), axis, method, keepdims, True, "nanpercentile")


@array_function
def median(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """The middle element, or the mean of the two middle ones."""
    return _quantile(x, 0.5, axis, "linear", keepdims, False, "median")


@array_function
def nanmedian(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """`median` of what is not NaN."""
    return _quantile(x, 0.5, axis, "linear", keepdims, True, "nanmedian")


@array_function
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariance matrix of variables in rows (or columns); `fweights` are repetitions, `aweights` importances."""
    (x,) = inexact(m)
    x = _variables(x, rowvar)
    if y is not None:
        x, second = inexact(x, _variables(inexact(y)[0], rowvar))
        x = ops.concat([x, second], 0)
    correction = (0 if bias else 1) if ddof is None else ddof
    weights = None
    for each in (fweights, aweights):
        if each is not None:
            each = convert(value(each), dtype_of(x))
            weights = each if weights is None else ops.mul(weights, each)
    if weights is None:
        count: Any = convert(ops.dim_value(dims_of(x)[1]), dtype_of(x))
        centred = x - ops.mean(x, 1, True)
        scaled, divisor = centred, count - correction
    else:
        total = ops.reduce_sum(weights)
        centred = x - ops.reduce_sum(ops.mul(x, weights), 1, True) / total
        scaled = ops.mul(centred, weights)
        lost = ops.reduce_sum(weights * convert(value(aweights), dtype_of(x))) / total if aweights is not None else 1
        divisor = total - correction * lost
    product = ops.matmul(scaled, ops.conjugate(ops.swapaxes(centred, 0, 1)))
    return ops.squeeze(ops.div(product, convert(divisor, dtype_of(product))))


def _variables(x: Any, rowvar: bool) -> Any:
    if rank_of(x) > 2:
        raise ShapeError(f"cov: needs at most two axes, got shape {dims_of(x)}")
    if rank_of(x) < 2:
        return ops.reshape(x, (1, -1))
    return x if rowvar or dims_of(x)[0] == 1 else ops.swapaxes(x, 0, 1)


@array_function
def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The correlation coefficients of variables in rows (or columns)."""
    c = cov(x, y, rowvar)
    if rank_of(c) == 0:
        return ops.div(c, c)
    deviation = ops.sqrt(ops.real(ops.diagonal(c)))
    scale = ops.mul(ops.expand_dims(deviation, 0), ops.expand_dims(deviation, 1))
    result = ops.div(c, convert(scale, dtype_of(c)))
    if dtype_of(c).is_complex:
        return ops.complex_(ops.clamp(ops.real(result), -1, 1), ops.clamp(ops.imag(result), -1, 1))
    return ops.clamp(result, -1, 1)
