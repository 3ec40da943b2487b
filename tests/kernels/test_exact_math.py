"""Remainders of floats against C's fmod, bit by bit; powers of integers against Python's."""

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, interpreted, ran_natively

from rlx.backends.native.elf import undefined_symbols
from rlx.ir.dtype import DType
from rlx.kernels.cpu.maps import map_kernel
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.ir.loop_ir import Let, walk
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import AVX512, MACHINES, WGSL
from rlx.kernels.specs.expr import apply, operand
from rlx.kernels.specs.scopes import Access

rng = np.random.default_rng(23)


def kernel(op, dtype, target):
    expr = apply(op, operand(0, dtype), operand(1, dtype))
    inputs = [Access(f"x{i}", dtype, (1,)) for i in range(2)]
    return map_kernel("f", target, ("n",), inputs, [Access("y", dtype, (1,))], [expr])


def arguments(a, b):
    return {"x0": a, "x1": b, "y": np.zeros_like(a), "n": len(a)}


def floats(dtype, count):
    """Any bits at all, numbers of like size, denormals, and everything special."""
    bits = rng.integers(0, 2**63, count, dtype=np.uint64).astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    denormal = (rng.integers(-50, 50, count) * tiny).astype(dtype)
    usual = (rng.normal(size=count) * 10).astype(dtype)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, tiny, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype
    )
    return np.concatenate([bits, denormal, usual, special])


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_remainders_are_exact(dtype, target):
    values = floats(dtype.numpy, 150)
    a, b = (x.reshape(-1) for x in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        wanted = np.fmod(a, b)
    found = ran_natively(kernel("rem", dtype, target), arguments(a, b), target)["y"]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[wanted == wanted]), np.signbit(wanted[wanted == wanted]))


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_remainders_of_near_multiples_are_exact(target):
    """Quotients that divide to a whole number they are just below, on both sides of where quotients are too large to be
    formed at once; with neighbours of their own kind, so that no other lane decides the way."""
    b = (rng.random(4096) + 1).astype("f4") * np.float32(2.0) ** rng.integers(-40, 40, 4096).astype("f4")
    for bits in (1, 12, 23, 27, 28, 29, 60):
        whole = rng.integers(2 ** (bits - 1), 2**bits, 4096).astype("f8")
        near = (whole * b).astype("f4")
        a = np.nextafter(near, rng.choice(np.array([-np.inf, np.inf], "f4"), 4096))
        for x in (near, a, -a):
            found = ran_natively(kernel("rem", DType.F32, target), arguments(x, b), target)["y"]
            np.testing.assert_array_equal(found, np.fmod(x, b))


def wrapped_power(a, b, dtype):
    if b < 0:
        exact = 0 if abs(a) != 1 else a ** (b % 2)
    else:
        exact = pow(a, b, 2**64)
    return np.array(exact % 2**64, np.uint64).astype(dtype)


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i32", "u32", "i64", "u64"])
def test_integer_powers_wrap(dtype, target):
    kind = DType.of(dtype)
    info = np.iinfo(kind.numpy)
    bases = [0, 1, 2, 3, 7, 10, info.max, info.min, *([-1, -2, -3] if info.min else [])]
    exponents = [0, 1, 2, 3, 5, 15, 16, 17, 63, 64, 127, info.max, *([-1, -2, info.min] if info.min else [])]
    a, b = (x.reshape(-1).astype(kind.numpy) for x in np.meshgrid(np.array(bases, "O"), np.array(exponents, "O")))
    wanted = np.array([wrapped_power(int(x), int(y), kind.numpy) for x, y in zip(a, b)], kind.numpy)
    found = ran_natively(kernel("pow", kind, target), arguments(a, b), target)["y"]
    np.testing.assert_array_equal(found, wanted)


def computes_in_f64(made):
    return any(isinstance(s, Let) and s.result.dtype is DType.F64 for s in walk(made.body))


@pytest.mark.parametrize("machine", [AVX512, WGSL], ids=lambda m: m.name)
def test_the_interpreter_agrees(machine):
    """On what is emitted: remainders of f32 are found in f64 on machines that have it, and on no others."""
    a, b = floats("f4", 8), rng.permutation(floats("f4", 8))
    made = legalize(kernel("rem", DType.F32, machine), machine)
    assert computes_in_f64(made) == machine.has_f64
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(interpreted(made, arguments(a, b))["y"], np.fmod(a, b))


def test_the_interpreter_agrees_on_powers():
    a, b = rng.integers(-9, 9, 33).astype("i4"), rng.integers(-3, 40, 33).astype("i4")
    wanted = [wrapped_power(int(x), int(y), "i4") for x, y in zip(a, b)]
    np.testing.assert_array_equal(interpreted(kernel("pow", DType.I32, AVX512), arguments(a, b))["y"], wanted)


@pytest.mark.parametrize("name", ["generic", "avx2", "neon", "riscv64"])
def test_nothing_becomes_a_library_call(name):
    for op, dtype in (("rem", DType.F32), ("rem", DType.F64), ("pow", DType.I8), ("pow", DType.I64)):
        made = kernel(op, dtype, MACHINES[name])
        assert undefined_symbols(compile_object(made, MACHINES[name])) == set()
