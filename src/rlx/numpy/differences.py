"""Differences of neighbours, and derivatives and integrals built from them."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.errors import ShapeError
from rlx.ir.dtype import DType
from rlx.ir.shape import Size
from rlx.numpy.arguments import Axis, array_function, axis_of, convert, dims_from, inexact, operand, rank_of, value
from rlx.numpy.elementwise import remainder
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["diff", "ediff1d", "gradient", "trapezoid", "unwrap"]


@array_function
def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along `axis`, n times; `prepend` and `append` are joined to x first."""
    if n < 0:
        raise ShapeError(f"diff: n cannot be negative, got {n}")
    x = value(x)
    axis = axis_of(axis, x, "diff")
    ends = [None if end is None else _as_part(operand(end), x, axis) for end in (prepend, append)]
    parts = [part for part in (ends[0], x, ends[1]) if part is not None]
    x = ops.concat(parts, axis) if len(parts) > 1 else x
    subtract = ops.ne if dtype_of(x) is DType.BOOL else ops.sub
    for _ in range(n):
        x = subtract(*_neighbours(x, axis))
    return x


def _neighbours(x: Any, axis: int) -> tuple[Any, Any]:
    """All elements but the first along `axis`, and all but the last; nothing has no neighbours."""
    size = dims_of(x)[axis]
    if size == 0:
        return x, x
    return ops.narrow(x, axis, 1, size - 1), ops.narrow(x, axis, 0, size - 1)


def _as_part(end: Any, x: Any, axis: int) -> Any:
    """A scalar end as one element along `axis`."""
    if rank_of(end):
        return end
    return ops.broadcast_to(value(end), tuple(1 if i == axis else d for i, d in enumerate(dims_of(x))))


@array_function
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Differences of neighbours of the flattened x, between `to_begin` and `to_end`."""
    middle = diff(ops.flatten(value(x)))
    ends = [None if end is None else ops.flatten(convert(value(end), dtype_of(middle))) for end in (to_begin, to_end)]
    parts = [part for part in (ends[0], middle, ends[1]) if part is not None]
    return ops.concat(parts, 0)


@array_function
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of y along `axis` by the trapezoidal rule, at positions x or with spacing dx."""
    (y,) = inexact(y)
    axis = axis_of(axis, y, "trapezoid")
    width = operand(dx)
    if x is not None:
        width = diff(x) if rank_of(x) == 1 else diff(x, axis=axis)
        if rank_of(x) == 1:
            width = ops.reshape(width, (-1, *(1,) * (rank_of(y) - 1 - axis)))
    pairs = ops.add(*_neighbours(y, axis))
    return ops.reduce_sum(ops.mul(ops.mul(pairs, 0.5), width), axis)


@array_function
def gradient(f: Any, *varargs: Any, axis: Axis = None, edge_order: int = 1) -> Any:
    """Central differences inside and one-sided ones at the ends, along each axis.

    `varargs`: one spacing for all axes, or one per axis; each a number or the coordinates along that axis.
    """
    (f,) = inexact(f)
    axes = [axis_of(a, f, "gradient") for a in dims_from(tuple(range(rank_of(f))) if axis is None else axis)]
    spacings = list(varargs) or [1.0]
    if len(spacings) == 1:
        spacings *= len(axes)
    if len(spacings) != len(axes) or edge_order not in (1, 2):
        raise ShapeError(
            f"gradient: needs one spacing or one for each of the axes {axes}, and edge_order 1 or 2; "
            f"got {len(varargs)} spacings and edge_order={edge_order}"
        )
    results = [_gradient_along(f, operand(h), a, edge_order) for h, a in zip(spacings, axes)]
    return results[0] if len(results) == 1 else tuple(results)


def _gradient_along(f: Any, spacing: Any, axis: int, edge_order: int) -> Any:
    size = dims_of(f)[axis]
    if isinstance(size, int) and size < edge_order + 1:
        raise ShapeError(f"gradient: edge_order={edge_order} needs at least {edge_order + 1} elements, got {size}")
    f = ops.moveaxis(f, axis, -1)
    steps = diff(spacing) if rank_of(spacing) else ops.broadcast_to(convert(spacing, dtype_of(f)), (size - 1,))

    def points(start: Size, count: Size) -> Any:
        return ops.narrow(f, -1, start, count)

    def distances(start: Size, count: Size) -> Any:
        return ops.narrow(steps, 0, start, count)

    before, here, after = (points(i, size - 2) for i in range(3))
    h0, h1 = distances(0, size - 2), distances(1, size - 2)
    # The slope of the parabola through three neighbours.
    slope = (after - here) * (h0 / h1) + (here - before) * (h1 / h0)
    middle = slope / (h0 + h1)
    first = _end_slope([points(i, 1) for i in range(edge_order + 1)], [distances(i, 1) for i in range(edge_order)])
    last = _end_slope(
        [points(size - 1 - i, 1) for i in range(edge_order + 1)],
        [-distances(size - 2 - i, 1) for i in range(edge_order)],
    )
    return ops.moveaxis(ops.concat([first, middle, last], -1), -1, axis)


def _end_slope(values: list[Any], steps: list[Any]) -> Any:
    """The slope at the first of two or three points, of the line or parabola through them."""
    if len(steps) == 1:
        return (values[1] - values[0]) / steps[0]
    h0, h1 = steps
    near, far = (values[1] - values[0]) / h0, (values[2] - values[1]) / h1
    return near - (far - near) * (h0 / (h0 + h1))


@array_function
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: float = 2 * math.pi) -> Any:
    """p with multiples of the period added, so that neighbours along `axis` differ by at most half a period."""
    (p,) = inexact(p)
    axis = axis_of(axis, p, "unwrap")
    steps = diff(p, axis=axis)
    half = period / 2
    wrapped = remainder(steps + half, period) - half
    # Half a period down stays half a period up when the step was up.
    wrapped = ops.where(ops.and_(ops.eq(wrapped, -half), ops.gt(steps, 0)), half, wrapped)
    limit = half if discont is None else max(discont, half)
    change = ops.where(ops.lt(ops.abs_(steps), limit), 0, wrapped - steps)
    total = ops.pad(ops.cumsum(change, axis), 0, low=[int(i == axis) for i in range(rank_of(p))])
    return p + total
