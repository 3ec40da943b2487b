"""Collectives: the reference against plain NumPy on the stacked operands, and the op form against the reference."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.op import OP_CLASSES
from rlx.ops.parallel.collectives import Collective

rng = np.random.default_rng(41)
N = 4


def everyone(*shape):
    return rng.standard_normal((N, *shape))


def test_all_reduce():
    x = everyone(2, 3)
    for kind, expected in (("psum", x.sum(0)), ("pmean", x.mean(0)), ("pmax", x.max(0)), ("pmin", x.min(0))):
        result = ops.reference_collective(ops.AllReduce("i", N, kind), x)
        np.testing.assert_allclose(result, np.broadcast_to(expected, (N, 2, 3)))


def test_integer_sums_keep_their_type():
    result = ops.reference_collective(ops.AllReduce("i", 2, "psum"), np.full((2, 1), 100, np.int8))
    assert result.dtype == np.int8
    np.testing.assert_array_equal(result, [[-56], [-56]])


def test_all_gather():
    x = everyone(2, 3)
    gathered = ops.reference_collective(ops.AllGather("i", N, 1), x)
    joined = ops.reference_collective(ops.AllGather("i", N, -1, tiled=True), x)
    for i in range(N):
        np.testing.assert_array_equal(gathered[i], x.transpose(1, 0, 2))
        np.testing.assert_array_equal(joined[i], np.concatenate(list(x), axis=-1))


def test_reduce_scatter():
    x = everyone(N, 3)
    np.testing.assert_allclose(ops.reference_collective(ops.ReduceScatter("i", N), x), x.sum(0))
    y = everyone(3, 2 * N)
    pieces = ops.reference_collective(ops.ReduceScatter("i", N, 1, tiled=True), y)
    for i in range(N):
        np.testing.assert_allclose(pieces[i], y.sum(0)[:, 2 * i : 2 * i + 2])


def test_gathering_what_was_scattered_is_the_sum():
    x = everyone(2 * N, 3)
    parts = ops.reference_collective(ops.ReduceScatter("i", N, 0, tiled=True), x)
    whole = ops.reference_collective(ops.AllGather("i", N, 0, tiled=True), parts)
    np.testing.assert_allclose(whole, ops.reference_collective(ops.AllReduce("i", N, "psum"), x))


def test_all_to_all_exchanges_parts():
    x = everyone(N, 5)
    # Part j of participant i becomes part i of participant j.
    np.testing.assert_array_equal(ops.reference_collective(ops.AllToAll("i", N), x), x.swapaxes(0, 1))
    moved = ops.reference_collective(ops.AllToAll("i", N, 0, 1), x)
    for i in range(N):
        np.testing.assert_array_equal(moved[i], x[:, i].T)
    y = everyone(3, 2 * N)
    there = ops.AllToAll("i", N, 1, 0, tiled=True)
    back = ops.AllToAll("i", N, 0, 1, tiled=True)
    sent = ops.reference_collective(there, y)
    np.testing.assert_array_equal(sent[1], np.concatenate([y[j][:, 2:4] for j in range(N)]))
    np.testing.assert_array_equal(ops.reference_collective(back, sent), y)


def test_ppermute():
    x = everyone(2)
    ring = ops.PPermute("i", N, tuple((i, (i + 1) % N) for i in range(N)))
    np.testing.assert_array_equal(ops.reference_collective(ring, x), np.roll(x, 1, axis=0))
    one = ops.reference_collective(ops.PPermute("i", N, ((2, 0),)), x)
    np.testing.assert_array_equal(one, [x[2], *np.zeros((3, 2))])


def test_axis_index():
    np.testing.assert_array_equal(ops.reference_collective(ops.AxisIndex("i", N)), np.arange(N))


def every_sample():
    for cls in OP_CLASSES.values():
        if issubclass(cls, Collective):
            for index, sample in enumerate(cls.samples()):
                yield pytest.param(sample, id=f"{cls.__name__}-{index}")


@pytest.mark.parametrize("sample", list(every_sample()))
def test_the_op_form_agrees_with_the_reference(sample, both):
    op = sample.op.bind(sample.binding)
    for dtype in sample.dtypes:
        participants = [sample.arrays(dtype, seed) for seed in range(op.participants)]
        stacked = [np.stack(operands) for operands in zip(*participants, strict=True)]
        expected = ops.reference_collective(op, *stacked)
        if stacked:
            result = np.asarray(both(lambda x, op=op: ops.collective_over_leading_axis(op, x), *stacked))
        else:
            result = np.asarray(ops.collective_over_leading_axis(op))
        assert result.dtype == expected.dtype
        tolerance = 1e-6 if expected.dtype.itemsize > 2 else 2e-2
        np.testing.assert_allclose(
            result.astype(np.complex128), expected.astype(np.complex128), rtol=tolerance, atol=tolerance
        )


def test_alone_there_is_one_participant():
    x = rng.standard_normal((1, 3))
    with ops.named_axis("i", 1):
        for call in (ops.psum, ops.pmean, ops.pmax, ops.pmin):
            np.testing.assert_array_equal(call(x, "i"), x)
        assert np.asarray(ops.all_gather(x, "i")).shape == (1, 1, 3)
        np.testing.assert_array_equal(ops.psum_scatter(x, "i"), x[0])
        np.testing.assert_array_equal(ops.all_to_all(x, "i", 0, 0), x)
        np.testing.assert_array_equal(ops.ppermute(x, "i", [(0, 0)]), x)
        assert int(ops.axis_index("i")) == 0


def test_an_axis_that_nothing_binds_is_an_error():
    calls = {
        "psum": lambda: ops.psum(np.ones(2), "i"),
        "pmean": lambda: rlx.jit(lambda x: ops.pmean(x, "i"))(np.ones(2)),
        "gather": lambda: ops.all_gather(np.ones(2), "i"),
        "index": lambda: ops.axis_index("i"),
        "size": lambda: ops.axis_size("i"),
    }
    for call in calls.values():
        with pytest.raises(OpError, match=r"no axis is called 'i' here; no axis is bound\. Name one: rlx\.vmap"):
            call()


def test_named_axes_give_the_size():
    with ops.named_axis("rows", 3), ops.named_axis("columns", 2):
        assert (ops.axis_size("rows"), ops.axis_size("columns")) == (3, 2)
        np.testing.assert_array_equal(ops.psum(np.ones(2), ("rows", "columns")), [6, 6])
        with pytest.raises(OpError, match=r"no axis is called 'row' here; the bound axes are: 'rows', 'columns'"):
            ops.psum(np.ones(2), "row")
        with pytest.raises(OpError, match="already bound"), ops.named_axis("rows", 5):
            pass


def test_means_of_integers_are_floats():
    with ops.named_axis("i", 1):
        assert np.asarray(ops.pmean(np.arange(3, dtype=np.int32), "i")).dtype == np.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.AllReduce("i", 0, "psum"), "at least one participant"),
        (lambda: ops.AllReduce("i", 2, "psum")(np.array([True])), "numeric"),
        (lambda: ops.AllReduce("i", 2, "pmax")(np.zeros(1, np.complex64)), "ordered"),
        (lambda: ops.AllGather("i", 2, 3)(np.zeros(2)), "axis 3 is out of range"),
        (lambda: ops.ReduceScatter("i", 2)(np.zeros((3, 2))), "must have the size 2"),
        (lambda: ops.ReduceScatter("i", 2, 0, True)(np.zeros((3, 2))), "does not divide into 2 parts"),
        (lambda: ops.AllToAll("i", 2)(np.zeros((3, 2))), "must have the size 2"),
        (lambda: ops.PPermute("i", 2, ((0, 2),)), r"outside of 0..1"),
        (lambda: ops.PPermute("i", 2, ((0, 1), (1, 1))), "twice"),
        (lambda: ops.PPermute("i", 2, ((0, 1, 1),)), "pairs"),
        (lambda: ops.reference_collective(ops.AllReduce("i", 3, "psum"), np.zeros((2, 1))), "3 participants"),
        (lambda: ops.collective_over_leading_axis(ops.AllReduce("i", 3, "psum"), np.zeros((2, 1))), "3 participants"),
    ],
)
def test_errors(call, message):
    with pytest.raises((OpError, ShapeError), match=message):
        call()
