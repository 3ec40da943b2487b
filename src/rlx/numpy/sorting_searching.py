"""Order: sorting, searching, positions of elements, sets of distinct values.

How many elements are non-zero or distinct is known only when the program runs, but shapes are known before. So inside
a program those functions take `size=`, an upper bound; results that are too short are filled. On arrays with known
values `size` may be left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.ir.tensor import Tensor
from rlx.numpy.arguments import array_function, axis_of, convert, known_values, operand, promoted, rank_of, value
from rlx.numpy.creation import asarray
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "argpartition",
    "argsort",
    "argwhere",
    "flatnonzero",
    "intersect1d",
    "isin",
    "lexsort",
    "nonzero",
    "partition",
    "searchsorted",
    "setdiff1d",
    "setxor1d",
    "sort",
    "sort_complex",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]


def _line(x: Any, axis: int | None) -> tuple[Any, int]:
    """The operand and the axis to sort; without one the operand is flattened."""
    x = value(x)
    return (ops.flatten(x), 0) if axis is None else (x, axis_of(axis, x, "sort"))


@array_function
def sort(
    x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True, kind: str | None = None
) -> Any:
    """x in order along `axis` (flattened for None), NaN last. Every sort is stable; `kind` is accepted and not used."""
    x, axis = _line(x, axis)
    return ops.sort(x, axis=axis, descending=descending)


@array_function
def argsort(
    x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True, kind: str | None = None
) -> Any:
    """The i32 positions that sort x along `axis`; equal elements keep their order."""
    x, axis = _line(x, axis)
    return ops.argsort(x, axis, descending)


@array_function
def lexsort(keys: Any, axis: int = -1) -> Any:
    """The i32 positions that sort by several keys, of which the last one counts most."""
    rows = [value(k) for k in (keys if isinstance(keys, list | tuple) else _rows(keys))]
    if not rows:
        raise ShapeError("lexsort: needs at least one key")
    axis = axis_of(axis, rows[0], "lexsort")
    positions = ops.iota(dims_of(rows[0]), axis=axis)
    return ops.sort(*rows[::-1], positions, axis=axis, num_keys=len(rows))[-1]


def _rows(keys: Any) -> Any:
    from rlx.numpy.joining import unstack

    return unstack(keys)


@array_function
def partition(x: Any, kth: Any, axis: int | None = -1, kind: str = "introselect") -> Any:
    """x with element `kth` where sorting puts it, smaller ones before and larger ones behind: here, x sorted."""
    return sort(x, axis)


@array_function
def argpartition(x: Any, kth: Any, axis: int | None = -1, kind: str = "introselect") -> Any:
    """The i32 positions of `partition`."""
    return argsort(x, axis)


@array_function
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None, *, method: str | None = None) -> Any:
    """Where to insert x2 into the sorted vector x1, i32: before equal elements, or behind them for side="right".

    `method` is JAX's hint how to search, and changes nothing.
    """
    if side not in ("left", "right"):
        raise OpError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    x1, x2 = promoted(x1, x2)
    if sorter is not None:
        x1 = ops.take(x1, operand(sorter), 0)
    return ops.searchsorted(x1, x2, right=side == "right")


@array_function
def nonzero(x: Any, /, *, size: int | None = None, fill_value: int = 0) -> tuple[Any, ...]:
    """The positions of elements that are not 0, as one i32 vector per axis; see the module for `size`."""
    if rank_of(x) == 0:
        raise ShapeError("nonzero: a scalar has no axes; use atleast_1d")
    known = known_values(x)
    if size is None and known is not None:
        return tuple(asarray(ids.astype(np.int32)) for ids in np.nonzero(known))
    return ops.nonzero(value(x), size, fill_value)


@array_function
def argwhere(x: Any, /, *, size: int | None = None, fill_value: int = 0) -> Any:
    """The positions of elements that are not 0, one row of coordinates each, i32."""
    return ops.stack(list(nonzero(x, size=size, fill_value=fill_value)), axis=-1)


@array_function
def flatnonzero(x: Any, /, *, size: int | None = None, fill_value: int = 0) -> Any:
    """The positions in the flattened x of elements that are not 0, i32."""
    known = known_values(x)
    row = ops.flatten(value(x)) if known is None else known.reshape(-1)
    return nonzero(row, size=size, fill_value=fill_value)[0]


class UniqueAllResult(NamedTuple):
    """Distinct values, where each stands first, which of them each element is, and how often each occurs."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """Distinct values, and how often each occurs."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """Distinct values, and which of them each element is."""

    values: Any
    inverse_indices: Any


def _distinct(x: Any, size: int | None, fill_value: Any, function: str, equal_nan: bool = False) -> UniqueAllResult:
    x = value(x)
    flat = ops.flatten(x)
    count = dims_of(flat)[0]
    if count == 0:
        return _nothing_distinct(x, size or 0, fill_value)
    order, ordered = ops.argsort(flat), ops.sort(flat)
    # An element is new when it differs from its neighbour in the sorted row; the first one always is.
    before, after = ops.narrow(ordered, 0, 0, count - 1), ops.narrow(ordered, 0, 1, count - 1)
    differs = ops.ne(after, before)
    if equal_nan:
        differs = ops.and_(differs, ops.logical_not(ops.and_(ops.isnan(after), ops.isnan(before))))
    is_new = ops.concat([ops.ones((1,), DType.BOOL), differs], 0)
    group = ops.cumsum(convert(is_new, DType.I32), 0) - 1
    if size is None:
        known = known_values(x)
        if known is None:
            raise OpError(f"{function}: the number of results depends on values; give size=, an upper bound")
        size = len(np.unique(known, equal_nan=equal_nan))
    starts = ops.nonzero(is_new, size, fill_value=_PAST_THE_END)[0]
    exists = ops.lt(starts, _PAST_THE_END)
    first = ops.where(exists, starts, 0)
    values = ops.take(ordered, first, 0)
    if fill_value is not None:
        values = ops.where(exists, values, convert(operand(fill_value), dtype_of(values)))
    ends = ops.concat([ops.narrow(starts, 0, 1, size - 1), ops.full((1,), _PAST_THE_END, DType.I32)], 0)
    total = convert(ops.dim_value(count), DType.I32)
    counts = ops.where(exists, ops.sub(ops.minimum(ends, total), starts), 0)
    inverse = ops.put_along_axis(ops.zeros_like(group), order, group, 0)
    return UniqueAllResult(values, ops.take(order, first, 0), ops.reshape(inverse, dims_of(x)), counts)


def _nothing_distinct(x: Any, size: int, fill_value: Any) -> UniqueAllResult:
    """What an array without elements holds, in `size` places."""
    values = ops.full((size,), 0 if fill_value is None else fill_value, dtype_of(x))
    zeros = ops.zeros((size,), DType.I32)
    return UniqueAllResult(values, zeros, ops.zeros(dims_of(x), DType.I32), zeros)


# Larger than any position, and still an i32.
_PAST_THE_END = 2**31 - 1


@array_function
def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAllResult:
    """Distinct values in order, with indices, inverse and counts. Filled places hold `fill_value`, or the smallest
    value, with count 0. NaN differs from NaN."""
    return _distinct(x, size, fill_value, "unique_all")


@array_function
def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCountsResult:
    """Distinct values in order, and how often each occurs."""
    found = _distinct(x, size, fill_value, "unique_counts")
    return UniqueCountsResult(found.values, found.counts)


@array_function
def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverseResult:
    """Distinct values in order, and which of them each element is."""
    found = _distinct(x, size, fill_value, "unique_inverse")
    return UniqueInverseResult(found.values, found.inverse_indices)


@array_function
def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Distinct values in order."""
    return _distinct(x, size, fill_value, "unique_values").values


@array_function
def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Distinct values of the flattened x in order, and what else is asked for; see `unique_all`."""
    found = _distinct(x, size, fill_value, "unique", equal_nan)
    asked = (return_index, return_inverse, return_counts)
    extra = [part for part, wanted in zip(found[1:], asked) if wanted]
    return (found.values, *extra) if extra else found.values


@array_function
def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
    method: str | None = None,
) -> Any:
    """Which elements occur in `test_elements`. The hints of NumPy and JAX how to search change nothing."""
    element, tests = promoted(element, test_elements)
    ordered = ops.sort(ops.flatten(tests))
    count = dims_of(ordered)[0]
    if count == 0:
        return ops.full(dims_of(element), invert, DType.BOOL)
    place = ops.minimum(ops.searchsorted(ordered, element), convert(ops.dim_value(count), DType.I32) - 1)
    found = ops.eq(ops.take(ordered, place, 0), element)
    return ops.logical_not(found) if invert else found


def _members(x: Any, keep: Any, size: int | None, fill_value: Any, function: str) -> Any:
    """The elements of the vector `x` for which `keep` holds."""
    if size is None and isinstance(keep, Tensor):
        raise OpError(f"{function}: the number of results depends on values; give size=, an upper bound")
    (places,) = ops.nonzero(keep, size, fill_value=_PAST_THE_END)
    found = ops.take(x, ops.where(ops.lt(places, _PAST_THE_END), places, 0), 0)
    if size is None:
        return found
    fill = ops.zeros((), dtype_of(x)) if fill_value is None else convert(operand(fill_value), dtype_of(x))
    return ops.where(ops.lt(places, _PAST_THE_END), found, fill)


@array_function
def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Values that occur in either, distinct and in order; with `size`, filled as in `unique`."""
    parts = [ops.flatten(x) for x in promoted(ar1, ar2)]
    return _distinct(ops.concat(parts, 0), size, fill_value, "union1d", equal_nan=True).values


@array_function
def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """Values that occur in both, distinct and in order; with `size`, filled with `fill_value` or 0."""
    row, is_first = _ordered_firsts(ar1)
    keep = ops.and_(is_first, isin(row, ar2))
    return _members(row, keep, size, fill_value, "intersect1d")


@array_function
def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """Values of the first that do not occur in the second; with `size`, filled with `fill_value` or 0."""
    if assume_unique:
        row = ops.flatten(value(ar1))
        return _members(row, isin(row, ar2, invert=True), size, fill_value, "setdiff1d")
    row, is_first = _ordered_firsts(ar1)
    return _members(row, ops.and_(is_first, isin(row, ar2, invert=True)), size, fill_value, "setdiff1d")


@array_function
def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """Values that occur in exactly one of both, distinct and in order; with `size`, filled with `fill_value` or 0."""
    ar1, ar2 = promoted(ar1, ar2)
    row, is_first = _ordered_firsts(ops.concat([ops.flatten(ar1), ops.flatten(ar2)], 0))
    in_one = ops.logical_xor(isin(row, ar1), isin(row, ar2))
    return _members(row, ops.and_(is_first, in_one), size, fill_value, "setxor1d")


def _ordered_firsts(x: Any) -> tuple[Any, Any]:
    """The flattened x in order, and which of its elements differ from the one before."""
    row = ops.sort(ops.flatten(value(x)))
    if dims_of(row)[0] == 0:
        return row, ops.zeros((0,), DType.BOOL)
    last = dims_of(row)[0] - 1
    differs = ops.ne(ops.narrow(row, 0, 1, last), ops.narrow(row, 0, 0, last))
    return row, ops.concat([ops.ones((1,), DType.BOOL), differs], 0)


@array_function
def sort_complex(a: Any) -> Any:
    """Complex numbers in the order of their real, then their imaginary parts, along the last axis."""
    a = value(a)
    wide = convert(a, dtype_of(a).complex if dtype_of(a).is_inexact else DType.of(complex))
    re, im = ops.sort(ops.real(wide), ops.imag(wide), axis=-1, num_keys=2)
    return ops.complex_(re, im)
