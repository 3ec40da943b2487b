"""The same unary op over the slices of a batch -> one region per slice, so that they can be joined."""

from __future__ import annotations

from rlx.compile.claims.fusion.batch_slices import mapped_slices
from rlx.compile.claims.fusion.fragments import FusionRole, has_role, step_of
from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import rebuild_bodies
from rlx.ir.rewrite.rules import Match, RuleSet, apply_rules, rewrites
from rlx.ir.tensor import Tensor
from rlx.ops.fused.regions import Chain, ChainOperand, ElementwiseRegion
from rlx.ops.shape.movement import Concat


@rewrites(Concat, exact=True)
def mark_slices(m: Match) -> Tensor | None:
    """concat(f(x[0:n]), f(x[n:2n]), ..) -> concat(region(x[0:n]), region(x[n:2n]), ..)"""
    nodes = mapped_slices(m)
    if not nodes or not has_role(nodes[0].op, FusionRole.BatchPlane):
        return None
    region = ElementwiseRegion(Chain([step_of(nodes[0].op, ChainOperand.Input(0))]))
    joined: Tensor = m.op(*(region(m.value(node.inputs[0])) for node in nodes))
    return joined


class MarkBatchSliceRegions(Pass):
    """Equal unary ops on equal axis-0 slices of one tensor, all read by one axis-0 concat, become regions.

    Longer chains are regions already when this pass runs; it adds those of one step.
    """

    name = "mark_batch_slice_regions"

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        return apply_rules(graph, RuleSet(self.name, [mark_slices]), self.name).graph
