"""Small matrices factorised many at a time: pivots as LAPACK has them, and what has none, NaN and infinities too."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import rlx
import rlx.numpy as rnp
from backends.op_kernel_checks import Program
from rlx.ops.linalg.factorizations import Lu, lu


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 40])
def test_factors_are_those_of_lapack(size):
    a = np.random.default_rng(size).standard_normal((11, size, size))
    packed, pivots, order = (np.asarray(r) for r in rlx.jit(lu)(a))
    for i, matrix in enumerate(a):
        wanted, exchanged = scipy.linalg.lu_factor(matrix)
        np.testing.assert_allclose(packed[i], wanted, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(pivots[i], exchanged)
        low = np.tril(packed[i], -1) + np.eye(size)
        np.testing.assert_allclose(matrix[order[i]], low @ np.triu(packed[i]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(rlx.jit(rnp.linalg.det)(a), np.linalg.det(a), rtol=1e-9)


def test_matrices_without_pivots_and_numbers_that_are_none():
    a = np.random.default_rng(1).standard_normal((19, 4, 4))
    a[3], a[7] = 0, 1
    a[4, 1] = a[4, 2]
    a[5, :, 0] = 0
    a[6, 2, 1], a[8, 0, 0] = np.nan, np.inf
    program = Program(lambda a: lu(a), ((19, 4, 4), "f64"))
    with np.errstate(all="ignore"):
        wanted = Lu().eval(a)
    for found in (program(a), program.interpreted(a)):
        for x, y in zip(found, wanted):
            np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.parametrize("columns", [1, 9, 17, 18, 50, 130])
@pytest.mark.parametrize("lower", [True, False])
def test_right_sides_that_end_within_a_vector(columns, lower):
    rng = np.random.default_rng(columns)
    a = (np.tril if lower else np.triu)(rng.standard_normal((37, 37))) + 37 * np.eye(37)
    b = rng.standard_normal((37, columns))
    found = rlx.jit(lambda a, b: rlx.scipy.linalg.solve_triangular(a, b, lower=lower))(a, b)
    np.testing.assert_allclose(found, scipy.linalg.solve_triangular(a, b, lower=lower), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("shape, offset", [((4, 5), 2), ((5, 3), -1), ((3, 3), 7), ((2, 6, 6), 1), ((0, 3), 0)])
def test_diagonals_and_their_gradients(shape, offset):
    x = np.random.default_rng(2).standard_normal(shape)
    found = rlx.jit(lambda x: rnp.diagonal(x, offset, -2, -1))(x)
    np.testing.assert_array_equal(found, np.diagonal(x, offset, -2, -1))
    gradient = rlx.jit(rlx.grad(lambda x: (rnp.diagonal(x, offset, -2, -1) * 2).sum()))(x)
    np.testing.assert_array_equal(gradient, np.broadcast_to(2 * np.eye(*shape[-2:], k=offset), shape))
