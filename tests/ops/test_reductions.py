"""Reductions and softmax against NumPy and SciPy, for every axis, dtype and empty extent."""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph

rng = np.random.default_rng(5)
X = rng.standard_normal((2, 3, 4))
ORACLES = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
ALL_AXES = [axes for n in range(4) for axes in itertools.combinations(range(3), n)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [None, -1, *ALL_AXES])
@pytest.mark.parametrize("kind", ORACLES)
def test_reduce(both, kind, axes, keepdims):
    result = both(lambda x: ops.reduce(x, kind, axes, keepdims), X)
    np.testing.assert_allclose(result, ORACLES[kind](X, axis=axes, keepdims=keepdims), rtol=1e-14)


@pytest.mark.parametrize("kind", ORACLES)
def test_reduce_over_symbolic_axes(both, kind):
    result = both(lambda x: ops.reduce(x, kind, (0, 1)), X, dims=[("B", "S", 4)])
    np.testing.assert_allclose(result, ORACLES[kind](X, axis=(0, 1)), rtol=1e-14)


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_any_and_all(both, axis):
    x = np.array([[0.0, 2.0, np.nan], [0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(both(lambda v: ops.reduce_any(v, axis), x), np.any(x, axis=axis))
    np.testing.assert_array_equal(both(lambda v: ops.reduce_all(v, axis), x), np.all(x, axis=axis))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_integers_wrap_and_stay_exact(dtype):
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (3, 5), dtype, endpoint=True)
    columns = [[int(v) for v in column] for column in x.T]
    wrapped = [np.array(math.prod(c) % 2**64, np.uint64).astype(dtype) for c in columns]
    np.testing.assert_array_equal(ops.reduce_prod(x, 0), wrapped)
    np.testing.assert_array_equal(ops.reduce_sum(x, 0), x.sum(axis=0, dtype=dtype))
    assert np.asarray(ops.reduce_max(x, 0)).tolist() == [max(c) for c in columns]
    assert np.asarray(ops.reduce_min(x, 0)).tolist() == [min(c) for c in columns]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_sums_of_narrow_floats_are_rounded_once(dtype):
    x = (rng.standard_normal(500) * 100).astype(dtype)
    exact = sum(Fraction(float(v)) for v in x)
    assert ops.reduce_sum(x).dtype == dtype
    assert np.asarray(ops.reduce_sum(x)) == np.float64(exact).astype(dtype)
    assert np.asarray(ops.reduce_mean(x)) == np.float64(exact / 500).astype(dtype)


def test_a_mean_does_not_overflow_in_f16(traced):
    x = np.full(4, 60000.0, np.float16)
    assert traced(ops.mean, x) == np.float16(60000.0)
    assert ops.mean(x) == np.float16(60000.0)


def test_empty_extents(both):
    empty = np.empty((0, 2), np.float32)
    expected = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf, "mean": np.nan}
    for kind, value in expected.items():
        result = both(lambda x, k=kind: ops.reduce(x, k, 0), empty)
        np.testing.assert_array_equal(result, np.full(2, value, np.float32))
        assert ops.reduce(empty, kind, 1).shape == (0,)
    assert np.asarray(ops.reduce_max(empty.astype(np.int8), 0)).tolist() == [-128, -128]
    assert np.asarray(ops.reduce_min(empty.astype(np.uint16), 0)).tolist() == [65535, 65535]
    assert not np.asarray(ops.reduce_any(empty, 0)).any()
    assert np.asarray(ops.reduce_all(empty, 0)).all()


def test_nan_and_infinity():
    x = np.array([[1.0, np.nan], [np.inf, 2.0]])
    np.testing.assert_array_equal(ops.reduce_max(x, 0), [np.inf, np.nan])
    np.testing.assert_array_equal(ops.reduce_min(x, 0), [1.0, np.nan])
    np.testing.assert_array_equal(ops.reduce_sum(np.array([np.inf, -np.inf])), np.nan)


def test_bools_count(both):
    x = np.array([[True, False], [True, True]])
    result = both(lambda v: ops.reduce_sum(v, 0), x)
    assert result.dtype == np.int32
    assert result.tolist() == [2, 1]
    assert both(lambda v: ops.reduce_max(v, 1), x).tolist() == [True, True]
    assert both(lambda v: ops.reduce_min(v, 1), x).tolist() == [False, True]
    assert ops.mean(x).dtype == np.float32


def test_complex_sums(both):
    z = X + 1j * X[::-1]
    np.testing.assert_allclose(both(lambda v: ops.reduce_sum(v, (0, 2)), z), z.sum(axis=(0, 2)), rtol=1e-14)
    np.testing.assert_allclose(both(lambda v: ops.mean(v, 1), z), z.mean(axis=1), rtol=1e-14)
    np.testing.assert_allclose(both(lambda v: ops.reduce_prod(v, 1), z), z.prod(axis=1), rtol=1e-13)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_arg_reductions(both, name, axis, keepdims):
    for x in (X, rng.integers(0, 3, (3, 4)), np.array([[1.0, np.nan], [np.nan, 2.0]]), X > 0):
        result = both(lambda v: getattr(ops, name)(v, axis, keepdims), x)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, getattr(np, name)(x, axis=axis, keepdims=keepdims))


def test_arg_reduction_is_exact_for_u64():
    assert int(ops.argmax(np.array([2**64 - 2, 2**64 - 1], np.uint64))) == 1


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(both, axis):
    x = X * 50
    np.testing.assert_allclose(both(lambda v: ops.softmax(v, axis), x), special.softmax(x, axis), rtol=1e-13)
    np.testing.assert_allclose(both(lambda v: ops.log_softmax(v, axis), x), special.log_softmax(x, axis), rtol=1e-13)


def test_softmax_of_extremes():
    x = np.array([[1e308, -1e308], [-np.inf, 0.0], [-np.inf, -np.inf]])
    np.testing.assert_array_equal(ops.softmax(x), [[1.0, 0.0], [0.0, 1.0], [np.nan, np.nan]])
    assert ops.softmax(np.array([1, 2])).dtype == np.float64


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [None, 0, (0, 2)])
def test_logsumexp(both, axes, keepdims):
    x = X * 400
    result = both(lambda v: ops.logsumexp(v, axes, keepdims), x, dims=[("B", 3, "S")])
    np.testing.assert_allclose(result, special.logsumexp(x, axis=axes, keepdims=keepdims), rtol=1e-14)


def test_logsumexp_of_extremes():
    x = np.array([[-np.inf, -np.inf], [np.inf, 1.0], [np.nan, 1.0], [1000.0, 1000.0]])
    np.testing.assert_allclose(ops.logsumexp(x, 1), [-np.inf, np.inf, np.nan, 1000.0 + np.log(2)])
    assert float(ops.logsumexp(np.empty(0))) == -np.inf


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("axes", [None, 1, (0, 2)])
def test_variance_and_std(both, axes, correction):
    for x in (X + 1e4, X + 1j * X[::-1]):
        dims = [("B", 3, "S")]
        result = both(lambda v: ops.variance(v, axes, correction), x, dims=dims)
        np.testing.assert_allclose(result, np.var(x, axis=axes, ddof=correction), rtol=1e-11)
        result = both(lambda v: ops.std(v, axes, correction, keepdims=True), x, dims=dims)
        np.testing.assert_allclose(result, np.std(x, axis=axes, ddof=correction, keepdims=True), rtol=1e-11)
    half = (X * 100).astype(np.float16)
    assert ops.variance(half).dtype == np.float16
    np.testing.assert_allclose(ops.variance(half), np.var(half.astype(float)), rtol=1e-3)


@pytest.mark.parametrize(
    ("error", "build", "wanted"),
    [
        (ShapeError, lambda: ops.reduce_sum(X, 3), "reduce_sum: axis 3 is out of range for rank 3"),
        (ShapeError, lambda: ops.reduce_max(X, (0, -3)), "reduce_max: axes (0, -3) name one axis twice"),
        (OpError, lambda: ops.Reduce("mean", (0,))(np.ones(2, int)), "reduce_mean: needs float or complex operands"),
        (OpError, lambda: ops.Reduce("any", (0,))(np.ones(2)), "reduce_any: needs bool operands, got f64[2]"),
        (OpError, lambda: ops.reduce_max(X + 0j), "reduce_max: needs integer or float operands, got c128[2,3,4]"),
        (OpError, lambda: ops.argmax(np.empty((0, 2)), 0), "argmax: axis 0 of f64[0,2] is empty"),
        (OpError, lambda: ops.argmin(X + 0j, 0), "argmin: needs ordered operands"),
        (ShapeError, lambda: ops.softmax(X, 3), "softmax: axis 3 is out of range for rank 3"),
        (OpError, lambda: ops.softmax(X + 0j), "softmax: needs float operands, got c128[2,3,4]"),
    ],
)
def test_errors(error, build, wanted):
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value).startswith(wanted)


def test_the_seed_names():
    graph = Graph("seed")
    x = graph.input("x", ("B", 4))
    y = graph.append_node(ops.Reduce(ops.ReduceOp.Sum, axes=(1,), keep_dim=True), [x])
    assert y.shape == (*x.shape[:1], 1)
    assert y.node.op.mnemonic == "reduce_sum"
    assert [k.name for k in ops.ReduceOp] == ["Sum", "Mean", "Max", "Min", "Prod", "Any", "All"]
