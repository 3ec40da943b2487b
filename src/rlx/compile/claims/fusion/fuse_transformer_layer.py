"""A whole post-norm encoder layer -> one op, for short sequences."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rlx.compile.claims.fusion.fuse_attention_block import is_short
from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import Projection, projection_of, why_not_absorbed
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.graph import Node
from rlx.ir.rewrite.rules import Match, Rule, RuleSet
from rlx.ir.tensor import Tensor
from rlx.knobs import knobs
from rlx.ops.fused.blocks import FusedAttentionBlock, FusedTransformerLayer
from rlx.ops.fused.layers import FusedMatMulBiasAct, FusedResidualLN
from rlx.ops.pointwise.unary import Activation, ActivationKind


class _Hidden(NamedTuple):
    """act(h·w + b), and the nodes it is made of."""

    projection: Projection
    activation: ActivationKind
    nodes: tuple[Node, ...]


class _FeedForward(NamedTuple):
    """act(h·w1 + b1)·w2 + b2, and the nodes it is made of."""

    hidden: _Hidden
    out: Projection
    nodes: tuple[Node, ...]


def _fuse(threshold: int, m: Match) -> Tensor | None:
    found = _feed_forward(m) if _is_plain_norm(m.node) else None
    if found is None:
        return None
    fc1, fc2 = found.hidden.projection, found.out
    h = m.graph.nodes[fc1.x]
    block = _attention_block(m, h)
    if block is None or not isinstance(block.op, FusedAttentionBlock):
        return None
    op = block.op
    inner_size = m.graph.shape(fc1.w).dims[1]
    biases_agree = {fc1.b is not None, fc2.b is not None} == {op.has_bias}
    if op.has_rope or not biases_agree or not isinstance(inner_size, int):
        return m.miss(MissReason.UnsupportedAttention, "a layer has no rotation, and biases everywhere or nowhere")
    reason = _why_not_fused(m, h, (block, *found.nodes), threshold)
    if reason is not None:
        return m.miss(*reason)
    settings = (op.num_heads, op.head_dim, inner_size, h.op.attributes["eps"], m.op.eps, found.hidden.activation)
    layer = FusedTransformerLayer(*settings, op.has_bias)
    operands = op.named(block.inputs) | {"fc1_w": fc1.w, "fc1_b": fc1.b, "fc2_w": fc2.w, "fc2_b": fc2.b}
    operands |= dict(zip(("ln1_g", "ln1_b", "ln2_g", "ln2_b"), (*h.inputs[2:], *m.node.inputs[2:])))
    fused: Tensor = layer(*(m.value(operands[name]) for name in layer.names()))
    return fused


def _why_not_fused(m: Match, h: Node, absorbed: tuple[Node, ...], threshold: int) -> tuple[MissReason, str] | None:
    if not is_short(h.shape, threshold):
        return MissReason.NotProfitable, f"batch * sequence of {h.shape} is not known to be at most {threshold}"
    return why_not_absorbed(m, h, readers=2) or why_not_absorbed(m, *absorbed)


def _is_plain_norm(node: Node) -> bool:
    return isinstance(node.op, FusedResidualLN) and not node.op.has_bias and not node.op.with_sum


def _feed_forward(m: Match) -> _FeedForward | None:
    """The feed-forward part of LN(ffn(h) + h), whichever side of the sum it is."""
    for side in (0, 1):
        result = m.producer(side)
        out = projection_of(m.graph, result)
        hidden = None if out is None else _hidden(m, m.graph.nodes[out.x])
        if out is not None and hidden is not None and hidden.projection.x == m.node.inputs[1 - side]:
            return _FeedForward(hidden, out, (result, *out.inner_nodes, *hidden.nodes))
    return None


def _hidden(m: Match, node: Node) -> _Hidden | None:
    if isinstance(node.op, FusedMatMulBiasAct) and node.op.activation is not None:
        x, w, b = node.inputs
        is_matrix = m.graph.shape(w).rank == 2
        return _Hidden(Projection(x, w, b), node.op.activation, (node,)) if is_matrix else None
    if not isinstance(node.op, Activation):
        return None
    product = m.input_of(node, 0)
    found = projection_of(m.graph, product)
    return None if found is None else _Hidden(found, node.op.kind, (node, product, *found.inner_nodes))


def _attention_block(m: Match, h: Node) -> Node | None:
    """The block of h = LN(block(hidden) + hidden), whichever side of the sum it is."""
    if not _is_plain_norm(h):
        return None
    for side in (0, 1):
        block = m.input_of(h, side)
        if isinstance(block.op, FusedAttentionBlock) and block.inputs[0] == h.inputs[1 - side]:
            return block
    return None


class FuseTransformerLayer(RulePass):
    """`LN(ffn(h) + h)` with `h = LN(attention_block(x) + x)` becomes `fused_transformer_layer`.

    Runs after the passes that form its parts. Nothing else may read what is inside the layer; batch times sequence
    must be known and at most `threshold` (by default the knob `fuse_attn_threshold`).
    """

    name = "fuse_transformer_layer"
    pattern = "transformer_layer"

    def __init__(self, threshold: int | None = None) -> None:
        self.threshold = threshold

    @property
    def rules(self) -> RuleSet:
        threshold = knobs.fuse_attn_threshold if self.threshold is None else self.threshold
        return RuleSet(self.name, [Rule(self.name, (FusedResidualLN,), partial(_fuse, threshold), exact=False)])
