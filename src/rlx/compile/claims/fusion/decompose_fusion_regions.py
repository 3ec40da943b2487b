"""Transform regions, batched regions and region prologues -> the ops they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.compile.claims.fusion.unfuse_elementwise_regions import expand_region
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import replace_nodes
from rlx.ops.fused.regions import BatchElementwiseRegion, ElementwiseRegion, RegionPrologue, TransformRegion
from rlx.ops.shape.movement import concat


def _form_of(node: Node) -> Callable[..., Any] | None:
    op = node.op
    if isinstance(op, BatchElementwiseRegion):
        each = ElementwiseRegion(op.chain, prologue=op.prologue)
        return lambda *slices: concat([expand_region(each, x) for x in slices])
    if isinstance(op, ElementwiseRegion) and op.prologue is RegionPrologue.NoPrologue:
        return None
    return op.decompose if isinstance(op, TransformRegion | ElementwiseRegion) else None


class DecomposeFusionRegions(Pass):
    """For targets without kernels for them. Plain element-wise regions stay; `unfuse_elementwise_regions` has those."""

    name = "decompose_fusion_regions"

    def run(self, graph: Graph) -> Graph:
        return replace_nodes(graph, _form_of, self.name).graph
