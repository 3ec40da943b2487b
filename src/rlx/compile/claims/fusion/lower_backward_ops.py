"""Gradients of element-wise functions -> element-wise ops."""

from __future__ import annotations

from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import decompose_kinds


class LowerBackwardOps(Pass):
    """`relu_backward` and `activation_backward` become dy times the derivative in closed form."""

    name = "lower_backward_ops"

    def run(self, graph: Graph) -> Graph:
        return decompose_kinds(graph, {"ReluBackward", "ActivationBackward"}, self.name).graph
