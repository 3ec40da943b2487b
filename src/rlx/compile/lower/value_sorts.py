"""Sorts of which nobody asks where elements came from: `sort(x) -> sorted_values(x)`, along the last axis."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.lowered.sort_order import VALUE_TYPES, SortedValues
from rlx.ops.reduction.sort import Sort
from rlx.ops.shape.movement import moveaxis


def value_sorts(graph: Graph) -> Graph:
    """The graph with sorts of single operands as such; the same if there are none."""
    if not any(_has_form(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if not _has_form(graph, node):
            return None
        assert isinstance(node.op, Sort)
        values, _ = SortedValues(node.op.descending)(moveaxis(operands[0], node.op.axis, -1))
        return moveaxis(values, -1, node.op.axis)

    return rebuild(graph, visit, "value_sorts").graph


def _has_form(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, Sort) and len(node.inputs) == 1 and graph.shape(node.inputs[0]).dtype in VALUE_TYPES
