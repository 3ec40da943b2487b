"""Branches and bounded loops -> straight code, for targets that run neither.

Both sides of a branch are computed and one is selected; a loop is repeated as often as it may run, and keeps its
values once its condition has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from rlx.compile.claims.fusion.fusion_options import supports_op
from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import all_bodies, replace_nodes
from rlx.ir.shape import Shape
from rlx.ops.control.bodies import one_or_tuple
from rlx.ops.control.branches import If, While
from rlx.ops.pointwise.arithmetic import mul, ne, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.reduction.reductions import reduce_all
from rlx.ops.shape.creation import full
from rlx.ops.shape.movement import reshaped


def inline_if(graph: Graph) -> Graph:
    """Both branches of every `if` in place of it, and a `where` per result; bodies included.

    A branch with an effect, or with a loop that may not end, must not run unless it is chosen: such an `if` stays.
    """
    return replace_nodes(graph, _inlined_form, "inline_if").graph


def unroll_while(graph: Graph) -> Graph:
    """Every `while` as `max_iterations` copies of its body, each followed by a `where` per carry; bodies included."""
    return replace_nodes(graph, _strictly_unrolled_form, "unroll_while").graph


class LowerControlFlow(Pass):
    """`inline_if` and then `unroll_while`, except for the kinds in `keep` and for what cannot be lowered.

    What stays has an effect or no bound on its rounds; a target that cannot run it will say so.
    """

    name = "LowerControlFlow"

    def __init__(self, keep: Collection[str] = ()) -> None:
        self.keep = frozenset(keep)

    @classmethod
    def unless_claimed(cls, supported: Collection[str]) -> LowerControlFlow:
        """Keeps what a target claims."""
        return cls(keep=[kind for kind in STRAIGHT_FORMS if supports_op(supported, kind)])

    def run(self, graph: Graph) -> Graph:
        for kind, form in STRAIGHT_FORMS.items():
            if kind not in self.keep:
                graph = replace_nodes(graph, form, self.name).graph
        return graph


def _inlined_form(node: Node) -> Callable[..., Any] | None:
    op = node.op
    if not isinstance(op, If) or op.effect or not node.shapes:
        return None
    bodies = [op.then_body, op.else_body]
    if any(_may_not_end(n) for body in bodies for part in (body, *all_bodies(body)) for n in part.nodes):
        return None
    return partial(_both_branches, op, node.shapes)


def _may_not_end(node: Node) -> bool:
    return isinstance(node.op, While) and node.op.max_iterations is None


def _both_branches(op: If, shapes: tuple[Shape, ...], pred: Any, *captures: Any) -> Any:
    chosen = reshaped(pred, ())
    pairs = zip(inline_graph(op.then_body, captures), inline_graph(op.else_body, captures))
    return one_or_tuple([reshaped(where(chosen, a, b), shape.dims) for (a, b), shape in zip(pairs, shapes)])


def _strictly_unrolled_form(node: Node) -> Callable[..., Any] | None:
    op = node.op
    if isinstance(op, While) and op.max_iterations is None:
        raise OpError(
            f"unroll_while: the loop {node.id} (body @{op.body.name}) has no max_iterations, so nothing says how often "
            "to repeat it; give it a bound, or run it as it is (run_while) on a target with native loops"
        )
    if isinstance(op, While) and op.effect:
        raise OpError(f"unroll_while: the loop {node.id} has an effect, which must not happen after its last round")
    return _unrolled_form(node)


def _unrolled_form(node: Node) -> Callable[..., Any] | None:
    op = node.op
    if not isinstance(op, While) or op.max_iterations is None or op.effect or not node.shapes:
        return None
    return partial(_repeated, op)


def _repeated(op: While, *operands: Any) -> Any:
    split = len(operands) - op.num_bcast
    carries, shared = list(operands[:split]), operands[split:]
    active = full((), 1.0, "f32")
    for _ in range(op.max_iterations or 0):
        (condition,) = inline_graph(op.cond, [*carries, *shared])
        active = mul(active, _flag(condition))
        results = inline_graph(op.body, [*carries, *shared])
        carries = [reshaped(where(active, new, old), old.shape) for new, old in zip(results, carries)]
    return one_or_tuple(carries)


def _flag(condition: Any) -> Any:
    """1.0 when all elements are not 0, else 0.0."""
    holds = condition if condition.dtype is DType.BOOL else ne(condition, 0)
    return cast(reduce_all(holds) if condition.size != 1 else reshaped(holds, ()), "f32")


# The form of every op with `has_straight_form`, by its kind, in the order in which they are lowered.
STRAIGHT_FORMS = {If.__name__: _inlined_form, While.__name__: _unrolled_form}
