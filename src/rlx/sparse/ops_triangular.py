"""Triangular systems and incomplete factorisations of square matrices in compressed rows.

On a pattern that already has all fill-in, the incomplete factorisations are the complete ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import require_rank
from rlx.ops.define.rules import zeros_like
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.contraction import conjugated
from rlx.ops.pointwise.arithmetic import where
from rlx.sparse.ops_products import (
    COMPLEX,
    REAL,
    CsrMatMul,
    CsrRowIds,
    CsrSampledProduct,
    CsrTransposedMatMul,
    block_diagonal,
    joined,
    require_pattern,
    require_values,
    rows_of,
    split,
)

Array = np.ndarray[Any, np.dtype[Any]]

# 4 x 4 with a full diagonal and entries on both sides of it: (0, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3).
_INDICES = spec(11, dtype="i32", values=(0, 2, 0, 1, 3, 0, 2, 3, 1, 2, 3))
_INDPTR = spec(5, dtype="i32", values=(0, 2, 5, 8, 11))
_VALUES = (4.0, 1.0, -1.0, 3.0, 0.5, 1.0, 5.0, -1.0, 0.5, -1.0, 4.0)
_COMPLEX_VALUES = (4.0 + 1j, 1.0j, -1.0, 3.0, 0.5j, 1.0, 5.0j, -1.0, 0.5, -1.0j, 4.0)


@op("csr_triangular_solve")
class CsrTriangularSolve(Op):
    """x with T x = b (Tᵀ x = b with `transpose`), for b [N] or [N, K], T being one triangle of a matrix in compressed
    rows. Entries of the other triangle are not read, nor the diagonal with `unit_diagonal`, which stands for ones. A
    diagonal entry that is zero or missing gives inf or NaN."""

    primitive = True

    lower: bool = True
    transpose: bool = False
    unit_diagonal: bool = False

    def infer(self, values: Shape, indices: Shape, indptr: Shape, b: Shape) -> Shape:
        require_values(self, values, b)
        require_pattern(self, indices, indptr, values)
        require_rank(self, b, 1, 2)
        if not require_equal(b.dims[0], rows_of(indptr), self.mnemonic):
            raise self.fail(f"needs one row of b for each of the {rows_of(indptr)} rows of A, got {b}")
        return b

    def eval(self, values: Array, indices: Array, indptr: Array, b: Array) -> Array:
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        x = b.astype(wide)
        rows = range(len(indptr) - 1)
        with np.errstate(all="ignore"):
            for i in rows if self.lower != self.transpose else reversed(rows):
                part = slice(int(indptr[i]), int(indptr[i + 1]))
                columns, entries = indices[part], values[part].astype(wide)
                read = columns < i if self.lower else columns > i
                pivot = entries[columns == i].sum() if not self.unit_diagonal else 1.0
                if not self.transpose:
                    known = x[columns[read]]
                    x[i] = (x[i] - np.tensordot(entries[read], known, 1)) / pivot
                else:
                    x[i] = x[i] / pivot
                    x[columns[read]] -= np.multiply.outer(entries[read], x[i])
            return x.astype(b.dtype)

    def _read(self, values: Tensor, indices: Tensor, indptr: Tensor) -> Any:
        """The values that are read (of cotangents: that matter), 0 in the other places."""
        rows = CsrRowIds(indices.type.dims[0])(indptr)
        if self.unit_diagonal:
            kept = indices < rows if self.lower else indices > rows
        else:
            kept = indices <= rows if self.lower else indices >= rows
        return where(kept, values, zeros_like(values))

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], x: Tensor) -> Any:
        """T dx = db - dT x, with the triangle of dT that is read."""
        values, indices, indptr, b = primals
        dvalues, _, _, db = tangents
        right = zeros_like(b) if db is None else db
        if dvalues is not None:
            moved = self._read(dvalues, indices, indptr)
            product = CsrTransposedMatMul(b.type.dims[0]) if self.transpose else CsrMatMul()
            right = right - product(moved, indices, indptr, x)
        return self(values, indices, indptr, right)

    def vjp(self, ct: Tensor, x: Tensor, values: Tensor, indices: Tensor, indptr: Tensor, b: Tensor) -> Any:
        b_ct = self.replace(transpose=not self.transpose)(conjugated(values), indices, indptr, ct)
        left, right = (conjugated(x), b_ct) if self.transpose else (b_ct, conjugated(x))
        outer = CsrSampledProduct()(indices, indptr, left, right)
        return -self._read(outer, indices, indptr), None, None, b_ct

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        values, indices, indptr, b = operands
        length = indptr.type.dims[-1] - 1
        pattern = block_diagonal(size, indices, indptr, batched[1:3], length)
        x = self(joined(values, batched[0], size), *pattern, joined(b, batched[3], size))
        return split(x, size, length)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pattern = _INDICES, _INDPTR
        for lower in (True, False):
            for transpose in (True, False):
                op_ = cls(lower, transpose)
                yield sample(op_, spec(11, values=_VALUES), *pattern, spec(4), dtypes=REAL)
                yield sample(op_, spec(11, values=_COMPLEX_VALUES), *pattern, spec(4, 3), dtypes=COMPLEX)
        yield sample(cls(unit_diagonal=True), spec(11, values=_VALUES), *pattern, spec(4, 9), dtypes=REAL)
        yield sample(cls(), spec(0), spec(0, dtype="i64"), spec(1, dtype="i64", values=0), spec(0), dtypes=REAL)
        symbolic = spec("Z", dtype="i32", values=_INDICES.values), _INDPTR
        yield sample(cls(), spec("Z", values=_VALUES), *symbolic, spec(4, "K"), dtypes=REAL, Z=11, K=2)


class _Incomplete(Op):
    """What the two incomplete factorisations share."""

    primitive = True
    jvp = vjp = NoRule(
        "an incomplete factorisation is a preconditioner: it changes the way to a solution, not the solution"
    )

    def infer(self, values: Shape, indices: Shape, indptr: Shape) -> Shape:
        require_values(self, values)
        require_pattern(self, indices, indptr, values)
        return values

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        values, indices, indptr = operands
        pattern = block_diagonal(size, indices, indptr, batched[1:], indptr.type.dims[-1] - 1)
        return split(self(joined(values, batched[0], size), *pattern), size, indices.type.dims[-1])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(11, values=_VALUES), _INDICES, _INDPTR, dtypes=REAL)
        yield sample(cls(), spec(11, values=_COMPLEX_VALUES), _INDICES, _INDPTR, dtypes=COMPLEX)
        yield sample(cls(), spec("Z", values=_VALUES), spec("Z", dtype="i32", values=_INDICES.values), _INDPTR,
                     dtypes=REAL, Z=11)  # fmt: skip


@op("csr_incomplete_lu")
class CsrIncompleteLu(_Incomplete):
    """ILU(0): L and U in the pattern of A, without the fill-in that it has no place for. Below the diagonal are the
    entries of L, whose diagonal is ones; on it and above those of U. There is no pivoting: a zero pivot gives inf or
    NaN."""

    def eval(self, values: Array, indices: Array, indptr: Array) -> Array:
        a = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
        place = [{int(c): k for k, c in enumerate(indices[indptr[i] : indptr[i + 1]], start=int(indptr[i]))}
                 for i in range(len(indptr) - 1)]  # fmt: skip
        with np.errstate(all="ignore"):
            for i, row in enumerate(place):
                for t, k in row.items():
                    if t >= i:
                        break
                    pivot = place[t].get(t)
                    a[k] = a[k] / (a[pivot] if pivot is not None else 0.0)
                    for c, other in place[t].items():
                        if c > t and c in row:
                            a[row[c]] -= a[k] * a[other]
            return a.astype(values.dtype)


@op("csr_incomplete_cholesky")
class CsrIncompleteCholesky(_Incomplete):
    """IC(0): L of L Lᴴ ≈ A in the lower triangle of the pattern of A, which is all that is read; entries above the
    diagonal are 0. A matrix that is not positive definite (or whose incomplete factor does not exist) gives NaN."""

    def eval(self, values: Array, indices: Array, indptr: Array) -> Array:
        wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
        result = np.zeros_like(wide)
        rows: list[dict[int, Any]] = []
        with np.errstate(all="ignore"):
            for i in range(len(indptr) - 1):
                row: dict[int, Any] = {}
                for k in range(indptr[i], indptr[i + 1]):
                    c = int(indices[k])
                    if c > i:
                        break
                    above = row if c == i else rows[c]
                    total = wide[k] - sum(x * np.conj(above[t]) for t, x in row.items() if t < c and t in above)
                    if c == i:
                        row[c] = np.sqrt(total.real)
                    else:
                        row[c] = total / above.get(c, 0.0)
                    result[k] = row[c]
                rows.append(row)
            return result.astype(values.dtype)
