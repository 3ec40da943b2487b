"""Turn weights into inputs, so that they can be batched over or fed anew at every run."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Input, Param
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.tensor import Tensor


def promote_params_to_inputs(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph with the listed params as inputs of the same name and type; names that are no params are ignored.

    >>> g = Graph("layer")
    >>> g.set_outputs([g.input("x", (4,), "f32"), g.param("w", (4,), "f32")])
    >>> [n.name for n in promote_params_to_inputs(g, ["w"]).inputs]
    ['x', 'w']
    """
    wanted = set(names)

    def visit(node: Node, operands: list[Tensor]) -> Replacement:
        if not isinstance(node.op, Param) or node.op.key not in wanted:
            return None
        promoted: Replacement = Input(node.op.key, node.op.type)()
        return promoted

    if not any(node.op.key in wanted for node in graph.params if isinstance(node.op, Param)):
        return graph
    return rebuild(graph, visit, "promote_params").graph
