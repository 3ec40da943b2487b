"""Iterative solvers as ops: a loop when they are compiled, and one more solve when they are differentiated.

The derivative of a solution is a solve with the same matrix (forward) or its adjoint (reverse), whatever path an
iteration took. Such a solve has nobody to tell that it did not converge: its result is NaN then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import build_body, run_body
from rlx.ops.define.operands import require_rank
from rlx.ops.define.rules import zeros_like
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.contraction import conjugated
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.creation import dim_value
from rlx.sparse import iterations
from rlx.sparse.ops_masked import CsrTranspose
from rlx.sparse.ops_products import (
    CsrMatMul,
    CsrRowIds,
    CsrSampledProduct,
    CsrTransposedMatMul,
    require_pattern,
    require_values,
    rows_of,
)
from rlx.sparse.ops_triangular import CsrIncompleteCholesky, CsrIncompleteLu, CsrTriangularSolve

Array = np.ndarray[Any, np.dtype[Any]]
Matrix = tuple[Any, Any, Any]

METHODS = ("cg", "bicgstab", "gmres", "minres")
# Methods for Hermitian matrices, which are their own adjoint.
HERMITIAN = ("cg", "minres")
PRECONDITIONERS = ("none", "jacobi", "ilu0", "ic0")

# 3 x 3, Hermitian and positive definite.
_INDICES = spec(7, dtype="i32", values=(0, 1, 0, 1, 2, 1, 2))
_INDPTR = spec(4, dtype="i32", values=(0, 2, 5, 7))
_VALUES = (4.0, -1.0, -1.0, 5.0, 2.0, 2.0, 6.0)
_COMPLEX_VALUES = (4.0, -1.0j, 1.0j, 5.0, 2.0 + 1.0j, 2.0 - 1.0j, 6.0)
_GENERAL = (4.0, -1.0, 2.0, 5.0, 0.5, -1.0, 6.0)
_SAMPLED = {"cg": ("none", "jacobi", "ic0"), "minres": ("ic0",), "bicgstab": ("none", "ilu0"), "gmres": ("jacobi",)}


def preconditioner(kind: str, a: Matrix) -> Callable[[Any], Any]:
    """An approximate inverse of A, as a function of a vector.

    Factors are scaled so that their diagonals are ones: in a substitution every row waits for the last, and would wait
    for its division, too.
    """
    import rlx.numpy as rnp

    if kind == "none":
        return lambda r: r
    values, indices, indptr = a
    if kind == "jacobi":
        inverse = 1.0 / _or_one(_diagonal(a))
        return lambda r: inverse * r
    if kind == "ilu0":
        factors = CsrIncompleteLu()(values, indices, indptr)
        diagonal = _diagonal((factors, indices, indptr))
        rows = CsrRowIds(indices.shape[0])(indptr)
        scaled = rnp.where(indices > rows, factors / gather(diagonal, rows, 0, "clip"), factors)
        lower, upper = CsrTriangularSolve(unit_diagonal=True), CsrTriangularSolve(lower=False, unit_diagonal=True)
        return lambda r: upper(scaled, indices, indptr, lower(scaled, indices, indptr, r) / diagonal)
    factor = CsrIncompleteCholesky()(values, indices, indptr)
    diagonal = _diagonal((factor, indices, indptr))
    scaled = factor / gather(diagonal, indices, 0, "clip")
    adjoint, square = conjugated(scaled), diagonal * diagonal
    down, up = CsrTriangularSolve(unit_diagonal=True), CsrTriangularSolve(transpose=True, unit_diagonal=True)
    return lambda r: up(adjoint, indices, indptr, down(scaled, indices, indptr, r) / square)


def _diagonal(a: Matrix) -> Any:
    """The diagonal of A, with 0 where it has no entry."""
    import rlx.numpy as rnp

    values, indices, indptr = a
    on_diagonal = indices == CsrRowIds(indices.shape[0])(indptr)
    kept = rnp.where(on_diagonal, values, rnp.zeros_like(values))
    return CsrMatMul()(kept, indices, indptr, rnp.ones((indptr.shape[0] - 1,), values.dtype))


def _or_one(x: Any) -> Any:
    import rlx.numpy as rnp

    return rnp.where(x == 0, rnp.ones_like(x), x)


def _by_definition(op_: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The value of the program that an op decomposes into."""
    types = {f"x{i}": Shape(a.shape, DType.of(a.dtype)) for i, a in enumerate(arrays)}
    return tuple(run_body(build_body(op_.mnemonic, op_.decompose, **types), arrays))  # type: ignore[arg-type]


def _or_nan(converged: Any, x: Any) -> Any:
    import rlx.numpy as rnp

    return rnp.where(converged, x, rnp.full_like(x, np.nan))


@op("csr_iterative_solve")
class CsrIterativeSolve(Op):
    """(x, iterations, converged): x with A x ≈ b (Aᵀ x ≈ b with `transpose`), by a Krylov method that starts at x0.

    `converged` says that |b - A x| <= tol·|b|, for the x that is returned. `method` is cg, bicgstab, gmres or minres,
    `preconditioner` none, jacobi, ilu0 or ic0; `restart` is the number of products between two starts of gmres. Without
    `maxiter` there are at most ten iterations per row.
    """

    method: str
    tol: float
    maxiter: int | None = None
    preconditioner: str = "none"
    restart: int = 30
    transpose: bool = False

    def check(self) -> None:
        if self.method not in METHODS or self.preconditioner not in PRECONDITIONERS:
            raise self.fail(
                f"needs a method of {METHODS} and a preconditioner of {PRECONDITIONERS}, "
                f"got {self.method!r} and {self.preconditioner!r}"
            )
        if not self.tol > 0 or (self.maxiter is not None and self.maxiter < 0) or self.restart < 1:
            raise self.fail("needs tol > 0, maxiter >= 0 and restart >= 1")

    def infer(self, values: Shape, indices: Shape, indptr: Shape, b: Shape, x0: Shape) -> tuple[Shape, ...]:
        require_values(self, values, b, x0)
        require_pattern(self, indices, indptr, values)
        for vector in (b, x0):
            require_rank(self, vector, 1)
            if not require_equal(vector.dims[0], rows_of(indptr), self.mnemonic):
                raise self.fail(f"needs vectors with the {rows_of(indptr)} rows of A, got {vector}")
        return b, Shape((), DType.I32), Shape((), DType.BOOL)

    def eval(self, *arrays: Array) -> Any:
        return _by_definition(self, arrays)

    def decompose(self, values: Any, indices: Any, indptr: Any, b: Any, x0: Any) -> Any:
        import rlx.numpy as rnp

        a: Matrix = values, indices, indptr
        if self.transpose:
            a = CsrTranspose(b.shape[0])(*a)
        product = CsrMatMul()

        def matvec(x: Any) -> Any:
            return product(*a, x)

        length = iterations.norm(b)
        start = rnp.where(length == 0, rnp.zeros_like(x0), x0)
        limit = dim_value(b.shape[0] * 10) if self.maxiter is None else self.maxiter
        options = (matvec, b, start, preconditioner(self.preconditioner, a), self.tol, limit)
        extra = (self.restart,) if self.method == "gmres" else ()
        x, count = getattr(iterations, self.method)(*options, *extra)
        return x, count, iterations.norm(b - matvec(x)) <= self.tol * length

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], y: Any) -> Any:
        """A dx = db - dA x."""
        values, indices, indptr, b, x0 = primals
        dvalues, _, _, db, _ = tangents
        right = zeros_like(b) if db is None else db
        if dvalues is not None:
            product = CsrTransposedMatMul(b.type.dims[0]) if self.transpose else CsrMatMul()
            right = right - product(dvalues, indices, indptr, y[0])
        dx, _, converged = self(values, indices, indptr, right, zeros_like(x0))
        return _or_nan(converged, dx), None, None

    def vjp(self, ct: Any, y: Any, values: Tensor, indices: Tensor, indptr: Tensor, b: Tensor, x0: Tensor) -> Any:
        if ct[0] is None:
            return None, None, None, None, None
        hermitian = self.method in HERMITIAN
        backward = self if hermitian else self.replace(transpose=not self.transpose)
        entries = values if hermitian else conjugated(values)
        solved, _, converged = backward(entries, indices, indptr, ct[0], zeros_like(x0))
        b_ct, x = _or_nan(converged, solved), conjugated(y[0])
        left, right = (x, b_ct) if self.transpose else (b_ct, x)
        return -CsrSampledProduct()(indices, indptr, left, right), None, None, b_ct, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pattern = _INDICES, _INDPTR
        for method in METHODS:
            values = _VALUES if method in HERMITIAN else _GENERAL
            for kind in _SAMPLED[method]:
                op_ = cls(method, 1e-12, 50, kind, restart=4)
                yield sample(op_, spec(7, values=values), *pattern, spec(3), spec(3), dtypes=("f64",))
            op_ = cls(method, 1e-12, 50, restart=4)
            entries = spec(7, values=_COMPLEX_VALUES)
            yield sample(op_, entries, *pattern, spec(3), spec(3), dtypes=("c128",))
        yield sample(cls("cg", 1e-5, 20), spec(7, values=_VALUES), *pattern, spec(3), spec(3), dtypes=("f32",))
        turned = cls("bicgstab", 1e-12, 50, transpose=True)
        yield sample(turned, spec(7, values=_GENERAL), *pattern, spec(3), spec(3), dtypes=("f64",))


@op("csr_least_squares")
class CsrLeastSquares(Op):
    """(x, iterations, converged): x [columns] that makes |b - A x| smallest, by LSQR from 0: of several the shortest.

    `converged` says that |Aᴴ r| <= tol·|A|·|r| or |r| <= tol·|b| for r = b - A x and the Frobenius norm of A. With
    `transpose` A is the transpose of the matrix that is given. Derivatives are those of matrices of full rank.
    """

    tol: float
    maxiter: int
    columns: int
    transpose: bool = False

    def infer(self, values: Shape, indices: Shape, indptr: Shape, b: Shape) -> tuple[Shape, ...]:
        require_values(self, values, b)
        require_pattern(self, indices, indptr, values)
        require_rank(self, b, 1)
        wanted, size = rows_of(indptr), self.columns
        if self.transpose:
            wanted, size = size, wanted
        if not require_equal(b.dims[0], wanted, self.mnemonic):
            raise self.fail(f"needs b with the {wanted} rows of A, got {b}")
        return b.with_dims((size,)), Shape((), DType.I32), Shape((), DType.BOOL)

    def eval(self, *arrays: Array) -> Any:
        return _by_definition(self, arrays)

    def decompose(self, values: Any, indices: Any, indptr: Any, b: Any) -> Any:
        import rlx.numpy as rnp

        given: Matrix = values, indices, indptr
        turned: Matrix = CsrTranspose(self.columns)(*given)
        a, adjoint = (turned, given) if self.transpose else (given, turned)
        product, entries = CsrMatMul(), conjugated(adjoint[0])

        def matvec(x: Any) -> Any:
            return product(*a, x)

        def back(r: Any) -> Any:
            return product(entries, *adjoint[1:], r)

        scale = iterations.norm(values)
        x0 = rnp.zeros((adjoint[2].shape[0] - 1,), b.dtype)
        x, count = iterations.lsqr(matvec, back, b, x0, scale, self.tol, self.maxiter)
        r = b - matvec(x)
        left = iterations.norm(r)
        small = iterations.norm(back(r)) <= self.tol * scale * left
        return x, count, small | (left <= self.tol * iterations.norm(b))

    def _residual(self, a: Matrix, b: Any, x: Any) -> Any:
        return b - self._product(a, x, self.transpose)

    def _product(self, a: Matrix, x: Any, transpose: bool) -> Any:
        return CsrTransposedMatMul(self.columns)(*a, x) if transpose else CsrMatMul()(*a, x)

    def _inverse(self, a: Matrix, right: Any) -> tuple[Any, Any]:
        """(AᴴA)⁻¹ c and A (AᴴA)⁻¹ c: the shortest w with Aᴴ w = c, and then x with A x = w."""
        adjoint = conjugated(a[0]), *a[1:]
        w, _, first = self.replace(transpose=not self.transpose)(*adjoint, right)
        x, _, second = self(*a, w)
        return _or_nan(first & second, x), _or_nan(first, w)

    def _is_tall(self, indptr: Tensor) -> bool:
        """Whether A has full column rank, if it has full rank; else it has full row rank, and no residual."""
        rows, columns = rows_of(indptr.type), self.columns
        return bool(rows <= columns if self.transpose else columns <= rows)

    def _beyond(self, a: Matrix, x: Any) -> Any:
        """The part of x that A maps to 0: x - A⁺ A x."""
        inside, _, converged = self(*a, self._product(a, x, self.transpose))
        return x - _or_nan(converged, inside)

    def _lifted(self, a: Matrix, x: Any) -> Any:
        """(A⁺)ᴴ x: the shortest w with Aᴴ w = x."""
        w, _, converged = self.replace(transpose=not self.transpose)(conjugated(a[0]), *a[1:], x)
        return _or_nan(converged, w)

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], y: Any) -> Any:
        """dx = A⁺ (db - dA x), plus (AᴴA)⁻¹ dAᴴ r for a tall A, or (1 - A⁺A) dAᴴ (A⁺)ᴴ x for a wide one."""
        values, indices, indptr, b = primals
        dvalues, _, _, db = tangents
        a: Matrix = values, indices, indptr
        right = zeros_like(b) if db is None else db
        if dvalues is not None:
            right = right - self._product((dvalues, indices, indptr), y[0], self.transpose)
        dx, _, converged = self(*a, right)
        dx = _or_nan(converged, dx)
        if dvalues is None:
            return dx, None, None
        moved: Matrix = conjugated(dvalues), indices, indptr
        if self._is_tall(indptr):
            turned, _ = self._inverse(a, self._product(moved, self._residual(a, b, y[0]), not self.transpose))
        else:
            turned = self._beyond(a, self._product(moved, self._lifted(a, y[0]), not self.transpose))
        return dx + turned, None, None

    def vjp(self, ct: Any, y: Any, values: Tensor, indices: Tensor, indptr: Tensor, b: Tensor) -> Any:
        if ct[0] is None:
            return None, None, None, None
        a: Matrix = values, indices, indptr
        if self._is_tall(indptr):
            x, w = self._inverse(a, ct[0])
            pairs = (self._residual(a, b, y[0]), conjugated(x)), (w, conjugated(y[0]))
        else:
            w = self._lifted(a, ct[0])
            pairs = (self._lifted(a, y[0]), conjugated(self._beyond(a, ct[0]))), (w, conjugated(y[0]))
        first, second = (
            CsrSampledProduct()(indices, indptr, *((right, left) if self.transpose else (left, right)))
            for left, right in pairs
        )
        return first - second, None, None, w

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # 4 x 2 of full rank: (0,), (0, 1), (1,), (0, 1).
        indices, indptr = (0, 0, 1, 1, 0, 1), (0, 1, 3, 4, 6)
        pattern = spec(6, dtype="i32", values=indices), spec(5, dtype="i32", values=indptr)
        values = (3.0, 1.0, 2.0, -4.0, 0.5, 1.0)
        yield sample(cls(1e-12, 60, 2), spec(6, values=values), *pattern, spec(4), dtypes=("f64",))
        mixed = (3.0, 1.0j, 2.0, -4.0j, 0.5, 1.0 + 1.0j)
        yield sample(cls(1e-12, 60, 2), spec(6, values=mixed), *pattern, spec(4), dtypes=("c128",))
        yield sample(cls(1e-12, 60, 2, True), spec(6, values=values), *pattern, spec(2), dtypes=("f64",))
