"""Make awkward broadcasts explicit, for targets whose kernels index operands by `i % size` only.

    add(f32[4,8], f32[4,1])  ->  add(f32[4,8], expand(f32[4,1], (4, 8)))

Our own kernels address any broadcast by strides and need no such pass.
"""

from __future__ import annotations

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Rebuilt, Replacement, rebuild, rebuild_bodies
from rlx.ir.shape import Dims, Shape
from rlx.ir.tensor import Tensor
from rlx.ops.pointwise.arithmetic import Binary, Clamp, Compare, Where
from rlx.ops.shape.movement import Expand


class LegalizeBroadcast(Pass):
    """Expand operands that are neither of the result's dims, nor one element, nor its exact trailing dims."""

    name = "legalize_broadcast"

    def run(self, graph: Graph) -> Graph:
        return run_with_remap(graph).graph


def run(graph: Graph) -> Graph:
    """The graph with explicit broadcasts."""
    return run_with_remap(graph).graph


def run_with_remap(graph: Graph) -> Rebuilt:
    """The graph with explicit broadcasts, bodies included, and where each node went."""
    result = rebuild_bodies(graph, run, LegalizeBroadcast.name)
    if not any(_is_awkward(node, result.graph) for node in result.graph.nodes):
        return result
    expanded: dict[tuple[NodeId, Dims], Tensor] = {}

    def fitting(x: Tensor, wanted: Shape) -> Tensor:
        if _is_plain(x.type, wanted):
            return x
        key = (x.id, wanted.dims)
        if key not in expanded:
            expanded[key] = Expand(wanted.dims)(x)
        return expanded[key]

    def visit(node: Node, operands: list[Tensor]) -> Replacement:
        if not _is_awkward(node, result.graph):
            return None
        replacement: Replacement = node.op(*(fitting(x, node.shape) for x in operands))
        return replacement

    return result.then(rebuild(result.graph, visit, LegalizeBroadcast.name))


def _is_awkward(node: Node, graph: Graph) -> bool:
    if not isinstance(node.op, Binary | Compare | Where | Clamp):
        return False
    return not all(_is_plain(graph.shape(i), node.shape) for i in node.inputs)


def _is_plain(operand: Shape, result: Shape) -> bool:
    """Whether element i of the result reads element `i % size` of the operand."""
    return operand.element_count == 1 or operand.dims == result.dims[result.rank - operand.rank :]
