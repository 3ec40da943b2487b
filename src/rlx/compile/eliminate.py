"""Passes that remove work: dead nodes, and nodes that compute what another has computed."""

from __future__ import annotations

from typing import Any

from rlx.ir.dead_code import remove_dead_nodes
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Input, Param
from rlx.ir.op import Op
from rlx.ir.passes import Pass
from rlx.ir.rebuild import Rebuilt, Replacement, rebuild
from rlx.ir.tensor import Tensor


class DeadCodeElimination(Pass):
    """Drop nodes that neither an output nor an effect needs. Leaves stay: they are the interface of the program."""

    name = "dead_code_elimination"

    def run(self, graph: Graph) -> Graph:
        return remove_dead_nodes(graph).graph


def merge_equal_nodes(graph: Graph) -> Rebuilt:
    """Keep one of any nodes with equal ops on equal operands. Effects, barriers and user-defined ops stay apart."""
    seen: dict[tuple[Op, tuple[int, ...]], Tensor] = {}

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if isinstance(node.op, Input | Param) or not is_mergeable(node.op) or len(node.shapes) != 1:
            return None
        key = (node.op, tuple(int(x.id) for x in operands))
        found = seen.get(key)
        if found is None:
            found = seen[key] = operands_graph(operands, new).tensor(new.append(node.op, [x.id for x in operands]).id)
        return found

    new = graph.empty_like()
    return rebuild(graph, visit, "cse", into=new)


def operands_graph(operands: list[Any], fallback: Graph) -> Graph:
    return operands[0].graph if operands else fallback


def is_mergeable(op: Op) -> bool:
    """Whether two equal nodes may become one."""
    return not op.effect and type(op).__name__ not in ("Custom", "Barrier")


def cse(graph: Graph) -> Graph:
    """`merge_equal_nodes`, then without what it left dead."""
    merged = merge_equal_nodes(graph).graph
    return remove_dead_nodes(merged).graph if len(merged) < len(graph) else graph
