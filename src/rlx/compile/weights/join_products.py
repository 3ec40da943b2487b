"""Products of one value by several weights as one product: q, k and v, or a gate and what it gates.

    x @ a + p, x @ b + q    ->    y = x @ [a b] + [p q]; y[.., :n], y[.., n:]

The weights are joined in `prepare`, once, and so are biases where all of them have one. Whoever read one of the results
reads columns of the wide one by strides. Quantised weights are rows, which are joined the same way.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

from rlx.compile.claims.fusion.patterns import is_plain_matmul
from rlx.compile.weights.split import fixed_sources
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.ops.shape.movement import concat, narrow, reshape


class _Product(NamedTuple):
    """A product by a weight, and what is added to its columns; `result` is the sum, or the product itself."""

    node: Node
    bias: NodeId | None
    result: NodeId

    @property
    def width(self) -> int:
        width = self.node.shape.dims[-1]
        assert isinstance(width, int)
        return width


def join_products(graph: Graph) -> Graph:
    """The graph with the products of each value by weights joined; the same graph if there are none to join."""
    if not any(len(group) > 1 for group in _groups(graph)):
        return graph
    graph = _weights_first(graph)
    groups = [group for group in _groups(graph) if len(group) > 1]
    place = {p.result: (group, start) for group in groups for p, start in zip(group, _starts(group))}
    wide: dict[NodeId, Any] = {}
    ids: dict[NodeId, NodeId] = {}

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if node.id not in place:
            return None
        group, start = place[node.id]
        first = group[0].node.id
        if first not in wide:
            wide[first] = _wide(group, lambda i: operands[0].graph.tensor(ids[i]))
        columns: Replacement = narrow(wide[first], -1, start, node.shape.dims[-1])
        return columns

    return remove_dead_nodes(rebuild(graph, visit, "join_products", ids=ids).graph).graph


def _groups(graph: Graph) -> list[list[_Product]]:
    """Products that can be one: of the same value, of one kind, with weights that are known before a run."""
    fixed = {*fixed_sources(graph), *(n.id for n in graph.nodes if isinstance(n.op, Param | Constant))}
    uses, outputs = graph.use_map(), set(graph.outputs)
    found: dict[Any, list[_Product]] = {}
    for node in graph.nodes:
        kind = _kind(graph, node)
        # A product of weights alone runs once, and may stand before the weight of another.
        if kind is None or node.inputs[1] not in fixed or node.inputs[0] in fixed:
            continue
        product = _with_bias(graph, node, uses[node.id], fixed) if node.id not in outputs else None
        # What is returned has memory of its own, for which columns would have to be copied.
        if product is not None and product.result not in outputs:
            found.setdefault((node.inputs[0], kind, product.bias is None), []).append(product)
    return list(found.values())


def _kind(graph: Graph, node: Node) -> Any:
    """What products must have in common to be joined; None if a node is no product by a single matrix."""
    if isinstance(node.op, DequantMatMul) and node.op.scheme.is_gguf and len(node.inputs) == 2:
        return node.op.scheme
    if is_plain_matmul(graph, node) and graph.shape(node.inputs[1]).rank == 2 and graph.shape(node.inputs[1]).is_static:
        return node.op
    return None


def _with_bias(graph: Graph, node: Node, uses: list[NodeId], fixed: set[NodeId]) -> _Product:
    """A product with the bias that its only reader adds, if it is one."""
    reader = graph.nodes[uses[0]] if len(uses) == 1 else None
    if reader is not None and isinstance(reader.op, Binary) and reader.op.kind is BinaryOp.Add:
        other = reader.inputs[0] if reader.inputs[1] == node.id else reader.inputs[1]
        if other in fixed and graph.shape(other) == node.shape.with_dims(node.shape.dims[-1:]):
            return _Product(node, other, reader.id)
    return _Product(node, None, node.id)


def _starts(group: list[_Product]) -> list[int]:
    """The column of the wide product at which each begins."""
    return list(accumulate((p.width for p in group[:-1]), initial=0))


def _wide(group: list[_Product], tensor: Any) -> Any:
    op = group[0].node.op
    x = tensor(group[0].node.inputs[0])
    weights = [tensor(p.node.inputs[1]) for p in group]
    if isinstance(op, DequantMatMul):
        packed = concat([reshape(w, (-1,)) for w in weights], 0)
        product: Any = DequantMatMul(op.scheme, sum(p.width for p in group))(x, packed)
    else:
        assert isinstance(op, MatMul)
        product = op(x, concat(weights, 1))
    biases = [tensor(p.bias) for p in group if p.bias is not None]
    return product + concat(biases, 0) if biases else product


def _weights_first(graph: Graph) -> Graph:
    """The same program with leaves, and what follows from weights alone, before everything else.

    A wide product stands where the first of its parts stood, and needs the weights of all of them.
    """
    known = {*fixed_sources(graph), *(n.id for n in graph.nodes if isinstance(n.op, Constant))}
    order = sorted(graph.nodes, key=lambda node: 0 if node.is_leaf else 1 if node.id in known else 2)
    fresh = graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    for node in order:
        ids[node.id] = fresh.append_copy(node, [ids[i] for i in node.inputs])
    fresh.outputs = [ids[o] for o in graph.outputs]
    fresh.constraints = list(graph.constraints)
    return fresh
