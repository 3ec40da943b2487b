"""Derivatives and batches of gather, scatter, windows and products where generated tests cannot look."""

import numpy as np
import pytest
from derivatives import difference, gradients, graph_of, mapped, mapped_graph, named

from rlx import ops
from rlx.autodiff.graphs import GradWithLossOptions, grad_with_loss_opts, hvp
from rlx.ir.interpret import interpret

IDS = np.array([[1], [0], [1], [2]], np.int32)


def names(graph):
    return [node.op.mnemonic for node in graph.nodes]


def gradient_graph(function, *arrays):
    keys = [f"x{i}" for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    return grad_with_loss_opts(graph_of(function, *arrays), keys, GradWithLossOptions.TRAINING)


def test_of_several_writes_to_one_place_the_last_gets_the_gradient():
    x, updates, ct = np.zeros(4), np.arange(4.0), np.array([1.0, 2.0, 3.0, 4.0])
    dx, du = gradients(lambda x, i, u: ops.scatter_nd(x, i, u), [x, IDS, updates], ct, wrt=[0, 2])
    np.testing.assert_array_equal(dx, [0, 0, 0, 4])
    np.testing.assert_array_equal(du, [0, 1, 2, 3])


@pytest.mark.parametrize("updates", [[2.0, 3.0, 5.0, 7.0], [0.0, 3.0, 5.0, 7.0], [0.0, 3.0, 0.0, 7.0]])
@pytest.mark.parametrize("first", [1.5, 0.0])
def test_products_with_zeros(updates, first):
    """Two updates meet at place 1; the value is a polynomial, of which central differences are nearly exact."""
    x, updates, ct = np.array([1.0, first, 3.0]), np.array(updates), np.array([1.0, 2.0, 3.0])

    def product(x, u):
        result = x.copy()
        np.multiply.at(result, IDS[:, 0], u)
        return ct @ result

    got = gradients(lambda x, i, u: ops.scatter_nd(x, i, u, "mul"), [x, IDS, updates], ct, wrt=[0, 2])
    for gradient, arrays in zip(got, ([(d, None) for d in np.eye(3)], [(None, d) for d in np.eye(4)])):
        expected = [difference(product, [x, updates], directions) for directions in arrays]
        np.testing.assert_allclose(gradient, expected, atol=1e-8)


def test_second_derivative_of_a_product_with_one_zero():
    x = np.array([2.0, 3.0])
    graph = graph_of(lambda u: ops.scatter_nd(x, np.array([[1], [1]]), u, "mul").sum(), np.zeros(2))
    at = {"x0": np.array([0.0, 5.0])}
    rows = [interpret(hvp(graph, ["x0"]), at | {"tangent_x0": d})[-1] for d in np.eye(2)]
    np.testing.assert_array_equal(rows, [[0, 3], [3, 0]])


def test_at_a_tie_the_value_there_wins_and_updates_share():
    x, updates, ct = np.array([5.0, 0.0, 0.0]), np.array([5.0, 4.0, 4.0, 1.0]), np.array([1.0, 2.0, 3.0])
    ids = np.array([[0], [1], [1], [2]], np.int32)
    dx, du = gradients(lambda x, i, u: ops.scatter_nd(x, i, u, "max"), [x, ids, updates], ct, wrt=[0, 2])
    np.testing.assert_array_equal(dx, [1, 0, 0])
    np.testing.assert_array_equal(du, [0, 1, 1, 3])


def test_computed_ids_outside_write_where_they_read():
    """A read is clipped, so its gradient arrives at the clipped row; a write is dropped, so its gradient is 0."""
    table, ids, ct = np.ones((3, 2)), np.array([0, 5], np.int32), np.array([[1.0, 2.0], [3.0, 4.0]])
    (d_table,) = gradients(lambda t, i: ops.gather(t, i + 1), [table, ids], ct, wrt=[0])
    np.testing.assert_array_equal(d_table, [[0, 0], [1, 2], [3, 4]])
    (d_updates,) = gradients(lambda u, i: ops.scatter_add(u, i + 1, 3), [ct, ids], np.ones((3, 2)), wrt=[0])
    np.testing.assert_array_equal(d_updates, [[1, 1], [0, 0]])


def test_gather_has_its_own_backward_ops():
    table, ids = np.ones((4, 5)), np.array([1, 1], np.int32)
    assert "scatter_add" in names(gradient_graph(lambda t, i: ops.gather(t, i), table, ids))
    assert "gather_backward" in names(gradient_graph(lambda t, i: ops.gather(t, i, 1), table, ids))


def test_windows_at_a_place_per_example():
    """One cache per sequence, each filled to another length: the store is a scatter, its gradient a gather."""
    rng = np.random.default_rng(0)
    cache, new = rng.normal(size=(3, 6, 2)), rng.normal(size=(3, 2, 2))
    filled = np.array([0, 3, -2], np.int32)

    def store(cache, new, start):
        return ops.dynamic_update_slice_in_dim(cache, new, start, 0)

    expected = cache.copy()
    for row, start in enumerate([0, 3, 4]):
        expected[row, start : start + 2] = new[row]
    np.testing.assert_array_equal(mapped(store, [cache, new, filled]), expected)

    ct = rng.normal(size=cache.shape)
    graph = mapped_graph(store, [cache, new, filled], [True] * 3)
    backward = grad_with_loss_opts(graph, ["x0", "x1"], GradWithLossOptions.TRAINING)
    _, d_cache, d_new = interpret(backward, named([cache, new, filled]) | {"d_output": ct})
    np.testing.assert_array_equal(d_new, np.stack([ct[0, 0:2], ct[1, 3:5], ct[2, 4:6]]))
    np.testing.assert_array_equal(d_cache, np.where(expected == cache, ct, 0))


def test_windows_beyond_the_end_move_back_in_a_batch_too():
    x = np.arange(10.0)
    starts = np.array([9, -30, 2**31 - 1], np.int64)
    got = mapped(lambda x, s: ops.dynamic_slice_in_dim(x, s, 4), [x, starts], [False, True])
    np.testing.assert_array_equal(got, [x[6:], x[:4], x[6:]])


def test_gradient_of_a_shared_weight_is_one_product():
    """No [batch, k, n] in between: the sum over the batch is part of the product."""
    x, w = np.ones((5, 7, 3)), np.ones((3, 2))
    graph = gradient_graph(ops.matmul, x, w)
    assert all(node.shape.dims != (5, 3, 2) for node in graph.nodes)
    left = gradient_graph(ops.matmul, np.ones((2, 3)), np.ones((5, 3, 4)))
    assert all(node.shape.dims != (5, 2, 3) for node in left.nodes)


def test_systems_that_share_their_matrix_are_solved_together():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 3)) + 4 * np.eye(3), rng.normal(size=(5, 3))
    graph = mapped_graph(ops.dense_solve, [a, b], [False, True])
    assert names(graph).count("dense_solve") == 1
    assert "batched_dense_solve" not in names(graph)
    np.testing.assert_allclose(interpret(graph, named([a, b]))[0], np.linalg.solve(a, b.T).T, rtol=1e-12)
