"""`custom_linear_solve`: the solution of a linear system, differentiated as such instead of through the solver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx import ops
from rlx.autodiff.custom_root import custom_root
from rlx.trace.pytree import tree_map

Solve = Callable[[Callable[[Any], Any], Any], Any]


def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Solve,
    transpose_solve: Solve | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """x with matvec(x) = b, found by `solve(matvec, b)`; b and x are trees of arrays.

    Derivatives solve once more with the same function. Those in reverse transpose that solve, so it must be one that
    has reverse derivatives: a direct one, or a loop with `max_iterations`; `transpose_solve` and `symmetric` are then
    not needed, and are accepted so that programs written for JAX run. With `has_aux` `solve` returns `(x, aux)`.
    """

    def residual(x: Any) -> Any:
        return tree_map(lambda y, c: y - c, matvec(x), b)

    def without_aux(g: Callable[[Any], Any], y: Any) -> Any:
        found = solve(g, y)
        return found[0] if has_aux else found

    guess = tree_map(ops.zeros_like, b)
    return custom_root(residual, guess, lambda f, x: solve(matvec, b), without_aux, has_aux)
