"""Chains of transforms of whole tensors -> one op."""

from __future__ import annotations

from rlx.compile.claims.fusion.fragments import FusionRole, has_role, step_of
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import rebuild_bodies
from rlx.ir.rewrite.rules import Match, RuleSet, apply_rules, rewrites
from rlx.ir.tensor import Tensor
from rlx.ops.fused.regions import Chain, ChainOperand, TransformRegion
from rlx.ops.nn.convolution import ResizeNearest2x


@rewrites(ResizeNearest2x, exact=True)
def chain_transforms(m: Match) -> Tensor | None:
    """transform(transform(x)) -> transform_region(x), where nothing else reads what is in between"""
    readers = [m.graph.nodes[u] for u in m.users(m.node)]
    if m.is_only_use(m.node) and _is_transform(readers[0]):
        return None
    nodes = [m.node]
    while _is_transform(below := m.input_of(nodes[-1], 0)) and m.is_only_use(below):
        nodes.append(below)
    if len(nodes) == 1:
        return None
    nodes.reverse()
    steps = [step_of(nodes[0].op, ChainOperand.Input(0))]
    steps += [step_of(node.op, ChainOperand.Step(i)) for i, node in enumerate(nodes[1:])]
    region: Tensor = TransformRegion(Chain(steps))(m.value(nodes[0].inputs[0]))
    return region


def _is_transform(node: Node) -> bool:
    return has_role(node.op, FusionRole.TransformStep)


class MarkTransformRegions(Pass):
    """Two or more transforms in a row, each read only by the next, become a `transform_region`."""

    name = "mark_transform_regions"

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        return apply_rules(graph, RuleSet(self.name, [chain_transforms]), self.name).graph
