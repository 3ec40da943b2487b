"""Forward mode: push tangents through a graph, op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.autodiff.derive import expand_for, leaves_in, no_rule
from rlx.autodiff.replay import Replay, Value
from rlx.errors import NoJvpRule
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Project
from rlx.ir.op import Op
from rlx.ir.tensor import Tensor
from rlx.ops.control.body_transforms import depends_on
from rlx.ops.define.rules import add_tangents, zeros_like

# The tangent of a node: None is zero; a tuple for several results.
Tangent = Any


def push_forward(
    graph: Graph, leaves: Mapping[NodeId, Tensor], tangents: Mapping[NodeId, Tensor], jointly: bool = True
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs of `graph` and their tangents, emitted into the program being built. None is a zero tangent.

    Loops and branches compute value and tangent in one go instead of running twice, unless `jointly` is false: then
    no value depends on a tangent.
    """
    sources = list(tangents)
    prepared = expand_for(graph, "jvp", lambda g: depends_on(g, leaves_in(g, graph, sources)))
    graph = prepared.graph
    known: dict[NodeId, Tangent] = {prepared.id(i): t for i, t in tangents.items()}
    active = depends_on(graph, list(known))
    replay = Replay(graph, {prepared.id(i): t for i, t in leaves.items()})
    for node in graph.nodes:
        if node.id in known or node.id not in active:
            replay.step(node)
        else:
            known[node.id] = _push_node(node, replay, [known.get(i) for i in node.inputs], jointly)
    outputs = replay.outputs()
    # Codes have tangents inside a program only.
    return outputs, [known.get(o) if t.dtype.is_inexact else None for o, t in zip(graph.outputs, outputs)]


def _push_node(node: Node, replay: Replay, tangents: list[Tangent], jointly: bool) -> Tangent:
    """Give the node its value, and return its tangent."""
    if isinstance(node.op, Project):
        replay.step(node)
        source = tangents[0]
        return None if source is None else source[node.op.index]
    if all(t is None for t in tangents):
        replay.step(node)
        return None
    value_and_jvp = getattr(node.op, "value_and_jvp", None) if jointly else None
    if value_and_jvp is not None:
        with replay.into.originating(node.origin):
            replay.values[node.id], tangent = value_and_jvp(tuple(replay.operands(node)), tuple(tangents))
        return tangent
    value = replay.step(node)
    with replay.into.originating(node.origin):
        return apply_jvp(node.op, replay.operands(node), tangents, value)


def apply_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Tensor | None], value: Value) -> Tangent:
    """The tangent of one op by its rule; tangents of results that are not inexact are dropped."""
    refused = no_rule(op, "jvp")
    if refused is not None:
        raise NoJvpRule(op.mnemonic, refused.reason)
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
