"""f16 to f32 in operations that every machine has, by the interpreter of loop IR: all numbers of f16."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.ir.dtype import DType
from rlx.kernels.ir import interpret as interpreter
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import METAL, OPENCL, RISCV, SSE2, WASM, WGSL

HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


def widened(machine):
    k = KernelBuilder("widened")
    x, y = k.pointer("x", DType.F16), k.pointer("y", DType.F32, write=True)
    with k.parallel("i", len(HALVES) // 64) as i:
        k.store(y, i * 64, k.cast(k.load(x, i * 64, lanes=64), DType.F32))
    found = np.empty(len(HALVES), np.float32)
    interpreter.interpret(legalize(k.build(), machine), {"x": HALVES, "y": found})
    return found


def without_subnormals(array):
    if array.dtype != np.float32:
        return array
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), array), array)


@pytest.fixture
def flushing(monkeypatch):
    """Arithmetic that takes subnormal numbers of f32 for 0, and gives none."""

    def flushed(op, args, attr, kind, really=interpreter.apply):
        if op in ("bitcast", "select"):
            return really(op, args, attr, kind)
        return without_subnormals(really(op, [without_subnormals(a) for a in args], attr, kind))

    monkeypatch.setattr(interpreter, "apply", flushed)


@pytest.mark.parametrize("machine", [SSE2, RISCV, WASM, WGSL, OPENCL, METAL], ids=lambda m: m.name)
def test_all_numbers(machine):
    np.testing.assert_array_equal(widened(machine), HALVES.astype(np.float32))


@pytest.mark.parametrize("machine", [WGSL, OPENCL, METAL], ids=lambda m: m.name)
def test_the_smallest_ones_where_f32_has_no_subnormals(machine, flushing):
    assert not machine.keeps_subnormals
    np.testing.assert_array_equal(widened(machine), HALVES.astype(np.float32))


def test_the_shorter_way_needs_subnormals(flushing):
    """What the machines above are spared: 2046 numbers become 0."""
    assert np.sum(widened(SSE2) != HALVES.astype(np.float32), where=~np.isnan(HALVES)) == 2046
