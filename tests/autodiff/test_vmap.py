"""`rlx.vmap`: axes, trees, nesting, named axes; always against a Python loop."""

from typing import NamedTuple

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import AutodiffError, ShapeError

rng = np.random.default_rng(1)


def close(got, expected, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


def f(a, b):
    return rnp.tanh(a @ b) + a[0]


@pytest.mark.parametrize(
    ("in_axes", "out_axes"), [((0, None), 0), ((None, 1), 0), ((1, 0), 1), ((-1, 2), -1), ([0, 0], 0), ((0, -3), -1)]
)
def test_axes(in_axes, out_axes):
    shapes = [[4], [4, 2]]
    arrays, rows = [], []
    for shape, axis in zip(shapes, in_axes):
        rank = len(shape) + (axis is not None)
        full = shape if axis is None else [*shape[: axis % rank], 3, *shape[axis % rank :]]
        arrays.append(rng.normal(size=full))
        rows.append([arrays[-1] if axis is None else np.take(arrays[-1], i, axis) for i in range(3)])
    expected = np.stack([np.asarray(f(a, b)) for a, b in zip(*rows)], out_axes)
    close(rlx.vmap(f, in_axes, out_axes)(*arrays), expected)


class Pair(NamedTuple):
    left: object
    right: object


def test_axes_are_prefixes_of_trees():
    def g(p, s):
        return Pair({"sum": p["x"][0] + p["y"].left}, p["y"].right * s)

    x = (rng.normal(size=(5, 3)), None)
    tree = {"x": x, "y": Pair(rng.normal(size=(3, 5)), rng.normal(size=5))}
    result = rlx.vmap(g, in_axes=({"x": 0, "y": Pair(1, 0)}, None), out_axes=Pair(1, 0))(tree, 2.0)
    close(result.left["sum"], (x[0] + tree["y"].left.T).T)
    close(result.right, tree["y"].right * 2)


def test_results_that_do_not_vary():
    result = rlx.vmap(lambda x: (x, rnp.ones(2), 7), out_axes=(0, None, 0))(np.arange(3.0))
    close(result[1], np.ones(2))
    close(result[2], [7, 7, 7])
    with pytest.raises(AutodiffError, match="depends on the mapped axis"):
        rlx.vmap(lambda x: x, out_axes=None)(np.arange(3.0))


def test_unmapped_python_values_pass_through():
    def g(x, mode, n):
        return x * n if mode == "times" else x

    close(rlx.vmap(g, in_axes=(0, None, None))(np.arange(3.0), "times", 4), 4 * np.arange(3.0))


def test_axis_size_without_mapped_arguments():
    close(rlx.vmap(lambda x: x + 1, in_axes=None, axis_size=3)(1.0), [2, 2, 2])
    with pytest.raises(AutodiffError, match="nothing is mapped"):
        rlx.vmap(lambda x: x, in_axes=None)(1.0)


def test_size_zero_and_one():
    for size in (0, 1):
        x = rng.normal(size=(size, 4))
        assert rlx.vmap(rlx.grad(lambda v: rnp.sum(v**3)))(x).shape == (size, 4)
        close(rlx.vmap(lambda v: rnp.sort(v)[::-1])(x), np.sort(x, -1)[:, ::-1])


def test_keyword_arguments_map_over_their_first_axis():
    x, s = rng.normal(size=(3, 2)), rng.normal(size=3)
    close(rlx.vmap(lambda x, s: x * s)(x, s=s), x * s[:, None])


def test_nested_maps():
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    close(rlx.vmap(lambda u: rlx.vmap(lambda v: u @ v)(b))(a), a @ b.T)
    close(rlx.vmap(rlx.vmap(lambda u, v: u * v, (None, 0)), (0, None))(a[0], b[0]), np.outer(a[0], b[0]))


def test_per_example_gradients_are_a_loop():
    w, x, y = rng.normal(size=4), rng.normal(size=(6, 4)), rng.normal(size=6)

    def loss(w, x, y):
        return rnp.sum((rnp.tanh(x @ w) - y) ** 2)

    gradients = rlx.vmap(rlx.grad(loss), (None, 0, 0))(w, x, y)
    close(gradients, np.stack([np.asarray(rlx.grad(loss)(w, a, b)) for a, b in zip(x, y)]))
    total = rlx.grad(lambda w: rnp.sum(rlx.vmap(loss, (None, 0, 0))(w, x, y)))(w)
    close(np.sum(gradients, 0), total)


def test_jit_inside_and_outside():
    x = rng.normal(size=(3, 4))
    close(rlx.jit(rlx.vmap(rlx.jit(rnp.cumsum)))(x), np.cumsum(x, -1))


def test_named_axes():
    x = rng.normal(size=(4, 3))

    def normalized(row):
        return row / rlx.psum(row, "i") + rlx.axis_index("i")

    expected = x / x.sum(0) + np.arange(4)[:, None]
    close(rlx.vmap(normalized, axis_name="i")(x), expected)


def test_jitted_functions_see_the_axis_they_are_called_in():
    share = rlx.jit(lambda v: v / rlx.psum(v, "i"))
    for size in (3, 4):
        x = np.arange(1.0, size + 1)
        close(rlx.vmap(share, axis_name="i")(x), x / x.sum())


def test_named_axes_of_nested_maps():
    x = rng.normal(size=(3, 4))

    def g(v):
        return rlx.psum(v, "rows") + rlx.pmean(v, "columns") * rlx.psum(v, ("rows", "columns"))

    result = rlx.vmap(rlx.vmap(g, axis_name="columns"), axis_name="rows")(x)
    close(result, x.sum(0) + x.mean(1)[:, None] * x.sum())


def test_collectives_inside_control_flow():
    x = rng.normal(size=(4, 3))

    def g(row):
        def step(c, v):
            return c + rlx.psum(v, "i") * rlx.axis_index("i"), rlx.pmean(c, "i")

        return rlx.scan(step, 0.0, row)

    total, means = rlx.vmap(g, axis_name="i")(x)
    sums = x.sum(0)
    close(total, np.arange(4) * sums.sum(), 1e-6)
    carries = np.arange(4)[:, None] * np.concatenate([[0], np.cumsum(sums)[:-1]])
    close(means, np.broadcast_to(carries.mean(0), (4, 3)), 1e-6)


def test_gradient_through_a_named_axis():
    x = rng.normal(size=4)

    def loss(x):
        return rnp.sum(rlx.vmap(lambda v: v * rlx.psum(v, "i") ** 2, axis_name="i")(x))

    close(rlx.grad(loss)(x), 3 * x.sum() ** 2 * np.ones(4))


def test_symbolic_sizes_stay_symbolic():
    traced = rlx.trace(rlx.vmap(lambda x: rnp.sum(x**2)), rlx.Spec(("B", 4), "f32"))
    assert str(traced.graph.shape(traced.graph.outputs[0])) == "f32[B]"


def test_errors_name_the_argument():
    with pytest.raises(AutodiffError, match="in_axes has 1 entries for 2"):
        rlx.vmap(f, (0,))(np.ones((2, 4)), np.ones((4, 2)))
    with pytest.raises(AutodiffError, match="does not fit"):
        rlx.vmap(lambda p: p["a"], ({"b": 0},))({"a": np.ones(3)})
    with pytest.raises(AutodiffError, match="ints, None, or trees"):
        rlx.vmap(lambda p: p, ("x",))(np.ones(3))
    with pytest.raises(AutodiffError, match="size 2, others have 3"):
        rlx.vmap(lambda a, b: a)(np.ones(3), np.ones(2))
    with pytest.raises(ShapeError, match="axis 2 is out of range"):
        rlx.vmap(lambda a: a, 2)(np.ones((3, 3)))
    with pytest.raises(ShapeError, match="out_axes"):
        rlx.vmap(lambda a: a, out_axes=3)(np.ones((3, 3)))
