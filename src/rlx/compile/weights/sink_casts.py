"""Weights stay as narrow as they are stored: conversions to a wider float come after what only moves elements.

    transpose(cast(w, f32))              ->    cast(transpose(w), f32)
    concat(cast(a, f32), cast(b, f32))   ->    cast(concat(a, b), f32)
    gather(cast(table, f32), ids)        ->    cast(gather(table, ids), f32)

Widening is exact, so both sides have the same bits. What `prepare` keeps is then half as large, products widen panels
while they read them (`rlx.compile.weights.pack_floats`), and a lookup converts the rows that it finds, not the table.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.weights.split import fixed_sources
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.tensor import Tensor
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.movement import Concat, Narrow, Reshape, Reverse, Slice, Transpose

_MOVES = (Concat, Narrow, Reshape, Reverse, Slice, Transpose)


def widen_late(graph: Graph) -> Graph:
    """The graph with the widening casts of its weights behind moves and lookups; the same if there are none."""
    fixed = fixed_sources(graph)
    if not any(n.id in fixed and widened_dtype(graph, n) is not None for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if isinstance(node.op, Gather) and node.inputs[0] in fixed:
            moved = operands[:1]
        elif isinstance(node.op, _MOVES) and node.id in fixed:
            moved = operands
        else:
            return None
        narrow = {_narrow_dtype(x) for x in moved}
        if len(narrow) != 1 or None in narrow:
            return None
        rest = operands[len(moved) :]
        return Cast(node.shape.dtype)(node.op(*(_narrow(x) for x in moved), *rest))

    return rebuild(graph, visit, "widen_late").graph


def widened_dtype(graph: Graph, node: Node) -> DType | None:
    """The float type that a cast widens, of those that kernels read; None if a node is no such cast."""
    if not isinstance(node.op, Cast):
        return None
    narrow, wide = graph.shape(node.inputs[0]).dtype, node.op.to
    is_wider = narrow.is_float and wide.is_float and wide.size_bytes > narrow.size_bytes
    return narrow if is_wider and not narrow.is_storage else None


def _narrow_dtype(x: Tensor) -> DType | None:
    return widened_dtype(x.graph, x.node)


def _narrow(x: Tensor) -> Tensor:
    return Tensor(x.graph, x.node.inputs[0])
