"""Random programs of one step, of every kind."""

import numpy as np

from rlx.ir.dtype import DType
from rlx.quantized import (
    Add,
    Argmax,
    Clamp,
    Conv2d,
    Dense,
    Lookup,
    MaxPool,
    MeanPool,
    Mul,
    Multipliers,
    Program,
    Rescale,
    Softmax,
    Value,
    Weights,
)

LARGEST = {8: 127, 4: 7, 2: 1}


def value(rng, name, dims, dtype=None):
    dtype = dtype or rng.choice([DType.I8, DType.I8, DType.I16])
    zero = int(rng.integers(-100, 100)) if rng.random() < 0.5 else 0
    return Value(name, dims, float(np.float32(2.0 ** rng.uniform(-9, -3))), zero, dtype)


def limits_for(rng, out):
    info = np.iinfo(out.dtype.numpy)
    if rng.random() < 0.4:
        return max(out.zero_point, info.min), info.max
    return info.min, info.max


def codes_for(rng, v, n):
    info = np.iinfo(v.dtype.numpy)
    spread = rng.integers(info.min, info.max + 1, (n, *v.dims))
    # The ends of the range, often.
    return np.where(rng.random(spread.shape) < 0.1, rng.choice([info.min, info.max], spread.shape), spread).astype(
        v.dtype.numpy
    )


def weights_for(rng, dims):
    bits = int(rng.choice([8, 8, 4, 2]))
    codes = rng.integers(-LARGEST[bits], LARGEST[bits] + 1, dims).astype(np.int8)
    return Weights(codes, (2.0 ** rng.uniform(-8, -4, dims[0])).astype(np.float32), bits)


def product_fields(rng, x, out, weights):
    channels, terms = len(weights.codes), weights.codes[0].size
    # Results that use their range: sums spread as sqrt(terms) · |x| · |w|.
    spread = np.sqrt(terms) * x.largest_distance * LARGEST[weights.bits] / 4
    factors = np.iinfo(out.dtype.numpy).max / spread * 2.0 ** rng.uniform(-1, 2, channels)
    # Weights whose scales give these factors.
    scales = (factors * out.scale / x.scale).astype(np.float32)
    weights = Weights(weights.codes, scales, weights.bits)
    factors = np.float32(x.scale) * scales / np.float32(out.scale)
    low, high = limits_for(rng, out)
    bits = int(rng.choice([31, 31, 15]))
    bias = rng.integers(-int(spread) - 1, int(spread) + 1, channels).astype(np.int32)
    return {"weights": weights, "bias": bias, "multipliers": Multipliers.of(factors, bits), "low": low, "high": high}


def dense(rng):
    x = value(rng, "x", (int(rng.integers(1, 24)),))
    weights = weights_for(rng, (int(rng.integers(1, 9)), x.size))
    out = value(rng, "dense1", (len(weights.codes),))
    return x, Dense((0,), out, **product_fields(rng, x, out, weights))


def conv2d(rng, depthwise=False):
    groups = int(rng.choice([1, 1, 2, 3]))
    inside = 1 if depthwise else int(rng.integers(1, 4))
    if depthwise:
        groups = int(rng.integers(2, 6))
    x = value(rng, "x", (int(rng.integers(3, 8)), int(rng.integers(3, 8)), inside * groups))
    kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    stride, dilation = tuple(map(int, rng.integers(1, 3, 2))), (1, 1)
    padding = tuple(tuple(map(int, rng.integers(0, 3, 2))) for _ in range(2))
    if all(d + sum(p) > 2 * (k - 1) for d, p, k in zip(x.dims, padding, kernel)):
        dilation = tuple(map(int, rng.integers(1, 3, 2)))
    channels = groups * (1 if depthwise else int(rng.integers(1, 4)))
    weights = weights_for(rng, (channels, *kernel, inside))
    sizes = [
        (d + sum(p) - (k - 1) * a - 1) // s + 1 for d, p, k, a, s in zip(x.dims, padding, kernel, dilation, stride)
    ]
    out = value(rng, "conv1", (*sizes, channels))
    fields = product_fields(rng, x, out, weights)
    return x, Conv2d((0,), out, **fields, stride=stride, padding=padding, dilation=dilation, groups=groups)


def depthwise(rng):
    return conv2d(rng, depthwise=True)


def pool(rng, made):
    x = value(rng, "x", (int(rng.integers(3, 9)), int(rng.integers(3, 9)), int(rng.integers(1, 6))))
    kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    stride = tuple(map(int, rng.integers(1, 4, 2)))
    padding = ((0, 0), (0, 0))
    if made is MaxPool:
        padding = tuple(tuple(int(rng.integers(0, k)) for _ in range(2)) for k in kernel)
    sizes = [(d + sum(p) - k) // s + 1 for d, p, k, s in zip(x.dims, padding, kernel, stride)]
    out = Value("pool1", (*sizes, x.dims[2]), x.scale, x.zero_point, x.dtype)
    return x, made((0,), out, kernel, stride, padding)


def max_pool(rng):
    return pool(rng, MaxPool)


def mean_pool(rng):
    return pool(rng, MeanPool)


def with_scale(out, scale):
    return Value(out.name, out.dims, float(np.float32(scale)), out.zero_point, out.dtype)


def add(rng):
    """The input plus itself with another scale: a step of two operands needs two values."""
    x = value(rng, "x", (int(rng.integers(1, 60)),))
    other = value(rng, "other", x.dims)
    other = with_scale(other, x.scale * x.largest_distance / other.largest_distance * rng.uniform(0.5, 2))
    first = Rescale((0,), other, Multipliers.of(x.scale / other.scale), *limits_for(rng, other))
    out = value(rng, "add1", x.dims)
    out = with_scale(out, x.scale * x.largest_distance / out.largest_distance * rng.uniform(0.5, 4))
    bits = int(rng.choice([31, 15]))
    return x, first, Add((0, 1), out, Add.multipliers_for(x, other, out, bits), *limits_for(rng, out))


def mul(rng):
    x = value(rng, "x", (int(rng.integers(1, 60)),), DType.I8)
    other = value(rng, "other", x.dims)
    other = with_scale(other, x.scale * x.largest_distance / other.largest_distance * rng.uniform(0.5, 2))
    first = Rescale((0,), other, Multipliers.of(x.scale / other.scale), *limits_for(rng, other))
    out = value(rng, "mul1", x.dims)
    factor = np.iinfo(out.dtype.numpy).max / x.largest_distance / other.largest_distance * 2.0 ** rng.uniform(0, 3)
    out = with_scale(out, x.scale * other.scale / factor)
    return (
        x,
        first,
        Mul(
            (0, 1),
            out,
            Multipliers.of(x.scale * other.scale / out.scale, int(rng.choice([31, 15]))),
            *limits_for(rng, out),
        ),
    )


def rescale(rng):
    x = value(rng, "x", (int(rng.integers(1, 60)),))
    out = value(rng, "rescale1", x.dims)
    factor = np.iinfo(out.dtype.numpy).max / x.largest_distance * 2.0 ** rng.uniform(-1, 2)
    out = with_scale(out, x.scale / factor)
    return x, Rescale((0,), out, Multipliers.of(x.scale / out.scale, int(rng.choice([31, 15]))), *limits_for(rng, out))


def clamp(rng):
    x = value(rng, "x", (int(rng.integers(1, 60)),))
    out = Value("clamp1", x.dims, x.scale, x.zero_point, x.dtype)
    low, high = sorted(map(int, rng.integers(-128, 128, 2)))
    return x, Clamp((0,), out, low, high)


def argmax(rng):
    x = value(rng, "x", (int(rng.integers(1, 12)),))
    return x, Argmax((0,), Value("argmax1", (), dtype=DType.I32))


def lookup(rng):
    x = value(rng, "x", (int(rng.integers(1, 60)),), DType.I8)
    out = value(rng, "lookup1", x.dims)
    info = np.iinfo(out.dtype.numpy)
    return x, Lookup((0,), out, rng.integers(info.min, info.max + 1, 256).astype(out.dtype.numpy))


def softmax(rng):
    x = value(rng, "x", (int(rng.integers(1, 4)), int(rng.integers(1, 12))), DType.I8)
    out = Value("softmax1", x.dims, 1 / 256, -128)
    return x, Softmax((0,), out, Softmax.table_for(x))


KINDS = {
    f.__name__: f
    for f in (dense, conv2d, depthwise, max_pool, mean_pool, add, mul, rescale, clamp, argmax, lookup, softmax)
}


def random_program(kind, rng):
    x, *steps = KINDS[kind](rng)
    return Program(kind, x, tuple(range(len(x.dims))), tuple(steps))
