"""Results that are stored over something: over the operand that a kernel updates, or over an input given away.

A kernel that changes a part of an operand (`OwnKernel.updates`) always stores over it. That operand is therefore
a copy, `y = update(copy(x), ..)`, which `with_copies` puts there before kernels are formed; `store_in_place` finds the
copies that need not be made. A copy is not made where its value can be given up: a kernel computed it into memory of
the program's own (or it lies in an input that the caller gave away for the result), nobody returns it, and all others
who read it can run before the update.

An output that is to be stored over an input (`graph.aliases`) and is no update of it is stored there by the kernel
that computes it, if all who read the input can run before. Outputs for which neither works have memory of their own.

A large value that a map computes from another one, element by element, is stored over it if nobody needs that later:
the gradient of logits over the logits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rlx.compile.generators import Generator
from rlx.compile.memory.interpret import may_overwrite
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL, MAP, REDUCE, VIEW, KernelKind
from rlx.ir.lir import LirKernel
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.tensor import Tensor
from rlx.ops.shape.movement import Reshape

Edge = tuple[int, int]

# Values from this size on decide how much memory a program needs; smaller ones stay in the order that was found.
LARGE_BYTES = 64 << 20


def with_copies(graph: Graph, generator: Generator) -> Graph:
    """The graph with a copy, an identity reshape, of every operand that a kernel will store over."""
    updates = {n.id: own.updates for n in graph.nodes if (own := generator.own_kernel(graph, n)) is not None}

    def visit(node: Node, operands: list[Tensor]) -> Replacement:
        number = updates.get(node.id)
        if number is None:
            return None
        x = operands[number]
        operands[number] = Reshape(x.shape)(x)
        replacement: Replacement = node.op(*operands)
        return replacement

    return graph if not any(n is not None for n in updates.values()) else rebuild(graph, visit, "with_copies").graph


class InPlace(NamedTuple):
    """Kernels in an order in which they can run in place; `stored_over` has for results the value they replace."""

    kernels: list[LirKernel]
    stored_over: dict[NodeId, NodeId]


def store_in_place(graph: Graph, kernels: Sequence[LirKernel], generator: Generator) -> InPlace:
    """Decide which copies are made, what is stored over inputs, and the order in which that works."""
    updates = [_updates(graph, k, generator) for k in kernels]
    has_large = any(k.kind == MAP and any(_is_large(graph, n) for n in k.outputs) for k in kernels)
    if not graph.aliases and not any(updates) and not has_large:
        return InPlace(list(kernels), {})
    placing = _Placing(graph, kernels, updates)
    placing.place_updates()
    placing.place_outputs()
    placing.place_large_values()
    return placing.result()


def _is_large(graph: Graph, node: NodeId) -> bool:
    shape = graph.shape(node)
    return shape.is_static and isinstance(shape.byte_size, int) and shape.byte_size >= LARGE_BYTES


class _Update(NamedTuple):
    """A kernel by its number, the copy that it stores over, and its result."""

    kernel: int
    copy: NodeId
    result: NodeId


def _updates(graph: Graph, kernel: LirKernel, generator: Generator) -> list[tuple[NodeId, NodeId]]:
    """The copies that a kernel stores over, each with the result that it stores there."""
    if not KernelKind.of(kernel.kind).is_native:
        return []
    # A map may be several updates, each an op that would have a kernel of its own; other kernels are one op.
    heads = kernel.outputs if kernel.kind == MAP else kernel.nodes[:1]
    results = kernel.outputs if kernel.kind == MAP else kernel.outputs[:1]
    found = []
    for head, result in zip((graph.nodes[i] for i in heads), results):
        own = generator.own_kernel(graph, head)
        if own is not None and own.updates is not None:
            found.append((head.inputs[own.updates], result))
    return found


class _Placing:
    def __init__(
        self, graph: Graph, kernels: Sequence[LirKernel], updates: Sequence[Sequence[tuple[NodeId, NodeId]]]
    ) -> None:
        self.graph, self.kernels = graph, list(kernels)
        self.updates = [_Update(n, *pair) for n, found in enumerate(updates) for pair in found]
        self.maker = {n: number for number, k in enumerate(kernels) for n in k.outputs}
        copies = {u.copy for u in self.updates}
        self.view_of = {k.nodes[0]: k.inputs[0] for k in kernels if k.kind == VIEW and k.nodes[0] not in copies}
        self.copied = {u.copy: self.value(graph.nodes[u.copy].inputs[0]) for u in self.updates}
        self.readers: dict[NodeId, set[int]] = {}
        for number, kernel in enumerate(kernels):
            for node in kernel.inputs:
                if kernel.nodes[0] not in self.view_of:
                    self.readers.setdefault(self.value(node), set()).add(number)
        # Needed to the end: returned values, and those of which a view is returned.
        self.returned = {self.value(o) for o in graph.outputs}
        self.given = {number: graph.leaf(key).id for number, key in _first_uses(graph.aliases)}
        self.stored_over: dict[NodeId, NodeId] = {}
        self.lost: set[NodeId] = set()
        self.order = _Order(graph, self.kernels)

    def value(self, node: NodeId) -> NodeId:
        """The value whose memory a view names; a copy is a value of its own."""
        while node in self.view_of:
            node = self.view_of[node]
        return node

    def place_updates(self) -> None:
        wanted = self.updates_of_inputs()
        for update in self.updates:
            self.stored_over[update.result] = update.copy
            source = self.copied[update.copy]
            if self.may_lose(source, update, wanted) and self.can_follow(source, update):
                self.lost.add(source)
            else:
                self.make(update.copy)
        self.keep_inputs()

    def make(self, copy: NodeId) -> None:
        number = self.maker[copy]
        self.kernels[number] = self.kernels[number]._replace(kind=MAP)

    def is_made(self, copy: NodeId) -> bool:
        return self.kernels[self.maker[copy]].kind == MAP

    def keep_inputs(self) -> None:
        """Leave inputs alone whose output does not end up in their memory after all."""
        kept = {source for number, source in self.given.items() if self.place(self.outputs_value(number)) != source}
        for update in self.updates:
            source = self.copied[update.copy]
            if source in kept and not self.is_made(update.copy):
                self.make(update.copy)
                self.lost.discard(source)

    def outputs_value(self, number: int) -> NodeId:
        """The value that an output is or names."""
        return self.value(self.returned_as_it_is(self.graph.outputs[number]))

    def place(self, value: NodeId) -> NodeId:
        """The value that owned the memory of a value first: for an update the copy, if one was made, else what it would
        have been made of."""
        while value in self.stored_over:
            below = self.stored_over[value]
            value = self.copied[below] if below in self.copied and not self.is_made(below) else below
        return value

    def updates_of_inputs(self) -> dict[NodeId, NodeId]:
        """For every update on the way from an input to the output that is to be stored over it: that input."""
        by_result = {u.result: u for u in self.updates}
        found: dict[NodeId, NodeId] = {}
        for number, source in self.given.items():
            way: list[NodeId] = []
            node = self.outputs_value(number)
            while node in by_result:
                way.append(node)
                node = self.copied[by_result[node].copy]
            if node == source:
                found.update(dict.fromkeys(way, source))
        return found

    def returned_as_it_is(self, output: NodeId) -> NodeId:
        """The value that an output names by a reshape alone; otherwise the output itself."""
        node = self.graph.nodes[output]
        while isinstance(node.op, Reshape):
            node = self.graph.nodes[node.inputs[0]]
        return node.id

    def may_lose(self, source: NodeId, update: _Update, wanted: dict[NodeId, NodeId]) -> bool:
        """Whether the memory of a value may be written, and nobody needs the value to the end."""
        if source in self.lost or source in self.returned:
            return False
        place = self.place(source)
        if self.graph.nodes[place].is_leaf:
            return wanted.get(update.result) == place
        return place in self.maker and self.kernels[self.maker[place]].kind != CALL

    def can_follow(self, source: NodeId, update: _Update) -> bool:
        """Whether the update can run after all others that read what it replaces."""
        others = self.readers[source] - {self.maker[update.copy]}
        return update.kernel not in others and self.order.add((reader, update.kernel) for reader in others)

    def place_outputs(self) -> None:
        """Outputs that are no updates of the input that they are to replace."""
        for number, source in self.given.items():
            output = self.graph.outputs[number]
            if self.value(output) != output or output in self.stored_over or source in self.lost:
                continue
            if self.replaces(output, source):
                self.stored_over[output] = source
                self.lost.add(source)

    def place_large_values(self) -> None:
        for kernel in (k for k in self.kernels if k.kind == MAP and len(k.outputs) == 1):
            (result,) = kernel.outputs
            if result in self.returned or result in self.stored_over or not _is_large(self.graph, result):
                continue
            for source in kernel.inputs:
                if self.can_hold(source, result) and self.replaces(result, source):
                    self.stored_over[result] = source
                    self.lost.add(source)
                    break

    def can_hold(self, source: NodeId, result: NodeId) -> bool:
        """Whether a value has memory of its own, which may become that of another one."""
        is_own = source in self.maker and self.value(source) == source and source not in self.copied
        if not is_own or source in self.lost or source in self.stored_over:
            return False
        shapes = [self.graph.shape(n) for n in (source, result)]
        is_native = self.kernels[self.maker[source]].kind != CALL
        return is_native and shapes[0].dtype is shapes[1].dtype and shapes[0].dims == shapes[1].dims

    def replaces(self, output: NodeId, source: NodeId) -> bool:
        if source in self.returned or output not in self.maker:
            return False
        number = self.maker[output]
        kernel, readers = self.kernels[number], self.readers.get(source, set())
        if kernel.kind == CALL:
            return False
        if number in readers:
            # The kernel reads each element of the input where it writes it; one that joins rows when they are joined.
            through_views = any(self.value(i) == source != i for i in kernel.inputs)
            if kernel.kind not in (MAP, REDUCE) or through_views or not may_overwrite(self.graph, kernel, source):
                return False
        return self.order.add((reader, number) for reader in readers - {number})

    def result(self) -> InPlace:
        self.name_results()
        return InPlace([self.kernels[n] for n in self.order.numbers], self.stored_over)

    def name_results(self) -> None:
        """An output that is a reshape of what lies in its input already only names it."""
        for number, source in self.given.items():
            output = self.graph.outputs[number]
            below = self.returned_as_it_is(output)
            if below == output or output not in self.maker or self.place(below) != source:
                continue
            kernel = self.kernels[self.maker[output]]
            if kernel.nodes[0] == output and kernel.inputs[:1] == (below,):
                self.kernels[self.maker[output]] = kernel._replace(kind=VIEW)


def _first_uses(aliases: dict[int, str]) -> Iterable[tuple[int, str]]:
    """Each input once: it can hold one output only."""
    seen: set[str] = set()
    for number in sorted(aliases):
        if aliases[number] not in seen:
            seen.add(aliases[number])
            yield number, aliases[number]


class _Order:
    """An order of kernels in which everything runs after what it needs; further conditions can be added."""

    def __init__(self, graph: Graph, kernels: Sequence[LirKernel]) -> None:
        maker = {n: number for number, k in enumerate(kernels) for n in k.outputs}
        self.edges = {(maker[i], number) for number, k in enumerate(kernels) for i in k.inputs if i in maker}
        effects = [n for n, k in enumerate(kernels) if any(graph.nodes[i].op.effect for i in k.nodes)]
        self.edges.update(pairwise(effects))
        self.numbers = list(range(len(kernels)))
        self.position = list(range(len(kernels)))

    def add(self, edges: Iterable[Edge]) -> bool:
        """Ask for first before second in each of the edges; False, and nothing changes, if that cannot be."""
        added = set(edges)
        if any(self.position[first] >= self.position[second] for first, second in added):
            numbers = self.sorted(self.edges | added)
            if numbers is None:
                return False
            self.numbers = numbers
            for position, number in enumerate(numbers):
                self.position[number] = position
        self.edges |= added
        return True

    def sorted(self, edges: set[Edge]) -> list[int] | None:
        """By the first order, except where edges ask for another; None if they contradict each other."""
        after: dict[int, list[int]] = {}
        waiting = [0] * len(self.numbers)
        for first, second in edges:
            after.setdefault(first, []).append(second)
            waiting[second] += 1
        ready = [n for n, count in enumerate(waiting) if count == 0]
        found: list[int] = []
        while ready:
            number = heapq.heappop(ready)
            found.append(number)
            for later in after.get(number, ()):
                waiting[later] -= 1
                if waiting[later] == 0:
                    heapq.heappush(ready, later)
        return found if len(found) == len(self.numbers) else None
