"""Sparse matrices: `CSR`, `CSC`, `COO` and `BSR`, trees whose only leaf is their values.

    A = rlx.sparse.from_scipy(S)                      # or csr((values, indices, indptr), shape), coo(...), ...
    y = A @ x
    g = rlx.grad(lambda v: loss(A.with_values(v) @ x))(A.values)

Where the entries are (`A.pattern`) is known when a program is traced; what they are (`A.values`) may be traced,
batched and differentiated. All formats do the same things; what a format has no way of its own for is done in
compressed rows, to which any other format is a reordering of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

import rlx.numpy as rnp
from rlx.errors import DTypeError, OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.ops import scatter_add
from rlx.ops.define.operands import convert, dims_of, dtype_of, promote_inexact
from rlx.sparse import elementwise, products, slicing
from rlx.sparse.patterns import Coordinates, Pattern, frozen
from rlx.tree import register_pytree_node

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = (DType.F32, DType.F64, DType.C64, DType.C128)


class SparseArray:
    """What all formats share. A matrix is immutable; `with_values` gives another one with the same entries."""

    format: ClassVar[str]
    ndim: ClassVar[int] = 2
    # NumPy leaves `array @ A` and its like to the methods below.
    __array_ufunc__: ClassVar[None] = None
    __hash__ = None  # type: ignore[assignment]

    values: Any

    @property
    def shape(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the values."""
        return np.dtype(dtype_of(self.values).numpy)

    @property
    def nnz(self) -> int:
        """The number of stored entries, zeros among them included."""
        raise NotImplementedError

    def with_values(self, values: Any) -> Self:
        """The same entries with other values, in the order of `A.values`."""
        raise NotImplementedError

    def tocsr(self) -> CSR:
        raise NotImplementedError

    @property
    def T(self) -> SparseArray:
        raise NotImplementedError

    def transpose(self) -> SparseArray:
        return self.T

    @property
    def H(self) -> SparseArray:
        """The conjugate transpose."""
        return self.conj().T

    # Other forms.

    def tocsc(self) -> CSC:
        """Compressed columns."""
        a = self.tocsr()
        transposed = a.pattern.transposed
        return CSC(rnp.take(a.values, transposed.order), transposed.pattern)

    def tocoo(self) -> COO:
        """Coordinates, row by row."""
        a = self.tocsr()
        return COO(a.values, Coordinates(frozen(a.pattern.rows), a.pattern.indices, a.shape))

    def tobsr(self, blocksize: tuple[int, int]) -> BSR:
        """Dense blocks of one size, which divides the shape; what a block has no entry for is 0."""
        a, (r, c) = self.tocsr(), blocksize
        rows, columns = a.shape
        if r < 1 or c < 1 or rows % r or columns % c:
            raise ShapeError(f"tobsr: blocks of {r}x{c} do not divide a matrix of {rows}x{columns}")
        p = a.pattern
        blocks = (p.rows // r).astype(np.int64) * max(columns // c, 1) + p.indices // c
        distinct, block = np.unique(blocks, return_inverse=True)
        pattern = Pattern.from_places(distinct, (rows // r, columns // c), p.indices.dtype)
        places = (block.reshape(-1) * r + p.rows % r) * c + p.indices % c
        flat = scatter_add(a.values, places.astype(np.int64), len(distinct) * r * c)
        return BSR(rnp.reshape(flat, (len(distinct), r, c)), pattern, (r, c))

    def todense(self) -> Any:
        """The dense array."""
        a = self.tocsr()
        rows, columns = a.shape
        return rnp.reshape(scatter_add(a.values, a.pattern.places, rows * columns), (rows, columns))

    toarray = todense

    def to_scipy(self) -> Any:
        """The SciPy array of the same format; values and indices are shared, not copied."""
        raise NotImplementedError

    def astype(self, dtype: Any) -> Self:
        return self.map(lambda v: convert(v, DType.of(dtype)))

    # Products.

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, SparseArray):
            return self._times_sparse(other)
        return self._times_dense(other)

    def _times_sparse(self, other: SparseArray) -> CSR:
        a, b = self.tocsr(), other.tocsr()
        values, pattern = products.sparse_times_sparse(a.values, a.pattern, b.values, b.pattern)
        return CSR(values, pattern)

    def _times_dense(self, x: Any) -> Any:
        return self.tocsr()._times_dense(x)

    def __rmatmul__(self, x: Any) -> Any:
        if len(dims_of(x)) == 1:
            return self.T @ x
        return rnp.swapaxes(self.T @ rnp.swapaxes(x, 0, 1), 0, 1)

    dot = __matmul__

    # Elementwise.

    def map(self, function: Callable[[Any], Any]) -> Self:
        """`function` applied to the stored values; a function that does not keep 0 is applied to these only."""
        return self.with_values(function(self.values))

    def __neg__(self) -> Self:
        return self.map(lambda v: -v)

    def __abs__(self) -> Self:
        return self.map(rnp.abs)

    def conj(self) -> Self:
        return self.map(rnp.conj) if dtype_of(self.values).is_complex else self

    conjugate = conj

    @property
    def real(self) -> Self:
        return self.map(rnp.real)

    @property
    def imag(self) -> Self:
        return self.map(rnp.imag)

    def __pow__(self, exponent: Any) -> Self:
        if not np.isscalar(exponent) or not float(np.real(exponent)) > 0:
            raise OpError(f"sparse: A ** n needs a positive number n, since zeros must stay 0; got {exponent!r}")
        return self.map(lambda v: v**exponent)

    def __mul__(self, other: Any) -> Any:
        """Elementwise, as NumPy's: with a number, an array that broadcasts to the shape, or a sparse matrix."""
        if isinstance(other, SparseArray):
            return CSR(*elementwise.multiplied(self.tocsr(), other.tocsr()))
        if len(dims_of(other)) == 0:
            return self.map(lambda v: v * other)
        a = self.tocsr()
        return a.map(lambda v: v * elementwise.sampled(a.pattern, other, "multiply"))

    __rmul__ = __mul__
    multiply = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, SparseArray):
            raise OpError("sparse: dividing by a sparse matrix divides by its zeros; use B.todense(), or A * B.map(f)")
        if len(dims_of(other)) == 0:
            return self.map(lambda v: v / other)
        a = self.tocsr()
        return a.map(lambda v: v / elementwise.sampled(a.pattern, other, "divide"))

    def __add__(self, other: Any) -> Any:
        """With a sparse matrix a sparse one, with a dense one a dense one."""
        if isinstance(other, SparseArray):
            return CSR(*elementwise.added(self.tocsr(), other.tocsr()))
        if len(dims_of(other)) == 0:
            if isinstance(other, int | float | complex) and other == 0:
                return self
            raise OpError("sparse: A + a number is not sparse; use A.todense() + number, or A.map(f) for its entries")
        return self.todense() + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    # Reductions; entries that are not stored are zeros.

    def sum(self, axis: int | None = None) -> Any:
        """Over all entries, or along an axis, as a dense array."""
        return elementwise.reduced_sum(self.tocsr(), axis)

    def mean(self, axis: int | None = None) -> Any:
        rows, columns = self.shape
        count = rows * columns if axis is None else self.shape[axis]
        return self.sum(axis) / count

    def max(self, axis: int | None = None) -> Any:
        return elementwise.extreme(self.tocsr(), axis, "max")

    def min(self, axis: int | None = None) -> Any:
        return elementwise.extreme(self.tocsr(), axis, "min")

    def diagonal(self) -> Any:
        """The main diagonal, dense."""
        a = self.tocsr()
        entries, rows = a.pattern.diagonal
        return scatter_add(rnp.take(a.values, entries), rows, min(a.shape))

    def trace(self) -> Any:
        a = self.tocsr()
        return rnp.sum(rnp.take(a.values, a.pattern.diagonal[0]))

    def norm(self) -> Any:
        """The Frobenius norm."""
        return rnp.sqrt(rnp.sum(rnp.abs(self.tocsr().values) ** 2))

    def __getitem__(self, key: Any) -> Any:
        """Rows and columns by numbers, slices, lists and masks: a sparse matrix, in which one number keeps its axis.

        `A[i, j]` is a number, `A[rows, columns]` with two lists is the dense vector of these entries, and
        `A[np.ix_(rows, columns)]` is a sparse matrix.
        """
        a = self.tocsr()
        found = slicing.select(a.pattern, key)
        if isinstance(found, slicing.Points):
            taken = rnp.take(a.values, found.entries) if a.nnz else rnp.zeros(found.entries.shape, a.dtype)
            return rnp.where(found.exists, taken, rnp.zeros_like(taken))
        return CSR(rnp.take(a.values, found.entries), found.pattern)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"{type(self).__name__}({rows}x{columns}, {dtype_of(self.values)}, nnz={self.nnz})"


def checked_values(values: Any, dims: Sequence[int], what: str) -> Any:
    """Values of one of the dtypes that sparse matrices have, one for each entry; integers become floats."""
    if isinstance(values, list | tuple):
        values = rnp.asarray(values)
    (values,) = promote_inexact(values)
    if tuple(dims_of(values)) != tuple(dims):
        raise ShapeError(
            f"{what}: needs values of shape {tuple(dims)}, one for each entry, got {tuple(dims_of(values))}"
        )
    if dtype_of(values) not in DTYPES:
        raise DTypeError(f"{what}: values must be f32, f64, c64 or c128, got {dtype_of(values)}; convert them first")
    return values


class _Compressed(SparseArray):
    """Compressed rows or columns."""

    def __init__(self, values: Any, pattern: Pattern) -> None:
        self.values, self.pattern = values, pattern

    @property
    def nnz(self) -> int:
        return self.pattern.nnz

    @property
    def indices(self) -> Array:
        return self.pattern.indices

    @property
    def indptr(self) -> Array:
        return self.pattern.indptr

    def with_values(self, values: Any) -> Self:
        return type(self)(checked_values(values, (self.nnz,), f"{self.format}.with_values"), self.pattern)


class CSR(_Compressed):
    """Compressed rows. `values` are row by row, and in a row by column: the order of SciPy's `csr_array`."""

    format = "csr"

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    def tocsr(self) -> CSR:
        return self

    @property
    def T(self) -> CSC:
        """The transpose: the same arrays, read as compressed columns."""
        return CSC(self.values, self.pattern)

    def _times_dense(self, x: Any) -> Any:
        return products.times(self.values, self.pattern, x)

    def to_scipy(self) -> Any:
        import scipy.sparse as sp

        return sp.csr_array((np.asarray(self.values), self.indices, self.indptr), shape=self.shape)


class CSC(_Compressed):
    """Compressed columns: the pattern is that of the transpose in compressed rows."""

    format = "csc"

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape[::-1]

    def tocsr(self) -> CSR:
        transposed = self.pattern.transposed
        return CSR(rnp.take(self.values, transposed.order), transposed.pattern)

    def tocsc(self) -> CSC:
        return self

    @property
    def T(self) -> CSR:
        """The transpose: the same arrays, read as compressed rows."""
        return CSR(self.values, self.pattern)

    def _times_dense(self, x: Any) -> Any:
        return products.transposed_times(self.values, self.pattern, x)

    def to_scipy(self) -> Any:
        import scipy.sparse as sp

        return sp.csc_array((np.asarray(self.values), self.indices, self.indptr), shape=self.shape)


class COO(SparseArray):
    """Entries in any order; those at the same place are added."""

    format = "coo"

    def __init__(self, values: Any, coordinates: Coordinates) -> None:
        self.values, self.coordinates = values, coordinates

    @property
    def shape(self) -> tuple[int, int]:
        return self.coordinates.shape

    @property
    def nnz(self) -> int:
        return self.coordinates.nnz

    @property
    def rows(self) -> Array:
        return self.coordinates.rows

    @property
    def columns(self) -> Array:
        return self.coordinates.columns

    def with_values(self, values: Any) -> Self:
        return type(self)(checked_values(values, (self.nnz,), "coo.with_values"), self.coordinates)

    def tocsr(self) -> CSR:
        pattern, goals, _ = self.coordinates.compressed
        return CSR(scatter_add(self.values, goals, pattern.nnz), pattern)

    @property
    def T(self) -> COO:
        c = self.coordinates
        return COO(self.values, Coordinates(c.columns, c.rows, c.shape[::-1]))

    def to_scipy(self) -> Any:
        import scipy.sparse as sp

        return sp.coo_array((np.asarray(self.values), (self.rows, self.columns)), shape=self.shape)


class BSR(SparseArray):
    """Compressed rows of dense blocks: values [blocks, r, c]; `pattern` says where the blocks are."""

    format = "bsr"

    def __init__(self, values: Any, pattern: Pattern, blocksize: tuple[int, int]) -> None:
        self.values, self.pattern, self.blocksize = values, pattern, blocksize

    @property
    def shape(self) -> tuple[int, int]:
        (rows, columns), (r, c) = self.pattern.shape, self.blocksize
        return rows * r, columns * c

    @property
    def nnz(self) -> int:
        return self.pattern.nnz * self.blocksize[0] * self.blocksize[1]

    @property
    def indices(self) -> Array:
        return self.pattern.indices

    @property
    def indptr(self) -> Array:
        return self.pattern.indptr

    def with_values(self, values: Any) -> Self:
        dims = (self.pattern.nnz, *self.blocksize)
        return type(self)(checked_values(values, dims, "bsr.with_values"), self.pattern, self.blocksize)

    def tocsr(self) -> CSR:
        (r, c), p = self.blocksize, self.pattern
        rows = p.rows[:, None, None] * r + np.arange(r)[:, None]
        places = rows.astype(np.int64) * max(self.shape[1], 1) + p.indices[:, None, None] * c + np.arange(c)
        flat = places.reshape(-1)
        order = np.argsort(flat, kind="stable")
        pattern = Pattern.from_places(flat[order], self.shape, p.indices.dtype)
        return CSR(rnp.take(rnp.reshape(self.values, (-1,)), order), pattern)

    @property
    def T(self) -> BSR:
        transposed = self.pattern.transposed
        blocks = rnp.swapaxes(rnp.take(self.values, transposed.order, axis=0), 1, 2)
        return BSR(blocks, transposed.pattern, self.blocksize[::-1])

    def to_scipy(self) -> Any:
        import scipy.sparse as sp

        return sp.bsr_array((np.asarray(self.values), self.indices, self.indptr), shape=self.shape)


register_pytree_node(CSR, lambda a: ((a.values,), a.pattern), lambda p, xs: CSR(xs[0], p))
register_pytree_node(CSC, lambda a: ((a.values,), a.pattern), lambda p, xs: CSC(xs[0], p))
register_pytree_node(COO, lambda a: ((a.values,), a.coordinates), lambda c, xs: COO(xs[0], c))
register_pytree_node(BSR, lambda a: ((a.values,), (a.pattern, a.blocksize)), lambda aux, xs: BSR(xs[0], *aux))
