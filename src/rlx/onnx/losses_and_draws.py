"""Rules of losses and of random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import nn, random
from rlx.formats.onnx.structure import element_type
from rlx.ir.dtype import DType
from rlx.onnx.values import Call, dtype_of, rank_of, rule


@rule("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(call: Call) -> Any:
    return _loss(call, call[0], call[1], call.optional(2))


@rule("SoftmaxCrossEntropyLoss")
def _cross_entropy(call: Call) -> Any:
    logs = nn.log_softmax(call[0], axis=1)
    return _loss(call, logs, call[1], call.optional(2)), logs


def _loss(call: Call, logs: Any, target: Any, weight: Any) -> Any:
    """-weight[t]·logs[n, t, ..]; the mean divides by the sum of the weights."""
    kind, ignored = dtype_of(logs), call.attribute("ignore_index")
    target = rnp.astype(target, DType.I64)
    kept = None if ignored is None else rnp.not_equal(target, np.int64(ignored))
    safe = target if kept is None else rnp.where(kept, target, np.int64(0))
    chosen = rnp.squeeze(rnp.take_along_axis(logs, rnp.expand_dims(safe, 1), 1), 1)
    weights = rnp.ones_like(chosen) if weight is None else rnp.take(weight, safe, axis=0)
    if kept is not None:
        weights = rnp.where(kept, weights, np.zeros((), kind.numpy))
    losses = -chosen * weights
    reduction = call.attribute("reduction", "mean")
    if reduction == "none":
        return losses
    total = rnp.sum(losses, dtype=kind)
    return total if reduction == "sum" else total / rnp.sum(weights, dtype=kind)


# Random numbers: those of the node's seed, the same in every run.


def _key(call: Call) -> Any:
    seed = call.attribute("seed", 0.0)
    # A seed is a float; its bits tell seeds apart.
    return random.key(int(np.float32(seed).view(np.uint32)))


def _drawn(call: Call, shape: Any, otherwise: DType) -> Any:
    given = call.attribute("dtype")
    dtype = otherwise if given is None else element_type(given, f"{call.path}: node {call.node}")
    if "Normal" in call.node.op:
        numbers = call.attribute("mean", 0.0) + call.attribute("scale", 1.0) * random.normal(_key(call), shape)
    else:
        low, high = call.attribute("low", 0.0), call.attribute("high", 1.0)
        numbers = low + (high - low) * random.uniform(_key(call), shape)
    return rnp.astype(numbers, dtype)


@rule("RandomNormal", "RandomUniform")
def _draw(call: Call) -> Any:
    return _drawn(call, tuple(call.attribute("shape")), DType.F32)


@rule("RandomNormalLike", "RandomUniformLike")
def _draw_like(call: Call) -> Any:
    x = call.value(0)
    return _drawn(call, tuple(x.shape), dtype_of(x))


@rule("Bernoulli")
def _bernoulli(call: Call) -> Any:
    x, given = call[0], call.attribute("dtype")
    dtype = dtype_of(x) if given is None else element_type(given, f"{call.path}: node {call.node}")
    return rnp.astype(rnp.less(random.uniform(_key(call), tuple(x.shape)), x), dtype)


@rule("MaxUnpool")
def _max_unpool(call: Call) -> Any:
    """Elements at their places in the flattened output."""
    x, places = call[0], rnp.astype(call[1], DType.I64)
    kernel = call.attribute("kernel_shape")
    strides, pads = call.attribute("strides") or [1] * len(kernel), call.attribute("pads") or [0] * (2 * len(kernel))
    spatial = [
        (n - 1) * s + k - pads[i] - pads[i + len(kernel)]
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel))
    ]
    inner = (*x.shape[:2], *spatial)
    if any(not isinstance(n, int) for n in inner) or rank_of(x) != len(kernel) + 2:
        call.unsupported("an open size")
    shape = tuple(call.known(2).tolist()) if call.has(2) else inner
    flat = rnp.zeros((math.prod(shape),), dtype_of(x))
    if shape != inner:
        # Places are those of the smaller array.
        places = rnp.take(np.arange(math.prod(shape)).reshape(shape)[tuple(map(slice, inner))].reshape(-1), places)
    return rnp.reshape(flat.at[rnp.reshape(places, (-1,))].set(rnp.reshape(x, (-1,))), shape)
