"""Two programs out of one: what follows from params alone is computed when weights are set, not at every run.

    main(x, w0, w1):  x @ concat(w0, w1)        prepare(w0, w1):       concat(w0, w1)
                                          ->    main(x, prepared.0):   x @ prepared.0

`main` takes the outputs of `prepare` as params, and no longer asks for weights that only `prepare` reads.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.compile.liveness import is_pure_view
from rlx.ir.equal_nodes import is_pure
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ops.collectives import Collective
from rlx.ops.movement import Transpose


class Programs(NamedTuple):
    """The two programs; `prepared` names the params of `main` that are the outputs of `prepare`, in order."""

    main: Graph
    prepare: Graph | None = None
    prepared: tuple[str, ...] = ()


def split_prepare(graph: Graph) -> Programs:
    """Cut what can and should be computed ahead out of `graph`; `main` is `graph` itself when there is nothing."""
    ahead = _computed_ahead(graph)
    if not ahead:
        return Programs(graph)
    crossing = [n.id for n in graph.nodes if n.id in ahead and _is_needed_after(graph, n.id, ahead)]
    prefix = _free_prefix(graph)
    names = {node: f"{prefix}.{i}" for i, node in enumerate(crossing)}
    return Programs(_main(graph, ahead, names), _prepare(graph, ahead, crossing), tuple(names.values()))


def _computed_ahead(graph: Graph) -> set[NodeId]:
    """Nodes that `prepare` computes."""
    sources = _param_sources(graph)
    ahead = set(sources)
    uses = graph.use_map()
    outputs = set(graph.outputs)
    # From the end, so that the readers of a node are decided before it.
    for node in reversed(graph.nodes):
        crosses = node.id in outputs or any(u not in ahead for u in uses[node.id])
        if node.id in ahead and crosses and not _is_worth_keeping(graph, node, sources[node.id], uses):
            ahead.discard(node.id)
    return _without_unneeded(graph, ahead)


def _param_sources(graph: Graph) -> dict[NodeId, frozenset[NodeId]]:
    """For every node of fixed size that follows from params and constants alone: which of them it is computed from."""
    fixed = {n.id: frozenset([n.id]) for n in graph.nodes if isinstance(n.op, Param | Constant) and n.shape.is_static}
    found: dict[NodeId, frozenset[NodeId]] = {}
    for node in graph.nodes:
        known = node.inputs and all(i in fixed for i in node.inputs)
        if known and _is_fixed(node):
            fixed[node.id] = found[node.id] = frozenset[NodeId]().union(*(fixed[i] for i in node.inputs))
    return {n: s for n, s in found.items() if any(isinstance(graph.nodes[i].op, Param) for i in s)}


def _is_fixed(node: Node) -> bool:
    is_static = all(s.is_static for s in node.shapes) and not node.op.dynamic_symbols()
    # What a collective gives depends on the other devices, at the time of the run.
    return is_static and is_pure(node.op) and not isinstance(node.op, Collective)


def _is_worth_keeping(graph: Graph, node: Node, sources: frozenset[NodeId], uses: list[list[NodeId]]) -> bool:
    """A value kept between runs must save work and must not be larger than the weights that it stands for."""
    if isinstance(node.op, Project):
        return True
    if is_pure_view(graph, node):
        return False
    if isinstance(node.op, Transpose) and any(len(uses[i]) > 1 for i in sources):
        # The weight is needed as it is, too, and kernels can read it by its strides.
        return False
    return _size(node) <= sum(_size(graph.nodes[i]) for i in sources)


def _size(node: Node) -> int:
    return sum(s.size_bytes() or 0 for s in node.shapes)


def _is_needed_after(graph: Graph, node: NodeId, ahead: set[NodeId]) -> bool:
    return node in graph.outputs or any(node in n.inputs for n in graph.nodes[node + 1 :] if n.id not in ahead)


def _without_unneeded(graph: Graph, ahead: set[NodeId]) -> set[NodeId]:
    """Without nodes that only nodes of `main` would have needed, and that those compute for themselves now."""
    needed = {i for n in graph.nodes if n.id not in ahead for i in n.inputs} | set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.id in ahead and node.id in needed:
            needed.update(node.inputs)
    return ahead & needed


def _free_prefix(graph: Graph) -> str:
    prefix = "prepared"
    while any(isinstance(n.op, Input | Param) and n.op.key.startswith(f"{prefix}.") for n in graph.nodes):
        prefix += "_"
    return prefix


def _prepare(graph: Graph, ahead: set[NodeId], crossing: list[NodeId]) -> Graph:
    read = {i for n in ahead for i in graph.nodes[n].inputs}
    program = Graph(f"{graph.name}_prepare")
    ids: dict[NodeId, NodeId] = {}
    for node in graph.nodes:
        if node.id in ahead or node.id in read:
            ids[node.id] = _copy(node, ids, program)
    program.set_outputs([ids[n] for n in crossing])
    return program


def _main(graph: Graph, ahead: set[NodeId], names: dict[NodeId, str]) -> Graph:
    read = {i for n in graph.nodes if n.id not in ahead for i in n.inputs} | set(graph.outputs)
    program = graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    for node in graph.nodes:
        if node.id in names:
            ids[node.id] = program.append(Param(names[node.id], node.shape), origin=node.origin).id
        elif node.id not in ahead and (node.id in read or not isinstance(node.op, Param | Constant)):
            ids[node.id] = _copy(node, ids, program)
    program.outputs = [ids[o] for o in graph.outputs]
    return program


def _copy(node: Node, ids: dict[NodeId, NodeId], into: Graph) -> NodeId:
    return into.append(node.op, [ids[i] for i in node.inputs], name=node.name, origin=node.origin).id
