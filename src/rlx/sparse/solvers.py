"""Iterative solvers: `x, info = rlx.sparse.cg(A, b, tol=1e-8, preconditioner="ic0")`.

All of them compile into one loop, differentiate by one more solve, and batch over right sides and values. `info` says
whether the answer is one: `info.converged` is computed from x itself, |b - A x| <= tol·|b|. Outside of a program a
solver that does not converge returns its best x with `converged=False`; `info.check()` makes an error of that. A
derivative whose own solve does not converge is NaN.

`b` is a vector, or a matrix of right sides, and then `info` has one entry for each. `A` is a sparse matrix, or a
function that multiplies by one; a function can be compiled and batched, but not differentiated in reverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import dims_of, promote_inexact
from rlx.sparse import iterations
from rlx.sparse.arrays import CSR, SparseArray
from rlx.sparse.eager import apply
from rlx.sparse.ops_products import CsrMatMul, CsrTransposedMatMul
from rlx.sparse.ops_solvers import PRECONDITIONERS, CsrIterativeSolve, CsrLeastSquares


class SolveInfo(NamedTuple):
    """What a solver did: whether it arrived, after how many iterations, and |b - A x| / |b|."""

    converged: Any
    iterations: Any
    residual: Any

    def check(self) -> SolveInfo:
        """The same, or an error where a solve did not converge; not inside of a program."""
        if isinstance(self.converged, Tensor):
            raise OpError("SolveInfo.check: the program is still being traced; return the info, and check it outside")
        if not np.all(self.converged):
            raise OpError(
                f"the solver did not converge: residual {np.max(self.residual):.3g} after "
                f"{int(np.max(self.iterations))} iterations; raise maxiter or tol, or use a (better) preconditioner"
            )
        return self


class _Solve(NamedTuple):
    """A solver op with the residual of its answer; each column is a right side of its own."""

    op: CsrIterativeSolve | CsrLeastSquares
    has_columns: bool

    def __call__(self, values: Any, indices: Any, indptr: Any, *vectors: Any) -> Any:
        if not self.has_columns:
            return self.one(values, indices, indptr, *vectors)

        def each(*columns: Any) -> Any:
            return self.one(values, indices, indptr, *columns)

        return rlx.vmap(each, in_axes=1, out_axes=(1, 0, 0, 0))(*vectors)

    def one(self, values: Any, indices: Any, indptr: Any, b: Any, *start: Any) -> Any:
        x, count, converged = self.op(values, indices, indptr, b, *start)
        turned = isinstance(self.op, CsrLeastSquares) and self.op.transpose
        product = CsrTransposedMatMul(b.shape[0]) if turned else CsrMatMul()
        size = iterations.norm(b)
        left = iterations.norm(b - product(values, indices, indptr, x))
        return x, count, converged, rlx.stop_gradient(left / rnp.where(size == 0, rnp.ones_like(size), size))


Operator = SparseArray | Callable[[Any], Any]


def _solved(
    method: str,
    a: Operator,
    b: Any,
    x0: Any,
    tol: float,
    maxiter: int | None,
    preconditioner: Any,
    restart: int = 30,
) -> tuple[Any, SolveInfo]:
    dims = dims_of(b)
    if len(dims) not in (1, 2):
        raise ShapeError(f"sparse.{method}: b must be a vector, or a matrix of right sides, got shape {tuple(dims)}")
    if isinstance(a, SparseArray) and not callable(preconditioner):
        m = _square(a, b, method)
        values, b, x0 = promote_inexact(m.values, b, rnp.zeros_like(b) if x0 is None else x0)
        kind = "none" if preconditioner is None else preconditioner
        if kind not in PRECONDITIONERS:
            raise OpError(
                f"sparse.{method}: preconditioner must be None, 'jacobi', 'ilu0', 'ic0' or a function, got {kind!r}"
            )
        op = CsrIterativeSolve(method, tol, maxiter, kind, restart)
        vector = ("N", "K")[: len(dims)]
        sizes = (("Z",), ("Z",), ("N + 1",), vector, vector)
        x, count, converged, residual = apply(
            _Solve(op, len(dims) == 2), values, m.indices, m.indptr, b, x0, sizes=sizes
        )
        return x, SolveInfo(converged, count, residual)
    if len(dims) == 2:
        return rlx.vmap(
            lambda c, s: _solved(method, a, c, s, tol, maxiter, preconditioner, restart), in_axes=1, out_axes=(1, 0)
        )(b, rnp.zeros_like(b) if x0 is None else x0)
    limit = 10 * int(dims[0]) if maxiter is None else int(maxiter)
    return _by_functions(method, a, b, x0, tol, limit, preconditioner, restart)


def _by_functions(
    method: str, a: Operator, b: Any, x0: Any, tol: float, limit: int, preconditioner: Any, restart: int
) -> tuple[Any, SolveInfo]:
    """The same iterations with functions for the matrix, for the preconditioner, or for both."""
    if preconditioner is not None and not callable(preconditioner):
        raise OpError(f"sparse.{method}: {preconditioner!r} needs the entries of A; give a function instead")
    if isinstance(a, SparseArray):
        _square(a, b, method)
        matrix = a
        matvec: Callable[[Any], Any] = lambda x: matrix @ x  # noqa: E731
    else:
        matvec = a
    precondition = preconditioner or (lambda r: r)
    (b,) = promote_inexact(b)
    extra = (restart,) if method == "gmres" else ()

    def solve(b: Any, start: Any) -> tuple[Any, SolveInfo]:
        x, count = getattr(iterations, method)(matvec, b, start, precondition, tol, limit, *extra)
        size, left = iterations.norm(b), iterations.norm(b - matvec(x))
        residual = left / rnp.where(size == 0, rnp.ones_like(size), size)
        return x, SolveInfo(left <= tol * size, count, residual)

    solved: tuple[Any, SolveInfo] = rlx.jit(solve)(b, rnp.zeros_like(b) if x0 is None else x0)
    return solved


def _square(a: SparseArray, b: Any, what: str) -> CSR:
    rows, columns = a.shape
    if rows != columns or dims_of(b)[0] != rows:
        raise ShapeError(
            f"sparse.{what}: needs a square A and b with as many rows, got {rows}x{columns} and {tuple(dims_of(b))}"
        )
    return a.tocsr()


def cg(
    A: Operator, b: Any, x0: Any = None, *, tol: float = 1e-5, maxiter: int | None = None, preconditioner: Any = None
) -> tuple[Any, SolveInfo]:
    """Conjugate gradients: A x = b for symmetric (Hermitian) positive definite A.

    `preconditioner` is None, "jacobi", "ic0", or a function r -> z that is symmetric positive definite, too. Gradients
    take A to be symmetric: λ = A⁻¹ ḡ, and entry (i, j) of A gets -λ[i]·x[j].
    """
    return _solved("cg", A, b, x0, tol, maxiter, preconditioner)


def pcg(
    A: Operator,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    maxiter: int | None = None,
    preconditioner: Any = "jacobi",
) -> tuple[Any, SolveInfo]:
    """`cg` with a preconditioner, by default that of Jacobi."""
    return _solved("cg", A, b, x0, tol, maxiter, preconditioner)


def minres(
    A: Operator, b: Any, x0: Any = None, *, tol: float = 1e-5, maxiter: int | None = None, preconditioner: Any = None
) -> tuple[Any, SolveInfo]:
    """Minimal residuals: A x = b for symmetric (Hermitian) A that may be indefinite; see `cg` for the rest."""
    return _solved("minres", A, b, x0, tol, maxiter, preconditioner)


def bicgstab(
    A: Operator, b: Any, x0: Any = None, *, tol: float = 1e-5, maxiter: int | None = None, preconditioner: Any = None
) -> tuple[Any, SolveInfo]:
    """Stabilised bi-conjugate gradients: A x = b for any regular A; gradients solve with the transpose.

    `preconditioner` is None, "jacobi", "ilu0" or a function.
    """
    return _solved("bicgstab", A, b, x0, tol, maxiter, preconditioner)


def gmres(
    A: Operator,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    maxiter: int | None = None,
    preconditioner: Any = None,
    restart: int = 30,
) -> tuple[Any, SolveInfo]:
    """Generalised minimal residuals with restarts: A x = b for any regular A; `maxiter` counts products.

    The preconditioner acts on the right, so that the residual is that of A x = b.
    """
    return _solved("gmres", A, b, x0, tol, maxiter, preconditioner, restart)


def lsqr(A: SparseArray, b: Any, *, tol: float = 1e-6, maxiter: int | None = None) -> tuple[Any, SolveInfo]:
    """Least squares: the x that makes |b - A x| smallest, for A of any shape; of several the shortest.

    It has converged when |Aᴴ r| <= tol·|A|·|r| or |r| <= tol·|b|. Derivatives are those of matrices of full rank.
    """
    rows, columns = A.shape
    dims = dims_of(b)
    if len(dims) not in (1, 2) or dims[0] != rows:
        raise ShapeError(f"sparse.lsqr: b must have the {rows} rows of A, got shape {tuple(dims)}")
    m = A.tocsr()
    values, b = promote_inexact(m.values, b)
    op = CsrLeastSquares(tol, 10 * max(rows, columns) if maxiter is None else int(maxiter), columns)
    sizes = (("Z",), ("Z",), ("M + 1",), ("M", "K")[: len(dims)])
    x, count, converged, residual = apply(_Solve(op, len(dims) == 2), values, m.indices, m.indptr, b, sizes=sizes)
    return x, SolveInfo(converged, count, residual)
