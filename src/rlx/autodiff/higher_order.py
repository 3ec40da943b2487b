"""Repeated differentiation of graphs: `nth_order_grad`, `directional_nth_grad`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.autodiff.backward_ops import decompose_backward_for_ad
from rlx.autodiff.graphs import GradWithLossOptions, copy_leaves, fresh_input, grad_with_loss_opts
from rlx.autodiff.replay import Replay
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.elementwise_fuser import fuse_elementwise as fuse_elementwise
from rlx.ir.rewrite.equal_nodes import merge_equal_nodes
from rlx.ir.rewrite.rebuild import Rebuilt, Replacement, rebuild
from rlx.ir.tensor import Tensor, building
from rlx.knobs import knobs
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.movement import Expand


@dataclass(frozen=True)
class HigherOrderOptions:
    """`fuse_elementwise`: fuse chains of elementwise ops in the result."""

    fuse_elementwise: bool = False

    @staticmethod
    def new() -> HigherOrderOptions:
        """With fusion, unless RLX_HIGHER_ORDER_NO_FUSE is set."""
        return HigherOrderOptions(not knobs.higher_order_no_fuse)


def nth_order_grad(graph: Graph, wrt_name: str, order: int) -> Graph:
    """The derivative of the given order of a graph with one output in the leaf `wrt_name`; its only output.

    Meant for scalars: the derivative of a tensor is that of the sum of its elements, at every order.
    """
    return nth_order_grad_with_options(graph, wrt_name, order, HigherOrderOptions())


def nth_order_grad_with_options(graph: Graph, wrt_name: str, order: int, options: HigherOrderOptions) -> Graph:
    """`nth_order_grad` with options."""
    if order < 0:
        raise AutodiffError(f"nth_order_grad: the order cannot be negative, got {order}")
    if len(graph.outputs) != 1:
        raise AutodiffError(f"nth_order_grad: @{graph.name} must have one output, it has {len(graph.outputs)}")
    name = graph.name
    for level in range(1, order + 1):
        graph = _simplified(_derivative(graph, wrt_name))
        graph.name = f"{name}_d{level}"
    return fuse_elementwise(graph) if options.fuse_elementwise and order else graph


def _derivative(graph: Graph, wrt_name: str) -> Graph:
    """The gradient of the sum of the only output, as the only output; zeros when it does not depend on the leaf."""
    both = grad_with_loss_opts(graph, [wrt_name], GradWithLossOptions.TRAINING, seed=None)
    return decompose_backward_for_ad(both, 0).graph


def _simplified(graph: Graph) -> Graph:
    return peel_scalar_expands(merge_equal_nodes(graph).graph).graph


def cse(graph: Graph) -> Rebuilt:
    """The graph with one node in the place of several that compute the same."""
    return merge_equal_nodes(graph)


def peel_scalar_expands(graph: Graph) -> Rebuilt:
    """Let ops that broadcast read a scalar constant itself instead of an expanded one."""
    constants = {n.id for n in graph.nodes if isinstance(n.op, Constant) and n.shape.rank == 0}
    expanded = [n for n in graph.nodes if isinstance(n.op, Expand) and n.inputs[0] in constants]
    scalars = {n.id: n.inputs[0] for n in expanded}
    found: dict[NodeId, Tensor] = {}

    def visit(node: Node, operands: list[Tensor]) -> Replacement:
        if isinstance(node.op, Constant):
            found[node.id] = new.constant(node.op.value)
            return found[node.id]
        if not isinstance(node.op, Binary | Compare | Where) or not any(i in scalars for i in node.inputs):
            return None
        peeled = [found[scalars[i]] if i in scalars else x for i, x in zip(node.inputs, operands)]
        result = node.op.infer(*(x.type for x in peeled))
        return node.op(*peeled) if result == node.shape else None

    new = graph.empty_like()
    peeled = rebuild(graph, visit, "peel_scalar_expands", into=new)
    return peeled.then(remove_dead_nodes(peeled.graph))


def directional_nth_grad(graph: Graph, wrt_name: str, directions: Sequence[str]) -> Graph:
    """The derivative contracted with one direction per order: the new inputs `dir_0`, `dir_1`, ... of the type of the
    leaf. The only output is a scalar; with two equal directions v it is vᵀ H v."""
    name = graph.name
    for level in range(len(directions)):
        graph = _simplified(_contracted(_derivative(graph, wrt_name), wrt_name, f"dir_{level}"))
    graph.name = f"{name}_directional{len(directions)}"
    return graph


def _contracted(gradient: Graph, wrt_name: str, direction: str) -> Graph:
    """Σ gradient · direction."""
    new = Graph(gradient.name)
    with building(new):
        replay = Replay(gradient, copy_leaves(gradient, new))
        replay.run()
        along = fresh_input(new, direction, gradient.leaf(wrt_name).shape)
        new.set_outputs([reduce_sum(replay.outputs()[0] * along)])
    return new
