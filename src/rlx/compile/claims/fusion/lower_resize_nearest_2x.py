"""Nearest resize -> repetition along new axes."""

from __future__ import annotations

from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import decompose_kinds


class LowerResizeNearest2x(Pass):
    """`resize_nearest_2x` becomes [N, C, H, 1, W, 1] expanded to [N, C, H, 2, W, 2]: pixels repeat, not the image."""

    name = "lower_resize_nearest_2x"

    def run(self, graph: Graph) -> Graph:
        return decompose_kinds(graph, {"ResizeNearest2x"}, self.name).graph
