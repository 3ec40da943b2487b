"""Where the values of a program live. The order of the slots is fixed here; offsets are sums of (symbolic) sizes."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dims import ceildiv
from rlx.ir.graph import Graph, NodeId
from rlx.ir.lir import LirBufferPlan, LirBufferSlot, LirIoManifest, LirKernel, LirViewAlias
from rlx.ir.phase import derive_phases
from rlx.ir.shape import Size

ALIGNMENT = 64


def plan_buffers(graph: Graph, kernels: Sequence[LirKernel]) -> LirBufferPlan:
    """One slot per value that a kernel stores and that is not an output; a view lives where its operand lives."""
    plan = LirBufferPlan(alignment=ALIGNMENT, schedule=[n.id for n in graph.nodes])
    outputs = set(graph.outputs)
    end: Size = 0
    for kernel in kernels:
        if kernel.kind == "view":
            _alias(plan, kernel.nodes[0], kernel.inputs[0])
            continue
        if kernel.kind == "call":
            # The host allocates what it returns.
            continue
        for node in kernel.outputs:
            if node in outputs:
                continue
            size = graph.shape(node).byte_size
            plan.assignments[node] = LirBufferSlot(end, size)
            end = end + ceildiv(size, ALIGNMENT) * ALIGNMENT
    plan.arena_size = end
    plan.phases = derive_phases(graph)
    plan.io = LirIoManifest.collect(graph)
    plan.dynamic_symbols = graph.dynamic_symbols()
    return plan


def _alias(plan: LirBufferPlan, node: NodeId, operand: NodeId) -> None:
    """A view of a view is a view of the root."""
    root = plan.view_aliases.get(operand)
    plan.view_aliases[node] = LirViewAlias(operand if root is None else root.root, 0)
