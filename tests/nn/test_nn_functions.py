"""rlx.nn against formulas in NumPy and SciPy: every function on arrays at once, and recorded in a graph."""

import math

import numpy as np
import pytest
import scipy.signal
import scipy.special
import scipy.stats

import rlx
import rlx.numpy as rnp
from rlx import nn
from rlx.autodiff.functions import grad
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building, lift

_rng = np.random.default_rng(0)
X = _rng.normal(size=(3, 8)) * 2
Y = _rng.normal(size=(3, 8))
IMAGE = _rng.normal(size=(2, 4, 6, 5))
LABELS = np.array([1, 7, 0], np.int32)
PROBABILITIES = scipy.special.softmax(Y, -1)


def both(function, *args):
    """The value on arrays, after checking that a program with these inputs computes the same."""
    result = function(*args)
    assert type(result) is rlx.Array
    eager = np.asarray(result)
    graph = Graph("traced")
    with building(graph):
        inputs = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(args)]
        graph.set_outputs([lift(function(*inputs), graph)])
    (traced,) = interpret(graph, list(args))
    np.testing.assert_allclose(traced, eager, rtol=1e-12, atol=1e-12)
    assert traced.dtype == eager.dtype
    return eager


def close(function, oracle, *args, single=True):
    """f64 to rounding, and f32 against the same oracle."""
    np.testing.assert_allclose(both(function, *args), oracle(*args), rtol=1e-11, atol=1e-12)
    if single:
        narrow = [a.astype("f4") if a.dtype == "f8" else a for a in args]
        wide = [a.astype("f8") if a.dtype == "f4" else a for a in narrow]
        result = both(function, *narrow)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, oracle(*wide), rtol=3e-5, atol=1e-5)


def sigmoid(x):
    return scipy.special.expit(x)


def softplus(x):
    return np.logaddexp(x, 0)


def relu6(x):
    return np.clip(x, 0, 6)


ACTIVATIONS = [
    (nn.identity, lambda x: x),
    (nn.relu, lambda x: np.maximum(x, 0)),
    (nn.relu6, relu6),
    (nn.gelu, lambda x: x * scipy.stats.norm.cdf(x)),
    (
        lambda x: nn.gelu(x, approximate=True),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    (nn.sigmoid, sigmoid),
    (nn.silu, lambda x: x * sigmoid(x)),
    (nn.swish, lambda x: x * sigmoid(x)),
    (nn.tanh, np.tanh),
    (nn.softplus, softplus),
    (lambda x: nn.softplus(x, beta=3.0), lambda x: softplus(3 * x) / 3),
    (nn.log_sigmoid, scipy.special.log_expit),
    (nn.soft_sign, lambda x: x / (1 + np.abs(x))),
    (nn.squareplus, lambda x: (x + np.sqrt(x * x + 4)) / 2),
    (nn.elu, lambda x: np.where(x > 0, x, np.expm1(x))),
    (lambda x: nn.elu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * np.expm1(x))),
    (nn.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    (lambda x: nn.celu(x, 1.5), lambda x: np.maximum(x, 0) + np.minimum(0, 1.5 * np.expm1(x / 1.5))),
    (nn.leaky_relu, lambda x: np.where(x >= 0, x, 0.01 * x)),
    (nn.hard_sigmoid, lambda x: relu6(x + 3) / 6),
    (nn.hard_silu, lambda x: x * relu6(x + 3) / 6),
    (nn.hard_swish, lambda x: x * relu6(x + 3) / 6),
    (nn.hard_tanh, lambda x: np.clip(x, -1, 1)),
    (nn.hard_shrink, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    (nn.soft_shrink, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    (nn.mish, lambda x: x * np.tanh(softplus(x))),
    (nn.glu, lambda x: x[:, :4] * sigmoid(x[:, 4:])),
    (nn.swiglu, lambda x: x[:, :4] * sigmoid(x[:, :4]) * x[:, 4:]),
    (nn.geglu, lambda x: x[:, :4] * scipy.stats.norm.cdf(x[:, :4]) * x[:, 4:]),
    (nn.softmax, lambda x: scipy.special.softmax(x, -1)),
    (lambda x: nn.softmax(x, axis=(0, 1)), scipy.special.softmax),
    (nn.log_softmax, lambda x: scipy.special.log_softmax(x, -1)),
    (lambda x: nn.log_softmax(x, axis=None), scipy.special.log_softmax),
    (nn.logsumexp, scipy.special.logsumexp),
    (
        lambda x: nn.logsumexp(x, axis=1, keepdims=True),
        lambda x: scipy.special.logsumexp(x, 1, keepdims=True),
    ),
    (lambda x: nn.standardize(x, epsilon=0.0), lambda x: scipy.stats.zscore(x, axis=-1)),
    (nn.normalize, lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)),
    (nn.layer_norm, lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)),
    (
        lambda x: nn.layer_norm(x, axis=(0, 1)),
        lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5),
    ),
    (nn.rms_norm, lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)),
]


@pytest.mark.parametrize(("function", "oracle"), ACTIVATIONS)
def test_functions_of_one_array(function, oracle):
    close(function, oracle, X)


def test_prelu():
    close(nn.prelu, lambda x, w: np.where(x >= 0, x, w * x), X, np.linspace(0.1, 0.8, 8))
    close(nn.prelu, lambda x, w: np.where(x >= 0, x, w[:, None, None] * x), IMAGE, np.linspace(0.1, 0.8, 4))


def test_extreme_values_stay_finite():
    x = np.array([-1e4, -100.0, 0.0, 100.0, 1e4])
    for function in (nn.softplus, nn.log_sigmoid, nn.elu, nn.selu, nn.celu, nn.mish, nn.sigmoid, nn.softmax):
        assert np.isfinite(both(function, x)).all(), function.__name__
    assert nn.softplus(1e4).tolist() == 1e4
    assert np.isfinite(nn.logsumexp(x)).all()
    assert nn.logsumexp(np.full(3, -np.inf)) == -np.inf


def test_slopes_where_pieces_meet():
    x = np.array([0.0, -1e3, 1e3])
    slopes_of = {nn.elu: [1, 0, 1], nn.celu: [1, 0, 1], nn.softplus: [0.5, 0, 1], nn.mish: [0.6, 0, 1]}
    for function, wanted in slopes_of.items():
        slopes = grad(lambda x, function=function: rnp.sum(function(x)))(x)
        np.testing.assert_allclose(slopes, wanted, atol=1e-12)


def test_masks_of_softmax():
    mask = np.array([True, False, True, True, False, False, True, False])
    wanted = scipy.special.softmax(np.where(mask, X, -np.inf), -1)
    close(lambda x: nn.softmax(x, where=mask), lambda x: scipy.special.softmax(np.where(mask, x, -np.inf), -1), X)
    np.testing.assert_allclose(nn.softmax(X, where=mask).sum(-1), 1.0)
    np.testing.assert_allclose(np.exp(nn.log_softmax(X, where=mask)), wanted, rtol=1e-12)
    assert nn.softmax(X, where=np.zeros(8, bool)).tolist() == np.zeros((3, 8)).tolist()
    np.testing.assert_allclose(nn.logsumexp(X, -1, where=mask), scipy.special.logsumexp(X[:, mask], -1))
    np.testing.assert_allclose(nn.logsumexp(X, -1, b=np.exp(Y)), scipy.special.logsumexp(X, -1, b=np.exp(Y)))
    np.testing.assert_allclose(
        nn.standardize(X, where=mask, epsilon=0)[:, mask], scipy.stats.zscore(X[:, mask], axis=-1)
    )


def test_one_hot():
    assert both(lambda x: nn.one_hot(x, 3), np.array([2, 0, 5], np.int32)).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert nn.one_hot(np.array([1]), 2, axis=0, dtype="int8").tolist() == [[0], [1]]


def test_linear_and_embedding():
    w, b = _rng.normal(size=(8, 5)), _rng.normal(size=(5,))
    close(nn.linear, lambda x, w, b: x @ w + b, X, w, b)
    a, c = _rng.normal(size=(8, 2)), _rng.normal(size=(2, 5))
    close(lambda *t: nn.lora_linear(*t, scale=0.5), lambda x, w, a, c: x @ w + 0.5 * (x @ a) @ c, X, w, a, c)
    table = _rng.normal(size=(9, 4))
    close(nn.embedding, lambda i, t: t[i], np.array([[0, 8], [3, -1]], np.int32), table, single=False)


def test_norms_with_weights():
    w, b = _rng.normal(size=(8,)), _rng.normal(size=(8,))

    def standard(x, axes, eps=1e-5):
        return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)

    close(nn.layer_norm, lambda x, w, b: standard(x, -1) * w + b, X, w, b)
    close(nn.rms_norm, lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w, X, w)
    wide = _rng.normal(size=(6, 5))
    close(
        lambda x, w: nn.layer_norm(x, w, axis=(2, 3), eps=1e-3),
        lambda x, w: standard(x, (2, 3), 1e-3) * w,
        IMAGE,
        wide,
    )
    gain, offset = _rng.normal(size=(4,)), _rng.normal(size=(4,))
    grouped = IMAGE.reshape(2, 2, 2, 6, 5)
    wanted = standard(grouped, (2, 3, 4)).reshape(IMAGE.shape) * gain[:, None, None] + offset[:, None, None]
    np.testing.assert_allclose(both(lambda *t: nn.group_norm(t[0], 2, *t[1:]), IMAGE, gain, offset), wanted)
    close(nn.instance_norm, lambda x: standard(x, (2, 3)), IMAGE)
    mean, variance = _rng.normal(size=(4,)), _rng.uniform(0.5, 2, (4,))

    def batch_norm(x, m, v, g, o):
        m, v, g, o = (s[:, None, None] for s in (m, v, g, o))
        return (x - m) / np.sqrt(v + 1e-5) * g + o

    close(nn.batch_norm, batch_norm, IMAGE, mean, variance, gain, offset)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_is_a_correlation(rank):
    x = _rng.normal(size=(1, 1, *(6, 5, 4)[:rank]))
    w = _rng.normal(size=(1, 1, *(3, 2, 2)[:rank]))
    close(nn.conv, lambda x, w: scipy.signal.correlate(x[0, 0], w[0, 0], "valid")[None, None], x, w)
    # Transposed without stride it is the full convolution.
    close(nn.conv_transpose, lambda x, w: scipy.signal.convolve(x[0, 0], w[0, 0], "full")[None, None], x, w)


def test_convolution_options():
    w, b = _rng.normal(size=(6, 2, 3, 3)), _rng.normal(size=(6,))

    def oracle(x, w, b):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        out = np.zeros((2, 6, 3, 3))
        for n, o in np.ndindex(2, 6):
            group = padded[n, (o // 3) * 2 : (o // 3) * 2 + 2]
            out[n, o] = sum(scipy.signal.correlate(group[c], w[o, c], "valid") for c in range(2))[::2, ::2] + b[o]
        return out

    close(lambda *t: nn.conv(*t, stride=2, padding=1, groups=2), oracle, IMAGE, w, b)
    same = nn.conv(IMAGE, w, padding="same", groups=2)
    assert same.shape == (2, 6, 6, 5)
    assert nn.conv(IMAGE, w, padding=[(1, 0), (0, 2)], groups=2, dilation=(1, 2)).shape == (2, 6, 5, 3)
    up = nn.conv_transpose(IMAGE, _rng.normal(size=(4, 3, 2, 2)), np.ones(3), stride=2, output_padding=1)
    assert up.shape == (2, 3, 13, 11)


def _windows(x, size, stride):
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return view[:, :, ::stride, ::stride]


def test_pooling():
    close(lambda x: nn.max_pool(x, 2), lambda x: _windows(x, 2, 2).max((-1, -2)), IMAGE)
    close(lambda x: nn.min_pool(x, 3, 1), lambda x: _windows(x, 3, 1).min((-1, -2)), IMAGE)
    close(lambda x: nn.avg_pool(x, 2, 1), lambda x: _windows(x, 2, 1).mean((-1, -2)), IMAGE)

    def padded(x, value):
        return np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)

    close(lambda x: nn.max_pool(x, 3, 2, 1), lambda x: _windows(padded(x, -np.inf), 3, 2).max((-1, -2)), IMAGE)
    close(lambda x: nn.avg_pool(x, 3, 2, 1), lambda x: _windows(padded(x, 0), 3, 2).mean((-1, -2)), IMAGE)
    close(
        lambda x: nn.avg_pool(x, 3, 2, 1, count_include_pad=False),
        lambda x: np.nanmean(_windows(padded(x, np.nan), 3, 2), (-1, -2)),
        IMAGE,
    )
    assert nn.max_pool(IMAGE, 2, padding="same").shape == (2, 4, 3, 3)
    assert nn.max_pool(IMAGE[..., 0], 3).shape == (2, 4, 2)


def test_dropout():
    from rlx import random

    key = random.key(3)
    x = np.ones((50, 40), np.float32)
    dropped = np.asarray(nn.dropout(x, 0.25, key))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / x.size)
    np.testing.assert_array_equal(dropped, nn.dropout(x, 0.25, key))
    assert nn.dropout(x, 0.25, training=False).tolist() == x.tolist()
    with pytest.raises(OpError, match="needs a random key while training"):
        nn.dropout(x, 0.5)


LOSSES = [
    (nn.mse_loss, lambda a, b: (a - b) ** 2),
    (nn.l1_loss, lambda a, b: np.abs(a - b)),
    (nn.huber_loss, lambda a, b: scipy.special.huber(1.0, a - b)),
    (
        lambda a, b, reduction: nn.huber_loss(a, b, 0.3, reduction=reduction),
        lambda a, b: scipy.special.huber(0.3, a - b),
    ),
    (
        lambda a, b, reduction: nn.smooth_l1_loss(a, b, 0.5, reduction=reduction),
        lambda a, b: scipy.special.huber(0.5, a - b) / 0.5,
    ),
    (
        lambda a, b, reduction: nn.binary_cross_entropy_with_logits(
            a, scipy.special.expit(np.asarray(Y)), reduction=reduction
        ),
        lambda a, b: -(sigmoid(Y) * np.log(sigmoid(a)) + (1 - sigmoid(Y)) * np.log(1 - sigmoid(a))),
    ),
    (
        lambda a, b, reduction: nn.kl_div(nn.log_softmax(a), PROBABILITIES, reduction=reduction),
        lambda a, b: scipy.special.rel_entr(PROBABILITIES, scipy.special.softmax(a, -1)),
    ),
]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("function", "oracle"), LOSSES)
def test_losses_of_two_arrays(function, oracle, reduction):
    reduce = {"none": lambda x: x, "mean": np.mean, "sum": np.sum}[reduction]
    close(lambda a, b: function(a, b, reduction=reduction), lambda a, b: reduce(oracle(a, b)), X, Y, single=False)


def test_cross_entropy():
    logs = scipy.special.log_softmax(X, -1)
    rows = -logs[np.arange(3), LABELS]
    np.testing.assert_allclose(both(nn.cross_entropy, X, LABELS), rows.mean(), rtol=1e-12)
    np.testing.assert_allclose(nn.cross_entropy(X, LABELS, reduction="none"), rows)
    np.testing.assert_allclose(nn.cross_entropy(X.T.copy(), LABELS, axis=0), rows.mean())
    np.testing.assert_allclose(nn.softmax_cross_entropy_with_integer_labels(X, LABELS), rows)
    np.testing.assert_allclose(nn.nll_loss(logs, LABELS), rows.mean())
    some = np.where(np.arange(len(rows)) == 1, -100, LABELS)
    np.testing.assert_allclose(nn.nll_loss(logs, some), np.delete(rows, 1).mean())
    np.testing.assert_allclose(nn.nll_loss(logs, some, reduction="none"), np.where(some == -100, 0, rows))
    np.testing.assert_allclose(nn.softmax_cross_entropy(X, PROBABILITIES), -(PROBABILITIES * logs).sum(-1))
    np.testing.assert_allclose(nn.cross_entropy(X, PROBABILITIES), -(PROBABILITIES * logs).sum(-1).mean())
    ignored = np.array([1, -100, 0], np.int32)
    np.testing.assert_allclose(both(nn.cross_entropy, X, ignored), rows[[0, 2]].mean(), rtol=1e-12)
    weight = np.arange(1.0, 9)
    weighted = (rows * weight[LABELS]).sum() / weight[LABELS].sum()
    np.testing.assert_allclose(nn.cross_entropy(X, LABELS, weight), weighted)
    smooth = np.full((3, 8), 0.1 / 8)
    smooth[np.arange(3), LABELS] += 0.9
    expected = -(smooth * logs).sum(-1).mean()
    np.testing.assert_allclose(nn.cross_entropy(X, LABELS, label_smoothing=0.1), expected)
    hot = np.eye(8)[LABELS]
    np.testing.assert_allclose(nn.cross_entropy(X, hot, label_smoothing=0.1), expected)
    with pytest.raises(OpError, match="'mean', 'sum' or 'none'"):
        nn.cross_entropy(X, LABELS, reduction="average")


def test_other_losses():
    p = scipy.special.expit(X)
    wanted = -(PROBABILITIES * np.log(p) + (1 - PROBABILITIES) * np.log1p(-p))
    np.testing.assert_allclose(nn.binary_cross_entropy(p, PROBABILITIES, reduction="none"), wanted, rtol=1e-11)
    assert nn.binary_cross_entropy(np.array([0.0]), np.array([1.0])) == 100
    # Where the logarithm is limited the loss is constant, and its gradient no NaN.
    gradient = grad(lambda p: nn.binary_cross_entropy(p, np.array([1.0, 0.0, 1.0, 0.0]), reduction="sum"))
    np.testing.assert_array_equal(gradient(np.array([1.0, 0.0, 0.0, 1.0])), [-1, 1, 0, 0])
    positive = nn.binary_cross_entropy_with_logits(X, PROBABILITIES, pos_weight=3.0, reduction="none")
    weighted = -(3 * PROBABILITIES * np.log(p) + (1 - PROBABILITIES) * np.log1p(-p))
    np.testing.assert_allclose(positive, weighted, rtol=1e-11)
    logs = scipy.special.log_softmax(X, -1)
    total = scipy.special.rel_entr(PROBABILITIES, np.exp(logs)).sum()
    np.testing.assert_allclose(nn.kl_div(logs, PROBABILITIES, reduction="batchmean"), total / 3)
    np.testing.assert_allclose(nn.kl_div(logs, np.log(PROBABILITIES), log_target=True, reduction="sum"), total)
    cosine = [1 - scipy.spatial.distance.cosine(a, b) for a, b in zip(X, Y)]
    np.testing.assert_allclose(both(nn.cosine_similarity, X, Y), cosine, rtol=1e-11)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.glu(X[:, :3]), ShapeError, "cut into two halves, but its size is 3"),
        (lambda: nn.gelu(X, approximate="erf"), OpError, "approximate must be"),
        (lambda: nn.max_pool(X, 2), ShapeError, r"needs x \[N, C, spatial"),
        (lambda: nn.max_pool(IMAGE, 2, padding="full"), OpError, "'same' or 'valid'"),
        (lambda: nn.rope(X), ShapeError, r"needs x \[B, S, H, D\]"),
        (lambda: nn.dot_product_attention(X, X, X), ShapeError, "dot_product_attention: needs query"),
        (lambda: nn.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE, dropout_p=0.1), OpError, "needs a random key"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
