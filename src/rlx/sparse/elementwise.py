"""Sparse matrices joined entry by entry, with each other and with dense arrays, and reduced along their axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError
from rlx.ops import scatter_add
from rlx.ops.define.operands import dims_of, promote_operands
from rlx.sparse.patterns import Pattern

if TYPE_CHECKING:
    from rlx.sparse.arrays import CSR

Array = np.ndarray[Any, np.dtype[Any]]


def _require_same_shape(a: CSR, b: CSR, what: str) -> None:
    if a.shape != b.shape:
        raise ShapeError(f"sparse: {what} needs matrices of one shape, got {a.shape} and {b.shape}")


def added(a: CSR, b: CSR) -> tuple[Any, Pattern]:
    """Values and pattern of A + B: every place where one of them has an entry."""
    _require_same_shape(a, b, "A + B")
    left, right = promote_operands(a.values, b.values)
    if a.pattern == b.pattern:
        return left + right, a.pattern
    places = np.union1d(a.pattern.places, b.pattern.places)
    pattern = Pattern.from_places(places, a.shape, np.promote_types(a.indices.dtype, b.indices.dtype))
    parts = [
        scatter_add(values, np.searchsorted(places, m.pattern.places), len(places))
        for values, m in ((left, a), (right, b))
    ]
    return parts[0] + parts[1], pattern


def multiplied(a: CSR, b: CSR) -> tuple[Any, Pattern]:
    """Values and pattern of the elementwise product: every place where both have an entry."""
    _require_same_shape(a, b, "A * B")
    left, right = promote_operands(a.values, b.values)
    if a.pattern == b.pattern:
        return left * right, a.pattern
    places, i, j = np.intersect1d(a.pattern.places, b.pattern.places, assume_unique=True, return_indices=True)
    pattern = Pattern.from_places(places, a.shape, np.promote_types(a.indices.dtype, b.indices.dtype))
    return rnp.take(left, i) * rnp.take(right, j), pattern


def sampled(pattern: Pattern, dense: Any, what: str) -> Any:
    """What a dense array, broadcast to the shape of the pattern, has at its entries."""
    dims = tuple(dims_of(dense))
    full = (1,) * (2 - len(dims)) + dims
    if len(dims) > 2 or any(d not in (1, n) for d, n in zip(full, pattern.shape)):
        raise ShapeError(f"sparse: {what}: an array of shape {dims} does not broadcast to {pattern.shape}")
    rows, columns = full
    zeros = np.zeros_like(pattern.indices)
    row = zeros if rows == 1 else pattern.rows
    column = zeros if columns == 1 else pattern.indices
    return rnp.take(rnp.reshape(dense, (-1,)), row.astype(np.int64) * columns + column)


def reduced_sum(a: CSR, axis: int | None) -> Any:
    if axis is None:
        return rnp.sum(a.values)
    return scatter_add(a.values, _kept(a, axis), a.shape[1 - _axis(axis)])


def _axis(axis: int) -> int:
    if axis not in (0, 1, -1, -2):
        raise OpError(f"sparse: a matrix has the axes 0 and 1, got axis={axis}")
    return axis % 2


def _kept(a: CSR, axis: int) -> Array:
    """The index along the other axis, of every entry."""
    return a.pattern.indices if _axis(axis) == 0 else a.pattern.rows


def extreme(a: CSR, axis: int | None, kind: str) -> Any:
    """The largest or smallest entry, zeros that are not stored among them."""
    join, limit = (rnp.maximum, -np.inf) if kind == "max" else (rnp.minimum, np.inf)
    rows, columns = a.shape
    if 0 in (rows * columns if axis is None else a.shape[_axis(axis)],):
        raise OpError(f"sparse: {kind} of nothing: the matrix is {rows}x{columns}")
    if axis is None:
        stored = getattr(rnp, kind)(a.values) if a.nnz else rnp.zeros((), a.dtype)
        return stored if a.nnz in (0, rows * columns) else join(stored, rnp.zeros_like(stored))
    kept, size = _kept(a, axis), a.shape[1 - _axis(axis)]
    start = rnp.full((size,), limit, a.dtype)
    at = start.at[kept] if hasattr(start, "at") else rnp.asarray(start).at[kept]
    stored = getattr(at, kind)(a.values) if a.nnz else start
    is_full = np.bincount(kept, minlength=size) == a.shape[_axis(axis)]
    return rnp.where(is_full, stored, join(stored, rnp.zeros_like(stored)))
