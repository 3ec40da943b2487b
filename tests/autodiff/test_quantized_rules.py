"""Straight-through derivatives: the estimators against their formulas, codes against the numbers they stand for."""

import ml_dtypes
import numpy as np
import pytest
from derivatives import difference, gradients, graph_of, mapped_graph, tangent

from rlx import ops
from rlx.autodiff.graphs import grad_with_loss
from rlx.errors import AutodiffError
from rlx.quant.schemes import QuantScheme, dequantize_matrix

rng = np.random.default_rng(17)
X = rng.uniform(-2, 2, (3, 4))
DY = rng.standard_normal((3, 4))
QMAX = 7


def estimator(ste, x, s):
    """What stands for the derivative of rounding, from the definition of the estimators."""
    if ste == "identity":
        return np.ones_like(x)
    if ste == "clipped_identity":
        return np.where(np.abs(x) <= QMAX * s, 1.0, 0.0)
    if ste == "tanh":
        return 1 - np.tanh(x / s) ** 2
    return np.maximum(0, 1 - np.abs(x) / (QMAX * s))


def steps(scale_mode, x, state):
    """The step of each row, from the definition of the modes."""
    current = np.abs(x).max(axis=1) / QMAX
    if scale_mode == "per_batch":
        return current
    return state if scale_mode == "fixed" else np.where(state <= 0, current, 0.75 * state + 0.25 * current)


@pytest.mark.parametrize("scale_mode", ["per_batch", "ema", "fixed"])
@pytest.mark.parametrize("ste", ["identity", "clipped_identity", "tanh", "hard_tanh"])
def test_fake_quantize_passes_what_its_estimator_says(ste, scale_mode):
    state = np.array([0.05, 0.2, 0.4])
    arrays = [X] if scale_mode == "per_batch" else [X, state]

    def function(x, *state):
        y = ops.fake_quantize(x, 4, 0, ste, scale_mode, 0.75, *state)
        return y[0] if scale_mode == "ema" else y

    expected = estimator(ste, X, steps(scale_mode, X, state)[:, None]) * DY
    dx, *dstate = gradients(function, arrays, DY)
    np.testing.assert_allclose(dx, expected, rtol=1e-13)
    assert not any(d.any() for d in dstate)
    np.testing.assert_allclose(tangent(function, arrays, [DY, *(None for _ in arrays[1:])]), expected, rtol=1e-13)


def test_the_ema_state_has_no_gradient():
    dx, dstate = gradients(
        lambda x, s: ops.fake_quantize(x, 4, 0, scale_mode="ema", state=s)[1], [X, np.ones(3)], np.ones(3)
    )
    assert not dx.any() and not dstate.any()


@pytest.mark.parametrize("ste", ["identity", "clipped_identity", "tanh", "hard_tanh"])
def test_second_derivatives_are_those_of_the_estimator(ste):
    state, direction = np.array([0.3, 0.5, 0.7]), rng.standard_normal((3, 4))

    def first(x, dy):
        return ops.fake_quantize_backward(x, dy, 4, 0, ste, "fixed", state=state)

    expected = difference(lambda x: estimator(ste, x, state[:, None]) * DY, [X], [direction])
    np.testing.assert_allclose(tangent(first, [X, DY], [direction, None]), expected, atol=1e-8)


def test_the_step_taken_from_the_data_counts_as_a_constant():
    # The largest element decides the step; its own second derivative sees a constant all the same.
    x, s = np.array([0.5, 2.0]), 2.0 / QMAX
    t = np.tanh(x / s)
    got = tangent(lambda x: ops.fake_quantize_backward(x, np.ones(2), 4, ste="tanh"), [x], [np.ones(2)])
    np.testing.assert_allclose(got, -2 * t * (1 - t**2) / s, rtol=1e-12)


@pytest.mark.parametrize("axis", [None, 1])
def test_learned_steps(axis):
    scale = np.array([0.1]) if axis is None else np.array([0.1, 0.5, 0.2, 0.9])
    z = X / scale
    inside = np.abs(z) <= QMAX
    psi = np.where(inside, np.sign(z) * np.floor(np.abs(z) + 0.5) - z, np.sign(z) * QMAX)
    dx, dscale = gradients(lambda x, s: ops.fake_quantize_lsq(x, s, 4, axis), [X, scale], DY)
    np.testing.assert_array_equal(dx, np.where(inside, DY, 0))
    np.testing.assert_allclose(dscale, (psi * DY).sum() if axis is None else (psi * DY).sum(0), rtol=1e-12)
    moved = tangent(lambda x, s: ops.fake_quantize_lsq(x, s, 4, axis), [X, scale], [None, np.ones_like(scale)])
    np.testing.assert_allclose(moved, psi, atol=1e-12)


def test_batches_keep_fake_quantisation_whole():
    graph = mapped_graph(
        lambda x, s: ops.fake_quantize_lsq(x, s, 4, 1), [np.zeros((5, 3, 4)), np.ones(4)], [True, False]
    )
    assert [n.op.name for n in graph.nodes if "fake" in n.op.mnemonic] == ["fake_quantize_lsq"]


@pytest.mark.parametrize("axis", [None, 1])
def test_dequantize_after_quantize_passes_gradients_on(axis):
    x = X.astype("f4")
    scales, zeros = (0.02, 3) if axis is None else ([0.1, 0.02, 0.5, 0.3], [0, 5, -7, 1])

    def function(x):
        return ops.dequantize(ops.quantize(x, scales, zeros, axis), scales, zeros, axis)

    dy = DY.astype("f4")
    np.testing.assert_allclose(gradients(function, [x], dy)[0], dy, rtol=1e-6)
    np.testing.assert_allclose(tangent(function, [x], [dy]), dy, rtol=1e-6)


def test_integers_stop_gradients_elsewhere():
    graph = graph_of(lambda x: ops.dequantize(ops.reshape(ops.quantize(x, 0.1), (12,)), 0.1), X.astype("f4"))
    with pytest.raises(AutodiffError, match="does not depend on 'x0'"):
        grad_with_loss(graph, ["x0"])
    graph = graph_of(lambda x: ops.cast(ops.quantize(x, 0.1), "f32"), X.astype("f4"))
    with pytest.raises(AutodiffError):
        grad_with_loss(graph, ["x0"])


def quantized_product(product, sx, sw, sy):
    """x and w in, the product out, with integers in between."""

    def function(x, w):
        codes = product(ops.quantize(x, sx, 3), ops.quantize(w, sw, -2), sx * sw / sy)
        return ops.dequantize(codes, sy, 5)

    return function


def on_the_grid(scale, zero, x):
    """The numbers that the codes of x stand for."""
    return (np.clip(np.round(x / scale) + zero, -128, 127) - zero) * scale


def test_gradients_through_an_integer_product_are_those_of_the_numbers():
    x, w, dy = (rng.uniform(-1, 1, dims).astype("f4") for dims in [(2, 3, 4), (4, 5), (2, 3, 5)])
    function = quantized_product(
        lambda x, w, mult: ops.q_matmul(x, w, x_zp=3, w_zp=-2, out_zp=5, mult=mult), 0.02, 0.01, 0.1
    )
    dx, dw = gradients(function, [x, w], dy)
    grid_x, grid_w = on_the_grid(0.02, 3, x), on_the_grid(0.01, -2, w)
    np.testing.assert_allclose(dx, dy @ grid_w.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dw, np.einsum("bmk,bmn->kn", grid_x, dy), rtol=1e-4, atol=1e-5)
    expected = x @ grid_w + grid_x @ w
    np.testing.assert_allclose(tangent(function, [x, w], [x, w]), expected, rtol=1e-4, atol=1e-5)


def test_gradients_through_an_integer_convolution_are_those_of_the_numbers():
    settings = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    x, w = (rng.uniform(-1, 1, dims).astype("f4") for dims in [(2, 4, 5, 6), (6, 2, 3, 2)])
    function = quantized_product(
        lambda x, w, mult: ops.q_conv2d(x, w, **settings, x_zp=3, w_zp=-2, out_zp=5, mult=mult), 0.02, 0.01, 0.1
    )
    grid_x, grid_w = on_the_grid(0.02, 3, x), on_the_grid(0.01, -2, w)

    def product(x, w):
        return np.asarray(ops.conv(x, w, **settings))

    moved = product(x, grid_w) + product(grid_x, w)
    np.testing.assert_allclose(tangent(function, [x, w], [x, w]), moved, rtol=1e-4, atol=1e-4)
    dy = rng.standard_normal(moved.shape).astype("f4")
    dx, dw = gradients(function, [x, w], dy)
    np.testing.assert_allclose(np.sum(dx * x) + np.sum(dw * w), np.sum(dy * moved), rtol=1e-4)


SIDES = {
    "int8/4": lambda: (rng.integers(-128, 128, (7, 3)).astype("i1"), 2),
    "int8a/4": lambda: (rng.integers(-128, 128, (7, 3)).astype("i1"), 3),
    "int4/4": lambda: (rng.integers(0, 256, 11).astype("u1"), 3),
    "fp8e4m3": lambda: (rng.uniform(-2, 2, (7, 3)).astype(ml_dtypes.float8_e4m3fn).view("u1"), 1),
}


@pytest.mark.parametrize("text", SIDES)
def test_scales_and_zero_points_beside_the_codes_can_be_tuned(text):
    codes, kind = SIDES[text]()
    groups = (2, 3) if kind > 1 else (3,)
    sides = [rng.uniform(0.1, 1, groups), rng.uniform(-3, 3, groups)][: 2 if kind == 3 else 1]
    x, dy = rng.uniform(-1, 1, (2, 7)), rng.standard_normal((2, 3))
    got = gradients(
        lambda *v: ops.dequant_matmul(*v, scheme=text, n=3), [x, codes, *sides], dy, range(2, 2 + len(sides))
    )

    def weights(scale, zp=None):
        one = np.ones_like(scale, np.float32)
        unit = dequantize_matrix(text, 7, 3, codes, one, None if zp is None else np.zeros_like(one)).astype("f8")
        rows = np.arange(7) // 4
        centred = unit if zp is None else unit - zp[rows]
        return centred * (scale if kind == 1 else scale[rows])

    for i, side in enumerate(sides):
        direction = rng.standard_normal(side.shape)
        directions = [direction if j == i else None for j in range(len(sides))]
        expected = np.sum(difference(lambda *v: x @ weights(*v), sides, directions, 1e-3) * dy)
        assert np.sum(got[i] * direction) == pytest.approx(expected, rel=1e-5)


def test_the_global_scale_of_nvfp4_can_be_tuned():
    codes, scales = rng.integers(0, 256, 30).astype("u1"), np.array([[0x38, 0x40, 0x30], [0x30, 0x3A, 0x39]], np.uint8)
    x, dy = rng.uniform(-1, 1, (2, 20)), rng.standard_normal((2, 3))
    unit = dequantize_matrix("nvfp4", 20, 3, codes, scales, np.ones(1, "f4")).astype("f8")
    _, dglobal = gradients(
        lambda x, w, s, g: ops.dequant_matmul(x, w, s, g, scheme="nvfp4"),
        [x, codes, scales, np.full(1, 0.7)],
        dy,
        [0, 3],
    )
    np.testing.assert_allclose(dglobal, [np.sum((x @ unit) * dy)], rtol=1e-6)


def test_stored_weights_stay_stored():
    scheme = QuantScheme.GgufQ8_0
    packed, x = rng.integers(0, 100, scheme.packed_bytes(32, 3)).astype("u1"), rng.standard_normal((5, 2, 32))

    def function(x, w):
        return ops.dequant_matmul(x, w, scheme=scheme)

    def names(graph):
        return [n.op.mnemonic for n in graph.nodes]

    # The forward product is still the fused one, and so is a batch with shared weights.
    assert "dequant_matmul" in names(grad_with_loss(graph_of(function, x, packed), ["x0"]))
    assert "dequant_moe_weights" not in names(mapped_graph(function, [x, packed], [True, False]))
    assert "dequant_moe_weights" in names(mapped_graph(function, [x, np.stack([packed] * 5)], [True, True]))
