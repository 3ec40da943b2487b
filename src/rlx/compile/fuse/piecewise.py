"""Values that are put together from parts, each with loops of its own: a concat, or the updates of a scatter.

A part is computed where it lies in the whole, so that it is never stored by itself.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from rlx.compile.fuse.index_maps import IndexMap, Unmappable, layout, reshape_map
from rlx.compile.fuse.loop_nest import KernelPoints, Lookup, Nest, lookup_of, points_of
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.shape import Dims, normalize_axis
from rlx.ops.shape.indexing import ScatterKind, ScatterNd
from rlx.ops.shape.movement import Concat, Reshape


class StoredPart(NamedTuple):
    """A node that is stored as a part of `root`: it is a part of `whole` from `starts` on, which is the root, or its
    updates before they are reshaped."""

    root: NodeId
    whole: NodeId
    node: NodeId
    starts: Dims


class PartPoints(NamedTuple):
    """The points of a part, and where it lies; the coordinates of the place, if it has some, are `points.needed`."""

    points: KernelPoints
    place: Lookup


def has_parts(node: Node) -> bool:
    """Whether a node can be put together from parts.

    A scatter can where updates replace what was there, in whole rows of more than one element: neighbours of an update
    lie side by side then, wherever it goes.
    """
    if isinstance(node.op, Concat):
        return True
    if not isinstance(node.op, ScatterNd) or node.op.kind is not ScatterKind.Set:
        return False
    length = node.shape.dims[-1]
    has_rows = node.shape.rank - 1 not in node.op.axes and node.shape.rank > node.op.batch_dims
    return has_rows and isinstance(length, int) and length > 1


def joined_below(graph: Graph, covered: Container[NodeId], root: Node) -> NodeId:
    """The value whose parts are those of `root`: itself, or for a scatter its updates, reshapes of them looked
    through."""
    if isinstance(root.op, Concat):
        return root.id
    node = graph.nodes[root.inputs[2]]
    while node.id in covered and isinstance(node.op, Reshape):
        node = graph.nodes[node.inputs[0]]
    # Where no parts are found there is no need to look through anything.
    return node.id if node.id in covered and isinstance(node.op, Concat) else root.inputs[2]


def stored_parts(graph: Graph, covered: Container[NodeId], root: Node) -> list[StoredPart]:
    """The parts of a value, and in place of a covered concat among them the parts of that one."""
    found: list[StoredPart] = []
    whole = joined_below(graph, covered, root)
    stack = [StoredPart(root.id, whole, whole, (0,) * graph.shape(whole).rank)]
    while stack:
        part = stack.pop()
        node = graph.nodes[part.node]
        if not isinstance(node.op, Concat) or part.node not in covered:
            found.append(part)
            continue
        axis = normalize_axis(node.op.axis, node.shape.rank, "concat")
        inner, start = [], part.starts[axis]
        for operand in node.inputs:
            starts = (*part.starts[:axis], start, *part.starts[axis + 1 :])
            inner.append(StoredPart(root.id, whole, operand, starts))
            start = start + graph.shape(operand).dims[axis]
        stack.extend(reversed(inner))
    return found


def part_points(graph: Graph, covered: Container[NodeId], part: StoredPart) -> PartPoints:
    """The points of one part; `Unmappable` if it has no loops."""
    root, whole = graph.nodes[part.root], graph.shape(part.whole).dims

    def place(nest: Nest) -> Lookup:
        maps = nest.full(graph.shape(part.node).dims)
        assert maps is not None
        moved: IndexMap = tuple(m.moved(start) for m, start in zip(maps, part.starts))
        if isinstance(root.op, Concat):
            return Lookup(root.id, layout(root.shape.dims, moved, len(nest.sizes)), ())
        updates = reshape_map(graph.shape(root.inputs[2]).dims, whole, moved, nest.sizes)
        found = lookup_of(graph, covered, root, updates, len(nest.sizes))
        last = len(nest.sizes) - 1
        if any(k == last for c in found.coordinates for m in c.maps for k, _ in m.terms):
            # Neighbours would go anywhere.
            raise Unmappable
        return found

    def needed(nest: Nest) -> list[tuple[NodeId, IndexMap]]:
        return [(root.inputs[1], c.maps) for c in place(nest).coordinates]

    points = points_of(graph, covered, (), [part.node], needed)
    return PartPoints(points, place(points.nest))
