"""Sparse times sparse at given entries (`csr_masked_product`), and the transpose that its derivative needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import same_graph
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.contraction import conjugated
from rlx.ops.shape.creation import dim_value
from rlx.ops.shape.movement import concat, expand, narrow
from rlx.sparse.ops_products import (
    COMPLEX,
    REAL,
    SAMPLE_INDICES,
    SAMPLE_INDPTR,
    WIDE_INDICES,
    WIDE_INDPTR,
    batch_offsets,
    block_diagonal,
    in_range,
    joined,
    require_pattern,
    require_values,
    row_ids,
    rows_of,
    split,
)

Array = np.ndarray[Any, np.dtype[Any]]


@op("csr_transpose")
class CsrTranspose(Op):
    """(values, indices, indptr) of Aᵀ in compressed rows, for A with `columns` columns; a valid pattern is needed."""

    primitive = True

    columns: Size

    def infer(self, values: Shape, indices: Shape, indptr: Shape) -> tuple[Shape, Shape, Shape]:
        require_values(self, values)
        require_pattern(self, indices, indptr, values)
        return values, indices, indptr.with_dims((self.columns + 1,))

    def eval(self, values: Array, indices: Array, indptr: Array) -> tuple[Array, Array, Array]:
        assert isinstance(self.columns, int)
        places = in_range(indices, self.columns)
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=self.columns) if len(indices) else np.zeros(self.columns, np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(indptr.dtype)
        return values[order], row_ids(indptr, len(values))[order].astype(indices.dtype), bounds

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], y: Any) -> Any:
        return self(tangents[0], *primals[1:])[0], None, None

    def vjp(self, ct: Any, y: Any, values: Tensor, indices: Tensor, indptr: Tensor) -> Any:
        back = CsrTranspose(rows_of(indptr.type))(ct[0], y[1], y[2])
        return back[0], None, None

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        values, indices, indptr = operands
        nnz, rows = indices.type.dims[-1], indptr.type.dims[-1] - 1
        pattern = block_diagonal(size, indices, indptr, batched[1:], self.columns)
        whole = CsrTranspose(self.columns * size)(joined(values, batched[0], size), *pattern)
        with same_graph(indptr):
            starts = split(narrow(whole[2], 0, 0, self.columns * size), size, self.columns)
            starts = starts - batch_offsets(size, nnz, self.columns, indptr)
            last = expand(dim_value(nnz, indptr.dtype), (size, 1))
            ids = split(whole[1], size, nnz) - batch_offsets(size, rows, nnz, indices)
        return split(whole[0], size, nnz), ids, concat([starts, last], 1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(4), spec(5), SAMPLE_INDICES, SAMPLE_INDPTR, dtypes=REAL)
        yield sample(cls(4), spec(5), SAMPLE_INDICES, SAMPLE_INDPTR, dtypes=COMPLEX)
        yield sample(cls(3), spec(0), spec(0, dtype="i32"), spec(1, dtype="i32", values=0), dtypes=REAL)
        yield sample(cls(4), spec("Z"), WIDE_INDICES, WIDE_INDPTR, dtypes=REAL, Z=5)


@op("csr_masked_product")
class CsrMaskedProduct(Op):
    """out[k] = Σ A[i, t]·B[t, j] for each entry k = (i, j) of a pattern: the values of A B there; other products are
    left out. Operands are A (values, indices, indptr), B, and the indices and indptr of the pattern; B and the pattern
    have `columns` columns."""

    primitive = True
    multilinear_in = (0, 3)

    columns: Size

    def infer(self, a: Shape, ai: Shape, ap: Shape, b: Shape, bi: Shape, bp: Shape, ci: Shape, cp: Shape) -> Shape:
        require_values(self, a, b)
        require_pattern(self, ai, ap, a)
        require_pattern(self, bi, bp, b)
        require_pattern(self, ci, cp)
        if not require_equal(ap.dims[0], cp.dims[0], self.mnemonic):
            raise self.fail(f"the pattern needs the {rows_of(ap)} rows of A, got {rows_of(cp)}")
        return a.with_dims(ci.dims)

    def eval(self, a: Array, ai: Array, ap: Array, b: Array, bi: Array, bp: Array, ci: Array, cp: Array) -> Array:
        out = np.zeros(len(ci), np.complex128 if a.dtype.kind == "c" else np.float64)
        with np.errstate(all="ignore"):
            for i in range(len(ap) - 1):
                row = {int(c): k for k, c in enumerate(ci[cp[i] : cp[i + 1]], start=int(cp[i]))}
                for e in range(ap[i], ap[i + 1]):
                    for f in range(bp[ai[e]], bp[ai[e] + 1]):
                        k = row.get(int(bi[f]))
                        if k is not None:
                            out[k] += a[e] * b[f]
            return out.astype(a.dtype)

    def vjp(self, ct: Tensor, y: Tensor, *operands: Tensor) -> Any:
        a, ai, ap, b, bi, bp, ci, cp = operands
        middle = rows_of(bp.type)
        b_transposed = CsrTranspose(self.columns)(conjugated(b), bi, bp)
        a_ct = CsrMaskedProduct(middle)(ct, ci, cp, *b_transposed, ai, ap)
        a_transposed = CsrTranspose(middle)(conjugated(a), ai, ap)
        b_ct = CsrMaskedProduct(self.columns)(*a_transposed, ct, ci, cp, bi, bp)
        return a_ct, None, None, b_ct, None, None, None, None

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        a, ai, ap, b, bi, bp, ci, cp = operands
        middle = bp.type.dims[-1] - 1
        left = joined(a, batched[0], size), *block_diagonal(size, ai, ap, batched[1:3], middle)
        right = joined(b, batched[3], size), *block_diagonal(size, bi, bp, batched[4:6], self.columns)
        pattern = block_diagonal(size, ci, cp, batched[6:], self.columns)
        y = CsrMaskedProduct(self.columns * size)(*left, *right, *pattern)
        return split(y, size, ci.type.dims[-1])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # B is 4 x 3 with the rows (1, 2), (0,), (), (2,); the pattern leaves (2, 0) out.
        right = spec(4), spec(4, dtype="i32", values=(1, 2, 0, 2)), spec(5, dtype="i32", values=(0, 2, 3, 3, 4))
        mask = spec(4, dtype="i32", values=(1, 2, 1, 2)), spec(4, dtype="i32", values=(0, 2, 2, 4))
        for dtypes in (REAL, COMPLEX):
            yield sample(cls(3), spec(5), SAMPLE_INDICES, SAMPLE_INDPTR, *right, *mask, dtypes=dtypes)
