"""The one way to rewrite a graph: copy it node by node, replacing some, with names and provenance carried along."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from rlx.errors import InternalError
from rlx.ir.dims import collect_constraints
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Project
from rlx.ir.op import OP_CLASSES, Op, kind_of
from rlx.ir.provenance import NodeOrigin
from rlx.ir.rewrite.inline import same_type
from rlx.ir.tensor import Tensor, building

# What a visitor returns for a node: None to copy it, or its replacement (a tuple for several results).
Replacement = Tensor | Sequence[Tensor] | None
Visitor = Callable[[Node, list[Any]], Replacement]
# The form that replaces a node, as a function of its operands; None leaves it.
FormOf = Callable[[Node], Callable[..., Any] | None]


class Rebuilt(NamedTuple):
    """The new graph and where each old node went; a replaced node with several results has no single new id."""

    graph: Graph
    ids: dict[NodeId, NodeId]

    def id(self, old: int) -> NodeId:
        """The new id of an old node."""
        return self.ids[NodeId(old)]

    def then(self, later: Rebuilt) -> Rebuilt:
        """This rewrite and then `later`, a rewrite of its graph."""
        return Rebuilt(later.graph, {old: later.ids[mid] for old, mid in self.ids.items() if mid in later.ids})


def unchanged(graph: Graph) -> Rebuilt:
    """The rewrite that does nothing."""
    return Rebuilt(graph, {n.id: n.id for n in graph.nodes})


def rebuild(
    graph: Graph,
    visit: Visitor,
    pass_name: str | None = None,
    into: Graph | None = None,
    ids: dict[NodeId, NodeId] | None = None,
) -> Rebuilt:
    """Copy `graph`, asking `visit(node, operands)` for a replacement of every node.

    `operands` are the tensors of the new graph; ops called inside `visit` are added there and inherit the name and
    origin of the old node, with `pass_name` recorded. A replacement must have the types of the old node, up to how
    sizes are written. `ids`, if given, is filled as the copy goes on, for visitors that look further back than their
    operands.
    """
    new = graph.empty_like() if into is None else into
    ids = {} if ids is None else ids
    # Results of replaced nodes that had several; their projections pick from here.
    replaced: dict[NodeId, tuple[Tensor, ...]] = {}
    node: Node

    def origin() -> NodeOrigin:
        """Asked for what is appended in the place of `node`: most nodes are copied as they are."""
        if pass_name is None:
            return node.origin or NodeOrigin.here()
        return (node.origin or NodeOrigin()).rewritten(pass_name, node.op)

    with building(new), new.originating(origin):
        for node in graph.nodes:
            if isinstance(node.op, Project) and node.inputs[0] in replaced:
                ids[node.id] = replaced[node.inputs[0]][node.op.index].id
                continue
            replacement = None
            if not isinstance(node.op, Project):
                start = len(new)
                replacement = visit(node, [Tensor(new, ids[i]) for i in node.inputs])
            if replacement is None:
                # Replacements have the types of what they replace, so a copied node keeps its own.
                ids[node.id] = new.append_copy(node, [ids[i] for i in node.inputs])
                continue
            results = _checked(node, replacement)
            if len(results) > 1:
                replaced[node.id] = results
                continue
            ids[node.id] = results[0].id
            if node.name and results[0].id >= start:
                results[0].node.name = results[0].node.name or node.name
    new.outputs = [ids[o] for o in graph.outputs]
    new.constraints = list(dict.fromkeys([*graph.constraints, *new.constraints]))
    return Rebuilt(new, ids)


def _checked(node: Node, replacement: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The replacement with the types of the node; sizes written differently (`S` where the node says 4, which is a
    constraint already) are written as the node writes them."""
    results = (replacement,) if isinstance(replacement, Tensor) else tuple(replacement)
    types = tuple(t.type for t in results)
    if types == node.shapes:
        return results
    with collect_constraints(results[0].graph.constraints if results else []):
        fits = len(types) == len(node.shapes) and all(
            same_type(a, b, node.op.mnemonic) for a, b in zip(types, node.shapes)
        )
    if not fits:
        raise InternalError(f"the rewrite of {node!r} gives {types}, not {node.shapes}")
    rewrite = OP_CLASSES["Reshape"]
    return tuple(t if t.type == shape else rewrite(shape.dims)(t) for t, shape in zip(results, node.shapes))


def replace_nodes(graph: Graph, form_of: FormOf, pass_name: str) -> Rebuilt:
    """Replace nodes, and what replaced them, until `form_of` has nothing more to say; bodies included."""

    def visit(node: Node, operands: list[Any]) -> Replacement:
        form = form_of(node)
        if form is not None:
            return form(*operands)
        op = map_bodies(node.op, lambda body: replace_nodes(body, form_of, pass_name).graph)
        return None if op is node.op else op(*operands)

    def has_work(graph: Graph) -> bool:
        return any(form_of(node) is not None for node in graph.nodes)

    result = unchanged(graph)
    while has_work(result.graph) or any(has_work(body) for body in all_bodies(result.graph)):
        result = result.then(rebuild(result.graph, visit, pass_name))
    return result


def decompose_kinds(graph: Graph, kinds: Collection[str], pass_name: str) -> Rebuilt:
    """Decompose the ops of the given kinds (class names)."""
    return replace_nodes(graph, lambda node: node.op.decompose if kind_of(node.op) in kinds else None, pass_name)


def decompose_all(graph: Graph, keep: Callable[[Node], bool] | None = None) -> Graph:
    """Decompose every node that is not primitive, again and again, bodies included, except those that `keep` claims."""

    def form_of(node: Node) -> Callable[..., Any] | None:
        is_kept = node.op.is_primitive or node.op.is_block or (keep is not None and keep(node))
        return None if is_kept else node.op.decompose

    return replace_nodes(graph, form_of, "decompose").graph


def all_bodies(graph: Graph) -> Iterator[Graph]:
    """The programs nested in a graph, at any depth."""
    stack = [body for node in graph.nodes for body in node.op.bodies.values()]
    while stack:
        body = stack.pop()
        yield body
        stack.extend(b for node in body.nodes for b in node.op.bodies.values())


def map_bodies(op: Op, rewrite: Callable[[Graph], Graph]) -> Op:
    """The op with its bodies rewritten; the same object when nothing changed."""
    if not op.bodies:
        return op
    changes: dict[str, Any] = {}
    for field, value in op.attributes.items():
        if isinstance(value, Graph):
            new: Any = rewrite(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Graph):
            new = tuple(rewrite(v) for v in value)
            new = value if all(a is b for a, b in zip(new, value)) else new
        else:
            continue
        if new is not value:
            changes[field] = new
    return op.replace(**changes) if changes else op


def rebuild_bodies(
    graph: Graph, rewrite: Callable[[Graph], Graph], pass_name: str | None = None, keep: tuple[type[Op], ...] = ()
) -> Rebuilt:
    """The graph with every program that its nodes hold rewritten, except those of ops that `keep` names. `rewrite` is
    not asked about programs deeper inside."""
    changed = False

    def visit(node: Node, operands: list[Any]) -> Replacement:
        nonlocal changed
        op = node.op if isinstance(node.op, keep) else map_bodies(node.op, rewrite)
        if op is node.op:
            return None
        changed = True
        replacement: Replacement = op(*operands)
        return replacement

    if not any(node.op.bodies for node in graph.nodes):
        return unchanged(graph)
    rebuilt = rebuild(graph, visit, pass_name)
    return rebuilt if changed else unchanged(graph)
