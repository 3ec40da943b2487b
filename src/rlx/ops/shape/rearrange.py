"""Functions that repeat, rotate and cut, built from the ops of `rlx.ops.shape.movement`; the names are NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim, dim_max, dim_min
from rlx.ir.shape import Size, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import dims_of
from rlx.ops.shape.movement import (
    broadcast_to,
    concat,
    expand_dims,
    flatten,
    moveaxis,
    narrow,
    pad,
    reshape,
    reverse,
    slice_,
    squeeze,
)

__all__ = ["diagonal", "pad_mode", "repeat", "roll", "tile"]


def tile(x: Any, reps: int | Sequence[int]) -> Any:
    """`x` laid side by side reps[i] times along axis i; missing axes or repetitions are 1, in front.

    >>> print(tile(np.array([1, 2]), 2))
    [1 2 1 2]
    """
    counts = [reps] if isinstance(reps, int) else list(reps)
    dims = dims_of(x)
    rank = max(len(counts), len(dims))
    counts = [1] * (rank - len(counts)) + counts
    dims = (1,) * (rank - len(dims)) + tuple(dims)
    # Each axis n becomes the pair (reps, n), and the pair one axis again.
    apart = reshape(x, [d for n in dims for d in (1, n)])
    repeated = broadcast_to(apart, [d for n, count in zip(dims, counts) for d in (count, n)])
    return reshape(repeated, [n * count for n, count in zip(dims, counts)])


def repeat(x: Any, repeats: int | Sequence[int] | np.ndarray[Any, Any], axis: int | None = None) -> Any:
    """Every element of `axis` (of the flattened x without one) `repeats` times in a row; counts are known beforehand.

    >>> print(repeat(np.array([1, 2, 3]), [1, 0, 2]))
    [1 3 3]
    """
    if axis is None:
        x, axis = flatten(x), 0
    dims = dims_of(x)
    axis = normalize_axis(axis, len(dims), "repeat")
    if isinstance(repeats, Tensor):
        raise OpError("repeat: the counts decide the size of the result, so they must be known numbers, not a tensor")
    counts = np.asarray(repeats)
    if counts.size == 1:
        count = int(counts.reshape(()))
        once = expand_dims(x, axis + 1)
        wide = broadcast_to(once, (*dims[: axis + 1], count, *dims[axis + 1 :]))
        return reshape(wide, (*dims[:axis], dims[axis] * count, *dims[axis + 1 :]))
    if counts.ndim != 1 or len(counts) != dims[axis]:
        raise ShapeError(f"repeat: needs one count per element of axis {axis} of dims {dims}, got {counts.shape}")
    from rlx.ops.shape.axis_indexing import gather

    return gather(x, np.repeat(np.arange(len(counts), dtype=np.int32), counts), axis)


def roll(x: Any, shift: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Elements moved `shift` places toward the end, those pushed out coming in at the front.

    Without `axis` the flattened x is rolled. Shifts may be tensors.
    """
    if axis is None:
        return reshape(roll(flatten(x), shift, 0), dims_of(x))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = [shift] * len(axes) if isinstance(shift, int | Tensor) or not np.ndim(shift) else list(shift)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: needs one shift per axis, got {len(shifts)} shifts for axes {axes}")
    for amount, a in zip(shifts, axes):
        x = _roll_axis(x, amount, normalize_axis(a, len(dims_of(x)), "roll"))
    return x


def _roll_axis(x: Any, shift: Any, axis: int) -> Any:
    size = dims_of(x)[axis]
    if size == 0 or size == 1:
        return x
    if isinstance(shift, Tensor):
        return _roll_axis_by_tensor(x, shift, axis)
    moved = int(shift) % size
    if moved == 0:
        return x
    return concat([narrow(x, axis, size - moved, moved), narrow(x, axis, 0, size - moved)], axis)


def _roll_axis_by_tensor(x: Any, shift: Tensor, axis: int) -> Any:
    """A window of the doubled x; it begins at -shift modulo the size."""
    from rlx.ops.pointwise.arithmetic import rem
    from rlx.ops.shape.dynamic_slices import dynamic_slice_in_dim

    size = dims_of(x)[axis]
    if isinstance(size, Dim):
        raise ShapeError(f"roll: a tensor as shift needs a fixed size, but axis {axis} has the symbolic size {size}")
    start = rem(size - rem(shift, size), size)
    return dynamic_slice_in_dim(concat([x, x], axis), start, size, axis)


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Elements x[.., i, i + offset] of two axes, which become one axis at the end."""
    dims = dims_of(x)
    a, b = normalize_axis(axis1, len(dims), "diagonal"), normalize_axis(axis2, len(dims), "diagonal")
    if a == b:
        raise ShapeError(f"diagonal: needs two different axes, got {axis1} and {axis2} of dims {dims}")
    x = moveaxis(x, (a, b), (-2, -1))
    *lead, rows, columns = dims_of(x)
    first_row, first_column = max(-offset, 0), max(offset, 0)
    length = dim_max(dim_min(rows - first_row, columns - first_column), 0)
    if isinstance(rows, int) and isinstance(columns, int):
        # So many elements apart in the flattened matrix.
        start = first_row * columns + first_column if length else 0
        line, step = reshape(x, (*lead, rows * columns)), columns + 1
        ends = start + (length - 1) * step + 1 if length else start
        return slice_(line, (*(0,) * len(lead), start), (*lead, ends), (*(1,) * len(lead), step))
    square = narrow(narrow(x, -2, dim_min(first_row, rows), length), -1, dim_min(first_column, columns), length)
    # With one more column per row the flattened diagonal stands in the first column.
    line = reshape(square, (*lead, length * length))
    filled = pad(line, 0, [0] * len(lead) + [0], [*[0] * len(lead), length])
    return squeeze(narrow(reshape(filled, (*lead, length, length + 1)), -1, 0, 1), -1)


def pad_mode(x: Any, pad_width: Any, mode: str = "constant", value: Any = 0) -> Any:
    """np.pad: `pad_width` elements before and after each axis, given as n, (before, after), or one pair per axis.

    The modes are constant (`value`), edge, reflect, symmetric and wrap.
    """
    dims = dims_of(x)
    widths = _pad_widths(pad_width, len(dims))
    if mode == "constant":
        return pad(x, value, [w[0] for w in widths], [w[1] for w in widths])
    if mode not in _SIDES:
        raise OpError(f"pad: mode must be constant, {', '.join(_SIDES)}, got {mode!r}")
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = _pad_axis(x, axis, before, after, mode)
    return x


def _pad_widths(pad_width: Any, rank: int) -> list[tuple[int, int]]:
    widths = np.asarray(pad_width)
    if widths.dtype.kind not in "iu" or widths.size not in (1, 2, 2 * rank) or (widths < 0).any():
        raise ShapeError(f"pad: widths must be n, (before, after) or {rank} such pairs, not negative, got {pad_width}")
    return [(int(a), int(b)) for a, b in np.broadcast_to(widths, (rank, 2))]


def _edge(x: Any, axis: int, count: int, size: Size, front: bool) -> Any:
    one = narrow(x, axis, 0 if front else size - 1, 1)
    return broadcast_to(one, [count if i == axis else d for i, d in enumerate(dims_of(x))])


def _reflect(x: Any, axis: int, count: int, size: Size, front: bool) -> Any:
    return reverse(narrow(x, axis, 1 if front else size - 1 - count, count), axis)


def _symmetric(x: Any, axis: int, count: int, size: Size, front: bool) -> Any:
    return reverse(narrow(x, axis, 0 if front else size - count, count), axis)


def _wrap(x: Any, axis: int, count: int, size: Size, front: bool) -> Any:
    return narrow(x, axis, size - count if front else 0, count)


# What a mode adds on one side of an axis, as long as x itself holds enough elements.
_SIDES: dict[str, Callable[[Any, int, int, Size, bool], Any]] = {
    "edge": _edge,
    "reflect": _reflect,
    "symmetric": _symmetric,
    "wrap": _wrap,
}


def _pad_axis(x: Any, axis: int, before: int, after: int, mode: str) -> Any:
    size = dims_of(x)[axis]
    enough = size - 1 if mode == "reflect" else size
    if isinstance(size, int) and mode != "edge" and max(before, after) > enough:
        # The pattern repeats itself; its positions are known numbers.
        from rlx.ops.shape.axis_indexing import gather

        if size == 0:
            raise ShapeError(f"pad: mode {mode!r} has nothing to repeat on axis {axis}, which is empty")
        return gather(x, np.pad(np.arange(size, dtype=np.int32), (before, after), mode=mode), axis)  # type: ignore[call-overload]
    side = _SIDES[mode]
    parts = [side(x, axis, before, size, True)] if before else []
    parts.append(x)
    if after:
        parts.append(side(x, axis, after, size, False))
    return concat(parts, axis)
