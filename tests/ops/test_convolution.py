"""Convolutions against SciPy's correlation, and their adjoints by the identities that define them."""

import numpy as np
import pytest
from directional import assert_gradients
from scipy import signal

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph

rng = np.random.default_rng(9)


def normal(*dims):
    return rng.standard_normal(dims)


def dilated(w, dilation):
    """The kernel with dilation - 1 zeros between its taps."""
    dims = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    spread = np.zeros((*w.shape[:2], *dims))
    spread[(slice(None), slice(None), *(slice(None, None, d) for d in dilation))] = w
    return spread


def scipy_conv(x, w, stride, padding, dilation, groups):
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    w = dilated(w, dilation)
    per_group_in, per_group_out = w.shape[1], w.shape[0] // groups
    channels = []
    for o in range(w.shape[0]):
        first = o // per_group_out * per_group_in
        read = x[:, first : first + per_group_in]
        channels.append([sum(signal.correlate(c, k, "valid") for c, k in zip(sample, w[o])) for sample in read])
    y = np.moveaxis(np.array(channels), 0, 1)
    return y[(slice(None), slice(None), *(slice(None, None, s) for s in stride))]


CASES = [
    # x, w, stride, padding, dilation, groups
    ((2, 3, 7), (4, 3, 3), (1,), (0,), (1,), 1),
    ((1, 4, 9), (6, 2, 3), (2,), (2,), (2,), 2),
    ((2, 3, 6, 5), (4, 3, 3, 2), (1, 1), (0, 0), (1, 1), 1),
    ((2, 4, 6, 7), (4, 2, 3, 2), (2, 3), (1, 2), (1, 2), 2),
    ((1, 3, 5, 5), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), (1, 2, 1), (1, 0, 1), (2, 1, 1), 1),
]


@pytest.mark.parametrize(("x_dims", "w_dims", "stride", "padding", "dilation", "groups"), CASES)
def test_conv_is_correlation(both, x_dims, w_dims, stride, padding, dilation, groups):
    x, w = normal(*x_dims), normal(*w_dims)
    symbolic = [("N", x_dims[1], *("ABC"[: len(stride)])), None]
    got = both(lambda *xs: ops.conv(*xs, stride, padding, dilation, groups), x, w, dims=symbolic)
    np.testing.assert_allclose(got, scipy_conv(x, w, stride, padding, dilation, groups), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("x_dims", "w_dims", "stride", "padding", "dilation", "groups"), CASES)
def test_gradients_are_adjoint(x_dims, w_dims, stride, padding, dilation, groups):
    x, w = normal(*x_dims), normal(*w_dims)
    settings = (stride, padding, dilation, groups)
    y = ops.conv(x, w, *settings)
    dy = normal(*y.shape)
    dx = ops.conv2d_backward_input(dy, w, x.shape, *settings)
    dw = ops.conv2d_backward_weight(x, dy, w.shape[2:], *settings)
    assert_gradients(lambda x, w: ops.conv(x, w, *settings), [x, w], [dx, dw], dy)
    # conv is bilinear: each gradient gives back <dy, conv(x, w)> when it meets its own operand.
    for gradient, operand in ((dx, x), (dw, w)):
        np.testing.assert_allclose(np.sum(gradient * operand), np.sum(dy * y), rtol=1e-11)


@pytest.mark.parametrize(("x_dims", "w_dims", "stride", "padding", "dilation", "groups"), CASES)
def test_transposed_conv_is_the_adjoint(both, x_dims, w_dims, stride, padding, dilation, groups):
    x, w = normal(*x_dims), normal(*w_dims)
    y = ops.conv(x, w, stride, padding, dilation, groups)
    dy = normal(*y.shape)
    reach = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilation)]
    shortest = [(n - 1) * s + r - 2 * p for n, s, r, p in zip(y.shape[2:], stride, reach, padding)]
    extra = tuple(size - least for size, least in zip(x.shape[2:], shortest))
    got = both(lambda *xs: ops.conv_transpose(*xs, stride, padding, dilation, extra, groups), dy, w)
    assert got.shape == x.shape
    np.testing.assert_allclose(np.sum(got * x), np.sum(dy * y), rtol=1e-11)


def test_transposed_conv_is_full_convolution():
    x, w = normal(1, 1, 4, 3), normal(1, 1, 2, 3)
    np.testing.assert_allclose(ops.conv_transpose(x, w)[0, 0], signal.convolve(x[0, 0], w[0, 0], "full"), atol=1e-12)


def test_im2col_rows_times_the_kernel_are_the_convolution(both):
    x, w = normal(2, 3, 5, 6), normal(4, 3, 2, 3)
    settings = ((2, 1), (1, 0), (1, 2))
    rows = both(lambda x: ops.im2col(x, (2, 3), *settings), x, dims=[("N", 3, 5, "W")])
    y = ops.conv(x, w, *settings)
    product = (rows @ w.reshape(4, -1).T).reshape(2, *y.shape[2:], 4)
    np.testing.assert_allclose(np.moveaxis(product, -1, 1), y, atol=1e-12)


def test_padding_by_name_and_by_side():
    x, w = normal(1, 2, 7), normal(3, 2, 4)
    same = ops.conv(x, w, 2, "same")
    assert same.shape == (1, 3, 4)
    by_hand = np.pad(x, [(0, 0), (0, 0), (1, 2)])
    np.testing.assert_array_equal(same, ops.conv(by_hand, w, 2))
    np.testing.assert_array_equal(ops.conv(x, w, 2, [(1, 2)]), same)
    np.testing.assert_array_equal(ops.conv(x, w, 1, "valid"), ops.conv(x, w))
    graph = Graph()
    symbolic = graph.input("x", (1, 2, "L"), "f64")
    assert str(ops.conv(symbolic, w, 1, "same").type) == "f64[1,3,L]"
    assert ops.conv(symbolic, w, 3, "same").type.bind({"L": 7}).dims == (1, 3, 3)


@pytest.mark.parametrize("sides", [(0, 0), (2, 1), (1, 2), (3, 3), "same"])
@pytest.mark.parametrize(("kernel", "dilation", "groups"), [(1, 1, 1), (3, 1, 2), (4, 1, 1), (2, 3, 1)])
def test_lhs_dilation_puts_zeros_between_elements(sides, kernel, dilation, groups):
    """As the adjoint of a strided convolution, which sums in another order, or by writing the zeros."""
    x, w = rng.normal(size=(2, 4, 5)), rng.normal(size=(6, 4 // groups, kernel))
    padding = sides if sides == "same" else [sides]
    apart = np.zeros((2, 4, 13))
    apart[:, :, ::3] = x
    found = ops.conv(x, w, padding=padding, dilation=dilation, groups=groups, lhs_dilation=3)
    np.testing.assert_allclose(found, ops.conv(apart, w, padding=padding, dilation=dilation, groups=groups), atol=1e-12)


def test_integers_wrap_or_widen():
    x, w = np.full((1, 1, 4), 100, np.int8), np.full((1, 1, 3), 2, np.int8)
    assert ops.conv(x, w).tolist() == [[[88, 88]]]
    wide = ops.conv(x, w, out_dtype="i32")
    assert wide.dtype == np.int32
    assert wide.tolist() == [[[600, 600]]]


def test_resize_repeats_pixels(both):
    x = normal(2, 3, 2, 4)
    got = both(ops.resize_nearest_2x, x, dims=[("N", 3, "H", 4)])
    np.testing.assert_array_equal(got, np.kron(x, np.ones((1, 1, 2, 2))))


def test_errors_teach():
    x, w = np.ones((1, 4, 5, 5), np.float32), np.ones((2, 4, 3, 3), np.float32)
    with pytest.raises(ShapeError, match=r"conv: x has 4 channels, w expects 4\*2"):
        ops.conv(x, w, groups=2)
    with pytest.raises(ShapeError, match="a window of 9 does not fit into 5"):
        ops.conv(x, w, dilation=4)
    with pytest.raises(OpError, match=r"kernel_size=\(2, 2\) does not fit the weight f32\[2,4,3,3\]"):
        ops.Conv((2, 2), (1, 1), (0, 0), (1, 1))(x, w)
    with pytest.raises(OpError, match="one entry per spatial axis"):
        ops.Conv((2, 2), (1,), (0, 0), (1, 1))
    with pytest.raises(OpError, match="stride and dilation must be positive"):
        ops.conv(x, w, stride=0)
    with pytest.raises(OpError, match="precision must be one of"):
        ops.conv(x, w, precision="fast")
    with pytest.raises(OpError, match="padding must be numbers, 'same' or 'valid'"):
        ops.conv(x, w, padding="full")
    with pytest.raises(OpError, match="output_padding needs one entry >= 0"):
        ops.conv_transpose(x, np.ones((4, 2, 3, 3), np.float32), output_padding=(-1, 0))
    with pytest.raises(OpError, match=r"ask for dy f32\[1,2,3,3\], got f32\[1,2,4,3\]"):
        ops.conv2d_backward_input(np.ones((1, 2, 4, 3), np.float32), w, (1, 4, 5, 5))
    with pytest.raises(OpError, match=r"x f32\[1,4,5,5\] asks for dy f32\[1,2,3,3\]"):
        ops.conv2d_backward_weight(x, np.ones((1, 2, 4, 3), np.float32), (3, 3))
    with pytest.raises(OpError, match=r"needs x \[N, C, H, W\]"):
        ops.resize_nearest_2x(np.ones((2, 2), np.float32))
