"""Gather, scatter and dynamic slices against NumPy's indexing and ufunc.at."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape
from rlx.ops.shape.indexing import resolve_ids

rng = np.random.default_rng(9)
X = rng.standard_normal((4, 5, 3))
IDS = np.array([[0, 3], [-1, 2]], np.int32)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32"])
def test_gather_is_take(both, axis, dtype):
    ids = rng.integers(0, 3, (2, 3)).astype(dtype)
    result = both(lambda x, i: ops.gather(x, i, axis), X, ids, dims=[("A", "B", "C"), ("M", "N")])
    np.testing.assert_array_equal(result, np.take(X, ids.astype(int), axis))


def test_gather_modes():
    ids = np.array([1, 4, -5, -4])
    np.testing.assert_array_equal(ops.gather(X, ids, 0, "clip"), X[[1, 3, 0, 0]])
    filled = ops.gather(X, ids, 0, "fill")
    np.testing.assert_array_equal(filled[[0, 3]], X[[1, 0]])
    assert (filled[[1, 2]] == 0).all()


def test_gather_from_an_empty_axis_reads_zero():
    assert (ops.gather(np.ones((0, 2)), np.array([0, 1]), 0, "clip") == np.zeros((2, 2))).all()


def test_float_ids_truncate_and_saturate():
    positions, valid = resolve_ids(np.array([1.9, -1.9, np.nan, np.inf, -np.inf]), 3)
    np.testing.assert_array_equal(positions, [1, 2, 0, 2, 0])
    np.testing.assert_array_equal(valid, [True, True, True, False, False])


def test_gather_nd_reads_points(both):
    points = np.array([[[0, 1], [3, -1]], [[1, 4], [2, 0]], [[3, 3], [0, 0]]])
    result = both(ops.gather_nd, X, points)
    np.testing.assert_array_equal(result, X[points[..., 0], points[..., 1]])
    result = both(lambda x, p: ops.gather_nd(x, p, axes=(2, 0)), X, np.array([[2, 3], [-1, 0]]))
    np.testing.assert_array_equal(result, X[[3, 0], :, [2, -1]])


def test_gather_nd_with_batch_axes(both):
    ids = rng.integers(0, 5, (4, 2, 1))
    result = both(lambda x, i: ops.gather_nd(x, i, axes=(1,), batch_dims=1), X, ids)
    np.testing.assert_array_equal(result, np.stack([x[i[:, 0]] for x, i in zip(X, ids, strict=True)]))


UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("kind", ["set", *UFUNCS])
def test_scatter_nd_applies_updates_in_order(both, kind):
    rows = np.array([[0], [2], [0], [-1]])
    updates = rng.standard_normal((4, 5, 3))
    expected = X.copy()
    if kind == "set":
        expected[rows[:, 0]] = updates
    else:
        UFUNCS[kind].at(expected, rows[:, 0], updates)
    result = both(lambda x, i, u: ops.scatter_nd(x, i, u, kind), X, rows, updates)
    np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_scatter_nd_with_batch_axes_and_trailing_axis(both):
    ids, updates = rng.integers(0, 3, (4, 2, 1)), rng.standard_normal((4, 2, 5))
    expected = X.copy()
    for b in range(4):
        np.add.at(expected[b].T, ids[b, :, 0], updates[b])
    result = both(lambda x, i, u: ops.scatter_nd(x, i, u, "add", (2,), 1), X, ids, updates)
    np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_scatter_modes():
    x, ids, updates = np.zeros(3), np.array([[0], [3], [-4]]), np.array([1.0, 2.0, 4.0])
    np.testing.assert_array_equal(ops.scatter_nd(x, ids, updates, "add", mode="drop"), [1, 0, 0])
    np.testing.assert_array_equal(ops.scatter_nd(x, ids, updates, "add", mode="clip"), [5, 0, 2])


def test_scatter_add_in_half_precision_rounds_once():
    # 2048 + 1 is 2048 in f16, so adding ones one by one would never leave it.
    updates = np.array([2048, 1, 1, 1, 1], np.float16)
    assert ops.scatter_add(updates, np.zeros(5, int), 1)[0] == np.float16(2052)


def test_gather_backward_is_the_transpose_of_gather(both):
    ids = np.array([[0, 3], [3, -1]])
    for axis, mode in ((0, "checked"), (1, "clip"), (2, "fill")):
        dy = rng.standard_normal(ops.gather(X, ids, axis, mode).shape)
        back = both(lambda d, i, a=axis, m=mode: ops.gather_backward(d, i, X.shape, a, m), dy, ids)
        forward = ops.gather(X, ids, axis, mode)
        np.testing.assert_allclose((forward * dy).sum(), (X * back).sum(), rtol=1e-12)


def test_scatter_add_rows_of_any_rank(both):
    ids, updates = np.array([[0, 2], [2, 1]]), rng.standard_normal((2, 2, 3))
    expected = np.zeros((4, 3))
    np.add.at(expected, ids, updates)
    np.testing.assert_allclose(both(lambda u, i: ops.scatter_add(u, i, 4), updates, ids), expected)


@pytest.mark.parametrize("starts", [(0, 0, 0), (2, 3, 1), (9, -1, -9), (-2, 4, 0)])
def test_dynamic_slice_clamps(both, starts):
    sizes = (2, 3, 1)
    first = [min(max(s + n if s < 0 else s, 0), n - w) for s, n, w in zip(starts, X.shape, sizes, strict=True)]
    window = tuple(slice(f, f + w) for f, w in zip(first, sizes, strict=True))
    operand = np.array(starts, np.int32)
    np.testing.assert_array_equal(both(lambda x, s: ops.dynamic_slice(x, s, sizes), X, operand), X[window])
    np.testing.assert_array_equal(ops.dynamic_slice(X, starts, sizes), X[window])
    update = rng.standard_normal(sizes)
    expected = X.copy()
    expected[window] = update
    np.testing.assert_array_equal(both(ops.dynamic_update_slice, X, update, operand), expected)


def test_dynamic_slices_along_one_axis(both):
    start = np.array(2, np.int32)
    np.testing.assert_array_equal(both(lambda x, s: ops.dynamic_slice_in_dim(x, s, 2, 1), X, start), X[:, 2:4])
    result = both(lambda x, s: ops.dynamic_index_in_dim(x, s, -1, keepdims=False), X, start)
    np.testing.assert_array_equal(result, X[..., 2])
    expected = X.copy()
    expected[:, 2] = 1
    result = both(lambda x, u, s: ops.dynamic_update_index_in_dim(x, u, s, 1), X, np.ones((4, 3)), start)
    np.testing.assert_array_equal(result, expected)


def test_ops_name_the_operands_that_must_be_valid():
    table, ids = Shape((7, 2)), Shape((3,), "i32")
    assert ops.Gather(0).index_operands(table, ids) == {1: (7,)}
    assert ops.Gather(0, "clip").index_operands(table, ids) == {}
    assert ops.GatherNd((1, 0)).index_operands(table, Shape((3, 2), "i32")) == {1: (2, 7)}
    assert ops.ScatterNd("set", (0,), mode="drop").index_operands(table, ids, table) == {}
    assert ops.ScatterAdd(9).index_operands(table, ids) == {1: (9,)}
    assert ops.GroupedMatMul().index_operands(Shape((3, 2)), Shape((5, 2, 4)), ids) == {2: (5,)}


@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
def test_take_along_axis(both, axis):
    ids = np.argsort(X, axis)
    result = both(lambda x, i: ops.take_along_axis(x, i, axis), X, ids)
    np.testing.assert_array_equal(result, np.sort(X, axis))


def test_take_along_axis_broadcasts(both):
    ids = rng.integers(0, 5, (1, 2, 3))
    result = both(lambda x, i: ops.take_along_axis(x, i, 1), X, ids, dims=[("A", 5, 3), (1, "K", 3)])
    np.testing.assert_array_equal(result, np.take_along_axis(X, ids, 1))


@pytest.mark.parametrize("axis", [0, -1])
def test_put_along_axis(both, axis):
    ids = np.argmax(X, axis, keepdims=True)
    expected = X.copy()
    np.put_along_axis(expected, ids, 9.0, axis)
    np.testing.assert_array_equal(both(lambda x, i: ops.put_along_axis(x, i, 9.0, axis), X, ids), expected)


def test_take(both):
    ids = np.array([[0, 59], [-1, 7]])
    np.testing.assert_array_equal(both(ops.take, X, ids), np.take(X, ids))
    wrapped = both(lambda x, i: ops.take(x, i, 1, mode="wrap"), X, np.array([-7, 12]))
    np.testing.assert_array_equal(wrapped, np.take(X, [-7, 12], 1, mode="wrap"))
    filled = both(lambda x, i: ops.take(x, i, 1, fill_value=7.0), X, np.array([[4, 5]]), dims=[("A", "B", 3), (1, 2)])
    np.testing.assert_array_equal(filled, np.stack([X[:, 4], np.full((4, 3), 7.0)], 1)[:, None])


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(both, axis):
    ids = np.array([[0, 2], [5, -1]])
    eye = np.concatenate([np.eye(3), np.zeros((3, 3))])
    expected = np.moveaxis(eye[ids], -1, axis)
    np.testing.assert_array_equal(both(lambda i: ops.one_hot(i, 3, "f64", axis), ids), expected)


def test_one_hot_of_small_and_float_ids():
    assert ops.one_hot(np.array([255], np.uint8), 300).argmax() == 255
    assert ops.one_hot(np.array([1.9]), 3).argmax() == 1


def test_nonzero(both):
    x = (X > 0.7).astype(np.float32)
    found = np.stack(np.nonzero(x))
    np.testing.assert_array_equal(np.stack(ops.nonzero(x)), found)
    count = found.shape[1]
    for size in (count, count + 3, count - 2):
        expected = np.pad(found, ((0, 0), (0, max(size - count, 0))), constant_values=-1)[:, :size]
        result = both(lambda x, n=size: ops.nonzero(x, size=n, fill_value=-1), x, dims=[("A", "B", 3)])
        np.testing.assert_array_equal(np.stack(result), expected)


def _input(dims, dtype="f32"):
    graph = Graph()
    return graph.input("x", dims, dtype)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.gather(X, np.array([True])), OpError, "integer"),
        (lambda: ops.gather(X, IDS, 3), ShapeError, "axis 3 is out of range"),
        (lambda: ops.gather(X, IDS, 0, "drop"), OpError, "mode must be one of checked, clip, fill"),
        (lambda: ops.ScatterNd("set", (0,), mode="fill"), OpError, "mode must be one of checked, clip, drop"),
        (lambda: ops.GatherNd(()), OpError, "one or more axes"),
        (lambda: ops.gather_nd(X, np.zeros((2, 3), int), axes=(0,)), OpError, "one coordinate per axis"),
        (lambda: ops.gather_nd(X, np.zeros((4, 1), int), axes=(0,), batch_dims=1), OpError, "must follow"),
        (lambda: ops.gather_nd(X, np.zeros((3, 1), int), axes=(1,), batch_dims=1), OpError, "differ on batch axis 0"),
        (lambda: ops.scatter_nd(X, np.zeros((2, 1), int), np.zeros((2, 5))), OpError, r"updates must be f64\[2,5,3\]"),
        (lambda: ops.scatter_nd(X > 0, np.zeros((1, 1), int), X[:1] > 0, "add"), OpError, "numeric"),
        (lambda: ops.scatter_nd(X + 0j, np.zeros((1, 1), int), X[:1] + 0j, "max"), OpError, "ordered"),
        (lambda: ops.gather_backward(X, IDS, (4, 5), 0), OpError, "dy must be"),
        (lambda: ops.scatter_add(X, np.zeros(3, int), 2), OpError, "start with the dims of idx"),
        (lambda: ops.dynamic_slice(X, (0, 0, 0), (5, 5, 3)), OpError, "does not fit"),
        (lambda: ops.dynamic_slice(X, (0, 0), (1, 1, 1)), OpError, "one start per axis"),
        (lambda: ops.dynamic_slice(X, np.zeros((1, 3), int), (1, 1, 1)), ShapeError, "rank 1"),
        (lambda: ops.take(X, [4], 0), OpError, "index 4 is out of range for an axis of size 4"),
        (lambda: ops.take(X, X > 0), OpError, "mask"),
        (lambda: ops.take(_input(("S",)), [4], mode="wrap"), ShapeError, "fixed size"),
        (lambda: ops.take_along_axis(X, IDS, 0), ShapeError, "one rank"),
        (lambda: ops.put_along_axis(X[:1], np.zeros((4, 1, 3), int), 0.0, 1), ShapeError, "do not broadcast"),
        (lambda: ops.nonzero(_input((3,))), OpError, "give `size`"),
    ],
)
def test_errors_name_the_problem(call, error, message):
    with pytest.raises(error, match=message):
        call()


SEGMENTS = np.array([0, 0, -1, 3, 9])


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
@pytest.mark.parametrize(
    ("name", "join", "start"),
    [("sum", np.add, 0), ("prod", np.multiply, 1), ("max", np.maximum, "min"), ("min", np.minimum, "max")],
)
def test_segments_are_joined(both, name, join, start, dtype):
    """Ids that are negative or too large do not count; a segment without rows holds the identity."""
    rows = rng.integers(1, 5, (5, 2)).astype(dtype)
    if isinstance(start, str):
        start = getattr(np.iinfo(dtype), start) if dtype != "float32" else {"min": -np.inf, "max": np.inf}[start]
    expected = np.full((5, 2), start, dtype)
    expected[0], expected[3] = join(rows[0], rows[1]), rows[3]
    result = both(lambda x, i: getattr(ops, f"segment_{name}")(x, i, 5), rows, SEGMENTS)
    np.testing.assert_array_equal(result, expected)


def test_the_number_of_segments():
    np.testing.assert_array_equal(ops.segment_sum(np.ones(3), np.uint8([0, 2, 2])), [1, 0, 2])
    with pytest.raises(OpError, match="give num_segments="):
        rlx.jit(lambda x, i: ops.segment_sum(x, i))(np.ones(5), SEGMENTS)
    with pytest.raises(ShapeError, match="one integer for each row"):
        ops.segment_max(np.ones(3), np.ones(3), 2)
