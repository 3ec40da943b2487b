"""Parts of a pattern: which entries are in `A[rows, columns]`, and where they are there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx.errors import OpError
from rlx.ir.tensor import Tensor
from rlx.sparse.patterns import Pattern

Array = np.ndarray[Any, np.dtype[Any]]


class Points(NamedTuple):
    """Single places: the entry at each, and whether there is one."""

    entries: Array
    exists: Array


class Part(NamedTuple):
    """A matrix of selected rows and columns: its pattern, and which entry of the whole each of its entries is."""

    entries: Array
    pattern: Pattern


def select(pattern: Pattern, key: Any) -> Points | Part:
    """What `A[key]` reads."""
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) > 2:
        raise OpError(f"sparse: a matrix has two axes, got {len(keys)} indices")
    row_key, column_key = (*keys, slice(None))[:2]
    kinds = [np.ndim(k) if not isinstance(k, slice) else -1 for k in (row_key, column_key)]
    if kinds == [0, 0] or kinds == [1, 1]:
        rows, columns = _chosen(row_key, pattern.shape[0]), _chosen(column_key, pattern.shape[1])
        if kinds == [1, 1] and len(rows) != len(columns):
            raise OpError(
                f"sparse: A[rows, columns] needs lists of one length, got {len(rows)} and {len(columns)}; "
                "use A[np.ix_(rows, columns)] for all pairs"
            )
        found = _points(pattern, rows, columns)
        return Points(found.entries[0], found.exists[0]) if kinds == [0, 0] else found
    if kinds == [2, 2] and np.shape(row_key)[1] == 1 and np.shape(column_key)[0] == 1:
        row_key, column_key = np.reshape(row_key, -1), np.reshape(column_key, -1)
    return _part(pattern, _chosen(row_key, pattern.shape[0]), _chosen(column_key, pattern.shape[1]))


def _chosen(key: Any, size: int) -> Array:
    """The positions along an axis that a key names, in its order."""
    if isinstance(key, Tensor):
        raise OpError("sparse: which entries a matrix has must be known when a program is traced; index by constants")
    if isinstance(key, slice):
        return np.arange(size)[key]
    array = np.asarray(key)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.ndim > 1 or array.dtype.kind not in "iub":
        raise OpError(f"sparse: an index is a number, a slice, a list or a mask, got {key!r}")
    if array.dtype == bool:
        if array.shape != (size,):
            raise OpError(f"sparse: a mask must have the {size} elements of its axis, got {array.shape}")
        return np.flatnonzero(array)
    places = np.atleast_1d(array).astype(np.int64)
    wrong = places[(places < -size) | (places >= size)]
    if len(wrong):
        raise OpError(f"sparse: index {wrong[0]} is out of range for an axis of size {size}")
    return np.where(places < 0, places + size, places)


def _points(pattern: Pattern, rows: Array, columns: Array) -> Points:
    if not pattern.nnz:
        return Points(np.zeros(len(rows), np.int64), np.zeros(len(rows), bool))
    wanted = rows * max(pattern.shape[1], 1) + columns
    entries = np.minimum(np.searchsorted(pattern.places, wanted), pattern.nnz - 1)
    return Points(entries, pattern.places[entries] == wanted)


def _part(pattern: Pattern, rows: Array, columns: Array) -> Part:
    lengths = np.diff(pattern.indptr)[rows].astype(np.int64)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entries = np.repeat(pattern.indptr[rows].astype(np.int64), lengths) + within
    new_rows = np.repeat(np.arange(len(rows)), lengths)
    # A column may be chosen several times: each entry is repeated as often as its column is.
    order = np.argsort(columns, kind="stable")
    ranked = columns[order]
    first = np.searchsorted(ranked, pattern.indices[entries], side="left")
    times = np.searchsorted(ranked, pattern.indices[entries], side="right") - first
    which = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times)
    new_columns = order[np.repeat(first, times) + which]
    places = np.repeat(new_rows, times) * max(len(columns), 1) + new_columns
    ascending = np.argsort(places, kind="stable")
    shape = (len(rows), len(columns))
    part = Pattern.from_places(places[ascending], shape, pattern.indices.dtype)
    return Part(np.repeat(entries, times)[ascending], part)
