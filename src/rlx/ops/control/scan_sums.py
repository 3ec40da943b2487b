"""Gradients of weights that every step of a scan uses, taken from all steps at once after the backward scan.

A weight in `x[t] @ w` has the gradient Σ x[t]ᵀ @ d[t]. Summed up inside of the loop, each step reads and writes the
whole sum for a product with few rows. Where the rows of all steps are kept anyway, one product gives the same:
[length·rows, K]ᵀ @ [length·rows, N]. Nothing more is kept for it, so that checkpoints save as much memory as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.tensor import Tensor
from rlx.ops.control.body_transforms import Flags, VjpProgram, chosen, spread
from rlx.ops.linalg.contraction import MatMul, matmul
from rlx.ops.shape.movement import Transpose, reshape, transpose

if TYPE_CHECKING:
    from rlx.ops.control.scans import Scan

__all__ = ["SplitSums", "split_sums"]

# Rows of a step above which its product is as fast as one of all steps.
_FEW_ROWS = 64


class _Product(NamedTuple):
    """The values of one step, nodes of the backward program, whose rows are multiplied: left[t]ᵀ @ right[t]."""

    left: NodeId
    right: NodeId


class SplitSums(NamedTuple):
    """The backward program of a step without the products that are taken later, and how these are made of all steps."""

    graph: Graph
    program: VjpProgram
    # Which outputs of the program the graph still has.
    kept: Flags
    # One for each gradient of a bcast that is found; None is summed up in the loop.
    later: list[_Product | None]
    # Values whose rows of all steps exist before the loop, and those that the loop returns: the gradients of the xs.
    outside: dict[NodeId, Tensor]
    d_xs: list[NodeId]

    def __call__(self, operands: Sequence[Any], cotangents: Sequence[Any]) -> list[Tensor | None]:
        """One cotangent per operand of the body; None is zero, or comes later."""
        found = inline_graph(self.graph, chosen([*operands, *cotangents], self.program.used))
        return spread(spread(found, self.kept), self.program.found)

    def totals(self, in_loop: Sequence[Tensor], d_xs: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the bcasts from the results of the loop."""
        rows = {**self.outside, **dict(zip(self.d_xs, d_xs))}
        sums = iter(in_loop)
        return [next(sums) if p is None else _product_of_rows(rows[p.left], rows[p.right]) for p in self.later]


def split_sums(program: VjpProgram, op: Scan, stacks: Sequence[Tensor | None]) -> SplitSums:
    """`stacks` has the rows of all steps of each operand and cotangent of the body, None where there are none."""
    graph = program.graph
    places = zip(graph.inputs, chosen(stacks, program.used), strict=True)
    outside = {node.id: rows for node, rows in places if rows is not None}
    _, bcasts, xs = op.split(spread(graph.outputs, program.found))
    d_bcasts, d_xs = ([i for i in ids if i is not None] for ids in (bcasts, xs))
    known = {*outside, *d_xs}
    products = [_product(graph, graph.nodes[i]) if graph.outputs.count(i) == 1 else None for i in d_bcasts]
    later = [product if product is not None and known.issuperset(product) else None for product in products]
    waiting = {node_id for node_id, product in zip(d_bcasts, later) if product is not None}
    kept = tuple(i not in waiting for i in graph.outputs)
    if waiting:
        graph = graph.copy()
        graph.set_outputs(chosen(program.graph.outputs, kept))
        graph = remove_dead_nodes(graph).graph
    return SplitSums(graph, program, kept, later, outside, d_xs)


def _product(program: Graph, node: Node) -> _Product | None:
    """left and right of leftᵀ @ right, with few rows."""
    if not isinstance(node.op, MatMul) or node.shape.rank != 2:
        return None
    turned = program.nodes[node.inputs[0]]
    if not isinstance(turned.op, Transpose) or turned.shape.rank != 2 or tuple(turned.op.perm) != (1, 0):
        return None
    left, right = turned.inputs[0], node.inputs[1]
    rows = program.shape(left).dims[0]
    is_plain = program.shape(left).dtype == program.shape(right).dtype == node.shape.dtype
    return _Product(left, right) if is_plain and isinstance(rows, int) and rows <= _FEW_ROWS else None


def _product_of_rows(left: Tensor, right: Tensor) -> Tensor:
    """Σ left[t]ᵀ @ right[t] of [length, rows, ..]."""
    a, b = (reshape(x, (x.shape[0] * x.shape[1], x.shape[2])) for x in (left, right))
    return matmul(transpose(a), b)
