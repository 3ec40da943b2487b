"""LIR in NumPy, inside the memory that its plan gives it.

Every kernel reads its inputs from memory, evaluates the nodes it covers by their definitions and stores its outputs
where the plan puts them: in one arena of bytes, or in a buffer of their own. So a plan that lets a value be stored over
another one that is still needed fails here, without any backend.

With `check` the memory knows which value its bytes belong to: reading a value that has been overwritten is an error
that names both, and so is a kernel that writes over its own operand where that cannot work. Memory that holds no value
is filled with bytes that are NaN in every float type and -1 in every integer type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.compile.fuse.index_maps import Unmappable, layout
from rlx.compile.fuse.loop_nest import is_reduction, points_of
from rlx.compile.memory.lir_liveness import lives_of, steps_of, viewed_values
from rlx.errors import BindingError, InternalError
from rlx.ir.binding import infer_binding
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import ROW
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.shape import Shape
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation
from rlx.ops.shape.dynamic_slices import DynamicUpdateSlice
from rlx.ops.shape.indexing import ScatterNd

Array = np.ndarray[Any, np.dtype[Any]]
Values = tuple[Array, ...]

POISON = 0xFF
_POINTWISE = (Activation, Binary, Compare, Where, Cast)
# Ops that change a part of their first operand: storing the result over it leaves the rest as it is.
_UPDATES = (DynamicUpdateSlice, ScatterNd)


def interpret_lir(
    lir: LirModule, leaves: Mapping[str, Array], binding: Mapping[str, int] | None = None, check: bool = True
) -> list[Array]:
    """The outputs of a planned program for inputs and params given by name.

    Symbols are bound from the shapes of the leaves; `binding` adds those that no leaf mentions.
    """
    graph = lir.as_graph()
    values = {n.op.key: _leaf_value(n, leaves) for n in graph.nodes if isinstance(n.op, Input | Param)}
    if lir.has_dynamic_dims():
        found = infer_binding([(key, graph.leaf(key).shape, v.shape) for key, v in values.items()])
        lir = lir.bind({**(binding or {}), **found})
    if lir.has_dynamic_dims():
        raise BindingError(f"@{lir.name}: nothing determines {', '.join(lir.dynamic_symbols())}; pass a binding")
    return _Run(lir, check).run(values)


def _leaf_value(node: Node, leaves: Mapping[str, Array]) -> Array:
    assert isinstance(node.op, Input | Param)
    if node.op.key not in leaves:
        raise BindingError(f"no value for {node.op.mnemonic} {node.op.key!r} ({node.shape})")
    array = np.asarray(leaves[node.op.key])
    if array.dtype != node.shape.dtype.numpy or array.ndim != node.shape.rank:
        raise BindingError(f"{node.op.key!r} is declared {node.shape}, got {array.dtype}{list(array.shape)}")
    return array


class _Run:
    def __init__(self, lir: LirModule, check: bool) -> None:
        self.graph, self.plan = lir.as_graph(), lir.buffers
        self.steps = steps_of(lir)
        self.check = check
        self.stands_for = viewed_values(lir)
        self.deaths: dict[int, list[NodeId]] = {}
        for node, life in lives_of(lir).items():
            self.deaths.setdefault(life.death, []).append(node)
        self.memory = Memory(lir, check)

    def run(self, leaves: Mapping[str, Array]) -> list[Array]:
        for node in self.graph.nodes:
            if isinstance(node.op, Input | Param):
                self.memory.store(node.id, (leaves[node.op.key],))
            elif isinstance(node.op, Constant):
                self.memory.store(node.id, (node.op.value.array,))
        for step, kernel in enumerate(self.steps):
            self.step(step, kernel)
            if self.check:
                self.memory.forget(self.deaths.get(step, ()))
        return [self.load(o, "the result")[0].copy() for o in self.graph.outputs]

    def load(self, node: NodeId, reader: str) -> Values:
        return self.memory.load(node, self.stands_for.get(node, node), reader)

    def step(self, step: int, kernel: LirKernel) -> None:
        reader = f"kernel {step} ({kernel.kind})"
        values = {i: self.load(i, reader) for i in kernel.inputs}
        # Kernels may list their main op first; the order of the graph is one in which all can be computed.
        for node_id in sorted(kernel.nodes):
            node = self.graph.nodes[node_id]
            absent = [i for i in node.inputs if i not in values]
            if absent:
                raise InternalError(f"{reader} computes {node!r} but neither reads nor computes {absent[0]}")
            values[node_id] = _evaluate(node, [a for i in node.inputs for a in values[i]])
        if self.check:
            self.check_places(kernel, reader)
        # Copied first: a result may be a view of an operand, and an operand may be overwritten.
        for node_id, results in [(n, tuple(a.copy() for a in values[n])) for n in kernel.outputs]:
            if node_id in self.stands_for:
                self.check_view(node_id, results, reader)
            else:
                self.memory.store(node_id, results)

    def check_view(self, node: NodeId, wanted: Values, reader: str) -> None:
        """A view names bytes that must already be what its op would compute."""
        if self.check and [_bytes(a) for a in self.load(node, reader)] != [_bytes(a) for a in wanted]:
            raise InternalError(f"{reader}: {self.graph.nodes[node]!r} is not what the plan's view of it names")

    def check_places(self, kernel: LirKernel, reader: str) -> None:
        """Outputs of one kernel lie apart, and over an input only where the kernel is done with it before it writes."""
        stored = [(n, self.memory.place(n)) for n in kernel.outputs if n not in self.stands_for]
        for k, (node, place) in enumerate(stored):
            for other, other_place in stored[:k]:
                if place.meets(other_place):
                    raise InternalError(f"{reader} stores {other} and {node} in the same place")
            for source in kernel.inputs:
                at = self.memory.place(source)
                if place.meets(at) and not (place == at and may_overwrite(self.graph, kernel, source)):
                    raise InternalError(f"{reader} stores {node} over {source} while it still reads it")


def may_overwrite(graph: Graph, kernel: LirKernel, source: NodeId) -> bool:
    """Whether a kernel may store a result exactly over its input `source`.

    It may when every element of what it computes from `source` needs that very element only, so that it is read before
    it is overwritten; a `row` kernel holds a whole row before it writes one. Updates of a part leave the rest in place.
    """
    if kernel.kind == ROW:
        return _reads_in_place(graph, kernel, source)
    dims = graph.shape(source).dims
    after: set[NodeId] = {source}
    for node in (graph.nodes[i] for i in sorted(kernel.nodes)):
        if not after.intersection(node.inputs):
            continue
        after.add(node.id)
        if isinstance(node.op, _UPDATES) and node.inputs[0] in after and not after.intersection(node.inputs[1:]):
            continue
        if not isinstance(node.op, _POINTWISE) or node.shape.dims != dims:
            return False
    return True


def _reads_in_place(graph: Graph, kernel: LirKernel, source: NodeId) -> bool:
    """Whether a row kernel reads `source` only where its loops are: no transposed rows, no rows of others."""
    nodes = [graph.nodes[i] for i in sorted(kernel.nodes)]
    try:
        reductions = [n for n in nodes if is_reduction(graph, n)]
        found = points_of(graph, frozenset(kernel.nodes), reductions, kernel.outputs)
    except Unmappable:
        return False
    own = found.nest.full(graph.shape(source).dims)
    if own is None or any(p.lookup is not None and p.lookup.memory == source for p in found.points):
        return False
    place = layout(graph.shape(source).dims, own, len(found.nest.sizes))
    return all(p.layout(found.nest) == place for p in found.points if p.is_read and p.node.id == source)


class Place(NamedTuple):
    """A range of bytes: of the arena, or of the buffer that `owner` has for itself."""

    owner: NodeId | None
    start: int
    stop: int

    def meets(self, other: Place) -> bool:
        return self.owner == other.owner and self.start < other.stop and other.start < self.stop


class Memory:
    """The arena, the buffers beside it, and which value lies where."""

    def __init__(self, lir: LirModule, check: bool) -> None:
        self.graph, self.plan, self.check = lir.as_graph(), lir.buffers, check
        assert isinstance(lir.arena_size, int)
        self.buffers: dict[NodeId | None, Array] = {None: np.full(lir.arena_size, POISON, np.uint8)}
        # Which values lie in each buffer, and what became of those that no longer do.
        self.held: dict[NodeId | None, dict[NodeId, Place]] = {}
        self.lost: dict[NodeId, str] = {}

    def shapes(self, node: NodeId) -> tuple[Shape, ...]:
        return self.graph.nodes[node].shapes

    def place(self, node: NodeId) -> Place:
        view = self.plan.view_aliases.get(node)
        root, offset = (node, 0) if view is None else (view.root, int(view.byte_offset))
        stop = offset + self.size(node)
        slot = self.plan.slot(root)
        if stop > (self.size(root) if slot is None else int(slot.size)):
            raise InternalError(f"{node} needs {stop} bytes of the buffer of {root}, which is smaller")
        if slot is None:
            return Place(root, offset, stop)
        place = Place(None, int(slot.offset) + offset, int(slot.offset) + stop)
        if place.stop > len(self.buffers[None]):
            raise InternalError(f"{node} ends at byte {place.stop} of an arena of {len(self.buffers[None])} bytes")
        return place

    def size(self, node: NodeId) -> int:
        return sum(int(s.byte_size) for s in self.shapes(node))

    def bytes_at(self, place: Place) -> Array:
        if place.owner not in self.buffers:
            assert place.owner is not None
            self.buffers[place.owner] = np.full(self.size(place.owner), POISON, np.uint8)
        return self.buffers[place.owner][place.start : place.stop]

    def store(self, node: NodeId, values: Values) -> None:
        """Put a value where the plan says; results of one node lie one after the other."""
        place = self.place(node)
        if place.owner is not None and place.owner != node and not self.may_write_into(place.owner):
            raise InternalError(f"{node} is stored over {self.graph.nodes[place.owner]!r}, which is not the program's")
        self.bytes_at(place)[:] = np.frombuffer(b"".join(_bytes(a) for a in values), np.uint8)
        if self.check:
            held = self.held.setdefault(place.owner, {})
            for other in [n for n, p in held.items() if n != node and p.meets(place)]:
                del held[other]
                self.lost[other] = f"{node} was stored over it"
            held[node] = place

    def may_write_into(self, owner: NodeId) -> bool:
        """Whether a buffer belongs to the program: it was computed, or it is an input that was given away."""
        op = self.graph.nodes[owner].op
        is_given = isinstance(op, Input) and op.key in self.graph.aliases.values()
        return is_given or not isinstance(op, Input | Param | Constant)

    def load(self, node: NodeId, owner: NodeId, reader: str) -> Values:
        """The value of `node`, whose bytes are those of `owner` or a part of them."""
        if self.check and owner not in self.held.get(self.place(owner).owner, ()):
            raise InternalError(f"{reader} reads {node}, but {self.lost.get(owner, f'{owner} was never stored')}")
        taken = self.bytes_at(self.place(node))
        values, start = [], 0
        for shape in self.shapes(node):
            stop = start + int(shape.byte_size)
            values.append(taken[start:stop].view(shape.dtype.numpy).reshape(shape.static_dims))
            start = stop
        return tuple(values)

    def forget(self, nodes: Iterable[NodeId]) -> None:
        """Fill what dead values leave behind; what has been overwritten belongs to another already."""
        for node in nodes:
            place = self.held.get(self.place(node).owner, {}).pop(node, None)
            if place is not None:
                self.bytes_at(place)[:] = POISON
                self.lost[node] = "its last reader has run"


def _evaluate(node: Node, operands: Sequence[Array]) -> Values:
    result = node.op.eval(*operands)
    return tuple(np.asarray(r) for r in result) if isinstance(result, tuple) else (np.asarray(result),)


def _bytes(array: Array) -> bytes:
    return array.tobytes()
