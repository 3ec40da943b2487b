"""Projection to q, k, v, attention and output projection -> one op, for short sequences."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import (
    Cut,
    Projection,
    cut_of,
    is_known_before_run,
    projection_of,
    why_not_absorbed,
)
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.dims import product
from rlx.ir.graph import Node, NodeId
from rlx.ir.rewrite.rules import Match, Rule, RuleSet
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.knobs import knobs
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import AttentionLayout, MaskKind
from rlx.ops.fused.blocks import FusedAttentionBlock
from rlx.ops.fused.layers import FusedMatMulBiasAct
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.rotary import Rope
from rlx.ops.pointwise.arithmetic import Binary
from rlx.ops.shape.movement import Concat

Reason = tuple[MissReason, str]


class _Heads(NamedTuple):
    """What q, k and v are made of: one packed weight and bias, or one of each, and the nodes in between."""

    hidden: NodeId
    weights: tuple[NodeId, ...]
    biases: tuple[NodeId, ...]
    absorbed: tuple[Node, ...]
    # The projection of which q, k and v are the thirds.
    packed: Node | None = None
    tables: tuple[NodeId, ...] = ()


def is_short(hidden: Shape, threshold: int) -> bool:
    """Whether batch times sequence of [B, S, ..] is known and at most `threshold`."""
    rows = product(hidden.dims[:2])
    return isinstance(rows, int) and rows <= threshold


def _fuse(threshold: int, m: Match) -> Tensor | None:
    out = projection_of(m.graph, m.node)
    if out is None:
        return None
    attended = m.graph.nodes[out.x]
    op = attended.op
    if not isinstance(op, Attention) or op.mask_kind is not MaskKind.Custom:
        return None
    # Every head has its own key, and the scale is the usual one.
    if op != Attention(op.num_heads, op.head_dim, MaskKind.Custom, layout=AttentionLayout.Bsm):
        return m.miss(MissReason.UnsupportedAttention, repr(op))
    heads = _heads(m, attended, FusedAttentionBlock(op.num_heads, op.head_dim))
    if heads is None:
        return None
    if bool(heads.biases) != (out.b is not None):
        # A sum that reads this product may be the output projection with its bias.
        return None if out.b is None else m.miss(MissReason.BiasShape, "only one of the projections has a bias")
    reason = _why_not_fused(m, out, attended, heads, threshold)
    if reason is not None:
        return m.miss(*reason)
    block = FusedAttentionBlock(op.num_heads, op.head_dim, out.b is not None, bool(heads.tables))
    weights = [_joined(m, heads.weights, 1), m.value(out.w), m.value(attended.inputs[3])]
    biases = [] if out.b is None else [_joined(m, heads.biases, 0), m.value(out.b)]
    fused: Tensor = block(m.value(heads.hidden), *weights, *biases, *(m.value(i) for i in heads.tables))
    return fused


def _heads(m: Match, attended: Node, block: FusedAttentionBlock) -> _Heads | None:
    q, k, v = (m.graph.nodes[i] for i in attended.inputs[:3])
    if not isinstance(q.op, Rope):
        return _packed(m, (q, k, v), block.width) or _separate(m, (q, k, v), block.width)
    if not q.op == k.op == block.rope or q.inputs[1:] != k.inputs[1:]:
        return None
    parts = (m.input_of(q, 0), m.input_of(k, 0), v)
    found = _packed(m, parts, block.width) or _separate(m, parts, block.width)
    return None if found is None else found._replace(tables=q.inputs[1:], absorbed=(*found.absorbed, q, k))


def _packed(m: Match, parts: tuple[Node, ...], width: int) -> _Heads | None:
    """q, k and v are the three thirds of one projection."""
    cuts = [cut for part in parts if (cut := cut_of(m.graph, part)) is not None]
    axis = parts[0].shape.rank - 1
    if not cuts or cuts != [Cut(cuts[0].source, axis, i * width, width) for i in range(3)]:
        return None
    whole = m.graph.nodes[cuts[0].source]
    projection = projection_of(m.graph, whole)
    if projection is None or whole.shape.dims[-1] != 3 * width:
        return None
    biases = () if projection.b is None else (projection.b,)
    return _Heads(projection.x, (projection.w,), biases, (*projection.inner_nodes, *parts), whole)


def _separate(m: Match, parts: tuple[Node, ...], width: int) -> _Heads | None:
    """q, k and v are projections of one tensor."""
    projections = [p for part in parts if (p := projection_of(m.graph, part)) is not None]
    if len(projections) != 3 or any(part.shape.dims[-1] != width for part in parts):
        return None
    weights = tuple(p.w for p in projections)
    biases = tuple(p.b for p in projections if p.b is not None)
    if len({p.x for p in projections}) != 1 or len(biases) not in (0, 3):
        return None
    inner = [node for p in projections for node in p.inner_nodes]
    return _Heads(projections[0].x, weights, biases, (*inner, *parts))


def _why_not_fused(m: Match, out: Projection, attended: Node, heads: _Heads, threshold: int) -> Reason | None:
    hidden = m.graph.shape(heads.hidden)
    if hidden.rank != 3 or m.node.shape != hidden:
        return MissReason.WeightShapes, f"the result is {m.node.shape}, the block reads {hidden}"
    if not is_short(hidden, threshold):
        return MissReason.NotProfitable, f"batch * sequence of {hidden} is not known to be at most {threshold}"
    if len(heads.weights) > 1 and not all(is_known_before_run(m.graph, i) for i in (*heads.weights, *heads.biases)):
        return MissReason.NotProfitable, "the weights would be joined anew in every run"
    whole = () if heads.packed is None else (heads.packed,)
    absorbed = (*out.inner_nodes, attended, *heads.absorbed)
    return why_not_absorbed(m, *whole, readers=3) or why_not_absorbed(m, *absorbed)


def _joined(m: Match, ids: tuple[NodeId, ...], axis: int) -> Tensor:
    tensors = [m.value(i) for i in ids]
    if len(tensors) == 1:
        return tensors[0]
    joined: Tensor = Concat(axis)(*tensors)
    return joined


class FuseAttentionBlock(RulePass):
    """`project(attention(q, k, v, mask))`, with q, k, v projected from one tensor, becomes `fused_attention_block`.

    q, k and v are the thirds of one projection, or three projections by weights known before the run; q and k may be
    rotated; projections have biases everywhere or nowhere. Batch times sequence must be known and at most `threshold`
    (by default the knob `fuse_attn_threshold`): longer sequences are better served by kernels of their own.
    """

    name = "fuse_attention_block"
    pattern = "attention_block"

    def __init__(self, threshold: int | None = None) -> None:
        self.threshold = threshold

    @property
    def rules(self) -> RuleSet:
        threshold = knobs.fuse_attn_threshold if self.threshold is None else self.threshold
        rule = Rule(self.name, (FusedMatMulBiasAct, MatMul, Binary), partial(_fuse, threshold), exact=False)
        return RuleSet(self.name, [rule])
