"""The rule behind both residual norm fusions: a sum that is normalised over its last axis."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import describe, is_binary, why_not_absorbed
from rlx.ir.graph import Node, NodeId
from rlx.ir.rewrite.rules import Match, Rule
from rlx.ir.shape import normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.fused.layers import FusedResidualLN, FusedResidualRmsNorm
from rlx.ops.nn.norms import LayerNorm, RmsNorm
from rlx.ops.pointwise.arithmetic import BinaryOp

FusedNorm = type[FusedResidualLN] | type[FusedResidualRmsNorm]


class _Summands(NamedTuple):
    """x + residual (+ bias), and the sum inside the sum when there is a bias."""

    x: NodeId
    residual: NodeId
    bias: NodeId | None = None
    inner: Node | None = None


def residual_norm_rule(name: str, norm: type[LayerNorm] | type[RmsNorm], fused: FusedNorm) -> Rule:
    """norm(x + residual (+ bias)) -> fused; with the sum as a second result when something behind the norm reads it."""
    return Rule(name, (norm,), partial(_fuse, fused), exact=False)


def _fuse(fused: FusedNorm, m: Match) -> Tensor | None:
    total = m.producer(0)
    if not is_binary(total, BinaryOp.Add) or getattr(m.op, "flatten", False):
        return None
    summands = _summands(m, total)
    if summands is None:
        shapes = [m.graph.shape(i) for i in total.inputs]
        has_residual = all(s.rank > 1 for s in shapes)
        return m.miss(MissReason.ResidualShape, f"{shapes[0]} + {shapes[1]}") if has_residual else None
    if normalize_axis(m.op.axis, m.node.shape.rank, m.op.mnemonic) != m.node.shape.rank - 1:
        return m.miss(MissReason.NormAxis, f"axis {m.op.axis} of {m.node.shape}")
    reason = why_not_absorbed(m, summands.inner) if summands.inner is not None else None
    if reason is not None:
        return m.miss(*reason)
    with_sum = not m.is_only_use(total)
    if m.users(total)[0] != m.node.id:
        # The fused op stands where the norm stands, too late for a reader before it.
        early = m.graph.nodes[m.users(total)[0]]
        return m.miss(MissReason.MultiConsumer, f"{describe(early)} reads the sum before the norm")
    bias = [] if summands.bias is None else [summands.bias]
    operands = [m.value(i) for i in (summands.x, summands.residual, *bias, *m.node.inputs[1:])]
    results = fused(bool(bias), m.op.eps, with_sum)(*operands)
    if not with_sum:
        single: Tensor = results
        return single
    normed, new_total = results
    m.redirect(total, new_total)
    normed_tensor: Tensor = normed
    return normed_tensor


def _summands(m: Match, total: Node) -> _Summands | None:
    """The parts of a sum of equal shapes; a vector that is added to it, inside or outside, is its bias."""
    sides = [m.graph.nodes[i] for i in total.inputs]
    if not all(s.shape == total.shape for s in sides):
        for inner, bias in (sides, sides[::-1]):
            if _is_bias(bias, total) and _is_even_sum(m, inner):
                x, residual_id = inner.inputs
                return _Summands(x, residual_id, bias.id, inner)
        return None
    for inner, residual in (sides, sides[::-1]):
        if inner is residual or not is_binary(inner, BinaryOp.Add) or not m.is_only_use(inner):
            continue
        parts = [m.graph.nodes[i] for i in inner.inputs]
        for part, bias in (parts, parts[::-1]):
            if _is_bias(bias, total) and part.shape == total.shape:
                return _Summands(part.id, residual.id, bias.id, inner)
    return _Summands(sides[0].id, sides[1].id)


def _is_bias(node: Node, total: Node) -> bool:
    return total.shape.rank > 1 and node.shape.dims == total.shape.dims[-1:]


def _is_even_sum(m: Match, node: Node) -> bool:
    return is_binary(node, BinaryOp.Add) and all(m.graph.shape(i) == node.shape for i in node.inputs)
