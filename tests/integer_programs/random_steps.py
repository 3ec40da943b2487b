"""Random programs of one step, of every kind."""

import numpy as np

from rlx.ir.dtype import DType
from rlx.quantized import (
    Add,
    AddConstant,
    Argmax,
    Attention,
    Clamp,
    Concat,
    Conv2d,
    Dense,
    Gru,
    Interpolate,
    LayerNorm,
    Lookup,
    Lstm,
    MaxPool,
    MeanPool,
    Mul,
    Multipliers,
    Program,
    Rescale,
    Rows,
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


def rows(rng):
    x = value(rng, "x", tuple(map(int, rng.integers(1, 8, 3))))
    start = int(rng.integers(0, x.dims[0]))
    out = Value("rows1", (int(rng.integers(1, x.dims[0] - start + 1)), *x.dims[1:]), x.scale, x.zero_point, x.dtype)
    return x, Rows((0,), out, start)


def interpolate(rng):
    x = value(rng, "x", (int(rng.integers(1, 60)),), DType.I16)
    return x, Interpolate((0,), value(rng, "f1", x.dims, DType.I16), rng.integers(-(2**15), 2**15, 257).astype("i2"))


def add_constant(rng):
    x = value(rng, "x", tuple(map(int, rng.integers(1, 8, 3))))
    dtype = rng.choice([np.int8, np.int16])
    info = np.iinfo(dtype)
    codes = rng.integers(info.min, info.max + 1, x.dims).astype(dtype)
    scale = float(np.float32(x.scale * x.largest_distance / info.max * rng.uniform(0.5, 2)))
    out = value(rng, "add1", x.dims)
    out = with_scale(out, x.scale * x.largest_distance / out.largest_distance * rng.uniform(0.5, 4))
    tables = Add.multipliers_for(x, Value("c", x.dims, scale, 0, DType.of(dtype)), out, int(rng.choice([31, 15])))
    return x, AddConstant((0,), out, codes, scale, tables, *limits_for(rng, out))


def concat(rng):
    """The input beside itself with another scale, once or twice."""
    x = value(rng, "x", tuple(map(int, rng.integers(1, 7, rng.integers(1, 4)))))
    other = value(rng, "other", x.dims)
    other = with_scale(other, x.scale * x.largest_distance / other.largest_distance * rng.uniform(0.5, 2))
    first = Rescale((0,), other, Multipliers.of(x.scale / other.scale), *limits_for(rng, other))
    inputs = (0, 1) if rng.random() < 0.5 else (1, 0, 1)
    out = value(rng, "concat1", (*x.dims[:-1], len(inputs) * x.dims[-1]))
    out = with_scale(out, x.scale * x.largest_distance / out.largest_distance * rng.uniform(0.5, 2))
    scales = [(x, other)[i].scale / out.scale for i in inputs]
    return x, first, Concat(inputs, out, Multipliers.of(scales, int(rng.choice([31, 15]))))


def layer_norm(rng):
    x = value(rng, "x", (*map(int, rng.integers(1, 4, 2)), int(rng.integers(1, 40))))
    out = with_scale(value(rng, "layer_norm1", x.dims), 1.0)
    n = x.dims[-1]
    gamma, beta = rng.uniform(-2, 2, n), rng.uniform(-1, 1, n) * rng.choice([0, 1, 50])
    out = with_scale(out, (np.abs(gamma).max() * 2 + np.abs(beta).max() + 0.01) / out.largest_distance)
    eps, bits = float(rng.choice([1e-5, 1e-3, 0.0])), int(rng.choice([31, 15]))
    return x, LayerNorm.of((0,), x, out, gamma, beta, eps, *limits_for(rng, out), fraction_bits=bits)


def attention(rng):
    heads, head, length = int(rng.choice([1, 2, 4])), int(rng.integers(1, 7)), int(rng.integers(1, 8))
    kv_heads = int(rng.choice([h for h in (1, 2, 4) if heads % h == 0]))
    x = value(rng, "x", (length, 1, heads * head), DType.I8)
    steps = []
    for name, dtype in (("k", DType.I8), ("v", None)):
        out = value(rng, name, (length, 1, kv_heads * head), dtype)
        weights = weights_for(rng, (kv_heads * head, 1, 1, heads * head))
        steps.append(Conv2d((0,), out, **product_fields(rng, x, out, weights)))
    k, v = (s.out for s in steps)
    out = value(rng, "attention1", x.dims)
    out = with_scale(out, v.scale * v.largest_distance / out.largest_distance * rng.uniform(0.3, 1))
    # From nearly equal shares to one that takes all.
    score_scale = 2.0 ** rng.uniform(-8, 0) / head / x.scale / k.scale / 256
    tables = Attention.multipliers_for(x, k, v, out, score_scale, int(rng.choice([31, 15])))
    table, causal = Attention.exponentials(), bool(rng.random() < 0.5)
    fields = (heads, kv_heads, causal, table, tables, *limits_for(rng, out))
    return x, *steps, Attention((0, 1, 2), out, *fields)


def recurrent(rng, made):
    size, length = int(rng.integers(1, 7)), int(rng.integers(1, 8))
    x = Value("x", (length, 1, made.gates * size), 2.0**-12, 0, DType.I16)
    weights = weights_for(rng, (made.gates * size, size))
    scales = (2.0 ** rng.uniform(-3, 2, made.gates * size) / LARGEST[weights.bits]).astype("f4")
    weights = Weights(weights.codes, scales, weights.bits)
    out = value(rng, "state1", (size,) if rng.random() < 0.3 else (length, 1, size))
    out = with_scale(out, 1 / out.largest_distance)
    bits = int(rng.choice([31, 15]))
    return x, made(
        (0,),
        out,
        weights,
        rng.integers(-(2**20), 2**20, made.gates * size).astype("i4"),
        made.multipliers_for(weights, bits),
        made.functions(),
        Multipliers.of(2.0**-15 / out.scale, bits),
        *limits_for(rng, out),
        length=length,
        reverse=bool(rng.random() < 0.3),
    )


def gru(rng):
    return recurrent(rng, Gru)


def lstm(rng):
    return recurrent(rng, Lstm)


MADE = (dense, conv2d, depthwise, max_pool, mean_pool, add, mul, rescale, clamp, argmax, lookup, softmax)
MADE += (rows, interpolate, add_constant, concat, layer_norm, attention, gru, lstm)
KINDS = {f.__name__: f for f in MADE}


def random_program(kind, rng):
    x, *steps = KINDS[kind](rng)
    return Program(kind, x, tuple(range(len(x.dims))), tuple(steps))
