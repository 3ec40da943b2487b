"""Splicing one program into another: `inline_graph`, and the type check that every use of a body shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.errors import OpError, ShapeError, TraceError
from rlx.ir.dims import collect_constraints, require_again, require_equal
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, lift, target_graph


def inline_graph(body: Graph, operands: Sequence[Any]) -> tuple[Tensor, ...]:
    """The outputs of `body` applied to `operands`, its nodes copied to where the program is being built.

    Operands stand for the Inputs of `body` in declaration order. Names and provenance of the nodes are kept.
    """
    graph = target_graph(operands)
    if graph is None:
        raise TraceError(
            f"inline_graph: no program is being built into which @{body.name} could be copied; "
            "pass tensors of a graph, or run it with rlx.ir.interpret"
        )
    tensors = [lift(x, graph) for x in operands]
    with collect_constraints(graph.constraints):
        check_operands(body, [t.type for t in tensors], f"@{body.name}")
    ids: dict[NodeId, NodeId] = {}
    arguments = iter(tensors)
    for node in body.nodes:
        ids[node.id] = next(arguments).id if isinstance(node.op, Input) else _copy(node, ids, graph)
    return tuple(Tensor(graph, ids[o]) for o in body.outputs)


def _copy(node: Node, ids: dict[NodeId, NodeId], graph: Graph) -> NodeId:
    if isinstance(node.op, Param):
        raise OpError(f"inline_graph: the param {node.op.key!r} cannot be copied into a program; make it an input")
    if isinstance(node.op, Constant):
        return graph.constant(node.op.value).id
    return graph.append(node.op, [ids[i] for i in node.inputs], name=node.name, origin=node.origin).id


def check_operands(body: Graph, operands: Sequence[Shape], what: str) -> None:
    """Refuse operand types that are not those of the Inputs of `body`; `what` names the use in the message.

    Symbols mean the same inside and outside of a body. Equalities and inequalities that only a binding can decide,
    here and inside the body, become constraints of the program that uses it.
    """
    inputs = body.inputs
    if len(inputs) != len(operands):
        names = ", ".join(str(n.name) for n in inputs) or "none"
        raise OpError(f"{what}: the body takes {len(inputs)} inputs ({names}), got {len(operands)} operands")
    for node, shape in zip(inputs, operands):
        if not same_type(node.shape, shape, what):
            raise ShapeError(f"{what}: the body takes {node.name!r} as {node.shape}, got {shape}")
    for constraint in body.constraints:
        require_again(constraint)


def same_type(a: Shape, b: Shape, reason: str) -> bool:
    """Equal dtype, rank and sizes; sizes only known at run time become constraints."""
    if a == b:
        return True
    if a.dtype is not b.dtype or a.rank != b.rank:
        return False
    return all(require_equal(x, y, reason) for x, y in zip(a.dims, b.dims))
