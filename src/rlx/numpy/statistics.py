"""Averages with weights, order statistics, correlation, histograms, interpolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.ir.tensor import Tensor, is_python_scalar
from rlx.numpy.arguments import (
    Axis,
    array_function,
    axes_of,
    axis_of,
    concrete,
    inexact,
    operand,
    promoted,
    rank_of,
    static_size,
    value,
)
from rlx.numpy.creation import linspace
from rlx.numpy.reductions import max, mean, min, sum
from rlx.numpy.sorting_searching import searchsorted
from rlx.ops.operands import convert, dims_of, dtype_of

__all__ = [
    "average",
    "bincount",
    "corrcoef",
    "cov",
    "digitize",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
    "interp",
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
]


@array_function
def average(
    x: Any, axis: Axis = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False
) -> Any:
    """Σ w·x / Σ w along `axis`; `returned` adds the sum of weights. A vector of weights belongs to one axis."""
    (x,) = inexact(x)
    if weights is None:
        result = mean(x, axis, keepdims=keepdims)
        total = ops.div(ops.full_like(result, 1), 1) * convert(ops.dim_value(_count(x, result)), dtype_of(result))
        return (result, total) if returned else result
    weights, x = inexact(weights, x)
    if dims_of(weights) != dims_of(x):
        if rank_of(weights) != 1 or not isinstance(axis, int):
            raise ShapeError(
                f"average: weights of shape {dims_of(weights)} need the shape of x, {dims_of(x)}, or one axis and a vector"
            )
        place = axis_of(axis, x, "average")
        weights = ops.reshape(weights, (-1, *(1,) * (rank_of(x) - 1 - place)))
        weights = ops.broadcast_to(weights, dims_of(x))
    total = sum(weights, axis, keepdims=keepdims)
    result = ops.div(sum(ops.mul(x, weights), axis, keepdims=keepdims), total)
    return (result, total) if returned else result


def _count(x: Any, result: Any) -> Any:
    from rlx.ir.dims import product

    return product(dims_of(x)) // product(dims_of(result))


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
    rows = ops.sort(ops.reshape(ops.transpose(x, (*rest, *axes)), (*lead, -1)))
    present = ops.logical_not(ops.isnan(rows))
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


@array_function
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each of 0, 1, .. occurs in a vector of integers, or the sum of their weights.

    Inside a program the number of results must be given as `length`; larger and negative numbers do not count then.
    """
    x = value(x)
    if rank_of(x) != 1 or not (dtype_of(x).is_int or dtype_of(x) is DType.BOOL):
        raise ShapeError(f"bincount: needs a vector of integers, got {dtype_of(x)} of shape {dims_of(x)}")
    if length is None:
        known = concrete(x, "bincount", "without length=, x")
        if known.size and known.min() < 0:
            raise OpError(f"bincount: the numbers cannot be negative, got {known.min()}")
        length = 0 if known.size == 0 else int(known.max()) + 1
        length = length if length > minlength else minlength
    ones = ops.ones(dims_of(x), DType.I32)
    amounts = ones if weights is None else inexact(weights)[0]
    # Negative ids count from the end elsewhere; here they are sent out of range like those that are too large.
    ids = ops.where(ops.lt(x, 0), length, convert(x, DType.I32 if dtype_of(x).size_bytes < 8 else DType.I64))
    if length == 0:
        return ops.zeros((0,), dtype_of(amounts))
    return ops.scatter_add(amounts, ids, length, mode="drop")


@array_function
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """Which interval between the edges `bins` each element lies in, i32; the edges rise or fall."""
    x, bins = promoted(x, bins)
    if rank_of(bins) != 1:
        raise ShapeError(f"digitize: needs a vector of edges, got shape {dims_of(bins)}")
    side = "left" if right else "right"
    rising = searchsorted(bins, x, side)
    count = dims_of(bins)[0]
    if count == 0 or count == 1:
        return rising
    total = convert(ops.dim_value(count), DType.I32)
    falling = total - searchsorted(ops.reverse(bins, 0), x, side)
    return ops.where(ops.ge(ops.narrow(bins, 0, count - 1, 1), ops.narrow(bins, 0, 0, 1)), rising, falling)


@array_function
def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges that `histogram` uses: `bins` equal intervals over `range`, or over all of x."""
    if isinstance(bins, str):
        raise OpError(f"histogram: the rule bins={bins!r} would choose a number of bins from values; give a number")
    if rank_of(bins) == 1:
        return value(bins)
    count = static_size(bins, "histogram") if isinstance(bins, int) else int(concrete(bins, "histogram", "bins"))
    (x,) = inexact(x)
    if range is not None:
        low, high = (convert(operand(edge), dtype_of(x)) for edge in range)
    elif dims_of(ops.flatten(x))[0] == 0:
        low, high = (convert(edge, dtype_of(x)) for edge in (0.0, 1.0))
    else:
        low, high = min(x), max(x)
    # One value alone stands in the middle of a range of length 1.
    alone = ops.eq(low, high)
    return linspace(ops.where(alone, low - 0.5, low), ops.where(alone, high + 0.5, high), count + 1)


@array_function
def histogram(x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None) -> tuple[Any, Any]:
    """How many elements lie in each interval, and the edges; the last interval includes its upper edge.

    Counts are i32; with `weights` their sums, with `density` divided by the total and the widths.
    """
    edges = histogram_bin_edges(x, bins, range)
    counts, _ = histogramdd(ops.reshape(value(x), (-1, 1)), [edges], density=density, weights=weights)
    return counts, edges


@array_function
def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Any, Any, Any]:
    """How many points (x, y) lie in each rectangle, and the edges along both axes."""
    both = isinstance(bins, list | tuple) and len(bins) == 2
    per_axis = list(bins) if both else [bins, bins]
    ranges = [None, None] if range is None else list(range)
    edges = [histogram_bin_edges(v, b, r) for v, b, r in zip((x, y), per_axis, ranges)]
    points = ops.stack([ops.flatten(v) for v in promoted(x, y)], axis=-1)
    counts, _ = histogramdd(points, edges, density=density, weights=weights)
    return counts, edges[0], edges[1]


@array_function
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Any, list[Any]]:
    """How many rows of `sample` lie in each cell of a grid, and the edges along each axis."""
    points = value(sample)
    if rank_of(points) != 2:
        raise ShapeError(f"histogramdd: needs points as rows of a matrix, got shape {dims_of(points)}")
    rank = static_size(dims_of(points)[1], "histogramdd")
    columns = [ops.squeeze(ops.narrow(points, 1, i, 1), 1) for i in _numbers(rank)]
    per_axis = list(bins) if isinstance(bins, list | tuple) else [bins] * rank
    ranges = [None] * rank if range is None else list(range)
    edges = [histogram_bin_edges(c, b, r) for c, b, r in zip(columns, per_axis, ranges)]
    sizes = [static_size(dims_of(e)[0], "histogramdd") - 1 for e in edges]
    cells, inside = _cells(columns, edges, sizes)
    amounts = ops.ones(dims_of(cells), DType.I32) if weights is None else ops.flatten(value(weights))
    total = math.prod(sizes)
    counts = ops.scatter_add(amounts, ops.where(inside, cells, total), total, mode="drop")
    counts = ops.reshape(counts, tuple(sizes))
    return (_densities(counts, edges) if density else counts), edges


def _numbers(count: int) -> list[int]:
    return [*np.arange(count).tolist()]


def _cells(columns: list[Any], edges: list[Any], sizes: list[int]) -> tuple[Any, Any]:
    """The number of the cell of each point, and whether the point lies in the grid at all."""
    number: Any = 0
    inside: Any = None
    for column, edge, size in zip(columns, edges, sizes):
        column, edge = promoted(column, edge)
        low, high = ops.narrow(edge, 0, 0, 1), ops.narrow(edge, 0, size, 1)
        place = ops.minimum(ops.searchsorted(edge, column, right=True) - 1, size - 1)
        within = ops.and_(ops.ge(column, low), ops.le(column, high))
        number = ops.add(ops.mul(number, size), place)
        inside = within if inside is None else ops.and_(inside, within)
    return number, inside


def _densities(counts: Any, edges: list[Any]) -> Any:
    counts, *edges = inexact(counts, *edges)
    result = counts / ops.reduce_sum(counts)
    for axis, edge in enumerate(edges):
        size = dims_of(counts)[axis]
        widths = ops.narrow(edge, 0, 1, size) - ops.narrow(edge, 0, 0, size)
        result = result / ops.reshape(widths, (-1, *(1,) * (rank_of(counts) - 1 - axis)))
    return result


@array_function
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """The piecewise linear function through the points (xp, fp), xp rising, at x; constant beyond the ends."""
    (x, xp), (fp,) = inexact(x, xp), inexact(fp)
    if rank_of(xp) != 1 or dims_of(xp) != dims_of(fp):
        raise ShapeError(f"interp: xp and fp must be vectors of one size, got shapes {dims_of(xp)} and {dims_of(fp)}")
    if period is not None:
        x, xp, fp = _periodic(x, xp, fp, period)
    count = dims_of(xp)[0]
    last = convert(ops.dim_value(count), DType.I32) - 1
    upper = ops.clamp(ops.searchsorted(xp, x, right=True), 1, ops.maximum(last, 1))
    lower = upper - 1
    x0, x1 = ops.take(xp, lower, 0, "clip"), ops.take(xp, upper, 0, "clip")
    f0, f1 = ops.take(fp, lower, 0, "clip"), ops.take(fp, upper, 0, "clip")
    width = x1 - x0
    share = ops.where(ops.eq(width, 0), 0, (x - x0) / ops.where(ops.eq(width, 0), 1, width))
    inner = f0 + (f1 - f0) * convert(share, dtype_of(fp))
    first, final = ops.narrow(fp, 0, 0, 1), ops.narrow(fp, 0, count - 1, 1)
    low = ops.reshape(first, ()) if left is None or period is not None else operand(left)
    high = ops.reshape(final, ()) if right is None or period is not None else operand(right)
    start, end = (ops.reshape(ops.narrow(xp, 0, i, 1), ()) for i in (0, count - 1))
    result = ops.where(ops.lt(x, start), low, ops.where(ops.gt(x, end), high, inner))
    return ops.where(ops.isnan(x), math.nan, result)


def _periodic(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """x and xp brought into one period, with one more point on each side."""
    from rlx.numpy.elementwise import remainder

    if not isinstance(period, Tensor) and np.asarray(period) == 0:
        raise OpError("interp: the period cannot be 0")
    length = ops.abs_(convert(operand(period), dtype_of(xp)))
    x, xp = remainder(x, length), remainder(xp, length)
    order = ops.argsort(xp)
    xp, fp = ops.take(xp, order, 0), ops.take(fp, order, 0)
    count = dims_of(xp)[0]
    ends = [(count - 1, -length), (0, length)]
    (before, after), (f_before, f_after) = (
        [ops.narrow(xp, 0, i, 1) + shift for i, shift in ends],
        [ops.narrow(fp, 0, i, 1) for i, _ in ends],
    )
    return x, ops.concat([before, xp, after], 0), ops.concat([f_before, fp, f_after], 0)


