"""tile, repeat, roll, diagonal and padding modes against NumPy."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(8)
X = rng.standard_normal((3, 5))


@pytest.mark.parametrize("reps", [2, (2, 1), (1, 3), (2, 1, 3), (0, 2), ()])
def test_tile(both, reps):
    np.testing.assert_array_equal(both(lambda x: ops.tile(x, reps), X, dims=[("R", 5)]), np.tile(X, reps))


@pytest.mark.parametrize(("repeats", "axis"), [(2, 0), (3, -1), (2, None), (0, 1), ([1, 0, 2], 0)])
def test_repeat(both, repeats, axis):
    np.testing.assert_array_equal(both(lambda x: ops.repeat(x, repeats, axis), X), np.repeat(X, repeats, axis))


@pytest.mark.parametrize(
    ("shift", "axis"), [(1, 0), (-7, 1), (2, None), ((1, 2), (0, 1)), (3, (0, 1)), (0, 0), (15, 1)]
)
def test_roll(both, shift, axis):
    np.testing.assert_array_equal(both(lambda x: ops.roll(x, shift, axis), X), np.roll(X, shift, axis))


@pytest.mark.parametrize("shift", [0, 1, -1, 13, -13])
def test_roll_by_a_tensor_or_along_a_symbolic_axis(traced, shift):
    amount = np.array(shift, np.int32)
    np.testing.assert_array_equal(traced(lambda x, s: ops.roll(x, s, 1), X, amount), np.roll(X, shift, 1))
    np.testing.assert_array_equal(traced(lambda x: ops.roll(x, shift, 1), X, dims=[("R", "C")]), np.roll(X, shift, 1))


@pytest.mark.parametrize("offset", [-5, -2, 0, 1, 4, 9])
def test_diagonal(both, offset):
    result = both(lambda x: ops.diagonal(x, offset), X, dims=[("R", "C")])
    np.testing.assert_array_equal(result, np.diagonal(X, offset))


def test_diagonal_of_chosen_axes(both):
    x = rng.standard_normal((2, 3, 4, 3))
    np.testing.assert_array_equal(both(lambda x: ops.diagonal(x, 1, 3, 1), x), np.diagonal(x, 1, 3, 1))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("widths", [1, (2, 1), ((1, 2), (0, 3)), ((4, 7), (9, 3)), 0])
def test_pad_mode(both, mode, widths):
    np.testing.assert_array_equal(both(lambda x: ops.pad_mode(x, widths, mode), X), np.pad(X, widths, mode=mode))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_pad_mode_of_symbolic_sizes(traced, mode):
    result = traced(lambda x: ops.pad_mode(x, (2, 1), mode), X, dims=[("R", "C")])
    np.testing.assert_array_equal(result, np.pad(X, (2, 1), mode=mode))


def test_constant_mode(both):
    result = both(lambda x: ops.pad_mode(x, ((0, 1), (2, 0)), "constant", 3.0), X)
    np.testing.assert_array_equal(result, np.pad(X, ((0, 1), (2, 0)), constant_values=3.0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.pad_mode(x, 1, "mean"), OpError, "mode must be"),
        (lambda x: ops.pad_mode(x, -1), ShapeError, "not negative"),
        (lambda x: ops.pad_mode(x[:0], 1, "wrap"), ShapeError, "nothing to repeat"),
        (lambda x: ops.diagonal(x, 0, 1, -1), ShapeError, "two different axes"),
        (lambda x: ops.roll(x, (1, 2, 3), (0, 1)), ShapeError, "one shift per axis"),
        (lambda x: ops.repeat(x, [1, 2], 0), ShapeError, "one count per element"),
    ],
)
def test_errors_name_the_problem(call, error, message):
    with pytest.raises(error, match=message):
        call(X)
