"""What is done to every element of a joined value is done to its parts: `exp([a b])` is `[exp(a) exp(b)]`.

A kernel stores a joined value part by part, each with loops of its own, and computes the parts along the way. Ops that
follow can join it there, and the joined value is not stored before they read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.compile.fuse.index_maps import is_view
from rlx.compile.generators import Generator
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.shape import Size, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.shape.movement import Concat, concat, narrow

# Every part is code of its own.
MAX_PARTS = 4


def done_to_parts(
    graph: Graph, uses: Sequence[Sequence[NodeId]], generator: Generator, node: Node, operands: Sequence[Tensor]
) -> Callable[..., Any] | None:
    """How a pointwise node is computed part by part; None where nothing is gained.

    The joined value has no other reader. Everything else that the node reads is at hand: a product whose epilogue this
    would be should not be stored instead.
    """
    if not generator.is_pointwise(graph, node):
        return None
    joined = [k for k, x in enumerate(operands) if _is_joined(x, node)]
    if len(joined) != 1:
        return None
    (number,) = joined
    if len(uses[node.inputs[number]]) != 1 or node.inputs[number] in graph.outputs:
        return None
    if not all(k == number or _is_at_hand(x) for k, x in enumerate(operands)):
        return None

    def build(*operands: Tensor) -> Any:
        whole = operands[number]
        op = whole.node.op
        assert isinstance(op, Concat)
        axis = normalize_axis(op.axis, whole.ndim, "concat")
        start: Size = 0
        results = []
        for part in (whole.graph.tensor(i) for i in whole.node.inputs):
            length = part.shape[axis]
            cut = [_columns(x, axis - whole.ndim, start, length) for x in operands]
            cut[number] = part
            results.append(node.op(*cut))
            start = start + length
        return concat(results, axis)

    return build


def _is_joined(x: Tensor, node: Node) -> bool:
    return isinstance(x.node.op, Concat) and len(x.node.inputs) <= MAX_PARTS and x.shape == node.shape.dims


def _is_at_hand(x: Tensor) -> bool:
    """Whether a value is in memory before anything runs, or is a view of one that is."""
    node = x.node
    while node.inputs and is_view(x.graph, node):
        node = x.graph.nodes[node.inputs[0]]
    return node.is_leaf or isinstance(node.op, Constant)


def _columns(x: Tensor, axis: int, start: Size, length: Size) -> Any:
    """The part of an operand that belongs to a part; `axis` counts from the end. What is broadcast is left alone."""
    if x.ndim < -axis or x.shape[axis] == 1:
        return x
    return narrow(x, axis, start, length)
