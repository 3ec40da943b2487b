"""LIR: the optimised MIR together with where every value lives and when every node runs.

Offsets and sizes may be symbolic: the order of the buffers is planned once, and `bind` gives the numbers for one set
of sizes. The planner is in `rlx.compile`; the containers here can be made and read by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlx.errors import FormatError, InternalError
from rlx.ir.dim_binding import by_name
from rlx.ir.dims import Dim, as_dim, bind_dim, dim_max
from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Input, Param
from rlx.ir.module import MirModule
from rlx.ir.phase import Phase, PhaseSchedule
from rlx.ir.shape import Size

# Part of every fingerprint: raised when the same plan no longer means the same program.
LIR_VERSION = 1


class LirBufferSlot(NamedTuple):
    """A range of bytes in the arena."""

    offset: Size
    size: Size

    def bind(self, binding: Mapping[str, int | Dim]) -> LirBufferSlot:
        return LirBufferSlot(bind_dim(self.offset, binding), bind_dim(self.size, binding))


class LirViewAlias(NamedTuple):
    """A value that lives inside the buffer of `root`, `byte_offset` bytes after its start."""

    root: NodeId
    byte_offset: Size = 0

    def bind(self, binding: Mapping[str, int | Dim]) -> LirViewAlias:
        return LirViewAlias(self.root, bind_dim(self.byte_offset, binding))


class LirIoManifest(NamedTuple):
    """The boundary of a program: named inputs and params, and the output nodes."""

    inputs: tuple[tuple[str, NodeId], ...] = ()
    params: tuple[tuple[str, NodeId], ...] = ()
    outputs: tuple[NodeId, ...] = ()

    @staticmethod
    def collect(graph: Graph) -> LirIoManifest:
        inputs = tuple((n.op.key, n.id) for n in graph.nodes if isinstance(n.op, Input))
        params = tuple((n.op.key, n.id) for n in graph.nodes if isinstance(n.op, Param))
        return LirIoManifest(inputs, params, tuple(graph.outputs))


class LirKernel(NamedTuple):
    """One unit of execution: the nodes it computes together, what it reads, and which results it stores.

    `kind` says how it runs: a `KernelKind`, or the family of an op with a kernel of its own.
    """

    kind: str
    nodes: tuple[NodeId, ...]
    inputs: tuple[NodeId, ...]
    outputs: tuple[NodeId, ...]

    @staticmethod
    def of(kind: str, nodes: Iterable[int], inputs: Iterable[int], outputs: Iterable[int]) -> LirKernel:
        return LirKernel(kind, *(tuple(NodeId(i) for i in ids) for ids in (nodes, inputs, outputs)))


def _offset_order(offset: Size) -> tuple[bool, int]:
    return (False, offset) if isinstance(offset, int) else (True, 0)


@dataclass
class LirBufferPlan:
    """Slots, views, order of execution and phases of all nodes of one graph."""

    arena_size: Size = 0
    assignments: dict[NodeId, LirBufferSlot] = field(default_factory=dict)
    schedule: list[NodeId] = field(default_factory=list)
    view_aliases: dict[NodeId, LirViewAlias] = field(default_factory=dict)
    phases: PhaseSchedule = field(default_factory=PhaseSchedule)
    io: LirIoManifest = field(default_factory=LirIoManifest)
    alignment: int = 64
    dynamic_symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Plans written by hand may use plain ints for ids.
        self.assignments = {NodeId(n): slot for n, slot in self.assignments.items()}
        self.schedule = [NodeId(n) for n in self.schedule]
        self.view_aliases = {NodeId(n): v._replace(root=NodeId(v.root)) for n, v in self.view_aliases.items()}

    def slot(self, node: int) -> LirBufferSlot | None:
        """The buffer that a node owns; None for views and for nodes outside the arena."""
        return self.assignments.get(NodeId(node))

    def is_view(self, node: int) -> bool:
        return node in self.view_aliases

    def address(self, node: int) -> Size | None:
        """The arena offset of a value, views included; None when it does not live in the arena."""
        view = self.view_aliases.get(NodeId(node))
        if view is None:
            slot = self.slot(node)
            return None if slot is None else slot.offset
        root = self.slot(view.root)
        return None if root is None else root.offset + view.byte_offset

    def phase_of(self, node: int) -> Phase | None:
        return self.phases.get(node)

    def nodes_in_phase(self, phase: Phase) -> list[NodeId]:
        """The nodes of one phase, in the order of execution."""
        return [NodeId(n) for n in self.phases.nodes_in_ordered(phase, self.schedule)]

    def largest_id(self) -> int:
        """The largest node id that the plan names, -1 when it names none."""
        views = (v.root for v in self.view_aliases.values())
        boundary = (*(n for _, n in self.io.inputs), *(n for _, n in self.io.params), *self.io.outputs)
        return max((*self.assignments, *self.view_aliases, *views, *self.schedule, *boundary), default=-1)

    @property
    def total_unshared_bytes(self) -> Size:
        """What the buffers would need if none shared memory."""
        total: Size = 0
        for slot in self.assignments.values():
            total = total + slot.size
        return total

    @property
    def bytes_saved(self) -> Size:
        """How much sharing saves."""
        return dim_max(0, self.total_unshared_bytes - self.arena_size)

    def report(self) -> str:
        """The arena in a line of numbers, then offset, size and node of every buffer, in the order of offsets."""
        header = f"# arena_size={self.arena_size} total_unshared={self.total_unshared_bytes} saved={self.bytes_saved}"
        # Symbolic offsets have no order of their own; theirs is that of the nodes.
        known = sorted(self.assignments.items(), key=lambda item: (_offset_order(item[1].offset), item[0]))
        return "\n".join([header, *(f"{slot.offset}\t{slot.size}\t{node}" for node, slot in known)]) + "\n"

    def bind(self, binding: Mapping[str, int | Dim]) -> LirBufferPlan:
        """The plan for one set of sizes."""
        binding = by_name(binding)
        return LirBufferPlan(
            bind_dim(self.arena_size, binding),
            {node: slot.bind(binding) for node, slot in self.assignments.items()},
            list(self.schedule),
            {node: view.bind(binding) for node, view in self.view_aliases.items()},
            self.phases,
            self.io,
            self.alignment,
            tuple(s for s in self.dynamic_symbols if s not in binding),
        )

    def renumbered(self, number: Mapping[NodeId, NodeId]) -> LirBufferPlan:
        """The plan of the same graph with its nodes numbered otherwise."""
        phases = PhaseSchedule()
        for node, phase in self.phases:
            phases.set(number[NodeId(node)], phase)
        inputs, params = (tuple((key, number[n]) for key, n in leaves) for leaves in self.io[:2])
        return LirBufferPlan(
            self.arena_size,
            {number[n]: slot for n, slot in self.assignments.items()},
            [number[n] for n in self.schedule],
            {number[n]: LirViewAlias(number[v.root], v.byte_offset) for n, v in self.view_aliases.items()},
            phases,
            LirIoManifest(inputs, params, tuple(number[n] for n in self.io.outputs)),
            self.alignment,
            self.dynamic_symbols,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, ints and strings; symbolic sizes are written as text."""
        return {
            "arena_size": _write(self.arena_size),
            "assignments": [[int(n), _write(s.offset), _write(s.size)] for n, s in self.assignments.items()],
            "schedule": [int(n) for n in self.schedule],
            "view_aliases": [[int(n), int(v.root), _write(v.byte_offset)] for n, v in self.view_aliases.items()],
            "phases": [[int(n), p.value] for n, p in self.phases],
            "io": {
                "inputs": [[name, int(n)] for name, n in self.io.inputs],
                "params": [[name, int(n)] for name, n in self.io.params],
                "outputs": [int(n) for n in self.io.outputs],
            },
            "alignment": self.alignment,
            "dynamic_symbols": list(self.dynamic_symbols),
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> LirBufferPlan:
        """The plan that `to_json` wrote; a FormatError for anything else."""
        try:
            return _read_plan(document)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"not a buffer plan: {type(error).__name__}: {error}") from None


def _write(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)


def _read_plan(document: Mapping[str, Any]) -> LirBufferPlan:
    phases = PhaseSchedule()
    for node, phase in document["phases"]:
        phases.set(_read_id(node), Phase(phase))
    io = document["io"]
    return LirBufferPlan(
        as_dim(document["arena_size"]),
        {_read_id(n): LirBufferSlot(as_dim(offset), as_dim(size)) for n, offset, size in document["assignments"]},
        [_read_id(n) for n in document["schedule"]],
        {_read_id(n): LirViewAlias(_read_id(root), as_dim(o)) for n, root, o in document["view_aliases"]},
        phases,
        LirIoManifest(
            tuple((str(name), _read_id(n)) for name, n in io["inputs"]),
            tuple((str(name), _read_id(n)) for name, n in io["params"]),
            tuple(_read_id(n) for n in io["outputs"]),
        ),
        int(document["alignment"]),
        tuple(str(s) for s in document["dynamic_symbols"]),
    )


def _read_id(value: Any) -> NodeId:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a node id")
    return NodeId(value)


class LirFingerprint(int):
    """64 bits that identify a planned program on every machine; prints as 16 hex digits."""

    __slots__ = ()

    @staticmethod
    def of(graph: Graph, plan: LirBufferPlan, kernels: Iterable[LirKernel] = ()) -> LirFingerprint:
        """blake2b over the program text (constants by content, bodies included), plan, kernels and LIR version."""
        text = json.dumps([LIR_VERSION, str(graph), plan.to_json(), list(kernels)], separators=(",", ":"))
        return LirFingerprint(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"))

    def __str__(self) -> str:
        return f"{int(self):016x}"

    __repr__ = __str__


class LirModule:
    """A graph, how it is cut into kernels, and its buffer plan."""

    __slots__ = ("buffers", "kernels", "mir")

    def __init__(self, mir: MirModule | Graph, buffers: LirBufferPlan, kernels: Iterable[LirKernel] = ()) -> None:
        self.mir = mir if isinstance(mir, MirModule) else MirModule.from_graph(mir)
        self.buffers = buffers
        self.kernels = tuple(kernels)
        if buffers.largest_id() >= len(self.mir):
            raise InternalError(
                f"the plan of @{self.name} names node {buffers.largest_id()}, the graph has {len(self.mir)} nodes"
            )

    @property
    def name(self) -> str:
        return self.mir.name

    @property
    def arena_size(self) -> Size:
        return self.buffers.arena_size

    @property
    def plan(self) -> LirBufferPlan:
        return self.buffers

    def fingerprint(self) -> LirFingerprint:
        return LirFingerprint.of(self.as_graph(), self.buffers, self.kernels)

    def into_graph(self) -> Graph:
        return self.mir.into_graph()

    as_graph = into_graph

    def dynamic_symbols(self) -> tuple[str, ...]:
        return tuple(sorted({*self.as_graph().dynamic_symbols(), *self.buffers.dynamic_symbols}))

    def has_dynamic_dims(self) -> bool:
        return bool(self.dynamic_symbols())

    def is_fully_static(self) -> bool:
        return not self.has_dynamic_dims()

    def bind(self, binding: Mapping[str, int | Dim]) -> LirModule:
        """The module for one set of sizes; the order of buffers stays."""
        return LirModule(self.as_graph().bind(binding), self.buffers.bind(binding), self.kernels)

    def inspect(self) -> str:
        from rlx.ir.text.inspect import inspect_lir

        return inspect_lir(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LirModule):
            return False
        return self.mir == other.mir and self._canonical() == other._canonical()

    def _canonical(self) -> tuple[LirBufferPlan, list[LirKernel]]:
        """Plan and kernels with nodes numbered as the text has them, leaves first and not scheduled."""
        graph = self.as_graph()
        order = sorted(graph.nodes, key=lambda n: not n.is_leaf)
        number = {n.id: NodeId(i) for i, n in enumerate(order)}
        plan = self.buffers.renumbered(number)
        plan.schedule = [number[i] for i in self.buffers.schedule if not graph.nodes[i].is_leaf]
        kernels = [LirKernel.of(k.kind, *((number[i] for i in ids) for ids in k[1:])) for k in self.kernels]
        return plan, kernels

    def __hash__(self) -> int:
        return hash(self.mir)

    def __str__(self) -> str:
        from rlx.ir.text.lir_text import show_lir

        return show_lir(self)

    def __repr__(self) -> str:
        return f"<LirModule @{self.name}: {len(self.mir)} nodes, arena {self.arena_size}>"


def lir_to_json(lir: LirModule) -> str:
    """The graph and its plan as JSON."""
    from rlx.ir.serialize import to_json

    graph = json.loads(to_json(lir.as_graph()))
    kernels = [
        [k.kind, [int(i) for i in k.nodes], [int(i) for i in k.inputs], [int(i) for i in k.outputs]]
        for k in lir.kernels
    ]
    document = {"format": "rlx.lir", "version": LIR_VERSION, "graph": graph, "plan": lir.buffers.to_json()}
    return json.dumps(document | {"kernels": kernels})


def lir_from_json(text: str | bytes) -> LirModule:
    """The module that `lir_to_json` wrote; a FormatError for anything else."""
    from rlx.ir.serialize import from_json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != "rlx.lir":
        raise FormatError("this is not an rlx LIR document (its format is not rlx.lir)")
    if document.get("version") != LIR_VERSION:
        raise FormatError(f"the LIR has version {document.get('version')}; this rlx reads version {LIR_VERSION}")
    graph, plan = document.get("graph"), document.get("plan")
    if not isinstance(plan, dict):
        raise FormatError("the LIR document has no plan")
    # LIR is what the compiler makes, and reading it runs nothing.
    loaded, buffers = from_json(json.dumps(graph), allow_lowered=True), LirBufferPlan.from_json(plan)
    if buffers.largest_id() >= len(loaded):
        raise FormatError(f"the plan names node {buffers.largest_id()}, the graph has {len(loaded)} nodes")
    return LirModule(loaded, buffers, _read_kernels(document.get("kernels", []), len(loaded)))


def _read_kernels(entries: Any, count: int) -> list[LirKernel]:
    try:
        kernels = [LirKernel.of(str(kind), *(map(_read_id, ids) for ids in lists)) for kind, *lists in entries]
    except (TypeError, ValueError) as error:
        raise FormatError(f"not a list of kernels: {error}") from None
    if any(i >= count for k in kernels for i in (*k.nodes, *k.inputs, *k.outputs)):
        raise FormatError(f"a kernel names a node that does not exist; the graph has {count} nodes")
    return kernels
