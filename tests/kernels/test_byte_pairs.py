"""`byte_pairs` and `add_pairs`: products of bytes two by two in 16 bits, and neighbours of 16 bits added in 32."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import check_everywhere, interpreted, ran_natively

from rlx.backends.native.elf import undefined_symbols
from rlx.errors import DTypeError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.byte_dots import HalfDots, PairDots, WholeDots, byte_dots, has_fast_dots
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel, Let, ValueType, walk
from rlx.kernels.ir.operations import infer
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    CORTEX_M4,
    NEON,
    RISCV,
    SM_90A,
    SSE2,
    SSE4,
    WASM,
    Machine,
    runs_here,
)
from rlx.quant.fields import PANEL_FORMATS

LANES = [1, 4, 8, 16]
rng = np.random.default_rng(3)


def pair_kernel(lanes: int) -> Kernel:
    k = KernelBuilder("pairs")
    total, a, b = k.pointer("total", DType.I32), k.pointer("a", DType.U8), k.pointer("b", DType.I8)
    y = k.pointer("y", DType.I32, write=True)
    pairs = k.byte_pairs(k.load(a, 0, lanes=4 * lanes), k.load(b, 0, lanes=4 * lanes))
    k.store(y, 0, k.add_pairs(k.load(total, 0, lanes=lanes), pairs))
    return k.build()


def operands(lanes: int, largest: int = 255) -> dict[str, np.ndarray]:
    a = rng.choice(np.array([0, 1, largest // 2, largest], np.uint8), 4 * lanes)
    b = rng.choice(np.array([-128, -127, -1, 0, 1, 127], np.int8), 4 * lanes)
    total = rng.integers(-(2**30), 2**30, lanes).astype(np.int32)
    return {"total": total, "a": a, "b": b, "y": np.zeros(lanes, np.int32)}


def expected(args: dict[str, np.ndarray]) -> np.ndarray:
    pairs = (args["a"].astype(np.int64) * args["b"]).reshape(-1, 2).sum(1)
    return args["total"] + pairs.clip(-(2**15), 2**15 - 1).reshape(-1, 2).sum(1)


@pytest.mark.parametrize("largest", [63, 127, 255])
@pytest.mark.parametrize("lanes", LANES)
def test_sums_are_the_nearest_that_16_bits_hold(lanes, largest):
    for _ in range(4):
        args = operands(lanes, largest)
        np.testing.assert_array_equal(check_everywhere(pair_kernel(lanes), args)["y"], expected(args))


@pytest.mark.parametrize("lanes", LANES)
def test_machines_with_the_instructions(lanes):
    args = operands(lanes)
    for machine in (SSE4, AVX2, AVX512):
        np.testing.assert_array_equal(interpreted(legalize(pair_kernel(lanes), machine), args)["y"], expected(args))
        if runs_here(machine):
            np.testing.assert_array_equal(ran_natively(pair_kernel(lanes), args, machine)["y"], expected(args))


@pytest.mark.parametrize("machine", [SSE2, SSE4, AVX2, AVX512, NEON, RISCV, WASM, CORTEX_M4, SM_90A])
@pytest.mark.parametrize("lanes", LANES)
def test_every_target_has_them(machine: Machine, lanes: int):
    text = compile_assembly(pair_kernel(lanes), machine)
    assert ("pmaddubsw" in text) == (lanes in machine.pair_lanes)
    left = [s for s in walk(legalize(pair_kernel(lanes), machine).body) if isinstance(s, Let)]
    assert sum(s.op in ("byte_pairs", "add_pairs") for s in left) == 2 * (lanes in machine.pair_lanes)
    if machine.triple.startswith(("x86_64", "aarch64", "riscv64")):
        assert not undefined_symbols(compile_object(pair_kernel(lanes), machine))


def test_types():
    i16, i32 = ValueType(DType.I16, 8), ValueType(DType.I32, 4)
    u8, i8 = ValueType(DType.U8, 16), ValueType(DType.I8, 16)
    assert infer("byte_pairs", [u8, i8]) == i16
    assert infer("add_pairs", [i32, i16]) == i32
    for op, wrong in (
        ("byte_pairs", [i8, u8]),
        ("byte_pairs", [u8]),
        ("add_pairs", [i32, i8]),
        ("add_pairs", [i16, i32]),
    ):
        with pytest.raises(DTypeError, match=f"{op} takes"):
            infer(op, wrong)


@pytest.mark.parametrize(
    ("name", "run"), [("Q4_0", 8), ("Q4_K", 8), ("Q5_K", 4), ("Q6_K", 2), ("Q8_0", 0), ("IQ4_NL", 0)]
)
def test_codes_that_16_bits_hold(name: str, run: int):
    """The largest codes times the largest digits, `run` times, and not once more; without one, halves of the codes."""
    layout, k = PANEL_FORMATS[name], KernelBuilder("dots")
    found = byte_dots(k, AVX2, layout, 8)
    assert has_fast_dots(AVX2, layout) == (run > 0)
    assert has_fast_dots(AVX2_VNNI, layout) and not has_fast_dots(NEON, layout)
    assert isinstance(byte_dots(k, AVX2_VNNI, layout, 8), WholeDots)
    if not run:
        assert isinstance(found, HalfDots)
        return
    assert isinstance(found, PairDots) and found.run == run
    pair = 2 * (2 ** sum(layout.planes) - 1) * 128
    assert run * pair < 2**15 <= (run + 1) * pair
