"""The steps of attention across lanes, in the interpreter and natively, on every machine description that runs here."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere, ran_natively

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops.attention_lanes import lane_sums, larger, power_of_two, transposed
from rlx.kernels.ir.builder import KernelBuilder

rng = np.random.default_rng(3)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_transposed(lanes):
    k = KernelBuilder("transpose")
    x, y = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True)
    for j, row in enumerate(transposed(k, [k.load(x, j * lanes, lanes=lanes) for j in range(lanes)])):
        k.store(y, j * lanes, row)
    x = rng.normal(size=(lanes, lanes)).astype("f4")
    found = check_everywhere(k.build(), {"x": x, "y": np.zeros_like(x)})
    np.testing.assert_array_equal(found["y"], x.T)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 16])
def test_lane_sums(lanes, count):
    if count > lanes:
        return
    k = KernelBuilder("sums")
    x, y = k.pointer("x", DType.F64), k.pointer("y", DType.F64, write=True)
    sums = lane_sums(k, [k.load(x, j * lanes, lanes=lanes) for j in range(count)])
    k.store(y, 0, sums)
    # Whole numbers: the order of additions does not matter.
    x = rng.integers(-100, 100, size=(count, lanes)).astype("f8")
    found = check_everywhere(k.build(), {"x": x, "y": np.zeros(lanes)})
    np.testing.assert_array_equal(found["y"][:count], x.sum(axis=1))


def elementwise(name, function, lanes=16):
    k = KernelBuilder(name)
    x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
    with k.loop("i", 0, n, lanes) as i:
        k.store(y, i, function(k, k.load(x, i, lanes=lanes)))
    return k.build()


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_power_of_two_within_its_bound(target):
    x = -np.geomspace(2.0**-30, 126.0, 1 << 16).astype("f4")
    x[:127] = -np.arange(127)
    y = ran_natively(elementwise("power", power_of_two), {"x": x, "y": np.zeros_like(x), "n": x.size}, target)["y"]
    exact = 2.0 ** x.astype("f8")
    normal = exact >= 2.0**-126
    assert np.max(np.abs(y - exact)[normal] / np.spacing(exact[normal].astype("f4"))) <= 2.5


def test_power_of_two_at_the_ends():
    x = np.array([0, -126.6, -127, -150, -1e30, -np.inf, np.nan, -0.0] * 2, "f4")
    kernel = elementwise("power", power_of_two)
    y = check_everywhere(kernel, {"x": x, "y": np.zeros_like(x), "n": x.size}, rtol=1e-6)["y"]
    np.testing.assert_allclose(y[:8], [1, 0, 0, 0, 0, 0, np.nan, 1], rtol=2e-7)
    assert y[5] == 0.0 and not np.signbit(y[5])


def test_larger_keeps_the_second_over_nan():
    kernel = elementwise("larger", lambda k, x: larger(k, x, k.const(1.0, x.type)), lanes=4)
    x = np.array([2.0, 0.5, np.nan, -np.inf], "f4")
    found = check_everywhere(kernel, {"x": x, "y": np.zeros_like(x), "n": 4})
    np.testing.assert_array_equal(found["y"], [2, 1, 1, 1])
