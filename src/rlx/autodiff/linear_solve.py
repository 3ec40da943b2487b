"""The solution of a linear system as a function with derivatives of its own, whatever finds it.

    x = linear_solution(matvec, b, solve, transpose_solve)

With A·x = b, dx = A⁻¹·(db - dA·x): forward mode solves once more, for that right side. Reverse mode solves with the
adjoint of A, for the cotangent of x. Both are solutions of this kind again, so that derivatives have every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.autodiff.custom_rules import _CustomFunction, _JvpRule, _VjpRule, stop_gradient
from rlx.autodiff.functions import jvp, vjp
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.tensor import current_scope, lift
from rlx.ops.control.custom_derivatives import DerivativeRule
from rlx.ops.control.custom_functions import CustomFn
from rlx.ops.define.operands import dtype_of
from rlx.trace.pytree import TreeDef, tree_flatten, tree_map
from rlx.trace.tracing import spec_of, trace_flat

Matvec = Callable[[Any], Any]
Solve = Callable[[Matvec, Any], Any]
# A function of the values that a matrix, or a solver, depends on, and of a vector.
Linear = Callable[[Sequence[Any], Any], Any]


def linear_solution(
    matvec: Matvec, b: Any, solve: Solve, transpose_solve: Solve | None = None, has_aux: bool = False
) -> Any:
    """x with matvec(x) = b, as `solve(matvec, b)` finds it; `(x, aux)` if that is what it returns.

    `transpose_solve` is given the adjoint of `matvec`; without it, `solve` itself is transposed. Solvers may read what
    is being differentiated: a preconditioner that is made of the matrix, or a start. It is constant to derivatives.
    """
    scope = current_scope()
    if scope is None:
        return solve(matvec, b)
    leaves, tree = tree_flatten(b)
    leaves = [lift(x, scope.graph) for x in leaves]
    known: list[Any] = []

    def recorded(name: str, function: Linear) -> Linear:
        """The function as a program of all that is known so far and of a vector, which rules may use elsewhere."""
        count = len(known)
        specs = [spec_of(x, "the right side of a linear system") for x in (*known, *leaves)]
        traced = trace_flat(
            name,
            lambda xs: function(xs[:count], tree.unflatten(xs[count:])),
            specs,
            [f"x{i}" for i in range(len(specs))],
            can_capture=True,
        )
        start = len(known)
        known.extend(lift(x, scope.graph) for x in traced.captures)
        mine = slice(start, len(known))

        def run(values: Sequence[Any], x: Any) -> Any:
            operands = [*values[:count], *tree_flatten(x)[0], *values[mine]]
            return traced.out_tree.unflatten(inline_graph(traced.graph, operands))

        return run

    product = recorded("matvec", lambda _, x: matvec(x))
    matrix_size = len(known)
    solver = recorded("solve", lambda values, b: solve(lambda x: product(values, x), b))
    transposed: Linear | None = None
    if transpose_solve is not None:
        turned = transpose_solve
        transposed = recorded(
            "transpose_solve",
            lambda values, b: turned(lambda y: _transposed(lambda x: product(values, x), y), b),
        )
    constants = [stop_gradient(x) for x in known[matrix_size:]]
    return _Solution(product, solver, transposed, has_aux)([*known[:matrix_size], *constants], tree.unflatten(leaves))


class _Solution(_CustomFunction):
    """x of product(matrix, x) = b, as a function of what the matrix and its solvers depend on, and of b."""

    def __init__(self, product: Linear, solve: Linear, transpose_solve: Linear | None, has_aux: bool) -> None:
        def solution(matrix: Sequence[Any], b: Any) -> Any:
            return solve(matrix, b)

        super().__init__(solution)
        self.product, self.solve, self.transpose_solve, self.has_aux = product, solve, transpose_solve, has_aux

    def _rule(self, constants: tuple[Any, ...], in_tree: TreeDef, out_tree: TreeDef) -> DerivativeRule:
        return _SolutionRule(self, in_tree, out_tree)

    def parts(self, found: Any) -> tuple[Any, Any]:
        """The solution, and what came with it."""
        return found if self.has_aux else (found, None)

    def push(self, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        (matrix, b), (d_matrix, db) = primals, tangents
        found = self(matrix, b)
        x, aux = self.parts(found)
        moved = jvp(lambda m: self.product(m, x), (matrix,), (d_matrix,))[1] if matrix else tree_map(lambda v: v * 0, b)
        dx = self.parts(self(matrix, tree_map(lambda a, c: a - c, db, moved)))[0]
        return found, (dx, tree_map(lambda v: None, aux)) if self.has_aux else dx

    def save(self, matrix: Sequence[Any], b: Any) -> tuple[Any, Any]:
        found = self(matrix, b)
        return found, (list(matrix), self.parts(found)[0])

    def pull(self, saved: tuple[list[Any], Any], cotangents: Any) -> tuple[Any, Any]:
        matrix, x = saved
        ct = self.adjoint_solution(matrix, self.parts(cotangents)[0])
        smooth = [i for i, value in enumerate(matrix) if dtype_of(value).is_inexact]

        def product(*values: Any) -> Any:
            known = dict(zip(smooth, values))
            return self.product([known.get(i, value) for i, value in enumerate(matrix)], x)

        gradients: list[Any] = [None] * len(matrix)
        if smooth:
            pulled = vjp(product, *(matrix[i] for i in smooth))[1](tree_map(lambda v: -v, ct))
            for i, gradient in zip(smooth, pulled):
                gradients[i] = gradient
        return gradients, ct

    def adjoint_solution(self, matrix: Sequence[Any], ct: Any) -> Any:
        """A⁻ᴴ·ct."""
        if self.transpose_solve is None:
            return _transposed(lambda b: self.parts(self.solve(matrix, b))[0], ct)

        def adjoint(matrix: Sequence[Any], y: Any) -> Any:
            return _transposed(lambda x: self.product(matrix, x), y)

        turned = _Solution(adjoint, self.transpose_solve, self.solve, self.has_aux)
        return self.parts(turned(matrix, ct))[0]


def _transposed(linear: Matvec, ct: Any) -> Any:
    """The adjoint of a function from values like ct to values like ct."""
    return vjp(linear, tree_map(lambda v: v * 0, ct))[1](ct)[0]


class _SolutionRule(_VjpRule):
    """Both derivatives of a solution."""

    def __init__(self, solution: _Solution, in_tree: TreeDef, out_tree: TreeDef) -> None:
        super().__init__("solution", solution.save, solution.pull, in_tree, out_tree)
        self.is_transposed = solution.transpose_solve is not None
        self.forward = _JvpRule("solution", solution.push, in_tree, out_tree)

    def expand(self, body: Graph) -> CustomFn:
        forward = self.forward.jvp_body(body)
        try:
            reverse = super().expand(body)
        except AutodiffError:
            if self.is_transposed:
                raise
            # The solver cannot be transposed. Reverse mode meets it in the body and says why; forward mode need not.
            return CustomFn(body, None, forward)
        return CustomFn(body, reverse.vjp_body, forward, saving_body=reverse.saving_body)
