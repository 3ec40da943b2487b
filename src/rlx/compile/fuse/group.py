"""Cut a graph into kernels: products with their epilogues, maps, rows; what has no kernel is called on the host.

Every op starts as a kernel of its own. Then kernels that follow each other are joined wherever one loop nest serves
both, which `points_of` decides, until none can be joined any more; then those that read the same values. Views are no
kernels: others read through them (`kernel_reads`). Every value that still goes through memory has one reason, from
a closed list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from rlx.compile.fuse.barriers import FusionBarrier, UnfusedEdge
from rlx.compile.fuse.can_join import MAX_NODES, KernelFits, Loops
from rlx.compile.fuse.group_graph import Group, GroupOrder
from rlx.compile.fuse.index_maps import Unmappable
from rlx.compile.fuse.look_through import KernelReads
from rlx.compile.fuse.loop_nest import Nest
from rlx.compile.fuse.node_roles import CHEAP, is_literal, is_memory
from rlx.compile.fuse.piecewise import has_parts
from rlx.compile.generators import Generator
from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL, MAP, MATMUL, PARTS, REDUCE, ROW, SEVERAL, VIEW, KernelKind
from rlx.ir.leaves import Project
from rlx.ir.lir import LirKernel
from rlx.ir.shape import normalize_axis
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.movement import Concat, Reshape

# The kinds of groups that take in others.
JOINED = frozenset({MAP, PARTS, MATMUL})
# So many cheap ops are repeated by their readers rather than stored.
MAX_CHEAP = 4
# Chains up to this length are joined without a look at their loops.
MAX_CHAIN = 16
# A map over more points than this is worth a kernel of its own, however many others read the same scalar.
MAX_SHORT = 1 << 14
# Starting a map over more points than this costs nothing beside its run.
MAX_LONG = 1 << 17
# With so many kernels that have the same loops one is compared before it is left alone.
MAX_TRIED = 4
# Large values that reductions of one kernel read at most: all of them are kept until it runs.
MAX_SUMMED, LARGE = 8, 1 << 20


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
    # Kernels that are put side by side at the end have nothing to do with each other: no edge becomes another one.
    barriers = grouping.barriers()
    grouping.join_side_by_side()
    return Grouping(grouping.kernels(), barriers)


def _is_short(nest: Nest) -> bool:
    points = 1
    for size in nest.sizes:
        if not isinstance(size, int):
            return False
        points *= size
    return points <= MAX_SHORT


class _Grouping:
    def __init__(self, graph: Graph, generator: Generator) -> None:
        self.graph = graph
        self.reads = KernelReads(graph, generator)
        self.fits = KernelFits(graph, self.reads)
        self.group_of: dict[NodeId, Group] = {}
        for node in graph.nodes:
            if node.id not in self.reads.transparent and not is_memory(node):
                self.group_of[node.id] = self.first_group(node)
        self.copy_unmappable_views()
        self.order = GroupOrder(self.needs())
        self.tables = self.reads.tables()
        self.known_loops: dict[tuple[Group, int], Loops] = {}
        # Pairs that cannot be joined, for as long as both stay as they are.
        self.refused: dict[tuple[Group, Group, int, int], FusionBarrier] = {}

    def first_group(self, node: Node) -> Group:
        """A group for one node; the results of an op with several belong to its kernel."""
        if isinstance(node.op, Project) and self.group_of[node.inputs[0]].kind != CALL:
            group = self.group_of[node.inputs[0]]
            group.nodes.append(node.id)
            return group
        kind = self.reads.kind(node)
        return Group(PARTS if kind != CALL and has_parts(node) else kind, node)

    def copy_unmappable_views(self) -> None:
        """Views that are no index map even for the kernel of one op are stored: a reshape names its stored operand."""
        pending = [g for g in self.group_of.values() if g.kind in (MAP, PARTS)]
        while pending:
            group = pending.pop()
            if self.fits.has_loops(group.kind, group.nodes):
                continue
            try:
                self.fits.points(group.kind, group.nodes)
            except Unmappable as failure:
                assert failure.view is not None, f"{self.graph.nodes[group.head]!r} has no loop nest of its own"
                if failure.view != group.head:
                    pending.append(group)
                pending.extend(self.stored(self.graph.nodes[failure.view]))

    def stored(self, view: Node) -> Iterator[Group]:
        """Make a view a kernel; the new kernels that need a look at their own operands."""
        self.reads.transparent.discard(view.id)
        # What is a kernel already, the result of a reshape, names its operand instead of copying it.
        kind = VIEW if view.id in self.group_of else self.reads.kind(view)
        group = self.group_of[view.id] = Group(kind, view)
        below = self.graph.nodes[view.inputs[0]]
        if kind == VIEW and below.id in self.reads.transparent:
            yield from self.stored(below)
        if kind == MAP:
            yield group

    def needs(self) -> dict[Group, list[Group]]:
        """What every group reads, in the order of the program; effects stay in their order."""
        groups = sorted(dict.fromkeys(self.group_of.values()), key=lambda g: g.head)
        found = {g: self.producers(g) for g in groups}
        for earlier, later in pairwise(g for g in groups if self.graph.nodes[g.head].op.effect):
            found[later].append(earlier)
        return found

    def producers(self, group: Group) -> list[Group]:
        found = (self.group_of.get(b) for n in group.nodes for b in self.reads.bases(n))
        return [g for g in dict.fromkeys(found) if g is not None and g is not group]

    # Joining.

    def join(self) -> None:
        """Join along values until nothing changes, first with every op in a kernel, then with cheap ones in all."""
        if self.reads.generator.widens_late:
            self.dissolve_widened_values()
        self.join_chains()
        self.join_followers()
        if self.dissolve_cheap_groups():
            self.join_followers()
        self.join_neighbours()
        self.join_reductions()

    def join_chains(self) -> None:
        """Join pointwise ops with their only reader where that is one of the same dims: nothing can be in the way, so
        that nothing has to be asked."""
        for node in self.graph.nodes:
            if not self.is_pointwise(node) or node.id in self.reads.outputs:
                continue
            uses = {*self.reads.uses[node.id]}
            reader = self.graph.nodes[next(iter(uses))] if len(uses) == 1 else None
            if reader is None or not self.is_pointwise(reader) or reader.shape.dims != node.shape.dims:
                continue
            one, other = self.group_of[node.id], self.group_of[reader.id]
            if len(one.nodes) + len(other.nodes) <= MAX_CHAIN:
                self.unite(one, other)

    def is_pointwise(self, node: Node) -> bool:
        group = self.group_of.get(node.id)
        return group is not None and group.kind == MAP and self.reads.generator.is_pointwise(self.graph, node)

    def join_followers(self) -> None:
        changed = True
        while changed:
            changed = False
            for node in self.graph.nodes:
                if node.id not in self.group_of:
                    continue
                for base in self.reads.bases(node.id):
                    producer, reader = self.group_of.get(base), self.group_of[node.id]
                    if producer is None or producer is reader or self.barrier(producer, reader) is not None:
                        continue
                    self.unite(producer, reader)
                    changed = True

    def join_neighbours(self) -> None:
        """Join maps and rows that read the same value and do not depend on each other: it is then loaded once.

        A scalar costs no load. Long maps that share nothing else, as the updates of all weights share the rate of an
        optimiser, stay apart: one loop that walks through all their arrays at once is slower, since processors foresee
        only so many streams.
        """
        for node in self.graph.nodes:
            if is_literal(node):
                continue
            is_scalar = all(size == 1 for shape in node.shapes for size in shape.dims)
            groups = {g: None for u in self.reads.readers(node.id) if (g := self.group_of.get(u)) is not None}
            alike: dict[Nest, list[Group]] = {}
            for group in (g for g in groups if g.kind == MAP and len(groups) > 1):
                nest = self.loops(group).nest
                if not is_scalar or _is_short(nest):
                    self.join_to_one(group, alike.setdefault(nest, []))

    def join_reductions(self) -> None:
        """Join reductions with the same loops that read the same values or what kernels have made of the same values,
        as the gradients of a gain and a bias do: each alone is too short to be worth starting."""
        alike: dict[tuple[NodeId, Nest], list[Group]] = {}
        for group in list(self.order):
            if group.kind != MAP or not self.fits.has_reductions(group.nodes):
                continue
            loops = self.loops(group)
            if loops.stores_rows:
                continue
            read = self.values_read([group])
            sources = {*read, *self.values_read(g for g in map(self.group_of.get, read) if g is not None)}
            for source in sorted(sources):
                group = self.join_to_one(group, alike.setdefault((source, loops.nest), []), MAX_SUMMED)

    def values_read(self, groups: Iterable[Group]) -> set[NodeId]:
        found = {b for g in groups for n in g.nodes for b in self.reads.bases(n) if self.group_of.get(b) is not g}
        return {n for n in found if not is_literal(self.graph.nodes[n])}

    def is_large(self, node: NodeId) -> bool:
        """Whether a value has many elements, or nobody knows how many."""
        points = [product(shape.dims) for shape in self.graph.nodes[node].shapes]
        return any(not isinstance(count, int) or count > LARGE for count in points)

    def join_side_by_side(self) -> None:
        """Make one kernel of maps that read the same value, each with loops of its own: less to start and to wait for.

        The value is one that a kernel has just computed; inputs and weights are read from everywhere. Two long maps
        gain nothing, and walk through more arrays at a time than processors foresee.
        """
        for node in self.graph.nodes:
            if node.id not in self.group_of:
                continue
            readers = {g: None for u in self.reads.readers(node.id) if (g := self.group_of.get(u)) is not None}
            maps = [g for g in readers if self.is_plain_map(g)]
            for group in maps[1:]:
                first = self.group_of[maps[0].head]
                if group is not first and self.may_be_side_by_side(first, group):
                    self.merge(first, group)
                    first.kind = SEVERAL

    def is_plain_map(self, group: Group) -> bool:
        """Whether a kernel is a map, over one index space or several."""
        return group.kind in (PARTS, SEVERAL) or (group.kind == MAP and not self.fits.has_reductions(group.nodes))

    def may_be_side_by_side(self, one: Group, other: Group) -> bool:
        if len(one.nodes) + len(other.nodes) > MAX_NODES or (self.is_long(one) and self.is_long(other)):
            return False
        for first, second in ((one, other), (other, one)):
            # What one reads and the other changes in place would have to be copied first.
            if not self.values_changed(first).isdisjoint(map(self.named, self.values_read([second]))):
                return False
        return not self.order.reaches(one, other) and not self.order.reaches(other, one)

    def is_long(self, group: Group) -> bool:
        """Whether a map has so many points that starting it costs nothing; of symbolic sizes nobody knows."""
        shapes = (shape for n in group.nodes for shape in self.graph.nodes[n].shapes)
        return any(s.is_static and math.prod(s.static_dims) > MAX_LONG for s in shapes)

    def values_changed(self, group: Group) -> set[NodeId]:
        nodes = (self.graph.nodes[n] for n in group.nodes)
        return {self.named(n.inputs[0]) for n in nodes if has_parts(n) and not isinstance(n.op, Concat)}

    def loops(self, group: Group) -> Loops:
        key = (group, len(group.nodes))
        if key not in self.known_loops:
            self.known_loops[key] = self.fits.loops(group.nodes)
        return self.known_loops[key]

    def join_to_one(self, group: Group, others: list[Group], most_read: int | None = None) -> Group:
        """Join a group to one of some `others` with the same loops, or add it to them; the group that it is then. Both
        together read at most so many large values."""
        # Those nearest in the program first; far ones would keep values alive that both need.
        for other in reversed(others[-MAX_TRIED:]):
            now = self.group_of[other.head]
            if now is group or not self.are_independent(now, group):
                continue
            if most_read is not None and sum(map(self.is_large, self.values_read([now, group]))) > most_read:
                continue
            self.unite(now, group)
            return now
        if group not in others:
            others.append(group)
        return group

    def are_independent(self, one: Group, other: Group) -> bool:
        """Whether neither needs the other, and one kernel can be both."""
        if len(one.nodes) + len(other.nodes) > MAX_NODES:
            return False
        if self.order.reaches(one, other) or self.order.reaches(other, one):
            return False
        return self.fits.map_barrier([*one.nodes, *other.nodes]) is None

    def unite(self, one: Group, other: Group) -> None:
        """The nodes of both in one group; a product or a joined value stays in front."""
        if other.kind in (PARTS, MATMUL):
            one, other = other, one
        self.merge(one, other)

    def merge(self, into: Group, rest: Group) -> None:
        self.order.join(into, rest)
        into.nodes += rest.nodes
        for node in rest.nodes:
            self.group_of[node] = into

    def dissolve_cheap_groups(self) -> bool:
        """Let readers compute cheap values themselves; whether there were any."""
        cheap = [g for g in dict.fromkeys(self.group_of.values()) if self.is_cheap(g)]
        return sum([self.dissolve(group) for group in cheap]) > 0

    def dissolve_widened_values(self) -> None:
        """Let readers widen values themselves: memory moves these as narrow as they are."""
        for group in [g for g in dict.fromkeys(self.group_of.values()) if self.is_widened(g)]:
            self.dissolve(group)

    def is_widened(self, group: Group) -> bool:
        node = self.graph.nodes[group.head]
        if len(group.nodes) != 1 or not isinstance(node.op, Cast) or not self.is_cheap(group):
            return False
        if not any(b in self.group_of for b in self.reads.bases(node.id)):
            return False
        return node.op.to.size_bytes > self.graph.shape(node.inputs[0]).dtype.size_bytes

    def is_cheap(self, group: Group) -> bool:
        """Whether a kernel is a few cheap ops on one value, and all that read it are maps and rows."""
        nodes = [self.graph.nodes[n] for n in group.nodes]
        if group.kind != MAP or len(nodes) > MAX_CHEAP or not all(map(self.costs_a_load, nodes)):
            return False
        bases = {b for n in nodes for b in self.reads.bases(n.id)} - {*group.nodes}
        ids = {b for n in nodes if isinstance(n.op, Gather) for b in self.reads.bases_below(n.inputs[1])}
        if sum(not is_literal(self.graph.nodes[b]) for b in bases - ids) > 1:
            return False
        if any(n.id in self.reads.outputs or n.id in self.tables for n in nodes):
            return False
        readers = (self.group_of[u] for n in nodes for u in self.reads.readers(n.id))
        return all(reader.kind in (MAP, PARTS) for reader in readers)

    def costs_a_load(self, node: Node) -> bool:
        """Whether an op costs about as much as loading its result would; so does looking up whole rows."""
        if isinstance(node.op, Gather):
            rank = self.graph.shape(node.inputs[0]).rank
            return normalize_axis(node.op.axis, rank, "gather") < rank - 1
        return node.op.mnemonic in CHEAP

    def dissolve(self, group: Group) -> bool:
        """Let readers compute a group themselves, if they all can."""
        readers = dict.fromkeys(self.group_of[u] for n in group.nodes for u in self.reads.readers(n))
        for node in group.nodes:
            del self.group_of[node]
            self.reads.transparent.add(node)
        if all(self.fits.works(reader.kind, reader.nodes) for reader in readers if reader is not group):
            self.order.remove(group)
            return True
        for node in group.nodes:
            self.group_of[node] = group
            self.reads.transparent.discard(node)
        return False

    # Barriers.

    def barrier(self, producer: Group, reader: Group) -> FusionBarrier | None:
        """Why two groups cannot be one kernel; None if they can."""
        key = (producer, reader, len(producer.nodes), len(reader.nodes))
        if key not in self.refused:
            found = self.find_barrier(producer, reader)
            if found is None:
                return None
            self.refused[key] = found
        return self.refused[key]

    def find_barrier(self, producer: Group, reader: Group) -> FusionBarrier | None:
        if CALL in (producer.kind, reader.kind):
            return FusionBarrier.HostCall
        if VIEW in (producer.kind, reader.kind):
            return FusionBarrier.ViewNeedsCopy
        if not {producer.kind, reader.kind} <= JOINED:
            return FusionBarrier.OwnKernel
        if reader.kind == MATMUL and any(b in producer.nodes for b in self.reads.bases(reader.head)):
            return FusionBarrier.ProductOperand
        if producer.kind == PARTS and not self.is_part(producer.head, reader):
            return FusionBarrier.JoinedValue
        if self.is_looked_up(producer, reader) or self.is_changed(producer, reader):
            return FusionBarrier.LookedUp
        if len(producer.nodes) + len(reader.nodes) > MAX_NODES:
            return FusionBarrier.TooLarge
        if self.order.is_between(producer, reader):
            return FusionBarrier.OtherPath
        if MATMUL in (producer.kind, reader.kind):
            return self.epilogue_barrier(producer, reader)
        if reader.kind == PARTS:
            return self.part_barrier(producer, reader)
        return self.fits.map_barrier([*producer.nodes, *reader.nodes])

    def is_part(self, joined: NodeId, reader: Group) -> bool:
        """Whether a joined value is, as it is, a part of another one, or all updates of a scatter, and nothing else."""
        node = self.graph.nodes[joined]
        if not isinstance(node.op, Concat):
            return False
        while node.id not in self.reads.outputs and len(self.reads.uses[node.id]) == 1:
            (user,) = (self.graph.nodes[u] for u in self.reads.uses[node.id])
            if user.id in reader.nodes:
                if isinstance(user.op, Concat):
                    return node.id == joined
                return has_parts(user) and user.inputs[2] == node.id
            if user.id not in self.reads.transparent or not isinstance(user.op, Reshape):
                return False
            node = user
        return False

    def is_looked_up(self, producer: Group, reader: Group) -> bool:
        return any(not self.tables[n].isdisjoint(reader.nodes) for n in producer.nodes if n in self.tables)

    def is_changed(self, producer: Group, reader: Group) -> bool:
        """Whether the reader is a scatter into what the producer computes: it must be there as a whole before."""
        head = self.graph.nodes[reader.head]
        if reader.kind != PARTS or isinstance(head.op, Concat):
            return False
        return any(b in producer.nodes for b in self.reads.bases_below(head.inputs[0]))

    def epilogue_barrier(self, producer: Group, reader: Group) -> FusionBarrier | None:
        main, rest = (producer, reader) if producer.kind == MATMUL else (reader, producer)
        if rest.kind != MAP or self.fits.has_reductions(rest.nodes):
            return FusionBarrier.ProductResult
        nodes = [*main.nodes, *rest.nodes]
        costly = sum(self.graph.nodes[n].op.mnemonic not in CHEAP for n in nodes if n != main.head)
        if costly > self.reads.generator.costly_epilogue:
            return FusionBarrier.TooLarge
        roots = self.reads.roots(nodes)
        if len(roots) != 1:
            return self.stored_elsewhere(r for r in roots if r in producer.nodes)
        return self.fits.epilogue_barrier(nodes)

    def part_barrier(self, producer: Group, reader: Group) -> FusionBarrier | None:
        """What is computed as a part of a joined value is stored there and nowhere else."""
        nodes = [*reader.nodes, *producer.nodes]
        roots = self.reads.roots(nodes)
        if roots != [reader.head]:
            return self.stored_elsewhere(r for r in roots if r != reader.head)
        if self.fits.has_reductions(nodes):
            return FusionBarrier.ReductionOverOtherAxis
        return self.fits.part_barrier(nodes)

    def stored_elsewhere(self, roots: Iterable[NodeId]) -> FusionBarrier:
        """Why a kernel that stores one value cannot have these inside."""
        return FusionBarrier.IsOutput if any(r in self.reads.outputs for r in roots) else FusionBarrier.SeveralReaders

    # The result.

    def kernels(self) -> list[LirKernel]:
        return [self.kernel(group) for group in self.order]

    def kernel(self, group: Group) -> LirKernel:
        nodes = self.reads.closure(group.nodes)
        inside = set(nodes)
        read = dict.fromkeys(i for n in nodes for i in self.graph.nodes[n].inputs if i not in inside)
        is_joined = group.kind in JOINED or group.kind == SEVERAL
        roots = self.reads.roots(group.nodes) if is_joined else self.results(group)
        kind = self.final_kind(group)
        if not KernelKind.of(kind).has_loop_nest:
            # The product, or the op, comes first: it is what the kernel is made for.
            nodes = [group.head, *(n for n in nodes if n != group.head)]
        return LirKernel.of(kind, nodes, read, roots)

    def results(self, group: Group) -> list[NodeId]:
        """What the kernel of one op stores: its result, or all of its results in their order."""
        return sorted(group.nodes[1:], key=self.result_number) or [group.head]

    def result_number(self, projection: NodeId) -> int:
        op = self.graph.nodes[projection].op
        assert isinstance(op, Project)
        return op.index

    def final_kind(self, group: Group) -> str:
        """`row` if something with the axes of the rows is stored, `reduce` if all that is stored has lost them."""
        if group.kind == PARTS and len(group.nodes) == 1:
            # With nothing to compute along the way: a kernel of its own, if there is one.
            kind = self.reads.kind(self.graph.nodes[group.head])
            return MAP if kind == PARTS else kind
        if not KernelKind.of(group.kind).is_mapped:
            return group.kind
        if group.kind == SEVERAL or not self.fits.has_reductions(group.nodes):
            return MAP
        return ROW if self.loops(group).stores_rows else REDUCE

    def barriers(self) -> list[UnfusedEdge]:
        """Every value that one kernel stores and another reads, stored views looked through."""
        found = []
        for node in self.graph.nodes:
            reader = self.group_of.get(node.id)
            if reader is None or reader.kind == VIEW:
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
        while (group := self.group_of.get(node)) is not None and group.kind == VIEW:
            node = self.graph.nodes[node].inputs[0]
        return node
