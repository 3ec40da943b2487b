"""Passes that remove work: dead nodes, and nodes that compute what another has computed."""

from __future__ import annotations

from rlx.ir.dead_code import remove_dead_nodes
from rlx.ir.equal_nodes import merge_equal_nodes
from rlx.ir.graph import Graph
from rlx.ir.passes import Pass


class DeadCodeElimination(Pass):
    """Drop nodes that neither an output nor an effect needs. Leaves stay: they are the interface of the program."""

    name = "dead_code_elimination"

    def run(self, graph: Graph) -> Graph:
        return remove_dead_nodes(graph).graph


def cse(graph: Graph) -> Graph:
    """Keep one of any nodes that compute the same, and drop what becomes dead."""
    merged = merge_equal_nodes(graph).graph
    return merged if len(merged) < len(graph) else graph
