"""Running reductions against NumPy, and associative_scan against a plain loop."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(6)
X = rng.standard_normal((3, 4, 2))
ORACLES = {
    "cumsum": (np.cumsum, 0.0),
    "cumprod": (np.cumprod, 1.0),
    "cummax": (np.maximum.accumulate, -np.inf),
    "cummin": (np.minimum.accumulate, np.inf),
    "logcumsumexp": (np.logaddexp.accumulate, -np.inf),
}


def expected_of(name, x, axis, exclusive, reverse):
    oracle, identity = ORACLES[name]
    x = np.flip(x, axis) if reverse else x
    y = oracle(x, axis=axis)
    if exclusive:
        first = np.full_like(np.take(y, [0], axis), identity)
        y = np.concatenate([first, np.delete(y, -1, axis)], axis)
    return np.flip(y, axis) if reverse else y


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ORACLES)
def test_running_reductions(both, name, axis, exclusive, reverse):
    result = both(lambda x: getattr(ops, name)(x, axis, exclusive, reverse), X, dims=[("B", "S", 2)])
    np.testing.assert_allclose(result, expected_of(name, X, axis, exclusive, reverse), rtol=1e-13)


@pytest.mark.parametrize("exclusive", [False, True])
def test_cumsum_backward_is_the_transpose(exclusive):
    x, dy = rng.standard_normal(6), rng.standard_normal(6)
    left = np.dot(dy, ops.cumsum(x, 0, exclusive))
    right = np.dot(x, ops.cumsum_backward(dy, 0, exclusive))
    assert left == pytest.approx(right, rel=1e-12)


def test_integers():
    x = np.array([100, 100, -3, 7], np.int8)
    np.testing.assert_array_equal(ops.cumsum(x), np.cumsum(x, dtype=np.int8))
    np.testing.assert_array_equal(ops.cumprod(x), np.cumprod(x, dtype=np.int8))
    assert np.asarray(ops.cummax(x, exclusive=True)).tolist() == [-128, 100, 100, 100]
    assert np.asarray(ops.cummin(x, exclusive=True, reverse=True)).tolist() == [-3, -3, 7, 127]
    big = np.array([2**63, 2**62, 5], np.uint64)
    assert np.asarray(ops.cumsum(big)).tolist() == [2**63, 2**63 + 2**62, 2**63 + 2**62 + 5]
    bools = ops.cumsum(np.array([True, False, True]))
    assert bools.dtype == np.int32
    assert np.asarray(bools).tolist() == [1, 1, 2]


def test_half_precision_sums_do_not_stall():
    x = np.ones(3000, np.float16)
    np.testing.assert_array_equal(ops.cumsum(x), np.arange(1, 3001).astype(np.float16))


def test_nan_stays_and_infinity_is_an_identity():
    x = np.array([1.0, np.nan, 3.0])
    np.testing.assert_array_equal(ops.cummax(x), [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(ops.logcumsumexp(np.array([-np.inf, 2.0, np.inf])), [-np.inf, 2.0, np.inf])
    np.testing.assert_array_equal(ops.logcumsumexp(np.array([1000.0, 1000.0])), [1000.0, 1000.0 + np.log(2)])


def scanned(combine, x, axis):
    rows = [np.take(x, i, axis) for i in range(x.shape[axis])]
    for i in range(1, len(rows)):
        rows[i] = combine(rows[i - 1], rows[i])
    return np.stack(rows, axis)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 13])
@pytest.mark.parametrize("axis", [0, 1])
def test_associative_scan(both, size, axis):
    x = rng.standard_normal((size, 3) if axis == 0 else (2, size, 3))
    result = both(lambda v: ops.associative_scan(lambda a, b: a * b, v, axis=axis), x)
    np.testing.assert_allclose(result, np.cumprod(x, axis=axis), rtol=1e-12)


def test_associative_scan_of_a_linear_recurrence(both):
    """h[t] = a[t]·h[t-1] + b[t], which is not commutative, so the order of the operands shows."""
    a, b = rng.standard_normal((2, 11, 3))

    def combine(left, right):
        (a1, b1), (a2, b2) = left, right
        return a1 * a2, a2 * b1 + b2

    _, h = both(lambda *ab: ops.associative_scan(combine, ab), a, b)
    expected, state = [], np.zeros(3)
    for t in range(11):
        state = a[t] * state + b[t]
        expected.append(state)
    np.testing.assert_allclose(h, expected, rtol=1e-12)
    _, backward = both(lambda *ab: ops.associative_scan(combine, ab, reverse=True), a, b)
    _, flipped = ops.associative_scan(combine, (a[::-1], b[::-1]))
    np.testing.assert_allclose(backward, flipped[::-1], rtol=1e-12)


def test_associative_scan_has_logarithmic_depth():
    calls = []

    def combine(a, b):
        calls.append(a.shape[0])
        return a + b

    ops.associative_scan(combine, np.arange(1024))
    assert len(calls) <= 2 * 10
    assert sum(calls) <= 2 * 1024


def test_associative_scan_with_symbolic_other_axes(both):
    x = rng.standard_normal((5, 3))
    result = both(lambda v: ops.associative_scan(ops.maximum, v), x, dims=[(5, "S")])
    np.testing.assert_array_equal(result, np.maximum.accumulate(x))


@pytest.mark.parametrize(
    ("error", "build", "wanted"),
    [
        (ShapeError, lambda: ops.cumsum(X, 3), "cumsum: axis 3 is out of range for rank 3"),
        (OpError, lambda: ops.Cumsum(0)(np.ones(2, bool)), "cumsum: needs numeric operands, got bool[2]"),
        (OpError, lambda: ops.cummax(X + 0j), "cumulative_max: needs integer or float operands, got c128[3,4,2]"),
        (OpError, lambda: ops.logcumsumexp(X + 0j), "cumulative_logsumexp: needs float operands"),
        (
            OpError,
            lambda: ops.associative_scan(ops.add, (np.ones(2), np.ones(3))),
            "associative_scan: all elements need one fixed size along axis 0",
        ),
    ],
)
def test_errors(error, build, wanted):
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value).startswith(wanted)
