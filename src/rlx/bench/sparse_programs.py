"""Sparse matrices that engines are compared on, made without SciPy: five classes of patterns, and their sizes.

matrix = pattern("grid", 1000)         # CSR arrays in f64 with indices of 32 bits
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# How many rows a class has; a grid has this many along each side.
SIZES = {"grid": 1000, "power law": 200_000, "banded": 200_000, "block": 100_000, "random": 200_000}
# Right sides of a product with many columns.
COLUMNS = 32
# |b - A x| / |b| at which solvers stop.
TOLERANCE = 1e-6
_BLOCK = 8


class Csr(NamedTuple):
    """A square matrix: entries by row, then by column."""

    values: Array
    indices: Array
    indptr: Array

    @property
    def rows(self) -> int:
        return len(self.indptr) - 1


def pattern(kind: str, size: int) -> Csr:
    """The matrix of a class, the same in every process."""
    rng = np.random.default_rng(7)
    if kind == "grid":
        return _grid(size)
    if kind == "banded":
        return _rows_of(np.arange(size)[:, None] + np.arange(-4, 5), size, rng)
    if kind == "block":
        # Four dense blocks in every row of blocks, one in each quarter.
        quarter = size // _BLOCK // 4
        across = rng.integers(0, quarter, (size // _BLOCK, 4)) + quarter * np.arange(4)
        columns = (across[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(len(across), -1)
        return _rows_of(np.repeat(columns, _BLOCK, axis=0), size, rng)
    if kind == "random":
        return _rows_of(np.sort(rng.integers(0, size, (size, 10)), axis=1), size, rng)
    # A power law: few rows have most entries, and few columns.
    counts = np.minimum(size / 8 / np.arange(1, size + 1) ** 0.8, 5_000).astype(np.int64) + 3
    rows = np.repeat(rng.permutation(size), counts)
    columns = np.minimum(rng.pareto(0.8, len(rows)) * 200, size - 1).astype(np.int64)
    places = np.unique(rows * size + columns)
    return _csr(places // size, places % size, rng.normal(size=len(places)), size)


def _rows_of(columns: Array, size: int, rng: np.random.Generator) -> Csr:
    """The columns of each row in order; those outside, and those that come twice, are left out."""
    kept = (columns >= 0) & (columns < size)
    kept[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    bounds = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    found = columns[kept]
    return Csr(rng.normal(size=len(found)), found.astype(np.int32), bounds.astype(np.int32))


def _grid(side: int) -> Csr:
    """The five-point Laplacian on a square."""
    number = np.arange(side * side)
    row, column = number // side, number % side
    neighbours = [(-side, row > 0), (-1, column > 0), (0, row >= 0), (1, column < side - 1), (side, row < side - 1)]
    rows = np.concatenate([number[there] for _, there in neighbours])
    columns = np.concatenate([number[there] + step for step, there in neighbours])
    values = np.concatenate([np.full(there.sum(), 4.0 if step == 0 else -1.0) for step, there in neighbours])
    order = np.lexsort((columns, rows))
    return _csr(rows[order], columns[order], values[order], side * side)


def _csr(rows: Array, columns: Array, values: Array, size: int) -> Csr:
    bounds = np.searchsorted(rows, np.arange(size + 1))
    return Csr(values, columns.astype(np.int32), bounds.astype(np.int32))


def right_side(matrix: Csr, columns: int) -> Array:
    """One vector, or many."""
    dims = (matrix.rows, columns) if columns > 1 else (matrix.rows,)
    return np.random.default_rng(11).normal(size=dims)


def product_bytes(program: str, size: int) -> float:
    """What a product must read and write at least: all entries, the vectors once, the result; 0 if not known."""
    what, kind = program.split(": ")
    rows = size * size if kind == "grid" else size
    entries = {"grid": 5 * rows - 4 * size, "banded": 9 * rows - 20, "block": 4 * _BLOCK * rows, "random": 10 * rows}
    if what not in ("spmv", "spmm") or kind not in entries:
        return 0.0
    return 12.0 * entries[kind] + 4.0 * rows + 16.0 * rows * (COLUMNS if what == "spmm" else 1)
