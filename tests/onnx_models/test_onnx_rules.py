"""What the ops of ONNX mean, on small arrays, against NumPy."""

import numpy as np
import pytest

from onnx_models.one_op import run_op
from rlx.errors import FormatError, UnsupportedOnnx

rng = np.random.default_rng(3)
X = rng.standard_normal((2, 3, 4)).astype("f4")
Y = rng.standard_normal((3, 1)).astype("f4")
I64 = np.int64


def ints(*numbers):
    return np.array(numbers, I64)


def check(found, expected, tolerance=1e-5):
    expected = np.asarray(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


@pytest.mark.parametrize(
    "name, function",
    [
        ("Add", np.add),
        ("Sub", np.subtract),
        ("Mul", np.multiply),
        ("Div", np.divide),
        ("Max", np.maximum),
        ("Min", np.minimum),
        ("Less", np.less),
        ("GreaterOrEqual", np.greater_equal),
    ],
)
def test_two_operands_broadcast(name, function):
    check(run_op(name, X, Y), function(X, Y))


def test_whole_numbers_are_divided_toward_zero():
    a, b = np.array([7, -7, 7, -7], "i4"), np.array([2, 2, -2, -2], "i4")
    check(run_op("Div", a, b), np.array([3, -3, -3, 3], "i4"))
    check(run_op("Mod", a, b), np.array([1, 1, -1, -1], "i4"))
    check(run_op("Mod", a, b, fmod=1), np.array([1, -1, 1, -1], "i4"))


def test_a_power_keeps_the_type_of_its_base():
    check(run_op("Pow", X, np.array([2], "i8"), known=(1,)), X**2)
    check(run_op("Pow", np.array([2, 3], "i4"), np.array([3.0, 2.0], "f4")), np.array([8, 9], "i4"))


@pytest.mark.parametrize("opset", [6, 13])
def test_clip_has_its_limits_in_inputs_or_attributes(opset):
    if opset >= 11:
        found = run_op("Clip", X, np.array(-0.5, "f4"), None, opset=opset)
    else:
        found = run_op("Clip", X, opset=opset, min=-0.5)
    check(found, np.maximum(X, np.float32(-0.5)))


def test_softmax_of_old_opsets_joins_axes():
    flat = np.exp(X.reshape(2, 12)) / np.exp(X.reshape(2, 12)).sum(1, keepdims=True)
    check(run_op("Softmax", X, opset=11), flat.reshape(X.shape))
    check(run_op("Softmax", X, opset=13, axis=1), np.exp(X) / np.exp(X).sum(1, keepdims=True))


@pytest.mark.parametrize("opset", [11, 18])
def test_axes_of_reductions_are_inputs_or_attributes(opset):
    if opset == 18:
        found = run_op("ReduceMean", X, ints(0, 2), known=(1,), opset=18, keepdims=0)
    else:
        found = run_op("ReduceMean", X, opset=11, axes=[0, 2], keepdims=0)
    check(found, X.mean((0, 2)))
    check(run_op("ReduceMean", X, opset=18), X.mean(keepdims=True))
    check(run_op("ReduceSum", X, opset=18, noop_with_empty_axes=1), X)


def test_cumulative_sums_may_be_exclusive_and_backward():
    check(run_op("CumSum", X, np.array(2), known=(1,)), X.cumsum(2))
    expected = np.flip(np.flip(X, 1).cumsum(1), 1) - X
    check(run_op("CumSum", X, np.array(1), known=(1,), exclusive=1, reverse=1), expected)


def test_shapes():
    check(run_op("Shape", X), ints(2, 3, 4))
    check(run_op("Shape", X, start=-2), ints(3, 4))
    check(run_op("Reshape", X, ints(0, -1), known=(1,)), X.reshape(2, 12))
    check(run_op("Flatten", X, axis=2), X.reshape(6, 4))
    check(run_op("Unsqueeze", X, ints(0, -1), known=(1,)), X[None, ..., None])
    check(run_op("Expand", Y, ints(2, 1, 5), known=(1,)), np.broadcast_to(Y, (2, 3, 5)))
    check(run_op("Tile", Y, ints(2, 3), known=(1,)), np.tile(Y, (2, 3)))


def test_slices_count_from_the_end_and_go_backward():
    far = -(2**63)
    found = run_op("Slice", X, ints(-1, 1), ints(far, 2**62), ints(1, 2), ints(-1, 2), known=(1, 2, 3, 4))
    check(found, X[:, ::-1, 1::2])
    check(run_op("Slice", X, opset=9, starts=[1], ends=[-1], axes=[2]), X[:, :, 1:-1])


def test_gathers_and_scatters():
    check(run_op("Gather", X, ints(-1, 0), axis=2), X[:, :, [-1, 0]])
    index = np.array([[[0, 2]], [[1, -1]]], I64)
    check(run_op("GatherElements", X, index, axis=1), np.take_along_axis(X[:, :, :2], index, 1))
    points = np.array([[0, 1], [1, 2]], I64)
    check(run_op("GatherND", X, points), X[points[:, 0], points[:, 1]])
    expected = X.copy()
    expected[0, 1], expected[1, 2] = 1, 2
    updates = np.stack([np.full(4, 1, "f4"), np.full(4, 2, "f4")])
    check(run_op("ScatterND", X, points, updates), expected)
    expected = X.copy()
    np.put_along_axis(expected[:, :, :2], index, 5.0, 1)
    check(run_op("ScatterElements", X, index, np.full(index.shape, 5, "f4"), axis=1), expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_padding(mode):
    more = {"constant_values": 0} if mode == "constant" else {}
    check(
        run_op("Pad", X, ints(0, 1, 2, 0, 0, 1), known=(1,), mode=mode),
        np.pad(X, ((0, 0), (1, 0), (2, 1)), mode, **more),
    )


def test_negative_padding_cuts():
    check(run_op("Pad", X, ints(0, 0, -1, 0, 0, 2), known=(1,)), np.pad(X[:, :, 1:], ((0, 0), (0, 0), (0, 2))))


def test_top_k():
    values, places = run_op("TopK", X, ints(2), known=(1,), outputs=2, axis=1, largest=0)
    check(places, np.argsort(X, 1)[:, :2])
    check(values, np.sort(X, 1)[:, :2])


def test_one_hot_of_negative_ids():
    found = run_op("OneHot", ints(0, -1), np.array(3), np.array([5, 7], "f4"), known=(1,))
    check(found, np.array([[7, 5, 5], [5, 5, 7]], "f4"))


def windows(x, kernel, stride):
    seen = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))
    return seen[:, :, ::stride, ::stride]


def test_convolutions():
    x, w, b = (rng.standard_normal(s).astype("f4") for s in ((1, 2, 5, 7), (3, 2, 3, 3), (3,)))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)))
    expected = np.einsum("nchwij,ocij->nohw", windows(padded, (3, 3), 2), w) + b[:, None, None]
    check(run_op("Conv", x, w, b, pads=[1, 0, 1, 1], strides=[2, 2]), expected, 1e-4)
    same = run_op("Conv", x, w, auto_pad="SAME_UPPER", strides=[2, 2])
    assert same.shape == (1, 3, 3, 4)
    # The transpose: <conv(x), y> = <x, conv_transpose(y)>.
    y = rng.standard_normal(expected.shape).astype("f4")
    back = run_op("ConvTranspose", y, w, pads=[1, 0, 1, 1], strides=[2, 2], output_padding=[0, 1])
    assert back.shape == x.shape
    np.testing.assert_allclose(((expected - b[:, None, None]) * y).sum(), (x * back).sum(), rtol=1e-4)


def test_pooling_rounds_up_where_asked():
    x = rng.standard_normal((1, 1, 4, 4)).astype("f4")
    kernel = {"kernel_shape": [3, 3], "strides": [2, 2]}
    check(run_op("MaxPool", x, **kernel), windows(x, (3, 3), 2).max((-1, -2)))
    up = run_op("MaxPool", x, ceil_mode=1, **kernel)
    check(up, windows(np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=-9), (3, 3), 2).max((-1, -2)))
    mean = run_op("AveragePool", x, ceil_mode=1, **kernel)
    check(mean[..., 1, 1], x[..., 2:, 2:].mean((2, 3)))
    values, places = run_op("MaxPool", x, outputs=2, **kernel)
    check(x.reshape(-1)[places], values)


def test_resize():
    x = np.arange(4, dtype="f4").reshape(1, 1, 2, 2)
    scales = np.array([1, 1, 2, 2], "f4")
    near = run_op("Resize", x, None, scales, known=(2,), mode="nearest", coordinate_transformation_mode="asymmetric")
    check(near, x.repeat(2, 2).repeat(2, 3))
    linear = run_op("Resize", x, None, scales, known=(2,), mode="linear")
    check(linear[0, 0, 0], np.array([0, 0.25, 0.75, 1], "f4"))
    sized = run_op(
        "Resize",
        x,
        None,
        None,
        ints(1, 1, 3, 3),
        known=(3,),
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )
    check(sized[0, 0, 1], np.array([1, 1.5, 2], "f4"))


def test_quantisation():
    x = np.array([-1, 0, 0.3, 10], "f4")
    scale, zero = np.array(0.1, "f4"), np.array(3, "u1")
    codes = run_op("QuantizeLinear", x, scale, zero)
    check(codes, np.array([0, 3, 6, 103], "u1"))
    check(run_op("DequantizeLinear", codes, scale, zero), (codes.astype("f4") - 3) * 0.1)
    rows = run_op("DequantizeLinear", np.array([[1, 2], [3, 4]], "i1"), np.array([1, 10], "f4"), axis=0)
    check(rows, np.array([[1, 2], [30, 40]], "f4"))
    blocks = run_op("DequantizeLinear", np.arange(6, dtype="i1"), np.array([1, 10], "f4"), axis=0, block_size=3)
    check(blocks, np.array([0, 1, 2, 30, 40, 50], "f4"))
    found, step, offset = run_op("DynamicQuantizeLinear", x, outputs=3)
    check((found.astype("f4") - offset) * step, x, 0.03)


def test_integer_products_are_exact():
    a, b = (rng.integers(0, 256, s).astype("u1") for s in ((3, 700), (700, 2)))
    expected = (a.astype("i8") - 128) @ (b.astype("i8") - 7)
    check(run_op("MatMulInteger", a, b, np.array(128, "u1"), np.array(7, "u1")), expected.astype("i4"))


def test_recurrent_layers_stop_at_their_lengths():
    x, w, r = (rng.standard_normal(s).astype("f4") for s in ((4, 2, 3), (1, 5, 3), (1, 5, 5)))
    lengths = np.array([4, 2], "i4")
    ys, last = run_op("RNN", x, w, r, None, lengths, outputs=2, hidden_size=5)
    h = np.zeros((2, 5), "f4")
    for t in range(4):
        new = np.tanh(x[t] @ w[0].T + h @ r[0].T)
        h = np.where((t < lengths)[:, None], new, h)
        check(ys[t, 0], np.where((t < lengths)[:, None], h, 0))
    check(last[0], h)


def test_the_best_boxes_that_do_not_overlap():
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], "f4")
    scores = np.array([[[0.9, 0.95, 0.5]]], "f4")
    found = run_op(
        "NonMaxSuppression", boxes, scores, ints(5), np.array([0.5], "f4"), np.array([0.1], "f4"), known=(2, 3, 4)
    )
    check(found, np.array([[0, 0, 1], [0, 0, 2]]))


def test_weights_of_four_bits_in_blocks():
    codes, scales = rng.integers(0, 16, (5, 2, 16)), rng.standard_normal((5, 2)).astype("f4")
    packed = (codes[..., ::2] | codes[..., 1::2] << 4).astype("u1")
    x = rng.standard_normal((3, 32)).astype("f4")
    shape = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
    found = run_op("MatMulNBits", x, packed, scales.reshape(-1), domain="com.microsoft", known=(1,), **shape)
    check(found, x @ ((codes - 8) * scales[..., None]).reshape(5, 32).T.astype("f4"), 1e-4)


def test_convolutions_joined_with_what_follows():
    x, w, b = (rng.standard_normal(s).astype("f4") for s in ((2, 3, 5, 5), (4, 3, 3, 3), (4,)))
    z = rng.standard_normal((2, 4, 3, 3)).astype("f4")
    plain = np.einsum("nchwij,ocij->nohw", windows(x, (3, 3), 1), w) + b[:, None, None] + z
    for name, numbers, expected in (
        ("Relu", [], np.maximum(plain, 0)),
        ("LeakyRelu", [0.25], np.where(plain < 0, plain * 0.25, plain)),
        ("Clip", [-1.0, 0.5], np.clip(plain, -1, 0.5)),
        ("HardSigmoid", [0.5, 0.25], np.clip(plain * 0.5 + 0.25, 0, 1)),
    ):
        more = {"activation": name} | ({"activation_params": numbers} if numbers else {})
        check(run_op("FusedConv", x, w, b, z, domain="com.microsoft", **more), expected.astype("f4"), 1e-4)
    with pytest.raises(UnsupportedOnnx, match=r"the activation 'Selu' with the numbers \[\] is not supported"):
        run_op("FusedConv", x, w, domain="com.microsoft", activation="Selu")
    a, c = x.reshape(10, 15), w.reshape(-1)[:60].reshape(15, 4)
    found = run_op("FusedGemm", a, c, domain="com.microsoft", activation="LeakyRelu", activation_alpha=0.5, alpha=2.0)
    expected = 2 * a @ c
    check(found, np.where(expected < 0, expected * 0.5, expected), 1e-4)


def test_products_of_codes_with_a_bias_of_codes():
    a, b = rng.integers(0, 256, (3, 40)).astype("u1"), rng.integers(-128, 128, (5, 40)).astype("i1")
    bias = rng.integers(-999, 999, 5).astype("i4")
    scales = np.float32(0.02), np.linspace(0.01, 0.03, 5).astype("f4")
    total = (a.astype("i8") - 120) @ b.T.astype("i8") + bias
    wide = total * (scales[0] * scales[1] * np.float32(0.5))
    inputs = (a, scales[0], np.array(120, "u1"), b, scales[1], np.zeros(5, "i1"), bias)
    check(run_op("QGemm", *inputs, domain="com.microsoft", transB=1, alpha=0.5), wide.astype("f4"), 1e-5)
    given = (np.float32(0.25), np.array(9, "u1"))
    codes = run_op("QGemm", *inputs, *given, domain="com.microsoft", transB=1, alpha=0.5)
    check(codes, np.clip(np.round(wide / 0.25) + 9, 0, 255).astype("u1"))


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("form", ["lengths", "keys", "pairs"])
def test_masks_of_packed_attention(form):
    x, w = rng.standard_normal((2, 5, 8)).astype("f4"), rng.standard_normal((8, 24)).astype("f4")
    lengths = np.array([5, 3], "i4")
    seen = np.arange(5) < lengths[:, None]
    mask = {"lengths": lengths, "keys": seen.astype("i4"), "pairs": np.tile(seen[:, None], (1, 5, 1)).astype("i4")}
    found = run_op("Attention", x, w, None, mask[form], domain="com.microsoft", num_heads=2)
    q, k, v = (part.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3) for part in np.split(x @ w, 3, -1))
    scores = q @ k.swapaxes(-1, -2) / 2 - 10000.0 * ~seen[:, None, None]
    check(found, (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(2, 5, 8).astype("f4"), 1e-4)


def test_embeddings_at_given_positions():
    words, places = rng.standard_normal((9, 4)).astype("f4"), rng.standard_normal((7, 4)).astype("f4")
    ids, at = np.array([[1, 5, 3]], "i4"), np.array([[4, 2, 6]], "i4")
    gamma, beta = np.ones(4, "f4"), np.zeros(4, "f4")
    inputs = (ids, None, words, places, None, gamma, beta, None, at)
    found, _ = run_op("EmbedLayerNormalization", *inputs, domain="com.microsoft", outputs=2, epsilon=1e-5)
    total = words[ids] + places[at]
    expected = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
    check(found, expected, 1e-4)


def test_what_a_node_lacks_is_named():
    with pytest.raises(FormatError, match=r"node Reshape.*it has no shape"):
        run_op("Reshape", X)
    with pytest.raises(FormatError, match="axis 7 does not exist in an array of rank 3"):
        run_op("Softmax", X, axis=7)
    with pytest.raises(UnsupportedOnnx, match="antialias is not supported"):
        run_op("Resize", X, None, np.ones(3, "f4"), known=(2,), antialias=1)
