"""Where the values of a LIR program live: one slot per value that crosses a kernel boundary, shared over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.compile.memory.liveness import view_offset
from rlx.compile.memory.packing import ALIGNMENT, Tenant, pack
from rlx.errors import InternalError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.kernel_kind import VIEW, KernelKind
from rlx.ir.leaves import Constant
from rlx.ir.lir import LirBufferPlan, LirBufferSlot, LirIoManifest, LirKernel, LirViewAlias
from rlx.ir.phase import derive_phases
from rlx.ir.shape import Size


def plan_buffers(
    graph: Graph,
    kernels: Sequence[LirKernel],
    alignment: int = ALIGNMENT,
    stored_over: Mapping[NodeId, NodeId] | None = None,
) -> LirBufferPlan:
    """Slots for what native kernels store, except outputs, which are never in the arena; a view lives with its operand,
    and a result that is `stored_over` another value lives where that one did.

    What a host call returns is allocated by the host. `InternalError` if something is read before it is stored.
    """
    _check_order(graph, kernels)
    plan = LirBufferPlan(alignment=alignment, schedule=[n.id for n in graph.nodes])
    for kernel in kernels:
        for node in kernel.outputs:
            if kernel.kind == VIEW:
                _join(plan, node, kernel.inputs[0], view_offset(graph, graph.nodes[node]))
            elif stored_over and node in stored_over:
                _join(plan, node, stored_over[node], 0)
    native = {n for k in kernels if KernelKind.of(k.kind).is_native for n in k.outputs}
    views = [n for k in kernels if k.kind == VIEW for n in k.outputs if plan.view_aliases[n].root in native]
    for output in (*(stored_over or ()), *views):
        if output in graph.outputs:
            _move_to_output(graph, plan, output)
    stored = _stored_values(graph, kernels, plan)
    lives = _lives(kernels, plan, graph.outputs)
    tenants = [Tenant(_size(graph, n), *lives[n]) for n in stored]
    packed = pack(tenants, alignment)
    plan.assignments = {n: LirBufferSlot(o, t.size) for n, o, t in zip(stored, packed.offsets, tenants)}
    plan.arena_size = packed.total
    plan.phases = derive_phases(graph)
    plan.io = LirIoManifest.collect(graph)
    plan.dynamic_symbols = graph.dynamic_symbols()
    return plan


def _check_order(graph: Graph, kernels: Sequence[LirKernel]) -> None:
    """Every value that a kernel reads, or that is returned, is a leaf, a constant or stored by an earlier kernel."""
    stored = {n.id for n in graph.nodes if n.is_leaf or isinstance(n.op, Constant)}
    for step, kernel in enumerate(kernels):
        for node in kernel.inputs:
            if node not in stored:
                raise InternalError(f"kernel {step} ({kernel.kind}) reads {graph.nodes[node]!r} before it is stored")
        stored.update(kernel.outputs)
    for node in graph.outputs:
        if node not in stored:
            raise InternalError(f"no kernel stores the output {graph.nodes[node]!r}")


def _join(plan: LirBufferPlan, node: NodeId, operand: NodeId, offset: Size) -> None:
    """Let a value live in the memory of another one."""
    parent = plan.view_aliases.get(operand, LirViewAlias(operand, 0))
    plan.view_aliases[node] = LirViewAlias(parent.root, parent.byte_offset + offset)


def _move_to_output(graph: Graph, plan: LirBufferPlan, output: NodeId) -> None:
    """Let what an output is stored over, or names, live in the memory of the output from the start, if it is as
    large."""
    view = plan.view_aliases.get(output)
    if view is None or view.byte_offset != 0 or graph.nodes[view.root].is_leaf:
        return
    if view.root in graph.outputs or _size(graph, view.root) != _size(graph, output):
        return
    for node, other in list(plan.view_aliases.items()):
        if other.root == view.root:
            plan.view_aliases[node] = LirViewAlias(output, other.byte_offset)
    plan.view_aliases[view.root] = LirViewAlias(output, 0)
    del plan.view_aliases[output]


def _size(graph: Graph, node: NodeId) -> Size:
    """The results of a node lie one after the other."""
    total: Size = 0
    for shape in graph.nodes[node].shapes:
        total = total + shape.byte_size
    return total


def _stored_values(graph: Graph, kernels: Sequence[LirKernel], plan: LirBufferPlan) -> list[NodeId]:
    native = [n for k in kernels if KernelKind.of(k.kind).is_native for n in k.outputs]
    return [n for n in native if n not in graph.outputs and n not in plan.view_aliases]


def _lives(
    kernels: Sequence[LirKernel], plan: LirBufferPlan, outputs: Sequence[NodeId]
) -> dict[NodeId, tuple[int, int]]:
    """First and last kernel that needs each value; reading a view reads its root, and so does returning it."""
    lives: dict[NodeId, tuple[int, int]] = {}
    for step, kernel in enumerate(kernels):
        for node in kernel.outputs:
            lives.setdefault(node, (step, step))
        for node in kernel.inputs:
            root = plan.view_aliases[node].root if node in plan.view_aliases else node
            if root in lives:
                lives[root] = (lives[root][0], step)
    for node in outputs:
        # A view that is returned is copied for the caller when everything has run.
        root = plan.view_aliases[node].root if node in plan.view_aliases else node
        if root in lives:
            lives[root] = (lives[root][0], len(kernels))
    return lives
