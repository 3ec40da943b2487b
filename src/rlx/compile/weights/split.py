"""Two programs out of one: what follows from params alone is computed when weights are set, not at every run.

    main(x, w0, w1):  x @ concat(w0, w1)        prepare(w0, w1):       concat(w0, w1)
                                          ->    main(x, prepared.0):   x @ prepared.0

`main` takes the outputs of `prepare` as params, and no longer asks for weights that only `prepare` reads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from rlx.compile.fuse.index_maps import is_view
from rlx.compile.memory.liveness import is_pure_view
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.rewrite.equal_nodes import is_pure
from rlx.ops.parallel.collectives import Collective
from rlx.ops.shape.movement import Transpose

Uses = list[list[NodeId]]


class Programs(NamedTuple):
    """The two programs; `prepared` names the params of `main` that are the outputs of `prepare`, in order."""

    main: Graph
    prepare: Graph | None = None
    prepared: tuple[str, ...] = ()


def split_prepare(graph: Graph, stored: Collection[NodeId] = ()) -> Programs:
    """Cut what can and should be computed ahead out of `graph`; `main` is `graph` itself when there is nothing.

    Values in `stored` are kept as they are, and views of them are left to `main`.
    """
    cut = _cut(graph, stored)
    if not cut.kept:
        return Programs(graph)
    prefix = _free_prefix(graph)
    names = {node: f"{prefix}.{i}" for i, node in enumerate(cut.kept)}
    prepare = Graph(f"{graph.name}_prepare")
    ids = _copy(graph, cut.before, {}, prepare)
    prepare.set_outputs([ids[n] for n in cut.kept])
    main = graph.empty_like()
    ids = _copy(graph, cut.after, names, main)
    main.outputs = [ids[o] for o in graph.outputs]
    return Programs(main, prepare, tuple(names.values()))


class _Cut(NamedTuple):
    """The nodes of `prepare`, those of `main`, and the values that go from one to the other."""

    before: set[NodeId]
    after: set[NodeId]
    kept: list[NodeId]


def _cut(graph: Graph, stored: Collection[NodeId]) -> _Cut:
    """Nodes that both programs need and that are not worth keeping are computed in both."""
    views = _views_of(graph, stored)
    sources, uses = fixed_sources(graph), graph.use_map()
    after = {n.id for n in graph.nodes if n.id not in sources and not isinstance(n.op, Param | Constant)}
    after.update(graph.outputs)
    kept: list[NodeId] = []
    # From the end, so that the readers of a node are decided before it.
    for node in reversed(graph.nodes):
        if node.id not in after:
            continue
        may_keep = node.id in sources and node.id not in views
        if may_keep and (node.id in stored or _is_worth_keeping(graph, node, sources[node.id], uses)):
            kept.append(node.id)
        else:
            after.update(node.inputs)
    before = set(kept)
    for node in reversed(graph.nodes):
        if node.id in before:
            before.update(node.inputs)
    # Leaves are the interface of the program; those that nobody reads stay with `main`.
    after.update(n.id for n in graph.params if n.id not in before)
    return _Cut(before, after, kept[::-1])


def _views_of(graph: Graph, stored: Collection[NodeId]) -> set[NodeId]:
    """The views of stored values, and views of these."""
    found: set[NodeId] = set()
    for node in graph.nodes if stored else ():
        if node.id not in stored and is_view(graph, node) and (node.inputs[0] in stored or node.inputs[0] in found):
            found.add(node.id)
    return found


def fixed_sources(graph: Graph) -> dict[NodeId, frozenset[NodeId]]:
    """For every node of fixed size that follows from params and constants alone: which of them it is computed from."""
    fixed = {n.id: frozenset([n.id]) for n in graph.nodes if isinstance(n.op, Param | Constant) and n.shape.is_static}
    found: dict[NodeId, frozenset[NodeId]] = {}
    for node in graph.nodes:
        known = node.inputs and all(i in fixed for i in node.inputs)
        if known and _is_fixed(node):
            fixed[node.id] = found[node.id] = frozenset[NodeId]().union(*(fixed[i] for i in node.inputs))
    return found


def _is_fixed(node: Node) -> bool:
    is_static = all(s.is_static for s in node.shapes) and not node.op.dynamic_symbols()
    # What a collective gives depends on the other devices, at the time of the run.
    return is_static and is_pure(node.op) and not isinstance(node.op, Collective)


def _is_worth_keeping(graph: Graph, node: Node, sources: frozenset[NodeId], uses: Uses) -> bool:
    """A value kept between runs must save work and must not be larger than the weights that it stands for."""
    if isinstance(node.op, Project):
        return True
    if is_pure_view(graph, node):
        return False
    if isinstance(node.op, Transpose) and node.inputs[0] in sources and len(uses[node.inputs[0]]) > 1:
        # The weight is needed as it is, too: better to read it by its strides than to keep it twice.
        return False
    return _size(node) <= sum(_size(graph.nodes[i]) for i in sources)


def _size(node: Node) -> int:
    return sum(s.size_bytes() or 0 for s in node.shapes)


def _free_prefix(graph: Graph) -> str:
    prefix = "prepared"
    while any(isinstance(n.op, Input | Param) and n.op.key.startswith(f"{prefix}.") for n in graph.nodes):
        prefix += "_"
    return prefix


def _copy(graph: Graph, nodes: set[NodeId], names: dict[NodeId, str], into: Graph) -> dict[NodeId, NodeId]:
    """Copy `nodes`, in order; those with a name become params of that name."""
    ids: dict[NodeId, NodeId] = {}
    for node in (n for n in graph.nodes if n.id in nodes):
        if node.id in names:
            made = into.append(Param(names[node.id], node.shape), origin=node.origin)
        else:
            made = into.append(node.op, [ids[i] for i in node.inputs], name=node.name, origin=node.origin)
        ids[node.id] = made.id
    return ids
