"""LU in panels that threads share, and triangular systems by blocks: residuals as LAPACK has them, its pivots, the same
bits for any number of threads, and matrices that have no factors or no numbers in them."""

import numpy as np
import pytest
import scipy.linalg
from op_kernel_checks import Program
from test_factorization_kernels import EPS, native, random

from rlx import ops
from rlx.compile.lower import lu_steps
from rlx.errors import OpError
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.lowered.lu_steps import LuStep


@pytest.fixture
def narrow_panels(monkeypatch):
    monkeypatch.setattr(lu_steps, "SMALL", 16)
    monkeypatch.setattr(lu_steps, "PANEL", 12)


def residual(packed, a, order):
    count = min(a.shape)
    lower = np.tril(packed[:, :count], -1) + np.eye(a.shape[0], count)
    return np.abs(lower @ np.triu(packed[:count]) - a[order]).max()


@pytest.mark.usefixtures("narrow_panels")
@pytest.mark.parametrize("dims", [(43, 43), (37, 50), (50, 37), (2, 31, 31), (24, 24)], ids=str)
def test_factors_in_steps_are_those_of_lapack(dims):
    a = random(*dims)
    assert lu_steps.lu_in_steps(a_tensor(dims)) is not None
    packed, pivots, order = native(ops.lu, a)
    for at in np.ndindex(*dims[:-2]):
        wanted, exchanged = scipy.linalg.lu_factor(a[at])
        np.testing.assert_array_equal(pivots[at], exchanged)
        assert residual(packed[at], a[at], order[at]) <= 4 * max(residual(wanted, a[at], order[at]), EPS["f8"])


def a_tensor(dims):
    import rlx

    return rlx.Graph("types").input("a", dims, "f64")


def test_wide_panels():
    a = random(150, 150)
    packed, pivots, order = native(ops.lu, a)
    wanted, exchanged = scipy.linalg.lu_factor(a)
    np.testing.assert_array_equal(pivots, exchanged)
    assert residual(packed, a, order) <= 4 * residual(wanted, a, order)
    (x,) = native(ops.dense_solve, a, a[:, :40].copy(), checks=1)
    np.testing.assert_allclose(x, np.eye(150, 40), atol=1e-10)


@pytest.mark.usefixtures("narrow_panels")
def test_matrices_without_factors_in_steps():
    a = random(29, 29)
    a[:, 14] = 0
    packed, pivots, order = native(ops.lu, a)
    wanted, wanted_pivots, wanted_order = Lu().eval(a)
    np.testing.assert_allclose(packed, wanted, atol=1e-12)
    np.testing.assert_array_equal(pivots, wanted_pivots)
    np.testing.assert_array_equal(order, wanted_order)
    with pytest.raises(OpError, match="singular"):
        native(ops.dense_solve, a, random(29, 2), checks=1)


@pytest.mark.usefixtures("narrow_panels")
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_none_stay_with_their_matrix(number):
    a, b = random(3, 33, 33), random(3, 33, 2)
    a[1, 20, 7] = number
    (x,) = native(ops.batched_dense_solve, a, b, checks=1)
    assert np.isnan(x[1]).all()
    for i in (0, 2):
        np.testing.assert_allclose(x[i], np.linalg.solve(a[i], b[i]), rtol=1e-9, atol=1e-10)
    packed, pivots, order = native(ops.lu, a[1])
    with np.errstate(all="ignore"):
        wanted = Lu().eval(a[1])
    np.testing.assert_array_equal(np.isnan(packed), np.isnan(wanted[0]))
    np.testing.assert_array_equal(pivots, wanted[1])
    np.testing.assert_array_equal(order, wanted[2])


def test_steps_do_what_their_definition_says():
    panel, order, rest = random(21, 9), np.random.default_rng(0).permutation(21).astype("i4"), random(21, 45)
    panel = panel / 4
    program = Program(lambda *x: LuStep(7)(*x), ((21, 9), "f64"), ((21,), "i32"), ((21, 45), "f64"))
    wanted = LuStep(7).eval(panel, order, rest)
    for found in (program(panel, order, rest), program.interpreted(panel, order, rest)):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("size", "columns", "dtype"), [(64, 16, "f8"), (129, 35, "f8"), (131, 64, "f4")])
def test_triangular_systems_by_blocks(size, columns, dtype, lower, transpose):
    a = (random(size, size) / np.sqrt(size) + 2 * np.eye(size)).astype(dtype)
    b = random(size, columns, dtype=dtype)
    (x,) = native(lambda a, b: ops.triangular_solve(a, b, lower=lower, transpose=transpose), a, b)
    triangle = (np.tril if lower else np.triu)(a).astype("f8")
    triangle = triangle.T if transpose else triangle
    wanted = np.linalg.solve(triangle, b.astype("f8"))
    bound = size * EPS["f8"] * np.linalg.cond(triangle) + (EPS["f4"] / 2 if dtype == "f4" else 0.0)
    assert (np.linalg.norm(x - wanted, axis=0) <= bound * np.linalg.norm(wanted, axis=0)).all()


def test_blocks_stay_within_their_operands():
    types = ((2, 66, 66), "f64"), ((2, 66, 17), "f64")
    a, b = random(2, 66, 66) / 8 + 2 * np.eye(66), random(2, 66, 17)
    program = Program(lambda a, b: ops.triangular_solve(a, b, lower=False), *types)
    wanted = np.linalg.solve(np.triu(a), b)
    for found in (program(a, b), program.interpreted(a, b)):
        np.testing.assert_allclose(found[0], wanted, rtol=1e-9, atol=1e-11)
