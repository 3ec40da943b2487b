"""Functions of the user's own, applied along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx import ops
from rlx.numpy.arguments import Axis, array_function, axis_of, dims_from, rank_of, value
from rlx.ops.define.operands import dims_of

__all__ = ["apply_along_axis", "apply_over_axes"]


@array_function
def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """func1d applied to every vector along `axis`; the axes of its result stand in the place of that axis."""
    from rlx.autodiff.vectorize import vmap

    x = value(arr)
    axis = axis_of(axis, x, "apply_along_axis")
    rows = ops.moveaxis(x, axis, -1)
    *lead, length = dims_of(rows)
    results = vmap(lambda row: func1d(row, *args, **kwargs))(ops.reshape(rows, (-1, length)))
    new = dims_of(results)[1:]
    shaped = ops.reshape(results, (*lead, *new))
    return ops.moveaxis(shaped, tuple(range(len(lead), rank_of(shaped))), tuple(range(axis, axis + len(new))))


@array_function
def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Axis) -> Any:
    """func(x, axis) for one axis after the other, keeping their places."""
    x = value(a)
    for axis in dims_from(axes if axes is not None else tuple(range(rank_of(x)))):
        axis = axis_of(axis, x, "apply_over_axes")
        result = value(func(x, axis))
        x = ops.expand_dims(result, axis) if rank_of(result) == rank_of(x) - 1 else result
    return x
