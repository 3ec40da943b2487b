"""Points of a kernel to expressions and accesses: what is computed at an index, and where it lies in memory.

Axes that every access runs through without a gap are one axis; sizes are compared as symbols, so that a contiguous
`[B, S, 64]` is one loop whatever `B` and `S` are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.compile.fuse.index_maps import AxisMap, Layout, layout
from rlx.compile.fuse.loop_nest import KernelPoints, Lookup, Point
from rlx.compile.fuse.node_roles import is_literal
from rlx.compile.fuse.piecewise import PartPoints
from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.shape import Size, normalize_axis
from rlx.kernels.ir.extents import Extent
from rlx.kernels.specs.expr import Expr, apply, can_lower, gather, index, literal, operand, passed_number, reduce, size
from rlx.kernels.specs.map_parts import MapPart, Move
from rlx.kernels.specs.scopes import Access
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.pointwise.bits import Bitcast, BitUnary, Predicate
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation, StopGradient
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.creation import DimValue, Iota
from rlx.ops.shape.indexing import GatherNd, IndexMode, ScatterNd

_POINTWISE = (Activation, Binary, Compare, Where, Cast, BitUnary, Predicate, Bitcast, StopGradient)


def is_pointwise(graph: Graph, node: Node) -> bool:
    """Whether a node can be computed inside a map, a row or an epilogue."""
    if not isinstance(node.op, _POINTWISE):
        return False
    dtypes = [graph.shape(i).dtype for i in node.inputs]
    if isinstance(node.op, Where):
        # A number as condition means that it is not 0.
        dtypes[0] = DType.BOOL if can_lower("ne", dtypes[0], dtypes[0]) else dtypes[0]
    if isinstance(node.op, Bitcast) and (
        dtypes[0].size_bytes != node.op.to.size_bytes or DType.BOOL in (dtypes[0], node.op.to)
    ):
        return False
    return can_lower(node.op.mnemonic, *dtypes) and can_lower("cast", node.shape.dtype)


class Loops(NamedTuple):
    """One loop nest of a kernel: `rows`, then `length`, which its reductions join."""

    rows: tuple[Extent, ...]
    length: tuple[Extent, ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    exprs: tuple[Expr, ...]


class Naming(NamedTuple):
    """How a kernel calls its buffers, its sizes, and the numbers that it is passed; None for those in its code."""

    buffer: Callable[[NodeId], str]
    extent: Callable[[Size], Extent]
    number: Callable[[Node], str | None]

    def literal(self, node: Node) -> Expr:
        """A constant of one element."""
        name = self.number(node)
        return literal_of(node) if name is None else passed_number(name, node.shape.dtype)


def loops_of(graph: Graph, points: KernelPoints, stored: Sequence[tuple[NodeId, Layout]], naming: Naming) -> Loops:
    """The expressions of a nest, whose roots are stored as `stored` says."""
    return _LoopMaker(graph, points, stored, naming).make()


def part_of(graph: Graph, part: PartPoints, naming: Naming) -> MapPart:
    """The map of one part of a value that is put together from parts, or of several with the same loops."""
    maker = _LoopMaker(graph, part.points, [(p.memory, p.layout) for p in part.places], naming)
    loops, move = maker.make(), None
    root = graph.nodes[part.places[0].memory]
    if isinstance(root.op, ScatterNd):
        (place,) = part.places
        ids = [maker.values[i] for i in part.points.needed]
        move = Move(*maker.position_of(place, ids, root.op.mode is not IndexMode.Clip), is_unique=root.op.unique)
    return MapPart(loops.rows, loops.inputs, loops.outputs, loops.exprs, move)


def root_layouts(graph: Graph, points: KernelPoints, roots: Sequence[NodeId]) -> list[tuple[NodeId, Layout]]:
    """Roots in memory of their own, contiguous."""
    count = len(points.nest.sizes)
    maps = [points.nest.full(graph.shape(r).dims) or points.nest.per_row(graph.shape(r).dims) for r in roots]
    assert all(m is not None for m in maps)
    return [(r, layout(graph.shape(r).dims, m or (), count)) for r, m in zip(roots, maps)]


class _LoopMaker:
    def __init__(
        self, graph: Graph, points: KernelPoints, stored: Sequence[tuple[NodeId, Layout]], naming: Naming
    ) -> None:
        self.graph, self.points, self.stored, self.naming = graph, points, stored, naming
        self.nest = points.nest
        # Every way in which a buffer is read is an operand.
        self.reads: dict[tuple[NodeId, Layout], int] = {}
        for point in points.points:
            if (place := self.read_place(point)) is not None:
                self.reads.setdefault(place, len(self.reads))
        self.values: list[Expr] = []
        self.axes = self.joined_axes()
        self.new_axis = {old: new for new, group in enumerate(self.axes) for old in group}

    def read_place(self, point: Point) -> tuple[NodeId, Layout] | None:
        """The buffer that a point loads from, and how."""
        count = len(self.nest.sizes)
        if point.is_read:
            if is_literal(point.node):
                return None
            if point.node.shape.element_count == 0:
                # It changes with every index, so that no loop but the innermost, which never runs, loads it.
                return point.node.id, Layout(0, (1,) * count)
            return point.node.id, point.layout(self.nest)
        return None if point.lookup is None else point.lookup[:2]

    def joined_axes(self) -> list[list[int]]:
        """The axes of the nest, those of rows first, in runs that all accesses go through without a gap."""
        single = {k for p in self.points.points if not p.is_read for k in _counted_axes(p)}
        layouts = [place for _, place in (*self.reads, *self.stored)]
        groups: list[list[int]] = []
        for is_joined in (False, True):
            start = len(groups)
            for k in (k for k, joined in enumerate(self.nest.reduced) if joined is is_joined):
                before = groups[-1][-1] if len(groups) > start else None
                if before is not None and not single & {before, k} and self.is_run(before, k, layouts):
                    groups[-1].append(k)
                else:
                    groups.append([k])
        return groups

    def is_run(self, outer: int, inner: int, layouts: Sequence[Layout]) -> bool:
        length = self.nest.sizes[inner]
        return all(place.strides[outer] == place.strides[inner] * length for place in layouts)

    def make(self) -> Loops:
        sizes = [self.naming.extent(product(self.nest.sizes[k] for k in group)) for group in self.axes]
        rows = sum(not self.nest.reduced[group[0]] for group in self.axes)
        inputs = tuple(self.access(node, place) for node, place in self.reads)
        outputs = tuple(self.access(node, place) for node, place in self.stored)
        for point in self.points.points:
            self.values.append(self.value(point, [self.values[i] for i in point.operands]))
        exprs = tuple(self.values[r] for r in self.points.roots)
        return Loops(tuple(sizes[:rows]), tuple(sizes[rows:]), inputs, outputs, exprs)

    def access(self, node: NodeId, place: Layout) -> Access:
        strides = tuple(self.naming.extent(place.strides[group[-1]]) for group in self.axes)
        dtype = self.graph.shape(node).dtype.real
        return Access(self.naming.buffer(node), dtype, strides, self.naming.extent(place.offset))

    def value(self, point: Point, args: Sequence[Expr]) -> Expr:
        node = point.node
        place = self.read_place(point)
        if point.is_read:
            return self.naming.literal(node) if place is None else operand(self.reads[place], node.shape.dtype.real)
        match node.op:
            case Iota(dtype=dtype, axis=axis):
                return self.position(point.maps[normalize_axis(axis, node.shape.rank, "iota")], dtype)
            case DimValue(size=length, dtype=dtype):
                return apply("cast", self.number(length), to=dtype)
            case Gather() | GatherNd():
                assert place is not None
                return self.looked_up(point, self.reads[place], args)
            case Reduce(kind=kind):
                return reduce(kind.value, args[0])
        return pointwise_value(node, args)

    def number(self, length: Size, dtype: DType = DType.I64) -> Expr:
        """A size as a value; an i32 wraps."""
        if isinstance(length, int):
            return literal(length if dtype is DType.I64 else _wrapped(length), dtype)
        symbolic = size(self.naming.extent(length))
        return symbolic if dtype is DType.I64 else apply("cast", symbolic, to=dtype)

    def position(self, place: AxisMap, dtype: DType) -> Expr:
        """A position along an axis; i32 is counted in i32, so that vectors have all their lanes."""
        counted = DType.I32 if dtype is DType.I32 else DType.I64
        terms = [] if place.offset == 0 else [self.number(place.offset, counted)]
        for k, stride in place.terms:
            along = index(self.new_axis[k], counted)
            terms.append(along if stride == 1 else apply("mul", along, self.number(stride, counted)))
        total = terms[0] if terms else literal(0, counted)
        for term in terms[1:]:
            total = apply("add", total, term)
        return total if dtype is counted else apply("cast", total, to=dtype)

    def looked_up(self, point: Point, number: int, ids: Sequence[Expr]) -> Expr:
        """A gather; where there is nothing to read the value is 0."""
        node = point.node
        assert isinstance(node.op, Gather | GatherNd) and point.lookup is not None
        offset, exists = self.position_of(point.lookup, ids, node.op.mode is IndexMode.Fill)
        return gather(number, node.shape.dtype, offset, exists)

    def position_of(self, lookup: Lookup, ids: Sequence[Expr], must_exist: bool) -> tuple[Expr, Expr | None]:
        """How far from where its layout says an element is, and whether it is there at all; None if it surely is.

        Ids from -n to n-1 are positions; others are the nearest position, or do not exist.
        """
        zero = literal(0, DType.I64)
        offset, exists = zero, []
        for coordinate, given in zip(lookup.coordinates, ids):
            wide, count = apply("cast", given, to=DType.I64), self.number(coordinate.size)
            position = apply("where", apply("lt", wide, zero), apply("add", wide, count), wide)
            if must_exist:
                exists += [apply("ge", position, zero), apply("lt", position, count)]
            elif not (isinstance(coordinate.size, int) and coordinate.size > 0):
                exists.append(apply("lt", zero, count))
            last = apply("sub", count, literal(1, DType.I64))
            inside = apply("max", apply("min", position, last), zero)
            offset = apply("add", offset, apply("mul", inside, self.number(coordinate.stride)))
        condition = None
        for holds in exists:
            condition = holds if condition is None else apply("and", condition, holds)
        return offset, condition


def _wrapped(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _counted_axes(point: Point) -> set[int]:
    """The axes whose index a point computes with."""
    if not isinstance(point.node.op, Iota):
        return set()
    place = point.maps[normalize_axis(point.node.op.axis, point.node.shape.rank, "iota")]
    return {k for k, _ in place.terms}


def pointwise_value(node: Node, args: Sequence[Expr]) -> Expr:
    """A pointwise node on the values of its operands."""
    if isinstance(node.op, Where) and args[0].dtype is not DType.BOOL:
        args = [apply("ne", args[0], literal(0, args[0].dtype)), *args[1:]]
    to = node.op.to if isinstance(node.op, Cast | Bitcast) else None
    return apply(node.op.mnemonic, *args, to=to)


def literal_of(node: Node) -> Expr:
    assert isinstance(node.op, Constant)
    item = node.op.value.array.reshape(()).item()
    return literal(item if isinstance(item, int | float) else float(item), node.shape.dtype)
