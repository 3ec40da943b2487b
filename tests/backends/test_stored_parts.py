"""Values computed where they go: parts of joined values and updates of a scatter, on the CPU, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.compile.compiler import CompilePipeline
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building

rng = np.random.default_rng(7)


def normal(*dims, dtype="f4"):
    return rng.normal(size=dims).astype(dtype)


def check(function, values, kinds, **attributes):
    """Run on 1, 2 and 3 threads, compare with the definitions, and with each other bit by bit."""
    graph = rlx.Graph("g")
    with building(graph):
        leaves = [graph.input(f"x{i}", v.shape, str(rlx.DType.of(v.dtype))) for i, v in enumerate(values)]
        result = function(*leaves)
    graph.set_outputs(result if isinstance(result, list) else [result])
    named = {f"x{i}": v for i, v in enumerate(values)}
    found = CompilePipeline(target="cpu").compile(graph).lir.kernels
    assert [k.kind for k in found if k.kind != "view"] == kinds
    wanted = interpret(graph, named)
    compiled = rlx.Session("cpu").compile(graph)
    first = None
    for threads in (1, 2, 3):
        with rlx.threads(threads):
            results = [np.asarray(r) for r in compiled.run(named)]
        first = first or results
        for got, right, same in zip(results, wanted, first, strict=True):
            assert got.tobytes() == same.tobytes()
            np.testing.assert_allclose(got.astype("f8"), right.astype("f8"), rtol=1e-6, atol=1e-6)


# The copy of what is changed, then the updates with all that they are computed from.
COPIED = ["map", "map"]


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("width", [2, 7, 16, 33])
def test_updates_are_computed_where_they_go(mode, width):
    """Places twice, none, from the end, and outside."""
    places = np.array([[0, 4, 4, -1, 9], [2, 2, -9, 3, 0]], "i4")[..., None]

    def append(cache, places, new):
        return ops.scatter_nd(cache, places, ops.tanh(new) * 2.0, axes=(2,), batch_dims=1, mode=mode)

    check(append, [normal(2, 3, 5, width), places, normal(2, 5, 3, width)], COPIED)


def test_parts_of_updates():
    """A rotated vector, half by half, straight into a cache; one place is written by the last of three."""
    places = np.array([1, 3, 3, 0, 3], "i4")[:, None]

    def rotate(cache, places, x):
        low, high = ops.narrow(x, 2, 0, 6), ops.narrow(x, 2, 6, 6)
        turned = ops.concat([low * 0.6 - high * 0.8, high * 0.6 + low * 0.8], 2)
        return ops.scatter_nd(cache, places, turned, axes=(0,))

    check(rotate, [normal(4, 3, 12), places, normal(5, 3, 12)], COPIED)


def test_updates_that_are_put_together_in_pairs():
    """Even and odd elements are parts; side by side they are reshaped to the rows that are put."""
    places = np.array([[0, 3], [2, 2]], "i4")[..., None]

    def rotate(cache, places, x):
        even, odd = (ops.narrow(ops.reshape(x, (2, 2, 3, 5, 2)), 4, n, 1) for n in range(2))
        turned = ops.concat([even * 0.6 - odd * 0.8, odd * 0.6 + even * 0.8], 4)
        return ops.scatter_nd(cache, places, ops.reshape(turned, (2, 2, 3, 10)), axes=(2,), batch_dims=1)

    check(rotate, [normal(2, 3, 4, 10), places, normal(2, 2, 3, 10)], COPIED)


def test_parts_of_one_element_are_stored_before_they_are_put():
    """Their neighbours would go anywhere."""
    places = np.array([[2], [0], [2]], "i4")

    def put(x, places, a):
        return ops.scatter_nd(x, places, ops.concat([ops.exp(a), a * 2.0], 1), axes=(0,))

    check(put, [normal(5, 2), places, normal(3, 1)], ["map", "map", "scatter"])


def test_two_axes_and_many_rows():
    """More than one chunk, the indexed axes inside."""
    places = rng.integers(0, 5, (300, 2)).astype("i4")

    def put(x, places, updates):
        return ops.scatter_nd(x, places, updates + 1.0, axes=(0, 2))

    check(put, [normal(5, 37, 6, 40), places, normal(300, 37, 40)], COPIED)


def test_what_is_put_as_it_is_has_a_kernel_of_its_own():
    places = np.array([[2], [0]], "i4")
    check(lambda x, i, u: ops.scatter_nd(x, i, u, axes=(0,)), [normal(3, 8), places, normal(2, 8)], ["map", "scatter"])


def test_single_elements_have_a_kernel_of_their_own():
    """Neighbours of an update go anywhere."""
    places = np.array([[2], [0]], "i4")
    put = lambda x, i, u: ops.scatter_nd(x, i, ops.exp(u), axes=(0,))  # noqa: E731
    check(put, [normal(3), places, normal(2)], ["map", "map", "scatter"])


def test_places_that_are_computed():
    def put(x, i, u):
        return ops.scatter_nd(x, ops.reshape(i * 2 - 1, (4, 1)), -u, axes=(1,), batch_dims=0, mode="drop")

    check(put, [normal(3, 6, 10), np.array([0, 1, 3, 1], "i4"), normal(4, 3, 10)], ["map", *COPIED])


def test_an_old_value_that_is_read_beside_its_update():
    def both(x, i, u):
        y = ops.softmax(x, -1)
        return [ops.scatter_nd(y, i, u * 3.0, axes=(0,)), ops.exp(ops.narrow(y, 0, 1, 2))]

    check(both, [normal(4, 8), np.array([[1], [2]], "i4"), normal(2, 8)], ["row", "map", "map"])


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_parts_side_by_side(dtype):
    """Three index spaces of one kernel that read the same computed value."""

    def parts(x):
        y = ops.reduce_max(ops.reshape(x, (3, 50, 7, 2)), -1)
        turned = ops.transpose(y, (2, 0, 1)) * 3
        joined = ops.concat([ops.narrow(y, 1, 40, 10), ops.narrow(y, 1, 0, 20) + 1], 1)
        return [turned, joined, ops.narrow(y, 2, 2, 3) * 2]

    values = (normal(3, 50, 14) * 100).astype(dtype)
    check(parts, [values], ["reduce", "map"])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("dims", [(2, 3, 5, 4), (3, 9, 17), (40, 37, 129)], ids=str)
def test_pads_along_two_axes_are_one_kernel(mode, dims):
    """The middle, the sides and the corners, with rows of which some end in the middle of a vector."""
    before_and_after = [*[(0, 0)] * (len(dims) - 2), (2, 1), (3, 2)]
    values = normal(*dims)
    values.flat[:3] = np.nan, -0.0, np.inf
    for x in (values, np.arange(values.size).reshape(dims).astype("i1"), values > 0):
        check(lambda x: ops.pad_mode(x, before_and_after, mode), [x], ["map"])


def test_pads_along_three_axes_and_of_what_others_read():
    """The third axis is joined apart, and so is a value that is a result itself."""
    x = normal(3, 4, 11)
    check(lambda x: ops.pad_mode(x, 2, "symmetric"), [x], ["map", "map"])

    def first_is_a_result(x):
        rows = ops.pad_mode(x, ((0, 0), (1, 1), (0, 0)), "reflect")
        return [rows, ops.pad_mode(rows, ((0, 0), (0, 0), (1, 1)), "reflect")]

    check(first_is_a_result, [x], ["map", "map"])


@pytest.mark.parametrize("widths", [(1, 2, 3), (8, 1, 8), (5, 5000, 7), (3, 9000, 4)], ids=str)
def test_rows_of_parts_side_by_side(widths):
    """Short rows are visited together, long ones apart; one of the parts is computed, one turned round."""

    def joined(a, b, c):
        return ops.concat([ops.reverse(a, 1), ops.relu(b), c * 2.0], 1)

    check(joined, [normal(21, n) for n in widths], ["map"])
