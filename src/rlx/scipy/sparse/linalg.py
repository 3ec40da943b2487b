"""Linear systems by products alone, with the arguments of `jax.scipy.sparse.linalg`.

>>> import numpy as np
>>> x, _ = cg(lambda v: {"a": 2 * v["a"], "b": 4 * v["b"]}, {"a": np.ones(2, "f4"), "b": np.float32(2)})
>>> x["a"].tolist(), float(x["b"])
([0.5, 0.5], 0.5)

Right sides are trees, the matrix is a function of such a tree or an array, and what it reads from outside has
gradients. `rlx.sparse` has solvers that say how they ended, and preconditioners for sparse matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rlx.numpy as rnp
from rlx.lax.solving import custom_linear_solve
from rlx.numpy.arguments import inexact
from rlx.sparse import iterations
from rlx.trace.pytree import tree_map
from rlx.trace.ravel import ravel_pytree

__all__ = ["bicgstab", "cg", "gmres"]

Map = Callable[[Any], Any]


def cg(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """`(x, None)` with A x = b for Hermitian positive definite A, by conjugate gradients; M is a preconditioner."""
    return _solved("cg", A, b, x0, tol, atol, maxiter, M, symmetric=True)


def bicgstab(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """`(x, None)` with A x = b for any regular A, by stabilised bi-conjugate gradients."""
    return _solved("bicgstab", A, b, x0, tol, atol, maxiter, M)


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
    solve_method: str = "batched",
) -> tuple[Any, None]:
    """`(x, None)` with A x = b for any regular A, by generalised minimal residuals, begun again after `restart`
    products. JAX's `solve_method` is accepted and changes nothing."""
    return _solved("gmres", A, b, x0, tol, atol, maxiter, M, extra=(restart,))


def _solved(
    method: str,
    a: Any,
    b: Any,
    x0: Any,
    tol: float,
    atol: float,
    maxiter: int | None,
    precondition: Any,
    symmetric: bool = False,
    extra: tuple[int, ...] = (),
) -> tuple[Any, None]:
    flat, as_tree = ravel_pytree(tree_map(lambda leaf: inexact(leaf)[0], b))
    limit = 10 * int(flat.size) if maxiter is None else int(maxiter)

    def product(matrix: Any) -> Map:
        if matrix is None:
            return lambda v: v
        if callable(matrix):
            return lambda v: ravel_pytree(matrix(as_tree(v)))[0]
        return lambda v: matrix @ v

    multiply, prepare = product(a), product(precondition)
    # The start is a part of the right side, for which the matrix is 1: systems that derivatives solve start at 0.
    right = (flat, rnp.zeros_like(flat) if x0 is None else ravel_pytree(x0)[0].astype(flat.dtype))

    def solve(matvec: Map, right: tuple[Any, Any]) -> tuple[Any, Any]:
        rhs, start = right
        # The goal of the iterations is relative to b; `atol` is a bound that may be larger.
        size = iterations.norm(rhs)
        goal = rnp.maximum(tol, atol / rnp.where(size == 0, rnp.ones_like(size), size)) if atol else tol
        found = getattr(iterations, method)(lambda v: matvec((v, start))[0], rhs, start, prepare, goal, limit, *extra)
        return found[0], start

    def whole(values: tuple[Any, Any]) -> tuple[Any, Any]:
        return multiply(values[0]), values[1]

    x, _ = custom_linear_solve(whole, right, solve, None if symmetric else solve, symmetric=symmetric)
    return as_tree(x), None
