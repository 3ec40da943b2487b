"""Sort, top-k and searchsorted against NumPy and Python's sorted."""

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(9)
X = rng.integers(0, 5, (3, 6, 4)).astype(np.float64)
SPECIAL = np.array([2.0, np.nan, -np.inf, 0.0, -0.0, np.inf, np.nan, -1.0, 2.0])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort_and_argsort_are_numpys_stable_ones(both, axis):
    np.testing.assert_array_equal(both(lambda x: ops.sort(x, axis=axis), X), np.sort(X, axis=axis))
    result = both(lambda x: ops.argsort(x, axis), X, dims=[("B", "S", 4)])
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, np.argsort(X, axis=axis, kind="stable"))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.float16, ml_dtypes.bfloat16, np.bool_])
def test_every_ordered_dtype(dtype):
    x = rng.integers(0, 100, 40).astype(dtype)
    np.testing.assert_array_equal(ops.argsort(x), np.argsort(x.astype(np.float64), kind="stable"))
    if np.dtype(dtype).itemsize == 8:
        limits = np.array([np.iinfo(dtype).max, np.iinfo(dtype).max - 1, np.iinfo(dtype).min], dtype)
        assert np.asarray(ops.argsort(limits)).tolist() == [2, 1, 0]


def test_nan_comes_last_both_ways(both):
    ascending = both(ops.argsort, SPECIAL)
    np.testing.assert_array_equal(ascending, np.argsort(SPECIAL, kind="stable"))
    descending = both(lambda x: ops.argsort(x, descending=True), SPECIAL)
    numbers = [i for i in range(len(SPECIAL)) if SPECIAL[i] == SPECIAL[i]]
    expected = [*sorted(numbers, key=lambda i: -SPECIAL[i]), 1, 6]
    assert descending.tolist() == expected


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("num_keys", [1, 2, 3])
def test_several_keys(both, num_keys, descending):
    """Python sorts tuples by the same rule; it is stable, and `reverse` keeps the order of equals too."""
    a, b, c = rng.integers(0, 3, (3, 30)).astype(np.int32)
    payload = np.arange(30, dtype=np.int32)
    results = both(lambda *v: ops.sort(*v, num_keys=num_keys, descending=descending), a, b, c, payload)
    rows = list(zip(a.tolist(), b.tolist(), c.tolist(), payload.tolist(), strict=True))
    expected = sorted(rows, key=lambda row: row[:num_keys], reverse=descending)
    assert list(zip(*(r.tolist() for r in results), strict=True)) == expected


def test_values_of_any_dtype_follow_the_key():
    z, flags = np.array([1j, 2j, 3j]), np.array([True, False, True])
    keys, numbers, bools = ops.sort(np.array([3, 1, 2]), z, flags)
    assert np.asarray(keys).tolist() == [1, 2, 3]
    assert np.asarray(numbers).tolist() == [2j, 3j, 1j]
    assert np.asarray(bools).tolist() == [False, True, True]


@pytest.mark.parametrize("k", [0, 1, 3, 6])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_top_k(both, k, axis):
    x = np.moveaxis(X, 1, axis)
    values, ids = both(lambda v: ops.top_k(v, k, axis), x)
    order = np.take(np.argsort(-x, axis=axis, kind="stable"), range(k), axis=axis)
    np.testing.assert_array_equal(ids, order)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))
    if axis == -1:
        np.testing.assert_array_equal(both(lambda v: ops.topk(v, k), x), order)


def test_top_k_takes_the_first_of_equals_and_nan_last():
    values, ids = ops.top_k(np.array([3.0, 7.0, np.nan, 7.0, 7.0]), 5)
    assert np.asarray(ids).tolist() == [1, 3, 4, 0, 2]
    np.testing.assert_array_equal(values, [7.0, 7.0, 7.0, 3.0, np.nan])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.uint64])
def test_searchsorted(both, right, dtype):
    sequence = np.sort(rng.integers(0, 10, 8)).astype(dtype)
    values = rng.integers(0, 12, (3, 4)).astype(dtype)
    result = both(lambda s, v: ops.searchsorted(s, v, right), sequence, values, dims=[("N",), ("B", 4)])
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, np.searchsorted(sequence, values, "right" if right else "left"))


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_with_nan_and_in_batches(both, right):
    side = "right" if right else "left"
    sequence = np.sort(SPECIAL)
    np.testing.assert_array_equal(ops.searchsorted(sequence, SPECIAL, right), np.searchsorted(sequence, SPECIAL, side))
    rows, values = np.sort(rng.standard_normal((2, 3, 5)), axis=-1), rng.standard_normal((2, 3, 4))
    result = both(lambda s, v: ops.searchsorted(s, v, right), rows, values)
    for i in np.ndindex(2, 3):
        np.testing.assert_array_equal(result[i], np.searchsorted(rows[i], values[i], side))


@pytest.mark.parametrize(
    ("error", "build", "wanted"),
    [
        (OpError, lambda: ops.sort(np.ones(3), np.ones(4)), "sort: operands need the same dims, got f64[3] and f64[4]"),
        (OpError, lambda: ops.sort(np.ones(3), num_keys=2), "sort: num_keys must be 1 to 1"),
        (OpError, lambda: ops.sort(np.ones(3, "c8")), "sort: needs ordered operands, got c64[3]"),
        (ShapeError, lambda: ops.sort(np.ones(3), axis=1), "sort: axis 1 is out of range for rank 1"),
        (OpError, lambda: ops.topk(np.ones((2, 3)), 4), "topk: k=4 is more than the 3 elements along the last axis"),
        (OpError, lambda: ops.top_k(np.ones(3), -1), "top_k: k cannot be negative, got -1"),
        (OpError, lambda: ops.topk(np.float32(1), 1), "topk: needs an operand of rank 1 or more, got f32[]"),
        (
            OpError,
            lambda: ops.searchsorted(np.ones((2, 3)), np.ones(4)),
            "searchsorted: needs a sequence [n], or [.., n] with values [.., m]; got f64[2,3] and f64[4]",
        ),
    ],
)
def test_errors(error, build, wanted):
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value).startswith(wanted)
