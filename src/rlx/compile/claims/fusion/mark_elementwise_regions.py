"""Chains and trees of element-wise ops -> regions, each one op.

A region ends in one tail. A producer joins when it has the shape of the tail and all its readers are inside: then
nothing is computed twice, no value that is needed elsewhere disappears, and the region can run where its tail stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from rlx.compile.claims.fusion.fragments import FusionRole, has_role, step_of
from rlx.compile.claims.fusion.fusion_limits import FusionLimits, active_fusion_limits
from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.rewrite.dead_code import live_nodes, remove_dead_nodes
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Replacement, rebuild, rebuild_bodies
from rlx.ir.shape import Dims, Size
from rlx.ops.fused.regions import Chain, ChainOperand, ElementwiseRegion


class MarkElementwiseRegions(Pass):
    """Two or more element-wise ops that end in one value become an `elementwise_region`.

    A region that has reached `limits` (by default those of the compile that is going on) takes no more; what is left
    begins a region of its own.
    """

    name = "mark_elementwise_regions"

    def __init__(self, limits: FusionLimits | None = None) -> None:
        self.limits = limits

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        regions = _find_regions(graph, self.limits or active_fusion_limits())
        if not regions:
            return graph
        new_ids: dict[NodeId, NodeId] = {}

        def visit(node: Node, operands: list[Any]) -> Replacement:
            if node.id not in regions:
                return None
            chain, inputs = _chain_of(regions[node.id])
            mask, moduli = broadcast_metadata([graph.shape(i).dims for i in inputs], node.shape.dims)
            region = ElementwiseRegion(chain, mask, moduli)
            if region.infer(*(graph.shape(i) for i in inputs)) != node.shape:
                # Sizes that only a run can compare are named after another operand than in the chain of nodes.
                return None
            new = operands[0].graph
            result: Replacement = region(*(new.tensor(new_ids[i]) for i in inputs))
            return result

        return remove_dead_nodes(rebuild(graph, visit, self.name, ids=new_ids).graph).graph


def _find_regions(graph: Graph, limits: FusionLimits) -> dict[NodeId, list[Node]]:
    """The members of every region in program order, by the id of its tail."""
    live, outputs = live_nodes(graph), set(graph.outputs)
    uses = [[u for u in users if u in live] for users in graph.use_map()]
    regions: dict[NodeId, list[Node]] = {}
    taken: set[NodeId] = set()
    for tail in reversed(graph.nodes):
        if tail.id in taken or tail.id not in live or not has_role(tail.op, FusionRole.RegionCompute):
            continue
        members = _grow(graph, tail, uses, outputs, limits)
        if len(members) > 1:
            regions[tail.id] = [graph.nodes[i] for i in sorted(members)]
            taken |= members
    return regions


def _grow(
    graph: Graph, tail: Node, uses: list[list[NodeId]], outputs: set[NodeId], limits: FusionLimits
) -> set[NodeId]:
    members, inputs = {tail.id}, set(tail.inputs)
    # Latest first: when a producer comes up, every reader of it that can be a member is one.
    queue: list[int] = []
    for i in inputs:
        heappush(queue, -i)
    while queue:
        node = graph.nodes[-heappop(queue)]
        if node.id in outputs or not has_role(node.op, FusionRole.RegionCompute) or node.shape.dims != tail.shape.dims:
            continue
        if any(user not in members for user in uses[node.id]):
            continue
        new_inputs = (inputs - {node.id}) | set(node.inputs)
        if not limits.allows(len(members) + 1, len(new_inputs)):
            continue
        for i in new_inputs - inputs:
            heappush(queue, -i)
        members.add(node.id)
        inputs = new_inputs
    return members


def _chain_of(members: Sequence[Node]) -> tuple[Chain, list[NodeId]]:
    """The members as steps, and what they read from outside, in order of first use."""
    number = {node.id: i for i, node in enumerate(members)}
    inputs: dict[NodeId, int] = {}

    def operand(i: NodeId) -> tuple[str, int]:
        return ChainOperand.Step(number[i]) if i in number else ChainOperand.Input(inputs.setdefault(i, len(inputs)))

    steps = [step_of(node.op, *(operand(i) for i in node.inputs)) for node in members]
    return Chain(steps), list(inputs)


def broadcast_metadata(inputs: Sequence[Dims], dims: Dims) -> tuple[int, Dims]:
    """The mask of one-element inputs and the period of inputs that are repeated, as device kernels index them.

    Inputs that are not the trailing part of `dims` have no period; like those of full size they are read by their own
    strides. Without an input of full size nothing but the inputs' shapes says how large the region is, so none is
    marked.
    """
    if dims not in inputs:
        return 0, ()
    mask = 0
    moduli: list[Size] = []
    for i, own in enumerate(inputs):
        count = product(own)
        if own == dims:
            moduli.append(0)
        elif count == 1:
            mask |= 1 << i
            moduli.append(1)
        else:
            stripped = own[next((a for a, d in enumerate(own) if d != 1), len(own)) :]
            moduli.append(count if stripped == dims[len(dims) - len(stripped) :] else 0)
    return mask, tuple(moduli) if any(m != 0 for m in moduli) else ()
