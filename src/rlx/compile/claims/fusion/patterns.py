"""Small questions about nodes that several fusion passes ask."""

from __future__ import annotations

from typing import NamedTuple

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.rewrite.rules import Match
from rlx.ir.shape import Size, normalize_axis
from rlx.ops.fused.layers import FusedMatMulBiasAct
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.shape.movement import Narrow, Slice


def is_binary(node: Node, kind: BinaryOp) -> bool:
    return isinstance(node.op, Binary) and node.op.kind is kind


def is_activation(node: Node, kind: ActivationKind) -> bool:
    return isinstance(node.op, Activation) and node.op.kind is kind


def is_plain_matmul(graph: Graph, node: Node) -> bool:
    """A product of floats that says nothing about precision or the type of the sum, as fused ops cannot either."""
    if not isinstance(node.op, MatMul) or node.op.precision != "default":
        return False
    dtype = node.shape.dtype
    return dtype.is_float and not dtype.is_storage and all(graph.shape(i).dtype is dtype for i in node.inputs)


def is_known_before_run(graph: Graph, node: NodeId) -> bool:
    """Whether a value follows from params and constants alone, so that it can be computed once, before any run."""
    pending, seen = [node], set()
    while pending:
        current = graph.nodes[pending.pop()]
        if current.id in seen:
            continue
        seen.add(current.id)
        if isinstance(current.op, Input) or current.op.effect:
            return False
        if not isinstance(current.op, Param | Constant):
            pending.extend(current.inputs)
    return True


def describe(node: Node) -> str:
    """A node in the words of the user: its op, and its name if it has one."""
    return f'{node.op.mnemonic} "{node.name}"' if node.name else node.op.mnemonic


def why_not_absorbed(m: Match, *nodes: Node, readers: int = 1) -> tuple[MissReason, str] | None:
    """The reason why one of `nodes` has to stay: it is an output, or has other readers than the expected ones."""
    for node in nodes:
        if m.is_output(node):
            return MissReason.IsOutput, describe(node)
        if len(m.users(node)) != readers:
            return MissReason.MultiConsumer, f"{describe(node)} has {len(m.users(node))} readers"
    return None


class Cut(NamedTuple):
    """Part of one axis of a tensor."""

    source: NodeId
    axis: int
    start: Size
    length: Size


def cut_of(graph: Graph, node: Node) -> Cut | None:
    """What a `Narrow`, or a `Slice` of one axis without strides, takes from where."""
    if isinstance(node.op, Narrow):
        axis = normalize_axis(node.op.axis, node.shape.rank, "narrow")
        return Cut(node.inputs[0], axis, node.op.start, node.op.len)
    if not isinstance(node.op, Slice) or any(s != 1 for s in node.op.strides):
        return None
    whole = graph.shape(node.inputs[0]).dims
    cut = [a for a, (start, limit) in enumerate(zip(node.op.starts, node.op.limits)) if start != 0 or limit != whole[a]]
    if len(cut) != 1:
        return None
    (axis,) = cut
    return Cut(node.inputs[0], axis, node.op.starts[axis], node.op.limits[axis] - node.op.starts[axis])


class Projection(NamedTuple):
    """x·w + b with a weight matrix: one fused op, a product, or a product and a sum."""

    x: NodeId
    w: NodeId
    b: NodeId | None
    # The product, when the sum is a node of its own.
    inner_nodes: tuple[Node, ...] = ()


def projection_of(graph: Graph, node: Node) -> Projection | None:
    """How `node` is a linear projection without activation, if it is one."""
    found = _projection(graph, node)
    return found if found is not None and graph.shape(found.w).rank == 2 else None


def _projection(graph: Graph, node: Node) -> Projection | None:
    if isinstance(node.op, FusedMatMulBiasAct):
        x, w, b = node.inputs
        return Projection(x, w, b) if node.op.activation is None else None
    if is_plain_matmul(graph, node):
        x, w = node.inputs
        return Projection(x, w, None)
    if not is_binary(node, BinaryOp.Add):
        return None
    for side in (0, 1):
        product, bias = graph.nodes[node.inputs[side]], graph.nodes[node.inputs[1 - side]]
        is_bias = len(bias.shapes) == 1 and bias.shape.dims == node.shape.dims[-1:]
        if is_bias and product.shapes == node.shapes and is_plain_matmul(graph, product):
            x, w = product.inputs
            return Projection(x, w, bias.id, (product,))
    return None
