"""Memory plans of graphs: which values share which bytes of one arena.

`plan_memory` and its variants plan at the level of nodes, as the seed documents do; `rlx.compile.memory.plan` plans the
kernels of LIR. Both pack by `rlx.compile.memory.packing` and are checked by `check_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rlx.compile.memory.liveness import LiveRange, collect_view_aliases, live_ranges
from rlx.compile.memory.packing import Packed, Tenant, aligned, overlaps, pack, peak
from rlx.errors import BackendError, InternalError
from rlx.ir.dims import dim_max
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirBufferPlan, LirBufferSlot, LirIoManifest
from rlx.ir.phase import derive_phases
from rlx.ir.shape import Size
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation

MemoryPlan = LirBufferPlan
Ranges = dict[NodeId, LiveRange]


@dataclass(frozen=True)
class MemoryPlanOptions:
    """Which boundary values get a place in the arena, how values are sized, and how large the arena may become."""

    allocate_params: bool = True
    allocate_inputs: bool = True
    allocate_constants: bool = True
    # Values computed from params alone are made once, when weights are set, and live beside them.
    hoist_params: bool = False
    in_place: bool = True
    uniform_f32: bool = False
    max_bytes: int | None = None

    @staticmethod
    def inference() -> MemoryPlanOptions:
        return MemoryPlanOptions()

    @staticmethod
    def backward_activations_only() -> MemoryPlanOptions:
        return MemoryPlanOptions(allocate_params=False)


def plan_memory(graph: Graph) -> MemoryPlan:
    return plan_memory_with_options(graph)


def plan_memory_aligned(graph: Graph, alignment: int) -> MemoryPlan:
    return plan_memory_with_options(graph, alignment)


def plan_memory_f32_uniform(graph: Graph, alignment: int = 64) -> MemoryPlan:
    """Every element takes four bytes, whatever its dtype."""
    return plan_memory_with_options(graph, alignment, MemoryPlanOptions(uniform_f32=True))


def plan_memory_with_options(graph: Graph, alignment: int = 64, options: MemoryPlanOptions | None = None) -> MemoryPlan:
    """A plan for the nodes of `graph` in order. The same graph gives the same plan, on every machine."""
    options = options or MemoryPlanOptions()
    if alignment < 1 or alignment & (alignment - 1):
        raise BackendError(f"the alignment of an arena must be a power of two, got {alignment}")
    planner = _Planner(graph, alignment, options)
    plan = planner.plan()
    _check_cap(graph, plan, options.max_bytes)
    return plan


class _Planner:
    def __init__(self, graph: Graph, alignment: int, options: MemoryPlanOptions) -> None:
        self.graph, self.alignment, self.options = graph, alignment, options
        self.steps = [n.id for n in graph.nodes]
        self.views = collect_view_aliases(graph)
        self.ranges = live_ranges(graph, self.steps, self.views)
        self.prepared = prepared_nodes(graph) if options.hoist_params else set()
        # Buffers: a value written over its operand shares that operand's buffer.
        self.buffer_of: dict[NodeId, int] = {}
        self.buffers: list[Tenant] = []

    def plan(self) -> MemoryPlan:
        for node in self.graph.nodes:
            if node.id in self.ranges and self.is_placed(node):
                self.place(node)
        packed = pack(self.buffers, self.alignment)
        plan = LirBufferPlan(packed.total, alignment=self.alignment, schedule=list(self.steps))
        for node_id, buffer in self.buffer_of.items():
            plan.assignments[node_id] = LirBufferSlot(packed.offsets[buffer], self.size(self.graph.nodes[node_id]))
        # A view of something outside the arena is a view of it there, too.
        plan.view_aliases = dict(self.views)
        plan.phases = derive_phases(self.graph)
        plan.io = LirIoManifest.collect(self.graph)
        plan.dynamic_symbols = self.graph.dynamic_symbols()
        return plan

    def is_placed(self, node: Node) -> bool:
        if node.id in self.prepared:
            return False
        if len(node.shapes) != 1:
            return True
        op, options = node.op, self.options
        if isinstance(op, Param):
            return options.allocate_params
        if isinstance(op, Input):
            return options.allocate_inputs
        return options.allocate_constants if isinstance(op, Constant) else True

    def size(self, node: Node) -> Size:
        total: Size = 0
        for shape in node.shapes:
            total = total + (shape.element_count * 4 if self.options.uniform_f32 else shape.byte_size)
        return total

    def place(self, node: Node) -> None:
        host = self.overwritten(node) if self.options.in_place else None
        life = self.ranges[node.id]
        if host is not None:
            buffer = self.buffer_of[host]
            self.buffers[buffer] = self.buffers[buffer]._replace(death=life.death)
        else:
            buffer = len(self.buffers)
            self.buffers.append(Tenant(self.size(node), life.birth, life.death))
        self.buffer_of[node.id] = buffer

    def overwritten(self, node: Node) -> NodeId | None:
        """An operand whose last reader is this pointwise node and which it may therefore write over."""
        if not isinstance(node.op, Activation | Binary | Compare | Where | Cast):
            return None
        for i in node.inputs:
            source = self.graph.nodes[i]
            if i in self.views or i not in self.buffer_of or isinstance(source.op, Input | Param | Constant):
                continue
            if self.buffers[self.buffer_of[i]].death != self.ranges[node.id].birth:
                continue
            same_layout = source.shape.dims == node.shape.dims and self.size(source) == self.size(node)
            if same_layout and source.shape.dtype.size_bytes == node.shape.dtype.size_bytes:
                return i
        return None


def prepared_nodes(graph: Graph) -> set[NodeId]:
    """Nodes computed from params and constants alone (and from at least one operand), without effects."""
    fixed = {n.id for n in graph.nodes if isinstance(n.op, Param | Constant)}
    found: set[NodeId] = set()
    for node in graph.nodes:
        if node.inputs and not node.op.effect and all(i in fixed for i in node.inputs):
            fixed.add(node.id)
            found.add(node.id)
    return found


def _check_cap(graph: Graph, plan: MemoryPlan, cap: int | None) -> None:
    if cap is not None and isinstance(plan.arena_size, int) and plan.arena_size > cap:
        largest = sorted(plan.assignments.items(), key=lambda item: str(item[1].size), reverse=True)[:3]
        shown = ", ".join(f"{graph.nodes[n]!r} ({s.size} bytes)" for n, s in largest)
        raise BackendError(
            f"@{graph.name} needs an arena of {plan.arena_size} bytes, the cap is {cap}; the largest values: {shown}; "
            "use a smaller batch, checkpointing, or a lower precision"
        )


class WeightSlot(NamedTuple):
    """One parameter of a forward plan: its name, node, and range of bytes."""

    name: str
    forward_id: NodeId
    offset: Size
    size: Size


class SharedWeightLayout(NamedTuple):
    """Where the parameters of a forward plan lie, so that a backward plan can use them in place."""

    arena_size: Size
    slots: tuple[WeightSlot, ...]

    @staticmethod
    def from_forward(graph: Graph, plan: MemoryPlan) -> SharedWeightLayout:
        slots = [
            WeightSlot(n.op.key, n.id, s.offset, s.size)
            for n in graph.nodes
            if isinstance(n.op, Param) and (s := plan.slot(n.id)) is not None
        ]
        return SharedWeightLayout(plan.arena_size, tuple(sorted(slots)))


def plan_memory_backward(graph: Graph, alignment: int, weights: SharedWeightLayout) -> MemoryPlan:
    """A plan in which params lie where the forward plan has them, and nothing else lies in that region.

    The activations of the backward program start after the last weight, so the two can never overlap.
    """
    plan = plan_memory_with_options(graph, alignment, MemoryPlanOptions.backward_activations_only())
    by_name = {slot.name: slot for slot in weights.slots}
    start: Size = 0
    for slot in weights.slots:
        start = dim_max(start, slot.offset + slot.size)
    start = aligned(start, alignment)
    plan.assignments = {n: LirBufferSlot(s.offset + start, s.size) for n, s in plan.assignments.items()}
    for node in graph.nodes:
        if isinstance(node.op, Param) and node.op.key in by_name:
            found = by_name[node.op.key]
            plan.assignments[node.id] = LirBufferSlot(found.offset, found.size)
    plan.arena_size = start + plan.arena_size
    return plan


class PlanCheck(NamedTuple):
    """What `check_plan` found: pairs that overlap, the arena, and the liveness lower bound, in bytes."""

    overlapping: list[tuple[NodeId, NodeId]]
    arena: int
    lower_bound: int

    @property
    def ratio(self) -> float:
        """How much larger the arena is than it would have to be."""
        return self.arena / self.lower_bound if self.lower_bound else 1.0


def check_plan(graph: Graph, plan: MemoryPlan, binding: dict[str, int] | None = None) -> PlanCheck:
    """Prove a plan sound for one binding, from the graph alone: values alive at the same time share no byte.

    A value written over an operand at the very step at which that operand dies may share its bytes exactly.
    """
    bound = graph.bind(binding) if binding else graph
    numbers = plan.bind(binding) if binding else plan
    ranges = live_ranges(bound, list(plan.schedule), collect_view_aliases(bound))
    nodes = [n for n in plan.assignments if n in ranges]
    slots = [numbers.assignments[n] for n in nodes]
    tenants = [Tenant(s.size, ranges[n].birth, ranges[n].death) for n, s in zip(nodes, slots)]
    found = overlaps(tenants, Packed([s.offset for s in slots], numbers.arena_size))
    bad = [(nodes[i], nodes[j]) for i, j in found if not _is_in_place(bound, nodes[i], nodes[j], ranges, numbers)]
    arena = numbers.arena_size
    if not isinstance(arena, int):
        raise InternalError("check_plan: the plan has symbolic sizes; pass a binding")
    return PlanCheck(bad, arena, peak(_without_copies(bound, nodes, tenants, ranges, numbers)))


def _is_in_place(graph: Graph, a: NodeId, b: NodeId, ranges: Ranges, plan: MemoryPlan) -> bool:
    first, second = sorted((a, b))
    same_place = plan.assignments[first] == plan.assignments[second]
    return same_place and ranges[first].death == ranges[second].birth and first in graph.nodes[second].inputs


def _without_copies(
    graph: Graph,
    nodes: list[NodeId],
    tenants: list[Tenant],
    ranges: Ranges,
    plan: MemoryPlan,
) -> list[Tenant]:
    """Tenants for the lower bound: an operand that is overwritten is gone at the step that overwrites it."""
    shortened = list(tenants)
    index_of = {node: i for i, node in enumerate(nodes)}
    for position, node in enumerate(nodes):
        for other in graph.nodes[node].inputs:
            if other in index_of and _is_in_place(graph, other, node, ranges, plan):
                index = index_of[other]
                shortened[index] = shortened[index]._replace(death=tenants[position].birth - 1)
    return [t for t in shortened if t.death >= t.birth]


def plan_report(plan: MemoryPlan) -> str:
    """`# arena_size=.. total_unshared=.. saved=..`, then `offset size node` by offset."""
    lines = [f"# arena_size={plan.arena_size} total_unshared={plan.total_unshared_bytes} saved={plan.bytes_saved}"]
    rows = sorted(plan.assignments.items(), key=lambda item: (str(item[1].offset).zfill(20), item[0]))
    return "\n".join([*lines, *(f"{s.offset}\t{s.size}\t{n}" for n, s in rows)]) + "\n"


__all__ = [
    "MemoryPlan",
    "MemoryPlanOptions",
    "PlanCheck",
    "SharedWeightLayout",
    "WeightSlot",
    "check_plan",
    "plan_memory",
    "plan_memory_aligned",
    "plan_memory_backward",
    "plan_memory_f32_uniform",
    "plan_memory_with_options",
    "plan_report",
]
