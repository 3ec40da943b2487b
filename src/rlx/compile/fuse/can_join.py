"""Whether one kernel serves a set of nodes, and if not, why.

The answer depends on the ops, their shapes and how they are wired, not on where in a graph they stand: it is found once
for every such form, so that the layers of a model cost little after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from rlx.compile.fuse.barriers import FusionBarrier
from rlx.compile.fuse.index_maps import Unmappable
from rlx.compile.fuse.look_through import Covered, KernelReads
from rlx.compile.fuse.loop_nest import KernelPoints, Nest, Point, is_reduction, points_of
from rlx.compile.fuse.matmul_nest import epilogue_form, product_form
from rlx.compile.fuse.node_roles import CHEAP
from rlx.compile.fuse.piecewise import part_points, stored_parts
from rlx.compile.fuse.signature import FormKeys
from rlx.ir.dims import product
from rlx.ir.graph import Graph, NodeId
from rlx.ir.kernel_kind import MAP, PARTS
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.creation import DimValue, Iota
from rlx.ops.shape.indexing import GatherNd

# Larger kernels spill registers and compile slowly, and save no more memory traffic.
MAX_NODES = 128
MAX_OPERANDS = 32
# A reduction of everything runs on one thread; below this many elements nobody notices.
SMALL_ROW = 1 << 16

Answer = TypeVar("Answer")

# Parts of a product that meet in its epilogue: their sums are kept side by side.
MAX_PARTS = 4


class Loops(NamedTuple):
    """The loops of a kernel; `stores_rows` if something is stored for every element of the rows that it joins."""

    nest: Nest
    stores_rows: bool


class KernelFits:
    """Questions about sets of nodes as kernels. `head` is the product or the joined value of the set, if it has one."""

    def __init__(self, graph: Graph, reads: KernelReads) -> None:
        self.graph, self.reads = graph, reads
        self.keys = FormKeys(graph)
        self.known: dict[Any, Any] = {}

    def once(self, question: Callable[[Sequence[NodeId], Sequence[NodeId]], Answer], nodes: Sequence[NodeId]) -> Answer:
        """The answer for nodes of this form and what has to be stored of them."""
        roots = self.reads.roots(nodes)
        # Nodes of the kernel's own and those that it computes along the way are told apart.
        form = self.keys.form(self.reads.closure(nodes), (nodes[0], *roots), nodes)
        key = (question.__name__, form.key)
        if key not in self.known:
            self.known[key] = question(nodes, roots)
        found: Answer = self.known[key]
        return found

    def points(self, kind: str, nodes: Sequence[NodeId], roots: Sequence[NodeId] | None = None) -> list[KernelPoints]:
        """The points of a kernel of these nodes, for each of its parts."""
        covered = Covered(nodes, self.reads.transparent)
        reductions = [n for i in sorted(nodes) if is_reduction(self.graph, n := self.graph.nodes[i])]
        if kind == PARTS:
            parts = stored_parts(self.graph, covered, self.graph.nodes[nodes[0]])
            return [part_points(self.graph, covered, part).points for part in parts]
        return [points_of(self.graph, covered, reductions, roots or self.reads.roots(nodes))]

    def has_reductions(self, nodes: Iterable[NodeId]) -> bool:
        return any(is_reduction(self.graph, self.graph.nodes[n]) for n in nodes)

    def loops(self, nodes: Sequence[NodeId]) -> Loops:
        """The loops of a map or row that is known to have some."""
        return self.once(self._loops, nodes)

    def _loops(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> Loops:
        (points,) = self.points(MAP, nodes, roots)
        joined = {k for k, is_joined in enumerate(points.nest.reduced) if is_joined}
        stored = (points.points[r].maps for r in points.roots)
        return Loops(points.nest, any(k in joined for maps in stored for m in maps for k, _ in m.terms))

    def has_loops(self, kind: str, nodes: Sequence[NodeId]) -> bool:
        """Whether there are loops for a map, a row or a joined value."""
        return self.once(self._part_has_loops if kind == PARTS else self._map_has_loops, nodes)

    def _map_has_loops(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> bool:
        try:
            self.points(MAP, nodes, roots)
        except Unmappable:
            return False
        return True

    def _part_has_loops(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> bool:
        try:
            self.points(PARTS, nodes)
        except Unmappable:
            return False
        return True

    def works(self, kind: str, nodes: Sequence[NodeId]) -> bool:
        """Whether a map, a row or a joined value has loops, and computes nothing twice in them."""
        return self.once(self._part_works if kind == PARTS else self._map_works, nodes)

    def _map_works(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> bool:
        try:
            return self.repeats_nothing(self.points(MAP, nodes, roots), nodes)
        except Unmappable:
            return False

    def _part_works(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> bool:
        try:
            return self.repeats_nothing(self.points(PARTS, nodes), nodes)
        except Unmappable:
            return False

    def map_barrier(self, nodes: Sequence[NodeId]) -> FusionBarrier | None:
        """Whether one loop nest serves maps and rows of all these nodes, and each is computed once in it."""
        return self.once(self._map_barrier, nodes)

    def _map_barrier(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> FusionBarrier | None:
        try:
            (points,) = self.points(MAP, nodes, roots)
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        if not self.repeats_nothing([points], nodes):
            return FusionBarrier.DifferentIndexSpace
        if self.touches_too_much([points], roots, MAX_OPERANDS):
            return FusionBarrier.TooLarge
        return FusionBarrier.OneRow if is_one_row(points) else None

    def epilogue_barrier(self, nodes: Sequence[NodeId]) -> FusionBarrier | None:
        """An epilogue is pointwise on the product, reads the rest by row and column, and stores one value."""
        return self.once(self._epilogue_barrier, nodes)

    def _epilogue_barrier(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> FusionBarrier | None:
        head = self.graph.nodes[nodes[0]]
        form = product_form(self.graph, head, self.reads.transparent, self.reads.generator)
        assert form is not None
        inside = {*nodes} - {head.id}
        try:
            points = points_of(self.graph, Covered(inside, self.reads.transparent), (), roots)
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        # An epilogue knows neither where it is nor how large anything is.
        is_placed = any(isinstance(p.node.op, Iota | DimValue | Gather | GatherNd) for p in points.points)
        if is_placed or not self.repeats_nothing([points], inside):
            return FusionBarrier.ProductResult
        found = epilogue_form(form, head, points, self.reads.generator)
        fits = found is not None and 1 <= len(found.parts) <= MAX_PARTS
        return None if fits else FusionBarrier.DifferentIndexSpace

    def part_barrier(self, nodes: Sequence[NodeId]) -> FusionBarrier | None:
        """Whether nodes can be computed as parts of a joined value, which comes first."""
        return self.once(self._part_barrier, nodes)

    def _part_barrier(self, nodes: Sequence[NodeId], roots: Sequence[NodeId]) -> FusionBarrier | None:
        try:
            parts = self.points(PARTS, nodes)
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        if self.touches_too_much(parts, roots):
            return FusionBarrier.TooLarge
        return None if self.repeats_nothing(parts, nodes) else FusionBarrier.DifferentIndexSpace

    def touches_too_much(
        self, parts: Iterable[KernelPoints], results: Sequence[NodeId], most_read: int | None = None
    ) -> bool:
        """Whether there are more values in memory than one kernel reads, or than it reads and writes where it binds
        each of them by itself."""
        reads, most = (
            len({p.node.id for part in parts for p in part.points if p.is_read}),
            self.reads.generator.most_operands,
        )
        return (most_read is not None and reads > most_read) or (most > 0 and reads + len(results) > most)

    def misfit(self, nodes: Iterable[NodeId], failure: Unmappable) -> FusionBarrier:
        if failure.view is not None:
            return FusionBarrier.ViewNeedsCopy
        several = sum(is_reduction(self.graph, self.graph.nodes[n]) for n in nodes) > 1
        return FusionBarrier.ReductionOverOtherAxis if several else FusionBarrier.DifferentIndexSpace

    def repeats_nothing(self, parts: Iterable[KernelPoints], nodes: Iterable[NodeId]) -> bool:
        """Whether each of the nodes is computed at one index only, and not again and again at the same one."""
        inside = set(nodes)
        found = [(p, part.nest) for part in parts for p in part.points if not p.is_read and p.node.id in inside]
        if len(found) != len({p.node.id for p, _ in found}):
            return False
        return all(p.node.op.mnemonic in CHEAP or not is_repeated(p, nest) for p, nest in found)


def is_repeated(point: Point, nest: Nest) -> bool:
    """Whether a value is computed again for other rows, although it is the same there.

    Scalars, and what is the same for a whole row (in a map, along its last axes), are computed once per row.
    """
    used = {k for m in point.maps for k, _ in m.terms}
    if not used:
        return False
    missing = (k for k, joined in enumerate(nest.reduced) if k not in used and not joined)
    return any(any(nest.reduced) or k < max(used) for k in missing)


def is_one_row(points: KernelPoints) -> bool:
    """Whether a kernel would write something large by one thread, because all of it is one row."""
    nest = points.nest
    if nest.rows or not any(nest.reduced):
        return False
    count = product(nest.sizes)
    stores_all = any(m.terms for r in points.roots for m in points.points[r].maps)
    return stores_all and not (isinstance(count, int) and count <= SMALL_ROW)
