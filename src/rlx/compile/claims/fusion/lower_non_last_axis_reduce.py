"""Reductions over any axes -> reductions over the last axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import replace_nodes
from rlx.ir.shape import normalize_axes
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.shape.movement import reshaped, transposed


def _form_of(node: Node) -> Callable[..., Any] | None:
    op = node.op
    if not isinstance(op, Reduce) or not op.axes:
        return None
    rank = node.shape.rank + (0 if op.keep_dim else len(op.axes))
    return None if normalize_axes(op.axes, rank, op.mnemonic) == (rank - 1,) else partial(_along_last_axis, op)


def _along_last_axis(op: Reduce, x: Any) -> Any:
    axes = normalize_axes(op.axes, x.ndim, op.mnemonic)
    kept = [a for a in range(x.ndim) if a not in axes]
    rows = transposed(x, (*kept, *axes))
    flat = reshaped(rows, (*(x.shape[a] for a in kept), product(x.shape[a] for a in axes)))
    return reshaped(Reduce(op.kind, (len(kept),))(flat), op.infer(x.type).dims)


class LowerNonLastAxisReduce(Pass):
    """Reduced axes move to the end and become one, which is reduced. It copies: only for targets that need it."""

    name = "lower_non_last_axis_reduce"

    def run(self, graph: Graph) -> Graph:
        return replace_nodes(graph, _form_of, self.name).graph
