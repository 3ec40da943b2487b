"""Where the entries of sparse arrays are: immutable patterns, checked when they are made.

A pattern is part of the structure of an array and not of its values. So programs may look at it while they are
traced: transposes, unions, fill-in and slices are found once, in NumPy, and what is compiled only moves values.
Patterns are equal when their bytes are.

    >>> p = Pattern.of([0, 2, 1], [0, 2, 3], (2, 3))
    >>> p.rows.tolist(), p.transposed.pattern.indices.tolist()
    ([0, 0, 1], [0, 1, 0])
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import DTypeError, OpError, ShapeError, TraceError
from rlx.ir.tensor import Tensor

Array = np.ndarray[Any, np.dtype[Any]]


class Transposed(NamedTuple):
    """The pattern of Aᵀ, and which entry of A each of its entries is."""

    pattern: Pattern
    order: Array


def as_shape(shape: Any, what: str) -> tuple[int, int]:
    """Two sizes."""
    try:
        rows, columns = (int(n) for n in shape)
    except (TypeError, ValueError):
        raise ShapeError(f"{what}: shape must be two sizes (rows, columns), got {shape!r}") from None
    if rows < 0 or columns < 0:
        raise ShapeError(f"{what}: sizes cannot be negative, got {(rows, columns)}")
    return rows, columns


def as_indices(values: Any, what: str, dtype: Any = None) -> Array:
    """Integers of one axis, i32 or i64, read only and without a copy where they are that already."""
    if isinstance(values, Tensor):
        raise TraceError(
            f"sparse: {what} must be known when the program is traced, got a traced value; make the array outside of "
            "jit, and pass new values by A.with_values(v)"
        )
    array = np.asarray(values)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DTypeError(f"sparse: {what} must be integers of one axis, got {array.dtype} of shape {array.shape}")
    wanted = np.dtype(dtype if dtype is not None else array.dtype if array.dtype in (np.int32, np.int64) else np.int64)
    if array.dtype != wanted:
        limits = np.iinfo(wanted)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise DTypeError(f"sparse: {what} holds numbers that do not fit into {wanted}")
        array = array.astype(wanted)
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array


def _common_index(*arrays: Any) -> type[np.signedinteger[Any]]:
    """i64 where one of the arrays needs it; lists of numbers do not."""
    given = [np.dtype(a.dtype) for a in arrays if isinstance(a, np.ndarray)]
    return np.int64 if any(d.itemsize > 4 or d == np.uint32 for d in given if d.kind in "iu") else np.int32


def require_in_range(indices: Array, size: int, what: str) -> None:
    """Refuse indices that select nothing."""
    if len(indices) == 0:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= size:
        bad = low if low < 0 else high
        place = int(np.flatnonzero(indices == bad)[0])
        valid = f"valid are 0..{size - 1}" if size else "there is none that is valid"
        raise OpError(f"sparse: {what}[{place}] is {bad}, but there are {size} of them: {valid}")


class Pattern:
    """Compressed rows: row i has the columns indices[indptr[i] : indptr[i + 1]], ascending and distinct."""

    def __init__(self, indices: Array, indptr: Array, shape: tuple[int, int]) -> None:
        self.indices, self.indptr, self.shape = indices, indptr, shape

    @classmethod
    def of(cls, indices: Any, indptr: Any, shape: Any, what: str = "csr", axes: str = "rows columns") -> Pattern:
        """The pattern of these indices, all of which are looked at; `axes` are the words for messages."""
        rows, columns = as_shape(shape, what)
        major, minor = axes.split()
        wide = _common_index(indices, indptr)
        indices, indptr = (as_indices(a, n, wide) for a, n in ((indices, "indices"), (indptr, "indptr")))
        if len(indptr) != rows + 1:
            raise OpError(f"{what}: {rows} {major} need {rows + 1} bounds in indptr, got {len(indptr)}")
        if indptr[0] != 0 or indptr[-1] != len(indices):
            raise OpError(
                f"{what}: indptr must begin with 0 and end with the number of entries, {len(indices)}, "
                f"it begins with {indptr[0]} and ends with {indptr[-1]}"
            )
        falls = np.flatnonzero(np.diff(indptr) < 0)
        if len(falls):
            i = int(falls[0])
            raise OpError(f"{what}: indptr must not fall, but goes from {indptr[i]} to {indptr[i + 1]} at {i}")
        require_in_range(indices, columns, "indices")
        pattern = cls(indices, indptr, (rows, columns))
        pattern._require_order(what, major, minor)
        return pattern

    def _require_order(self, what: str, major: str, minor: str) -> None:
        steps = np.diff(self.indices) <= 0
        # A step from one row to the next may go anywhere.
        bounds = self.indptr[1:-1]
        steps[bounds[(bounds > 0) & (bounds < len(self.indices))] - 1] = False
        wrong = np.flatnonzero(steps)
        if len(wrong):
            k = int(wrong[0])
            row = int(np.searchsorted(self.indptr, k, side="right")) - 1
            raise OpError(
                f"{what}: the {minor} of each of the {major} must ascend without repetition, but number {row} has "
                f"{self.indices[k]} before {self.indices[k + 1]}; sort them (SciPy: A.sum_duplicates()), or use "
                "sparse.coo, which takes any order"
            )

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @cached_property
    def rows(self) -> Array:
        """The row of each entry."""
        return np.repeat(np.arange(self.shape[0], dtype=self.indices.dtype), np.diff(self.indptr))

    @cached_property
    def places(self) -> Array:
        """Entries as positions in the dense array, row by row: ascending, since columns are."""
        return self.rows.astype(np.int64) * max(self.shape[1], 1) + self.indices

    @cached_property
    def diagonal(self) -> tuple[Array, Array]:
        """The entries on the diagonal, and the rows they are in."""
        entries = np.flatnonzero(self.rows == self.indices)
        return entries, self.rows[entries]

    @cached_property
    def transposed(self) -> Transposed:
        order = np.argsort(self.indices, kind="stable").astype(self.indices.dtype)
        counts = np.bincount(self.indices, minlength=self.shape[1])
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(self.indptr.dtype)
        return Transposed(Pattern(frozen(self.rows[order]), frozen(indptr), self.shape[::-1]), order)

    @classmethod
    def from_places(cls, places: Array, shape: tuple[int, int], dtype: Any) -> Pattern:
        """The pattern of ascending, distinct positions in the dense array."""
        rows, columns = np.divmod(places, max(shape[1], 1))
        counts = np.bincount(rows, minlength=shape[0]) if len(places) else np.zeros(shape[0], np.int64)
        return cls(frozen(columns.astype(dtype)), frozen(np.concatenate([[0], np.cumsum(counts)]).astype(dtype)), shape)

    @cached_property
    def digest(self) -> bytes:
        state = hashlib.blake2b(f"{self.shape} {self.indices.dtype}".encode(), digest_size=16)
        state.update(self.indices.tobytes())
        state.update(self.indptr.tobytes())
        return state.digest()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Pattern)
            and (self.shape, self.nnz) == (other.shape, other.nnz)
            and self.digest == other.digest
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.nnz))

    def __repr__(self) -> str:
        return f"Pattern({self.shape[0]}x{self.shape[1]}, nnz={self.nnz})"


def frozen(array: Array) -> Array:
    """An array that nobody else has, made read only, so that programs need no copy of it."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


class Coordinates:
    """Entries in any order: entry k is at (rows[k], columns[k]); entries at the same place are added."""

    def __init__(self, rows: Array, columns: Array, shape: tuple[int, int]) -> None:
        self.rows, self.columns, self.shape = rows, columns, shape

    @classmethod
    def of(cls, rows: Any, columns: Any, shape: Any) -> Coordinates:
        size = as_shape(shape, "coo")
        wide = _common_index(rows, columns)
        rows, columns = (as_indices(a, n, wide) for a, n in ((rows, "rows"), (columns, "columns")))
        if len(rows) != len(columns):
            raise OpError(f"coo: needs as many rows as columns, got {len(rows)} and {len(columns)}")
        require_in_range(rows, size[0], "rows")
        require_in_range(columns, size[1], "columns")
        return cls(rows, columns, size)

    @property
    def nnz(self) -> int:
        return len(self.rows)

    @cached_property
    def compressed(self) -> tuple[Pattern, Array, bool]:
        """The pattern in compressed rows, where each entry goes there, and whether several go to one place."""
        places = self.rows.astype(np.int64) * max(self.shape[1], 1) + self.columns
        distinct, goals = np.unique(places, return_inverse=True)
        pattern = Pattern.from_places(distinct, self.shape, self.rows.dtype)
        return pattern, goals.reshape(-1).astype(self.rows.dtype), len(distinct) < len(places)

    @cached_property
    def digest(self) -> bytes:
        state = hashlib.blake2b(f"{self.shape} {self.rows.dtype}".encode(), digest_size=16)
        state.update(self.rows.tobytes())
        state.update(self.columns.tobytes())
        return state.digest()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Coordinates)
            and (self.shape, self.nnz) == (other.shape, other.nnz)
            and self.digest == other.digest
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.nnz))

    def __repr__(self) -> str:
        return f"Coordinates({self.shape[0]}x{self.shape[1]}, nnz={self.nnz})"
