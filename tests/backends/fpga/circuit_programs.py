"""Integer programs for circuits: a perceptron and a small convolution net, with random weights."""

from itertools import pairwise

import numpy as np

from rlx.ir.dtype import DType
from rlx.quantized import Add, Argmax, Conv2d, Dense, MaxPool, Multipliers, Program, Value, Weights

LARGEST = {8: 127, 4: 7, 2: 1}


def product(rng, source, out, shape, bits, low=0, kind=Dense, **geometry):
    """Weights of any code, and multipliers that use the range of the result."""
    codes = rng.integers(-LARGEST[bits], LARGEST[bits] + 1, shape).astype(np.int8)
    spread = np.sqrt(codes[0].size) * 32 * LARGEST[bits]
    multipliers = Multipliers.of(np.float32(rng.uniform(0.5, 1.5, shape[0]) * 64 / spread))
    bias = rng.integers(-int(spread), int(spread), shape[0]).astype(np.int32)
    weights = Weights(codes, np.ones(shape[0], np.float32), bits)
    return kind((source,), out, weights, bias, multipliers, low, 127, **geometry)


def label(source):
    return Argmax((source,), Value("label", (), dtype=DType.I32))


def perceptron(sizes=(784, 32, 10), bits=8, seed=1):
    """Dense layers with a ReLU between them, and a label."""
    rng = np.random.default_rng(seed)
    steps = [
        product(rng, n, Value(f"dense{n + 1}", (b,), 0.05), (b, a), bits, 0 if n < len(sizes) - 2 else -128)
        for n, (a, b) in enumerate(pairwise(sizes))
    ]
    return Program("perceptron", Value("x", sizes[:1], 1 / 127), (0,), (*steps, label(len(steps))))


def tinyconv(bits=8, side=28, channels=(8, 16), seed=2):
    """Two convolutions of 3x3 with pooling, a dense layer, a label."""
    rng = np.random.default_rng(seed)
    x = Value("x", (side, side, 1), 1 / 127)
    one, two = side - 2, (side - 2) // 2 - 2
    conv1 = product(rng, 0, Value("conv1", (one, one, channels[0]), 0.05), (channels[0], 3, 3, 1), bits, 0, Conv2d)
    pool1 = MaxPool((1,), Value("pool1", (one // 2, one // 2, channels[0]), 0.05), (2, 2), (2, 2))
    shape = (channels[1], 3, 3, channels[0])
    conv2 = product(rng, 2, Value("conv2", (two, two, channels[1]), 0.05), shape, bits, 0, Conv2d)
    pool2 = MaxPool((3,), Value("pool2", (two // 2, two // 2, channels[1]), 0.05), (2, 2), (2, 2))
    dense = product(rng, 4, Value("logits", (10,), 0.05), (10, pool2.out.size), bits, -128)
    return Program("tinyconv", x, (0, 1, 2), (conv1, pool1, conv2, pool2, dense, label(5)))


def shortcut(seed=3):
    """A convolution whose input is added to its result: two readers of one value, and a queue before their sum."""
    rng = np.random.default_rng(seed)
    x = Value("x", (5, 4, 3), 0.05, 2)
    conv = product(rng, 0, Value("conv", x.dims, 0.07, -1), (3, 3, 3, 3), 8, -128, Conv2d, padding=((1, 1), (1, 1)))
    out = Value("sum", x.dims, 0.1)
    both = Add((0, 1), out, Add.multipliers_for(x, conv.out, out), -128, 127)
    return Program("shortcut", x, (0, 1, 2), (conv, both))
