"""Functions that join arrays and take them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx import ops
from rlx.errors import ShapeError
from rlx.ir.dtype import DType, DTypeLike
from rlx.numpy.arguments import (
    array_function,
    axis_of,
    concrete,
    convert,
    operands,
    promoted,
    rank_of,
    static_size,
    value,
)
from rlx.numpy.manipulation import atleast_1d, atleast_2d, atleast_3d
from rlx.ops.define.operands import dims_of

__all__ = [
    "append",
    "array_split",
    "block",
    "column_stack",
    "concat",
    "concatenate",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "row_stack",
    "split",
    "stack",
    "unstack",
    "vsplit",
    "vstack",
]


def _parts(arrays: Any, function: str) -> list[Any]:
    """The arrays to join; an array instead of a list is taken apart along its first axis."""
    if not isinstance(arrays, list | tuple):
        arrays = unstack(arrays)
    if not arrays:
        raise ShapeError(f"{function}: needs at least one array")
    return operands(*arrays)


@array_function
def concat(arrays: Any, /, *, axis: int | None = 0, dtype: DTypeLike | None = None) -> Any:
    """The arrays joined along an existing axis, in their common dtype; axis=None joins them flattened."""
    parts = _parts(arrays, "concat")
    if dtype is not None:
        parts = [convert(x, DType.of(dtype)) for x in parts]
    if axis is None:
        parts, axis = [ops.flatten(x) for x in promoted(*parts)], 0
    if any(rank_of(x) == 0 for x in parts):
        raise ShapeError("concat: scalars have no axis to be joined along; use stack")
    return ops.concat(parts, axis)


@array_function
def concatenate(arrays: Any, axis: int | None = 0, dtype: DTypeLike | None = None) -> Any:
    """`concat`, with NumPy's signature."""
    return concat(arrays, axis=axis, dtype=dtype)


@array_function
def stack(arrays: Any, axis: int = 0, dtype: DTypeLike | None = None) -> Any:
    """Arrays of one shape joined along a new axis."""
    parts = _parts(arrays, "stack")
    if dtype is not None:
        parts = [convert(x, DType.of(dtype)) for x in parts]
    return ops.stack(parts, axis)


@array_function
def vstack(arrays: Any, dtype: DTypeLike | None = None) -> Any:
    """Arrays joined along axis 0; vectors are rows."""
    return concat([atleast_2d(x) for x in _parts(arrays, "vstack")], axis=0, dtype=dtype)


row_stack = vstack


@array_function
def hstack(arrays: Any, dtype: DTypeLike | None = None) -> Any:
    """Arrays joined along axis 1; vectors along axis 0."""
    parts = [atleast_1d(x) for x in _parts(arrays, "hstack")]
    return concat(parts, axis=0 if rank_of(parts[0]) == 1 else 1, dtype=dtype)


@array_function
def dstack(arrays: Any, dtype: DTypeLike | None = None) -> Any:
    """Arrays joined along axis 2; vectors are [1, n, 1], matrices [m, n, 1]."""
    return concat([atleast_3d(x) for x in _parts(arrays, "dstack")], axis=2, dtype=dtype)


@array_function
def column_stack(arrays: Any) -> Any:
    """Arrays joined along axis 1; vectors are columns."""
    parts = [value(x) for x in _parts(arrays, "column_stack")]
    return concat([ops.reshape(x, (-1, 1)) if rank_of(x) < 2 else x for x in parts], axis=1)


@array_function
def append(x: Any, values: Any, axis: int | None = None) -> Any:
    """`values` joined behind `x` along `axis`; without an axis both are flattened."""
    return concat([value(x), value(values)], axis=axis)


@array_function
def block(arrays: Any) -> Any:
    """An array from nested lists of blocks: the innermost lists are joined along the last axis, and so on outward."""
    depth = _depth(arrays)
    rank = max(depth, *(rank_of(x) for x in _leaves(arrays)))
    return _block(arrays, depth, rank, 0)


def _depth(arrays: Any) -> int:
    return 1 + max((_depth(x) for x in arrays), default=0) if isinstance(arrays, list) else 0


def _leaves(arrays: Any) -> list[Any]:
    return [leaf for x in arrays for leaf in _leaves(x)] if isinstance(arrays, list) else [arrays]


def _block(arrays: Any, depth: int, rank: int, level: int) -> Any:
    if not isinstance(arrays, list):
        x = value(arrays)
        return ops.expand_dims(x, tuple(range(rank - rank_of(x)))) if rank_of(x) < rank else x
    return concat([_block(x, depth, rank, level + 1) for x in arrays], axis=level - depth)


@array_function
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The parts of `x` along an axis, which they lose."""
    x = value(x)
    axis = axis_of(axis, x, "unstack")
    count = static_size(dims_of(x)[axis], "unstack")
    return tuple(ops.squeeze(ops.narrow(x, axis, i, 1), axis) for i in range(count))


@array_function
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """`x` cut along an axis into equal parts (a number of them), or before each of the given positions."""
    return ops.split(value(x), _cuts(indices_or_sections, "split"), axis)


def _cuts(indices_or_sections: Any, function: str) -> int | Sequence[int]:
    if isinstance(indices_or_sections, int):
        return indices_or_sections
    found = concrete(indices_or_sections, function, "indices_or_sections")
    return int(found) if found.ndim == 0 else [int(i) for i in found]


@array_function
def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Like `split`, but the parts need not be equal: the first ones are one longer."""
    x = value(x)
    cuts = _cuts(indices_or_sections, "array_split")
    if not isinstance(cuts, int):
        return ops.split(x, cuts, axis)
    if cuts < 1:
        raise ShapeError(f"array_split: needs at least one section, got {cuts}")
    length = static_size(dims_of(x)[axis_of(axis, x, "array_split")], "array_split")
    short, longer = divmod(length, cuts)
    return ops.split(x, [short * i + min(i, longer) for i in range(1, cuts)], axis)


@array_function
def hsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 1, or along axis 0 of a vector."""
    return split(x, indices_or_sections, axis=0 if rank_of(x) == 1 else 1)


@array_function
def vsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 0 of a matrix or more."""
    if rank_of(x) < 2:
        raise ShapeError(f"vsplit: needs an array with two axes or more, got shape {dims_of(x)}; use split")
    return split(x, indices_or_sections, axis=0)


@array_function
def dsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 2."""
    if rank_of(x) < 3:
        raise ShapeError(f"dsplit: needs an array with three axes or more, got shape {dims_of(x)}")
    return split(x, indices_or_sections, axis=2)
