"""Batching: run a graph over a new leading axis of some of its leaves, op by op."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlx.autodiff.derive import expand_for, leaves_in, no_rule
from rlx.autodiff.replay import Replay, Value
from rlx.errors import InternalError, NoVmapRule
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Project
from rlx.ir.op import Op
from rlx.ir.shape import Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.body_transforms import varies_over
from rlx.ops.define.rules import as_type


def batch_graph(
    graph: Graph,
    leaves: Mapping[NodeId, Tensor],
    batched: Collection[NodeId],
    size: Size,
    axis_name: str | None = None,
) -> tuple[list[Tensor], list[bool]]:
    """Outputs of `graph` when the leaves in `batched` carry a leading axis of `size`; and which outputs carry it."""

    def relevant(g: Graph) -> set[NodeId]:
        return varies_over(g, leaves_in(g, graph, batched), axis_name)

    prepared = expand_for(graph, "batch", relevant)
    graph = prepared.graph
    carried = relevant(graph)
    replay = Replay(graph, {prepared.id(i): t for i, t in leaves.items()})
    for node in graph.nodes:
        if node.id not in carried or node.is_leaf or isinstance(node.op, Project):
            replay.step(node)
            continue
        flags = [i in carried for i in node.inputs]
        with replay.into.originating(node.origin):
            replay.values[node.id] = _checked(node, apply_batch(node.op, size, replay.operands(node), flags), size)
    return replay.outputs(), [o in carried for o in graph.outputs]


def apply_batch(op: Op, size: Size, operands: list[Any], batched: list[bool]) -> Value:
    """The batched result of one op by its rule."""
    refused = no_rule(op, "batch")
    if refused is not None:
        raise NoVmapRule(op.mnemonic, refused.reason)
    rule = type(op).batch
    if not callable(rule):
        raise InternalError(f"{op.mnemonic} reached batching without a rule")
    result: Value = rule(op, size, tuple(operands), tuple(batched))
    return result


def _checked(node: Node, value: Value, size: Size) -> Value:
    """`value` with the batch axis in front of the types of `node`; an error when a rule gave something else."""
    results = []
    for result, shape in zip(value if isinstance(value, tuple) else (value,), node.shapes, strict=True):
        typed = as_type(result, shape.with_dims((size, *shape.dims)))
        if typed is None:
            raise InternalError(f"batching {node.op.mnemonic} gave {result.type}, wanted [{size}] + {shape}")
        results.append(typed)
    return tuple(results) if isinstance(value, tuple) else results[0]
