"""What is done to every element of a joined value is done to its parts: `exp([a b])` is `[exp(a) exp(b)]`.

A kernel stores a joined value part by part, each with loops of its own, and computes the parts along the way. Ops that
follow can join it there, and the joined value is not stored before they read it.

What joins views of a joined value, as a pad along two axes does, joins views of its parts instead, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from rlx.compile.fuse.index_maps import is_view
from rlx.compile.generators import Generator
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.shape import Size, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.shape.movement import Concat, Expand, Narrow, Reverse, concat, expand, narrow

# Every part is code of its own.
MAX_PARTS = 4
# Parts of a value that is joined along two axes: what stands in the middle, at four sides and at four corners.
MAX_PARTS_OF_TWO = 9


def done_to_parts(
    graph: Graph, uses: Sequence[Sequence[NodeId]], generator: Generator, node: Node, operands: Sequence[Tensor]
) -> Callable[..., Any] | None:
    """How a pointwise node is computed part by part; None where nothing is gained.

    The joined value has no other reader. Everything else that the node reads is at hand: a product whose epilogue this
    would be should not be stored instead.
    """
    joined = [k for k, x in enumerate(operands) if _is_joined(x, node)]
    if len(joined) != 1 or not generator.is_pointwise(graph, node):
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
    joined = x.node
    if not isinstance(joined.op, Concat) or len(joined.inputs) > MAX_PARTS:
        return False
    return [shape.dims for shape in node.shapes] == [joined.shape.dims]


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


def joined_both_ways(
    graph: Graph, uses: Sequence[Sequence[NodeId]], node: Node, operands: Sequence[Tensor]
) -> Callable[..., Any] | None:
    """How views of one joined value are joined along another axis: `[[a b] v([a b])]` is `[[a v(a)] [b v(b)]]`, where
    nobody else reads them; None where a node is something else."""
    if not isinstance(node.op, Concat) or not _reads_one_value(graph, uses, node):
        return None
    axis = normalize_axis(node.op.axis, node.shape.rank, "concat")
    views = [_views_along(x, axis) for x in operands]
    found = views[0]
    if found is None:
        return None
    whole = found[0]
    across = whole.node.op
    if not isinstance(across, Concat) or normalize_axis(across.axis, whole.ndim, "concat") == axis:
        return None
    if any(v is None or v[0].id != whole.id for v in views) or len(whole.node.inputs) * len(views) > MAX_PARTS_OF_TWO:
        return None
    if any(isinstance(whole.graph.nodes[i].op, Concat) for i in whole.node.inputs):
        # Views of these would have to be stored first.
        return None

    def build(*operands: Tensor) -> Any:
        rows = []
        for part in (whole.graph.tensor(i) for i in whole.node.inputs):
            rows.append(concat([_viewed(part, v[1], axis) for v in views if v is not None], axis))
        return concat(rows, across.axis)

    return build


def _reads_one_value(graph: Graph, uses: Sequence[Sequence[NodeId]], node: Node) -> bool:
    """Whether all operands are views of one value, which has no other reader, and neither have they."""
    readers: list[NodeId] = []
    bases = set()
    for number in node.inputs:
        below, reader = number, node.id
        while isinstance(graph.nodes[below].op, Narrow | Reverse | Expand):
            if not _is_read_by_one(uses, graph.outputs, below):
                return False
            below, reader = graph.nodes[below].inputs[0], below
        bases.add(below)
        readers.append(reader)
    return len(readers) > 1 and len(bases) == 1 and sorted(readers) == sorted(uses[bases.pop()])


def _is_read_by_one(uses: Sequence[Sequence[NodeId]], outputs: Container[NodeId], node: NodeId) -> bool:
    return len(uses[node]) == 1 and node not in outputs


def _views_along(x: Tensor, axis: int) -> tuple[Tensor, list[Node]] | None:
    """The value below views that change one axis only, and these views, the first one first; None for others."""
    views: list[Node] = []
    while isinstance(x.node.op, Narrow | Reverse | Expand):
        below = x.graph.tensor(x.node.inputs[0])
        match x.node.op:
            case Narrow(axis=other):
                changed = {normalize_axis(other, x.ndim, "narrow")}
            case Reverse(axes=others):
                changed = {normalize_axis(a, x.ndim, "reverse") for a in others}
            case _:
                if below.ndim != x.ndim:
                    return None
                changed = {a for a in range(x.ndim) if below.shape[a] != x.shape[a]}
        if not changed <= {axis}:
            return None
        views.append(x.node)
        x = below
    return x, views[::-1]


def _viewed(x: Tensor, views: Sequence[Node], axis: int) -> Any:
    """The same views of another value, which may differ along other axes."""
    for view in views:
        if isinstance(view.op, Expand):
            x = expand(x, (*x.shape[:axis], view.shape.dims[axis], *x.shape[axis + 1 :]))
        else:
            x = view.op(x)
    return x
