"""Linear systems and matrix factorisations, for matrices in the last two axes; leading axes are batches.

f32, f64 and complex operands; computed in double precision and rounded once. `rlx.ops.matrix_functions` builds inv,
det, pinv, norm, ... from these ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import dim_min, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape, broadcast_dims
from rlx.ir.tensor import Tensor
from rlx.ops.movement import broadcast_to, expand_dims, squeeze
from rlx.ops.operands import dims_of, promote_inexact, require_dtype, require_rank, require_same_dtype
from rlx.ops.samples import COMPLEX, Sample, sample, spec

__all__ = [
    "BatchedDenseSolve",
    "Cholesky",
    "DenseSolve",
    "Eigh",
    "Lu",
    "Qr",
    "Svd",
    "TriangularSolve",
    "batched_dense_solve",
    "cholesky",
    "dense_solve",
    "eigh",
    "lu",
    "qr",
    "solve",
    "svd",
    "triangular_solve",
]

Array = np.ndarray[Any, np.dtype[Any]]

_REAL = ("f32", "f64")
_DTYPES = (*_REAL, *COMPLEX)
# Far from singular, whatever the samples draw.
_REGULAR = ((4.0, 1.0, -1.0), (0.5, 3.0, 1.0), (1.0, -1.0, 5.0))
_POSITIVE = ((4.0, 1.0, 0.5), (1.0, 3.0, -1.0), (0.5, -1.0, 5.0))


def _require_matrix(op: Op, a: Shape, square: bool = False) -> None:
    ok = a.dtype.is_complex or a.dtype in (DType.F32, DType.F64)
    require_dtype(op, ok, "f32, f64 or complex (cast f16 and bf16 to f32)", a)
    if a.rank < 2:
        raise op.fail(f"needs a matrix in the last two axes, got {a}")
    if square and not require_equal(a.dims[-2], a.dims[-1], op.mnemonic):
        raise op.fail(f"needs square matrices, got {a}")


def _wide(a: Array) -> Array:
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _require_system(op: Op, a: Shape, b: Shape, columns: bool) -> None:
    """A [.., N, N] with b [.., N, K], or [.., N] unless `columns` are needed; leading axes agree."""
    require_same_dtype(op, a, b)
    _require_matrix(op, a, square=True)
    lead = a.rank - 2
    ranks = (a.rank,) if columns else (a.rank - 1, a.rank)
    if b.rank not in ranks or not all(
        require_equal(m, n, op.mnemonic) for m, n in zip(a.dims[: lead + 1], b.dims[: lead + 1])
    ):
        wanted = "b [..,N,K]" if columns else "b [..,N] or [..,N,K]"
        raise op.fail(f"needs A [..,N,N] and {wanted} with equal leading axes, got {a} and {b}")


def _solved(op: Op, a: Array, b: Array) -> Array:
    columns = b[..., None] if b.ndim < a.ndim else b
    try:
        x = np.linalg.solve(_wide(a), _wide(columns))
    except np.linalg.LinAlgError:
        raise op.fail(
            f"a matrix of A ({a.shape[-1]}x{a.shape[-1]}) is singular, so the system has no unique solution; "
            "check A, or use pinv(A) @ b for a least-squares solution"
        ) from None
    return x.reshape(b.shape).astype(b.dtype)


@op("dense_solve")
class DenseSolve(Op):
    """x = A⁻¹ b for A [N, N] and b [N] or [N, K], by LU with partial pivoting; a singular A is an error."""

    def infer(self, a: Shape, b: Shape) -> Shape:
        require_rank(self, a, 2)
        _require_system(self, a, b, columns=False)
        return b

    def eval(self, a: Array, b: Array) -> Array:
        return _solved(self, a, b)

    def decompose(self, a: Tensor, b: Tensor) -> Any:
        return squeeze(BatchedDenseSolve()(expand_dims(a, 0), expand_dims(b, 0)), 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3, values=_REGULAR), spec(3), dtypes=_DTYPES)
        yield sample(cls(), spec(3, 3, values=_REGULAR), spec(3, 2), dtypes=_DTYPES)
        yield sample(cls(), spec(1, 1, low=1.0), spec(1, 0), dtypes=_REAL)
        yield sample(cls(), spec("N", "N", values=_REGULAR), spec("N", "K"), dtypes=_REAL, N=3, K=2)


@op("batched_dense_solve")
class BatchedDenseSolve(Op):
    """x = A⁻¹ b for every matrix of A [.., N, N] and b [.., N] or [.., N, K]; a singular matrix is an error."""

    primitive = True

    def infer(self, a: Shape, b: Shape) -> Shape:
        _require_system(self, a, b, columns=False)
        return b

    def eval(self, a: Array, b: Array) -> Array:
        return _solved(self, a, b)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(2, 3, 3, values=_REGULAR), spec(2, 3), dtypes=_DTYPES)
        yield sample(cls(), spec(2, 3, 3, values=_REGULAR), spec(2, 3, 2), dtypes=_DTYPES)
        yield sample(cls(), spec(2, 1, 3, 3, values=_REGULAR), spec(2, 1, 3, 2), dtypes=_REAL)
        yield sample(cls(), spec(0, 3, 3), spec(0, 3), dtypes=_REAL)
        yield sample(cls(), spec("B", 3, 3, values=_REGULAR), spec("B", 3), dtypes=_REAL, B=2)


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
        matrix = np.tril(_wide(a)) if self.lower else np.triu(_wide(a))
        if self.transpose:
            matrix = np.swapaxes(matrix, -1, -2)
        x = _wide(b)
        size = a.shape[-1]
        forward = self.lower != self.transpose
        with np.errstate(all="ignore"):
            for i in range(size) if forward else reversed(range(size)):
                known = slice(0, i) if forward else slice(i + 1, size)
                x[..., i, :] -= np.einsum("...j,...jk->...k", matrix[..., i, known], x[..., known, :])
                if not self.unit_diagonal:
                    x[..., i, :] /= matrix[..., i, i, None]
        return x.astype(b.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for lower in (True, False):
            for transpose in (True, False):
                yield sample(cls(lower, transpose), spec(3, 3, values=_REGULAR), spec(3, 2), dtypes=_DTYPES)
        yield sample(cls(unit_diagonal=True), spec(2, 3, 3), spec(2, 3, 1), dtypes=_REAL)
        yield sample(cls(), spec(2, 2, values=((2.0, 0.0), (1.0, 4.0))), spec(2, 0), dtypes=_REAL)
        yield sample(cls(), spec("B", 3, 3, values=_REGULAR), spec("B", 3, "K"), dtypes=_REAL, B=2, K=2)


@op("cholesky")
class Cholesky(Op):
    """L, lower triangular with a positive diagonal, such that A = L Lᴴ; A [.., N, N] must be positive definite.

    Only the lower triangle of A is read.
    """

    primitive = True

    def infer(self, a: Shape) -> Shape:
        _require_matrix(self, a, square=True)
        return a

    def eval(self, a: Array) -> Array:
        try:
            return np.linalg.cholesky(_wide(a)).astype(a.dtype)
        except np.linalg.LinAlgError:
            raise self.fail(
                "a matrix is not positive definite; check that it is symmetric, or add a small multiple of the identity"
            ) from None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3, values=_POSITIVE), dtypes=_DTYPES)
        yield sample(cls(), spec(2, 1, 1, low=1.0), dtypes=_REAL)
        yield sample(cls(), spec(0, 3, 3), dtypes=_REAL)
        yield sample(cls(), spec("B", 3, 3, values=_POSITIVE), dtypes=_REAL, B=2)


@op("qr")
class Qr(Op):
    """Q and R with A = Q R: orthonormal columns, upper triangular; A [.., M, N], k = min(M, N).

    Q is [.., M, k] and R [.., k, N], or [.., M, M] and [.., M, N] with `full_matrices`.
    """

    primitive = True

    full_matrices: bool = False

    def infer(self, a: Shape) -> tuple[Shape, Shape]:
        _require_matrix(self, a)
        *lead, rows, columns = a.dims
        inner = rows if self.full_matrices else dim_min(rows, columns)
        return a.with_dims((*lead, rows, inner)), a.with_dims((*lead, inner, columns))

    def eval(self, a: Array) -> tuple[Array, Array]:
        q, r = np.linalg.qr(_wide(a), "complete" if self.full_matrices else "reduced")
        return q.astype(a.dtype), r.astype(a.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for full in (False, True):
            yield sample(cls(full), spec(4, 3), dtypes=_DTYPES)
            yield sample(cls(full), spec(2, 2, 3), dtypes=_REAL)
        yield sample(cls(), spec("B", 3, 2), dtypes=_REAL, B=2)


@op("svd")
class Svd(Op):
    """U, S, Vᴴ with A = U diag(S) Vᴴ, S descending; A [.., M, N], k = min(M, N). Without `compute_uv` only S [.., k].

    U is [.., M, k] and Vᴴ [.., k, N], or [.., M, M] and [.., N, N] with `full_matrices`.
    """

    primitive = True

    full_matrices: bool = False
    compute_uv: bool = True

    def infer(self, a: Shape) -> Shape | tuple[Shape, Shape, Shape]:
        _require_matrix(self, a)
        *lead, rows, columns = a.dims
        inner = dim_min(rows, columns)
        values = Shape((*lead, inner), a.dtype.real)
        if not self.compute_uv:
            return values
        left, right = (rows, columns) if self.full_matrices else (inner, inner)
        return a.with_dims((*lead, rows, left)), values, a.with_dims((*lead, right, columns))

    def eval(self, a: Array) -> Array | tuple[Array, ...]:
        real = DType.of(a.dtype).real.numpy
        if not self.compute_uv:
            return np.linalg.svd(_wide(a), compute_uv=False).astype(real)
        u, s, vh = np.linalg.svd(_wide(a), full_matrices=self.full_matrices)
        return u.astype(a.dtype), s.astype(real), vh.astype(a.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for full in (False, True):
            yield sample(cls(full), spec(4, 3), dtypes=_DTYPES)
            yield sample(cls(full), spec(2, 2, 3), dtypes=_REAL)
        yield sample(cls(compute_uv=False), spec(2, 3, 4), dtypes=_DTYPES)
        yield sample(cls(), spec("B", 3, 2), dtypes=_REAL, B=2)


@op("eigh")
class Eigh(Op):
    """W, V with A V = V diag(W) for Hermitian A [.., N, N]: W ascending and real, V unitary.

    Only the lower triangle of A is read, or the upper one when `lower` is False.
    """

    primitive = True

    lower: bool = True

    def infer(self, a: Shape) -> tuple[Shape, Shape]:
        _require_matrix(self, a, square=True)
        return Shape(a.dims[:-1], a.dtype.real), a

    def eval(self, a: Array) -> tuple[Array, Array]:
        w, v = np.linalg.eigh(_wide(a), "L" if self.lower else "U")
        return w.astype(DType.of(a.dtype).real.numpy), v.astype(a.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for lower in (True, False):
            yield sample(cls(lower), spec(3, 3), dtypes=_DTYPES)
        yield sample(cls(), spec(2, 1, 1), dtypes=_REAL)
        yield sample(cls(), spec("B", 3, 3), dtypes=_REAL, B=2)


@op("lu")
class Lu(Op):
    """LU, pivots, permutation with A[permutation] = L U: L (unit diagonal, not stored) below U in LU [.., M, N].

    Row i was exchanged with row pivots[i], in order, for i < min(M, N); `permutation` [.., M] is the outcome. Ids are
    i32. The pivot is the first element of largest modulus; a column without one is left alone.
    """

    primitive = True

    def infer(self, a: Shape) -> tuple[Shape, Shape, Shape]:
        _require_matrix(self, a)
        *lead, rows, columns = a.dims
        return a, Shape((*lead, dim_min(rows, columns)), DType.I32), Shape((*lead, rows), DType.I32)

    def eval(self, a: Array) -> tuple[Array, Array, Array]:
        *lead, rows, columns = a.shape
        factors = [_lu_of_one(m) for m in _wide(a).reshape((-1, rows, columns))]
        count = min(rows, columns)
        lu_, pivots, permutation = zip(*factors) if factors else ((), (), ())
        return (
            np.asarray(lu_).reshape(a.shape).astype(a.dtype),
            np.asarray(pivots, np.int32).reshape((*lead, count)),
            np.asarray(permutation, np.int32).reshape((*lead, rows)),
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3), dtypes=_DTYPES)
        yield sample(cls(), spec(2, 4, 2), dtypes=_REAL)
        yield sample(cls(), spec(2, 4), dtypes=_REAL)
        yield sample(cls(), spec(2, 2, values=((0.0, 1.0), (0.0, 2.0))), dtypes=_REAL)
        yield sample(cls(), spec(0, 2, 2), dtypes=_REAL)
        yield sample(cls(), spec("B", 3, 3), dtypes=_REAL, B=2)


def _lu_of_one(a: Array) -> tuple[Array, list[int], list[int]]:
    a = a.copy()
    rows, columns = a.shape
    pivots, permutation = [], list(range(rows))
    for k in range(min(rows, columns)):
        pivot = k + int(np.argmax(np.abs(a[k:, k])))
        pivots.append(pivot)
        a[[k, pivot]] = a[[pivot, k]]
        permutation[k], permutation[pivot] = permutation[pivot], permutation[k]
        if a[k, k] != 0:
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, pivots, permutation


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


def cholesky(a: Any) -> Any:
    """The lower Cholesky factor; see `Cholesky`."""
    return Cholesky()(*promote_inexact(a))


def qr(a: Any, mode: str = "reduced") -> Any:
    """(Q, R) with A = Q R; mode is "reduced", "complete", or "r" for R alone."""
    if mode not in ("reduced", "complete", "r"):
        raise OpError(f"qr: mode must be reduced, complete or r, got {mode!r}")
    q, r = Qr(mode == "complete")(*promote_inexact(a))
    return r if mode == "r" else (q, r)


def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """(U, S, Vᴴ) with A = U diag(S) Vᴴ, or S alone; see `Svd`."""
    return Svd(full_matrices, compute_uv)(*promote_inexact(a))


def eigh(a: Any, lower: bool = True) -> Any:
    """(eigenvalues ascending, eigenvectors in columns) of Hermitian matrices; see `Eigh`."""
    return Eigh(lower)(*promote_inexact(a))


def lu(a: Any) -> Any:
    """(LU, pivots, permutation); see `Lu`."""
    return Lu()(*promote_inexact(a))
