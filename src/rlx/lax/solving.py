"""`custom_linear_solve`: the solution of a linear system, differentiated as such instead of through the solver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.autodiff.linear_solve import linear_solution

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

    Derivatives solve once more instead of going through the solver: forward ones with `solve`, reverse ones with
    `transpose_solve`, which is given the transpose of `matvec`, or with `solve` for a `symmetric` system. Without
    either, `solve` is transposed, so it must be one that has reverse derivatives: a direct one, or a loop with
    `max_iterations`. With `has_aux` `solve` returns `(x, aux)`.
    """
    return linear_solution(matvec, b, solve, solve if symmetric else transpose_solve, has_aux)
