"""Counting by value or interval, and piecewise linear interpolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.tensor import Tensor
from rlx.numpy.arguments import (
    array_function,
    concrete,
    convert,
    inexact,
    operand,
    promoted,
    rank_of,
    static_size,
    value,
)
from rlx.numpy.creation import linspace
from rlx.numpy.elementwise import remainder
from rlx.numpy.joining import unstack
from rlx.numpy.reductions import max, min
from rlx.numpy.sorting_searching import searchsorted
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "bincount",
    "digitize",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
    "interp",
]


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
        length = int(np.max(known, initial=minlength - 1)) + 1
    amounts = ops.ones(dims_of(x), DType.I32) if weights is None else inexact(weights)[0]
    # Negative ids count from the end elsewhere; here they are sent out of range like those that are too large.
    ids = ops.where(ops.lt(x, 0), length, convert(x, DType.I32 if dtype_of(x).size_bytes < 8 else DType.I64))
    if length == 0:
        return ops.zeros((0,), dtype_of(amounts))
    return ops.scatter_add(amounts, ids, length, mode="drop")


@array_function
def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """Which interval between the edges `bins` each element lies in, i32; the edges rise or fall.

    `method` is JAX's hint how to search, and changes nothing.
    """
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
    elif product(dims_of(x)) == 0:
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
    return _counts([ops.flatten(value(x))], [edges], density, weights, DType.I32), edges


@array_function
def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Any, Any, Any]:
    """How many points (x, y) lie in each rectangle, as floats, and the edges along both axes."""
    both = isinstance(bins, list | tuple) and len(bins) == 2
    columns = [ops.flatten(v) for v in promoted(x, y)]
    edges = _edges(columns, bins if both else [bins, bins], range)
    return _counts(columns, edges, density, weights, dtype_of(edges[0])), edges[0], edges[1]


@array_function
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Any, list[Any]]:
    """How many rows of `sample` lie in each cell of a grid, as floats, and the edges along each axis."""
    points = value(sample)
    if rank_of(points) != 2:
        raise ShapeError(f"histogramdd: needs points as rows of a matrix, got shape {dims_of(points)}")
    columns = list(unstack(points, axis=1))
    edges = _edges(columns, bins if isinstance(bins, list | tuple) else [bins] * len(columns), range)
    return _counts(columns, edges, density, weights, dtype_of(edges[0])), edges


def _edges(columns: list[Any], bins: Any, ranges: Any) -> list[Any]:
    if len(bins) != len(columns) or (ranges is not None and len(ranges) != len(columns)):
        raise ShapeError(f"histogram: needs bins and ranges for {len(columns)} axes, got {bins} and {ranges}")
    ranges = [None] * len(columns) if ranges is None else ranges
    return [histogram_bin_edges(*one) for one in zip(columns, bins, ranges)]


def _counts(columns: list[Any], edges: list[Any], density: bool, weights: Any, dtype: DType) -> Any:
    """The number of points, or the sum of their weights, in each cell between the edges."""
    sizes = [static_size(dims_of(e)[0], "histogram") - 1 for e in edges]
    cells, inside = _cells(columns, edges, sizes)
    amounts = ops.ones(dims_of(cells), dtype) if weights is None else ops.flatten(value(weights))
    total = math.prod(sizes)
    row = ops.scatter_add(amounts, ops.where(inside, cells, total), total, mode="drop")
    counts = ops.reshape(row, tuple(sizes))
    return _densities(counts, edges) if density else counts


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
