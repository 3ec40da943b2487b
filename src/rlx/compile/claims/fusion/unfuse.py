"""Fused ops -> what they are made of."""

from __future__ import annotations

from collections.abc import Collection

from rlx.autodiff.prepare import fused_kinds
from rlx.autodiff.prepare import unfuse_fused_for_autodiff as unfuse_fused_for_autodiff
from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import decompose_kinds


class UnfuseFusedOps(Pass):
    """Decompose the fused ops of the given kinds (class names), and no others; recurrences become `scan`."""

    name = "unfuse_fused_ops"

    def __init__(self, kinds: Collection[str] | None = None) -> None:
        self.kinds = fused_kinds() if kinds is None else frozenset(kinds)

    def run(self, graph: Graph) -> Graph:
        return decompose_kinds(graph, self.kinds, self.name).graph
