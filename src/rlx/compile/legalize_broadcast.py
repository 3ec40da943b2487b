"""Make awkward broadcasts explicit, for targets whose kernels index operands by `i % size` only.

    add(f32[4,8], f32[4,1])  ->  add(f32[4,8], expand(f32[4,1], (4, 8)))

Our own kernels address any broadcast by strides and need no such pass.
"""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Node
from rlx.ir.passes import Pass
from rlx.ir.rebuild import Rebuilt, Replacement, rebuild, rebuild_bodies
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.arithmetic import Binary, Clamp, Compare, Where
from rlx.ops.movement import Expand


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
    return result.then(rebuild(result.graph, _visit, LegalizeBroadcast.name))


def _visit(node: Node, operands: list[Tensor]) -> Replacement:
    if not isinstance(node.op, Binary | Compare | Where | Clamp):
        return None
    expanded: list[Any] = [x if _is_plain(x.type, node.shape) else Expand(node.shape.dims)(x) for x in operands]
    if all(a is b for a, b in zip(expanded, operands)):
        return None
    replacement: Replacement = node.op(*expanded)
    return replacement


def _is_awkward(node: Node, graph: Graph) -> bool:
    if not isinstance(node.op, Binary | Compare | Where | Clamp):
        return False
    return not all(_is_plain(graph.shape(i), node.shape) for i in node.inputs)


def _is_plain(operand: Shape, result: Shape) -> bool:
    """Whether element i of the result reads element `i % size` of the operand."""
    return operand.element_count == 1 or operand.dims == result.dims[result.rank - operand.rank :]
