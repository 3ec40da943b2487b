"""Regions -> the element-wise ops they are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlx.compile.claims.fusion.fusion_limits import FusionLimits
from rlx.ir.graph import Graph, Node
from rlx.ir.op import Op
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import replace_nodes
from rlx.ir.shape import Dims
from rlx.ops.fused.regions import ElementwiseRegion, RegionPrologue


class UnfuseElementwiseRegions(Pass):
    """Every `elementwise_region` becomes one node per step again."""

    name = "unfuse_elementwise_regions"

    def run(self, graph: Graph) -> Graph:
        return replace_nodes(graph, _expansion, self.name).graph


def clip_elementwise_regions(graph: Graph, limits: FusionLimits) -> Graph:
    """Take those regions apart that have more steps or inputs than `limits` allow."""

    def form_of(node: Node) -> Callable[..., Any] | None:
        op = node.op
        fits = not isinstance(op, ElementwiseRegion) or limits.allows(len(op.chain), op.num_inputs())
        return None if fits else _expansion(node)

    return replace_nodes(graph, form_of, "clip_elementwise_regions").graph


def _expansion(node: Node) -> Callable[..., Any] | None:
    return partial(expand_region, node.op) if isinstance(node.op, ElementwiseRegion) else None


def expand_region(region: ElementwiseRegion, *operands: Any) -> Any:
    """The value of a region from one op per step; operands that broadcast by themselves are not expanded first."""
    dims = region.infer(*(x.type for x in operands)).dims
    is_direct = region.prologue is RegionPrologue.NoPrologue and all(_broadcasts(x.shape, dims) for x in operands)
    if is_direct:
        result = region.chain.run(operands, _apply)
        if result.shape == dims:
            return result
    return region.decompose(*operands)


def _broadcasts(own: Dims, dims: Dims) -> bool:
    """Whether axes of size 1 and missing leading axes are all that `own` lacks."""
    missing = len(dims) - len(own)
    return missing >= 0 and all(d in (1, wanted) for d, wanted in zip(own, dims[missing:]))


def _apply(op: Op, operands: list[Any]) -> Any:
    return op(*operands)
