"""Merging of nodes that compute the same: equal ops on equal operands."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Input, Param
from rlx.ir.op import Op
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import Rebuilt, Replacement, rebuild
from rlx.ir.tensor import Tensor, emit_into


def is_pure(op: Op) -> bool:
    """Whether equal operands always give equal results, and nothing else happens: not effects, ops that say
    `mergeable = False` (barriers, user-defined ops), and ops that hold a program with one of these."""
    if op.effect or not getattr(op, "mergeable", True):
        return False
    return all(is_pure(node.op) for body in op.bodies.values() for node in body.nodes)


def is_mergeable(op: Op) -> bool:
    """Whether two equal nodes may become one: pure, and not part of the interface of the program."""
    return not isinstance(op, Input | Param) and is_pure(op)


def merge_equal_nodes(graph: Graph) -> Rebuilt:
    """Keep the first of any nodes with equal ops on equal operands, and drop what becomes dead. Ids map to the node
    that was kept."""
    seen: dict[tuple[Op, tuple[int, ...]], Tensor | tuple[Tensor, ...]] = {}
    new = graph.empty_like()

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if not is_mergeable(node.op):
            return None
        key = (node.op, tuple(int(x.id) for x in operands))
        if key in seen:
            return seen[key]
        if len(node.shapes) == 1:
            # It is copied as it is, and will be the next node.
            seen[key] = Tensor(new, NodeId(len(new)))
            return None
        seen[key] = emit_into(new, node.op, operands)
        return seen[key]

    merged = rebuild(graph, visit, "cse", into=new)
    return merged.then(remove_dead_nodes(merged.graph))
