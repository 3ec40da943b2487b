"""Residual sum + RMS norm -> one op."""

from __future__ import annotations

from rlx.compile.claims.fusion.residual_norm import residual_norm_rule
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.rewrite.rules import RuleSet
from rlx.ops.fused.layers import FusedResidualRmsNorm
from rlx.ops.nn.norms import RmsNorm


class FuseResidualRmsNorm(RulePass):
    """`rms_norm(x + residual (+ bias))` over the last axis becomes `fused_residual_rms_norm`.

    x and residual have one shape, the bias is a vector of the features. A sum that is read again behind the norm (the
    residual stream of pre-norm models), or that is an output, becomes the second result of the fused op.
    """

    name = "fuse_residual_rms_norm"
    pattern = "residual_rms_norm"

    @property
    def rules(self) -> RuleSet:
        return RuleSet(self.name, [residual_norm_rule(self.name, RmsNorm, FusedResidualRmsNorm)])
