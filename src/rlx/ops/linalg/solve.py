"""Linear systems, for matrices in the last two axes; leading axes are batches.

f32, f64 and complex operands; computed in double precision and rounded once. Factorisations are in
`rlx.ops.linalg.factorizations`; `rlx.ops.linalg.matrix_functions` builds inv, det, pinv, norm, ... from both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import product, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape, Size, broadcast_dims
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import dims_of, promote_inexact, require_dtype, require_rank, require_same_dtype
from rlx.ops.define.rules import put_batch_first, zeros_like
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.linalg.contraction import adjoint, conjugated, matmul
from rlx.ops.shape.creation import tril, triu
from rlx.ops.shape.movement import broadcast_to, expand_dims, moveaxis, reshaped, squeeze, swapaxes

__all__ = [
    "BatchedDenseSolve",
    "DenseSolve",
    "TriangularSolve",
    "batched_dense_solve",
    "dense_solve",
    "solve",
    "triangular_solve",
]

Array = np.ndarray[Any, np.dtype[Any]]

REAL = ("f32", "f64")
# Far from singular, whatever the samples draw.
_REGULAR = ((4.0, 1.0, -1.0), (0.5, 3.0, 1.0), (1.0, -1.0, 5.0))
_COMPLEX_REGULAR = ((4.0 + 1.0j, 1.0, -1.0j), (0.5j, 3.0, 1.0 - 1.0j), (1.0, -1.0, 5.0j))


def require_matrix(op: Op, a: Shape, square: bool = False) -> None:
    """Refuse operands that do not end in (square) matrices of a dtype that factorisations take."""
    ok = a.dtype.is_complex or a.dtype in (DType.F32, DType.F64)
    require_dtype(op, ok, "f32, f64 or complex (cast f16 and bf16 to f32)", a)
    if a.rank < 2:
        raise op.fail(f"needs a matrix in the last two axes, got {a}")
    if square and not require_equal(a.dims[-2], a.dims[-1], op.mnemonic):
        raise op.fail(f"needs square matrices, got {a}")


def widened(a: Array) -> Array:
    """In double precision."""
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def unit_of(a: Array) -> float:
    """The power of two below the largest element: in units of it no square overflows or gets lost. 1 for zeros."""
    largest = np.abs(a).max(initial=0.0)
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if 0 < largest < math.inf else 1.0


def singular(op: str, size: int) -> OpError:
    """The error of a solver that meets a singular matrix."""
    return OpError(
        f"{op}: a matrix of A ({size}x{size}) is singular, so the system has no unique solution; "
        "check A, or use pinv(A) @ b for a least-squares solution"
    )


def not_positive_definite(op: str) -> OpError:
    """The error of a factorisation that only positive definite matrices have."""
    return OpError(
        f"{op}: a matrix is not positive definite; check that it is symmetric, or add a small multiple of the identity"
    )


def not_finite(op: str) -> OpError:
    """The error of a factorisation that does not come to an end on numbers that are none."""
    return OpError(f"{op}: a matrix has NaN or inf in it, so there is nothing to be found; check what it is made from")


def _require_system(op: Op, a: Shape, b: Shape, columns: bool) -> None:
    """A [.., N, N] with b [.., N, K], or [.., N] unless `columns` are needed; leading axes agree."""
    require_same_dtype(op, a, b)
    require_matrix(op, a, square=True)
    lead = a.rank - 2
    ranks = (a.rank,) if columns else (a.rank - 1, a.rank)
    if b.rank not in ranks or not all(
        require_equal(m, n, op.mnemonic) for m, n in zip(a.dims[: lead + 1], b.dims[: lead + 1])
    ):
        wanted = "b [..,N,K]" if columns else "b [..,N] or [..,N,K]"
        raise op.fail(f"needs A [..,N,N] and {wanted} with equal leading axes, got {a} and {b}")


def _solved(op: Op, a: Array, b: Array) -> Array:
    columns = b[..., None] if b.ndim < a.ndim else b
    is_finite = np.isfinite(a).all((-2, -1), keepdims=True)
    known = np.where(is_finite, widened(a), np.eye(a.shape[-1]))
    try:
        x = np.linalg.solve(known, widened(columns))
    except np.linalg.LinAlgError:
        raise singular(op.mnemonic, a.shape[-1]) from None
    return np.where(is_finite, x, np.nan).reshape(b.shape).astype(b.dtype)


def _columns(x: Any, a: Any) -> Any:
    """Right sides or solutions of systems with the matrices `a` as [.., N, K]; a vector is one column."""
    return expand_dims(x, -1) if x.ndim < a.ndim else x


class _DenseSystem(Op):
    """What the two dense solvers share."""

    def eval(self, a: Array, b: Array) -> Array:
        return _solved(self, a, b)

    def jvp(self, primals: tuple[Tensor, Tensor], tangents: tuple[Tensor | None, Tensor | None], x: Tensor) -> Any:
        """A dx = db - dA x."""
        (a, b), (da, db) = primals, tangents
        right = zeros_like(b) if db is None else db
        if da is not None:
            right = right - reshaped(matmul(da, _columns(x, a)), b.shape)
        return self(a, right)

    def vjp(self, ct: Tensor, x: Tensor, a: Tensor, b: Tensor) -> Any:
        b_ct = self(adjoint(a), ct)
        return -matmul(_columns(b_ct, a), adjoint(_columns(x, a))), b_ct

    def batch(self, size: Size, operands: tuple[Tensor, Tensor], batched: tuple[bool, bool]) -> Any:
        return _batch_system(self, BatchedDenseSolve(), size, operands, batched)


def _batch_system(
    alone: Op, stacked: Op, size: Size, operands: tuple[Tensor, Tensor], batched: tuple[bool, bool]
) -> Any:
    """`stacked` solves one system per example; if they share the matrix, `alone` solves for all their columns."""
    a, b = operands
    if batched[0]:
        return stacked(a, put_batch_first(b, batched[1], size))
    columns = moveaxis(b, 0, -1)
    kept = columns.shape[a.ndim - 1 :]
    x = alone(a, reshaped(columns, (*columns.shape[: a.ndim - 1], product(kept))))
    return moveaxis(reshaped(x, columns.shape), -1, 0)


@op("dense_solve")
class DenseSolve(_DenseSystem):
    """x = A⁻¹ b for A [N, N] and b [N] or [N, K], by LU with partial pivoting. A singular A is an error; of one with
    NaN or infinity in it x is NaN."""

    is_blas = True

    def infer(self, a: Shape, b: Shape) -> Shape:
        require_rank(self, a, 2)
        _require_system(self, a, b, columns=False)
        return b

    def decompose(self, a: Tensor, b: Tensor) -> Any:
        return squeeze(BatchedDenseSolve()(expand_dims(a, 0), expand_dims(b, 0)), 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3, values=_REGULAR), spec(3), dtypes=REAL)
        yield sample(cls(), spec(3, 3, values=_REGULAR), spec(3, 2), dtypes=REAL)
        yield sample(cls(), spec(3, 3, values=_COMPLEX_REGULAR), spec(3), dtypes=COMPLEX)
        yield sample(cls(), spec(1, 1, low=1.0), spec(1, 0), dtypes=REAL)
        yield sample(cls(), spec("N", "N", values=_REGULAR), spec("N", "K"), dtypes=REAL, N=3, K=2)


@op("batched_dense_solve")
class BatchedDenseSolve(_DenseSystem):
    """x = A⁻¹ b for every matrix of A [.., N, N] and b [.., N] or [.., N, K]; a singular matrix is an error,
    and of one with NaN or infinity in it x is NaN."""

    is_blas = True
    primitive = True

    def infer(self, a: Shape, b: Shape) -> Shape:
        _require_system(self, a, b, columns=False)
        return b

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(2, 3, 3, values=_REGULAR), spec(2, 3), dtypes=REAL)
        yield sample(cls(), spec(2, 3, 3, values=_REGULAR), spec(2, 3, 2), dtypes=REAL)
        yield sample(cls(), spec(2, 3, 3, values=_COMPLEX_REGULAR), spec(2, 3, 2), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 1, 3, 3, values=_REGULAR), spec(2, 1, 3, 2), dtypes=REAL)
        yield sample(cls(), spec(0, 3, 3), spec(0, 3), dtypes=REAL)
        yield sample(cls(), spec("B", 3, 3, values=_REGULAR), spec("B", 3), dtypes=REAL, B=2)


@op("triangular_solve")
class TriangularSolve(Op):
    """x with A x = b (Aᵀ x = b with `transpose`) for triangular A [.., N, N] and b [.., N, K].

    Only the lower (or upper) triangle of A is read, and not its diagonal with `unit_diagonal`, which stands for ones.
    A zero on the diagonal gives inf or NaN.
    """

    primitive = True

    lower: bool = True
    transpose: bool = False
    unit_diagonal: bool = False

    def infer(self, a: Shape, b: Shape) -> Shape:
        _require_system(self, a, b, columns=True)
        return b

    def eval(self, a: Array, b: Array) -> Array:
        matrix = np.tril(widened(a)) if self.lower else np.triu(widened(a))
        if self.transpose:
            matrix = np.swapaxes(matrix, -1, -2)
        x = widened(b)
        size = a.shape[-1]
        forward = self.lower != self.transpose
        with np.errstate(all="ignore"):
            for i in range(size) if forward else reversed(range(size)):
                known = slice(0, i) if forward else slice(i + 1, size)
                x[..., i, :] -= np.einsum("...j,...jk->...k", matrix[..., i, known], x[..., known, :])
                if not self.unit_diagonal:
                    x[..., i, :] /= matrix[..., i, i, None]
        return x.astype(b.dtype)

    def _read(self, a: Tensor) -> Any:
        """The part of A that is read (as a cotangent: that matters), zero elsewhere."""
        return (tril if self.lower else triu)(a, self.unit_diagonal * (-1 if self.lower else 1))

    def jvp(self, primals: tuple[Tensor, Tensor], tangents: tuple[Tensor | None, Tensor | None], x: Tensor) -> Any:
        """A dx = db - dA x, with the triangle of dA that is read."""
        (a, b), (da, db) = primals, tangents
        right = zeros_like(b) if db is None else db
        if da is not None:
            moved = self._read(da)
            right = right - matmul(swapaxes(moved, -1, -2) if self.transpose else moved, x)
        return self(a, right)

    def vjp(self, ct: Tensor, x: Tensor, a: Tensor, b: Tensor) -> Any:
        b_ct = TriangularSolve(self.lower, not self.transpose, self.unit_diagonal)(conjugated(a), ct)
        left, right = (conjugated(x), swapaxes(b_ct, -1, -2)) if self.transpose else (b_ct, adjoint(x))
        return -self._read(matmul(left, right)), b_ct

    def batch(self, size: Size, operands: tuple[Tensor, Tensor], batched: tuple[bool, bool]) -> Any:
        return _batch_system(self, self, size, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for lower in (True, False):
            for transpose in (True, False):
                yield sample(cls(lower, transpose), spec(3, 3, values=_REGULAR), spec(3, 2), dtypes=REAL)
                yield sample(cls(lower, transpose), spec(3, 3, values=_COMPLEX_REGULAR), spec(3, 2), dtypes=COMPLEX)
        yield sample(cls(unit_diagonal=True), spec(2, 3, 3), spec(2, 3, 1), dtypes=REAL)
        yield sample(cls(), spec(2, 2, values=((2.0, 0.0), (1.0, 4.0))), spec(2, 0), dtypes=REAL)
        yield sample(cls(), spec("B", 3, 3, values=_REGULAR), spec("B", 3, "K"), dtypes=REAL, B=2, K=2)


def dense_solve(a: Any, b: Any) -> Any:
    """A⁻¹ b for one matrix A; see `DenseSolve`."""
    return DenseSolve()(*promote_inexact(a, b))


def batched_dense_solve(a: Any, b: Any) -> Any:
    """A⁻¹ b for every matrix of A; see `BatchedDenseSolve`."""
    return BatchedDenseSolve()(*promote_inexact(a, b))


def solve(a: Any, b: Any) -> Any:
    """np.linalg.solve: A⁻¹ b, where b is one vector, or matrices [.., N, K]; leading axes broadcast.

    >>> print(solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 2.0])))
    [1.  0.5]
    """
    a, b = promote_inexact(a, b)
    if len(dims_of(a)) == 2 and len(dims_of(b)) <= 2:
        return DenseSolve()(a, b)
    if len(dims_of(b)) == 1:
        return squeeze(BatchedDenseSolve()(*_broadcast_batches(a, expand_dims(b, 1), "solve")), -1)
    return BatchedDenseSolve()(*_broadcast_batches(a, b, "solve"))


def _broadcast_batches(a: Any, b: Any, op: str) -> tuple[Any, Any]:
    """Two stacks of matrices with their leading axes broadcast against each other."""
    if len(dims_of(a)) < 2 or len(dims_of(b)) < 2:
        raise ShapeError(f"{op}: needs matrices, got dims {dims_of(a)} and {dims_of(b)}")
    lead: Dims = broadcast_dims(dims_of(a)[:-2], dims_of(b)[:-2], op)
    return broadcast_to(a, (*lead, *dims_of(a)[-2:])), broadcast_to(b, (*lead, *dims_of(b)[-2:]))


def triangular_solve(
    a: Any, b: Any, *, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False
) -> Any:
    """x with A x = b, or Aᵀ x = b, for triangular A; b is one vector, or matrices [.., N, K]; see `TriangularSolve`."""
    a, b = promote_inexact(a, b)
    op_ = TriangularSolve(lower, transpose, unit_diagonal)
    if len(dims_of(b)) == 1:
        return squeeze(op_(*_broadcast_batches(a, expand_dims(b, 1), op_.name)), -1)
    return op_(*_broadcast_batches(a, b, op_.name))
