"""Quantised weights in panels: products and lookups of stored GGUF weights share one layout, made when they are set.

    dequant_matmul(x, w)              ->    panel_matmul(x, quant_panels(w))
    dequant_gather(w, ids)            ->    panel_gather(quant_panels(w), ids)
    dequant_grouped_matmul(x, w, ids) ->    expert_matmul(x, quant_panels(w), expert_route(ids))
    dequant_moe_weights(w)            ->    all rows of panel_gather, turned

`quant_panels(w)` of weights that are set once follows from them alone and so becomes part of `prepare`; the blocks of
the file are not read again. Weights that are computed, or given to every run, are laid out in every run. No form ever
stores a weight as floats, except the one op that is asked for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.compile.lower.experts import whole_ids
from rlx.compile.weights.split import fixed_sources
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.op import Op
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import same_graph
from rlx.ops.define.rules import zeros_of
from rlx.ops.lowered.expert_products import ExpertMatMul, ExpertRoute
from rlx.ops.lowered.quantized_panels import PanelGather, PanelMatMul, QuantPanels
from rlx.ops.pointwise.bits import bitcast
from rlx.ops.quant.quantized_lookup import DequantGather
from rlx.ops.quant.quantized_weights import DequantGroupedMatMul, DequantMatMul, DequantMoEWeights
from rlx.ops.shape.creation import iota
from rlx.ops.shape.movement import reshape, swapaxes
from rlx.quant.schemes import QuantScheme

Form = Callable[..., Any]

# Ops on GGUF weights, and which operand holds the blocks.
_STORED: dict[type[Op], int] = {DequantMatMul: 1, DequantGather: 0, DequantGroupedMatMul: 1, DequantMoEWeights: 0}


def pack_quantized(graph: Graph) -> Graph:
    """The graph with the quantised weights that are set once in panels, for all their products and lookups."""
    fixed = {n.id for n in graph.nodes if isinstance(n.op, Param | Constant)} | set(fixed_sources(graph))
    if not any(_is_packed(n, fixed) for n in graph.nodes):
        return graph
    known: dict[tuple[NodeId, Op], Tensor] = {}

    def once(op: Op, operand: Any) -> Any:
        if (operand.id, op) not in known:
            known[operand.id, op] = op(operand)
        return known[operand.id, op]

    def visit(node: Node, operands: list[Any]) -> Any:
        if not _is_packed(node, fixed):
            return None
        form = panel_form(node.op, *operands, once=once)
        return None if form is None else form(*operands)

    return rebuild(graph, visit, "pack_quantized").graph


def _is_packed(node: Node, fixed: set[NodeId]) -> bool:
    # Whoever asks for the weights as floats keeps what becomes of them, not the panels.
    place = None if isinstance(node.op, DequantMoEWeights) else _STORED.get(type(node.op))
    return place is not None and node.inputs[place] in fixed


def panel_form(op: Op, *operands: Any, once: Callable[[Op, Any], Any] = lambda op, x: op(x)) -> Form | None:
    """How an op on GGUF weights is written on their panels; None for other ops and schemes. `once` applies an op whose
    result others may need, too."""
    scheme: QuantScheme | None = getattr(op, "scheme", None)
    if scheme is None or scheme.panel_format is None or type(op) not in _STORED:
        return None

    def lay_out(layout: QuantPanels, weight: Any) -> Any:
        return once(layout, weight if weight.dtype is DType.U8 else bitcast(weight, DType.U8))

    result = op.infer(*(x.type for x in operands))
    assert isinstance(result, Shape)
    weight = operands[_STORED[type(op)]]
    if 0 in (weight.size, *result.dims[-1:]):
        # Nothing is stored, so that nothing is added up.
        return lambda *operands: zeros_of(result, operands[0])
    match op:
        case DequantMatMul():
            k, n = int(operands[0].shape[-1]), int(result.dims[-1])
            return lambda x, w: PanelMatMul(scheme, n)(x, lay_out(QuantPanels(scheme, k, n), w))
        case DequantGroupedMatMul():
            k, n = int(operands[0].shape[-1]), op.n
            count = int(weight.size) // scheme.packed_bytes(k, n)
            return lambda x, w, ids: ExpertMatMul(scheme, count, n)(
                x, lay_out(QuantPanels(scheme, k, n, count), w), once(ExpertRoute(count), whole_ids(ids))
            )
        case DequantGather():
            k, n = op.k, int(weight.size) // scheme.packed_bytes(op.k, 1)
            return lambda w, ids: PanelGather(scheme, k, n)(lay_out(QuantPanels(scheme, k, n), w), whole_ids(ids))
        case _:
            assert isinstance(op, DequantMoEWeights)
            return lambda w: _all_rows(op, lay_out(QuantPanels(scheme, op.k, op.experts * op.n), w))


def _all_rows(op: DequantMoEWeights, panels: Any) -> Any:
    count = op.experts * op.n
    with same_graph(panels):
        rows = PanelGather(op.scheme, op.k, count)(panels, iota((count,), DType.I32))
    return swapaxes(reshape(rows, (op.experts, op.n, op.k)), 1, 2)
