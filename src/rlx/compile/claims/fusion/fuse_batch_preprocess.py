"""Equal regions over the slices of a batch -> one op for all slices."""

from __future__ import annotations

from rlx.compile.claims.fusion.batch_slices import mapped_slices
from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import rebuild_bodies
from rlx.ir.rewrite.rules import Match, RuleSet, apply_rules, rewrites
from rlx.ir.tensor import Tensor
from rlx.ops.fused.regions import BatchElementwiseRegion, ElementwiseRegion
from rlx.ops.shape.movement import Concat


@rewrites(Concat, exact=True)
def join_slices(m: Match) -> Tensor | None:
    """concat(region(x[0:n]), region(x[n:2n]), ..) -> batch_elementwise_region(x[0:n], x[n:2n], ..)"""
    nodes = mapped_slices(m)
    region = nodes[0].op if nodes else None
    if not isinstance(region, ElementwiseRegion):
        return None
    batched = BatchElementwiseRegion(region.chain, len(nodes), prologue=region.prologue)
    joined: Tensor = batched(*(m.value(node.inputs[0]) for node in nodes))
    return joined


class FuseBatchPreprocess(Pass):
    """Equal one-input regions on equal axis-0 slices of one tensor, all read by one axis-0 concat, become one op."""

    name = "fuse_batch_preprocess"

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        return apply_rules(graph, RuleSet(self.name, [join_slices]), self.name).graph
