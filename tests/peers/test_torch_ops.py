"""Neural-network ops against PyTorch on the CPU, in f64; gradients against its autograd."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlx import ops  # noqa: E402
from rlx.ops import MaskKind  # noqa: E402

pytestmark = pytest.mark.peers
functional = torch.nn.functional
rng = np.random.default_rng(20)


@pytest.fixture(autouse=True)
def gradients():
    """The engines of benchmarks switch them off for the whole process."""
    with torch.enable_grad():
        yield


def normal(*dims):
    return rng.standard_normal(dims)


def peer(function, operands, dy=None):
    """torch's value of `function`, and with `dy` the gradients of the operands."""
    tensors = [torch.tensor(x, requires_grad=dy is not None and x.dtype.kind == "f") for x in operands]
    y = function(*tensors)
    if dy is None:
        return y.numpy()
    y.backward(torch.tensor(dy))
    return y.detach().numpy(), [None if t.grad is None else t.grad.numpy() for t in tensors]


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-11)


CONVOLUTIONS = [
    # x, w, stride, padding, dilation, groups
    ((2, 4, 11), (6, 2, 3), (2,), (2,), (2,), 2),
    ((2, 4, 8, 9), (6, 4, 3, 2), (2, 1), (1, 2), (1, 3), 1),
    ((2, 6, 7, 7), (6, 1, 3, 3), (1, 2), (1, 1), (1, 1), 6),
    ((1, 4, 5, 6, 5), (4, 2, 2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), 2),
]


@pytest.mark.parametrize(("x_dims", "w_dims", "stride", "padding", "dilation", "groups"), CONVOLUTIONS)
def test_conv_and_gradients(x_dims, w_dims, stride, padding, dilation, groups):
    x, w = normal(*x_dims), normal(*w_dims)
    settings = (stride, padding, dilation, groups)
    y = ops.conv(x, w, *settings)
    dy = normal(*y.shape)
    conv = (functional.conv1d, functional.conv2d, functional.conv3d)[len(stride) - 1]
    expected, (dx, dw) = peer(lambda x, w: conv(x, w, None, *settings), [x, w], dy)
    close(y, expected)
    close(ops.conv2d_backward_input(dy, w, x.shape, *settings), dx)
    close(ops.conv2d_backward_weight(x, dy, w.shape[2:], *settings), dw)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_conv_padding_by_name(padding):
    x, w = normal(1, 3, 9, 8), normal(2, 3, 4, 3)
    close(ops.conv(x, w, 1, padding), peer(lambda x, w: functional.conv2d(x, w, padding=padding), [x, w]))


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "extra", "groups"),
    [((1, 1), (0, 0), (1, 1), (0, 0), 1), ((2, 3), (1, 2), (1, 1), (1, 2), 2), ((2, 2), (1, 1), (2, 3), (0, 1), 4)],
)
def test_conv_transpose(stride, padding, dilation, extra, groups):
    x, w = normal(2, 4, 4, 5), normal(4, 3, 3, 2)
    expected = peer(
        lambda x, w: functional.conv_transpose2d(x, w, None, stride, padding, extra, groups, dilation), [x, w]
    )
    close(ops.conv_transpose(x, w, stride, padding, dilation, extra, groups), expected)


def test_im2col_and_resize():
    x = normal(2, 3, 6, 5)
    columns = peer(lambda x: functional.unfold(x, (2, 3), (1, 2), (1, 0), (2, 1)), [x])
    close(ops.im2col(x, (2, 3), (2, 1), (1, 0), (1, 2)), columns.transpose(0, 2, 1).reshape(-1, 18))
    close(ops.resize_nearest_2x(x), peer(lambda x: functional.interpolate(x, scale_factor=2.0), [x]))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [((2, 2), (2, 2), (0, 0)), ((3, 2), (1, 2), (1, 1))])
def test_pooling(kernel, stride, padding):
    x = normal(2, 3, 7, 8)
    largest = ops.pool(x, "max", kernel, stride, padding)
    dy = normal(*largest.shape)
    expected, (dx,) = peer(lambda x: functional.max_pool2d(x, kernel, stride, padding), [x], dy)
    close(largest, expected)
    close(ops.maxpool2d_backward(x, dy, kernel, stride, padding), dx)
    means = peer(lambda x: functional.avg_pool2d(x, kernel, stride, padding, count_include_pad=True), [x])
    close(ops.pool(x, "mean", kernel, stride, padding), means)


def test_max_pooling_sends_ties_to_the_first():
    x = rng.integers(0, 3, (2, 2, 6, 6)).astype(np.float64)
    dy = normal(2, 2, 5, 5)
    _, (dx,) = peer(lambda x: functional.max_pool2d(x, 2, 1), [x], dy)
    close(ops.maxpool2d_backward(x, dy, (2, 2), 1), dx)


def test_layer_norm():
    x, gamma, beta, dy = normal(2, 3, 8), normal(8), normal(8), normal(2, 3, 8)
    expected, (dx, dgamma, _) = peer(lambda x, g, b: functional.layer_norm(x, (8,), g, b, 1e-3), [x, gamma, beta], dy)
    close(ops.layer_norm(x, gamma, beta, eps=1e-3), expected)
    close(ops.layer_norm_backward_input(x, gamma, dy, eps=1e-3), dx)
    close(ops.layer_norm_backward_gamma(x, dy, eps=1e-3), dgamma)


def test_rms_norm():
    x, gamma, dy = normal(2, 3, 8), normal(8), normal(2, 3, 8)
    expected, (dx, dgamma) = peer(lambda x, g: functional.rms_norm(x, (8,), g, 1e-3), [x, gamma], dy)
    close(ops.rms_norm(x, gamma, eps=1e-3), expected)
    close(ops.rms_norm_backward_input(x, gamma, gamma, dy, eps=1e-3), dx)
    close(ops.rms_norm_backward_gamma(x, gamma, gamma, dy, eps=1e-3), dgamma)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups):
    x, gamma, beta, dy = normal(3, 6, 4, 2), normal(6), normal(6), normal(3, 6, 4, 2)
    expected, gradients = peer(lambda x, g, b: functional.group_norm(x, groups, g, b, 1e-3), [x, gamma, beta], dy)
    close(ops.group_norm(x, gamma, beta, groups, 1e-3), expected)
    close(ops.group_norm_backward_input(x, gamma, beta, dy, groups, 1e-3), gradients[0])
    close(ops.group_norm_backward_gamma(x, dy, groups, 1e-3), gradients[1])
    close(ops.group_norm_backward_beta(x, dy, groups, 1e-3), gradients[2])


def test_batch_norm():
    x, gamma, beta, mean, var = normal(5, 4), normal(4), normal(4), normal(4), rng.uniform(0.5, 2, 4)
    dy = normal(5, 4)
    expected, (dx, dgamma, dbeta) = peer(
        lambda x, g, b: functional.batch_norm(x, torch.tensor(mean), torch.tensor(var), g, b, eps=1e-3),
        [x, gamma, beta],
        dy,
    )
    close(ops.batch_norm_inference(x, gamma, beta, mean, var, 1e-3), expected)
    close(ops.batch_norm_inference_backward_input(x, gamma, mean, var, dy, 1e-3), dx)
    close(ops.batch_norm_inference_backward_gamma(x, mean, var, dy, 1e-3), dgamma)
    close(ops.batch_norm_inference_backward_beta(dy), dbeta)


def visible(seq_q, seq_k, kind):
    """The boolean mask that torch needs for a mask kind."""
    position = max(0, seq_k - seq_q) + np.arange(seq_q)[:, None]
    keep = np.arange(seq_k) <= position
    return keep & (np.arange(seq_k) >= position - kind[1]) if isinstance(kind, tuple) else keep


@pytest.mark.parametrize("kind", ["none", "causal", MaskKind.SlidingWindow(2)])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_and_gradients(kind, kv_heads, scale):
    q, k, v = normal(2, 4, 5, 8), normal(2, kv_heads, 7, 8), normal(2, kv_heads, 7, 8)
    mask = None if kind == "none" else torch.tensor(visible(5, 7, kind))
    dy = normal(*q.shape)
    options = {"layout": "bhsd", "mask_kind": kind, "score_scale": scale}

    def attend(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=kv_heads != 4)

    expected, gradients = peer(attend, [q, k, v], dy)
    close(ops.attention(q, k, v, **options), expected)
    for got, wanted in zip(ops.attention_backward_all(q, k, v, dy, **options), gradients, strict=True):
        close(got, wanted)


def test_attention_bias_gradient():
    q, k, v, bias = normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4), normal(2, 2, 3, 5)
    dy = normal(*q.shape)
    expected, gradients = peer(functional.scaled_dot_product_attention, [q, k, v, bias], dy)
    options = {"layout": "bhsd", "mask_kind": "bias"}
    close(ops.attention(q, k, v, bias, **options), expected)
    for got, wanted in zip(ops.attention_backward_all(q, k, v, dy, bias, **options), gradients, strict=True):
        close(got, wanted)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("gelu", functional.gelu),
        ("gelu_approx", lambda x: functional.gelu(x, approximate="tanh")),
        ("silu", functional.silu),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("relu", torch.relu),
        ("abs", torch.abs),
        ("erf_inv", torch.erfinv),
        ("lgamma", torch.lgamma),
    ],
)
def test_activations_and_derivatives(kind, function):
    low, high = (-0.9, 0.9) if kind == "erf_inv" else (0.2, 6) if kind == "lgamma" else (-6, 6)
    x, dy = np.linspace(low, high, 101), normal(101)
    if kind == "abs":
        # At the kink torch has 0 and JAX 1; ours is JAX's (docs/semantics.md, tests/autodiff/test_jax_conventions.py).
        x, dy = np.delete(x, 50), np.delete(dy, 50)
    expected, (dx,) = peer(function, [x], dy)
    close(ops.activation(kind, x), expected)
    close(ops.activation_backward(kind, x, dy), dx)


def test_cross_entropy():
    logits, labels, dy = normal(6, 5), rng.integers(0, 5, 6), normal(6)
    expected, (dx, _) = peer(lambda x, t: functional.cross_entropy(x, t, reduction="none"), [logits, labels], dy)
    close(ops.softmax_cross_entropy_with_logits(logits, labels), expected)
    close(ops.softmax_cross_entropy_backward(logits, labels, dy), dx)


@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_rope_turns_pairs_like_complex_numbers(style):
    x = normal(2, 5, 3, 8)
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    pairs = np.stack([x[..., :4], x[..., 4:]], -1) if style == "neox" else x.reshape(2, 5, 3, 4, 2)
    z = torch.view_as_complex(torch.tensor(np.ascontiguousarray(pairs)))
    turned = torch.view_as_real(z * torch.polar(torch.ones(5, 4, dtype=torch.float64), torch.tensor(angles))[:, None])
    y = turned.numpy()
    expected = np.concatenate([y[..., 0], y[..., 1]], -1) if style == "neox" else y.reshape(x.shape)
    close(ops.rope(x, np.cos(angles), np.sin(angles), 8, style=style, layout="bshd"), expected)
