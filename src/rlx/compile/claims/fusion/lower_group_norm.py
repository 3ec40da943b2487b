"""Group normalisation -> reductions and element-wise ops."""

from __future__ import annotations

from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import decompose_kinds


class LowerGroupNorm(Pass):
    """`group_norm` of any rank becomes mean, centred variance (which does not cancel), scale and offset."""

    name = "lower_group_norm"

    def run(self, graph: Graph) -> Graph:
        return decompose_kinds(graph, {"GroupNorm"}, self.name).graph
