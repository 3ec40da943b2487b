"""Values that are computed a second time instead of kept: cheap ones that are read again much later.

A training step reads in its backward pass what its forward pass has made. A value that follows from others by a few
pointwise ops (an activation, a normalised row times its gain) need not be kept if those others are kept anyway: when
it is read again it has left the caches, so that computing it costs about as much as fetching it.

    again = recompute_far(graph, kernels, generator)
    again.graph, again.kernels          # with the nodes and kernels of second computations

This works on kernels in their order: only there it is known what is stored, and until when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rlx.compile.fuse.index_maps import is_view
from rlx.compile.fuse.node_roles import CHEAP, is_memory, is_native
from rlx.compile.generators import Generator
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL, MAP, MATMUL, VIEW, KernelKind
from rlx.ir.lir import LirKernel
from rlx.ir.rewrite.equal_nodes import is_pure

# Smaller values are not worth a kernel.
LEAST_BYTES = 256 << 10
# Of the ops of a second computation: all, and those that take many instructions.
MAX_OPS, MAX_COSTLY = 8, 1


class Recomputed(NamedTuple):
    """A program with second computations, and where each old node went."""

    graph: Graph
    kernels: list[LirKernel]
    ids: dict[NodeId, NodeId]


class _Again(NamedTuple):
    """A value, the nodes that it is computed from again, the first kernel that reads it again, and all that do from
    there on."""

    value: NodeId
    nodes: tuple[NodeId, ...]
    bases: tuple[NodeId, ...]
    step: int
    readers: frozenset[int]
    # Whether the only reader is a map over the same elements, which computes it itself.
    is_inside: bool


def recompute_far(graph: Graph, kernels: Sequence[LirKernel], generator: Generator) -> Recomputed | None:
    """The program with cheap values computed again where they are read after `generator.cache_bytes` of others were
    stored; None if there are none."""
    if not generator.cache_bytes:
        return None
    found = _Search(graph, kernels, generator).found()
    return _rewritten(graph, kernels, found) if found else None


class _Search:
    def __init__(self, graph: Graph, kernels: Sequence[LirKernel], generator: Generator) -> None:
        self.graph, self.kernels, self.generator = graph, kernels, generator
        self.readers: dict[NodeId, list[int]] = {}
        self.named: set[NodeId] = {*graph.outputs}
        # Bytes stored by the kernels before each one.
        self.stored = [0]
        for step, kernel in enumerate(kernels):
            for node in kernel.inputs:
                self.readers.setdefault(node, []).append(step)
            # Who reads a view is not looked for; what a host call returns lies elsewhere.
            if kernel.kind in (VIEW, CALL):
                self.named.update(kernel.inputs)
            self.stored.append(self.stored[-1] + _bytes(graph, kernel.outputs if kernel.kind != VIEW else ()))
        self.outputs = {n for k in kernels for n in k.outputs}
        # What second computations read is kept.
        self.bases: set[NodeId] = set()

    def found(self) -> list[_Again]:
        found = []
        for step, kernel in enumerate(self.kernels):
            if not KernelKind.of(kernel.kind).has_loop_nest:
                continue
            for value in kernel.outputs:
                again = self.again(value, step)
                if again is not None:
                    found.append(again)
                    # What is read from there on is another value, and what it is computed from is read there.
                    self.readers[value] = [r for r in self.readers[value] if r not in again.readers]
                    for base in again.bases:
                        self.readers[base] = sorted({*self.readers.get(base, ()), again.step})
                    self.bases.update(again.bases)
        return found

    def again(self, value: NodeId, step: int) -> _Again | None:
        """The second computation of what a kernel stores, if it is read much later and is cheap there."""
        if value in self.named or value in self.bases or _bytes(self.graph, [value]) < LEAST_BYTES:
            return None
        late = self.late_readers(value, step)
        # A map that need not store a value at all is a map with one result less; rows are made for what they store.
        if not late or (len(late) == len(self.readers[value]) and self.kernels[step].kind != MAP):
            return None
        first = late[0]
        expression = self.expression(value, {*self.kernels[step].nodes}, first)
        if expression is None:
            return None
        nodes, bases = expression
        return _Again(value, nodes, bases, first, frozenset(late), self.is_inside(value, bases, late))

    def late_readers(self, value: NodeId, made: int) -> list[int]:
        """The readers behind the longest time in which nobody reads a value, if that is long enough."""
        readers = self.readers.get(value, [])
        gaps = [self.stored[b] - self.stored[a + 1] for a, b in zip([made, *readers], readers)]
        longest = max(gaps, default=0)
        return readers[gaps.index(longest) :] if longest >= self.generator.cache_bytes else []

    def expression(
        self, value: NodeId, inside: set[NodeId], step: int
    ) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]] | None:
        """The nodes between a value and what is in memory at a step, both in the order of the graph; None if it would
        cost too much."""
        nodes: set[NodeId] = set()
        bases: set[NodeId] = set()
        stack = [value]
        while stack:
            node = self.graph.nodes[stack.pop()]
            if node.id in nodes or node.id in bases:
                continue
            if node.id != value and self.is_there(node, step):
                bases.add(node.id)
            elif node.id in inside and self.may_repeat(node):
                nodes.add(node.id)
                stack.extend(node.inputs)
            else:
                return None
        ops = [self.graph.nodes[n].op.mnemonic for n in nodes if not is_view(self.graph, self.graph.nodes[n])]
        if not ops or len(ops) > MAX_OPS or sum(op not in CHEAP for op in ops) > MAX_COSTLY:
            return None
        return tuple(sorted(nodes)), tuple(sorted(bases))

    def is_there(self, node: Node, step: int) -> bool:
        """Whether a value is in memory at a step in any case, or was so shortly before and can stay."""
        if is_memory(node):
            return True
        if node.id not in self.outputs or node.id not in self.readers:
            return False
        last = max(self.readers[node.id], default=0)
        return last >= step or self.stored[step] - self.stored[last + 1] < self.generator.cache_bytes

    def may_repeat(self, node: Node) -> bool:
        if not is_native(node) or not is_pure(node.op):
            return False
        return is_view(self.graph, node) or self.generator.is_pointwise(self.graph, node)

    def is_inside(self, value: NodeId, bases: Iterable[NodeId], late: Sequence[int]) -> bool:
        reader = self.kernels[late[0]]
        if len(late) > 1 or reader.kind != MAP:
            return False
        dims = self.graph.shape(value).dims
        users = [n for n in map(self.graph.nodes.__getitem__, reader.nodes) if value in n.inputs]
        is_pointwise = all(self.generator.is_pointwise(self.graph, u) and u.shape.dims == dims for u in users)
        return is_pointwise and all(b in reader.inputs or is_memory(self.graph.nodes[b]) for b in bases)


class _Second(NamedTuple):
    """Where nodes went: those of the program, those of second computations by their value, and for every late reader
    the nodes that it has instead of others."""

    ids: dict[NodeId, NodeId]
    made: dict[NodeId, dict[NodeId, NodeId]]
    instead: dict[int, dict[NodeId, NodeId]]


def _rewritten(graph: Graph, kernels: Sequence[LirKernel], found: Sequence[_Again]) -> Recomputed:
    """The graph with second nodes, and the kernels with theirs. Nodes that several kernels read through, such as views
    of a value, are copied with it."""
    covered: dict[NodeId, list[int]] = {}
    for step, kernel in enumerate(kernels):
        for covered_node in kernel.nodes:
            covered.setdefault(covered_node, []).append(step)
    # A second computation stands in front of the first node that reads it.
    starts: dict[NodeId, list[_Again]] = {}
    for again in found:
        users = (n for r in again.readers for n in kernels[r].nodes if again.value in graph.nodes[n].inputs)
        starts.setdefault(min(users), []).append(again)
    new = graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    second = _Second(ids, {}, {r: {} for again in found for r in again.readers})
    for node in graph.nodes:
        for again in starts.get(node.id, ()):
            copies: dict[NodeId, NodeId] = {}
            for n in again.nodes:
                copies[n] = new.append_copy(graph.nodes[n], [copies.get(i, ids[i]) for i in graph.nodes[n].inputs])
            second.made[again.value] = copies
            for reader in again.readers:
                second.instead[reader][again.value] = copies[again.value]
        steps = covered.get(node.id, [])
        only = second.instead.get(steps[0], {}) if len(steps) == 1 else {}
        ids[node.id] = new.append_copy(node, [only.get(i, ids[i]) for i in node.inputs])
        for step in steps if len(steps) > 1 else ():
            theirs = second.instead.get(step, {})
            if not theirs.keys().isdisjoint(node.inputs):
                theirs[node.id] = new.append_copy(node, [theirs.get(i, ids[i]) for i in node.inputs])
    new.outputs = [ids[o] for o in graph.outputs]
    new.constraints = list(graph.constraints)
    repeated = {copies[value] for value, copies in second.made.items()}
    return Recomputed(new, _free_early(new, _with_second(new, kernels, found, second), repeated), ids)


def _with_second(
    graph: Graph, kernels: Sequence[LirKernel], found: Sequence[_Again], second: _Second
) -> list[LirKernel]:
    """The kernels on the new graph, each behind those that compute for it; what nobody reads any more is left out."""
    before: dict[int, list[_Again]] = {}
    for again in found:
        before.setdefault(again.step, []).append(again)
    result: list[LirKernel] = []
    for step, kernel in enumerate(kernels):
        instead = second.instead.get(step, {})
        nodes = [instead.get(n, second.ids[n]) for n in kernel.nodes]
        inputs = [instead.get(n, second.ids[n]) for n in kernel.inputs]
        for again in before.get(step, ()):
            copies = second.made[again.value]
            repeated = [copies[n] for n in again.nodes]
            if again.is_inside:
                nodes = sorted([*nodes, *repeated])
                inputs = [*(i for i in inputs if i not in repeated), *(second.ids[b] for b in again.bases)]
            else:
                result.append(LirKernel.of(MAP, repeated, (second.ids[b] for b in again.bases), [repeated[-1]]))
        result.append(LirKernel.of(kernel.kind, nodes, dict.fromkeys(inputs), (second.ids[o] for o in kernel.outputs)))
    read = {*graph.outputs, *(i for k in result for i in k.inputs)}
    dropped = {second.ids[again.value] for again in found} - read
    return [
        k if dropped.isdisjoint(k.outputs) else _without(graph, k, dropped) for k in result if {*k.outputs} - dropped
    ]


def _without(graph: Graph, kernel: LirKernel, dropped: set[NodeId]) -> LirKernel:
    """A kernel that does not store some of its results, with what it needs for the others."""
    outputs = [o for o in kernel.outputs if o not in dropped]
    inside, needed, stack = {*kernel.nodes}, set[NodeId](), list(outputs)
    while stack:
        node = stack.pop()
        if node in inside and node not in needed:
            needed.add(node)
            stack.extend(graph.nodes[node].inputs)
    nodes = [n for n in kernel.nodes if n in needed]
    read = dict.fromkeys(i for n in nodes for i in graph.nodes[n].inputs if i not in inside)
    return LirKernel.of(kernel.kind, nodes, read, outputs)


def _free_early(graph: Graph, kernels: Sequence[LirKernel], repeated: Collection[NodeId]) -> list[LirKernel]:
    """The kernels with products that take less than they free, as gradients of weights do, as early as they can run:
    what they are the last to read is gone before other kernels store their results. A value that is `repeated` for
    such a product alone comes with it."""
    makers = {n: step for step, k in enumerate(kernels) for n in k.outputs}
    readers: dict[NodeId, list[int]] = {}
    for step, kernel in enumerate(kernels):
        for node in kernel.inputs:
            readers.setdefault(node, []).append(step)
    places = list(range(len(kernels)))
    for step, kernel in enumerate(kernels):
        freed = [n for n in kernel.inputs if n in makers and readers[n][-1] == step]
        if kernel.kind != MATMUL or _bytes(graph, freed) < _bytes(graph, kernel.outputs):
            continue
        brought = [makers[n] for n in freed if n in repeated and readers[n] == [step]]
        needed = {n for s in (step, *brought) for n in kernels[s].inputs if makers.get(n) not in brought}
        place = max((makers[n] + 1 for n in needed if n in makers), default=step)
        for moved in (step, *brought) if place < min([step, *brought]) else ():
            places[moved] = place
    # Those that come early stand in front of what was there.
    order = sorted(range(len(kernels)), key=lambda step: (places[step], places[step] == step))
    return [kernels[step] for step in order]


def _bytes(graph: Graph, nodes: Iterable[NodeId]) -> int:
    """The size of some values; symbolic ones count as nothing."""
    sizes = (shape.byte_size for n in nodes for shape in graph.nodes[n].shapes)
    return sum(size for size in sizes if isinstance(size, int))
