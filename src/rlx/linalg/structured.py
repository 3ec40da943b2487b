"""Matrices made from less than all their elements: Toeplitz, circulant, block-diagonal, Kronecker products.

solve_toeplitz((column, row), b), solve_circulant(column, b), block_diag(a, b)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.shape import broadcast_dims
from rlx.numpy import fft
from rlx.numpy.arguments import array_function, inexact, promoted, rank_of, static_size, value
from rlx.numpy.indexing import take
from rlx.numpy.linalg import solve
from rlx.numpy.linear_algebra import kron
from rlx.numpy.manipulation import pad
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "block_diag",
    "circulant",
    "diag_extract",
    "diag_set",
    "kron",
    "matmul_toeplitz",
    "solve_circulant",
    "solve_toeplitz",
    "toeplitz",
]


def _length(x: Any, function: str) -> int:
    if rank_of(x) == 0:
        raise ShapeError(f"{function}: needs a column (or several, in the last axis), got a number")
    return static_size(dims_of(x)[-1], function)


def _column_and_row(c: Any, r: Any) -> tuple[Any, Any]:
    """The first column and the first row; by default the row is the conjugated column."""
    if r is None:
        c = value(c)
        return c, ops.conjugate(c) if dtype_of(c).is_complex else c
    c, r = promoted(c, r)
    lead = broadcast_dims(dims_of(c)[:-1], dims_of(r)[:-1], "toeplitz")
    return tuple(ops.broadcast_to(x, (*lead, dims_of(x)[-1])) for x in (c, r))


@array_function
def toeplitz(c: Any, r: Any = None) -> Any:
    """The matrices whose diagonals are constant: c is the first column, r the first row (r[0] is not read).

    Without r it is the conjugate of c. Columns may be a batch, in the last axis.
    """
    c, r = _column_and_row(c, r)
    rows, columns = _length(c, "toeplitz"), _length(r, "toeplitz")
    # Element [i, j] is number j - i + rows - 1 of the last column from below, and then the row.
    line = ops.concat([ops.reverse(c, -1), ops.narrow(r, -1, 1, max(columns - 1, 0))], -1)
    places = np.arange(columns) - np.arange(rows)[:, None] + rows - 1
    return take(line, places.astype(np.int32), -1)


@array_function
def circulant(c: Any) -> Any:
    """The square matrices whose columns are c, each one place further down than the one before."""
    c = value(c)
    size = _length(c, "circulant")
    places = (np.arange(size)[:, None] - np.arange(size)) % max(size, 1)
    return take(c, places.astype(np.int32), -1)


@array_function
def solve_toeplitz(c_or_cr: Any, b: Any) -> Any:
    """x with T·x = b for T = toeplitz(c), or toeplitz(c, r) for a pair; b is one vector, or matrices.

    By LU with pivoting: exact where Levinson's recursion, which is faster, loses digits. A singular T is an error.
    """
    c, r = c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)
    matrix = toeplitz(c, r)
    if dims_of(matrix)[-1] != dims_of(matrix)[-2]:
        raise ShapeError(f"solve_toeplitz: column and row must be of one length, got a matrix {dims_of(matrix)}")
    return solve(matrix, b)


@array_function
def matmul_toeplitz(c_or_cr: Any, x: Any) -> Any:
    """toeplitz(c, r)·x without the matrix, by Fourier transforms; x is one vector, or matrices."""
    c, r = _column_and_row(*(c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)))
    c, r, x = inexact(c, r, x)
    rows, columns = _length(c, "matmul_toeplitz"), _length(r, "matmul_toeplitz")
    vectors = x if rank_of(x) == 1 else ops.swapaxes(x, -1, -2)
    if _length(vectors, "matmul_toeplitz") != columns:
        raise ShapeError(f"matmul_toeplitz: needs {columns} rows in x, got dims {dims_of(x)}")
    # T is the corner of a circulant matrix whose column is c, and then r from its end.
    around = ops.concat([c, ops.reverse(ops.narrow(r, -1, 1, max(columns - 1, 0)), -1)], -1)
    spectrum = fft.fft(around)
    if rank_of(x) > 1:
        spectrum = ops.expand_dims(spectrum, -2)
    product = fft.ifft(spectrum * fft.fft(vectors, rows + columns - 1))
    product = ops.narrow(product, -1, 0, rows)
    product = product if dtype_of(x).is_complex else ops.real(product)
    return product if rank_of(x) == 1 else ops.swapaxes(product, -1, -2)


@array_function
def solve_circulant(c: Any, b: Any, singular: str = "nan") -> Any:
    """x with circulant(c)·x = b by Fourier transforms; b is one vector, or matrices.

    A singular matrix gives infinity or NaN; with singular="lstsq", the shortest x with the smallest residual. There,
    eigenvalues up to n·eps times the largest count as 0.
    """
    if singular not in ("nan", "lstsq"):
        raise OpError(f"solve_circulant: singular must be 'nan' or 'lstsq', got {singular!r}")
    c, b = inexact(c, b)
    vectors = b if rank_of(b) == 1 else ops.swapaxes(b, -1, -2)
    size = _length(c, "solve_circulant")
    if _length(vectors, "solve_circulant") != size:
        raise ShapeError(f"solve_circulant: needs {size} rows in b, got dims {dims_of(b)}")
    values = fft.fft(c)
    if rank_of(b) > 1:
        values = ops.expand_dims(values, -2)
    right = fft.fft(vectors)
    if singular == "lstsq":
        sizes = ops.abs_(values)
        limit = size * float(np.finfo(dtype_of(c).real.numpy).eps)
        is_large = ops.gt(sizes, ops.reduce_max(sizes, -1, True) * limit)
        right, values = ops.where(is_large, right, 0), ops.where(is_large, values, 1)
    x = fft.ifft(right / values)
    x = x if dtype_of(b).is_complex else ops.real(x)
    return x if rank_of(b) == 1 else ops.swapaxes(x, -1, -2)


@array_function
def block_diag(*arrays: Any) -> Any:
    """Matrices along the diagonal of a larger one, 0 elsewhere; a vector is one row. Leading axes broadcast."""
    if not arrays:
        raise ShapeError("block_diag: needs a matrix or more, got none")
    blocks = [
        ops.reshape(x, (1,) * (2 - rank_of(x)) + tuple(dims_of(x))) if rank_of(x) < 2 else x for x in promoted(*arrays)
    ]
    width = sum(static_size(dims_of(x)[-1], "block_diag") for x in blocks)
    lead = dims_of(blocks[0])[:-2]
    for x in blocks[1:]:
        lead = broadcast_dims(lead, dims_of(x)[:-2], "block_diag")
    rows, before = [], 0
    for x in blocks:
        columns = static_size(dims_of(x)[-1], "block_diag")
        x = ops.broadcast_to(x, (*lead, *dims_of(x)[-2:]))
        none = [(0, 0)] * (rank_of(x) - 1)
        rows.append(pad(x, [*none, (before, width - before - columns)]))
        before += columns
    return ops.concat(rows, -2)


@array_function
def diag_extract(a: Any) -> Any:
    """The diagonals of square matrices."""
    return ops.diagonal(value(a), 0, -2, -1)


@array_function
def diag_set(v: Any) -> Any:
    """The square matrices with v on the diagonal, 0 elsewhere: the adjoint of `diag_extract`."""
    v = value(v)
    if rank_of(v) == 0:
        raise ShapeError("diag_set: needs diagonals in the last axis, got a number")
    square = (*dims_of(v), dims_of(v)[-1])
    return ops.where(ops.eye(square[-1], dtype="bool"), ops.broadcast_to(ops.expand_dims(v, -1), square), 0)
