"""A few eigenvalues of a symmetric matrix: `rlx.sparse.lobpcg`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rlx
import rlx.numpy as rnp
from rlx.errors import ShapeError
from rlx.ops.define.operands import dims_of, promote_inexact
from rlx.sparse.arrays import SparseArray
from rlx.sparse.solvers import SolveInfo


def lobpcg(
    A: SparseArray,
    X: Any,
    *,
    largest: bool = True,
    tol: float = 1e-6,
    maxiter: int = 200,
    preconditioner: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any, SolveInfo]:
    """(w, V, info): the k largest (or smallest) eigenvalues of a symmetric (Hermitian) A and their vectors, from the k
    columns of X as a first guess.

    Converged means |A v - w v| <= tol·max(|w|) for every pair. Eigenvalues can be differentiated, dw = vᴴ dA v, which
    is exact where they are distinct; eigenvectors are constants to derivatives. `preconditioner` takes one vector.
    """
    rows, columns = A.shape
    dims = dims_of(X)
    if rows != columns or len(dims) != 2 or dims[0] != rows or not 1 <= int(dims[1]) * 3 <= rows:
        raise ShapeError(
            "sparse.lobpcg: needs a square A and X of shape (n, k) with 1 <= 3k <= n, "
            f"got {rows}x{columns} and {tuple(dims)}"
        )
    a = A.tocsr()
    values, X = promote_inexact(a.values, X)
    vectors, count, worst, converged = rlx.jit(_iterate, static_argnums=(2, 3, 4, 5, 6))(
        rlx.stop_gradient(values), X, a.pattern, largest, tol, maxiter, preconditioner
    )
    vectors = rlx.stop_gradient(vectors)
    moved = a.with_values(values) @ vectors
    w = rnp.sum(rnp.real(rnp.conj(vectors) * moved), axis=0)
    return w, vectors, SolveInfo(converged, count, worst)


def _iterate(values: Any, X: Any, pattern: Any, largest: bool, tol: float, maxiter: int, precondition: Any) -> Any:
    from rlx.sparse.products import times

    k = X.shape[1]
    sign = -1.0 if largest else 1.0

    def residual(X: Any) -> tuple[Any, Any, Any]:
        moved = times(values, pattern, X)
        w = rnp.sum(rnp.real(rnp.conj(X) * moved), axis=0)
        R = moved - X * w
        sizes = rnp.sqrt(rnp.sum(rnp.real(rnp.conj(R) * R), axis=0))
        scale = rnp.max(rnp.abs(w))
        return R, w, rnp.max(sizes) / rnp.where(scale == 0, rnp.ones_like(scale), scale)

    def step(carry: Any) -> Any:
        X, P, R, _, count = carry
        W = R if precondition is None else rlx.vmap(precondition, in_axes=1, out_axes=1)(R)
        # An orthonormal basis of all three, so that directions that depend on each other do no harm.
        basis = rnp.linalg.qr(rnp.concatenate([X, W, P], axis=1))[0]
        small = rnp.matmul(rnp.conj(rnp.swapaxes(basis, 0, 1)), times(values, pattern, basis))
        small = (small + rnp.conj(rnp.swapaxes(small, 0, 1))) * 0.5
        chosen = rnp.linalg.eigh(small * sign)[1][:, :k]
        new = rnp.matmul(basis, chosen)
        # The next direction is the part of the new vectors that is not in the old ones.
        P = new - rnp.matmul(X, rnp.matmul(rnp.conj(rnp.swapaxes(X, 0, 1)), new))
        R, _, worst = residual(new)
        return new, P, R, worst, count + 1

    X = rnp.linalg.qr(X)[0]
    R, _, worst = residual(X)
    begin = (X, rnp.zeros_like(X), R, worst, rnp.int32(0))
    X, _, _, worst, count = rlx.while_loop(lambda c: (c[3] > tol) & (c[4] < maxiter), step, begin)
    return X, count, worst, worst <= tol
