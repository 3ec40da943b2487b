"""Values that are put together from parts, each with loops of its own: a concat, or the updates of a scatter.

A part is computed where it lies in the whole, so that it is never stored by itself.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
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
    """The points of parts with the same loops, and where each lies; the coordinates of the place of an only one, if it
    has some, are `points.needed`."""

    points: KernelPoints
    places: tuple[Lookup, ...]


# Values of which neighbours in memory are one each: more of them are more registers.
MOST_SIDE_BY_SIDE = 4


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


def stored_parts(graph: Graph, covered: Container[NodeId], root: Node) -> list[list[StoredPart]]:
    """The parts of a value by the loops that they have: those whose elements lie side by side one by one, as the parts
    of complex numbers do, are computed and stored together."""
    groups: list[list[StoredPart]] = []
    for part in _parts_in_order(graph, covered, root):
        if groups and _is_next_element(graph, groups[-1][-1], part):
            groups[-1].append(part)
        else:
            groups.append([part])
    # All elements of a run are there, or other parts would be stored between them.
    is_whole = all(len(group) == root.shape.dims[-1] <= MOST_SIDE_BY_SIDE for group in groups if len(group) > 1)
    return groups if is_whole else [[part] for group in groups for part in group]


def _is_next_element(graph: Graph, before: StoredPart, part: StoredPart) -> bool:
    """Whether a part has the same loops as the one before, each element behind one of those."""
    dims = graph.shape(part.node).dims
    return (
        isinstance(graph.nodes[part.root].op, Concat)
        and dims[-1] == 1
        and dims == graph.shape(before.node).dims
        and part.starts == (*before.starts[:-1], before.starts[-1] + 1)
    )


def _parts_in_order(graph: Graph, covered: Container[NodeId], root: Node) -> list[StoredPart]:
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


def part_points(graph: Graph, covered: Container[NodeId], parts: Sequence[StoredPart]) -> PartPoints:
    """The points of parts with the same loops; `Unmappable` if they have none."""

    def place(part: StoredPart, nest: Nest) -> Lookup:
        root, whole = graph.nodes[part.root], graph.shape(part.whole).dims
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
        return [(graph.nodes[p.root].inputs[1], c.maps) for p in parts for c in place(p, nest).coordinates]

    points = points_of(graph, covered, (), [p.node for p in parts], needed)
    return PartPoints(points, tuple(place(p, points.nest) for p in parts))
