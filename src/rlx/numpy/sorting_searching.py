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
from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.tensor import Tensor
from rlx.numpy.arguments import (
    array_function,
    axis_of,
    convert,
    known_values,
    operand,
    promoted,
    rank_of,
    static_size,
    value,
)
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
    """x in order along `axis` (flattened for None), NaN last. Complex numbers are ordered by their real, then by their
    imaginary parts. Every sort is stable; `kind` is accepted and not used."""
    x, axis = _line(x, axis)
    if dtype_of(x).is_complex:
        return ops.complex_(*ops.sort(ops.real(x), ops.imag(x), axis=axis, descending=descending, num_keys=2))
    return ops.sort(x, axis=axis, descending=descending)


@array_function
def argsort(
    x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True, kind: str | None = None
) -> Any:
    """The i32 positions that sort x along `axis`; equal elements keep their order."""
    x, axis = _line(x, axis)
    if dtype_of(x).is_complex:
        positions = ops.iota(dims_of(x), axis=axis)
        return ops.sort(ops.real(x), ops.imag(x), positions, axis=axis, descending=descending, num_keys=2)[-1]
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


def _distinct(
    x: Any, size: int | None, fill_value: Any, function: str, equal_nan: bool = False, axis: int | None = None
) -> UniqueAllResult:
    """What is distinct among the elements of the flattened x, or among its parts along `axis`."""
    x = value(x)
    parts = ops.flatten(x) if axis is None else ops.moveaxis(x, axis_of(axis, x, function), 0)
    count = static_size(dims_of(parts)[0], function) if axis is not None else dims_of(parts)[0]
    if count == 0 or 0 in dims_of(parts):
        return _nothing_distinct(x, parts, size, fill_value, axis)
    order, differs = _in_order(parts, equal_nan)
    is_new = ops.concat([ops.ones((1,), DType.BOOL), differs], 0)
    group = ops.cumsum(convert(is_new, DType.I32), 0) - 1
    if size is None:
        known = known_values(x)
        if known is None:
            raise OpError(f"{function}: the number of results depends on values; give size=, an upper bound")
        size = np.unique(known, axis=axis, equal_nan=equal_nan).shape[axis or 0]
    starts = ops.nonzero(is_new, size, fill_value=_PAST_THE_END)[0]
    exists = ops.lt(starts, _PAST_THE_END)
    first = ops.take(order, ops.where(exists, starts, 0), 0)
    values = ops.take(parts, first, 0)
    if fill_value is not None:
        there = ops.reshape(exists, (size, *(1 for _ in dims_of(parts)[1:])))
        values = ops.where(there, values, convert(operand(fill_value), dtype_of(values)))
    ends = ops.concat([ops.narrow(starts, 0, 1, size - 1), ops.full((1,), _PAST_THE_END, DType.I32)], 0)
    total = convert(ops.dim_value(count), DType.I32)
    counts = ops.where(exists, ops.sub(ops.minimum(ends, total), starts), 0)
    inverse = ops.put_along_axis(ops.zeros_like(group), order, group, 0)
    if axis is None:
        return UniqueAllResult(values, first, ops.reshape(inverse, dims_of(x)), counts)
    return UniqueAllResult(ops.moveaxis(values, 0, axis), first, inverse, counts)


def _in_order(parts: Any, equal_nan: bool) -> tuple[Any, Any]:
    """The positions that sort elements, or parts by their elements in turn, and which differ from the one before."""
    rest = dims_of(parts)[1:]
    columns = [parts]
    if rest:
        width = static_size(product(rest), "unique")
        rows = ops.reshape(parts, (dims_of(parts)[0], width))
        columns = [ops.squeeze(ops.narrow(rows, 1, i, 1), 1) for i in range(width)]
    if any(dtype_of(c).is_complex for c in columns):
        columns = [part for c in columns for part in (ops.real(c), ops.imag(c))]
    *ordered, order = ops.sort(*columns, ops.iota(dims_of(columns[0])), axis=0, num_keys=len(columns))
    last = dims_of(columns[0])[0] - 1
    differs = ops.zeros((last,), DType.BOOL)
    for column in ordered:
        before, after = ops.narrow(column, 0, 0, last), ops.narrow(column, 0, 1, last)
        differ = ops.ne(after, before)
        if equal_nan:
            differ = ops.and_(differ, ops.logical_not(ops.and_(ops.isnan(after), ops.isnan(before))))
        differs = ops.or_(differs, differ)
    return order, differs


def _nothing_distinct(x: Any, parts: Any, size: int | None, fill_value: Any, axis: int | None) -> UniqueAllResult:
    """What an array without elements holds, in `size` places; parts without elements are all the same."""
    found = 0 if dims_of(parts)[0] == 0 else 1
    size = found if size is None else size
    values = ops.full((size, *dims_of(parts)[1:]), 0 if fill_value is None else fill_value, dtype_of(x))
    zeros, inverse = ops.zeros((size,), DType.I32), ops.zeros(dims_of(parts)[:1], DType.I32)
    if axis is None:
        return UniqueAllResult(values, zeros, ops.zeros(dims_of(x), DType.I32), zeros)
    counts = ops.where(ops.lt(ops.iota((size,)), found), dims_of(parts)[0], 0)
    return UniqueAllResult(ops.moveaxis(values, 0, axis), zeros, inverse, counts)


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
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """Distinct values of the flattened x, or distinct parts of x along `axis`, in order, and what else is asked for;
    see `unique_all`."""
    found = _distinct(x, size, fill_value, "unique", equal_nan, axis)
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
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Values that occur in both, distinct and in order; with `size`, filled with `fill_value` or 0.

    With `return_indices` also where each stands first in both; for filled places that is their number of elements.
    """
    row, is_first = _ordered_firsts(ar1)
    keep = ops.and_(is_first, isin(row, ar2))
    found = _members(row, keep, size, fill_value, "intersect1d")
    if not return_indices:
        return found
    exists = ops.lt(ops.iota(dims_of(found)), ops.reduce_sum(convert(keep, DType.I32), (0,)))
    return found, _first_place(found, exists, ar1), _first_place(found, exists, ar2)


def _first_place(values: Any, exists: Any, x: Any) -> Any:
    """Where each value that exists stands first in the flattened x; for others, the number of its elements."""
    flat = ops.flatten(value(x))
    places = ops.iota(dims_of(flat))
    count = convert(ops.dim_value(dims_of(flat)[0]), DType.I32)
    is_there = ops.eq(ops.expand_dims(values, 1), ops.expand_dims(flat, 0))
    return ops.where(exists, ops.reduce_min(ops.where(is_there, places, count), (1,)), count)


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
