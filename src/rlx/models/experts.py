"""Feed-forward layers of experts: which of them a token meets, and what they make of it together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx import ops
from rlx.ir.dtype import DType
from rlx.ops.define.operands import same_graph

if TYPE_CHECKING:
    from rlx.models.config import MoeConfig
    from rlx.models.layers import Layers

# Below every sum of scores that means something.
_TINY = 1e-20


def routed(layers: Layers, moe: MoeConfig, x: Any, layer: int) -> tuple[Any, Any]:
    """Which experts each row of x [B,S,D] meets, i[B,S,K], and what each of them weighs, f32[B,S,K]."""
    said = layers.linear(x, "router", layer, moe.experts)
    scores = ops.sigmoid(said) if moe.score == "sigmoid" else ops.softmax(said, -1)
    judged = scores
    if moe.corrected:
        judged = ops.add(scores, layers.vector(f"{layers.file.name('router_shift', layer)}.bias", moe.experts))
    if moe.groups > 1:
        judged = _of_best_groups(judged, moe)
    weights, chosen = ops.top_k(judged, moe.top_k)
    if judged is not scores:
        weights = ops.take_along_axis(scores, chosen, -1)
    if moe.renormalize:
        total = ops.reduce_sum(weights, (-1,), keepdims=True)
        # A softmax adds up to something at its largest entries; sigmoids may all be next to nothing.
        weights = ops.div(weights, ops.maximum(total, _TINY) if moe.score == "sigmoid" or moe.corrected else total)
    return chosen, weights if moe.scale == 1.0 else ops.mul(weights, moe.scale)


def _of_best_groups(scores: Any, moe: MoeConfig) -> Any:
    """The scores [B,S,E] of experts in the best groups, -inf for the others."""
    batch, seq, experts = scores.shape
    grouped = ops.reshape(scores, (batch, seq, moe.groups, experts // moe.groups))
    best, _ = ops.top_k(grouped, moe.group_judges)
    _, chosen = ops.top_k(ops.reduce_sum(best, (-1,)), moe.top_groups)
    with same_graph(scores):
        numbers = ops.iota((1, 1, moe.groups, 1), DType.I32, 2)
    is_chosen = ops.eq(ops.cast(ops.expand_dims(chosen, 2), DType.I32), numbers)
    visible = ops.reduce_max(ops.cast(is_chosen, DType.F32), (-1,), keepdims=True)
    return ops.reshape(ops.where(ops.gt(visible, 0.5), grouped, -float("inf")), (batch, seq, experts))
