"""Softmax cross-entropy with integer labels, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape
from rlx.ops.define.operands import promote_inexact, require_float, require_same_dtype
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor
from rlx.ops.shape.indexing import clipped_ids, require_ids

__all__ = [
    "SoftmaxCrossEntropyBackward",
    "SoftmaxCrossEntropyWithLogits",
    "softmax_cross_entropy_backward",
    "softmax_cross_entropy_with_logits",
]

Array = np.ndarray[Any, np.dtype[Any]]


class _CrossEntropy(Op):
    """Checks that the loss and its gradient share. Labels are ids of classes, clipped like those of `Gather`."""

    def _check(self, logits: Shape, labels: Shape) -> None:
        require_float(self, logits)
        require_ids(self, labels)
        fits = labels.rank == logits.rank - 1 and all(
            require_equal(a, b, self.name) for a, b in zip(logits.dims, labels.dims)
        )
        if not fits:
            raise self.fail(f"needs logits [.., classes] and one label for each row, got {logits} and {labels}")

    # Every leading axis holds rows.
    batch = batch_by_loop_over_leading

    def index_operands(self, logits: Shape, labels: Shape, *rest: Shape) -> dict[int, Dims]:
        return {1: (logits.dims[-1],)}


def _exponentials(logits: Array) -> tuple[Array, Array, Array]:
    """The largest logit m, exp(logits - m) and their sum, the last axis kept."""
    highest = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(logits - highest)
    return highest, powers, powers.sum(axis=-1, keepdims=True)


@op("softmax_cross_entropy_with_logits")
class SoftmaxCrossEntropyWithLogits(_CrossEntropy):
    """loss = logsumexp(logits) - logits[label] for every row; logits [.., C], labels [..]."""

    precision_class = "reduction"

    def infer(self, logits: Shape, labels: Shape) -> Shape:
        self._check(logits, labels)
        return logits.with_dims(logits.dims[:-1])

    @np.errstate(all="ignore")
    def eval(self, logits: Array, labels: Array) -> Array:
        (wide,) = as_f64(logits)
        highest, _, total = _exponentials(wide)
        ids = clipped_ids(labels, logits.shape[-1])[..., None]
        loss = np.log(total) + highest - np.take_along_axis(wide, ids, axis=-1)
        return rounded(loss[..., 0], logits.dtype)

    def decompose(self, logits: Any, labels: Any) -> Any:
        from rlx.ops.pointwise.unary import exp, log, stop_gradient
        from rlx.ops.reduction.reductions import reduce_max, reduce_sum
        from rlx.ops.shape.movement import expand_dims, squeeze
        from rlx.ops.shape.selection import take_along_axis

        (wide,) = accumulators(logits)
        # The loss does not depend on what is subtracted here, so derivatives need not pass through it.
        highest = stop_gradient(reduce_max(wide, (-1,), keepdims=True))
        total = reduce_sum(exp(wide - highest), (-1,), keepdims=True)
        chosen = take_along_axis(wide, expand_dims(labels, -1), axis=-1)
        return rounded_tensor(squeeze(log(total) + (highest - chosen), -1), logits.dtype)

    def vjp(self, ct: Any, y: Any, logits: Any, labels: Any) -> Any:
        return SoftmaxCrossEntropyBackward()(logits, labels, ct), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        labels = spec(3, dtype="i32", values=[0, 3, 1])
        yield sample(cls(), spec(3, 4), labels)
        yield sample(cls(), spec(3, 4, low=-200, high=200), labels)
        yield sample(cls(), spec(2, 3, 4), spec(2, 3, dtype="f32", values=[[0.5, 3.5, 1.5], [2.5, 0.5, 2.5]]))
        yield sample(cls(), spec(4), spec(dtype="i64", values=2))
        yield sample(cls(), spec(0, 4), spec(0, dtype="i32"))
        yield sample(cls(), spec("N", "C"), spec("N", dtype="i32", low=0, high=2), N=2, C=4)


@op("softmax_cross_entropy_backward")
class SoftmaxCrossEntropyBackward(_CrossEntropy):
    """dlogits = (softmax(logits) - onehot(labels))·dloss; operands logits [.., C], labels [..], dloss [..]."""

    precision_class = "reduction"

    def infer(self, logits: Shape, labels: Shape, dloss: Shape) -> Shape:
        self._check(logits, labels)
        require_same_dtype(self, logits, dloss)
        if dloss.rank != labels.rank or not all(
            require_equal(a, b, self.name) for a, b in zip(dloss.dims, labels.dims)
        ):
            raise self.fail(f"dloss must have the dims of the labels, {labels}, got {dloss}")
        return logits

    @np.errstate(all="ignore")
    def eval(self, logits: Array, labels: Array, dloss: Array) -> Array:
        wide, upstream = as_f64(logits, dloss)
        _, powers, total = _exponentials(wide)
        classes = np.arange(logits.shape[-1])
        hot = classes == clipped_ids(labels, logits.shape[-1])[..., None]
        return rounded((powers / total - hot) * upstream[..., None], logits.dtype)

    def decompose(self, logits: Any, labels: Any, dloss: Any) -> Any:
        from rlx.ops.reduction.reductions import softmax
        from rlx.ops.shape.movement import expand_dims
        from rlx.ops.shape.selection import put_along_axis

        wide, upstream = accumulators(logits, dloss)
        upstream = expand_dims(upstream, -1)
        share = softmax(wide, -1) * upstream
        return rounded_tensor(
            put_along_axis(share, expand_dims(labels, -1), -upstream, -1, "add", "clip"), logits.dtype
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        labels = spec(3, dtype="i32", values=[0, 3, 1])
        yield sample(cls(), spec(3, 4), labels, spec(3))
        fractions = spec(2, 3, dtype="f32", values=[[0.5, 3.5, 1.5], [2.5, 0.5, 2.5]])
        yield sample(cls(), spec(2, 3, 4), fractions, spec(2, 3))
        yield sample(cls(), spec("N", "C"), spec("N", dtype="i32", low=0, high=2), spec("N"), N=2, C=4)


def softmax_cross_entropy_with_logits(logits: Any, labels: Any) -> Any:
    """-log softmax(logits)[label] for every row; labels are class numbers of any integer or float dtype."""
    return SoftmaxCrossEntropyWithLogits()(*promote_inexact(logits), labels)


def softmax_cross_entropy_backward(logits: Any, labels: Any, dloss: Any) -> Any:
    """The gradient of `softmax_cross_entropy_with_logits` with respect to the logits."""
    logits, dloss = promote_inexact(logits, dloss)
    return SoftmaxCrossEntropyBackward()(logits, labels, dloss)
