"""`dot4`: four products of bytes added to each lane, by the machine's instruction or by what every machine has."""

import numpy as np
import pytest
from kernel_runs import check_everywhere, interpreted, ran_natively

from rlx.backends.native.elf import undefined_symbols
from rlx.errors import DTypeError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel, Let, ValueType, walk
from rlx.kernels.ir.operations import infer
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_VNNI,
    CORTEX_M4,
    DOT_MACHINES,
    NEON,
    NEON_DOT,
    NEON_I8MM,
    RISCV,
    SM_90A,
    SSE2,
    WASM,
    Machine,
    machine_named,
    runs_here,
    wgsl_with,
)

LANES = (1, 2, 4, 8, 16)
rng = np.random.default_rng(7)


def dot_kernel(lanes: int, first: DType = DType.U8) -> Kernel:
    k = KernelBuilder("dots")
    total, a, b = k.pointer("total", DType.I32), k.pointer("a", first), k.pointer("b", DType.I8)
    y = k.pointer("y", DType.I32, write=True)
    sums = k.load(total, 0, lanes=lanes)
    k.store(y, 0, k.dot4(sums, k.load(a, 0, lanes=4 * lanes), k.load(b, 0, lanes=4 * lanes)))
    return k.build()


def operands(lanes: int, first: DType = DType.U8) -> dict[str, np.ndarray]:
    """Bytes among which the extremes are frequent: their products must not saturate."""
    a = rng.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), 4 * lanes).view(first.numpy)
    b = rng.choice(np.array([-128, -127, -1, 0, 1, 127], np.int8), 4 * lanes)
    total = rng.integers(-(2**30), 2**30, lanes).astype(np.int32)
    return {"total": total, "a": a, "b": b, "y": np.zeros(lanes, np.int32)}


def expected(args: dict[str, np.ndarray]) -> np.ndarray:
    products = args["a"].astype(np.int64) * args["b"].astype(np.int64)
    return args["total"] + products.reshape(-1, 4).sum(1)


@pytest.mark.parametrize("lanes", LANES)
def test_sums_of_four_products(lanes):
    for _ in range(4):
        args = operands(lanes)
        np.testing.assert_array_equal(check_everywhere(dot_kernel(lanes), args)["y"], expected(args))


@pytest.mark.parametrize("first", [DType.U8, DType.I8])
@pytest.mark.parametrize("lanes", LANES)
def test_the_machine_with_dot_instructions(lanes, first):
    kernel, args = dot_kernel(lanes, first), operands(lanes, first)
    for machine in (*DOT_MACHINES.values(), wgsl_with(["dot4"])):
        np.testing.assert_array_equal(interpreted(legalize(kernel, machine), args)["y"], expected(args))
        if runs_here(machine):
            np.testing.assert_array_equal(ran_natively(kernel, args, machine)["y"], expected(args))


def test_sums_wrap_as_integers_do():
    args = operands(4)
    args["total"][:] = 2**31 - 1
    args["a"][:], args["b"][:] = 255, 127
    wrapped = expected(args).astype(np.int32)
    assert (wrapped < 0).all()
    np.testing.assert_array_equal(check_everywhere(dot_kernel(4), args)["y"], wrapped)


@pytest.mark.parametrize(
    ("machine", "lanes", "word"),
    [
        (AVX512_VNNI, 16, "vpdpbusd"),
        (AVX512_VNNI, 8, "vpdpbusd"),
        (AVX2_VNNI, 8, "vpdpbusd"),
        (NEON_I8MM, 4, "usdot"),
        (NEON_DOT, 4, "sdot"),
        (AVX512, 16, "vpmaddwd"),
        (AVX2, 8, "vpmaddwd"),
        (NEON, 4, "smull"),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_instructions(machine: Machine, lanes: int, word: str):
    assert word in compile_assembly(dot_kernel(lanes), machine)


def test_bytes_with_signs_on_both_sides():
    """Arm's older instruction takes them as they are, and bytes without signs in three steps."""
    for first, count in ((DType.I8, 1), (DType.U8, 3)):
        assert compile_assembly(dot_kernel(4, first), NEON_DOT).count("\tsdot") == count


@pytest.mark.parametrize("machine", [*DOT_MACHINES.values(), AVX512, AVX2, SSE2, NEON, RISCV, WASM, CORTEX_M4, SM_90A])
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_every_target_has_it(machine: Machine, lanes: int):
    legal = legalize(dot_kernel(lanes), machine)
    left = [s for s in walk(legal.body) if isinstance(s, Let) and s.op == "dot4"]
    # Of bytes with signs those without are made in three steps.
    assert len(left) == (lanes in machine.dot4_lanes) * (3 if machine.dot4_is_signed else 1)
    assert compile_assembly(dot_kernel(lanes), machine)
    if machine.triple.startswith(("x86_64", "aarch64", "riscv64")):
        assert not undefined_symbols(compile_object(dot_kernel(lanes), machine))


def test_what_it_takes():
    wide = [ValueType(DType.I32, 4), ValueType(DType.U8, 16), ValueType(DType.I8, 16)]
    assert infer("dot4", wide) == wide[0]
    for wrong in ([wide[0], wide[2], wide[1]], [wide[0], wide[1]], [wide[0], ValueType(DType.U8, 4), wide[2]]):
        with pytest.raises(DTypeError, match="dot4 takes i32xN, u8x4N or i8x4N, and i8x4N"):
            infer("dot4", wrong)


def test_names_of_machines():
    assert machine_named("avx512vnni") is AVX512_VNNI
    # An encoding of its own: a machine may have one without the other.
    assert not (runs_here(AVX2_VNNI) and runs_here(AVX512_VNNI))
