"""Removal of nodes that nothing needs."""

from __future__ import annotations

from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Input, Param
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Rebuilt, rebuild_bodies


def live_nodes(graph: Graph) -> set[NodeId]:
    """What an output or an effect needs, and all leaves: they are the interface of the program."""
    alive = {n.id for n in graph.nodes if n.op.effect or isinstance(n.op, Input | Param)} | set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.id in alive:
            alive.update(node.inputs)
    return alive


def remove_dead_nodes(graph: Graph) -> Rebuilt:
    """The graph without dead nodes, and where the others went; the same graph when there are none."""
    alive = live_nodes(graph)
    if len(alive) == len(graph.nodes):
        return Rebuilt(graph, {n.id: n.id for n in graph.nodes})
    fresh = graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    for node in graph.nodes:
        if node.id in alive:
            ids[node.id] = fresh.append_copy(node, [ids[i] for i in node.inputs])
    fresh.constraints = list(graph.constraints)
    fresh.outputs = [ids[o] for o in graph.outputs]
    return Rebuilt(fresh, ids)


class DeadCodeElimination(Pass):
    """Drop nodes that neither an output nor an effect needs, bodies included. Leaves stay: they are the interface of
    the program."""

    name = "dead_code_elimination"

    def run(self, graph: Graph) -> Graph:
        alive = remove_dead_nodes(graph).graph
        return rebuild_bodies(alive, self.run, self.name).graph
