"""Losses. `reduction` is "mean" (the default), "sum" or "none"."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.errors import OpError
from rlx.nn.activations import log_sigmoid, softplus
from rlx.numpy.arguments import array_function, axis_of, convert, inexact, operand, rank_of, value
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_similarity",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]


def _reduced(loss: Any, reduction: str, function: str, weight: Any = None) -> Any:
    """The loss of every element, its sum, or its mean, weighted when there are weights."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return ops.reduce_sum(loss)
    if reduction == "mean":
        return ops.mean(loss) if weight is None else ops.reduce_sum(loss) / ops.reduce_sum(weight)
    raise OpError(f"{function}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


@array_function
def softmax_cross_entropy_with_integer_labels(logits: Any, labels: Any, axis: int = -1) -> Any:
    """-log softmax(logits)[label] for every row along `axis`."""
    (logits,) = inexact(logits)
    return ops.softmax_cross_entropy_with_logits(ops.moveaxis(logits, axis, -1), operand(labels))


@array_function
def softmax_cross_entropy(logits: Any, labels: Any, axis: int = -1) -> Any:
    """-Σ labels·log softmax(logits) along `axis`, where labels are probabilities."""
    logits, labels = inexact(logits, labels)
    return -ops.reduce_sum(labels * ops.log_softmax(logits, axis), axis)


@array_function
def cross_entropy(
    logits: Any,
    labels: Any,
    weight: Any = None,
    *,
    axis: int = -1,
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:
    """Cross-entropy of softmax(logits) with labels: class numbers, or probabilities of the shape of the logits.

    `weight` has a factor per class, and the mean is taken over these; rows with the label `ignore_index` do not count.
    `label_smoothing` moves that share of the probability to all classes evenly. The classes lie along `axis`.
    """
    (logits,) = inexact(logits)
    logits = ops.moveaxis(logits, axis_of(axis, logits, "cross_entropy"), -1)
    labels = value(labels)
    if dtype_of(labels).is_float and rank_of(labels) == rank_of(logits):
        return _cross_entropy_of_probabilities(logits, labels, weight, axis, label_smoothing, reduction)
    counts = ops.ones_like(labels) if ignore_index is None else ops.ne(labels, ignore_index)
    counts = convert(counts, dtype_of(logits))
    classes = ops.where(ops.ne(counts, 0), labels, 0)
    if weight is None and label_smoothing == 0:
        loss = ops.softmax_cross_entropy_with_logits(logits, classes) * counts
        return _reduced(loss, reduction, "cross_entropy", None if ignore_index is None else counts)
    weights = ops.ones((dims_of(logits)[-1],), dtype_of(logits)) if weight is None else value(weight)
    each = ops.take(convert(weights, dtype_of(logits)), classes, 0) * counts
    logs = ops.log_softmax(logits, -1)
    picked = ops.squeeze(ops.take_along_axis(logs, ops.expand_dims(classes, -1), -1), -1)
    smooth = ops.mean(logs * convert(weights, dtype_of(logits)), -1) * counts
    loss = -(1 - label_smoothing) * picked * each - label_smoothing * smooth
    return _reduced(loss, reduction, "cross_entropy", each)


def _cross_entropy_of_probabilities(
    logits: Any, labels: Any, weight: Any, axis: int, label_smoothing: float, reduction: str
) -> Any:
    probabilities = convert(ops.moveaxis(labels, axis, -1), dtype_of(logits))
    if label_smoothing:
        count = convert(ops.dim_value(dims_of(logits)[-1]), dtype_of(logits))
        probabilities = probabilities * (1 - label_smoothing) + label_smoothing / count
    if weight is not None:
        probabilities = probabilities * convert(operand(weight), dtype_of(logits))
    loss = -ops.reduce_sum(probabilities * ops.log_softmax(logits, -1), -1)
    return _reduced(loss, reduction, "cross_entropy")


@array_function
def nll_loss(
    log_probs: Any, labels: Any, *, axis: int = -1, ignore_index: int | None = -100, reduction: str = "mean"
) -> Any:
    """-log_probs[label] for every row along `axis`; rows with the label `ignore_index` do not count."""
    (log_probs,) = inexact(log_probs)
    last, labels = ops.moveaxis(log_probs, axis, -1), value(labels)
    if ignore_index is None:
        picked = ops.take_along_axis(last, ops.expand_dims(labels, -1), -1)
        return _reduced(-ops.squeeze(picked, -1), reduction, "nll_loss")
    counts = ops.ne(labels, ignore_index)
    picked = ops.take_along_axis(last, ops.expand_dims(ops.where(counts, labels, 0), -1), -1)
    loss = ops.where(counts, -ops.squeeze(picked, -1), 0)
    return _reduced(loss, reduction, "nll_loss", convert(counts, dtype_of(last)))


@array_function
def binary_cross_entropy(probs: Any, labels: Any, weight: Any = None, *, reduction: str = "mean") -> Any:
    """-(labels·log(probs) + (1 - labels)·log(1 - probs)); the logarithms are at least -100, and constant there."""
    probs, labels = inexact(probs, labels)

    def limited(log: Any, p: Any, is_known: Any) -> Any:
        return ops.where(is_known, ops.maximum(log(ops.where(is_known, p, 0.5)), -100), -100)

    yes = limited(ops.log, probs, ops.ne(probs, 0))
    no = limited(ops.log1p, -probs, ops.ne(probs, 1))
    loss = -(labels * yes + (1 - labels) * no)
    return _reduced(loss if weight is None else ops.mul(loss, operand(weight)), reduction, "binary_cross_entropy")


@array_function
def binary_cross_entropy_with_logits(
    logits: Any, labels: Any, weight: Any = None, *, pos_weight: Any = None, reduction: str = "mean"
) -> Any:
    """Binary cross-entropy of sigmoid(logits), without overflow; `pos_weight` is a factor on positive labels."""
    logits, labels = inexact(logits, labels)
    positive = labels if pos_weight is None else ops.mul(labels, operand(pos_weight))
    loss = (1 - labels) * softplus(logits) - positive * log_sigmoid(logits)
    loss = loss if weight is None else ops.mul(loss, operand(weight))
    return _reduced(loss, reduction, "binary_cross_entropy_with_logits")


@array_function
def mse_loss(predictions: Any, targets: Any, *, reduction: str = "mean") -> Any:
    """(predictions - targets)²."""
    a, b = inexact(predictions, targets)
    return _reduced(ops.square(a - b), reduction, "mse_loss")


@array_function
def l1_loss(predictions: Any, targets: Any, *, reduction: str = "mean") -> Any:
    """|predictions - targets|; what is right already has gradient 0."""
    a, b = inexact(predictions, targets)
    return _reduced(ops.where(ops.eq(a, b), 0, ops.abs_(a - b)), reduction, "l1_loss")


@array_function
def huber_loss(predictions: Any, targets: Any, delta: float = 1.0, *, reduction: str = "mean") -> Any:
    """e²/2 for |e| <= delta, else delta·(|e| - delta/2), with e = predictions - targets."""
    a, b = inexact(predictions, targets)
    size = ops.abs_(a - b)
    near = ops.minimum(size, delta)
    return _reduced(0.5 * near * near + delta * (size - near), reduction, "huber_loss")


@array_function
def smooth_l1_loss(predictions: Any, targets: Any, beta: float = 1.0, *, reduction: str = "mean") -> Any:
    """huber_loss with delta = beta, divided by beta; |e| for beta = 0."""
    if beta == 0:
        return l1_loss(predictions, targets, reduction=reduction)
    return huber_loss(predictions, targets, beta, reduction=reduction) / beta


@array_function
def kl_div(log_probs: Any, targets: Any, *, log_target: bool = False, reduction: str = "mean") -> Any:
    """targets·(log(targets) - log_probs), 0 where targets are; "batchmean" divides the sum by the size of axis 0.

    With `log_target` the targets are logarithms too.
    """
    log_probs, targets = inexact(log_probs, targets)
    if log_target:
        loss = ops.exp(targets) * (targets - log_probs)
    else:
        positive = ops.gt(targets, 0)
        loss = ops.where(positive, targets * (ops.log(ops.where(positive, targets, 1)) - log_probs), 0)
    if reduction == "batchmean":
        return ops.reduce_sum(loss) / convert(ops.dim_value(dims_of(loss)[0]), dtype_of(loss))
    return _reduced(loss, reduction, "kl_div")


@array_function
def cosine_similarity(a: Any, b: Any, axis: int = -1, eps: float = 1e-8) -> Any:
    """a·b/(|a|·|b|) along `axis`; the product of the lengths is at least eps."""
    a, b = inexact(a, b)
    lengths = ops.reduce_sum(a * a, axis) * ops.reduce_sum(b * b, axis)
    return ops.reduce_sum(a * b, axis) / ops.sqrt(ops.maximum(lengths, eps * eps))
