"""Weights of products as files have them, [n, k], for kernels that read matrices by their strides.

    x @ concat(transpose(a), transpose(b))    ->    x @ transpose(concat(a, b))
    x @ cast(transpose(w), f32)                     stays, and is read as w

Rows of such a weight lie side by side along K, which is how tensor cores and products of few rows read it best; a
transposed copy would cost the work of making it and be slower. What `prepare` keeps are the rows, and the views and
casts above them belong to the product.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.weights.sink_casts import widened_dtype
from rlx.compile.weights.split import fixed_sources
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.op import Op
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.shape import normalize_axis
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.expert_products import RoutedMatMul
from rlx.ops.shape.movement import Concat, Transpose, transpose

_TURN = (1, 0)


def join_rows(graph: Graph) -> Graph:
    """The graph with joined weights turned after they are joined, and not one by one."""

    def is_joined(node: Node) -> bool:
        if not isinstance(node.op, Concat) or node.shape.rank != 2 or normalize_axis(node.op.axis, 2, "concat") != 1:
            return False
        return all(_is_turned(graph.nodes[i]) for i in node.inputs)

    fixed = fixed_sources(graph)
    joined = {n.id for n in graph.nodes if n.id in fixed and is_joined(n)}
    if not joined:
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if node.id not in joined:
            return None
        return transpose(Concat(0)(*(x.graph.tensor(x.node.inputs[0]) for x in operands)), _TURN)

    return rebuild(graph, visit, "join_rows").graph


def stored_rows(graph: Graph) -> set[NodeId]:
    """The weights that products read turned, as they lie in memory."""
    known = {*fixed_sources(graph), *(n.id for n in graph.nodes if isinstance(n.op, Param | Constant))}
    found = set()
    for product in graph.nodes:
        if isinstance(product.op, MatMul) and product.inputs[1] in known:
            weight = graph.nodes[product.inputs[1]]
            if widened_dtype(graph, weight) is not None:
                weight = graph.nodes[weight.inputs[0]]
            if _is_turned(weight):
                found.add(weight.inputs[0])
    return found


def widens_weight(graph: Graph, node: Node, users: list[NodeId]) -> bool:
    """Whether a node is a cast of a whole weight that nobody reads but products, as their second operand."""
    return node.shape.rank == 2 and _is_widened_for(MatMul, graph, node, users)


def widens_experts(graph: Graph, node: Node, users: list[NodeId]) -> bool:
    """The same of the matrices of all experts, of which a run needs but a few."""
    return _is_widened_for(RoutedMatMul, graph, node, users)


def _is_widened_for(product: type[Op], graph: Graph, node: Node, users: list[NodeId]) -> bool:
    if widened_dtype(graph, node) is None or not users:
        return False
    below = graph.nodes[node.inputs[0]]
    while isinstance(below.op, Transpose):
        below = graph.nodes[below.inputs[0]]
    if not isinstance(below.op, Param):
        return False
    readers = [graph.nodes[u] for u in users]
    return all(isinstance(r.op, product) and r.inputs[1] == node.id and r.inputs[0] != node.id for r in readers)


def _is_turned(node: Node) -> bool:
    return isinstance(node.op, Transpose) and tuple(node.op.perm) == _TURN
