"""Integer quantisation against exact decimal rounding, plain integer sums and scipy's correlation."""

from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ops.define.rounding import half_away_array, round_half_away

rng = np.random.default_rng(3)


def half_up(value):
    """Half away from zero, by exact decimal arithmetic."""
    return int(Decimal(float(value)).quantize(Decimal(1), ROUND_HALF_UP))


def codes(*shape):
    return rng.integers(-128, 128, shape, dtype=np.int8)


TRICKY = [0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.49999997, 0.50000006, 8388607.5, 8388609.0, -0.0, 3.7, 1e9]


def test_round_half_away_is_exact():
    x = np.array(TRICKY, np.float32)
    expected = [half_up(v) for v in x]
    np.testing.assert_array_equal(half_away_array(x), expected)
    np.testing.assert_array_equal(np.asarray(round_half_away(x)), expected)


@settings(max_examples=200)
@given(st.floats(-1e6, 1e6, width=32))
def test_round_half_away_of_any_float(value):
    assert half_away_array(np.array([value], np.float32))[0] == half_up(value)


def test_quantize_rounds_half_away_and_saturates(both):
    # Steps that are powers of two make x / scale exact, so the oracle needs no float arithmetic.
    x = np.array([*np.arange(-6, 6, 0.125), 1000.0, -1000.0], np.float32)
    for scale, zero in ((0.25, 0), (0.5, 3), (2.0, -100)):
        expected = [min(max(half_up(v / scale) + zero, -128), 127) for v in x]
        np.testing.assert_array_equal(both(lambda a, s=scale, z=zero: ops.quantize(a, s, z), x), expected)


def test_quantize_other_types_and_nan():
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    np.testing.assert_array_equal(ops.quantize(x, 0.5), np.array([0, 127, -128, 2], np.int8))
    result = np.asarray(ops.quantize(x, 0.5, 128, dtype="u8"))
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, [0, 255, 0, 130])


def test_quantize_per_channel_matches_each_channel(both):
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    scales, zeros = [0.1, 0.02, 0.5], [0, 5, -7]
    result = np.asarray(both(lambda a: ops.quantize_per_channel(a, 1, scales, zeros), x))
    back = np.asarray(both(lambda q: ops.dequantize_per_channel(q, -2, scales, zeros), result))
    for c in range(3):
        np.testing.assert_array_equal(result[:, c], ops.quantize(x[:, c], scales[c], zeros[c]))
        exact = (result[:, c].astype(np.float64) - zeros[c]) * scales[c]
        np.testing.assert_allclose(back[:, c], exact, rtol=1e-6)


@settings(max_examples=100)
@given(st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=8), st.sampled_from([0.1, 0.25, 0.3]))
def test_dequantize_undoes_quantize_up_to_half_a_step(values, scale):
    x = np.array(values, np.float32)
    back = np.asarray(ops.dequantize(ops.quantize(x, scale), scale))
    np.testing.assert_array_less(np.abs(back - x), scale * 0.5 + 1e-5)


@pytest.mark.parametrize("dims", [((3, 5), (5, 4)), ((2, 1, 3, 5), (2, 5, 4)), ((2, 3, 5), (5, 4))])
def test_q_matmul(both, dims):
    x, w, bias = codes(*dims[0]), codes(*dims[1]), rng.integers(-9999, 9999, 4, dtype=np.int32)
    result = np.asarray(both(lambda x, w, b: ops.q_matmul(x, w, b, 3, -2, 5, 1 / 512), x, w, bias))
    total = np.matmul(x.astype(object) - 3, w.astype(object) + 2) + bias
    expected = [min(max(half_up(Decimal(int(t)) / 512) + 5, -128), 127) for t in total.ravel()]
    np.testing.assert_array_equal(result.ravel(), expected)


def test_q_matmul_sum_wraps_in_i32():
    one = np.ones((1, 1), np.int8)
    bias = np.array([2**31 - 1], np.int32)
    np.testing.assert_array_equal(ops.q_matmul(one, one, bias, mult=2.0**-26), [[-32]])


def test_q_conv2d_against_scipy(both):
    x, w = codes(1, 2, 7, 6), codes(3, 2, 3, 2)
    settings = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "x_zp": 4, "w_zp": -1, "mult": 1 / 256}
    result = np.asarray(both(lambda x, w: ops.q_conv2d(x, w, **settings), x, w))
    padded = np.pad(x.astype(np.int64) - 4, ((0, 0), (0, 0), (1, 1), (2, 2)))
    dilated = np.zeros((3, 2, 3, 3), np.int64)
    dilated[..., ::2] = w.astype(np.int64) + 1
    for o in range(3):
        total = sum(signal.correlate2d(padded[0, c], dilated[o, c], mode="valid") for c in range(2))[::2]
        expected = [min(max(half_up(Decimal(int(t)) / 256), -128), 127) for t in total.ravel()]
        np.testing.assert_array_equal(result[0, o].ravel(), expected)


def test_q_conv2d_groups_are_separate_convolutions():
    x, w, bias = codes(2, 4, 5, 5), codes(6, 2, 3, 3), rng.integers(-99, 99, 6, dtype=np.int32)
    whole = np.asarray(ops.q_conv2d(x, w, bias, padding=(1, 1), groups=2, mult=0.001))
    for g in range(2):
        channels = slice(3 * g, 3 * g + 3)
        part = ops.q_conv2d(x[:, 2 * g : 2 * g + 2], w[channels], bias[channels], padding=(1, 1), mult=0.001)
        np.testing.assert_array_equal(whole[:, channels], part)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.Quantize(None, (0.0,)), "scales must be positive"),
        (lambda: ops.Quantize(None, ()), "scales must be positive"),
        (lambda: ops.Quantize(None, (0.1, 0.2)), "need an axis"),
        (lambda: ops.Quantize(None, (0.1,), (300,)), r"zero points must lie in \[-128, 127\]"),
        (lambda: ops.Quantize(None, (0.1,), (0,), "f32"), "dtype must be one of i8, u8, i16, u16"),
        (lambda: ops.Dequantize(None, (0.1,), (0,), "i8"), "dtype must be a float type"),
        (lambda: ops.quantize(np.zeros((2, 3), np.float32), [0.1, 0.2], axis=1), "2 scales do not fit axis 1"),
        (lambda: ops.quantize(np.zeros((2, 3), np.float32), [0.1] * 3, [0, 0], 1), "2 zero points do not fit"),
        (lambda: ops.quantize(np.zeros(3, np.int32), 0.1), "needs float operands"),
        (lambda: ops.dequantize(np.zeros(3, np.float32), 0.1), "8- or 16-bit integer or i32"),
        (lambda: ops.q_matmul(codes(2, 3), codes(4, 5)), "inner sizes differ"),
        (lambda: ops.q_matmul(codes(2, 3), codes(3, 5), np.zeros(4, np.int32)), r"bias i32\[5\]"),
        (lambda: ops.q_matmul(codes(2, 3), np.zeros((3, 5), np.int32)), "i8 or u8"),
        (lambda: ops.q_conv2d(codes(1, 2, 4, 4), codes(3, 3, 2, 2)), "channels"),
        (lambda: ops.QConv2d((2, 2), (0, 1), (0, 0), (1, 1)), "positive"),
    ],
)
def test_errors(build, message):
    with pytest.raises((OpError, ShapeError), match=message):
        build()


def test_symbolic_channels_become_a_constraint():
    graph = Graph()
    x = graph.input("x", ("B", "C"), "f32")
    assert ops.quantize(x, [0.1, 0.2], axis=1).type == x.type.with_dtype("i8")
    assert [str(c.left) for c in graph.constraints] == ["C"]
