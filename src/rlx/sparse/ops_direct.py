"""Direct solvers as ops: LU on the host (`csr_direct_solve`), and Cholesky with factors that a program has made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import build_body, run_body
from rlx.ops.define.operands import require_rank
from rlx.ops.define.rules import zeros_like
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.contraction import conjugated
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.movement import moveaxis, reshaped
from rlx.sparse.direct import solved
from rlx.sparse.ops_products import (
    COMPLEX,
    REAL,
    CsrMatMul,
    CsrSampledProduct,
    CsrTransposedMatMul,
    block_diagonal,
    joined,
    require_pattern,
    require_values,
    rows_of,
    split,
)
from rlx.sparse.ops_triangular import CsrTriangularSolve

Array = np.ndarray[Any, np.dtype[Any]]

_INDICES = spec(7, dtype="i32", values=(0, 1, 0, 1, 2, 1, 2))
_INDPTR = spec(4, dtype="i32", values=(0, 2, 5, 7))
_GENERAL = (4.0, -1.0, 2.0, 5.0, 0.5, -1.0, 6.0)
_COMPLEX = (4.0, -1.0j, 2.0, 5.0j, 0.5, -1.0j, 6.0 + 1.0j)


def _require_system(op_: Op, values: Shape, indices: Shape, indptr: Shape, b: Shape) -> None:
    require_values(op_, values, b)
    require_pattern(op_, indices, indptr, values)
    require_rank(op_, b, 1, 2)
    if not require_equal(b.dims[0], rows_of(indptr), op_.mnemonic):
        raise op_.fail(f"needs one row of b for each of the {rows_of(indptr)} rows of A, got {b}")


@op("csr_direct_solve")
class CsrDirectSolve(Op):
    """x = A⁻¹ b (A⁻ᵀ b with `transpose`) for b [N] or [N, K], by sparse LU with pivoting on the host, in double
    precision; a singular matrix is an error."""

    primitive = True

    transpose: bool = False

    def infer(self, values: Shape, indices: Shape, indptr: Shape, b: Shape) -> Shape:
        _require_system(self, values, indices, indptr, b)
        return b

    def eval(self, values: Array, indices: Array, indptr: Array, b: Array) -> Array:
        return solved(values, indices, indptr, b, self.transpose)

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], x: Tensor) -> Any:
        """A dx = db - dA x."""
        values, indices, indptr, b = primals
        dvalues, _, _, db = tangents
        right = zeros_like(b) if db is None else db
        if dvalues is not None:
            product = CsrTransposedMatMul(b.type.dims[0]) if self.transpose else CsrMatMul()
            right = right - product(dvalues, indices, indptr, x)
        return self(values, indices, indptr, right)

    def vjp(self, ct: Tensor, x: Tensor, values: Tensor, indices: Tensor, indptr: Tensor, b: Tensor) -> Any:
        # A⁻ᴴ c = conj(A⁻ᵀ conj(c)): the factors of the forward pass serve again.
        backward = self.replace(transpose=not self.transpose)
        b_ct = conjugated(backward(values, indices, indptr, conjugated(ct)))
        left, right = (conjugated(x), b_ct) if self.transpose else (b_ct, conjugated(x))
        return -CsrSampledProduct()(indices, indptr, left, right), None, None, b_ct

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        values, indices, indptr, b = operands
        if not any(batched[:3]):
            columns = moveaxis(b, 0, 1)
            kept = columns.type.dims[1:]
            flat = columns if len(kept) == 1 else reshaped(columns, (columns.type.dims[0], kept[0] * kept[1]))
            x = self(values, indices, indptr, flat)
            return moveaxis(reshaped(x, columns.type.dims), 1, 0)
        length = indptr.type.dims[-1] - 1
        pattern = block_diagonal(size, indices, indptr, batched[1:3], length)
        x = self(joined(values, batched[0], size), *pattern, joined(b, batched[3], size))
        return split(x, size, length)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pattern = _INDICES, _INDPTR
        for transpose in (False, True):
            yield sample(cls(transpose), spec(7, values=_GENERAL), *pattern, spec(3), dtypes=REAL)
            yield sample(cls(transpose), spec(7, values=_COMPLEX), *pattern, spec(3, 2), dtypes=COMPLEX)


@op("csr_factored_solve")
class CsrFactoredSolve(Op):
    """x with A x = b, where P A Pᵀ = L Lᴴ: operands are A (values, indices, indptr), b [N] or [N, K], L, and the order
    of the rows. L must belong to A; derivatives are those of the solution, and L has none."""

    def infer(
        self,
        values: Shape,
        indices: Shape,
        indptr: Shape,
        b: Shape,
        factor: Shape,
        factor_indices: Shape,
        factor_indptr: Shape,
        order: Shape,
    ) -> Shape:
        _require_system(self, values, indices, indptr, b)
        _require_system(self, factor, factor_indices, factor_indptr, b)
        require_rank(self, order, 1)
        if not require_equal(order.dims[0], b.dims[0], self.mnemonic):
            raise self.fail(f"the order of {b.dims[0]} rows has as many numbers, got {order}")
        return b

    def eval(self, *arrays: Array) -> Array:
        types = {f"x{i}": Shape(a.shape, DType.of(a.dtype)) for i, a in enumerate(arrays)}
        return run_body(build_body(self.mnemonic, self.decompose, **types), arrays)[0]

    def decompose(self, *operands: Any) -> Any:
        from rlx.ops.reduction.sort import argsort

        _, _, _, b, factor, indices, indptr, order = operands
        y = CsrTriangularSolve()(factor, indices, indptr, gather(b, order, 0, "clip"))
        x = CsrTriangularSolve(transpose=True)(conjugated(factor), indices, indptr, y)
        return gather(x, argsort(order), 0, "clip")

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], x: Tensor) -> Any:
        values, indices, indptr, b, *factor = primals
        dvalues, db = tangents[0], tangents[3]
        right = zeros_like(b) if db is None else db
        if dvalues is not None:
            right = right - CsrMatMul()(dvalues, indices, indptr, x)
        return self(values, indices, indptr, right, *factor)

    def vjp(self, ct: Tensor, x: Tensor, *operands: Tensor) -> Any:
        values, indices, indptr, _, *factor = operands
        b_ct = self(values, indices, indptr, ct, *factor)
        return -CsrSampledProduct()(indices, indptr, b_ct, conjugated(x)), None, None, b_ct, None, None, None, None

    # The samples are not factors of their matrix under every change of it, so differences say nothing.
    derivative_is_defined = True

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # A = L Lᵀ with L = [[2, 0], [1, 3]], and the rows in the other order.
        matrix = spec(4, values=(10.0, 2.0, 2.0, 4.0)), *_DENSE
        lower = spec(3, values=(2.0, 1.0, 3.0)), spec(3, dtype="i32", values=(0, 0, 1)), _LOWER_BOUNDS
        yield sample(cls(), *matrix, spec(2, 3), *lower, spec(2, dtype="i32", values=(1, 0)), dtypes=REAL)


@op("csr_factored_logdet")
class CsrFactoredLogdet(Op):
    """log det A, given the diagonal of L with P A Pᵀ = L Lᴴ; the values of A are an operand so that nobody takes it to
    be constant."""

    jvp = vjp = NoRule(
        "the derivative of log det A needs entries of the inverse of A, which the sparse factor does not give; "
        "use rlx.numpy.linalg.slogdet of the dense matrix where it is small"
    )

    def infer(self, values: Shape, diagonal: Shape) -> Shape:
        require_values(self, values, diagonal)
        require_rank(self, diagonal, 1)
        return Shape((), diagonal.dtype.real)

    def eval(self, values: Array, diagonal: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(2.0 * np.log(diagonal.real.astype(np.float64)).sum(), diagonal.real.dtype)

    def decompose(self, values: Any, diagonal: Any) -> Any:
        import rlx.numpy as rnp

        return 2.0 * rnp.sum(rnp.log(rnp.real(diagonal)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(4), spec(3, low=0.5), dtypes=REAL)
        yield sample(cls(), spec(4), spec(2, values=(1.0, 3.0)), dtypes=COMPLEX)


_DENSE = spec(4, dtype="i32", values=(0, 1, 0, 1)), spec(3, dtype="i32", values=(0, 2, 4))
_LOWER_BOUNDS = spec(3, dtype="i32", values=(0, 1, 3))
