"""Normalisations against statistics taken slice by slice, and their gradients against differences."""

import numpy as np
import pytest
from directional import assert_gradients
from scipy import stats

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph

rng = np.random.default_rng(3)


def normal(*dims):
    return rng.standard_normal(dims)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_layer_norm_standardises_any_axis(both, axis):
    x = normal(3, 4, 5)
    gamma, beta = normal(x.shape[axis]), normal(x.shape[axis])
    standard = stats.zscore(x, axis=axis)
    expected = np.moveaxis(np.moveaxis(standard, axis, -1) * gamma + beta, -1, axis)
    got = both(lambda *xs: ops.layer_norm(*xs, axis=axis, eps=0.0), x, gamma, beta)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_eps_is_added_to_the_variance():
    x = np.array([[1.0, -1.0]])
    ones, zeros = np.ones(2), np.zeros(2)
    np.testing.assert_allclose(ops.layer_norm(x, ones, zeros, eps=3.0), [[0.5, -0.5]])
    np.testing.assert_allclose(ops.rms_norm(x, ones, zeros, eps=3.0), [[0.5, -0.5]])


def test_layer_norm2d_works_pixel_by_pixel(both):
    x, gamma, beta = normal(2, 5, 3, 2), normal(5), normal(5)
    got = both(lambda *xs: ops.layer_norm2d(*xs, eps=0.0), x, gamma, beta)
    for n, h, w in np.ndindex(2, 3, 2):
        np.testing.assert_allclose(got[n, :, h, w], stats.zscore(x[n, :, h, w]) * gamma + beta, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm_standardises_every_group_of_every_sample(both, groups):
    x, gamma, beta = normal(3, 4, 2, 5), normal(4), normal(4)
    got = both(lambda *xs: ops.group_norm(*xs, groups, eps=0.0), x, gamma, beta)
    for n in range(3):
        for group in np.split(np.arange(4), groups):
            standard = stats.zscore(x[n, group], axis=None)
            expected = standard * gamma[group, None, None] + beta[group, None, None]
            np.testing.assert_allclose(got[n, group], expected, atol=1e-12)


def test_rms_norm_has_unit_mean_square(both):
    x, gamma = normal(2, 3, 8), normal(8)
    got = both(lambda x, g: ops.rms_norm(x, g, eps=0.0), x, gamma)
    np.testing.assert_allclose(np.mean(np.square(got / gamma), axis=-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.sign(got), np.sign(x * gamma))


def test_rms_norm_flattens_leading_axes():
    x, gamma, beta = normal(2, 3, 4), normal(4), normal(4)
    flat = ops.rms_norm(x, gamma, beta, flatten=True)
    np.testing.assert_array_equal(flat, np.reshape(ops.rms_norm(x, gamma, beta), (6, 4)))
    graph = Graph()
    symbolic = graph.input("x", ("B", "S", 4), "f64")
    assert str(ops.rms_norm(symbolic, gamma, beta, flatten=True).type) == "f64[B*S,4]"


def test_batch_norm_uses_given_statistics(both):
    x, gamma, beta, mean = normal(3, 2, 4), normal(4), normal(4), normal(4)
    var = rng.uniform(0.5, 2, 4)
    got = both(lambda *xs: ops.batch_norm_inference(*xs, eps=0.25), x, gamma, beta, mean, var)
    for c in range(4):
        expected = gamma[c] * (x[..., c] - mean[c]) / np.sqrt(var[c] + 0.25) + beta[c]
        np.testing.assert_allclose(got[..., c], expected, rtol=1e-12)


def test_half_precision_is_rounded_once():
    x = (normal(4, 64) * 100).astype(np.float16)
    gamma, beta = normal(64).astype(np.float16), normal(64).astype(np.float16)
    exact = ops.layer_norm(x.astype(np.float64), gamma.astype(np.float64), beta.astype(np.float64))
    np.testing.assert_array_equal(ops.layer_norm(x, gamma, beta), exact.astype(np.float16))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_layer_norm_gradients(axis):
    x, dy = normal(3, 4, 5), normal(3, 4, 5)
    gamma, beta = normal(x.shape[axis]), normal(x.shape[axis])
    options = {"axis": axis, "eps": 0.1}
    gradients = [
        ops.layer_norm_backward_input(x, gamma, dy, **options),
        ops.layer_norm_backward_gamma(x, dy, **options),
    ]
    assert_gradients(lambda x, g: ops.layer_norm(x, g, beta, **options), [x, gamma], gradients, dy)


@pytest.mark.parametrize("axis", [0, -1])
def test_rms_norm_gradients(axis):
    x, dy = normal(3, 4), normal(3, 4)
    operands = [x, normal(x.shape[axis]), normal(x.shape[axis])]
    options = {"axis": axis, "eps": 0.1}
    backward = (ops.rms_norm_backward_input, ops.rms_norm_backward_gamma, ops.rms_norm_backward_beta)
    gradients = [f(*operands, dy, **options) for f in backward]
    assert_gradients(lambda *xs: ops.rms_norm(*xs, **options), operands, gradients, dy)


@pytest.mark.parametrize("groups", [1, 2])
def test_group_norm_gradients(groups):
    x, gamma, beta, dy = normal(3, 4, 2, 2), normal(4), normal(4), normal(3, 4, 2, 2)
    gradients = [
        ops.group_norm_backward_input(x, gamma, beta, dy, groups, 0.1),
        ops.group_norm_backward_gamma(x, dy, groups, 0.1),
        ops.group_norm_backward_beta(x, dy, groups, 0.1),
    ]
    assert_gradients(lambda *xs: ops.group_norm(*xs, groups, 0.1), [x, gamma, beta], gradients, dy)


def test_batch_norm_gradients():
    x, gamma, beta, mean, dy = normal(3, 2, 4), normal(4), normal(4), normal(4), normal(3, 2, 4)
    var = rng.uniform(0.5, 2, 4)
    gradients = [
        ops.batch_norm_inference_backward_input(x, gamma, mean, var, dy, 0.1),
        ops.batch_norm_inference_backward_gamma(x, mean, var, dy, 0.1),
        ops.batch_norm_inference_backward_beta(dy),
    ]
    assert_gradients(lambda *xs: ops.batch_norm_inference(*xs, mean, var, 0.1), [x, gamma, beta], gradients, dy)


def test_errors_name_the_op_and_the_shapes():
    x = np.ones((2, 4), np.float32)
    four, three = np.ones(4, np.float32), np.ones(3, np.float32)
    with pytest.raises(OpError, match=r"layer_norm: gains.* of axis 1 of f32\[2,4\] must be \[4\], got f32\[3\]"):
        ops.layer_norm(x, three, four)
    with pytest.raises(ShapeError, match="layer_norm: axis 2 is out of range for rank 2"):
        ops.layer_norm(x, four, four, axis=2)
    with pytest.raises(OpError, match="needs float operands"):
        ops.LayerNorm()(x.astype(np.int32), four.astype(np.int32), four.astype(np.int32))
    with pytest.raises(OpError, match="one dtype for all"):
        ops.LayerNorm()(x, four.astype(np.float64), four)
    with pytest.raises(OpError, match=r"group_norm: the 4 channels of f32\[2,4\] do not split into 3 groups"):
        ops.group_norm(x, four, four, 3)
    with pytest.raises(OpError, match="num_groups must be positive"):
        ops.GroupNorm(0)
    with pytest.raises(OpError, match="axis must be the last"):
        ops.rms_norm(x, np.ones(2, np.float32), axis=0, flatten=True)
    with pytest.raises(OpError, match=r"layer_norm2d: needs x \[N, C, H, W\]"):
        ops.layer_norm2d(x, four, four)
    with pytest.raises(OpError, match=r"dy must have the type of x, f32\[2,4\], got f32\[4\]"):
        ops.layer_norm_backward_gamma(x, four)
