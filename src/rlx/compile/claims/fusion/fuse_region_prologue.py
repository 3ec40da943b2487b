"""A transform that feeds a region -> the way in which the region reads that input."""

from __future__ import annotations

from rlx.compile.claims.fusion.fragments import FusionRole, has_role, step_of
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import rebuild_bodies
from rlx.ir.rewrite.rules import Match, RuleSet, apply_rules, rewrites
from rlx.ir.shape import Size
from rlx.ir.tensor import Tensor
from rlx.ops.fused.regions import Chain, ChainOperand, ElementwiseRegion, RegionPrologue, Step, operands_of
from rlx.ops.pointwise.unary import Activation

# Prologues address [N, C, H, W].
_RANK = 4


@rewrites(ElementwiseRegion, exact=True)
def read_through_transform(m: Match) -> Tensor | None:
    """region(.., transform(x), ..) -> region(x, ..) {prologue}"""
    region: ElementwiseRegion = m.op
    if region.prologue is not RegionPrologue.NoPrologue:
        return None
    for i in range(len(m.operands)):
        transform = m.producer(i)
        if _can_be_prologue(m, transform) and transform.shape.dims == m.node.shape.dims:
            operands = list(m.operands)
            operands[i] = m.value(transform.inputs[0])
            operands[0], operands[i] = operands[i], operands[0]
            fused: Tensor = _with_prologue(region, i, _prologue_of(transform))(*operands)
            return fused
    return None


@rewrites(Activation, exact=True)
def activate_through_transform(m: Match) -> Tensor | None:
    """activation(transform(x)) -> region(x) {prologue}"""
    transform = m.producer(0)
    if not _can_be_prologue(m, transform):
        return None
    step = step_of(m.op, ChainOperand.Input(0))
    region = ElementwiseRegion(Chain([step]), prologue=_prologue_of(transform))
    fused: Tensor = region(m.value(transform.inputs[0]))
    return fused


def _can_be_prologue(m: Match, node: Node) -> bool:
    return has_role(node.op, FusionRole.RegionPrologue) and m.is_only_use(node) and node.shape.rank == _RANK


def _prologue_of(node: Node) -> RegionPrologue:
    return RegionPrologue(step_of(node.op, ChainOperand.Input(0))[1])


def _with_prologue(region: ElementwiseRegion, i: int, prologue: RegionPrologue) -> ElementwiseRegion:
    """The region with inputs 0 and i exchanged, reading input 0 through the prologue."""
    moved = {0: i, i: 0}

    def exchanged(step: Step) -> Step:
        operands = [(source, moved.get(n, n) if source == "input" else n) for source, n in operands_of(step)]
        return (*step[: len(step) - len(operands)], *operands)

    count = region.num_inputs()
    masked = [n for n in range(count) if region.scalar_input_mask >> n & 1]
    mask = sum(1 << moved.get(n, n) for n in masked)
    moduli: list[Size] = [*region.input_modulus, *(0,) * (count - len(region.input_modulus))]
    moduli[0], moduli[i] = moduli[i], moduli[0]
    chain = Chain([exchanged(step) for step in region.chain])
    return ElementwiseRegion(chain, mask, moduli if region.input_modulus else (), prologue, 0)


class FuseRegionPrologue(Pass):
    """A nearest resize of [N, C, H, W] that only a region (or one activation) reads becomes the region's prologue.

    The resized input moves to slot 0 of the region; what stood there takes its place.
    """

    name = "fuse_region_prologue"

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        rules = RuleSet(self.name, [read_through_transform, activate_through_transform])
        return apply_rules(graph, rules, self.name).graph
