"""matmul(x, wu) * silu(matmul(x, wg)) -> one matmul by both weights, and one op for the gate."""

from __future__ import annotations

from rlx.compile.claims.fusion.fuse_swiglu import gated_sides
from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import describe, is_known_before_run, is_plain_matmul, why_not_absorbed
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.graph import Node
from rlx.ir.rewrite.rules import Match, RuleSet, rewrites
from rlx.ir.tensor import Tensor
from rlx.ops.fused.layers import FusedSwiGLU
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.pointwise.arithmetic import Binary
from rlx.ops.shape.movement import Concat


@rewrites(Binary, exact=False)
def join_swiglu_matmuls(m: Match) -> Tensor | None:
    """matmul(x, wu) * silu(matmul(x, wg)) -> fused_swiglu(matmul(x, concat(wu, wg)))"""
    for up, silu, gate in gated_sides(m):
        if not (isinstance(up.op, MatMul) and isinstance(gate.op, MatMul)):
            continue
        if up.inputs[0] != gate.inputs[0]:
            inputs = [describe(m.input_of(node, 0)) for node in (up, gate)]
            return m.miss(MissReason.SwigluNotSharedInput, f"up reads {inputs[0]}, gate reads {inputs[1]}")
        reason = _why_not_joined(m, up, gate) or why_not_absorbed(m, up, silu, gate)
        if reason is not None:
            return m.miss(*reason)
        x, up_weight = (m.value(i) for i in up.inputs)
        both = MatMul()(x, Concat(1)(up_weight, m.value(gate.inputs[1])))
        fused: Tensor = FusedSwiGLU()(both)
        return fused
    return None


def _why_not_joined(m: Match, up: Node, gate: Node) -> tuple[MissReason, str] | None:
    weights = [m.graph.shape(node.inputs[1]) for node in (up, gate)]
    if weights[0] != weights[1] or weights[0].rank != 2:
        return MissReason.WeightShapes, f"{weights[0]} and {weights[1]}"
    if not all(is_plain_matmul(m.graph, node) for node in (up, gate)):
        return MissReason.UnsupportedTypes, f"{up.op!r} and {gate.op!r}"
    if not all(is_known_before_run(m.graph, node.inputs[1]) for node in (up, gate)):
        return MissReason.NotProfitable, "the weights would be joined anew in every run"
    return None


class FuseSwiGLUDualMatmul(RulePass):
    """Gate and up projection of one input become one product by both weights, [up, gate], and `fused_swiglu`.

    The weights are matrices of one type that are known before the run, so that they are joined once and not in every
    run. Nothing else may read the products or the silu.
    """

    name = "fuse_swiglu_dual_matmul"
    pattern = "swiglu"

    @property
    def rules(self) -> RuleSet:
        return RuleSet(self.name, [join_swiglu_matmuls])
