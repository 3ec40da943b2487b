"""Where the values of a LIR program live: one slot per value that crosses a kernel boundary, shared over time."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.compile.liveness import view_offset
from rlx.compile.packing import Tenant, pack
from rlx.ir.graph import Graph, NodeId
from rlx.ir.lir import LirBufferPlan, LirBufferSlot, LirIoManifest, LirKernel, LirViewAlias
from rlx.ir.phase import derive_phases
from rlx.ir.shape import Size

ALIGNMENT = 64


def plan_buffers(graph: Graph, kernels: Sequence[LirKernel], alignment: int = ALIGNMENT) -> LirBufferPlan:
    """Slots for what native kernels store, except outputs, which are never in the arena; a view lives with its operand.

    What a host call returns is allocated by the host.
    """
    plan = LirBufferPlan(alignment=alignment, schedule=[n.id for n in graph.nodes])
    for kernel in kernels:
        if kernel.kind == "view":
            node, operand = kernel.nodes[0], kernel.inputs[0]
            parent = plan.view_aliases.get(operand, LirViewAlias(operand, 0))
            offset = parent.byte_offset + view_offset(graph, graph.nodes[node])
            plan.view_aliases[node] = LirViewAlias(parent.root, offset)
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


def _size(graph: Graph, node: NodeId) -> Size:
    """The results of a node lie one after the other."""
    total: Size = 0
    for shape in graph.nodes[node].shapes:
        total = total + shape.byte_size
    return total


def _stored_values(graph: Graph, kernels: Sequence[LirKernel], plan: LirBufferPlan) -> list[NodeId]:
    native = [n for k in kernels if k.kind not in ("view", "call") for n in k.outputs]
    return [n for n in native if n not in graph.outputs]


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
