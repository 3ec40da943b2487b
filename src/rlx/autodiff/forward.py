"""Forward mode: push tangents through a graph, op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.autodiff.derive import depends_on, expand_for, no_rule
from rlx.autodiff.replay import Replay, Value
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Project
from rlx.ir.op import Op
from rlx.ir.tensor import Tensor
from rlx.ops.rules import add_tangents, zeros_like

# The tangent of a node: None is zero; a tuple for several results.
Tangent = Any


def push_forward(
    graph: Graph, leaves: Mapping[NodeId, Tensor], tangents: Mapping[NodeId, Tensor]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs of `graph` and their tangents, emitted into the program being built. None is a zero tangent."""
    sources = list(tangents)
    prepared = expand_for(graph, "jvp", lambda g: depends_on(g, _mapped(g, graph, sources)))
    graph = prepared.graph
    leaves = {prepared.id(i): t for i, t in leaves.items()}
    known: dict[NodeId, Tangent] = {prepared.id(i): t for i, t in tangents.items()}
    active = depends_on(graph, list(known))
    replay = Replay(graph, leaves)
    for node in graph.nodes:
        value = replay.step(node)
        if node.id in known or node.id not in active:
            continue
        known[node.id] = _tangent(node, replay.operands(node), [known.get(i) for i in node.inputs], value, replay.into)
    return replay.outputs(), [known.get(o) for o in graph.outputs]


def _mapped(graph: Graph, original: Graph, ids: Sequence[NodeId]) -> list[NodeId]:
    """Leaves of `original` in a rewrite of it; leaves keep their names."""
    return [graph.leaf(original.nodes[i].op.key).id for i in ids]  # type: ignore[attr-defined]


def _tangent(node: Node, operands: list[Value], tangents: list[Tangent], value: Value, into: Graph) -> Tangent:
    if isinstance(node.op, Project):
        source = tangents[0]
        return None if source is None else source[node.op.index]
    if all(t is None for t in tangents):
        return None
    with into.originating(node.origin):
        return apply_jvp(node.op, operands, tangents, value)


def apply_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Tensor | None], value: Value) -> Tangent:
    """The tangent of one op by its rule; tangents of results that are not inexact are dropped."""
    refused = no_rule(op, "jvp")
    if refused is not None:
        raise AutodiffError(f"{op.mnemonic} has no derivative: {refused.reason}")
    rule = type(op).jvp
    if callable(rule):
        result = rule(op, tuple(primals), tuple(tangents), value)
    elif op.linear_in:
        chosen = range(len(primals)) if op.linear_in == "all" else op.linear_in
        result = op(*(_or_zeros(t, p) if i in chosen else p for i, (p, t) in enumerate(zip(primals, tangents))))
    else:
        result = None
        for i in op.multilinear_in:
            if tangents[i] is not None:
                part = op(*primals[:i], tangents[i], *primals[i + 1 :])
                result = part if result is None else add_tangents(result, part)
    if isinstance(value, tuple) and result is not None:
        return tuple(t if v.dtype.is_inexact else None for t, v in zip(result, value, strict=True))
    return result


def _or_zeros(tangent: Tensor | None, primal: Tensor) -> Tensor:
    return zeros_like(primal) if tangent is None else tangent
