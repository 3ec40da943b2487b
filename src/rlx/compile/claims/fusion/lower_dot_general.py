"""General contractions -> matrix products."""

from __future__ import annotations

from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import decompose_kinds


class LowerDotGeneral(Pass):
    """`dot_general` with any axes becomes one `matmul`, with transposes and reshapes around it where needed."""

    name = "lower_dot_general"

    def run(self, graph: Graph) -> Graph:
        return decompose_kinds(graph, {"DotGeneral"}, self.name).graph
