"""Pooling against NumPy on each window by itself."""

import numpy as np
import pytest
from directional import assert_gradients

from rlx import ops
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(10)
JOIN = {"max": np.max, "min": np.min, "sum": np.sum, "mean": np.sum, "prod": np.prod}


def each_window(x, kernel, stride, padding):
    """The elements of x inside of every window, without the padding, by output position."""
    sizes = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(x.shape[2:], kernel, stride, padding)]
    for place in np.ndindex(x.shape[0], x.shape[1], *sizes):
        starts = [i * s - p for i, s, p in zip(place[2:], stride, padding)]
        inside = tuple(slice(max(a, 0), max(a + k, 0)) for a, k in zip(starts, kernel))
        yield place, x[place[:2]][inside]


@pytest.mark.parametrize("kind", list(JOIN))
@pytest.mark.parametrize(
    ("dims", "kernel", "stride", "padding"),
    [
        ((2, 3, 8), (3,), (2,), (1,)),
        ((2, 2, 5, 6), (2, 3), (1, 2), (1, 1)),
        ((1, 2, 3, 4, 3), (2, 2, 2), (1, 2, 1), (0, 0, 1)),
    ],
)
def test_pool(both, kind, dims, kernel, stride, padding):
    x = rng.standard_normal(dims)
    got = both(lambda x: ops.pool(x, kind, kernel, stride, padding), x, dims=[("N", *dims[1:])])
    divisor = np.prod(kernel) if kind == "mean" else 1
    for place, window in each_window(x, kernel, stride, padding):
        np.testing.assert_allclose(got[place], JOIN[kind](window) / divisor, rtol=1e-12)


def test_stride_defaults_to_the_window():
    x = np.arange(16, dtype=np.int32).reshape(1, 1, 4, 4)
    assert ops.pool(x, "max", (2, 2)).tolist() == [[[[5, 7], [13, 15]]]]
    mean = ops.pool(x, "mean", (2, 2))
    assert mean.dtype == np.float32
    assert mean.tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [((2, 2), (2, 2), (0, 0)), ((3, 2), (1, 2), (1, 1))])
def test_max_gradient(kernel, stride, padding):
    x = rng.permutation(np.linspace(-3, 3, 2 * 2 * 5 * 6)).reshape(2, 2, 5, 6)
    dy = rng.standard_normal(ops.pool(x, "max", kernel, stride, padding).shape)
    gradient = ops.maxpool2d_backward(x, dy, kernel, stride, padding)
    assert_gradients(lambda x: ops.pool(x, "max", kernel, stride, padding), [x], [gradient], dy)


def test_max_gradient_goes_to_the_first_of_equals(both):
    x = np.array([[[[1.0, 2.0, 2.0], [2.0, 0.0, 1.0]]]])
    dy = np.array([[[[10.0, 20.0]]]])
    got = both(lambda x, dy: ops.maxpool2d_backward(x, dy, (2, 2), (1, 1)), x, dy)
    assert got.tolist() == [[[[0.0, 30.0, 0.0], [0.0, 0.0, 0.0]]]]
    nothing = ops.maxpool2d_backward(np.full((1, 1, 2, 2), -np.inf), np.ones((1, 1, 1, 1)), (2, 2))
    assert not nothing.any()


def test_errors_teach():
    x = np.ones((1, 2, 4, 4), np.float32)
    with pytest.raises(OpError, match=r"x must be .* with 1 spatial axes"):
        ops.pool(x, "max", (2,))
    with pytest.raises(ShapeError, match="a window of 5 does not fit into 4"):
        ops.pool(x, "max", (5, 5))
    with pytest.raises(OpError, match="needs integer or float operands"):
        ops.pool(x.astype(bool), "max", (2, 2))
    with pytest.raises(OpError, match=r"asks for dy f32\[1,2,2,2\], got f32\[1,2,4,4\]"):
        ops.maxpool2d_backward(x, x, (2, 2))
