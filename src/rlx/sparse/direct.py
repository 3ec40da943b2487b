"""LU factors of sparse matrices on the host: SuperLU where SciPy is installed, else banded elimination of our own.

Factors are kept for a while by the bytes they are made from, so that a backward pass finds those of the forward pass.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any, Protocol

import numpy as np

from rlx.errors import OpError
from rlx.ops.linalg.solve import not_finite, singular
from rlx.sparse.ordering import order_of
from rlx.sparse.patterns import Pattern

Array = np.ndarray[Any, np.dtype[Any]]


class Factors(Protocol):
    """What solves with one matrix again and again."""

    def solve(self, b: Array, transpose: bool) -> Array: ...


class SuperLu:
    """Supernodal LU with column ordering and partial pivoting, by SciPy."""

    def __init__(self, values: Array, pattern: Pattern) -> None:
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import splu

        # The arrays of A in compressed rows are those of Aᵀ in compressed columns.
        transposed = csc_array((values, pattern.indices, pattern.indptr), shape=pattern.shape[::-1])
        try:
            self._factors = splu(transposed)
        except RuntimeError:
            raise singular("sparse solve", pattern.shape[0]) from None

    def solve(self, b: Array, transpose: bool) -> Array:
        solved: Array = self._factors.solve(np.ascontiguousarray(b), "N" if transpose else "T")
        return solved


class BandedLu:
    """LU with partial pivoting in a band, after the reverse Cuthill-McKee order has made that narrow."""

    def __init__(self, values: Array, pattern: Pattern) -> None:
        size = pattern.shape[0]
        self.order = order_of(pattern, "rcm")
        position = np.empty(size, np.int64)
        position[self.order] = np.arange(size)
        rows, columns = position[pattern.rows], position[pattern.indices]
        self.below = int(np.max(rows - columns, initial=0))
        above = int(np.max(columns - rows, initial=0))
        # Row i holds the columns i - below .. i + above + below: an exchange of rows brings `below` more.
        self.width = 2 * self.below + above + 1
        self.band = np.zeros((size, self.width), values.dtype)
        self.band[rows, columns - rows + self.below] = values
        self.exchanges = np.arange(size)
        self._eliminate(size)

    def _eliminate(self, size: int) -> None:
        """Row k lies with its entry of column j at j - k + below; factors of L take the place of what they remove."""
        band, below = self.band, self.below
        for k in range(size):
            rows = np.arange(k, min(k + below + 1, size))
            column = band[rows, k - rows + below]
            best = int(np.argmax(np.abs(column)))
            if column[best] == 0:
                raise singular("sparse solve", size)
            self.exchanges[k] = k + best
            reach = min(self.width - below, size - k)
            if best:
                # Only columns from k on change places; what is left of them belongs to L and stays.
                a, b = band[k, below : below + reach], band[k + best, below - best : below - best + reach]
                a[:], b[:] = b.copy(), a.copy()
            head = band[k, below : below + reach]
            for row in rows[1:]:
                at = k - row + below
                factor = band[row, at] / head[0]
                band[row, at] = factor
                if factor != 0:
                    band[row, at + 1 : at + reach] -= factor * head[1:]

    def solve(self, b: Array, transpose: bool) -> Array:
        x = b[self.order].astype(np.result_type(b, self.band))
        x = self._solve_transposed(x) if transpose else self._solve(x)
        result = np.empty_like(x)
        result[self.order] = x
        return result

    def _solve(self, x: Array) -> Array:
        size, below = len(x), self.below
        for k in range(size):
            other = self.exchanges[k]
            if other != k:
                x[[k, other]] = x[[other, k]]
            rows = np.arange(k + 1, min(k + below + 1, size))
            x[rows] -= np.multiply.outer(self.band[rows, k - rows + below], x[k])
        for k in reversed(range(size)):
            reach = min(self.width - below, size - k)
            x[k] = (x[k] - np.tensordot(self.band[k, below + 1 : below + reach], x[k + 1 : k + reach], 1)) / (
                self.band[k, below]
            )
        return x

    def _solve_transposed(self, x: Array) -> Array:
        size, below = len(x), self.below
        for k in range(size):
            reach = min(self.width - below, size - k)
            x[k] = x[k] / self.band[k, below]
            x[k + 1 : k + reach] -= np.multiply.outer(self.band[k, below + 1 : below + reach], x[k])
        for k in reversed(range(size)):
            rows = np.arange(k + 1, min(k + below + 1, size))
            x[k] = x[k] - np.tensordot(self.band[rows, k - rows + below], x[rows], 1)
            other = self.exchanges[k]
            if other != k:
                x[[k, other]] = x[[other, k]]
        return x


_KEPT = 4
_factors: OrderedDict[bytes, Factors] = OrderedDict()
_lock = threading.Lock()


def factors_of(values: Array, indices: Array, indptr: Array) -> Factors:
    """The factors of a square matrix, in double precision; a singular one is an error."""
    size = len(indptr) - 1
    if not np.isfinite(values).all():
        raise not_finite("sparse solve")
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False)
    state = hashlib.blake2b(f"{wide.dtype} {indices.dtype} {size}".encode(), digest_size=16)
    for part in (wide, indices, indptr):
        state.update(np.ascontiguousarray(part).tobytes())
    key = state.digest()
    with _lock:
        if key in _factors:
            _factors.move_to_end(key)
            return _factors[key]
    pattern = Pattern.of(indices, indptr, (size, size), "sparse solve")
    if pattern.nnz == 0 or size > pattern.nnz:
        raise singular("sparse solve", size)
    made: Factors = (SuperLu if has_scipy() else BandedLu)(wide, pattern)
    with _lock:
        _factors[key] = made
        while len(_factors) > _KEPT:
            _factors.popitem(last=False)
    return made


def has_scipy() -> bool:
    try:
        import scipy.sparse.linalg  # noqa: F401
    except ImportError:
        return False
    return True


def forget_factors() -> None:
    """Give back the memory of all factors that are kept."""
    with _lock:
        _factors.clear()


def solved(values: Array, indices: Array, indptr: Array, b: Array, transpose: bool) -> Array:
    """A⁻¹ b, or A⁻ᵀ b; b is [N] or [N, K]."""
    if len(indptr) == 1 or b.size == 0:
        return np.zeros_like(b)
    wide = b.astype(np.complex128 if b.dtype.kind == "c" else np.float64)
    result = factors_of(values, indices, indptr).solve(wide, transpose)
    if not np.isfinite(result).all() and np.isfinite(b).all():
        raise OpError("sparse solve: the matrix is singular to working precision; the solution is not finite")
    return result.astype(b.dtype)
