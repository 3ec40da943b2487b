"""Gradients that compute values of the forward pass again, for targets where a value costs less than its way through
memory.

    dγ = Σ dy·x̂ of a layer norm -> Σ (v·x - v·μ) with v = dy·r: x is stored anyway, μ and r are numbers of a row

These forms say the same things as the forward pass in other words, all of which depend on the gradient: equal ones
would be computed by the forward pass and stored for the gradient as wide as sums are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.define.widening import accumulators, rounded_tensor
from rlx.ops.nn.losses import SoftmaxCrossEntropyBackward
from rlx.ops.nn.norm_gradients import LayerNormBackwardGamma, LayerNormBackwardInput
from rlx.ops.nn.norms import along, other_axes, standardize_tensor
from rlx.ops.pointwise.arithmetic import eq, lt, maximum, minimum, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import exp, log
from rlx.ops.reduction.reductions import mean, reduce_max, reduce_sum
from rlx.ops.shape.creation import dim_value, iota
from rlx.ops.shape.movement import expand_dims, reshape


def repeated_form(op: Op, *operands: Any) -> Callable[..., Any] | None:
    """The form of a gradient that repeats what it needs of the forward pass; None if it has none."""
    if isinstance(op, SoftmaxCrossEntropyBackward):
        return _loss_gradient
    # Wide values are as wide as what would be stored, and lose digits where a mean is large.
    if isinstance(op, LayerNormBackwardInput | LayerNormBackwardGamma) and operands[0].dtype.size_bytes < 4:
        return _norm_gradient(op)
    return None


def places_and_labels(logits: Any, labels: Any) -> tuple[Any, Any]:
    """The positions along the last axis, and the label of every row; labels are clipped, and negative ones count from
    the end."""
    with same_graph(logits):
        count = dim_value(logits.shape[-1], DType.I64)
        ids = cast(labels, DType.I64)
        ids = maximum(minimum(where(lt(ids, 0), ids + count, ids), count - 1), 0)
        positions = iota((logits.shape[-1],), DType.I32)
    return positions, cast(expand_dims(ids, -1), DType.I32)


def _loss_gradient(logits: Any, labels: Any, dloss: Any) -> Any:
    """(softmax(x) - [label])·dloss with powers e^(x - log Σ e^x). Rows without a gradient weigh nothing; so powers
    cannot be formed before the gradient is known, by the loss."""
    wide, upstream = accumulators(logits, dloss)
    upstream = expand_dims(upstream, -1)
    highest = reduce_max(wide, (-1,), keepdims=True)
    log_total = log(reduce_sum(exp(wide - highest), (-1,), keepdims=True))
    share = exp(wide - where(eq(upstream, 0.0), math.inf, highest + log_total))
    positions, ids = places_and_labels(logits, labels)
    change = where(eq(positions - ids, 0), share - 1.0, share)
    return rounded_tensor(change * upstream, logits.dtype)


def _norm_gradient(op: LayerNormBackwardInput | LayerNormBackwardGamma) -> Callable[..., Any]:
    """With v = dy·γ·r, which is not known to the forward pass: Σ u·x̂ = Σ (v·x - v·μ), and
    r·(u - mean u - x̂·s) = v - mean v - (k·x - k·μ) with k = r²·s, where s = mean(u·x̂)."""
    axes = (op.axis,)

    def statistics(wide: Any) -> tuple[Any, Any]:
        _, scale = standardize_tensor(wide, axes, op.eps)
        return mean(wide, axes, keepdims=True), scale

    def of_input(x: Any, gamma: Any, dy: Any) -> Any:
        wide, gain, cotangent = accumulators(x, gamma, dy)
        middle, scale = statistics(wide)
        v = cotangent * reshape(gain, along(op.axis, x.ndim, gamma.shape[0])) * scale
        k = mean(v * wide - v * middle, axes, keepdims=True) * scale * scale
        return rounded_tensor(v - k * wide - (mean(v, axes, keepdims=True) - k * middle), x.dtype)

    def of_gamma(x: Any, dy: Any) -> Any:
        wide, cotangent = accumulators(x, dy)
        middle, scale = statistics(wide)
        v = cotangent * scale
        return rounded_tensor(reduce_sum(v * wide - v * middle, other_axes(op.axis, x.ndim)), x.dtype)

    return of_input if isinstance(op, LayerNormBackwardInput) else of_gamma
