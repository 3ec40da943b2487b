"""Data movement against NumPy, eagerly and in graphs with symbolic sizes."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import BindingError, OpError, ShapeError
from rlx.ir.dims import Dim
from rlx.ir.graph import Graph

rng = np.random.default_rng(7)
X = rng.standard_normal((2, 3, 4))


@pytest.mark.parametrize("dims", [(6, 4), (-1,), (4, -1, 2), (2, 3, 2, 2), 24])
def test_reshape(both, dims):
    np.testing.assert_array_equal(both(lambda x: ops.reshape(x, dims), X), X.reshape(dims))


def test_reshape_infers_symbolic_sizes():
    graph = Graph()
    x = graph.input("x", ("B", "S", 4), "f32")
    assert ops.reshape(x, (-1, 4)).shape == (Dim.symbol("B") * Dim.symbol("S"), 4)
    assert ops.reshape(x, ("B", -1)).shape == (Dim.symbol("B"), Dim.symbol("S") * 4)


@pytest.mark.parametrize("perm", [None, (2, 0, 1), (-1, 0, 1)])
def test_transpose(both, perm):
    np.testing.assert_array_equal(both(lambda x: ops.transpose(x, perm), X), X.transpose(perm))


@pytest.mark.parametrize(("source", "destination"), [(0, -1), (2, 0), ((0, 1), (-1, 0)), ((-1,), (1,)), (1, 1)])
def test_moveaxis(both, source, destination):
    result = both(lambda x: ops.moveaxis(x, source, destination), X)
    np.testing.assert_array_equal(result, np.moveaxis(X, source, destination))


def test_swapaxes_and_flatten(both):
    np.testing.assert_array_equal(both(lambda x: ops.swapaxes(x, 0, -1), X), X.swapaxes(0, -1))
    np.testing.assert_array_equal(both(ops.flatten, X), X.ravel())


def test_expand_keeps_minus_one(both):
    x = rng.standard_normal((3, 1))
    assert both(lambda x: ops.expand(x, (2, -1, 5)), x).shape == (2, 3, 5)
    np.testing.assert_array_equal(both(lambda x: ops.broadcast_to(x, (2, 3, 4)), x), np.broadcast_to(x, (2, 3, 4)))


def test_broadcast_in_dim(both):
    x = rng.standard_normal((2, 4))
    result = both(lambda x: ops.broadcast_in_dim(x, (2, 3, 4), (0, 2)), x)
    np.testing.assert_array_equal(result, np.broadcast_to(x[:, None, :], (2, 3, 4)))


def test_narrow_and_slice(both):
    np.testing.assert_array_equal(both(lambda x: ops.narrow(x, -1, 1, 2), X), X[..., 1:3])
    result = both(lambda x: ops.slice_(x, (0, 1, 0), (2, 3, 4), (1, 2, 3)), X)
    np.testing.assert_array_equal(result, X[0:2, 1:3:2, 0:4:3])


def test_narrow_to_symbolic_size(traced):
    result = traced(lambda x: ops.narrow(x, 1, 1, Dim.symbol("S") - 1), X, dims=[(2, "S", 4)])
    np.testing.assert_array_equal(result, X[:, 1:])


def test_concat_promotes(both):
    ints = np.ones((2, 3, 1), np.int32)
    result = both(lambda a, b: ops.concat([a, b], -1), X.astype(np.float32), ints)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, np.concatenate([X.astype(np.float32), ints], -1))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack(both, axis):
    np.testing.assert_array_equal(both(lambda a, b: ops.stack([a, b], axis), X, -X), np.stack([X, -X], axis))


@pytest.mark.parametrize(("sections", "axis"), [(2, 2), ([1, 3], 2), ([2, 9], 1), (3, 1), ([], 0)])
def test_split(both, sections, axis):
    pieces = both(lambda x: ops.split(x, sections, axis), X)
    for got, expected in zip(pieces, np.split(X, sections, axis), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_split_of_symbolic_size_checks_divisibility(traced):
    halves = traced(lambda x: ops.split(x, 2, 0), np.arange(6.0), dims=[("S",)])
    np.testing.assert_array_equal(np.concatenate(halves), np.arange(6.0))
    with pytest.raises(BindingError, match="split"):
        traced(lambda x: ops.split(x, 2, 0), np.arange(5.0), dims=[("S",)])


@pytest.mark.parametrize(("low", "high"), [((1, 0, 2), (0, 3, 1)), ((0, 0, 0), (0, 0, 0))])
def test_pad_against_numpy(both, low, high):
    result = both(lambda x: ops.pad(x, 1.5, low, high), X)
    np.testing.assert_array_equal(result, np.pad(X, list(zip(low, high, strict=True)), constant_values=1.5))


def test_interior_and_negative_padding():
    x = np.array([1, 2, 3])
    np.testing.assert_array_equal(ops.pad(x, 0, [0], [0], [2]), [1, 0, 0, 2, 0, 0, 3])
    np.testing.assert_array_equal(ops.pad(x, 9, [-2], [1], [1]), [2, 9, 3, 9])
    np.testing.assert_array_equal(ops.pad(x, 9, [-1], [-2]), [])


def test_pad_undoes_symbolic_narrow(traced):
    size = Dim.symbol("S")
    result = traced(lambda x: ops.pad(ops.narrow(x, 0, 2, size - 2), 0, [2], [0]), np.arange(5.0), dims=[("S",)])
    np.testing.assert_array_equal(result, [0, 0, 2, 3, 4])


def test_reverse(both):
    np.testing.assert_array_equal(both(lambda x: ops.reverse(x, (0, -1)), X), np.flip(X, (0, -1)))


def test_squeeze_and_expand_dims(both):
    x = rng.standard_normal((1, 3, 1))
    np.testing.assert_array_equal(both(ops.squeeze, x), np.squeeze(x))
    assert both(lambda x: ops.squeeze(x, -1), x).shape == (1, 3)
    for axes in (0, -1, (0, 2), (-1, 1)):
        np.testing.assert_array_equal(both(lambda x, a=axes: ops.expand_dims(x, a), X), np.expand_dims(X, axes))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.reshape(x, (5, 5)), ShapeError, "24 elements"),
        (lambda x: ops.reshape(x, (-1, -1)), ShapeError, "only one -1"),
        (lambda x: ops.reshape(x, (-1, 5)), ShapeError, "does not divide"),
        (lambda x: ops.transpose(x, (0, 1)), ShapeError, "not a permutation"),
        (lambda x: ops.moveaxis(x, (0, 0), (1, 2)), ShapeError, "distinct"),
        (lambda x: ops.expand(x, (2, 3, 5)), OpError, "only axes of size 1"),
        (lambda x: ops.expand(x, (-1, 2, 3, 4)), ShapeError, "is new"),
        (lambda x: ops.broadcast_in_dim(x, (2, 3, 4), (0, 2, 1)), ShapeError, "increasing"),
        (lambda x: ops.narrow(x, 2, 3, 2), OpError, "exceeds axis 2"),
        (lambda x: ops.narrow(x, 3, 0, 1), ShapeError, "axis 3 is out of range"),
        (lambda x: ops.slice_(x, (0, 0, 0), (2, 3, 9)), OpError, "start <= limit <= size"),
        (lambda x: ops.slice_(x, (0,), (1,)), OpError, "per axis"),
        (lambda x: ops.slice_(x, (0, 0, 0), (2, 3, 4), (1, 1, -1)), OpError, "use reverse"),
        (lambda x: ops.concat([x, x[0]], 0), ShapeError, "one rank"),
        (lambda x: ops.split(x, 3, 0), ShapeError, "equal pieces"),
        (lambda x: ops.pad(x, 0, [-3, 0, 0], [0, 0, 0]), OpError, "more than there is"),
        (lambda x: ops.pad(x, 0, [0], [0], [0]), OpError, "per axis"),
        (lambda x: ops.squeeze(x, 0), ShapeError, "size 2, not 1"),
        (lambda x: ops.reverse(x, (0, 0)), ShapeError, "one axis twice"),
        (lambda x: ops.stack([]), ShapeError, "at least one"),
    ],
)
def test_errors_name_the_problem(call, error, message):
    with pytest.raises(error, match=message):
        call(X)


def test_identity_movements_add_no_nodes():
    graph = Graph()
    x = graph.input("x", (2, 3), "f32")
    for same in (ops.broadcast_to(x, (2, 3)), ops.moveaxis(x, 0, 0), ops.squeeze(x, ()), ops.swapaxes(x, 1, 1)):
        assert same is x
