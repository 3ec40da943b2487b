"""up * silu(gate), where up and gate are the halves of one tensor -> one op."""

from __future__ import annotations

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import Cut, cut_of, is_activation, why_not_absorbed
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.graph import Node
from rlx.ir.rewrite.rules import Match, RuleSet, rewrites
from rlx.ir.tensor import Tensor
from rlx.ops.fused.layers import FusedSwiGLU
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import ActivationKind


def gated_sides(m: Match) -> list[tuple[Node, Node, Node]]:
    """(up, silu, gate) for every way in which a node is up * silu(gate)."""
    if m.op.kind is not BinaryOp.Mul:
        return []
    sides = [(m.producer(1 - side), m.producer(side)) for side in (0, 1)]
    return [(up, silu, m.input_of(silu, 0)) for up, silu in sides if is_activation(silu, ActivationKind.Silu)]


@rewrites(Binary, exact=False)
def join_swiglu_halves(m: Match) -> Tensor | None:
    """c[.., :n] * silu(c[.., n:]) -> fused_swiglu(c), and with the halves exchanged"""
    for up, silu, gate in gated_sides(m):
        up_cut, gate_cut = cut_of(m.graph, up), cut_of(m.graph, gate)
        if up_cut is None or gate_cut is None or up_cut.source != gate_cut.source:
            continue
        if not _are_halves(m, up_cut, gate_cut):
            return m.miss(MissReason.SwigluHalves, f"{_span(up_cut)} and {_span(gate_cut)}")
        reason = why_not_absorbed(m, up, silu, gate)
        if reason is not None:
            return m.miss(*reason)
        fused: Tensor = FusedSwiGLU(None, gate_cut.start == 0)(m.value(up_cut.source))
        return fused
    return None


def _are_halves(m: Match, up: Cut, gate: Cut) -> bool:
    """Both are cut from the last axis, which the two fill exactly."""
    whole = m.graph.shape(up.source)
    low, high = (up, gate) if up.start == 0 else (gate, up)
    same_axis = up.axis == gate.axis == whole.rank - 1
    return same_axis and low.start == 0 and low.length == high.start == high.length and 2 * low.length == whole.dims[-1]


def _span(cut: Cut) -> str:
    return f"{cut.start}..{cut.start + cut.length} of axis {cut.axis}"


class FuseSwiGLU(RulePass):
    """`up * silu(gate)` becomes `fused_swiglu` when up and gate are the two halves of the last axis of one tensor.

    Nothing else may read the halves or the silu; the product may have any readers.
    """

    name = "fuse_swiglu"
    pattern = "swiglu"

    @property
    def rules(self) -> RuleSet:
        return RuleSet(self.name, [join_swiglu_halves])
