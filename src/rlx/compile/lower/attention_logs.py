"""Attention and its gradient as ops that share the logarithms of sums, where a target has kernels for both.

    y = attention(q, k, v); dq, dk, dv = attention_backward(q, k, v, dy)
    ->
    y, logs = attention_with_logs(q, k, v)
    dq, dk, dv = attention_gradients(q, k, v, dy, y, logs)

A gradient whose attention is not in the program, as where values are computed again, gets one of its own.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.generators import Generator
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.gradients import AttentionBackward, AttentionBwdWrt
from rlx.ops.attn.operands import AttentionBase
from rlx.ops.lowered.attention_gradients import AttentionGradients, AttentionWithLogs
from rlx.ops.pointwise.conversion import cast

# What an attention is: its attributes and operands.
_Key = tuple[tuple[object, ...], tuple[NodeId, ...]]


def share_logs(graph: Graph, generator: Generator) -> Graph:
    """The graph with such pairs of ops wherever the generator has kernels for them."""
    wanted: dict[NodeId, _Key] = {}
    for node in graph.nodes:
        op = node.op
        if isinstance(op, AttentionBackward) and op.wrt is AttentionBwdWrt.All and generator.shares_logs(graph, node):
            wanted[node.id] = _key(op, (*node.inputs[:3], *node.inputs[4:]))
    if not wanted:
        return graph
    keys = frozenset(wanted.values())
    made: dict[_Key, tuple[Any, Any]] = {}

    def visit(node: Node, operands: list[Any]) -> Replacement:
        op = node.op
        if type(op) is Attention and not op.has_scales and _key(op, node.inputs) in keys:
            return _with_logs(op, _key(op, node.inputs), operands)[0]
        if node.id not in wanted:
            return None
        assert isinstance(op, AttentionBackward)
        q, k, v, dy, *extras = operands
        y, logs = _with_logs(op, wanted[node.id], [q, k, v, *extras])
        dq, dk, dv = AttentionGradients(**_attributes(op))(q, k, v, dy, y, logs, *extras)
        return cast(dq, q.dtype), dk, dv

    def _with_logs(op: AttentionBase, key: _Key, operands: list[Any]) -> tuple[Any, Any]:
        if key not in made:
            made[key] = AttentionWithLogs(**_attributes(op))(*operands)
        return made[key]

    return rebuild(graph, visit, "share_logs").graph


def _attributes(op: AttentionBase) -> dict[str, Any]:
    return {name: op.attributes[name] for name in AttentionBase._fields}


def _key(op: AttentionBase, operands: tuple[NodeId, ...]) -> _Key:
    return tuple(_attributes(op).values()), tuple(operands)
