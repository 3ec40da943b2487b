"""Remove fake quantisation of what is already on the same grid.

A `FakeQuantize` is redundant when its operand comes from an equal one through ops that move elements or drop some of
them, but never make one larger. Readers of the redundant node then read its operand.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.errors import OpError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.op import Op
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.passes import Pass
from rlx.ops.nn.pooling import Pool
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.quant.fake_quant import FakeQuantize, ScaleMode
from rlx.ops.reduction.reductions import ReduceOp
from rlx.ops.shape.movement import Concat, Expand, Narrow, Reshape, Reverse, Slice, Transpose

_MOVES = (Reshape, Transpose, Narrow, Slice, Concat, Expand, Reverse)


class QuantPropagate(Pass):
    """`run` on a copy, and without the nodes that become dead."""

    name = "quant_propagate"

    def run(self, graph: Graph) -> Graph:
        copy = graph.copy()
        return remove_dead_nodes(copy).graph if run(copy) else graph


class _Origin(NamedTuple):
    """The quantiser whose results a value consists of, and what happened to them on the way."""

    quantizer: NodeId
    is_moved: bool = False
    is_pooled: bool = False


def run(graph: Graph) -> int:
    """Redirect the readers of redundant nodes, in place; how many there were."""
    if graph.is_frozen:
        raise OpError(f"quant_propagate: @{graph.name} is frozen; run it on a copy")
    origins: dict[NodeId, _Origin] = {}
    operand_of: dict[NodeId, NodeId] = {}
    for node in graph.nodes:
        node.inputs = tuple(operand_of.get(i, i) for i in node.inputs)
        if isinstance(node.op, FakeQuantize):
            if _is_redundant(graph, node, origins.get(node.inputs[0])):
                operand_of[node.id] = node.inputs[0]
            origins[node.id] = _Origin(node.id)
        elif (origin := _origin(node.op, {origins.get(i) for i in node.inputs})) is not None:
            origins[node.id] = origin
    graph.outputs = [operand_of.get(o, o) for o in graph.outputs]
    return len(operand_of)


def _origin(op: Op, operands: set[_Origin | None]) -> _Origin | None:
    """Where the result of `op` comes from, when it comes from one quantiser and no element grew on the way."""
    only = operands.pop() if len(operands) == 1 else None
    if only is None:
        return None
    if isinstance(op, Activation):
        return only if op.kind is ActivationKind.Relu else None
    if isinstance(op, Pool):
        return only._replace(is_pooled=True) if op.kind is ReduceOp.Max else None
    return only._replace(is_moved=True) if isinstance(op, _MOVES) else None


def _is_redundant(graph: Graph, node: Node, origin: _Origin | None) -> bool:
    op = node.op
    # A running average is a state that the program updates; dropping the update would change the next run.
    if origin is None or not isinstance(op, FakeQuantize) or op.scale_mode is ScaleMode.EMA:
        return False
    source = graph.nodes[origin.quantizer]
    if source.op.replace(decay=op.decay) != op or source.inputs[1:] != node.inputs[1:]:
        return False
    # With a step per channel, elements must not change channels; pooling keeps batch and channel apart.
    return op.axis is None or not (origin.is_moved or (origin.is_pooled and op.axis not in (0, 1)))
