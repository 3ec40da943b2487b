"""Passes that remove work: dead nodes, and nodes that compute what another has computed."""

from __future__ import annotations

from rlx.ir.graph import Graph
from rlx.ir.rewrite.dead_code import DeadCodeElimination as DeadCodeElimination
from rlx.ir.rewrite.equal_nodes import merge_equal_nodes
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import rebuild_bodies


class CommonSubexpressionElimination(Pass):
    """Keep one of any nodes that compute the same, bodies included, and drop what becomes dead."""

    name = "cse"

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        merged = merge_equal_nodes(graph).graph
        return merged if len(merged) < len(graph) else graph


def cse(graph: Graph) -> Graph:
    """The graph with one node in the place of several that compute the same."""
    return CommonSubexpressionElimination().run(graph)
