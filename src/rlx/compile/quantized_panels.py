"""Quantised weights in panels: products and lookups of stored GGUF weights share one layout, made when they are set.

    dequant_matmul(x, w)     ->    panel_matmul(x, quant_panels(w))
    dequant_gather(w, ids)   ->    panel_gather(quant_panels(w), ids)

`quant_panels(w)` follows from weights alone and so becomes part of `prepare`; the blocks of the file are not read
again. Types without panels stay what they are.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.prepare import fixed_sources
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.quant import QuantScheme
from rlx.ir.rebuild import rebuild
from rlx.ir.tensor import Tensor
from rlx.ops.quantized_lookup import DequantGather
from rlx.ops.quantized_panels import PanelGather, PanelMatMul, QuantPanels
from rlx.ops.quantized_weights import DequantMatMul


def pack_quantized(graph: Graph) -> Graph:
    """The graph with the quantised weights of its products and lookups in panels."""
    fixed = {n.id for n in graph.nodes if isinstance(n.op, Param | Constant)} | set(fixed_sources(graph))
    if not any(_stored(n) in fixed for n in graph.nodes):
        return graph
    packed: dict[tuple[NodeId, QuantScheme, int, int], Tensor] = {}

    def panels(weight: Tensor, scheme: QuantScheme, k: int, n: int) -> Any:
        key = (weight.id, scheme, k, n)
        if key not in packed:
            packed[key] = QuantPanels(scheme, k, n)(weight)
        return packed[key]

    def visit(node: Node, operands: list[Any]) -> Any:
        if _stored(node) not in fixed:
            return None
        if isinstance(node.op, DequantMatMul):
            x, weight = operands
            n = int(node.shape.dims[-1])
            return PanelMatMul(node.op.scheme, n)(x, panels(weight, node.op.scheme, int(x.shape[-1]), n))
        assert isinstance(node.op, DequantGather)
        weight, ids = operands
        scheme, k = node.op.scheme, node.op.k
        n = int(weight.type.element_count) // scheme.packed_bytes(k, 1)
        return PanelGather(scheme, k, n)(panels(weight, scheme, k, n), ids)

    return rebuild(graph, visit, "pack_quantized").graph


def _stored(node: Node) -> NodeId | None:
    """The operand with the blocks of a type that has panels."""
    if isinstance(node.op, DequantMatMul) and node.op.scheme.panel_format is not None:
        return node.inputs[1] if node.shape.dims[-1] != 0 else None
    if isinstance(node.op, DequantGather) and node.op.scheme.panel_format is not None:
        return node.inputs[0]
    return None
