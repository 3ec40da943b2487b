"""`custom_root`: the root of a function, differentiated by the implicit function theorem instead of through the solver.

    def cube_root(y):
        return rlx.lax.custom_root(lambda x: x**3 - y, 1.0, newton, lambda g, b: b / g(1.0))

At a root x of f(x, y) = 0, ∂x/∂y = -(∂f/∂x)⁻¹ ∂f/∂y; `tangent_solve` applies the inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.autodiff.custom_rules import stop_gradient
from rlx.autodiff.functions import jvp
from rlx.autodiff.linear_solve import linear_solution
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.tensor import current_scope, lift
from rlx.trace.pytree import tree_flatten, tree_map
from rlx.trace.tracing import spec_of, trace_flat

Solve = Callable[[Callable[[Any], Any], Any], Any]


def custom_root(
    f: Callable[[Any], Any], initial_guess: Any, solve: Solve, tangent_solve: Solve, has_aux: bool = False
) -> Any:
    """x with f(x) = 0, found by `solve(f, initial_guess)`; derivatives by what `f` closes over ask `f`, not `solve`.

    `tangent_solve(g, b)` gives x with g(x) = b for a linear function g, the derivative of f at the root: `b / g(1.0)`
    for scalars. With `has_aux` `solve` returns `(x, aux)`, and so does this. Derivatives are right up to the third
    order.
    """
    found = _solved(f, initial_guess, solve)
    root, aux = found if has_aux else (found, None)
    root = tree_map(stop_gradient, root)
    # Newton steps whose values are the root itself. Each doubles the order up to which derivatives are right, plus one:
    # after two they are, up to the third.
    for _ in range(2):
        root = _newton(f, root, tangent_solve)
    return (root, aux) if has_aux else root


def _solved(f: Callable[[Any], Any], initial_guess: Any, solve: Solve) -> Any:
    """solve(f, initial_guess), in which what `f` closes over is constant, so that nobody differentiates the solver."""
    scope = current_scope()
    if scope is None:
        return solve(f, initial_guess)
    leaves, tree = tree_flatten(initial_guess)
    names = [f"guess_{i}" for i in range(len(leaves))]
    specs = [spec_of(x, "custom_root: the guess") for x in leaves]
    traced = trace_flat("root", lambda xs: solve(f, tree.unflatten(xs)), specs, names, can_capture=True)
    operands = [stop_gradient(lift(x, scope.graph)) for x in (*leaves, *traced.captures)]
    return traced.out_tree.unflatten(inline_graph(traced.graph, operands))


def _newton(f: Callable[[Any], Any], x: Any, tangent_solve: Solve) -> Any:
    """x - f'(x)⁻¹ (f(x) - r), r being the number that f(x) is: no step in value, the right one in its derivative."""
    residual = tree_map(lambda r: r - stop_gradient(r), f(x))
    step = linear_solution(lambda direction: jvp(f, (x,), (direction,))[1], residual, tangent_solve)
    return tree_map(lambda a, b: a - b, x, step)
