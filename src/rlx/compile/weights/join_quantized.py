"""Products of one value by several quantised weights as one: q, k and v, or a gate and what it gates.

    dequant_matmul(x, a), dequant_matmul(x, b)    ->    y = dequant_matmul(x, [a b]); y[.., :n], y[.., n:]

Rows of GGUF weights are runs of bytes, so that joined weights are the bytes of one after those of the other. They are
joined in `prepare`, once.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from rlx.compile.weights.split import fixed_sources
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.ops.shape.movement import Narrow, concat, flatten
from rlx.quant.schemes import QuantScheme


def join_quantized(graph: Graph) -> Graph:
    """The graph with the products of each value by weights of one type joined; the same graph if there are none."""
    groups = _groups(graph)
    if not groups:
        return graph
    graph, ids = _weights_first(graph)
    members = {ids[node]: [ids[n] for n in group] for group in groups for node in group}
    starts = {ids[n]: s for group in groups for n, s in zip(group, _starts(graph, [ids[i] for i in group]))}
    joined: dict[NodeId, Any] = {}
    new_ids: dict[NodeId, NodeId] = {}

    def visit(node: Node, operands: list[Any]) -> Any:
        if node.id not in members:
            return None
        assert isinstance(node.op, DequantMatMul)
        x, group = operands[0], members[node.id]
        if group[0] not in joined:
            weights = [flatten(x.graph.tensor(new_ids[graph.nodes[n].inputs[1]])) for n in group]
            columns = sum(int(graph.shape(n).dims[-1]) for n in group)
            joined[group[0]] = DequantMatMul(node.op.scheme, columns)(x, concat(weights, 0))
        return Narrow(node.shape.rank - 1, starts[node.id], node.shape.dims[-1])(joined[group[0]])

    return rebuild(graph, visit, "join_quantized", ids=new_ids).graph


def _groups(graph: Graph) -> list[list[NodeId]]:
    """Products of one value by weights of one type, which nobody else reads; two or more of them."""
    fixed = {n.id for n in graph.nodes if isinstance(n.op, Param | Constant)} | set(fixed_sources(graph))
    uses = graph.use_map()
    found: dict[tuple[NodeId, QuantScheme], list[NodeId]] = {}
    for node in graph.nodes:
        if not isinstance(node.op, DequantMatMul) or node.op.scheme.panel_format is None:
            continue
        x, weight = node.inputs
        if weight in fixed and len(uses[weight]) == 1 and weight not in graph.outputs:
            found.setdefault((x, node.op.scheme), []).append(node.id)
    return [group for group in found.values() if len(group) > 1]


def _starts(graph: Graph, group: list[NodeId]) -> list[int]:
    widths = [int(graph.shape(n).dims[-1]) for n in group]
    return list(accumulate(widths[:-1], initial=0))


def _weights_first(graph: Graph) -> tuple[Graph, dict[NodeId, NodeId]]:
    """The same program with leaves and what follows from weights before everything else: a joined product stands where
    the first of its parts stood, and needs the weights of all. Also where each node went."""
    fixed = set(fixed_sources(graph)) | {n.id for n in graph.nodes if isinstance(n.op, Constant)}
    order = sorted(graph.nodes, key=lambda node: 0 if node.is_leaf else 1 if node.id in fixed else 2)
    fresh = graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    for node in order:
        ids[node.id] = fresh.append_copy(node, [ids[i] for i in node.inputs])
    fresh.outputs = [ids[o] for o in graph.outputs]
    fresh.constraints = list(graph.constraints)
    return fresh, ids
