"""Residual sum + layer norm -> one op."""

from __future__ import annotations

from rlx.compile.claims.fusion.residual_norm import residual_norm_rule
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.rewrite.rules import RuleSet
from rlx.ops.fused.layers import FusedResidualLN
from rlx.ops.nn.norms import LayerNorm


class FuseResidualLN(RulePass):
    """`layer_norm(x + residual (+ bias))` over the last axis becomes `fused_residual_ln`.

    x and residual have one shape, the bias is a vector of the features. A sum that is read again behind the norm, or
    that is an output, becomes the second result of the fused op.
    """

    name = "fuse_residual_ln"
    pattern = "residual_ln"

    @property
    def rules(self) -> RuleSet:
        return RuleSet(self.name, [residual_norm_rule(self.name, LayerNorm, FusedResidualLN)])
