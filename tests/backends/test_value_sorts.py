"""Sorts of which nobody asks where elements came from, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from backends.op_kernel_checks import Program
from rlx.kernels.cpu.ops.sort_network import batcher, halves
from rlx.ops.lowered.sort_order import SortedValues

TYPES = ["f2", "f4", "f8", "i2", "u2", "i4", "u4", "i8", "u8", ml_dtypes.bfloat16]
rng = np.random.default_rng(0)


def numbers(shape, dtype):
    kind = np.dtype(dtype).kind
    x = rng.integers(0, 60000, shape).astype(dtype) if kind == "u" else (300 * rng.standard_normal(shape)).astype(dtype)
    if kind == "f" and x.size > 5:
        x.flat[1], x.flat[3], x.flat[4] = -np.inf, np.nan, -np.nan
    return x


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_short_and_long(dtype):
    for shape in ((5,), (3, 64), (2, 65), (3, 96), (2, 97), (1, 1000), (0, 4), (2, 0)):
        x = numbers(shape, dtype)
        np.testing.assert_array_equal(rlx.jit(rnp.sort)(x), np.sort(x))


def test_other_axes_and_the_largest_first():
    x = numbers((70, 9, 3), "f4")
    for axis in (0, 1):
        np.testing.assert_array_equal(rlx.jit(lambda x, axis=axis: rnp.sort(x, axis=axis))(x), np.sort(x, axis=axis))
    y = numbers((4, 100), "i4")
    np.testing.assert_array_equal(rlx.jit(lambda y: rnp.sort(y, descending=True))(y), np.sort(y)[:, ::-1])
    falling = np.asarray(rlx.jit(lambda x: rnp.sort(x[:, 0, 0], descending=True))(x))
    known = np.sort(x[:, 0, 0])
    count = np.isfinite(known).sum() + np.isinf(known).sum()
    np.testing.assert_array_equal(falling, [*known[:count][::-1], *known[count:]])


def test_digits_in_common_are_left_alone():
    """Words that differ in their first, their last or in no digit."""
    for x in (rng.integers(0, 200, 300), rng.integers(0, 5, 300) << 24, np.full(300, 7), rng.integers(-3, 3, 300)):
        np.testing.assert_array_equal(rlx.jit(rnp.sort)(x.astype("i4")), np.sort(x))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_side_by_side(dtype):
    """Whole blocks of lanes, some rows behind them, and lengths around those of groups and merged runs."""
    for shape in ((4, 1), (9, 2), (16, 16), (17, 15), (20, 33), (37, 64), (5, 130), (19, 257), (12, 1000), (8, 8200)):
        x = numbers(shape, dtype)
        np.testing.assert_array_equal(rlx.jit(rnp.sort)(x), np.sort(x))
        order = np.asarray(rlx.jit(rnp.argsort)(x))
        np.testing.assert_array_equal(order, np.argsort(x, kind="stable"))


def test_orders_side_by_side_keep_equals_in_order():
    for dtype in ("i4", "u1", "bool", "f4"):
        x = rng.integers(0, 2, (33, 100)).astype(dtype)
        np.testing.assert_array_equal(rlx.jit(rnp.argsort)(x), np.argsort(x, kind="stable"))
        falling = np.asarray(rlx.jit(lambda x: rnp.argsort(x, descending=True))(x))
        np.testing.assert_array_equal(falling, np.argsort(1 - x.astype("i4"), kind="stable"))


@pytest.mark.parametrize("count", [8, 16])
def test_networks_sort_whatever_they_are_given(count):
    """All rows of zeros and ones, which says it of all words; halves those that rise and then fall."""
    words = np.array([list(np.binary_repr(i, count)) for i in range(1 << count)]).astype(int)
    is_bitonic = np.count_nonzero(np.diff(words, axis=1), axis=1) <= 2
    for exchanges, given in (
        (batcher(count), words),
        (halves(count), words[is_bitonic & (words[:, 0] == words[:, -1])]),
    ):
        found = given.copy()
        for low, high in exchanges:
            found[:, low], found[:, high] = (f(found[:, low], found[:, high]) for f in (np.minimum, np.maximum))
        np.testing.assert_array_equal(found, np.sort(given))


def test_one_kernel_with_every_access_inside():
    program = Program(lambda x: SortedValues()(x)[0], (("B", "S"), "f32"), kinds=["sort"])
    for shape in ((3, 7), (2, 70), (21, 39)):
        x = numbers(shape, "f4")
        np.testing.assert_array_equal(program(x)[0], np.sort(x))
        np.testing.assert_array_equal(program.interpreted(x)[0], np.sort(x))


def test_quantiles_and_gradients():
    x = rng.standard_normal((7, 101)).astype("f4")
    x[2, 5] = np.nan
    np.testing.assert_allclose(rlx.jit(lambda x: rnp.median(x, axis=1))(x), np.median(x, axis=1))
    found = rlx.jit(lambda x: rnp.nanquantile(x, 0.3, axis=1))(x)
    np.testing.assert_allclose(found, np.nanquantile(x, 0.3, axis=1), rtol=1e-5)
    gradient = rlx.jit(rlx.grad(lambda x: (rnp.sort(x) * np.arange(101, dtype="f4")).sum()))(x[0])
    np.testing.assert_array_equal(gradient, np.argsort(np.argsort(x[0])))
