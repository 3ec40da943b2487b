"""Stores of the first few lanes, as many as the maker knows: nothing behind them is written."""

import numpy as np
import pytest
from kernel_runs import check_everywhere

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder

# The type that is computed in, and the one that is stored.
CUTS = [("i32", "i8"), ("i32", "i16"), ("i64", "i16"), ("i64", "i32"), ("f32", "bf16"), ("f32", "f16"), ("f32", "f32")]


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize(("wide", "stored"), CUTS)
def test_nothing_behind_the_lanes_is_written(wide, stored, lanes):
    """As masked stores with AVX-512, LLVM wrote 4 or 8 bytes for a single lane of a narrower type."""
    source, target = DType(wide), DType(stored)
    for count in (0, 1, 2, 3, lanes - 1):
        k = KernelBuilder("few")
        x, y = k.pointer("x", source), k.pointer("y", target, write=True)
        with k.parallel("row", 3) as row:
            x_row = k.load(x, row * lanes, lanes=lanes)
            k.store(y, row * lanes, k.cast(x_row + x_row, target), mask=k.lane_mask(count, lanes))
        values = np.arange(3 * lanes).astype(source.numpy)
        given = np.full(4 * lanes, 77, target.numpy)
        found = check_everywhere(k.build(), {"x": values, "y": given})["y"]
        wanted = given.copy()
        for row in range(3):
            wanted[row * lanes :][:count] = (2 * values[row * lanes :][:count]).astype(target.numpy)
        np.testing.assert_array_equal(found, wanted)
