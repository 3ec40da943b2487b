"""Cut a graph into kernels: products with their epilogues, maps, rows; what has no kernel is called on the host.

Every op starts as a kernel of its own. Then kernels that follow each other are joined wherever one loop nest serves
both, which `points_of` decides, until none can be joined any more; then those that read the same values. Views are no
kernels: others read through them (`kernel_reads`). Every value that still goes through memory has one reason, from
a closed list.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from rlx.compile.fusion_barriers import FusionBarrier, UnfusedEdge
from rlx.compile.generators import Generator
from rlx.compile.index_maps import Unmappable
from rlx.compile.kernel_points import KernelPoints, Nest, Point, is_reduction, joined_parts, points_of
from rlx.compile.kernel_reads import Covered, KernelReads
from rlx.compile.kernel_roles import CHEAP, is_literal, is_memory, is_table
from rlx.compile.products import epilogue_layouts, product_form
from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Project
from rlx.ir.lir import LirKernel
from rlx.ops.creation import Iota
from rlx.ops.indexing import Gather, GatherNd
from rlx.ops.movement import Concat

# Larger kernels spill registers and compile slowly, and save no more memory traffic.
MAX_NODES = 128
MAX_OPERANDS = 32
# A reduction of everything runs on one thread; below this many elements nobody notices.
SMALL_ROW = 1 << 16
# The kinds of groups that take in others.
JOINED = frozenset({"map", "concat", "matmul"})
# So many cheap ops are repeated by their readers rather than stored.
MAX_CHEAP = 4


class Grouping(NamedTuple):
    """The kernels of a graph in an order in which they can run, and why they are not fewer."""

    kernels: list[LirKernel]
    barriers: list[UnfusedEdge]


def group_kernels(graph: Graph, generator: Generator) -> list[LirKernel]:
    """The kernels of a graph in an order in which they can run."""
    return group(graph, generator).kernels


def group(graph: Graph, generator: Generator) -> Grouping:
    """The kernels of a graph, and the reason of every value that goes through memory between them."""
    grouping = _Grouping(graph, generator)
    grouping.join()
    return Grouping(grouping.kernels(), grouping.barriers())


class _Group:
    """Nodes that one kernel computes; a product or a joined value comes first. `kind` is that of `kernel_kind`."""

    def __init__(self, kind: str, node: Node) -> None:
        self.kind = kind
        self.nodes = [node.id]

    @property
    def head(self) -> NodeId:
        return self.nodes[0]


class _Grouping:
    def __init__(self, graph: Graph, generator: Generator) -> None:
        self.graph = graph
        self.reads = KernelReads(graph, generator)
        self.group_of: dict[NodeId, _Group] = {}
        for node in graph.nodes:
            if node.id not in self.reads.transparent and not is_memory(node):
                self.group_of[node.id] = self.first_group(node)
        self.copy_unmappable_views()
        # Pairs that cannot be joined, for as long as both stay as they are.
        self.refused: dict[tuple[_Group, _Group, int, int], FusionBarrier] = {}

    def first_group(self, node: Node) -> _Group:
        """A group for one node; the results of an op with several belong to its kernel."""
        if isinstance(node.op, Project) and self.group_of[node.inputs[0]].kind != "call":
            group = self.group_of[node.inputs[0]]
            group.nodes.append(node.id)
            return group
        return _Group(self.reads.kind(node), node)

    def copy_unmappable_views(self) -> None:
        """Views that are no index map even for the kernel of one op are stored: a reshape names its stored operand."""
        pending = [g for g in self.group_of.values() if g.kind in ("map", "concat")]
        while pending:
            group = pending.pop()
            try:
                self.points(group.kind, group.nodes)
            except Unmappable as failure:
                assert failure.view is not None, f"{self.graph.nodes[group.head]!r} has no loop nest of its own"
                if failure.view != group.head:
                    pending.append(group)
                pending.extend(self.stored(self.graph.nodes[failure.view]))

    def stored(self, view: Node) -> Iterator[_Group]:
        """Make a view a kernel; the new kernels that need a look at their own operands."""
        self.reads.transparent.discard(view.id)
        # What is a kernel already, the result of a reshape, names its operand instead of copying it.
        kind = "view" if view.id in self.group_of else self.reads.kind(view)
        group = self.group_of[view.id] = _Group(kind, view)
        below = self.graph.nodes[view.inputs[0]]
        if kind == "view" and below.id in self.reads.transparent:
            yield from self.stored(below)
        if kind == "map":
            yield group

    def points(self, kind: str, nodes: list[NodeId]) -> list[KernelPoints]:
        """The points of a kernel of these nodes, for each of its parts."""
        covered = Covered(nodes, self.reads.transparent)
        reductions = [n for i in sorted(nodes) if is_reduction(self.graph, n := self.graph.nodes[i])]
        if kind == "concat":
            parts = joined_parts(self.graph, covered, self.graph.nodes[nodes[0]])
            return [points_of(self.graph, covered, reductions, [part.node]) for part in parts]
        return [points_of(self.graph, covered, reductions, self.reads.roots(nodes))]

    def producers(self, group: _Group) -> list[_Group]:
        found = (self.group_of.get(b) for n in group.nodes for b in self.reads.bases(n))
        return [g for g in dict.fromkeys(found) if g is not None and g is not group]

    def has_reductions(self, nodes: Iterable[NodeId]) -> bool:
        return any(is_reduction(self.graph, self.graph.nodes[n]) for n in nodes)

    # Joining.

    def join(self) -> None:
        """Join along values until nothing changes, first with every op in a kernel, then with cheap ones in all."""
        self.join_followers()
        if self.dissolve_cheap_groups():
            self.join_followers()
        self.join_neighbours()

    def join_followers(self) -> None:
        changed = True
        while changed:
            changed = False
            for node in self.graph.nodes:
                if node.id not in self.group_of:
                    continue
                producers = dict.fromkeys(self.group_of.get(b) for b in self.reads.bases(node.id))
                for producer in producers:
                    reader = self.group_of[node.id]
                    if producer is None or producer is reader or self.barrier(producer, reader) is not None:
                        continue
                    self.unite(producer, reader)
                    changed = True

    def join_neighbours(self) -> None:
        """Join maps and rows that read the same value and do not depend on each other: it is then loaded once."""
        for node in self.graph.nodes:
            groups = list(dict.fromkeys(self.group_of[u] for u in self.reads.readers(node.id) if u in self.group_of))
            for position, first in enumerate(groups):
                for second in groups[position + 1 :]:
                    one, other = (self.group_of[g.head] for g in (first, second))
                    if one is not other and self.are_alike(one, other) and self.are_independent(one, other):
                        self.unite(one, other)

    def are_alike(self, one: _Group, other: _Group) -> bool:
        """Whether two kernels have the same loops, around reductions of both or of none."""
        if one.kind != "map" or other.kind != "map" or len(one.nodes) + len(other.nodes) > MAX_NODES:
            return False
        first, second = (self.points("map", g.nodes)[0].nest for g in (one, other))
        return first == second

    def are_independent(self, one: _Group, other: _Group) -> bool:
        """Whether neither needs the other, so that one kernel can be both."""
        if self.reaches(one, other) or self.reaches(other, one):
            return False
        return self.fit([*one.nodes, *other.nodes]) is None

    def unite(self, one: _Group, other: _Group) -> None:
        """The nodes of both in one group; a product or a joined value stays in front."""
        into, rest = (other, one) if other.kind in ("concat", "matmul") else (one, other)
        into.nodes += rest.nodes
        for node in rest.nodes:
            self.group_of[node] = into

    def dissolve_cheap_groups(self) -> bool:
        """Let readers compute cheap values themselves; whether there were any."""
        cheap = [g for g in dict.fromkeys(self.group_of.values()) if self.is_cheap(g)]
        return sum([self.dissolve(group) for group in cheap]) > 0

    def is_cheap(self, group: _Group) -> bool:
        """Whether a kernel is a few cheap ops on one value, and all that read it are maps and rows."""
        nodes = [self.graph.nodes[n] for n in group.nodes]
        if group.kind != "map" or len(nodes) > MAX_CHEAP or any(n.op.mnemonic not in CHEAP for n in nodes):
            return False
        bases = {b for n in nodes for b in self.reads.bases(n.id)} - {*group.nodes}
        if sum(not is_literal(self.graph.nodes[b]) for b in bases) > 1:
            return False
        if any(n.id in self.reads.outputs for n in nodes):
            return False
        readers = (self.group_of[u] for n in nodes for u in self.reads.readers(n.id))
        if any(reader.kind not in ("map", "concat") for reader in readers):
            return False
        return not any(is_table(self.graph.nodes[u], n.id) for n in nodes for u in self.reads.uses[n.id])

    def dissolve(self, group: _Group) -> bool:
        """Let readers compute a group themselves, if they all can."""
        readers = dict.fromkeys(self.group_of[u] for n in group.nodes for u in self.reads.readers(n))
        for node in group.nodes:
            del self.group_of[node]
            self.reads.transparent.add(node)
        if all(self.still_works(reader) for reader in readers if reader is not group):
            return True
        for node in group.nodes:
            self.group_of[node] = group
            self.reads.transparent.discard(node)
        return False

    def still_works(self, group: _Group) -> bool:
        try:
            return self.repeats_nothing(self.points(group.kind, group.nodes), group.nodes)
        except Unmappable:
            return False

    # Barriers.

    def barrier(self, producer: _Group, reader: _Group) -> FusionBarrier | None:
        """Why two groups cannot be one kernel; None if they can."""
        key = (producer, reader, len(producer.nodes), len(reader.nodes))
        if key not in self.refused:
            found = self.find_barrier(producer, reader)
            if found is None:
                return None
            self.refused[key] = found
        return self.refused[key]

    def find_barrier(self, producer: _Group, reader: _Group) -> FusionBarrier | None:
        if "call" in (producer.kind, reader.kind):
            return FusionBarrier.HostCall
        if "view" in (producer.kind, reader.kind):
            return FusionBarrier.ViewNeedsCopy
        if not {producer.kind, reader.kind} <= JOINED:
            return FusionBarrier.OwnKernel
        if reader.kind == "matmul" and any(b in producer.nodes for b in self.reads.bases(reader.head)):
            return FusionBarrier.ProductOperand
        if producer.kind == "concat" and not self.is_part(producer.head, reader):
            return FusionBarrier.JoinedValue
        if self.is_looked_up(producer, reader):
            return FusionBarrier.LookedUp
        nodes = [*producer.nodes, *reader.nodes]
        if len(nodes) > MAX_NODES:
            return FusionBarrier.TooLarge
        if any(self.reaches(producer, g) for g in self.producers(reader) if g is not producer):
            return FusionBarrier.OtherPath
        if "matmul" in (producer.kind, reader.kind):
            return self.epilogue_barrier(producer, reader)
        if reader.kind == "concat":
            return self.part_barrier(nodes, reader)
        return self.fit(nodes)

    def is_part(self, joined: NodeId, reader: _Group) -> bool:
        """Whether a joined value is, as it is, a part of another one and nothing else."""
        uses = self.reads.uses[joined]
        return len(uses) == 1 and uses[0] in reader.nodes and isinstance(self.graph.nodes[uses[0]].op, Concat)

    def is_looked_up(self, producer: _Group, reader: _Group) -> bool:
        return any(is_table(self.graph.nodes[r], n) for n in producer.nodes for r in reader.nodes)

    def reaches(self, start: _Group, end: _Group) -> bool:
        """Whether `end` needs something that follows from `start`."""
        stack, seen = [end], {end}
        first = min(start.nodes)
        while stack:
            group = stack.pop()
            if group is start:
                return True
            # Operands come before what reads them: nothing before the first node of `start` follows from it.
            for earlier in self.producers(group):
                if earlier not in seen and max(earlier.nodes) >= first:
                    seen.add(earlier)
                    stack.append(earlier)
        return False

    def fit(self, nodes: list[NodeId]) -> FusionBarrier | None:
        """Whether one loop nest serves maps and rows of all these nodes, and each is computed once in it."""
        try:
            (points,) = self.points("map", nodes)
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        if not self.repeats_nothing([points], nodes):
            return FusionBarrier.DifferentIndexSpace
        if len({p.node.id for p in points.points if p.is_read}) > MAX_OPERANDS:
            return FusionBarrier.TooLarge
        return FusionBarrier.OneRow if is_one_row(points) else None

    def misfit(self, nodes: list[NodeId], failure: Unmappable) -> FusionBarrier:
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

    def epilogue_barrier(self, producer: _Group, reader: _Group) -> FusionBarrier | None:
        """An epilogue is pointwise on the product, reads the rest by row and column, and stores one value."""
        main, rest = (producer, reader) if producer.kind == "matmul" else (reader, producer)
        if rest.kind != "map" or self.has_reductions(rest.nodes):
            return FusionBarrier.ProductResult
        nodes = [*producer.nodes, *reader.nodes]
        roots = self.reads.roots(nodes)
        if len(roots) != 1:
            return self.stored_elsewhere(r for r in roots if r in producer.nodes)
        head = self.graph.nodes[main.head]
        form = product_form(self.graph, head, self.reads.transparent)
        assert form is not None
        inside = {*nodes} - {head.id}
        try:
            points = points_of(self.graph, Covered(inside, self.reads.transparent), (), roots)
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        has_positions = any(isinstance(p.node.op, Iota | Gather | GatherNd) for p in points.points)
        if has_positions or not self.repeats_nothing([points], inside):
            return FusionBarrier.ProductResult
        if sum(p.node.id == head.id for p in points.points) != 1:
            return FusionBarrier.DifferentIndexSpace
        fits = epilogue_layouts(self.graph, form, head, points) is not None
        return None if fits else FusionBarrier.DifferentIndexSpace

    def part_barrier(self, nodes: list[NodeId], reader: _Group) -> FusionBarrier | None:
        """What is computed as a part of a joined value is stored there and nowhere else."""
        roots = self.reads.roots(nodes)
        if roots != [reader.head]:
            return self.stored_elsewhere(r for r in roots if r != reader.head)
        if self.has_reductions(nodes):
            return FusionBarrier.ReductionOverOtherAxis
        try:
            parts = self.points("concat", [reader.head, *(n for n in nodes if n != reader.head)])
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        return None if self.repeats_nothing(parts, nodes) else FusionBarrier.DifferentIndexSpace

    def stored_elsewhere(self, roots: Iterable[NodeId]) -> FusionBarrier:
        """Why a kernel that stores one value cannot have these inside."""
        return FusionBarrier.IsOutput if any(r in self.reads.outputs for r in roots) else FusionBarrier.SeveralReaders

    # The result.

    def kernels(self) -> list[LirKernel]:
        groups = list(dict.fromkeys(self.group_of.values()))
        return [self.kernel(group) for group in self.ordered(groups)]

    def kernel(self, group: _Group) -> LirKernel:
        nodes = self.reads.closure(group.nodes)
        inside = set(nodes)
        read = dict.fromkeys(i for n in nodes for i in self.graph.nodes[n].inputs if i not in inside)
        roots = self.reads.roots(group.nodes) if group.kind in JOINED else self.results(group)
        if group.kind == "matmul":
            # The product comes first: it is what the kernel is made for.
            nodes = [group.head, *(n for n in nodes if n != group.head)]
        return LirKernel.of(self.final_kind(group), nodes, read, roots)

    def results(self, group: _Group) -> list[NodeId]:
        """What the kernel of one op stores: its result, or all of its results."""
        return group.nodes[1:] or [group.head]

    def final_kind(self, group: _Group) -> str:
        """`row` if something with the axes of the rows is stored, `reduce` if all that is stored has lost them."""
        if group.kind not in ("map", "concat"):
            return group.kind
        if not self.has_reductions(group.nodes):
            return "map"
        (points,) = self.points("map", group.nodes)
        joined = {k for k, is_joined in enumerate(points.nest.reduced) if is_joined}
        stored = (points.points[r].maps for r in points.roots)
        return "row" if any(k in joined for maps in stored for m in maps for k, _ in m.terms) else "reduce"

    def ordered(self, groups: list[_Group]) -> Iterator[_Group]:
        """Producers first, else in the order of the program; effects stay in their order."""
        before = {g: set(self.producers(g)) for g in groups}
        for earlier, later in pairwise(g for g in groups if self.graph.nodes[g.head].op.effect):
            before[later].add(earlier)
        after: dict[_Group, list[_Group]] = {g: [] for g in groups}
        for group in groups:
            for producer in before[group]:
                after[producer].append(group)
        waiting = {g: len(producers) for g, producers in before.items()}
        last = {max(g.nodes): g for g in groups}
        ready = [n for n, g in last.items() if not waiting[g]]
        heapq.heapify(ready)
        while ready:
            group = last[heapq.heappop(ready)]
            yield group
            for later in after[group]:
                waiting[later] -= 1
                if not waiting[later]:
                    heapq.heappush(ready, max(later.nodes))

    def barriers(self) -> list[UnfusedEdge]:
        """Every value that one kernel stores and another reads, stored views looked through."""
        found = []
        for node in self.graph.nodes:
            reader = self.group_of.get(node.id)
            if reader is None or reader.kind == "view":
                continue
            source = node.origin.source if node.origin else None
            for base in dict.fromkeys(map(self.named, self.reads.bases(node.id))):
                producer = self.group_of.get(base)
                if producer is None or producer is reader:
                    continue
                # What could still be joined was left alone by the order in which others were.
                reason = self.barrier(producer, reader) or FusionBarrier.OtherPath
                found.append(UnfusedEdge(base, node.id, reason, source))
        return found

    def named(self, node: NodeId) -> NodeId:
        """The value whose memory a stored view names."""
        while (group := self.group_of.get(node)) is not None and group.kind == "view":
            node = self.graph.nodes[node].inputs[0]
        return node


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
