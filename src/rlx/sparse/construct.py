"""How sparse matrices are made: from their arrays, from dense ones, and from SciPy's.

Indices are checked once, here. What SciPy holds is shared and not copied, when it is in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError, TraceError
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import dims_of
from rlx.sparse.arrays import BSR, COO, CSC, CSR, SparseArray, checked_values
from rlx.sparse.patterns import Coordinates, Pattern, as_shape

Array = np.ndarray[Any, np.dtype[Any]]


def csr(data: Any, shape: Any = None) -> CSR:
    """A matrix in compressed rows, from (values, indices, indptr), a dense array, or a sparse matrix of any kind.

    >>> csr(([1.0, 2.0, 3.0], [0, 2, 1], [0, 2, 3]), shape=(2, 3))
    CSR(2x3, f32, nnz=3)
    """
    if not isinstance(data, tuple):
        return _converted(data, "csr").tocsr()
    values, indices, indptr = _three(data, "csr")
    columns = _extent(indices) if shape is None else None
    pattern = Pattern.of(indices, indptr, shape if columns is None else (len(indptr) - 1, columns), "csr")
    return CSR(checked_values(values, (pattern.nnz,), "csr"), pattern)


def csc(data: Any, shape: Any = None) -> CSC:
    """A matrix in compressed columns, from (values, indices, indptr), a dense array, or a sparse matrix of any kind."""
    if not isinstance(data, tuple):
        return _converted(data, "csc").tocsc()
    values, indices, indptr = _three(data, "csc")
    size = (_extent(indices), len(indptr) - 1) if shape is None else as_shape(shape, "csc")
    pattern = Pattern.of(indices, indptr, size[::-1], "csc", "columns rows")
    return CSC(checked_values(values, (pattern.nnz,), "csc"), pattern)


def coo(data: Any, shape: Any = None) -> COO:
    """A matrix from (values, (rows, columns)) in any order, a dense array, or a sparse matrix of any kind."""
    if not isinstance(data, tuple):
        return _converted(data, "coo").tocoo()
    if len(data) != 2 or not isinstance(data[1], tuple | list) or len(data[1]) != 2:
        raise OpError("coo: needs (values, (rows, columns))")
    values, (rows, columns) = data
    size = (_extent(rows), _extent(columns)) if shape is None else shape
    coordinates = Coordinates.of(rows, columns, size)
    return COO(checked_values(values, (coordinates.nnz,), "coo"), coordinates)


def bsr(data: Any, shape: Any = None, blocksize: tuple[int, int] | None = None) -> BSR:
    """Compressed rows of dense blocks, from (values [blocks, r, c], indices, indptr) or, with `blocksize`, from a dense
    array or a sparse matrix of any kind."""
    if not isinstance(data, tuple):
        found = _converted(data, "bsr")
        if blocksize is None:
            if isinstance(found, BSR):
                return found
            raise OpError("bsr: the blocksize=(r, c) must be given")
        return found.tobsr(blocksize)
    values, indices, indptr = _three(data, "bsr")
    dims = dims_of(values) if hasattr(values, "shape") else np.shape(values)
    if len(dims) != 3:
        raise ShapeError(f"bsr: values must be blocks [count, r, c], got shape {tuple(dims)}")
    block = int(dims[1]), int(dims[2])
    if shape is None:
        shape = ((len(indptr) - 1) * block[0], _extent(indices) * block[1])
    rows, columns = as_shape(shape, "bsr")
    if min(block) < 1 or rows % block[0] or columns % block[1]:
        raise ShapeError(f"bsr: blocks of {block[0]}x{block[1]} do not divide a matrix of {rows}x{columns}")
    pattern = Pattern.of(indices, indptr, (rows // block[0], columns // block[1]), "bsr", "block_rows block_columns")
    return BSR(checked_values(values, (pattern.nnz, *block), "bsr"), pattern, block)


def from_scipy(matrix: Any) -> SparseArray:
    """A SciPy matrix or array in the same format (csr, csc, coo, bsr; others become csr).

    Values and indices are shared with SciPy, and must not be written to afterwards. Where SciPy has not sorted them,
    or holds an entry twice, a sorted copy is made.
    """
    kind = getattr(matrix, "format", None)
    if kind is None or not hasattr(matrix, "tocsr"):
        raise OpError(f"from_scipy: needs a SciPy sparse matrix, got {type(matrix).__name__}; use csr(array)")
    if getattr(matrix, "ndim", 2) != 2:
        raise ShapeError(f"from_scipy: needs two axes, got shape {matrix.shape}")
    if kind == "coo":
        return coo((matrix.data, tuple(matrix.coords)), matrix.shape)
    if kind not in ("csr", "csc", "bsr"):
        matrix, kind = matrix.tocsr(), "csr"
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    arrays = (matrix.data, matrix.indices, matrix.indptr)
    if kind == "bsr":
        return bsr(arrays, matrix.shape)
    return csc(arrays, matrix.shape) if kind == "csc" else csr(arrays, matrix.shape)


def to_scipy(matrix: SparseArray) -> Any:
    """The SciPy array of the same format, without a copy; its values must not be written to."""
    if isinstance(matrix.values, Tensor):
        raise TraceError("to_scipy: the values are traced, and known only when the program runs")
    return matrix.to_scipy()


def from_dense(array: Any) -> CSR:
    """The entries of a dense matrix that are not 0. Inside of a program all entries: which are 0 is not known there."""
    if len(dims_of(array)) != 2:
        raise ShapeError(f"sparse: needs a dense array with two axes, got shape {tuple(dims_of(array))}")
    rows, columns = (int(n) for n in dims_of(array))
    if isinstance(array, Tensor):
        places = np.arange(rows * columns)
    else:
        places = np.flatnonzero(np.asarray(array) != 0)
    pattern = Pattern.from_places(places, (rows, columns), np.int32)
    values = rnp.take(rnp.reshape(array, (-1,)), places)
    return CSR(checked_values(values, (pattern.nnz,), "from_dense"), pattern)


def eye(rows: int, columns: int | None = None, dtype: Any = "f32") -> CSR:
    """The identity, or ones on the diagonal of a rectangle."""
    rows, columns = as_shape((rows, rows if columns is None else columns), "eye")
    places = np.arange(min(rows, columns), dtype=np.int64) * (columns + 1)
    return CSR(np.ones(len(places), rnp.dtype(dtype)), Pattern.from_places(places, (rows, columns), np.int32))


def diags(diagonals: Any, offsets: Any, shape: Any = None) -> CSR:
    """A matrix with these diagonals; offset k > 0 is above the main one. Each is as long as its diagonal, or a number.

    >>> diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(3, 3)).todense().tolist()
    [[2.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 2.0]]
    """
    offsets = [int(k) for k in np.atleast_1d(offsets)]
    if len(offsets) != len(diagonals):
        raise OpError(f"diags: needs one offset for each diagonal, got {len(offsets)} and {len(diagonals)}")
    if shape is None:
        size = max((int(dims_of(d)[0]) if len(dims_of(d)) else 0) + abs(k) for d, k in zip(diagonals, offsets))
        shape = (size, size)
    rows, columns = as_shape(shape, "diags")
    places, values = [], []
    for diagonal, k in zip(diagonals, offsets):
        row, column = max(0, -k), max(0, k)
        length = max(0, min(rows - row, columns - column))
        if len(dims_of(diagonal)) and dims_of(diagonal)[0] != length:
            raise ShapeError(f"diags: the diagonal at {k} has {length} elements, got {tuple(dims_of(diagonal))}")
        places.append((np.arange(length) + row, np.arange(length) + column))
        values.append(rnp.broadcast_to(rnp.asarray(diagonal), (length,)))
    where = tuple(np.concatenate([p[axis] for p in places]).astype(np.int32) for axis in (0, 1))
    return coo((rnp.concatenate(values), where), (rows, columns)).tocsr()


def _three(data: tuple[Any, ...], what: str) -> tuple[Any, Any, Any]:
    if len(data) != 3:
        raise OpError(f"{what}: needs (values, indices, indptr), got {len(data)} arrays")
    return data


def _extent(indices: Any) -> int:
    """The size of the axis that these indices need."""
    array = np.asarray(indices)
    return int(array.max()) + 1 if array.size else 0


def _converted(data: Any, what: str) -> SparseArray:
    if isinstance(data, SparseArray):
        return data
    if hasattr(data, "tocsr"):
        return from_scipy(data)
    if not hasattr(data, "shape"):
        data = np.asarray(data)
    return from_dense(data)
