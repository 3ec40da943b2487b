"""Several matmuls of one input -> one wider matmul, and a slice per original."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import describe, is_known_before_run, is_plain_matmul
from rlx.compile.claims.fusion.rule_pass import FusionPass
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.op import Op
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import Replacement, rebuild, rebuild_bodies
from rlx.ir.rewrite.rules import NearMiss
from rlx.ir.shape import Size
from rlx.ops.fused.layers import FusedMatMulBiasAct
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.shape.movement import Concat, Narrow


class FuseSharedInputMatMul(FusionPass):
    """Matmuls with the same left operand become one matmul by all their weights, joined along the columns.

    So do products that have a bias and the same activation. Weights and biases must be known before the run: joined
    once they cost nothing, joined in every run they would cost more than is saved. Each original becomes a `narrow` of
    the wide product, in declaration order.
    """

    name = "fuse_shared_input_matmul"
    pattern = "shared_input_matmul"

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        groups = [group for group in _joinable_groups(graph) if len(group) > 1]
        if not groups:
            return graph
        graph, groups = _weights_first(graph, groups)
        columns = {node.id: start for group in groups for node, start in zip(group, _starts(graph, group))}
        group_of = {node.id: group for group in groups for node in group}
        products: dict[NodeId, Any] = {}
        new_ids: dict[NodeId, NodeId] = {}

        def visit(node: Node, operands: list[Any]) -> Replacement:
            if node.id not in columns:
                return None
            x = operands[0]
            group = group_of[node.id]
            if group[0].id not in products:
                # Weights are joined along the columns, and biases, if there are any, the same way.
                joined = [
                    Concat(1 - i)(*(x.graph.tensor(new_ids[n.inputs[1 + i]]) for n in group))
                    for i in range(len(node.inputs) - 1)
                ]
                products[group[0].id] = node.op(x, *joined)
            product = products[group[0].id]
            part: Replacement = Narrow(node.shape.rank - 1, columns[node.id], node.shape.dims[-1])(product)
            return part

        return remove_dead_nodes(rebuild(graph, visit, self.name, ids=new_ids).graph).graph

    def missed(self, graph: Graph) -> list[NearMiss]:
        """Groups that are left, one miss for each, at the last matmul."""
        found = []
        for group in _groups(graph):
            if len(group) > 1:
                reason, detail = _why_not_joined(graph, group)
                source = group[-1].origin.source if group[-1].origin else None
                found.append(NearMiss(self.name, group[-1].id, reason, detail, source))
        return found


def _starts(graph: Graph, group: list[Node]) -> list[Size]:
    """The column of the wide product at which each part begins."""
    widths = [graph.shape(node.inputs[1]).dims[1] for node in group]
    return list(accumulate(widths[:-1], initial=0))


def _groups(graph: Graph) -> list[list[Node]]:
    """The products of each left operand by a matrix, of one kind each."""
    found: dict[tuple[NodeId, Op], list[Node]] = {}
    for node in graph.nodes:
        if isinstance(node.op, MatMul | FusedMatMulBiasAct) and graph.shape(node.inputs[1]).rank == 2:
            found.setdefault((node.inputs[0], node.op), []).append(node)
    return list(found.values())


def _joinable_groups(graph: Graph) -> list[list[Node]]:
    return [[node for node in group if _is_joinable(graph, node)] for group in _groups(graph)]


def _is_joinable(graph: Graph, node: Node) -> bool:
    return _has_plain_types(graph, node) and _has_known_weights(graph, node)


def _has_plain_types(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, FusedMatMulBiasAct) or is_plain_matmul(graph, node)


def _has_known_weights(graph: Graph, node: Node) -> bool:
    return all(is_known_before_run(graph, i) for i in node.inputs[1:])


def _why_not_joined(graph: Graph, group: list[Node]) -> tuple[MissReason, str]:
    if not all(_has_plain_types(graph, node) for node in group):
        return MissReason.UnsupportedTypes, ", ".join(repr(node.op) for node in group)
    if not all(_has_known_weights(graph, node) for node in group):
        return MissReason.NotProfitable, "the weights would be joined anew in every run"
    if len(group) > 2:
        return MissReason.SharedMatmulCount, f"{len(group)} matmuls of {describe(graph.nodes[group[0].inputs[0]])}"
    return MissReason.NotFused, ""


def _weights_first(graph: Graph, groups: list[list[Node]]) -> tuple[Graph, list[list[Node]]]:
    """The same program with leaves, and what the weights are computed from, before everything else.

    A wide product stands where the first of its matmuls stood, and needs the weights of all of them.
    """
    early = {n.id for n in graph.nodes if n.is_leaf}
    pending = [i for group in groups for node in group for i in node.inputs[1:]]
    while pending:
        node_id = pending.pop()
        if node_id not in early:
            early.add(node_id)
            pending.extend(graph.nodes[node_id].inputs)
    order = sorted(graph.nodes, key=lambda node: 0 if node.is_leaf else 1 if node.id in early else 2)
    fresh = graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    for node in order:
        ids[node.id] = fresh.append(node.op, [ids[i] for i in node.inputs], name=node.name, origin=node.origin).id
    fresh.outputs = [ids[o] for o in graph.outputs]
    return fresh, [[fresh.nodes[ids[node.id]] for node in group] for group in groups]
