"""Sliding windows against NumPy's sliding_window_view."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError

rng = np.random.default_rng(8)
X = rng.standard_normal((2, 7, 6))
ORACLES = {"sum": (np.sum, 0.0), "max": (np.max, -np.inf), "min": (np.min, np.inf), "prod": (np.prod, 1.0)}


def windows(x, window, stride, padding, dilation, fill):
    """[positions.., window..] of every window, by NumPy."""
    padded = np.pad(x, padding, constant_values=fill)
    spans = [(w - 1) * d + 1 for w, d in zip(window, dilation, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, spans)
    steps = tuple(slice(None, None, s) for s in stride) + tuple(slice(None, None, d) for d in dilation)
    return view[steps]


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation"),
    [
        ((1, 2, 2), (1, 2, 2), ((0, 0), (0, 0), (0, 0)), (1, 1, 1)),
        ((1, 3, 2), (1, 1, 1), ((0, 0), (1, 1), (0, 1)), (1, 1, 1)),
        ((2, 2, 3), (1, 3, 2), ((0, 0), (2, 0), (1, 3)), (1, 2, 2)),
        ((1, 7, 6), (1, 1, 1), ((0, 0), (0, 0), (0, 0)), (1, 1, 1)),
    ],
)
def test_reduce_window(both, kind, window, stride, padding, dilation):
    oracle, fill = ORACLES[kind]
    expected = oracle(windows(X, window, stride, padding, dilation, fill), axis=(-3, -2, -1))
    dims = [("B", 7, 6)] if window[0] == 1 else None
    result = both(lambda x: ops.reduce_window(x, kind, window, stride, padding, dilation), X, dims=dims)
    np.testing.assert_allclose(result, expected, rtol=1e-13)


def test_mean_counts_the_padding(both):
    x = np.array([[2.0, 4.0, 6.0]])
    result = both(lambda v: ops.reduce_window(v, "mean", (1, 2), padding=((0, 0), (1, 0))), x)
    np.testing.assert_array_equal(result, [[1.0, 3.0, 5.0]])
    assert ops.reduce_window(np.full((2,), 60000.0, np.float16), "mean", (2,)) == np.float16(60000.0)


def test_other_dtypes():
    assert np.asarray(ops.reduce_window(np.array([100, 100, 1], np.int8), "sum", (2,))).tolist() == [-56, 101]
    assert np.asarray(ops.reduce_window(np.array([1, 2, 3], np.int8), "max", (2,), padding=((2, 0),))).tolist() == [
        -128,
        1,
        2,
        3,
    ]
    bools = np.array([True, False, False, True])
    assert np.asarray(ops.reduce_window(bools, "any", (2,))).tolist() == [True, False, True]
    assert np.asarray(ops.reduce_window(bools, "all", (2,), padding=((1, 1),))).tolist() == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_nan_spreads_to_its_windows_only():
    x = np.array([1.0, np.nan, 2.0, 3.0])
    np.testing.assert_array_equal(ops.reduce_window(x, "max", (2,)), [np.nan, np.nan, 3.0])


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda: ops.reduce_window(X, "max", (2, 2)), "reduce_window_max: window, stride, low, high and dilation need"),
        (
            lambda: ops.ReduceWindow("sum", (2,), (1,), (0,), (0,), (1,))(X),
            "reduce_window_sum: the window has 1 axes, but x is f64[2,7,6]",
        ),
        (
            lambda: ops.reduce_window(X, "sum", (1, 9, 1)),
            "reduce_window_sum: a window that spans 9 does not fit into axis 1 of f64[2,7,6]",
        ),
        (
            lambda: ops.reduce_window(np.ones(3), "min", (0,)),
            "reduce_window_min: windows, strides and dilations are at",
        ),
        (
            lambda: ops.reduce_window(np.ones(3), "min", (1,), padding=((-1, 0),)),
            "reduce_window_min: padding cannot be negative",
        ),
        (lambda: ops.reduce_window(np.ones(3), "any", (1,)), "reduce_window_any: needs bool operands, got f64[3]"),
    ],
)
def test_errors(build, wanted):
    with pytest.raises(OpError) as error:
        build()
    assert str(error.value).startswith(wanted)
