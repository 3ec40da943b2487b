"""x[key] and x.at[key] against NumPy indexing, with keys chosen by hand and by hypothesis."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from rlx import ops
from rlx.errors import OpError
from rlx.ir.graph import Graph
from rlx.ops.shape.subscript import AtIndexer

rng = np.random.default_rng(10)
X = rng.standard_normal((3, 4, 5))
MASK = np.array([[1, 0, 0, 1], [0, 0, 1, 0], [1, 1, 0, 0]], bool)
ROW = np.array([True, False, True, True, False])

KEYS = [
    0, -1, np.int64(2), np.array(1), None, ..., (), (0, 1), (0, ..., -1), (None, 0, ...), (..., None),
    slice(1, None), slice(None, None, -1), slice(-1, None, -2), slice(5, 0, -2), slice(3, 1), slice(10, 20),
    slice(0, 0, -1), (slice(1, 3), slice(None, None, 2)), (slice(None), slice(None), slice(4, None, -3)),
    [0, 2], [], ([],), (slice(None), [0, 2]), ([0, 2], slice(None), [1, 3]), (0, slice(None), [1, 3]),
    ([[0], [2]], [1, 3]), (slice(None), 0, [1, 2]), (0, [1, 2]), ([0, 0, 0],), ([-1, -3], [3, 0], [0, -5]),
    (None, [0, 1], None, [1, 2]), (slice(None), None, [1, 2], [0, 1]),
    (slice(None, None, 2), [1, 1], slice(None, None, -2)),
    MASK, (MASK, 0), (MASK, slice(None, None, -1)), (0, MASK[0]), (..., ROW), (slice(None), slice(None), ROW),
    (MASK[:, 0], slice(None), [0]), True, False, np.True_, (True, [0, 1]),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_reading(both, key):
    np.testing.assert_array_equal(both(lambda x: ops.index(x, key), X), X[key])


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_writing(both, key):
    value = rng.standard_normal(X[key].shape[-2:])
    expected = X.copy()
    expected[key] = value
    np.testing.assert_array_equal(both(lambda x, v: AtIndexer(x)[key].set(v), X, value), expected)
    expected = X.copy()
    np.add.at(expected, key, value)
    np.testing.assert_allclose(both(lambda x, v: AtIndexer(x)[key].add(v), X, value), expected, rtol=1e-13)


UFUNCS = {"multiply": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("name", UFUNCS)
@pytest.mark.parametrize("key", [0, slice(None, None, 2), [0, 2, 0], (slice(None), [1, -1])], ids=str)
def test_other_updates(both, name, key):
    value = rng.standard_normal(X[key].shape)
    expected = X.copy()
    UFUNCS[name].at(expected, key, value)
    result = both(lambda x, v: getattr(AtIndexer(x)[key], name)(v), X, value)
    np.testing.assert_allclose(result, expected, rtol=1e-13)


SYMBOLIC_KEYS = [
    0, -1, slice(None, 2), slice(1, -1), slice(-2, None), slice(None, None, -1), slice(None, None, 2), slice(-1, 0, -2),
    slice(1, 9), (..., 0), (slice(None), slice(1, None, 2)), [0, 2], (slice(None), [1, 1]),
    ([0, 2], slice(None), [1, 3]),
]  # fmt: skip


@pytest.mark.parametrize("key", SYMBOLIC_KEYS, ids=str)
def test_symbolic_sizes(both, key):
    symbolic = [("A", "B", "C")]
    np.testing.assert_array_equal(both(lambda x: ops.index(x, key), X, dims=symbolic), X[key])
    expected = X.copy()
    expected[key] = 2.0
    result = both(lambda x: AtIndexer(x)[key].set(2.0), X, dims=symbolic)
    np.testing.assert_array_equal(result, expected)


def test_ids_that_are_tensors(both):
    i, j = np.array([[0], [2]]), np.array([1, -1])
    np.testing.assert_array_equal(both(lambda x, i: ops.index(x, i), X, i), X[i])
    np.testing.assert_array_equal(both(lambda x, i, j: ops.index(x, (i, slice(None), j)), X, i, j), X[i, :, j])
    scalar = np.array(-2, np.int32)
    np.testing.assert_array_equal(both(lambda x, i: ops.index(x, (slice(None), i)), X, scalar), X[:, -2])
    np.testing.assert_array_equal(both(lambda x, i: ops.index(x, (i, 1, i)), X, scalar), X[-2, 1, -2])


def test_ids_out_of_range():
    ids = np.array([2, 3, -4])
    np.testing.assert_array_equal(ops.index(X, ids, mode="clip"), X[[2, 2, 0]])
    filled = AtIndexer(X)[ids, 1].get(fill_value=np.nan)
    np.testing.assert_array_equal(filled[0], X[2, 1])
    assert np.isnan(filled[1:]).all()
    expected = X.copy()
    expected[2] = 7.0
    np.testing.assert_array_equal(AtIndexer(X)[ids].set(7.0, mode="drop"), expected)
    np.testing.assert_array_equal(AtIndexer(X)[ids].set(7.0, mode="fill"), expected)
    expected[0] = 7.0
    np.testing.assert_array_equal(AtIndexer(X)[ids].set(7.0, mode="clip"), expected)


def test_a_computed_mask_needs_a_bound(traced):
    with pytest.raises(OpError, match="size=n"):
        traced(lambda x, m: ops.index(x, m), X, MASK)
    result = traced(lambda x, m: ops.index(x, m, size=7), X, MASK)
    np.testing.assert_array_equal(result, np.concatenate([X[MASK], np.zeros((2, 5))]))


def test_writing_through_a_computed_mask(traced):
    for value in (3.0, np.arange(5.0)):
        expected = X.copy()
        expected[MASK] = value
        result = traced(lambda x, m, v=value: AtIndexer(x)[m].set(v), X, MASK)
        np.testing.assert_array_equal(result, expected)
    expected = X.copy()
    expected[MASK] += 1.0
    np.testing.assert_array_equal(traced(lambda x, m: AtIndexer(x)[m].add(1.0), X, MASK), expected)
    with pytest.raises(OpError, match="one value for all"):
        traced(lambda x, m: AtIndexer(x)[m].set(np.ones((5, 5))), X, MASK)


def test_values_take_the_dtype_of_the_tensor():
    x = np.zeros(3, np.float32)
    assert AtIndexer(x)[0].set(1.0).dtype == np.float32
    assert AtIndexer(x)[np.array([0])].add(np.float64(2)).dtype == np.float32


def test_a_plain_row_update_is_a_dynamic_update_slice():
    graph = Graph()
    x = graph.input("x", (4, 3), "f32")
    AtIndexer(x)[1].set(0.0)
    assert "dynamic_update_slice" in [n.op.mnemonic for n in graph.nodes]
    assert "scatter_nd" not in [n.op.mnemonic for n in graph.nodes]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (3, "index 3 is out of range for axis 0 of size 3"),
        ((0, -5), "index -5 is out of range for axis 1 of size 4"),
        ((0, 0, 0, 0), "too many indices: 4"),
        ((..., 0, ...), "one ellipsis"),
        ([0.5], "must be integers"),
        ("rows", "must be integers, .* got 'rows'"),
        ((0, None, {}), "must be integers, .* got {}"),
        (slice(None, None, 0), "step of a slice cannot be 0"),
        ([0, 3], "index 3 is out of range"),
        ([2**32], "index 4294967296 is out of range"),
        (MASK[:2], "does not fit"),
    ],
)
def test_errors_name_the_problem(key, message):
    with pytest.raises(OpError, match=message):
        ops.index(X, key)


def test_slices_bounded_by_tensors_are_explained():
    graph = Graph()
    x, n = graph.input("x", (4,), "f32"), graph.input("n", (), "i32")
    with pytest.raises(OpError, match="dynamic_slice"):
        ops.index(x, slice(0, n))


@settings(max_examples=150)
@given(st.data())
def test_any_basic_key(data):
    dims = data.draw(arrays_of.array_shapes(max_dims=3, max_side=4))
    x = np.arange(np.prod(dims)).reshape(dims)
    key = data.draw(arrays_of.basic_indices(dims, allow_newaxis=True))
    np.testing.assert_array_equal(ops.index(x, key), x[key])
    expected = x.copy()
    expected[key] = -1
    np.testing.assert_array_equal(AtIndexer(x)[key].set(-1), expected)


@settings(max_examples=100)
@given(st.data())
def test_any_mixture_of_arrays_slices_and_numbers(data):
    dims = data.draw(arrays_of.array_shapes(min_dims=2, max_dims=4, max_side=3))
    x = np.arange(np.prod(dims)).reshape(dims)
    shared = data.draw(arrays_of.array_shapes(max_dims=2, max_side=2))
    key = []
    for n in dims:
        ids = arrays_of.arrays(np.int64, shared, elements=st.integers(-n, n - 1))
        key.append(data.draw(st.one_of(ids, st.slices(n), st.integers(-n, n - 1))))
    if data.draw(st.booleans()):
        key.insert(data.draw(st.integers(0, len(key))), None)
    key = tuple(key)
    np.testing.assert_array_equal(ops.index(x, key), x[key])
    expected = x.copy()
    np.add.at(expected, key, 5)
    np.testing.assert_array_equal(AtIndexer(x)[key].add(5), expected)
