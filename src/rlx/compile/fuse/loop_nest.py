"""What a kernel computes, element by element: every node it covers, at the index at which it is needed.

A kernel is a set of nodes with some of them stored. `points_of` puts a loop nest around it and follows the operands
down from what is stored: pointwise nodes pass their index on, views change it, a reduction adds the axes that it joins,
and what the kernel does not cover is read from memory. Kernels are grouped by asking whether this works, and made from
the result.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from rlx.compile.fuse.index_maps import (
    AxisMap,
    IndexMap,
    Layout,
    Unmappable,
    broadcast,
    exact_quotient,
    is_view,
    keeps_order,
    layout,
    refine,
    spread,
    through,
    without_ones,
)
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.shape import Dims, Size, normalize_axes, normalize_axis
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.indexing import GatherNd, ScatterNd

# A view may ask for an axis to be split; nests of real programs have a handful of axes.
MAX_SPLITS = 8

_GATHERS = (Gather, GatherNd)


class Nest(NamedTuple):
    """Loops around a kernel: the sizes of their axes, and which of them its reductions join."""

    sizes: Dims
    reduced: tuple[bool, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The axes that reductions leave."""
        return tuple(k for k, joined in enumerate(self.reduced) if not joined)

    def full(self, dims: Dims) -> IndexMap | None:
        """The map of a value with an element for every point of the nest."""
        return spread(dims, self.sizes)

    def per_row(self, dims: Dims) -> IndexMap | None:
        """The map of a value with an element for every row."""
        return spread(dims, tuple(self.sizes[k] for k in self.rows), self.rows)

    def split(self, axis: int, inner: Size) -> Nest:
        outer = exact_quotient(self.sizes[axis], inner)
        assert outer is not None
        sizes = (*self.sizes[:axis], outer, inner, *self.sizes[axis + 1 :])
        return Nest(sizes, (*self.reduced[: axis + 1], *self.reduced[axis:]))

    def refined(self, dims: Dims) -> Nest | None:
        """This nest with axes split so that a value of these dims has a map, over all axes or over the rows."""
        wanted = without_ones(dims)
        everywhere = refine(self.sizes, wanted)
        if everywhere is not None:
            return Nest(tuple(s for s, _, _ in everywhere), tuple(self.reduced[i] for _, i, _ in everywhere))
        rows = self.rows
        pieces = refine(tuple(self.sizes[k] for k in rows), wanted)
        if pieces is None or len(rows) == len(self.sizes):
            return None
        parts: dict[int, list[Size]] = {}
        for size, i, _ in pieces:
            parts.setdefault(rows[i], []).append(size)
        axes = [(s, joined) for k, joined in enumerate(self.reduced) for s in parts.get(k, [self.sizes[k]])]
        return Nest(tuple(s for s, _ in axes), tuple(joined for _, joined in axes))


class Point(NamedTuple):
    """A node at an index. `operands` are numbers of earlier points; a value that is read from memory has none.

    `dims` are those that the maps belong to: of the node, or of a reshape as which memory is read.
    """

    node: Node
    dims: Dims
    maps: IndexMap
    operands: tuple[int, ...] = ()
    is_read: bool = False
    lookup: Lookup | None = None

    def layout(self, nest: Nest) -> Layout:
        """Where a value lies that is read from memory, or would be stored in memory of its own."""
        return layout(self.dims, self.maps, len(nest.sizes))


class Coordinate(NamedTuple):
    """A position that is looked up: the map of its id, how far apart such positions are, and how many there are."""

    maps: IndexMap
    stride: Size
    size: Size


class Lookup(NamedTuple):
    """How a gather reads its table, or a scatter stores its updates: the buffer, its layout without what is looked up,
    and the coordinates that are."""

    memory: NodeId
    layout: Layout
    coordinates: tuple[Coordinate, ...]


class KernelPoints(NamedTuple):
    """A nest, the points that are computed or read in it, operands first, and which of them are the roots.

    `needed` are the points of values that are needed beside the roots.
    """

    nest: Nest
    points: list[Point]
    roots: tuple[int, ...]
    needed: tuple[int, ...] = ()


# Values at indices that a nest decides.
Needed = Callable[[Nest], Sequence[tuple[NodeId, IndexMap]]]


def points_of(
    graph: Graph,
    covered: Container[NodeId],
    reductions: Iterable[Node],
    roots: Sequence[NodeId],
    needed: Needed = lambda nest: (),
) -> KernelPoints:
    """The points of a kernel that computes the nodes `covered`, some of which are `reductions`, and stores `roots`.

    `Unmappable` if no nest serves.
    """
    nest = _first_nest(graph, list(reductions), roots)
    for _ in range(MAX_SPLITS):
        try:
            return _Tracer(graph, covered, nest).trace(roots, needed(nest))
        except Unmappable as failure:
            if failure.split is None:
                raise
            nest = nest.split(*failure.split)
    raise Unmappable


def memory_below(graph: Graph, covered: Container[NodeId], node: Node) -> Node | None:
    """The value in memory that a node is, or that it merely names by other dims; None if it has to be computed."""
    while node.id in covered:
        if not (is_view(graph, node) and keeps_order(node)):
            return None
        node = graph.nodes[node.inputs[0]]
    return node


def operand_layout(
    graph: Graph, operand: NodeId, transparent: Container[NodeId]
) -> tuple[NodeId, Size, tuple[Size, ...]]:
    """The buffer below an operand, where its first element is, and a stride for each axis of the operand."""
    dims = graph.shape(operand).dims
    sizes = without_ones(dims)
    maps = spread(dims, sizes)
    assert maps is not None
    node = graph.nodes[operand]
    while (memory := memory_below(graph, transparent, node)) is None:
        if not is_view(graph, node):
            raise Unmappable
        maps = through(graph, node, maps, sizes)
        node = graph.nodes[node.inputs[0]]
    found = layout(node.shape.dims, maps, len(sizes))
    strides = iter(found.strides)
    return memory.id, found.offset, tuple(0 if d == 1 else next(strides) for d in dims)


def is_reduction(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, Reduce) and not is_view(graph, node)


def _first_nest(graph: Graph, reductions: Sequence[Node], roots: Sequence[NodeId]) -> Nest:
    """The axes of what is reduced, or else of the first root, as fine as all reductions and roots need them."""
    shapes = [graph.shape(r.inputs[0]).dims for r in reductions] + [graph.shape(i).dims for i in roots]
    nest = Nest(without_ones(shapes[0]), tuple(False for d in shapes[0] if d != 1))
    if reductions:
        nest = nest._replace(reduced=_joined_axes(graph, reductions[0]))
    for dims in shapes[1:]:
        finer = nest.refined(dims)
        if finer is None:
            raise Unmappable
        nest = finer
    return nest


def _joined_axes(graph: Graph, node: Node) -> tuple[bool, ...]:
    """For every axis of the operand that is not 1, whether a reduction joins it."""
    assert isinstance(node.op, Reduce)
    dims = graph.shape(node.inputs[0]).dims
    axes = normalize_axes(node.op.axes, len(dims), node.op.mnemonic)
    return tuple(i in axes for i, d in enumerate(dims) if d != 1)


class _Tracer:
    """One walk from the roots down, with operands before what uses them."""

    def __init__(self, graph: Graph, covered: Container[NodeId], nest: Nest) -> None:
        self.graph, self.covered, self.nest = graph, covered, nest
        self.points: list[Point] = []
        self.numbers: dict[tuple[NodeId, IndexMap], int] = {}

    def trace(self, roots: Sequence[NodeId], needed: Sequence[tuple[NodeId, IndexMap]]) -> KernelPoints:
        starts = [(i, self.root_map(i)) for i in roots]
        # Depth first on an explicit stack: chains can be longer than Python's own.
        stack = [(start, False) for start in reversed([*starts, *needed])]
        while stack:
            (node_id, maps), is_ready = stack.pop()
            if (node_id, maps) in self.numbers:
                continue
            wanted = self.wanted(node_id, maps)
            if is_ready or not wanted:
                self.number(node_id, maps, wanted)
                continue
            stack.append(((node_id, maps), True))
            stack.extend((need, False) for need in reversed(wanted))
        numbers = [tuple(self.numbers[start] for start in found) for found in (starts, needed)]
        return KernelPoints(self.nest, self.points, *numbers)

    def root_map(self, root: NodeId) -> IndexMap:
        dims = self.graph.shape(root).dims
        full = self.nest.full(dims)
        maps = self.nest.per_row(dims) if full is None else full
        if maps is None:
            raise Unmappable
        return maps

    def number(self, node_id: NodeId, maps: IndexMap, wanted: Sequence[tuple[NodeId, IndexMap]]) -> None:
        node = self.graph.nodes[node_id]
        operands = tuple(self.numbers[need] for need in wanted)
        if operands and is_view(self.graph, node):
            # A view is its operand at another index.
            self.numbers[node_id, maps] = operands[0]
            return
        self.numbers[node_id, maps] = len(self.points)
        memory = memory_below(self.graph, self.covered, node)
        is_read = memory is not None
        lookup = self.lookup(node, maps) if not is_read and isinstance(node.op, _GATHERS) else None
        self.points.append(Point(memory or node, node.shape.dims, maps, operands, is_read, lookup))

    def wanted(self, node_id: NodeId, maps: IndexMap) -> list[tuple[NodeId, IndexMap]]:
        """The operands of a node at the indices at which it needs them."""
        node = self.graph.nodes[node_id]
        if memory_below(self.graph, self.covered, node) is not None:
            return []
        if is_view(self.graph, node):
            return [(node.inputs[0], self.below(node, maps))]
        if isinstance(node.op, _GATHERS):
            return [(node.inputs[1], c.maps) for c in self.lookup(node, maps).coordinates]
        if isinstance(node.op, Reduce):
            return [(node.inputs[0], self.joined(node, maps))]
        return [(i, broadcast(maps, self.graph.shape(i).dims)) for i in node.inputs]

    def lookup(self, node: Node, maps: IndexMap) -> Lookup:
        return lookup_of(self.graph, self.covered, node, maps, len(self.nest.sizes))

    def below(self, view: Node, maps: IndexMap) -> IndexMap:
        try:
            return through(self.graph, view, maps, self.nest.sizes)
        except Unmappable as failure:
            raise Unmappable(failure.split, view.id) from None

    def joined(self, node: Node, maps: IndexMap) -> IndexMap:
        """The index of what a reduction joins: all axes of the nest, and it is needed at that of the rows only."""
        whole = self.nest.full(self.graph.shape(node.inputs[0]).dims)
        if whole is None or maps != self.nest.per_row(node.shape.dims):
            raise Unmappable
        assert isinstance(node.op, Reduce)
        axes = normalize_axes(node.op.axes, len(whole), node.op.mnemonic)
        joined = {k for axis in axes for k, _ in whole[axis].terms}
        if joined != {k for k, is_joined in enumerate(self.nest.reduced) if is_joined}:
            raise Unmappable
        return whole


def lookup_of(graph: Graph, covered: Container[NodeId], node: Node, maps: IndexMap, count: int) -> Lookup:
    """How a gather at an index reads its table, or where a scatter puts its update, in a nest with `count` axes.

    The table of a gather may be a view with strides; the result of a scatter is contiguous.
    """
    table, ids = (graph.shape(i).dims for i in node.inputs[:2])
    if isinstance(node.op, Gather):
        axis = normalize_axis(node.op.axis, len(table), "gather")
        axes: tuple[int, ...] = (axis,)
        rest = iter((*maps[:axis], *maps[axis + len(ids) :]))
        found = [maps[axis : axis + len(ids)]]
    else:
        assert isinstance(node.op, GatherNd | ScatterNd)
        axes, lead = node.op.axes, node.op.batch_dims
        points = len(ids) - 1
        rest = iter((*maps[:lead], *maps[points:]))
        found = [(*maps[:points], AxisMap(c)) for c in range(len(axes))]
    stored = isinstance(node.op, ScatterNd)
    memory, offset, steps = operand_layout(graph, node.id if stored else node.inputs[0], () if stored else covered)
    place = AxisMap(offset)
    for axis, step in enumerate(steps):
        if axis not in axes:
            place = place.plus(next(rest).scaled(step))
    strides: list[Size] = [0] * count
    for k, stride in place.terms:
        strides[k] = stride
    coordinates = tuple(Coordinate(m, steps[a], table[a]) for m, a in zip(found, axes))
    return Lookup(memory, Layout(place.offset, tuple(strides)), coordinates)
