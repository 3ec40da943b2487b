"""Gradient graphs as ordinary graphs: backward ops decomposed, the seed a constant.

The engines differentiate backward ops as they are; this is for programs that are to consist of primitive ops.
"""

from __future__ import annotations

from collections.abc import Collection

from rlx.errors import AutodiffError
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Input
from rlx.ir.op import OP_CLASSES
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import Rebuilt, Replacement, decompose_kinds, rebuild
from rlx.ops.shape.creation import ones

SEED = "d_output"


def backward_kinds() -> set[str]:
    """The ops that compute gradients of others."""
    return {name for name in OP_CLASSES if "Backward" in name}


def decompose_backward_ops(graph: Graph) -> Rebuilt:
    """Decompose all backward ops."""
    return decompose_kinds(graph, backward_kinds(), "decompose_backward")


def decompose_backward_ops_except(graph: Graph, kinds: Collection[str]) -> Rebuilt:
    """Decompose backward ops, except those of the given kinds (class names)."""
    unknown = set(kinds) - backward_kinds()
    if unknown:
        raise AutodiffError(f"{', '.join(sorted(unknown))}: not backward ops; they are {sorted(backward_kinds())}")
    return decompose_kinds(graph, backward_kinds() - set(kinds), "decompose_backward")


def internalize_d_output(graph: Graph) -> Rebuilt:
    """The input `d_output`, if there is one, replaced by ones."""

    def visit(node: Node, operands: list[object]) -> Replacement:
        if isinstance(node.op, Input) and node.op.key == SEED:
            constant: Replacement = ones(node.shape.dims, node.shape.dtype)
            return constant
        return None

    return rebuild(graph, visit, "internalize_d_output")


def prepare_grad_graph_for_jvp(graph: Graph) -> Rebuilt:
    """A gradient graph with its seed baked in and backward ops decomposed."""
    decomposed = decompose_backward_ops(graph)
    return decomposed.then(internalize_d_output(decomposed.graph))


def decompose_backward_for_ad(graph: Graph, wrt_index: int) -> Rebuilt:
    """The gradient number `wrt_index` of a graph with outputs `[loss, gradients..]` as its only output, so that it can
    be differentiated again."""
    if not 0 <= wrt_index < len(graph.outputs) - 1:
        count = len(graph.outputs) - 1
        raise AutodiffError(f"graph @{graph.name} has {count} gradients after the loss, there is none of {wrt_index}")
    prepared = prepare_grad_graph_for_jvp(graph)
    prepared.graph.set_outputs([prepared.graph.outputs[1 + wrt_index]])
    return prepared.then(remove_dead_nodes(prepared.graph))
