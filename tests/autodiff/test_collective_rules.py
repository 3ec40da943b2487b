"""Collectives under transformation: adjoints over all participants, batches, and named axes in nested maps."""

import numpy as np
import pytest
from derivatives import gradients, mapped

from rlx import ops
from rlx.autodiff.functions import grad
from rlx.autodiff.vectorize import vmap
from rlx.errors import OpError
from rlx.ops.parallel.named_axes import named_axis

rng = np.random.default_rng(5)
N = 4

CASES = {
    "psum": (ops.AllReduce("i", N, "psum"), (2, 3)),
    "pmean": (ops.AllReduce("i", N, "pmean"), (2, 3)),
    "all_gather": (ops.AllGather("i", N, -1), (2, 3)),
    "all_gather_tiled": (ops.AllGather("i", N, 1, True), (2, 3)),
    "reduce_scatter": (ops.ReduceScatter("i", N, 1), (3, N)),
    "reduce_scatter_tiled": (ops.ReduceScatter("i", N, -2, True), (2 * N, 3)),
    "all_to_all": (ops.AllToAll("i", N, 1, 0), (3, N)),
    "all_to_all_tiled": (ops.AllToAll("i", N, 0, -1, True), (N, 3)),
    "ppermute": (ops.PPermute("i", N, ((0, 2), (2, 1), (3, 3))), (2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_mapping_over_the_axis_is_the_reference(name):
    op, dims = CASES[name]
    x = rng.standard_normal((N, *dims))
    np.testing.assert_allclose(mapped(op, [x], axis_name="i"), ops.reference_collective(op, x), rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_adjoint_over_all_participants(name):
    op, dims = CASES[name]
    t = rng.standard_normal((N, *dims))
    moved = ops.reference_collective(op, t)
    ct = rng.standard_normal(moved.shape)
    back = mapped(lambda x, ct: op.vjp(ct, op(x), x), [t, ct], axis_name="i")
    assert back.shape == t.shape
    assert np.sum(moved * ct) == pytest.approx(np.sum(t * back), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_mapping_over_another_axis_leaves_the_collective(name):
    op, dims = CASES[name]
    x = rng.standard_normal((N, 5, *dims))
    # Participants first, then a batch: over the batch the collective stays, over the axis it goes away.
    result = mapped(lambda x: vmap(op)(x), [x], axis_name="i")
    expected = np.stack([ops.reference_collective(op, x[:, b]) for b in range(5)], axis=1)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_extremes_send_gradients_to_their_owners():
    x, ct = np.array([[1.0, 5.0], [3.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), rng.standard_normal((N, 2))
    total = ct.sum(0)
    # Two participants share the first maximum.
    share = np.array([[0.0, 1.0], [0.5, 0.0], [0.5, 0.0], [0.0, 0.0]])
    op = ops.AllReduce("i", N, "pmax")
    np.testing.assert_allclose(mapped(lambda x, ct: op.vjp(ct, op(x), x), [x, ct], axis_name="i"), share * total)
    t = rng.standard_normal((N, 2))
    tangents = mapped(lambda x, t: op.jvp((x,), (t,), op(x)), [x, t], axis_name="i")
    np.testing.assert_allclose(tangents, np.broadcast_to((share * t).sum(0), (N, 2)))
    lowest = ops.AllReduce("i", N, "pmin")
    np.testing.assert_allclose(
        mapped(lambda x, ct: lowest.vjp(ct, lowest(x), x), [-x, ct], axis_name="i"), share * total
    )


def test_gradient_of_a_map_is_the_map_of_the_gradient():
    """Per participant, the gradient is that of the sum of all participants' results."""
    x = rng.standard_normal((N, 3))

    def loss(x):
        share = x / ops.psum(ops.exp(x), "i")
        return ops.reduce_sum(share * ops.pmax(x, "i") + ops.pmean(x * x, "i"))

    inside = vmap(grad(loss), axis_name="i")(x)
    outside = grad(lambda x: ops.reduce_sum(vmap(loss, axis_name="i")(x)))(x)
    np.testing.assert_allclose(np.asarray(inside), np.asarray(outside), rtol=1e-6)


def test_nested_named_axes():
    x = rng.standard_normal((2, 3, 4))
    cases = {
        "i": np.broadcast_to(x.sum(0), x.shape),
        "j": np.broadcast_to(x.sum(1, keepdims=True), x.shape),
        ("i", "j"): np.broadcast_to(x.sum((0, 1)), x.shape),
    }
    for names, expected in cases.items():
        inner = vmap(lambda x, names=names: ops.psum(x, names), axis_name="j")
        np.testing.assert_allclose(np.asarray(vmap(inner, axis_name="i")(x)), expected, rtol=1e-6)


def test_an_unnamed_map_in_between_changes_nothing():
    x = rng.standard_normal((2, 3, 4))
    result = vmap(vmap(lambda x: ops.psum(x, "i")), axis_name="i")(x)
    np.testing.assert_allclose(np.asarray(result), np.broadcast_to(x.sum(0), x.shape), rtol=1e-6)


def test_axis_index_and_constants():
    x = np.zeros((2, 3))

    def place(x):
        return x + ops.cast(10 * ops.axis_index("i") + ops.axis_index("j"), "f64"), ops.psum(1, "j")

    places, sizes = vmap(vmap(place, axis_name="j"), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(places), [[0, 1, 2], [10, 11, 12]])
    np.testing.assert_array_equal(np.asarray(sizes), np.full((2, 3), 3))


def test_batches_of_another_size_are_refused():
    with pytest.raises(OpError, match=r"axis 'i' has 3 participants, got operands of 4"):
        mapped(ops.AllReduce("i", 3, "psum"), [np.zeros((4, 2))], axis_name="i")


def test_alone_a_sum_scales_its_gradient():
    """Without a map every participant holds the same operand, and receives the same cotangent."""
    with named_axis("i", 3):
        np.testing.assert_allclose(gradients(lambda x: ops.psum(x, "i"), [np.ones(2)], np.ones(2))[0], [3, 3])
        np.testing.assert_allclose(gradients(lambda x: ops.pmean(x, "i"), [np.ones(2)], np.ones(2))[0], [1, 1])
