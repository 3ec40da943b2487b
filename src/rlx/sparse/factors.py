"""Direct solvers and factors that are used again: `sparse.solve`, `sparse.lu`, `sparse.cholesky`, triangular solves.

    F = rlx.sparse.cholesky(A)
    x = F.solve(b)

A Cholesky factor is made by the program itself: the order and the pattern of L are found when it is traced, from the
pattern of A, and its numbers are computed by kernels. LU needs pivots, which depend on values; it runs on the host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import rlx.numpy as rnp
from rlx.autodiff import stop_gradient
from rlx.errors import OpError, ShapeError
from rlx.ir.tensor import Tensor
from rlx.ops import scatter_add
from rlx.ops.define.operands import dims_of, promote_inexact
from rlx.ops.linalg.solve import not_positive_definite
from rlx.sparse import cholmod
from rlx.sparse.arrays import CSR, SparseArray
from rlx.sparse.eager import apply
from rlx.sparse.ops_direct import CsrDirectSolve, CsrFactoredLogdet, CsrFactoredSolve
from rlx.sparse.ops_supernodal import PanelCholesky
from rlx.sparse.ops_triangular import CsrIncompleteCholesky, CsrIncompleteLu, CsrTriangularSolve
from rlx.sparse.patterns import Pattern
from rlx.sparse.supernodes import Symbolic, analysed
from rlx.tree import register_pytree_node

Array = np.ndarray[Any, np.dtype[Any]]

ENGINES = ("auto", "own", "cholmod")


def _system(a: SparseArray, b: Any, what: str) -> tuple[CSR, Any, Any]:
    """A in compressed rows, with values and a right side of one dtype."""
    rows, columns = a.shape
    dims = dims_of(b)
    if rows != columns or len(dims) not in (1, 2) or dims[0] != rows:
        raise ShapeError(
            f"sparse.{what}: needs a square A and b of shape (n,) or (n, k), got {rows}x{columns} and {tuple(dims)}"
        )
    m = a.tocsr()
    values, b = promote_inexact(m.values, b)
    return m, values, b


def solve(A: SparseArray, b: Any) -> Any:
    """A⁻¹ b for a square A, by sparse LU with pivoting (SuperLU, where SciPy is installed); b is (n,) or (n, k).

    A singular matrix is an error. Derivatives are exact: a solve with Aᵀ, which finds the factors again.
    """
    m, values, b = _system(A, b, "solve")
    return CsrDirectSolve()(values, m.indices, m.indptr, b)


class LU:
    """A matrix whose factors are kept; see `lu`."""

    def __init__(self, matrix: SparseArray) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def solve(self, b: Any) -> Any:
        """A⁻¹ b."""
        return solve(self.matrix, b)


def lu(A: SparseArray) -> LU:
    """The sparse LU factors of A, for several solves; made at once outside of a program, and else where they run."""
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"sparse.lu: needs a square matrix, got {A.shape[0]}x{A.shape[1]}")
    m = A.tocsr()
    if not isinstance(m.values, Tensor) and m.shape[0]:
        from rlx.sparse.direct import factors_of

        factors_of(np.asarray(m.values), m.indices, m.indptr)
    return LU(m)


class FactorPattern(NamedTuple):
    """The order of rows in a Cholesky factor, and where it has entries."""

    order: Array
    pattern: Pattern

    def __hash__(self) -> int:
        return hash(self.pattern)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, FactorPattern)
            and self.pattern == other.pattern
            and np.array_equal(self.order, other.order)
        )


symbolic = lru_cache(maxsize=16)(analysed)


class Cholesky:
    """P A Pᵀ = L Lᴴ; see `cholesky`."""

    def __init__(self, matrix: CSR, factor: Any, plan: FactorPattern) -> None:
        self.matrix, self.factor, self.plan = matrix, factor, plan

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def L(self) -> CSR:
        """The lower triangular factor of the reordered matrix."""
        return CSR(self.factor, self.plan.pattern)

    @property
    def order(self) -> Array:
        """The row of A that comes k-th."""
        return self.plan.order

    def solve(self, b: Any) -> Any:
        """A⁻¹ b for b of shape (n,) or (n, k)."""
        m, values, b = _system(self.matrix, b, "cholesky.solve")
        factor, b = promote_inexact(self.factor, b)
        p = self.plan.pattern
        lower = (factor, p.indices, p.indptr, self.plan.order)
        pattern, vector = (("Z",), ("Z",), ("N + 1",)), ("N", "K")[: len(dims_of(b))]
        sizes = (*pattern, vector, ("F",), ("F",), ("N + 1",), ("N",))
        return apply(CsrFactoredSolve(), values, m.indices, m.indptr, b, *lower, sizes=sizes)

    def logdet(self) -> Any:
        """log det A; it has no derivative."""
        entries, _ = self.plan.pattern.diagonal
        return apply(CsrFactoredLogdet(), self.matrix.values, rnp.take(self.factor, entries))


def cholesky(A: SparseArray, order: str = "amd", engine: str = "auto") -> Cholesky:
    """The Cholesky factor of a symmetric (Hermitian) positive definite A, of which the lower triangle is read.

    `order` is "amd" (approximate minimum degree), "rcm" (reverse Cuthill-McKee) or "natural". A matrix that is not
    positive definite is an error; inside of a program, solutions are NaN then.

    `engine` is "own" (supernodal, inside of programs too), "cholmod" (CHOLMOD through scikit-sparse, outside of
    programs, in double precision, orders amd and natural), or "auto": CHOLMOD where it is installed and can.
    """
    m = A.tocsr()
    if m.shape[0] != m.shape[1]:
        raise ShapeError(f"sparse.cholesky: needs a square matrix, got {m.shape[0]}x{m.shape[1]}")
    (values,) = promote_inexact(m.values)
    if engine not in ENGINES:
        raise OpError(f"sparse.cholesky: engine must be one of {ENGINES}, got {engine!r}")
    m = m.with_values(values)
    if engine != "own" and cholmod.can_factorise(m, order, is_wanted=engine == "cholmod"):
        return Cholesky(m, *_by_cholmod(m, order))
    plan = symbolic(m.pattern, order)
    # A solution depends on A; that it is found by way of L does not matter to derivatives.
    factor = _panels_of(stop_gradient(values), m.pattern, plan)
    if not isinstance(factor, Tensor):
        entries, _ = plan.pattern.diagonal
        if not np.isfinite(np.asarray(factor)).all() or not (np.asarray(factor)[entries].real > 0).all():
            raise not_positive_definite("sparse.cholesky")
    return Cholesky(m, factor, FactorPattern(plan.order, plan.pattern))


def _panels_of(values: Any, pattern: Pattern, plan: Symbolic) -> Any:
    """The entries of L. Those of the lower triangle of A that cross the diagonal on the way arrive as conjugates."""
    position = np.argsort(plan.order)
    is_lower = pattern.indices <= pattern.rows
    stays = position[pattern.indices] <= position[pattern.rows]
    kept, turned = (np.flatnonzero(is_lower & side) for side in (stays, ~stays))
    placed = [
        scatter_add(rnp.take(v, entries), plan.goals[entries], plan.size)
        for v, entries in ((values, kept), (rnp.conj(values), turned))
    ]
    numbers = ("S + 1",), ("S",), ("S",), ("S + 1",), ("P", "4"), ("Q",)
    panels = apply(PanelCholesky(), placed[0] + placed[1], *plan.panels, sizes=(("F",), *numbers))
    return rnp.take(panels, plan.places)


def _by_cholmod(m: CSR, order: str) -> tuple[Array, FactorPattern]:
    permutation, lower = cholmod.factor(m, order)
    pattern = Pattern.of(lower.indices, lower.indptr, m.shape, "sparse.cholesky")
    return lower.data.astype(m.values.dtype), FactorPattern(permutation.astype(m.indices.dtype), pattern)


def triangular_solve(
    A: SparseArray, b: Any, *, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False
) -> Any:
    """x with T x = b (Tᵀ x = b with `transpose`), T being one triangle of A; the other is not read.

    A diagonal entry that is zero or missing is an error outside of a program, and gives inf or NaN inside of one.
    """
    m, values, b = _system(A, b, "triangular_solve")
    if not unit_diagonal:
        entries, _ = m.pattern.diagonal
        missing = len(entries) < m.shape[0]
        if missing or (not isinstance(values, Tensor) and (np.asarray(values)[entries] == 0).any()):
            raise OpError("sparse.triangular_solve: the matrix has a zero on its diagonal, so it is singular")
    op = CsrTriangularSolve(lower, transpose, unit_diagonal)
    return apply(op, values, m.indices, m.indptr, b)


class Incomplete:
    """An incomplete factorisation, which is a function: `z = M(r)` solves with it. For `preconditioner=`."""

    def __init__(self, factor: CSR, kind: str) -> None:
        self.factor, self.kind = factor, kind

    def __call__(self, r: Any) -> Any:
        p, values = self.factor.pattern, self.factor.values
        first = CsrTriangularSolve(unit_diagonal=self.kind == "ilu0")
        second = CsrTriangularSolve(lower=False) if self.kind == "ilu0" else CsrTriangularSolve(transpose=True)
        back = values if self.kind == "ilu0" else rnp.conj(values)
        return apply(second, back, p.indices, p.indptr, apply(first, values, p.indices, p.indptr, r))


def ilu0(A: SparseArray) -> Incomplete:
    """ILU(0): the LU factors of A without fill-in."""
    m = A.tocsr()
    return Incomplete(CSR(apply(CsrIncompleteLu(), m.values, m.indices, m.indptr), m.pattern), "ilu0")


def ic0(A: SparseArray) -> Incomplete:
    """IC(0): the Cholesky factor of A without fill-in."""
    m = A.tocsr()
    return Incomplete(CSR(apply(CsrIncompleteCholesky(), m.values, m.indices, m.indptr), m.pattern), "ic0")


register_pytree_node(LU, lambda f: ((f.matrix,), None), lambda _, xs: LU(xs[0]))
register_pytree_node(Cholesky, lambda f: ((f.matrix, f.factor), f.plan), lambda plan, xs: Cholesky(xs[0], xs[1], plan))
register_pytree_node(Incomplete, lambda m: ((m.factor,), m.kind), lambda kind, xs: Incomplete(xs[0], kind))
