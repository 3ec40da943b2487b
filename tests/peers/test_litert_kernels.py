"""Integer steps against LiteRT's reference kernels, bit for bit: at least 10,000 codes of random layers each.

Multipliers are made as LiteRT makes them, from doubles; ours come from f32 and may differ in the last of 31 bits.
Fully connected layers are the exception: LiteRT 2.3 rounds their sums once, and all other layers twice as we do. Dense
steps are therefore compared as convolutions with one tap, and LiteRT's own op for them is told apart below.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.peers
pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert (make test-peers)")

from litert_models import add_multipliers, model_of, mul_multipliers, product_multipliers, run  # noqa: E402

from rlx.quantized import Add, Conv2d, Dense, MaxPool, MeanPool, Mul, Value, Weights  # noqa: E402

CODES, BATCH = 10_000, 32


def value(rng, name, dims):
    zero = int(rng.integers(-100, 100)) if rng.random() < 0.7 else 0
    return Value(name, dims, float(np.float32(2.0 ** rng.uniform(-9, -3))), zero)


def limits(rng, out):
    info = np.iinfo(out.dtype.numpy)
    return (out.zero_point if rng.random() < 0.5 else info.min), info.max


def fields(rng, x, out, shape):
    """Weights whose sums use the range of the result, some of them beyond it."""
    codes = rng.integers(-127, 128, shape).astype("i1")
    spread = np.sqrt(codes[0].size) * x.largest_distance * 127 / 4
    factors = np.iinfo(out.dtype.numpy).max / spread * 2.0 ** rng.uniform(-2, 2, shape[0])
    weights = Weights(codes, np.float32(factors * out.scale / x.scale))
    bias = rng.integers(-int(spread) - 1, int(spread) + 1, shape[0]).astype("i4")
    low, high = limits(rng, out)
    tables = product_multipliers(x, weights, out)
    return {"weights": weights, "bias": bias, "multipliers": tables, "low": low, "high": high}


def dense(rng):
    x = value(rng, "x", (int(rng.integers(1, 64)),))
    out = value(rng, "out", (int(rng.integers(1, 12)),))
    return [x], Dense((0,), out, **fields(rng, x, out, (out.size, x.size)))


def conv(rng, depthwise=False):
    groups = int(rng.integers(2, 7)) if depthwise else int(rng.choice([1, 1, 2]))
    inside = 1 if depthwise else int(rng.integers(1, 5))
    sizes, kernel = rng.integers(5, 11, 2), rng.integers(1, 4, 2)
    stride, dilation = rng.integers(1, 3, 2), rng.integers(1, 3, 2)
    if dilation.max() > 1:
        stride = np.array([1, 1])
    reach = (kernel - 1) * dilation + 1
    padding = ((0, 0), (0, 0))
    if rng.random() < 0.5:
        missing = np.maximum((-(-sizes // stride) - 1) * stride + reach - sizes, 0)
        padding = tuple((int(p) // 2, int(p) - int(p) // 2) for p in missing)
    given = [int(n) + sum(p) for n, p in zip(sizes, padding)]
    places = [(n - int(k)) // int(s) + 1 for n, k, s in zip(given, reach, stride)]
    channels = groups * (1 if depthwise else int(rng.integers(1, 5)))
    x = value(rng, "x", (*map(int, sizes), inside * groups))
    out = value(rng, "out", (*places, channels))
    geometry = {
        "stride": tuple(map(int, stride)),
        "dilation": tuple(map(int, dilation)),
        "padding": padding,
        "groups": groups,
    }
    return [x], Conv2d((0,), out, **fields(rng, x, out, (channels, *map(int, kernel), inside)), **geometry)


def depthwise(rng):
    return conv(rng, depthwise=True)


def pool(rng, made):
    x = value(rng, "x", (*map(int, rng.integers(4, 10, 2)), int(rng.integers(1, 8))))
    kernel, stride = (tuple(map(int, rng.integers(1, 4, 2))) for _ in range(2))
    sizes = [(d - k) // s + 1 for d, k, s in zip(x.dims, kernel, stride)]
    out = Value("out", (*sizes, x.dims[2]), x.scale, x.zero_point)
    return [x], made((0,), out, kernel, stride)


def max_pool(rng):
    return pool(rng, MaxPool)


def mean_pool(rng):
    return pool(rng, MeanPool)


def add(rng):
    dims = (int(rng.integers(1, 60)),)
    a, b = value(rng, "a", dims), value(rng, "b", dims)
    out = value(rng, "out", dims)
    out = Value("out", dims, float(np.float32(max(a.scale, b.scale) * rng.uniform(0.5, 3))), out.zero_point)
    return [a, b], Add((0, 1), out, add_multipliers(a, b, out), *limits(rng, out))


def mul(rng):
    dims = (int(rng.integers(1, 60)),)
    a, b = value(rng, "a", dims), value(rng, "b", dims)
    out = value(rng, "out", dims)
    out = Value("out", dims, float(np.float32(a.scale * b.scale * 128 * rng.uniform(0.3, 2))), out.zero_point)
    return [a, b], Mul((0, 1), out, mul_multipliers(a, b, out), *limits(rng, out))


def codes_for(rng, operands):
    return [rng.integers(-128, 128, (BATCH, *v.dims)).astype("i1") for v in operands]


def as_convolution(step, x):
    """A dense step as a convolution over an image of one place."""
    w = Weights(step.weights.codes[:, None, None], step.weights.scales)
    out = Value("out", (1, 1, *step.out.dims), step.out.scale, step.out.zero_point)
    image = Value("x", (1, 1, *x.dims), x.scale, x.zero_point)
    return image, Conv2d((0,), out, w, step.bias, step.multipliers, step.low, step.high)


@pytest.mark.parametrize("made", [dense, conv, depthwise, max_pool, mean_pool, add, mul], ids=lambda f: f.__name__)
def test_codes_are_those_of_litert(made):
    rng = np.random.default_rng(17)
    compared, layers, seen = 0, 0, set()
    while compared < CODES or layers < 60:
        operands, step = made(rng)
        step.check(operands)
        codes = codes_for(rng, operands)
        got = step.run(operands, codes)
        if made is dense:
            image, layer = as_convolution(step, operands[0])
            wanted = run(model_of(layer, [image], BATCH), codes[0][:, None, None])[:, 0, 0]
        else:
            wanted = run(model_of(step, operands, BATCH), *codes)
        assert np.array_equal(got, wanted), (step, int(np.abs(got.astype(int) - wanted).max()))
        compared, layers = compared + got.size, layers + 1
        seen.update(got.reshape(-1).tolist())
    # Results that all saturate would show nothing.
    assert len(seen) > 200


def test_fully_connected_layers_of_litert_round_once():
    """Their codes are those of one rounding, all of them; ours are the same but for a few that are one away."""
    rng = np.random.default_rng(18)
    compared, apart = 0, 0
    while compared < CODES:
        (x,), step = dense(rng)
        (codes,) = codes_for(rng, [x])
        wanted = run(model_of(step, [x], BATCH), codes).astype(int)
        sums = (codes.astype(np.int64) - x.zero_point) @ step.weights.codes.T.astype(np.int64) + step.bias
        places = 31 + step.multipliers.shift.astype(np.int64)
        once = (sums * step.multipliers.m0 + (1 << (places - 1))) >> places
        assert np.array_equal(np.clip(once + step.out.zero_point, step.low, step.high), wanted), step
        difference = np.abs(step.run([x], [codes]).astype(int) - wanted)
        assert difference.max() <= 1
        compared, apart = compared + difference.size, apart + np.count_nonzero(difference)
    assert 0 < apart < 0.01 * compared
