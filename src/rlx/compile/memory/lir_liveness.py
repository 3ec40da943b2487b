"""When the values of a LIR program live, in steps: one step per kernel, and one after the last for the results."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.compile.memory.liveness import LiveRange, is_pure_view
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL, VIEW
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirKernel, LirModule


def steps_of(lir: LirModule) -> Sequence[LirKernel]:
    """The kernels of a module; a module planned node by node has one for each node of its schedule."""
    if lir.kernels:
        return lir.kernels
    graph = lir.as_graph()
    nodes = [graph.nodes[i] for i in lir.buffers.schedule]
    return [_single(graph, n) for n in nodes if not isinstance(n.op, Input | Param | Constant)]


def _single(graph: Graph, node: Node) -> LirKernel:
    kind = VIEW if len(node.shapes) == 1 and node.inputs and is_pure_view(graph, node) else CALL
    return LirKernel.of(kind, [node.id], dict.fromkeys(node.inputs), [node.id])


def viewed_values(lir: LirModule) -> dict[NodeId, NodeId]:
    """For every view the value whose bytes it names, also where that is stored in the memory of the view, a result. A
    value that an op stores over another is no view of it."""
    graph, places, found = lir.as_graph(), lir.buffers.view_aliases, dict[NodeId, NodeId]()
    for kernel in steps_of(lir):
        for node in (graph.nodes[i] for i in kernel.nodes if kernel.kind == VIEW):
            named = places.get(node.inputs[0]) if node.inputs else None
            if node.id in places or (named is not None and named.root == node.id):
                found[node.id] = found.get(node.inputs[0], node.inputs[0])
    return found


def stored_over(lir: LirModule) -> dict[NodeId, NodeId]:
    """For every result that is stored over another value: the value that owns the memory."""
    views = viewed_values(lir)
    owners = {n: views.get(at.root, at.root) for n, at in lir.buffers.view_aliases.items() if n not in views}
    # What a returned view names is stored in the memory of the view.
    return {node: owner for node, owner in owners.items() if node != owner}


def lives_of(lir: LirModule) -> dict[NodeId, LiveRange]:
    """First and last step at which each value that is not a view is needed; what is returned is needed to the end."""
    views = viewed_values(lir)
    birth: dict[NodeId, int] = {}
    death: dict[NodeId, int] = {}
    steps = steps_of(lir)
    for step, kernel in enumerate(steps):
        for value in (views.get(i, i) for i in (*kernel.outputs, *kernel.inputs)):
            birth.setdefault(value, step)
            death[value] = step
    for value in (views.get(o, o) for o in lir.as_graph().outputs):
        birth.setdefault(value, 0)
        death[value] = len(steps)
    leaves = (n.id for n in lir.as_graph().nodes if isinstance(n.op, Input | Param | Constant))
    birth.update((n, 0) for n in leaves if n in birth)
    return {value: LiveRange(birth[value], death[value]) for value in birth}
