"""Addresses as the LLVM emitter writes them: the elements of the interpreter, and little work inside of loops."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rlx.backends.native.kernels import load
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import AVX512, host

F32 = DType.F32


def sums_of_rows() -> Kernel:
    """y[r, q] = sum of x[r + i, q + i], over rows that begin at an element and are a stride apart."""
    k = KernelBuilder("diagonals")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    start, stride, rows = k.index("start"), k.index("stride"), k.index("rows")
    with k.parallel("row", rows) as row:
        line = start + row * stride
        with k.loop("q", 0, 24, 8) as q:
            total = k.const(0.0, F32)
            for i in range(3):
                total = k.load(x, (row + i) * 32 + (q + i) + start - 2, lanes=8) + total
            with k.when(row > 0):
                # Known before the loop over q, and written inside of it.
                again = (start + row * stride) + 0
                total_again = k.load(x, again * 1 + q, lanes=8)
                with k.loop("p", 0, 2) as p:
                    k.store(y, line + q * 1 + p * 0, total_again + k.cast(p, F32))
            k.store(y, line + q, total)
    return k.build()


def test_elements_are_those_of_the_interpreter():
    kernel = sums_of_rows()
    x = np.arange(400, dtype="f4")
    expected, y = np.zeros(400, "f4"), np.zeros(400, "f4")
    interpret(kernel, {"x": x, "y": expected, "start": 5, "stride": 40, "rows": 6})
    load(kernel)(x, y, 5, 40, 6)
    np.testing.assert_array_equal(y, expected)
    assert y.any()


def test_unrolled_rows_differ_by_literals_alone():
    k = KernelBuilder("rows")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    with k.parallel("row", 8) as row, k.loop("q", 0, 64, 16) as q:
        total = k.const(0.0, F32)
        for r in range(4):
            total = k.load(x, (row + r) * 64 + q, lanes=16) + total
        k.store(y, row * 64 + q, total)
    text = emit_llvm(k.build(), AVX512)
    inside = text.split("\nq.")[1].split("\nend.")[0]
    assert len(re.findall(r"load <16 x float>", inside)) == 4
    # The step of the loop alone: neither a product nor a sum for each row.
    assert re.findall(r"= (mul|add) i64", inside) == [], inside
    assert re.findall(r"getelementptr float, ptr %\.\d+, i64 (\d+)", inside) == ["64", "128", "192"]


@pytest.mark.parametrize("count", [-(2**40), -3, 0, 5, 16, 2**33, 2**40])
def test_masks_of_any_count(count):
    k = KernelBuilder("masks")
    y, n = k.pointer("y", F32, write=True), k.index("n")
    k.store(y, 0, k.splat(k.const(1.0, F32), 16), mask=k.lane_mask(n, 16))
    y = np.zeros(16, "f4")
    load(k.build())(y, count)
    np.testing.assert_array_equal(y, np.arange(16) < count)


def test_masks_of_counts_that_are_known_need_no_clamps():
    k = KernelBuilder("tails")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    with k.parallel("row", 3), k.loop("q", 0, 20, 16) as q:
        mask = k.lane_mask(20 - q, 16)
        k.store(y, q, k.load(x, q, lanes=16, mask=mask), mask=mask)
    kernel = k.build()
    text = emit_llvm(legalize(kernel, host()), host())
    assert "smax.i64(i64 %.first" in text and len(re.findall(r"call i64 @llvm\.s(min|max)", text)) == 2
    x, y = np.arange(20, dtype="f4"), np.zeros(20, "f4")
    load(kernel)(x, y)
    np.testing.assert_array_equal(x, y)
