"""Rules of products, convolutions, pooling and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import nn, ops
from rlx.ir.dims import Dim, ceildiv, dim_max
from rlx.ir.dtype import DType
from rlx.onnx.values import MICROSOFT, Call, Size, dtype_of, rank_of, rule


@rule("MatMul")
def _matmul(call: Call) -> Any:
    return rnp.matmul(call[0], call[1])


@rule("FusedMatMul", domain=MICROSOFT)
def _scaled_matmul(call: Call) -> Any:
    a, b = call[0], call[1]
    if call.attribute("transBatchA", 0) or call.attribute("transBatchB", 0):
        call.unsupported("a product of turned batches")
    a = rnp.swapaxes(a, -1, -2) if call.attribute("transA", 0) else a
    b = rnp.swapaxes(b, -1, -2) if call.attribute("transB", 0) else b
    return _scaled(rnp.matmul(a, b), call.attribute("alpha", 1.0))


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * np.asarray(factor, dtype_of(x).numpy)


@rule("Gemm")
def _gemm(call: Call) -> Any:
    a, b = call[0], call[1]
    a = rnp.transpose(a) if call.attribute("transA", 0) else a
    b = rnp.transpose(b) if call.attribute("transB", 0) else b
    y = _scaled(rnp.matmul(a, b), call.attribute("alpha", 1.0))
    return y + _scaled(call[2], call.attribute("beta", 1.0)) if call.has(2) else y


@rule("FusedGemm", domain=MICROSOFT)
def _gemm_and_activation(call: Call) -> Any:
    given = (call.attribute(f"activation_{name}") for name in ("alpha", "beta"))
    return _activated(call, _gemm(call), [number for number in given if number is not None])


@rule("Einsum")
def _einsum(call: Call) -> Any:
    return rnp.einsum(call.attribute("equation").replace(" ", ""), *call.all())


@rule("Det")
def _det(call: Call) -> Any:
    return rnp.linalg.det(call[0])


# Windows.


def window_places(
    call: Call, sizes: Sequence[Size], kernel: Sequence[int]
) -> tuple[list[int], list[tuple[Size, Size]], list[int]]:
    """Strides, padding before and after, and dilations of a node with windows over these spatial sizes."""
    rank = len(kernel)
    strides = call.attribute("strides") or [1] * rank
    dilations = call.attribute("dilations") or [1] * rank
    given = call.attribute("pads") or [0] * (2 * rank)
    if not len(strides) == len(dilations) == rank == len(sizes) or len(given) != 2 * rank:
        call.fail(f"strides {strides}, dilations {dilations} and pads {given} do not fit {len(sizes)} spatial axes")
    automatic = call.attribute("auto_pad", "NOTSET")
    if automatic in ("NOTSET", ""):
        return strides, list(zip(given[:rank], given[rank:])), dilations
    if automatic == "VALID":
        return strides, [(0, 0)] * rank, dilations
    pads: list[tuple[Size, Size]] = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations):
        total = dim_max(0, (ceildiv(size, s) - 1) * s + (k - 1) * d + 1 - size)
        half = total // 2
        pads.append((half, total - half) if automatic == "SAME_UPPER" else (total - half, half))
    return strides, pads, dilations


def with_channel_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + rnp.reshape(bias, (-1, *(1,) * (rank_of(y) - 2)))


@rule("Conv")
def _conv(call: Call) -> Any:
    return with_channel_bias(convolution(call, call[0], call[1]), call.optional(2))


@rule("FusedConv", domain=MICROSOFT)
def _conv_and_activation(call: Call) -> Any:
    y = with_channel_bias(convolution(call, call[0], call[1]), call.optional(2))
    return _activated(call, y + call[3] if call.has(3) else y, call.attribute("activation_params") or [])


def _activated(call: Call, x: Any, numbers: Sequence[float]) -> Any:
    """What the attribute `activation` says is done to the result of a fused node."""
    name = call.attribute("activation", "")
    match name, *numbers:
        case ["Relu", *_]:
            return nn.relu(x)
        case ["Tanh", *_]:
            return rnp.tanh(x)
        case ["Sigmoid", *_]:
            return nn.sigmoid(x)
        case ["LeakyRelu", alpha, *_]:
            return nn.leaky_relu(x, alpha)
        case ["Clip", low, high, *_]:
            return rnp.clip(x, low, high)
        case ["HardSigmoid", alpha, beta, *_]:
            return rnp.clip(alpha * x + beta, 0.0, 1.0)
    call.unsupported(f"the activation {name!r} with the numbers {list(numbers)}")


def convolution(call: Call, x: Any, weight: Any, **more: Any) -> Any:
    strides, pads, dilations = window_places(call, x.shape[2:], weight.shape[2:])
    if any(isinstance(n, Dim) for pair in pads for n in pair):
        x, pads = _padded(x, pads, 0), [(0, 0)] * len(pads)
    sides: list[Any] = [*pads]
    return ops.conv(x, weight, strides, sides, dilations, int(call.attribute("group", 1)), **more)


def _padded(x: Any, pads: Sequence[tuple[Size, Size]], value: Any) -> Any:
    return rnp.pad(x, [(0, 0), (0, 0), *pads], constant_values=np.asarray(value, dtype_of(x).numpy))


@rule("ConvTranspose")
def _conv_transpose(call: Call) -> Any:
    x, weight = call[0], call[1]
    rank, kernel = rank_of(x) - 2, weight.shape[2:]
    strides = call.attribute("strides") or [1] * rank
    dilations = call.attribute("dilations") or [1] * rank
    extra = [*(call.attribute("output_padding") or [0] * rank)]
    given, wanted = call.attribute("pads") or [0] * (2 * rank), call.attribute("output_shape")
    pads: list[tuple[Any, Any]] = list(zip(given[:rank], given[rank:]))
    automatic = call.attribute("auto_pad", "NOTSET")
    if wanted is None and automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(x.shape[2:], strides)]
    if wanted is not None:
        for i, (n, s, d, k) in enumerate(zip(x.shape[2:], strides, dilations, kernel)):
            total = (n - 1) * s + d * (k - 1) + 1 + extra[i] - wanted[-rank:][i]
            if isinstance(total, int) and total < 0:
                extra[i], total = extra[i] - total, 0
            half = total // 2
            pads[i] = (half, total - half) if automatic == "SAME_UPPER" else (total - half, half)
    groups = int(call.attribute("group", 1))
    is_even = all(low == high for low, high in pads)
    sides = [low for low, _ in pads] if is_even else [0] * rank
    y = ops.conv_transpose(x, weight, strides, sides, dilations, extra, groups)
    if not is_even:
        for axis, (low, high) in enumerate(pads, 2):
            y = ops.narrow(y, axis, low, y.shape[axis] - low - high)
    return with_channel_bias(y, call.optional(2))


def _windows(call: Call, x: Any) -> tuple[list[int], list[int], list[tuple[Any, Any]], list[int], list[Size]]:
    """Kernel, strides, padding, dilations, and how much padding `ceil_mode` adds behind each axis."""
    kernel = call.attribute("kernel_shape")
    if kernel is None:
        call.fail("it has no kernel_shape")
    strides, pads, dilations = window_places(call, x.shape[2:], kernel)
    more: list[Size] = [0] * len(kernel)
    if call.attribute("ceil_mode", 0):
        for i, (size, k, s, (low, high), d) in enumerate(zip(x.shape[2:], kernel, strides, pads, dilations)):
            reach = d * (k - 1) + 1
            if isinstance(size, Dim):
                call.unsupported("ceil_mode over an open size")
            count = -(-(size + low + high - reach) // s) + 1
            # No window begins behind the input.
            count -= (count - 1) * s >= size + low
            more[i] = max(0, (count - 1) * s + reach - size - low - high)
    return kernel, strides, pads, dilations, more


def _reduced(x: Any, kind: str, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Any:
    return ops.reduce_window(x, kind, (1, 1, *kernel), (1, 1, *strides), [(0, 0), (0, 0), *pads], (1, 1, *dilations))


def _open_pads(x: Any, pads: Any, value: Any) -> tuple[Any, Any]:
    """Padding of open sizes is made before the windows."""
    if any(isinstance(n, Dim) for pair in pads for n in pair):
        return _padded(x, pads, value), [(0, 0)] * len(pads)
    return x, pads


@rule("MaxPool")
def _max_pool(call: Call) -> Any:
    x = call[0]
    kernel, strides, pads, dilations, more = _windows(call, x)
    pads = [(low, high + extra) for (low, high), extra in zip(pads, more)]
    kind = dtype_of(x)
    least = -math.inf if kind.is_float else np.iinfo(kind.numpy).min
    x, pads = _open_pads(x, pads, least)
    if call.wants(1):
        return _max_pool_places(call, x, kernel, strides, pads, dilations, least)
    if all(low == high for low, high in pads) and all(d == 1 for d in dilations):
        return nn.max_pool(x, kernel, strides, [low for low, _ in pads])
    return _reduced(x, "max", kernel, strides, pads, dilations)


def _max_pool_places(call: Call, x: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, least: Any) -> Any:
    """The largest elements, and where each stands in the flattened input: the first of them."""
    if call.attribute("storage_order", 0):
        call.unsupported("the storage order of columns")
    places = rnp.reshape(rnp.arange(math.prod(x.shape), dtype=DType.I64), x.shape)
    padded, where = _padded(x, pads, least), _padded(places, pads, -1)
    counts = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(padded.shape[2:], kernel, strides, dilations)]
    best = best_place = None
    for offset in np.ndindex(*kernel):
        steps = zip(offset, dilations, counts, strides)
        index = (slice(None), slice(None), *(slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in steps))
        seen, place = padded[index], where[index]
        if best is None:
            best, best_place = seen, place
            continue
        wins = rnp.logical_or(rnp.greater(seen, best), rnp.logical_and(rnp.less(best_place, 0), rnp.greater(place, -1)))
        best, best_place = rnp.where(wins, seen, best), rnp.where(wins, place, best_place)
    return best, best_place


@rule("AveragePool")
def _average_pool(call: Call) -> Any:
    x = call[0]
    kernel, strides, pads, dilations, more = _windows(call, x)
    counts_pads = bool(call.attribute("count_include_pad", 0))
    reach = [(low, high + extra) for (low, high), extra in zip(pads, more)]
    padded, rest = _open_pads(x, reach, 0)
    total = _reduced(padded, "sum", kernel, strides, rest, dilations)
    if (counts_pads and not any(more)) or not any(n for pair in reach for n in pair if not isinstance(n, Dim) or n):
        return total / np.asarray(math.prod(kernel), dtype_of(x).numpy)
    ones = rnp.ones((1, 1, *x.shape[2:]), dtype_of(x))
    if counts_pads:
        ones, reach = _padded(ones, pads, 1), [(0, extra) for extra in more]
    ones, reach = _open_pads(ones, reach, 0)
    return total / _reduced(ones, "sum", kernel, strides, reach, dilations)


@rule("LpPool")
def _lp_pool(call: Call) -> Any:
    x, p = call[0], float(call.attribute("p", 2))
    kernel, strides, pads, dilations, more = _windows(call, x)
    reach = [(low, high + extra) for (low, high), extra in zip(pads, more)]
    powers, reach = _open_pads(rnp.power(rnp.abs(x), p), reach, 0)
    return rnp.power(_reduced(powers, "sum", kernel, strides, reach, dilations), 1 / p)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call) -> Any:
    x = call[0]
    axes = tuple(range(2, rank_of(x)))
    if call.node.op == "GlobalAveragePool":
        return rnp.mean(x, axis=axes, keepdims=True)
    if call.node.op == "GlobalMaxPool":
        return rnp.max(x, axis=axes, keepdims=True)
    p = float(call.attribute("p", 2))
    return rnp.power(rnp.sum(rnp.power(rnp.abs(x), p), axis=axes, keepdims=True), 1 / p)


@rule("Col2Im")
def _columns_to_image(call: Call) -> Any:
    x, image, block = call[0], call.known(1).tolist(), call.known(2).tolist()
    if any(isinstance(n, Dim) for n in image):
        call.unsupported("an image of an open size")
    batch, channels = x.shape[0], x.shape[1] // math.prod(block)
    strides, pads, dilations = window_places(call, image, block)
    counts = [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, (low, high), d, k, s in zip(image, pads, dilations, block, strides)
    ]
    # A transposed convolution whose weights put each row of a column at its place.
    weight = np.eye(math.prod(block), dtype=dtype_of(x).numpy).reshape(-1, 1, *block)
    seen = rnp.reshape(x, (batch * channels, math.prod(block), *counts))
    wide = ops.conv_transpose(seen, weight, strides, [0] * len(block), dilations)
    full = [n + low + high for n, (low, high) in zip(image, pads)]
    wide = rnp.pad(wide, [(0, 0), (0, 0), *((0, n - m) for n, m in zip(full, wide.shape[2:]))])
    for axis, ((low, _), n) in enumerate(zip(pads, image), 2):
        wide = ops.narrow(wide, axis, low, n)
    return rnp.reshape(wide, (batch, channels, *image))


# Norms.


def per_channel(value: Any, rank: int) -> Any:
    return rnp.reshape(value, (-1, *(1,) * (rank - 2)))


@rule("BatchNormalization")
def _batch_norm(call: Call) -> Any:
    if call.attribute("training_mode", 0):
        call.unsupported("training mode")
    x = call[0]
    # Of the weights alone: computed once, when they are set.
    gain = call[1] / rnp.sqrt(call[4] + np.asarray(call.attribute("epsilon", 1e-5), dtype_of(call[4]).numpy))
    offset = call[2] - call[3] * gain
    return rnp.astype(x * per_channel(gain, rank_of(x)) + per_channel(offset, rank_of(x)), dtype_of(x))


@rule("InstanceNormalization")
def _instance_norm(call: Call) -> Any:
    return nn.instance_norm(call[0], call[1], call[2], eps=call.attribute("epsilon", 1e-5))


@rule("GroupNormalization")
def _group_norm(call: Call) -> Any:
    x, groups = call[0], int(call.attribute("num_groups", 1))
    gain, offset = call[1], call[2]
    if call.opset < 21 and rank_of(gain) == 1 and gain.shape[0] == groups != x.shape[1]:
        gain, offset = (rnp.repeat(v, x.shape[1] // groups) for v in (gain, offset))
    return nn.group_norm(x, groups, gain, offset, eps=call.attribute("epsilon", 1e-5))


@rule("LayerNormalization")
def _layer_norm(call: Call) -> Any:
    x = call[0]
    axes = tuple(range(call.axis(rank_of(x)), rank_of(x)))
    eps = call.attribute("epsilon", 1e-5)
    y = nn.layer_norm(x, call[1], call.optional(2), axis=axes, eps=eps)
    if not call.wants(1) and not call.wants(2):
        return y
    wide = rnp.astype(x, DType.F32)
    mean = rnp.mean(wide, axis=axes, keepdims=True)
    return y, mean, 1 / rnp.sqrt(rnp.var(wide, axis=axes, keepdims=True) + eps)


def _rms_norm(x: Any, gain: Any, axis: int, eps: float) -> Any:
    if axis == rank_of(x) - 1:
        return nn.rms_norm(x, gain, eps=eps)
    axes = tuple(range(axis, rank_of(x)))
    return x / rnp.sqrt(rnp.mean(x * x, axis=axes, keepdims=True) + eps) * gain


@rule("RMSNormalization")
def _root_mean_square(call: Call) -> Any:
    return _rms_norm(call[0], call[1], call.axis(rank_of(call[0])), call.attribute("epsilon", 1e-5))


# The runtime of Microsoft writes it into the standard's domain.
@rule("SimplifiedLayerNormalization")
def _simplified_norm(call: Call) -> Any:
    return _rms_norm(call[0], call[1], call.axis(rank_of(call[0])), call.attribute("epsilon", 1e-5))


@rule("SkipLayerNormalization", domain=MICROSOFT)
def _skip_norm(call: Call) -> Any:
    total = call[0] + call[1]
    if call.has(4):
        total = total + call[4]
    y = nn.layer_norm(total, call[2], call.optional(3), eps=call.attribute("epsilon", 1e-12))
    return y, None, None, total


@rule("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_rms_norm(call: Call) -> Any:
    total = call[0] + call[1]
    if call.has(3):
        total = total + call[3]
    return nn.rms_norm(total, call[2], eps=call.attribute("epsilon", 1e-5)), None, None, total


@rule("LRN")
def _local_response(call: Call) -> Any:
    x, size = call[0], int(call.attribute("size", 1))
    pads = [(0, 0)] * rank_of(x)
    pads[1] = (size - 1) // 2, size - 1 - (size - 1) // 2
    window = [1] * rank_of(x)
    window[1] = size
    total = ops.reduce_window(x * x, "sum", window, [1] * rank_of(x), pads)
    scale = call.attribute("bias", 1.0) + call.attribute("alpha", 1e-4) / size * total
    return x / rnp.power(scale, call.attribute("beta", 0.75))


@rule("MeanVarianceNormalization")
def _mean_variance(call: Call) -> Any:
    x, axes = call[0], tuple(call.attribute("axes", [0, 2, 3]))
    centred = x - rnp.mean(x, axis=axes, keepdims=True)
    return centred / (rnp.sqrt(rnp.mean(centred * centred, axis=axes, keepdims=True)) + 1e-9)


@rule("LpNormalization")
def _lp_norm(call: Call) -> Any:
    x = call[0]
    axis = call.axis(rank_of(x))
    if int(call.attribute("p", 2)) == 1:
        length = rnp.sum(rnp.abs(x), axis=axis, keepdims=True)
    else:
        length = rnp.sqrt(rnp.sum(x * x, axis=axis, keepdims=True))
    return rnp.where(rnp.equal(length, 0), rnp.zeros_like(x), x / length)
