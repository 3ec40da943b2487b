"""Products of sparse matrices in compressed rows with dense and with sparse ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ops.define.operands import dims_of, promote_inexact
from rlx.sparse.eager import apply
from rlx.sparse.ops_masked import CsrMaskedProduct
from rlx.sparse.ops_products import CsrMatMul, CsrSampledProduct, CsrTransposedMatMul
from rlx.sparse.patterns import Pattern

Array = np.ndarray[Any, np.dtype[Any]]


def _dense(x: Any, size: int, shape: tuple[int, int]) -> Any:
    """A dense factor: a vector, or a matrix of columns."""
    dims = tuple(dims_of(x))
    if len(dims) not in (1, 2) or dims[0] != size:
        raise ShapeError(
            f"sparse: A ({shape[0]}x{shape[1]}) @ x needs x of shape ({size},) or ({size}, k), got {dims}; "
            "use vmap for more axes"
        )
    return x


def times(values: Any, pattern: Pattern, x: Any) -> Any:
    """A @ x."""
    values, x = promote_inexact(values, _dense(x, pattern.shape[1], pattern.shape))
    return apply(CsrMatMul(), values, pattern.indices, pattern.indptr, x)


def transposed_times(values: Any, pattern: Pattern, x: Any) -> Any:
    """Aᵀ @ x."""
    rows, columns = pattern.shape
    values, x = promote_inexact(values, _dense(x, rows, (columns, rows)))
    return apply(CsrTransposedMatMul(columns), values, pattern.indices, pattern.indptr, x)


def sampled_product(pattern: Pattern, u: Any, v: Any) -> Any:
    """(U Vᵀ)[i, j] for each entry (i, j) of the pattern; u is [rows] or [rows, K], v [columns] or [columns, K]."""
    u, v = promote_inexact(u, v)
    wanted = tuple(pattern.shape)
    if (dims_of(u)[:1] + dims_of(v)[:1]) != wanted or dims_of(u)[1:] != dims_of(v)[1:]:
        raise ShapeError(
            f"sparse.sddmm: needs u ({wanted[0]}, k) and v ({wanted[1]}, k), "
            f"got {tuple(dims_of(u))} and {tuple(dims_of(v))}"
        )
    return apply(CsrSampledProduct(), pattern.indices, pattern.indptr, u, v)


def sparse_times_sparse(a_values: Any, a: Pattern, b_values: Any, b: Pattern) -> tuple[Any, Pattern]:
    """The values and the pattern of A @ B; the pattern has every entry that could be there."""
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"sparse: A @ B needs as many columns as rows, got {a.shape} and {b.shape}")
    pattern = product_pattern(a, b)
    values = masked_product(a_values, a, b_values, b, pattern)
    return values, pattern


def masked_product(a_values: Any, a: Pattern, b_values: Any, b: Pattern, mask: Pattern) -> Any:
    """The values of A @ B at the entries of `mask`."""
    a_values, b_values = promote_inexact(a_values, b_values)
    wide = np.int64 if any(p.indices.dtype == np.int64 for p in (a, b, mask)) else np.int32
    parts = [x.astype(wide, copy=False) for p in (a, b, mask) for x in (p.indices, p.indptr)]
    return apply(CsrMaskedProduct(b.shape[1]), a_values, *parts[:2], b_values, *parts[2:])


# Products that are looked at together when the pattern of a product is found, so that memory stays small.
_AT_ONCE = 1 << 22


def product_pattern(a: Pattern, b: Pattern) -> Pattern:
    """The pattern of A @ B, found without their values."""
    shape = (a.shape[0], b.shape[1])
    lengths = np.diff(b.indptr).astype(np.int64)[a.indices]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    found: list[Array] = []
    row = 0
    while row < shape[0]:
        # As many rows as fit, at least one.
        limit = ends[a.indptr[row]] + _AT_ONCE
        last = int(np.searchsorted(ends[a.indptr[row + 1 :]], limit, side="right")) + row
        last = max(last, row + 1)
        entries = np.arange(a.indptr[row], a.indptr[last])
        found.append(np.unique(_product_places(a, b, entries, lengths[entries])))
        row = last
    places = np.concatenate(found) if found else np.zeros(0, np.int64)
    wide = a.indices.dtype if len(places) < np.iinfo(np.int32).max else np.int64
    return Pattern.from_places(places, shape, np.promote_types(wide, b.indices.dtype))


def _product_places(a: Pattern, b: Pattern, entries: Array, lengths: Array) -> Array:
    """Where each product of an entry of A and one of the row of B that it selects goes to."""
    total = int(lengths.sum())
    starts = np.repeat(b.indptr[a.indices[entries]].astype(np.int64), lengths)
    within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = np.repeat(a.rows[entries].astype(np.int64), lengths)
    places: Array = rows * max(b.shape[1], 1) + b.indices[starts + within]
    return places
