"""Losses over pairs and sequences: contrastive, and connectionist temporal classification (CTC)."""

from __future__ import annotations

from typing import Any

import rlx
import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError
from rlx.nn.activations import log_softmax, normalize
from rlx.nn.losses import softmax_cross_entropy_with_integer_labels

__all__ = ["contrastive_loss", "ctc_loss"]

# Stands for log 0: far below every logarithm, and its differences are 0, not NaN.
_NEVER = -1e30


def contrastive_loss(a: Any, b: Any, temperature: Any = 0.05, *, symmetric: bool = True) -> Any:
    """Row i of `a` should be nearer to row i of `b` than to its other rows, by cosine; the mean over the rows.

    It is the cross-entropy of softmax(cos(a, b)/temperature), with `symmetric` averaged with that of b to a.
    """
    if len(a.shape) != 2 or tuple(a.shape) != tuple(b.shape):
        raise ShapeError(
            f"contrastive_loss: two [rows, width] arrays are needed, got {tuple(a.shape)}, {tuple(b.shape)}"
        )
    scores = normalize(a, axis=-1) @ rnp.transpose(normalize(b, axis=-1)) / temperature
    labels = rnp.arange(a.shape[0], dtype="i32")
    there = rnp.mean(softmax_cross_entropy_with_integer_labels(scores, labels))
    if not symmetric:
        return there
    return (there + rnp.mean(softmax_cross_entropy_with_integer_labels(rnp.transpose(scores), labels))) / 2


def ctc_loss(
    logits: Any,
    labels: Any,
    logit_lengths: Any = None,
    label_lengths: Any = None,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """-log of the probability that the frames spell the labels, blanks and repetitions removed (Graves et al. 2006).

    logits are [B, T, classes], labels [B, L], of which the first `label_lengths` count, as do the first `logit_lengths`
    frames. Labels that need more frames than there are give inf, or 0 with `zero_infinity`. "mean" divides each loss by
    the number of its labels before it takes the mean over the batch; "sum" and "none" do not.
    """
    if reduction not in ("mean", "sum", "none"):
        raise OpError(f"ctc_loss: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if len(logits.shape) != 3 or len(labels.shape) != 2 or logits.shape[0] != labels.shape[0]:
        raise ShapeError(
            f"ctc_loss: logits [B, T, classes] and labels [B, L] are needed, got {tuple(logits.shape)}, "
            f"{tuple(labels.shape)}"
        )
    batch, frames, _ = logits.shape
    count = labels.shape[1]
    labels = rnp.astype(labels, "i32")
    ends = rnp.full((batch,), frames, "i32") if logit_lengths is None else rnp.astype(logit_lengths, "i32")
    lengths = rnp.full((batch,), count, "i32") if label_lengths is None else rnp.astype(label_lengths, "i32")
    # Blanks stand between and around the labels.
    blanks = rnp.full((batch, count + 1), blank, "i32")
    between = rnp.stack([blanks[:, :-1], labels], axis=2).reshape(batch, 2 * count)
    extended = rnp.concatenate([between, blanks[:, -1:]], axis=1)
    before = rnp.concatenate([rnp.full((batch, 2), blank, "i32"), extended], axis=1)[:, : 2 * count + 1]
    # A blank between two labels may be left out unless they are the same.
    may_skip = rnp.logical_and(extended != blank, extended != before)
    states = 2 * count + 1
    logs = log_softmax(logits, -1)
    dtype = logs.dtype
    never = rnp.full((batch, 2), _NEVER, dtype)
    places = rnp.broadcast_to(extended[:, None, :], (batch, frames, states))
    spelled = rnp.swapaxes(rnp.take_along_axis(logs, places, axis=2), 0, 1)
    first = rnp.where(rnp.arange(states)[None, :] < 2, spelled[0], rnp.asarray(_NEVER, dtype=dtype))

    def step(alpha: Any, row: Any) -> tuple[Any, Any]:
        time, frame = row
        padded = rnp.concatenate([never, alpha], axis=1)
        skipped = rnp.where(may_skip, padded[:, :-2], rnp.asarray(_NEVER, dtype=dtype))
        reached = rnp.logaddexp(rnp.logaddexp(alpha, padded[:, 1:-1]), skipped)
        after = rnp.maximum(reached, _NEVER) + frame
        return rnp.where((time < ends)[:, None], after, alpha), None

    alpha, _ = rlx.scan(step, first, (rnp.arange(1, frames, dtype="i32"), spelled[1:]))
    last = rnp.take_along_axis(alpha, (2 * lengths)[:, None], axis=1)[:, 0]
    last_label = rnp.take_along_axis(alpha, rnp.maximum(2 * lengths - 1, 0)[:, None], axis=1)[:, 0]
    total = rnp.where(lengths > 0, rnp.logaddexp(last, last_label), last)
    impossible = total < _NEVER / 2
    loss = rnp.where(impossible, 0.0 if zero_infinity else rnp.inf, -rnp.where(impossible, 0.0, total))
    if reduction == "none":
        return loss
    if reduction == "sum":
        return rnp.sum(loss)
    return rnp.mean(loss / rnp.astype(rnp.maximum(lengths, 1), dtype))
