"""Ops one by one against jax.lax and jax.nn: values, derivatives in both modes, vmap; and where conventions differ."""

import numpy as np
import pytest
from libraries import RLX, jax, jnp, lax
from program_table import agree

import rlx

pytestmark = pytest.mark.peers
rng = np.random.default_rng(31)


def normal(*dims):
    return rng.standard_normal(dims)


def same(got, expected, tolerance=1e-10):
    """Equal up to rounding, infinities and NaN included."""
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


CONVOLUTIONS = [
    # x, w, stride, padding, dilation, groups
    ((2, 4, 11), (6, 2, 3), 2, [(2, 2)], 2, 2),
    ((2, 4, 8, 9), (6, 4, 3, 2), (2, 1), [(1, 1), (2, 2)], (1, 3), 1),
    ((2, 6, 7, 7), (6, 1, 3, 3), (1, 2), [(1, 1), (1, 1)], 1, 6),
    ((2, 3, 6, 7), (4, 3, 3, 3), 2, [(0, 2), (1, 0)], 1, 1),
    ((1, 2, 5, 6), (3, 2, 2, 4), 1, "same", 1, 1),
    ((1, 2, 7, 6), (3, 2, 3, 4), 3, "valid", (2, 1), 1),
    ((1, 4, 5, 6, 5), (4, 2, 2, 3, 2), (1, 2, 1), [(1, 1), (0, 0), (1, 1)], (1, 1, 2), 2),
    ((2, 3, 4, 4), (2, 3, 1, 1), 1, "valid", 1, 1),
]


@pytest.mark.parametrize(("x", "w", "stride", "padding", "dilation", "groups"), CONVOLUTIONS)
def test_conv(x, w, stride, padding, dilation, groups):
    def conv(m, x, w):
        if m is RLX:
            return rlx.nn.conv(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
        rank = x.ndim - 2
        steps, holes = ((v,) * rank if isinstance(v, int) else v for v in (stride, dilation))
        sides = padding.upper() if isinstance(padding, str) else padding
        return lax.conv_general_dilated(x, w, steps, sides, rhs_dilation=holes, feature_group_count=groups)

    agree(conv, normal(*x), normal(*w))


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 0), (3, 1), (2, 2)])
def test_conv_transpose(stride, padding):
    """JAX's transposed convolution pads the spread input, ours cuts the result: k - 1 - padding on either side."""

    def transposed(m, x, w):
        if m is RLX:
            return rlx.nn.conv_transpose(x, w, stride=stride, padding=padding)
        sides = [(k - 1 - padding,) * 2 for k in w.shape[2:]]
        numbers = ("NCHW", "OIHW", "NCHW")
        return lax.conv_transpose(x, w, (stride, stride), sides, dimension_numbers=numbers, transpose_kernel=True)

    agree(transposed, normal(2, 3, 4, 5), normal(3, 2, 3, 4))


POOLS = [((2, 2), None, 0), ((3, 2), (1, 2), (1, 0)), (3, 2, "same"), (2, 3, "valid")]


@pytest.mark.parametrize(("window", "stride", "padding"), POOLS)
@pytest.mark.parametrize("kind", ["max", "min", "avg"])
def test_pooling(kind, window, stride, padding):
    def pool(m, x):
        if m is RLX:
            return getattr(rlx.nn, f"{kind}_pool")(x, window, stride, padding)
        sizes = (window,) * 2 if isinstance(window, int) else window
        steps = sizes if stride is None else (stride,) * 2 if isinstance(stride, int) else stride
        sides = padding.upper() if isinstance(padding, str) else padding
        if not isinstance(sides, str):
            sides = [(0, 0), (0, 0), *((p, p) for p in ((sides,) * 2 if isinstance(sides, int) else sides))]
        join, start = {"max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf), "avg": (lax.add, 0.0)}[kind]
        y = lax.reduce_window(x, start, join, (1, 1, *sizes), (1, 1, *steps), sides)
        return y / (sizes[0] * sizes[1]) if kind == "avg" else y

    agree(pool, normal(2, 3, 7, 8))


def test_max_pooling_sends_ties_to_the_first():
    x = rng.integers(0, 3, (2, 2, 6, 6)).astype(np.float64)
    agree(lambda m, x: m.max_pool(x, 2, 1), x, modes=("value", "vjp"))


@pytest.mark.parametrize(("is_causal", "window", "scale"), [(False, None, None), (True, None, 0.3), (True, 2, None)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention(is_causal, window, scale, kv_heads):
    """Against JAX's own, which takes the softmax in f32 always."""

    def attend(m, q, k, v):
        if m is RLX:
            return rlx.nn.dot_product_attention(q, k, v, is_causal=is_causal, window=window, scale=scale)
        local = None if window is None else (window, 0)
        return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, local_window_size=local, scale=scale)

    agree(attend, normal(2, 5, 4, 8), normal(2, 5, kv_heads, 8), normal(2, 5, kv_heads, 8), dtype="f32")


def test_attention_with_bias_and_mask():
    def attend(m, q, k, v, bias):
        mask = np.arange(7) != np.arange(5)[:, None]
        own = rlx.nn if m is RLX else jax.nn
        return own.dot_product_attention(q, k, v, bias=bias, mask=mask[None, None])

    agree(attend, normal(2, 5, 2, 4), normal(2, 7, 2, 4), normal(2, 7, 2, 4), normal(1, 2, 5, 7), dtype="f32")


def test_attention_over_the_filled_part_of_a_cache():
    q, k, v = (normal(2, n, 2, 4).astype(np.float32) for n in (3, 6, 6))
    filled = np.array([6, 4], np.int32)
    expected = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=filled)
    same(rlx.nn.dot_product_attention(q, k, v, kv_len=filled), expected, 1e-5)


def test_attention_of_a_query_that_sees_nothing_differs():
    """Ours is 0; JAX's -inf is a large number, so that it takes the mean of all values."""
    q, k, v = (normal(1, 3, 1, 4).astype(np.float32) for _ in range(3))
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])[None, None]
    got, other = (
        np.asarray(f(q, k, v, mask=mask)) for f in (rlx.nn.dot_product_attention, jax.nn.dot_product_attention)
    )
    assert not got[0, 1].any()
    same(other[0, 1], v[0].mean(0), 1e-5)
    same(got[0, ::2], other[0, ::2], 1e-5)


def test_norms():
    gain, offset = normal(6), normal(6)
    agree(lambda m, x, g, b: m.layer_norm(x, g, b, eps=1e-3), normal(2, 3, 6), gain, offset)
    agree(lambda m, x, g: m.rms_norm(x, g, eps=1e-3), normal(2, 3, 6), gain)
    for groups in (1, 2, 6):
        agree(lambda m, x, g, b, n=groups: m.group_norm(x, n, g, b, eps=1e-3), normal(2, 6, 4, 3), gain, offset)
    variance = rng.uniform(0.5, 2, 6)
    agree(lambda m, *operands: m.batch_norm(*operands, eps=1e-3), normal(3, 6, 4), normal(6), variance, gain, offset)
    agree(lambda m, x: m.nn.standardize(x, axis=(0, 2), epsilon=1e-3), normal(4, 3, 5))


ACTIVATIONS = "celu elu hard_sigmoid hard_silu hard_tanh log_sigmoid leaky_relu mish relu relu6 selu sigmoid silu soft_sign softplus squareplus tanh"  # noqa: E501


@pytest.mark.parametrize("name", ACTIVATIONS.split())
def test_activations(name):
    """Over a wide range: no overflow, no cancellation, in values or in derivatives."""
    x = np.concatenate([np.linspace(-30, 30, 60), [-700.0, 700.0, 1e-5, -1e-5]])
    agree(lambda m, x: getattr(m.nn, name)(x), x)


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_variants(approximate):
    agree(lambda m, x: m.nn.gelu(x, approximate=approximate), np.linspace(-12, 12, 97))


@pytest.mark.parametrize("name", ["erf", "erfc", "erf_inv", "lgamma", "digamma"])
def test_special_functions(name):
    low, high = {"erf_inv": (-0.999, 0.999), "lgamma": (0.01, 40), "digamma": (0.01, 40)}.get(name, (-5, 5))
    agree(lambda m, x: getattr(m, name)(x), np.linspace(low, high, 101), modes=("value", "vjp", "jvp"))


SOFTMAXES = [
    ("softmax", -1),
    ("softmax", 0),
    ("softmax", (0, 2)),
    ("log_softmax", 1),
    ("logsumexp", (1, 2)),
    ("logsumexp", 0),
]


@pytest.mark.parametrize(("name", "axis"), SOFTMAXES)
def test_softmax(name, axis):
    agree(lambda m, x: getattr(m.nn, name)(x, axis=axis), 20 * normal(3, 4, 5))


KINKS = {
    "relu": lambda m, x: m.nn.relu(x),
    "sign": lambda m, x: m.np.sign(x),
    "floor": lambda m, x: m.np.floor(x),
    "where": lambda m, x: m.np.where(x >= 0, x, 2 * x),
    "leaky_relu": lambda m, x: m.nn.leaky_relu(x),
    "elu": lambda m, x: m.nn.elu(x),
    "clip inside": lambda m, x: m.np.clip(x, -1, 1),
    "power": lambda m, x: x**2 + (x + 1) ** 0.5,
    "max of equals": lambda m, x: m.np.max(x),
    "min of equals": lambda m, x: m.np.min(x),
    "sort of equals": lambda m, x: m.np.sort(x) * m.np.arange(4, dtype=x.dtype),
    "top_k of equals": lambda m, x: m.top_k(x, 2)[0] * m.np.arange(2, dtype=x.dtype),
    "abs at 0": lambda m, x: m.np.abs(x),
    "the larger of equals": lambda m, x: m.np.maximum(x, 0.0),
    "the smaller of equals": lambda m, x: m.np.minimum(x, 0.0),
    "clip at a bound": lambda m, x: m.np.clip(x, 0.0, 1.0),
}


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_kinks_and_ties(name):
    agree(KINKS[name], np.zeros(4))


SHAPES = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij,kj->ikj",
    "ii->i",
    "ii",
    "ijk->ki",
    "i,j,k->kij",
    "bhqd,bkd->bhqk",
    "...ij,...j->...i",
]


@pytest.mark.parametrize("notation", SHAPES)
def test_einsum(notation):
    sizes = dict(zip("ijkbhqd", (3, 3, 4, 2, 2, 5, 3)))
    parts = notation.replace("...", "b").split("->")[0].split(",")
    agree(lambda m, *xs: m.np.einsum(notation, *xs), *(normal(*(sizes[c] for c in part)) for part in parts))
