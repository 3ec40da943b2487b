"""Products with a matrix in compressed rows: `A @ x`, `Aᵀ @ x`, and the sampled product that is their derivative.

The matrix is three operands: `values` [nnz], the columns `indices` [nnz] and the row bounds `indptr` [rows + 1]; row i
has the entries indptr[i] .. indptr[i + 1]. Dense operands are one vector or a matrix whose columns are vectors.

Patterns are checked where arrays are made (`rlx.sparse.patterns`). The ops themselves take a column that is out of
range to be the last one, and read no entry that is not there; more is not promised about patterns that are not valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import dim_min, require_at_most, require_equal
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import require_dtype, require_rank, require_same_dtype, same_graph
from rlx.ops.define.rules import put_batch_first
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.contraction import conjugated
from rlx.ops.shape.creation import dim_value, iota
from rlx.ops.shape.movement import concat, expand, moveaxis, narrow, reshaped

Array = np.ndarray[Any, np.dtype[Any]]

REAL = ("f32", "f64")
COMPLEX = ("c64", "c128")
# A 3 x 4 matrix with an empty row, for samples: rows (0, 2), (), (0, 1, 3).
SAMPLE_INDICES = spec(5, dtype="i32", values=(0, 2, 0, 1, 3))
SAMPLE_INDPTR = spec(4, dtype="i32", values=(0, 2, 2, 5))
WIDE_INDICES = spec("Z", dtype="i64", values=(0, 2, 0, 1, 3))
WIDE_INDPTR = spec(4, dtype="i64", values=(0, 2, 2, 5))


def require_values(op: Op, *shapes: Shape) -> None:
    """Refuse numbers that sparse kernels do not have."""
    ok = all(s.dtype.value in (*REAL, *COMPLEX) for s in shapes)
    require_dtype(op, ok, "f32, f64, c64 or c128", *shapes)
    require_same_dtype(op, *shapes)


def require_pattern(op: Op, indices: Shape, indptr: Shape, values: Shape | None = None) -> None:
    ok = indices.dtype.value in ("i32", "i64") and indptr.dtype is indices.dtype
    require_dtype(op, ok, "indices and indptr of one dtype, i32 or i64, as", indices, indptr)
    for shape in (indices, indptr, *(() if values is None else (values,))):
        require_rank(op, shape, 1)
    if values is not None and not require_equal(values.dims[0], indices.dims[0], op.mnemonic):
        raise op.fail(f"needs as many values as indices, got {values} and {indices}")


def rows_of(indptr: Shape) -> Size:
    """The number of rows that a row bound stands for."""
    return indptr.dims[0] - 1


def row_ids(indptr: Array, count: int) -> Array:
    """The row of each of `count` entries."""
    bounds = np.clip(indptr, 0, count)
    rows = np.repeat(np.arange(len(bounds) - 1), np.maximum(np.diff(bounds), 0))
    return np.resize(rows, count) if len(rows) != count else rows


def in_range(indices: Array, size: int) -> Array:
    """Columns that can be read: what is out of range is the last."""
    return np.where((indices < 0) | (indices >= size), size - 1, indices)


def _entries(values: Array, places: Array, x: Array) -> Array:
    """values[k] * x[places[k]] for each entry."""
    with np.errstate(all="ignore"):
        product: Array = values.reshape(-1, *(1,) * (x.ndim - 1)) * x[places]
    return product


def summed_by(places: Array, terms: Array, size: int) -> Array:
    """y[places[k]] += terms[k], in double precision, as the dtype of the terms."""
    wide = np.zeros((size, *terms.shape[1:]), np.complex128 if terms.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        np.add.at(wide, places, terms)
        return wide.astype(terms.dtype)


def block_diagonal(
    size: Size, indices: Tensor, indptr: Tensor, batched: Sequence[bool], columns: Size
) -> tuple[Any, Any]:
    """The pattern of a matrix with `size` blocks on its diagonal, one for each example of a batch."""
    nnz = indices.type.dims[-1]
    with same_graph(indices):
        every = put_batch_first(indices, batched[0], size) + batch_offsets(size, columns, nnz, indices)
    return reshaped(every, (size * nnz,)), joined_bounds(put_batch_first(indptr, batched[1], size), size, nnz)


def batch_offsets(size: Size, step: Size, length: Size, like: Tensor) -> Any:
    """0, step, 2·step, .. for the examples of a batch, each `length` times."""
    return expand(iota((size, 1), like.dtype) * dim_value(step, like.dtype), (size, length))


def joined_bounds(indptr: Tensor, size: Size, nnz: Size) -> Any:
    """The row bounds [size, rows + 1] of a batch of matrices as those of their blocks in one matrix."""
    rows = indptr.type.dims[1] - 1
    with same_graph(indptr):
        bounds = narrow(indptr + batch_offsets(size, nnz, rows + 1, indptr), 1, 0, rows)
        last = reshaped(dim_value(size * nnz, indptr.dtype), (1,))
        return concat([reshaped(bounds, (size * rows,)), last])


def joined(x: Tensor, batched: bool, size: Size) -> Any:
    """[size, n, ..] as [size * n, ..], repeated first where there is no batch axis."""
    whole = put_batch_first(x, batched, size)
    return reshaped(whole, (size * whole.type.dims[1], *whole.type.dims[2:]))


def split(y: Any, size: Size, length: Size) -> Any:
    return reshaped(y, (size, length, *y.type.dims[1:]))


class _MatrixProduct(Op):
    """What `A @ x` and `Aᵀ @ x` share."""

    multilinear_in = (0, 3)

    def _check(self, values: Shape, indices: Shape, indptr: Shape, x: Shape) -> None:
        require_values(self, values, x)
        require_pattern(self, indices, indptr, values)
        require_rank(self, x, 1, 2)

    def _batch_columns(self, size: Size, operands: Sequence[Tensor]) -> Any:
        """Examples that share the matrix are columns of one product."""
        values, indices, indptr, x = operands
        columns = moveaxis(x, 0, 1)
        if columns.ndim == 2:
            return moveaxis(self(values, indices, indptr, columns), 1, 0)
        kept = columns.type.dims[1:]
        y = self(values, indices, indptr, reshaped(columns, (columns.type.dims[0], kept[0] * kept[1])))
        return moveaxis(reshaped(y, (y.type.dims[0], *kept)), 1, 0)


@op("csr_matmul")
class CsrMatMul(_MatrixProduct):
    """y = A x for A in compressed rows (values, indices, indptr) and x [columns] or [columns, K]."""

    primitive = True

    def infer(self, values: Shape, indices: Shape, indptr: Shape, x: Shape) -> Shape:
        self._check(values, indices, indptr, x)
        return x.with_dims((rows_of(indptr), *x.dims[1:]))

    def eval(self, values: Array, indices: Array, indptr: Array, x: Array) -> Array:
        if not len(x):
            return np.zeros((len(indptr) - 1, *x.shape[1:]), x.dtype)
        terms = _entries(values, in_range(indices, len(x)), x)
        return summed_by(row_ids(indptr, len(values)), terms, len(indptr) - 1)

    def vjp(self, ct: Tensor, y: Tensor, values: Tensor, indices: Tensor, indptr: Tensor, x: Tensor) -> Any:
        back = CsrTransposedMatMul(x.type.dims[0])
        x_ct = back(conjugated(values), indices, indptr, ct)
        return CsrSampledProduct()(indices, indptr, ct, conjugated(x)), None, None, x_ct

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        if not any(batched[:3]):
            return self._batch_columns(size, operands)
        values, indices, indptr, x = operands
        columns = x.type.dims[1] if batched[3] else x.type.dims[0]
        pattern = block_diagonal(size, indices, indptr, batched[1:3], columns)
        y = self(joined(values, batched[0], size), *pattern, joined(x, batched[3], size))
        return split(y, size, indptr.type.dims[-1] - 1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((4,), (4, 2), (4, 19)):
            yield sample(cls(), spec(5), SAMPLE_INDICES, SAMPLE_INDPTR, spec(*dims), dtypes=REAL)
            yield sample(cls(), spec(5), SAMPLE_INDICES, SAMPLE_INDPTR, spec(*dims), dtypes=COMPLEX)
        empty = spec(0, dtype="i64"), spec(1, dtype="i64", values=0)
        yield sample(cls(), spec(0), *empty, spec(4, 2), dtypes=REAL)
        yield sample(cls(), spec("Z"), WIDE_INDICES, WIDE_INDPTR, spec("N", "K"), dtypes=REAL, Z=5, N=4, K=3)
        yield sample(cls(), spec("Z"), WIDE_INDICES, WIDE_INDPTR, spec("N"), dtypes=REAL, Z=5, N=4)


@op("csr_transposed_matmul")
class CsrTransposedMatMul(_MatrixProduct):
    """y = Aᵀ x for A in compressed rows with `columns` columns, and x [rows] or [rows, K]."""

    primitive = True

    columns: Size

    def infer(self, values: Shape, indices: Shape, indptr: Shape, x: Shape) -> Shape:
        self._check(values, indices, indptr, x)
        if not require_equal(x.dims[0], rows_of(indptr), self.mnemonic):
            raise self.fail(f"needs one row of x for each of the {rows_of(indptr)} rows of A, got {x}")
        return x.with_dims((self.columns, *x.dims[1:]))

    def eval(self, values: Array, indices: Array, indptr: Array, x: Array) -> Array:
        assert isinstance(self.columns, int)
        if not self.columns or not len(x):
            return np.zeros((self.columns, *x.shape[1:]), x.dtype)
        terms = _entries(values, row_ids(indptr, len(values)), x)
        return summed_by(in_range(indices, self.columns), terms, self.columns)

    def vjp(self, ct: Tensor, y: Tensor, values: Tensor, indices: Tensor, indptr: Tensor, x: Tensor) -> Any:
        x_ct = CsrMatMul()(conjugated(values), indices, indptr, ct)
        return CsrSampledProduct()(indices, indptr, conjugated(x), ct), None, None, x_ct

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        if not any(batched[:3]):
            return self._batch_columns(size, operands)
        values, indices, indptr, x = operands
        pattern = block_diagonal(size, indices, indptr, batched[1:3], self.columns)
        whole = CsrTransposedMatMul(self.columns * size)
        y = whole(joined(values, batched[0], size), *pattern, joined(x, batched[3], size))
        return split(y, size, self.columns)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((3,), (3, 2), (3, 19)):
            yield sample(cls(4), spec(5), SAMPLE_INDICES, SAMPLE_INDPTR, spec(*dims), dtypes=REAL)
            yield sample(cls(4), spec(5), SAMPLE_INDICES, SAMPLE_INDPTR, spec(*dims), dtypes=COMPLEX)
        empty = spec(0, dtype="i64"), spec(1, dtype="i64", values=0)
        yield sample(cls(4), spec(0), *empty, spec(0, 2), dtypes=REAL)
        yield sample(cls(4), spec("Z"), WIDE_INDICES, WIDE_INDPTR, spec(3, "K"), dtypes=REAL, Z=5, K=3)


@op("csr_sampled_product")
class CsrSampledProduct(Op):
    """out[k] = Σ u[row of k, c]·v[column of k, c]: the entries of U Vᵀ that a pattern names (SDDMM).

    u is [rows] or [rows, K], v is [columns] or [columns, K].
    """

    primitive = True
    multilinear_in = (2, 3)

    def infer(self, indices: Shape, indptr: Shape, u: Shape, v: Shape) -> Shape:
        require_values(self, u, v)
        require_pattern(self, indices, indptr)
        require_rank(self, u, 1, 2)
        require_rank(self, v, u.rank)
        agree = require_equal(u.dims[0], rows_of(indptr), self.mnemonic)
        if not agree or not all(require_equal(a, b, self.mnemonic) for a, b in zip(u.dims[1:], v.dims[1:])):
            raise self.fail(f"needs u [rows, K] and v [columns, K] for {rows_of(indptr)} rows, got {u} and {v}")
        if not require_at_most(dim_min(indices.dims[0], 1), v.dims[0], self.mnemonic):
            raise self.fail(f"entries select from rows of v, and there are none: {indices} and {v}")
        return u.with_dims(indices.dims)

    def eval(self, indices: Array, indptr: Array, u: Array, v: Array) -> Array:
        if not len(v) or not len(u):
            return np.zeros(len(indices), u.dtype)
        places, rows = in_range(indices, len(v)), row_ids(indptr, len(indices))
        wide = np.complex128 if u.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            terms: Array = (u[rows].astype(wide) * v[places]).reshape(len(indices), -1).sum(axis=1)
            return terms.astype(u.dtype)

    def vjp(self, ct: Tensor, y: Tensor, indices: Tensor, indptr: Tensor, u: Tensor, v: Tensor) -> Any:
        u_ct = CsrMatMul()(ct, indices, indptr, conjugated(v))
        v_ct = CsrTransposedMatMul(v.type.dims[0])(ct, indices, indptr, conjugated(u))
        return None, None, u_ct, v_ct

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        indices, indptr, u, v = operands
        columns = v.type.dims[1] if batched[3] else v.type.dims[0]
        pattern = block_diagonal(size, indices, indptr, batched[:2], columns)
        y = self(*pattern, joined(u, batched[2], size), joined(v, batched[3], size))
        return split(y, size, indices.type.dims[-1])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for tail in ((), (2,), (19,)):
            yield sample(cls(), SAMPLE_INDICES, SAMPLE_INDPTR, spec(3, *tail), spec(4, *tail), dtypes=REAL)
            yield sample(cls(), SAMPLE_INDICES, SAMPLE_INDPTR, spec(3, *tail), spec(4, *tail), dtypes=COMPLEX)
        yield sample(cls(), WIDE_INDICES, WIDE_INDPTR, spec(3, "K"), spec("N", "K"), dtypes=REAL, Z=5, N=4, K=3)


@op("csr_row_ids")
class CsrRowIds(Op):
    """The row of each entry, given the row bounds; `count` entries."""

    primitive = True
    jvp = vjp = NoRule("positions are not numbers to differentiate")

    count: Size

    def infer(self, indptr: Shape) -> Shape:
        require_dtype(self, indptr.dtype.value in ("i32", "i64"), "i32 or i64", indptr)
        require_rank(self, indptr, 1)
        return indptr.with_dims((self.count,))

    def eval(self, indptr: Array) -> Array:
        assert isinstance(self.count, int)
        return row_ids(indptr, self.count).astype(indptr.dtype)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        (indptr,) = operands
        ids = CsrRowIds(size * self.count)(joined_bounds(indptr, size, self.count))
        with same_graph(indptr):
            return split(ids, size, self.count) - batch_offsets(size, indptr.type.dims[1] - 1, self.count, indptr)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(5), SAMPLE_INDPTR, dtypes=("f32",))
        yield sample(cls(5), spec("M", dtype="i64", values=(0, 2, 2, 5)), dtypes=("f32",), M=4)
