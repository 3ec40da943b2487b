"""Small float networks, as graphs with their weights inside, and inputs for them."""

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn


def traced(function, dims):
    """The graph of a function of x [N, *dims]."""
    return rlx.jit(function).trace(rlx.Spec(("N", *dims))).graph


def weights(*shapes, seed=0, scale=0.3):
    rng = np.random.default_rng(seed)
    return [(scale * rng.standard_normal(s)).astype(np.float32) for s in shapes]


def images(n, dims, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, (n, *dims)).astype(np.float32)


def convnet(x):
    """Several channels in, uneven strides, padding on one side, a flattened image of [C, H, W]."""
    w1, b1, w2, b2, w3, b3 = weights((6, 3, 3, 3), (6,), (4, 6, 2, 3), (4,), (4 * 3 * 2, 10), (10,))
    x = nn.max_pool(nn.relu(nn.conv(x, w1, b1, padding=1)), 2)
    x = rnp.clip(nn.conv(x, w2, b2, stride=(1, 2), padding=((0, 0), (0, 1))), 0.0, 6.0)
    return x.reshape(x.shape[0], 24) @ w3 + b3


CONVNET_DIMS = (3, 8, 8)


def ds_cnn(x):
    """Keyword spotting on 49 frames of 10 features: a convolution, then depthwise and pointwise ones, 12 words."""
    rng = np.random.default_rng(0)

    def layer(x, *shape, **options):
        w = rng.standard_normal(shape).astype("f4") / np.sqrt(np.prod(shape[1:])).astype("f4")
        return nn.relu(nn.conv(x, w, np.zeros(64, "f4"), **options))

    x = layer(x, 64, 1, 10, 4, stride=2, padding=((4, 5), (1, 1)))
    for _ in range(4):
        x = layer(layer(x, 64, 1, 3, 3, padding=1, groups=64), 64, 64, 1, 1)
    return rnp.argmax(rnp.mean(x, axis=(2, 3)) @ rng.standard_normal((64, 12)).astype("f4"), axis=-1)


DS_CNN_DIMS = (1, 49, 10)


def _layers(layers, dims, seed=0):
    """A chain of layers, and parameters for [1, *dims], in f32."""
    whole = nn.chain(*layers)
    return whole, whole.init(rlx.random.key(seed), (1, *dims))


def keyword_transformer(x):
    """Frames of features, positions, two blocks of attention, a mean, 5 words."""
    blocks, params = _layers([nn.transformer_block(2, 24, use_bias=True) for _ in range(2)], (10, 16))
    w, places, end = weights((6, 16), (10, 16), (16, 5))
    x = blocks.apply(params, x @ w + places)
    return rnp.mean(x, axis=1) @ end


def causal_transformer(x):
    """One block whose groups of heads share keys, and the last row."""
    block, params = _layers([nn.transformer_block(4, 20, kv_heads=2, is_causal=True)], (10, 16))
    [w, end] = weights((6, 16), (16, 5))
    return block.apply(params, x @ w)[:, -1] @ end


def gru_network(x):
    """All states of one GRU, the states of another from the end to the start, side by side, and the mean."""
    (one, p), (other, q) = _layers([nn.gru(12)], (10, 6)), _layers([nn.gru(8, reverse=True)], (10, 6), 1)
    both = rnp.concatenate([one.apply(p, x), other.apply(q, x)], axis=-1)
    [end] = weights((20, 5))
    return rnp.mean(both, axis=1) @ end


def lstm_network(x):
    layer, params = _layers([nn.lstm(12)], (10, 6))
    [end] = weights((12, 5))
    return layer.apply(params, x)[:, -1] @ end


SEQUENCE_DIMS = (10, 6)
SEQUENCES = (keyword_transformer, causal_transformer, gru_network, lstm_network)


def residual(x):
    """A depthwise convolution with a shortcut, a mean over all places, and labels."""
    w1, b1, w2, w3 = weights((5, 2, 3, 3), (5,), (5, 1, 3, 3), (5, 7))
    x = nn.relu(nn.conv(x, w1, b1, padding=1))
    x = nn.relu(x + nn.conv(x, w2, padding=1, groups=5))
    return rnp.argmax(rnp.mean(x, axis=(2, 3)) @ w3, axis=-1)


RESIDUAL_DIMS = (2, 6, 5)


def _channels(low, high, count):
    return np.linspace(low, high, count, dtype=np.float32)


def batch_norm_network(x):
    """Norms of channels behind products, behind a sum and on the input, in three spellings, with a shortcut."""
    w1, w2, w3, w4 = weights((6, 3, 3, 3), (6, 6, 3, 3), (6, 10), (10, 4))
    mean, variance, gain, offset = (_channels(*r) for r in ((-0.2, 0.3, 6), (0.5, 2, 6), (-1, 1.5, 6), (0.4, -0.1, 6)))
    centre, spread = _channels(0.1, 0.3, 3)[:, None, None], _channels(0.5, 0.7, 3)[:, None, None]
    x = nn.relu(nn.batch_norm(nn.conv((x - centre) / spread, w1, padding=1), mean, variance, gain, offset))
    y = (nn.conv(x, w2, padding=1) - mean[:, None, None]) * gain[:, None, None] + 0.1
    x = nn.relu((x - y) * gain[:, None, None] + offset[:, None, None])
    x = rnp.max(x, axis=(2, 3)) @ w3 * 2.0
    return nn.leaky_relu((0.5 - x) / _channels(1, 2, 10)) @ w4


BATCH_NORM_DIMS = (3, 8, 7)
