"""RMS norm followed by a flattening of its leading axes -> RMS norm with a flat result."""

from __future__ import annotations

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import why_not_absorbed
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.rewrite.rules import Match, RuleSet, rewrites
from rlx.ir.shape import leading_flatten_fused_shape, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.nn.norms import RmsNorm
from rlx.ops.shape.movement import Reshape


@rewrites(Reshape, exact=True)
def flatten_in_norm(m: Match) -> Tensor | None:
    """reshape(rms_norm(x [.., H]), [rows, H]) -> rms_norm(x) {flatten}"""
    norm = m.producer(0)
    if not isinstance(norm.op, RmsNorm) or norm.op.flatten or m.node.shape.rank != 2:
        return None
    if m.node.shape != leading_flatten_fused_shape(norm.shape):
        return m.miss(MissReason.ReshapeNotFlat, f"{norm.shape} to {m.node.shape}")
    if normalize_axis(norm.op.axis, norm.shape.rank, "rms_norm") != norm.shape.rank - 1:
        return m.miss(MissReason.NormAxis, f"axis {norm.op.axis} of {norm.shape}")
    reason = why_not_absorbed(m, norm)
    if reason is not None:
        return m.miss(*reason)
    flat: Tensor = norm.op.replace(flatten=True)(*(m.value(i) for i in norm.inputs))
    return flat


class FuseRmsNormReshape(RulePass):
    """A reshape that joins exactly the leading axes of a norm over the last axis becomes part of the norm.

    Nothing else may read the norm. Symbolic sizes join to their product.
    """

    name = "fuse_rms_norm_reshape"
    pattern = "rms_norm_reshape"

    @property
    def rules(self) -> RuleSet:
        return RuleSet(self.name, [flatten_in_norm])
