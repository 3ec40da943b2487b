"""Cut a graph into kernels: products with their epilogues, maps, rows; what has no kernel is called on the host.

Every op starts as a kernel of its own. Then kernels that follow each other are joined wherever one loop nest serves
both, which `points_of` decides, until none can be joined any more. Views never run: a kernel reads through them by
strides and offsets, and so it does through sizes, positions and ops so cheap that repeating them costs less than storing
their result. Only what cannot read through a view (the caller, the host, a product that needs rows side by side) has it
copied, by a kernel again. Every value that still goes through memory has one reason, from a closed list.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from rlx.compile.fusion_barriers import FusionBarrier, UnfusedEdge
from rlx.compile.index_maps import Unmappable, is_view, keeps_order
from rlx.compile.kernel_points import KernelPoints, is_reduction, points_of
from rlx.compile.liveness import is_pure_view
from rlx.compile.products import epilogue_layouts, product_form
from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.lir import LirKernel
from rlx.ops.contraction import MatMul
from rlx.ops.creation import DimValue, Iota
from rlx.ops.indexing import Gather, GatherNd
from rlx.ops.movement import Concat
from rlx.ops.reductions import Reduce, ReduceOp

# Whether the target can compute a node inside a map, a row or an epilogue.
Pointwise = Callable[[Graph, Node], bool]

# Larger kernels spill registers and compile slowly, and save no more memory traffic.
MAX_NODES = 128
MAX_OPERANDS = 32
# A reduction of everything runs on one thread; below this many elements nobody notices.
SMALL_ROW = 1 << 16
# Ops that cost about as much as the load that they replace.
CHEAP = frozenset(
    {"cast", "neg", "abs", "not", "add", "sub", "mul", "max", "min", "and", "or", "xor", "where"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "relu", "square"}
)
MAX_CHEAP = 4


class Grouping(NamedTuple):
    """The kernels of a graph in an order in which they can run, and why they are not fewer."""

    kernels: list[LirKernel]
    barriers: list[UnfusedEdge]


def group_kernels(graph: Graph, is_pointwise: Pointwise) -> list[LirKernel]:
    """The kernels of a graph in an order in which they can run."""
    return group(graph, is_pointwise).kernels


def group(graph: Graph, is_pointwise: Pointwise) -> Grouping:
    """The kernels of a graph, and the reason of every value that goes through memory between them."""
    grouping = _Grouping(graph, is_pointwise)
    grouping.join()
    return Grouping(grouping.kernels(), grouping.barriers())


def kernel_kind(
    graph: Graph, node: Node, is_pointwise: Pointwise, transparent: Container[NodeId] = frozenset()
) -> str:
    """The kind of kernel that a node would be alone, reading through `transparent` views."""
    if len(node.shapes) != 1 or node.op.effect:
        return "call"
    if is_view(graph, node) and is_alias(graph, node):
        return "view"
    if not is_native(node) or not all(is_native(graph.nodes[i]) for i in node.inputs):
        return "call"
    if isinstance(node.op, MatMul):
        return "call" if product_form(graph, node, transparent) is None else "matmul"
    if isinstance(node.op, Concat):
        return "concat"
    is_map = (
        is_view(graph, node)
        or isinstance(node.op, Gather | GatherNd | Iota | DimValue)
        or (isinstance(node.op, Reduce) and node.op.kind is not ReduceOp.Mean)
        or is_pointwise(graph, node)
    )
    return "map" if is_map else "call"


class _Group:
    """Nodes that one kernel computes. `kind` is that of the LIR, where rows are still maps with reductions."""

    def __init__(self, kind: str, node: Node) -> None:
        self.kind = kind
        self.nodes = [node.id]

    @property
    def head(self) -> NodeId:
        return self.nodes[0]


class _Grouping:
    def __init__(self, graph: Graph, is_pointwise: Pointwise) -> None:
        self.graph, self.is_pointwise = graph, is_pointwise
        self.uses = graph.use_map()
        self.outputs = set(graph.outputs)
        # Nodes that no kernel computes for its own sake: each kernel that reads them computes them along the way.
        self.transparent = {n.id for n in graph.nodes if self.may_be_transparent(n)}
        self.store_where_needed()
        self.group_of: dict[NodeId, _Group] = {}
        for node in graph.nodes:
            if node.id not in self.transparent and not is_memory(node):
                self.group_of[node.id] = _Group(self.kind(node), node)
        self.copy_unmappable_views()
        self.refused: dict[tuple[_Group, _Group, int, int], FusionBarrier] = {}

    # What a node is.

    def may_be_transparent(self, node: Node) -> bool:
        native = len(node.shapes) == 1 and is_native(node)
        return native and not is_memory(node) and (is_view(self.graph, node) or isinstance(node.op, Iota | DimValue))

    def kind(self, node: Node) -> str:
        found = kernel_kind(self.graph, node, self.is_pointwise, self.transparent)
        # Results have memory of their own, which the kernel that computes them can as well write in their form.
        return "map" if found == "view" and node.id in self.outputs and is_native(node) else found

    def store_where_needed(self) -> None:
        """Take from the transparent nodes those that somebody needs in memory, and what these are views of."""
        for node in reversed(self.graph.nodes):
            if node.id in self.transparent and self.is_needed_in_memory(node):
                self.transparent.discard(node.id)
        for node in self.graph.nodes:
            # Operands that could be read through views one at a time, but not together.
            if isinstance(node.op, MatMul) and product_form(self.graph, node, self.transparent) is None:
                self.transparent.difference_update(node.inputs)

    def is_needed_in_memory(self, node: Node) -> bool:
        if node.id in self.outputs:
            return True
        return any(not self.reads_through(self.graph.nodes[u], node) for u in self.uses[node.id])

    def reads_through(self, reader: Node, node: Node) -> bool:
        """Whether `reader` needs no copy of a view."""
        if reader.id in self.transparent:
            return True
        if isinstance(reader.op, MatMul):
            return product_form(self.graph, reader, self.views_below(node)) is not None
        if self.is_table(reader, node.id):
            return False
        return self.kind(reader) not in ("call", "view")

    def views_below(self, node: Node) -> set[NodeId]:
        """A node and the views through which it reads, as far as these are looked through."""
        found: set[NodeId] = set()
        while node.id in self.transparent:
            found.add(node.id)
            if not is_view(self.graph, node):
                break
            node = self.graph.nodes[node.inputs[0]]
        return found

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
        self.transparent.discard(view.id)
        # What is a kernel already, the result of a reshape, names its operand instead of copying it.
        kind = "view" if view.id in self.group_of else self.kind(view)
        group = self.group_of[view.id] = _Group(kind, view)
        below = self.graph.nodes[view.inputs[0]]
        if group.kind == "view" and below.id in self.transparent:
            yield from self.stored(below)
        if group.kind == "map":
            yield group

    # How kernels read each other.

    def bases(self, node: NodeId) -> Iterator[NodeId]:
        """The nodes with memory or kernels of their own that a node reads, views looked through."""
        stack = list(reversed(self.graph.nodes[node].inputs))
        while stack:
            operand = stack.pop()
            if operand in self.transparent:
                stack.extend(reversed(self.graph.nodes[operand].inputs))
            else:
                yield operand

    def readers(self, node: NodeId) -> Iterator[NodeId]:
        """The nodes with kernels of their own that read a node, through views."""
        stack = list(self.uses[node])
        seen = set(stack)
        while stack:
            user = stack.pop()
            if user not in self.transparent:
                yield user
                continue
            fresh = [u for u in self.uses[user] if u not in seen]
            seen.update(fresh)
            stack.extend(fresh)

    def roots(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """What a kernel of these nodes stores."""
        inside = set(nodes)
        return [n for n in sorted(inside) if n in self.outputs or any(u not in inside for u in self.readers(n))]

    def producers(self, group: _Group) -> list[_Group]:
        found = (self.group_of.get(b) for n in group.nodes for b in self.bases(n))
        return [g for g in dict.fromkeys(found) if g is not None and g is not group]

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
                reader = self.group_of.get(node.id)
                if reader is None:
                    continue
                for producer in {id(g): g for b in self.bases(node.id) if (g := self.group_of.get(b))}.values():
                    reader = self.group_of[node.id]
                    if producer is not reader and self.barrier(producer, reader) is None:
                        self.unite(producer, reader)
                        changed = True

    def join_neighbours(self) -> None:
        """Join maps and rows that read the same value and do not depend on each other: it is then loaded once."""
        for node in self.graph.nodes:
            groups = list({id(g): g for u in self.readers(node.id) if (g := self.group_of.get(u))}.values())
            groups = [g for g in groups if g.kind == "map"]
            for position, first in enumerate(groups):
                for second in groups[position + 1 :]:
                    one, other = (self.group_of[g.head] for g in (first, second))
                    if one is not other and self.are_alike(one, other) and self.is_joinable(one, other):
                        self.unite(one, other)

    def are_alike(self, one: _Group, other: _Group) -> bool:
        """Whether two kernels have loops of the same size, around reductions of both or of none."""
        first, second = (self.graph.shape(self.roots(g.nodes)[0]).dims for g in (one, other))
        return first == second and self.has_reductions(one) == self.has_reductions(other)

    def is_joinable(self, one: _Group, other: _Group) -> bool:
        independent = not self.reaches(one, other) and not self.reaches(other, one)
        return independent and self.fit([*one.nodes, *other.nodes]) is None

    def has_reductions(self, group: _Group) -> bool:
        return any(is_reduction(self.graph, self.graph.nodes[n]) for n in group.nodes)

    def unite(self, one: _Group, other: _Group) -> None:
        """The nodes of both in one group; the kind of a product or of a joined value stays."""
        into, rest = (other, one) if other.kind in ("concat", "matmul") else (one, other)
        into.nodes += rest.nodes
        for node in rest.nodes:
            self.group_of[node] = into

    def dissolve_cheap_groups(self) -> bool:
        """Let readers compute cheap values themselves; whether there were any."""
        cheap = [g for g in dict.fromkeys(self.group_of.values()) if self.is_cheap(g)]
        return sum([self.dissolve(group) for group in cheap]) > 0

    def dissolve(self, group: _Group) -> bool:
        """Let readers compute a group themselves, if they all can."""
        affected = [self.group_of[u] for u in dict.fromkeys(r for n in group.nodes for r in self.readers(n))]
        for node in group.nodes:
            del self.group_of[node]
            self.transparent.add(node)
        try:
            for reader in dict.fromkeys(affected):
                if reader is not group and not self.is_computed_once(self.points(reader.kind, reader.nodes), reader.nodes):
                    raise Unmappable
        except Unmappable:
            for node in group.nodes:
                self.group_of[node] = group
                self.transparent.discard(node)
            return False
        return True

    def is_cheap(self, group: _Group) -> bool:
        nodes = [self.graph.nodes[n] for n in group.nodes]
        if group.kind != "map" or len(nodes) > MAX_CHEAP or any(n.op.mnemonic not in CHEAP for n in nodes):
            return False
        bases = {b for n in nodes for b in self.bases(n.id) if b not in group.nodes}
        if sum(not is_literal(self.graph.nodes[b]) for b in bases) > 1:
            return False
        readers = [u for n in nodes for u in self.readers(n.id)]
        if any(n.id in self.outputs for n in nodes) or any(self.group_of[u].kind not in ("map", "concat") for u in readers):
            return False
        return not any(self.is_table(self.graph.nodes[u], n.id) for n in nodes for u in self.uses[n.id])

    def is_table(self, reader: Node, node: NodeId) -> bool:
        return isinstance(reader.op, Gather | GatherNd) and reader.inputs[0] == node

    def barrier(self, producer: _Group, reader: _Group) -> FusionBarrier | None:
        """Why two groups cannot be one kernel; None if they can."""
        key = (producer, reader, len(producer.nodes), len(reader.nodes))
        if key in self.refused:
            return self.refused[key]
        found = self.find_barrier(producer, reader)
        if found is not None:
            self.refused[key] = found
        return found

    def find_barrier(self, producer: _Group, reader: _Group) -> FusionBarrier | None:
        if "call" in (producer.kind, reader.kind):
            return FusionBarrier.HostCall
        if "view" in (producer.kind, reader.kind):
            return FusionBarrier.ViewNeedsCopy
        if reader.kind == "matmul" and any(b in producer.nodes for b in self.bases(reader.head)):
            return FusionBarrier.ProductOperand
        if producer.kind == "concat":
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

    def is_looked_up(self, producer: _Group, reader: _Group) -> bool:
        tables = (n.inputs[0] for i in reader.nodes if isinstance((n := self.graph.nodes[i]).op, Gather | GatherNd))
        return any(t in producer.nodes for t in tables)

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
            points = self.points("map", nodes)[0]
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        if not self.is_computed_once([points], nodes):
            return FusionBarrier.DifferentIndexSpace
        if len({p.node.id for p in points.points if p.is_read}) > MAX_OPERANDS:
            return FusionBarrier.TooLarge
        return FusionBarrier.OneRow if self.is_one_row(points) else None

    def misfit(self, nodes: list[NodeId], failure: Unmappable) -> FusionBarrier:
        reductions = sum(is_reduction(self.graph, self.graph.nodes[n]) for n in nodes)
        if failure.view is not None:
            return FusionBarrier.ViewNeedsCopy
        return FusionBarrier.ReductionOverOtherAxis if reductions > 1 else FusionBarrier.DifferentIndexSpace

    def is_computed_once(self, parts: Iterable[KernelPoints], nodes: Iterable[NodeId]) -> bool:
        computed = [p.node.id for points in parts for p in points.points if not p.is_read]
        inside = set(nodes)
        counts = [n for n in computed if n in inside]
        return len(counts) == len(set(counts))

    def is_one_row(self, points: KernelPoints) -> bool:
        """Whether a kernel would write something large by one thread, because all of it is one row."""
        nest = points.nest
        if nest.rows or not any(nest.reduced):
            return False
        count = product(nest.sizes)
        stores_all = any(m.terms for r in points.roots for m in points.points[r].maps)
        return stores_all and not (isinstance(count, int) and count <= SMALL_ROW)

    def epilogue_barrier(self, producer: _Group, reader: _Group) -> FusionBarrier | None:
        """An epilogue is pointwise on the product, reads the rest by row and column, and stores one value."""
        main, rest = (producer, reader) if producer.kind == "matmul" else (reader, producer)
        if rest.kind != "map" or self.has_reductions(rest):
            return FusionBarrier.ProductResult
        nodes = [*producer.nodes, *reader.nodes]
        roots = self.roots(nodes)
        if len(roots) != 1:
            kept = [r for r in roots if r in producer.nodes]
            return FusionBarrier.IsOutput if any(r in self.outputs for r in kept) else FusionBarrier.SeveralReaders
        head = self.graph.nodes[main.head]
        form = product_form(self.graph, head, self.transparent)
        assert form is not None
        inside = {*nodes} - {head.id}
        try:
            points = points_of(self.graph, _Covered(inside, self.transparent), (), roots)
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        has_positions = any(isinstance(p.node.op, Iota | Gather | GatherNd) for p in points.points)
        if not self.is_computed_once([points], inside) or has_positions:
            return FusionBarrier.ProductResult
        if sum(p.node.id == head.id for p in points.points) != 1:
            return FusionBarrier.DifferentIndexSpace
        fits = epilogue_layouts(self.graph, form, head, points) is not None
        return None if fits else FusionBarrier.DifferentIndexSpace

    def part_barrier(self, nodes: list[NodeId], reader: _Group) -> FusionBarrier | None:
        """What is computed as a part of a joined value is stored there and nowhere else."""
        roots = self.roots(nodes)
        if roots != [reader.head]:
            kept = [r for r in roots if r != reader.head]
            return FusionBarrier.IsOutput if any(r in self.outputs for r in kept) else FusionBarrier.SeveralReaders
        if any(is_reduction(self.graph, self.graph.nodes[n]) for n in nodes):
            return FusionBarrier.ReductionOverOtherAxis
        try:
            parts = self.points("concat", [reader.head, *(n for n in nodes if n != reader.head)])
        except Unmappable as failure:
            return self.misfit(nodes, failure)
        return None if self.is_computed_once(parts, nodes) else FusionBarrier.DifferentIndexSpace

    def points(self, kind: str, nodes: list[NodeId]) -> list[KernelPoints]:
        """The points of a kernel of these nodes, for each of its parts."""
        covered = _Covered(set(nodes), self.transparent)
        reductions = [n for i in sorted(nodes) if is_reduction(self.graph, n := self.graph.nodes[i])]
        if kind == "concat":
            parts = self.graph.nodes[nodes[0]].inputs
            return [points_of(self.graph, covered, reductions, [part]) for part in parts]
        return [points_of(self.graph, covered, reductions, self.roots(nodes))]

    # The result.

    def kernels(self) -> list[LirKernel]:
        groups = list(dict.fromkeys(self.group_of.values()))
        made = {id(group): self.kernel(group) for group in groups}
        return [made[id(group)] for group in self.ordered(groups)]

    def kernel(self, group: _Group) -> LirKernel:
        covered: set[NodeId] = set()
        read: dict[NodeId, None] = {}
        stack = list(group.nodes)
        while stack:
            node = stack.pop()
            if node in covered:
                continue
            if node in self.transparent or node in group.nodes:
                covered.add(node)
                stack.extend(self.graph.nodes[node].inputs)
        nodes = sorted(covered)
        for node in nodes:
            read.update((i, None) for i in self.graph.nodes[node].inputs if i not in covered)
        kind = {"concat": "map"}.get(group.kind, group.kind)
        roots = [group.head] if group.kind in ("call", "view") else self.roots(group.nodes)
        if kind == "map" and self.has_reductions(group):
            kind = self.kind_of_rows(group, roots)
        if kind == "matmul":
            # The product comes first: it is what the kernel is made for.
            nodes = [group.head, *(n for n in nodes if n != group.head)]
        return LirKernel.of(kind, nodes, read, roots)

    def kind_of_rows(self, group: _Group, roots: list[NodeId]) -> str:
        """`row` if something with the axes of the rows is stored, `reduce` if all that is stored has lost them."""
        (points,) = self.points("map", group.nodes)
        joined = {k for k, is_joined in enumerate(points.nest.reduced) if is_joined}
        stored = (points.points[r].maps for r in points.roots)
        return "row" if any(k in joined for maps in stored for m in maps for k, _ in m.terms) else "reduce"

    def ordered(self, groups: list[_Group]) -> Iterator[_Group]:
        """Producers first, else in the order of the program; effects stay in their order."""
        effects = [g for g in groups if self.graph.nodes[g.head].op.effect]
        before = {id(g): {id(p) for p in self.producers(g)} for g in groups}
        for earlier, later in zip(effects, effects[1:]):
            before[id(later)].add(id(earlier))
        after: dict[int, list[_Group]] = {id(g): [] for g in groups}
        for group in groups:
            for producer in before[id(group)]:
                after[producer].append(group)
        waiting = {key: len(producers) for key, producers in before.items()}
        ready = [(max(g.nodes), n, g) for n, g in enumerate(groups) if not waiting[id(g)]]
        heapq.heapify(ready)
        number = len(groups)
        while ready:
            _, _, group = heapq.heappop(ready)
            yield group
            for later in after[id(group)]:
                waiting[id(later)] -= 1
                if not waiting[id(later)]:
                    number += 1
                    heapq.heappush(ready, (max(later.nodes), number, later))

    def barriers(self) -> list[UnfusedEdge]:
        found = []
        for node in self.graph.nodes:
            reader = self.group_of.get(node.id)
            if reader is None or reader.kind == "view":
                continue
            for base in dict.fromkeys(map(self.named, self.bases(node.id))):
                producer = self.group_of.get(base)
                if producer is None or producer is reader:
                    continue
                reason = self.barrier(producer, reader)
                source = node.origin.source if node.origin else None
                # What could still be joined was left alone by the order in which others were.
                found.append(UnfusedEdge(base, node.id, reason or FusionBarrier.OtherPath, source))
        return found


    def named(self, node: NodeId) -> NodeId:
        """The value whose memory a stored view names."""
        while (group := self.group_of.get(node)) is not None and group.kind == "view":
            node = self.graph.nodes[node].inputs[0]
        return node


class _Covered:
    """What a kernel computes: its own nodes, and transparent ones."""

    def __init__(self, nodes: set[NodeId], transparent: set[NodeId]) -> None:
        self.nodes, self.transparent = nodes, transparent

    def __contains__(self, node: object) -> bool:
        return node in self.nodes or node in self.transparent


def is_memory(node: Node) -> bool:
    """A value that is in memory before anything runs."""
    return node.is_leaf or isinstance(node.op, Constant)


def is_literal(node: Node) -> bool:
    """A constant of one element, which kernels hold in their code."""
    return isinstance(node.op, Constant) and node.op.value.array.size == 1 and is_native(node)


def is_native(node: Node) -> bool:
    """Whether kernels can load and store values of this type."""
    return len(node.shapes) == 1 and not node.shape.dtype.is_complex and not node.shape.dtype.is_storage


def is_alias(graph: Graph, view: Node) -> bool:
    """Whether the elements of a stored view lie side by side in its operand, so that it needs no memory of its own."""
    return keeps_order(view) or is_pure_view(graph, view)
