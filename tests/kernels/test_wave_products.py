"""Products by instructions for whole matrices: the registers of each unit, whole kernels in the interpreter, and what
LLVM makes of their inner loops."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (NumPy's bf16)
import numpy as np
import pytest

from rlx.backends.rocm.code import code_object
from rlx.backends.rocm.code_object import read_code_object
from rlx.backends.rocm.instruction_mix import inner_loop
from rlx.errors import BackendError, OpError, VerificationError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.gpu.matmul_waves import wave_matmul_kernel
from rlx.kernels.gpu.schedules import TABLE
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.interpret import KernelFault, interpret
from rlx.kernels.ir.rewrite import copy_into
from rlx.kernels.ir.verify import verify
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import AMD_CHIPS, GFX90A, GFX942, GFX1030, GFX1100, GFX1201, SM_90A
from rlx.kernels.specs.expr import apply, operand
from rlx.kernels.specs.products import Epilogue, Matrix, Product, ProductSpec

MATRIX_CHIPS = [chip for chip in AMD_CHIPS if chip.matrix is not None]
F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
rng = np.random.default_rng(0)
by_chip = pytest.mark.parametrize("chip", MATRIX_CHIPS, ids=lambda c: c.name)


def one_product(unit, dtype, threads=None):
    """16x16 matrices in memory, each element read and written by the thread that the manuals of the chips name."""
    k = GroupBuilder("one")
    a, b = k.pointer("a", dtype), k.pointer("b", dtype)
    c = k.pointer("c", F32, write=True, read=True)
    with k.parallel("block", 1), k.threads("thread", threads or unit.threads) as thread:
        line, group = thread % 16, thread // 16
        if unit.threads == 64:  # MFMA: four groups of threads, four elements of K each
            start, rows = group * 4, [group * 4 + i for i in range(4)]
        elif unit.factor_lanes == 16:  # WMMA of RDNA 3: both halves have all of K, rows of C go to them in turns
            start, rows = k.as_index(0), [k.as_index(2 * i) + group for i in range(8)]
        else:  # WMMA of RDNA 4: halves of K, and of the rows of C
            start, rows = group * 8, [group * 8 + i for i in range(8)]
        own_a = k.load(a, line * 16 + start, lanes=unit.factor_lanes)
        own_b = k.load(b, line + start * 16, lanes=unit.factor_lanes, stride=16)
        total = k.const(1.5, k.const(0.0, F32).type.with_lanes(unit.sum_lanes))
        result = k.wave_mma(unit, own_a, own_b, total)
        for i, row in enumerate(rows):
            k.store(c, row * 16 + line, k.extract(result, i))
    return k.build()


@by_chip
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_each_thread_has_the_elements_that_the_chip_gives_it(chip, dtype):
    kernel = one_product(chip.matrix, dtype)
    verify(kernel)
    assert copy_into(kernel, GroupBuilder("one")).text == kernel.text and "wave mma" in kernel.text
    a, b = (rng.standard_normal((16, 16)).astype(dtype.numpy) for _ in range(2))
    c = np.full(256, np.nan, "f4")
    interpret(kernel, {"a": a.ravel(), "b": b.ravel(), "c": c})
    np.testing.assert_allclose(c.reshape(16, 16), a.astype("f4") @ b.astype("f4") + 1.5, rtol=1e-5, atol=1e-5)


def test_a_wave_is_whole_and_of_the_machine():
    kernel = one_product(GFX942.matrix, F16, threads=32)
    zeros = np.zeros(256, "f2")
    with pytest.raises(KernelFault, match="a wave of 32 threads; the unit has 64"):
        interpret(kernel, {"a": zeros, "b": zeros, "c": np.zeros(256, "f4")})
    for machine in (GFX1100, GFX1030, SM_90A):
        with pytest.raises(BackendError, match="does not spell"):
            emit_llvm(legalize(one_product(GFX942.matrix, F16), machine), machine)
    k = GroupBuilder("wrong")
    with k.parallel("block", 1), k.threads("thread", 64):
        factor, sums = k.const(0, k.const(0, F16).type.with_lanes(4)), k.const(0, k.const(0, F32).type.with_lanes(8))
        k.wave_mma(GFX942.matrix, factor, factor, sums)
    with pytest.raises(VerificationError, match="a wave's sums are f32x4, got f32x8"):
        verify(k.build())


def product(m, n, k, dtype, turned_a=False, turned_b=False, names=False):
    """Row-major matrices, or transposed ones; with `names` rows and K are known when the kernel runs."""
    c = Matrix("c", F32, n, 1)
    if names:
        return Product("m", n, "k", Matrix("a", dtype, "k", 1), Matrix("b", dtype, n, 1), c)
    a = Matrix("a", dtype, *((1, m) if turned_a else (k, 1)))
    return Product(m, n, k, a, Matrix("b", dtype, *((1, k) if turned_b else (n, 1))), c)


def check(kernel, m, n, k, dtype, turned_a=False, turned_b=False, sizes=None):
    verify(kernel)
    a, b = (rng.standard_normal(d).astype(dtype.numpy) for d in ((m, k), (k, n)))
    given_a, given_b = a.T if turned_a else a, b.T if turned_b else b
    c = np.full(m * n, np.nan, "f4")
    args = {"a": np.ascontiguousarray(given_a).ravel(), "b": np.ascontiguousarray(given_b).ravel(), "c": c}
    interpret(kernel, args | (sizes or {}))
    np.testing.assert_allclose(c.reshape(m, n), a.astype("f4") @ b.astype("f4"), rtol=1e-4, atol=1e-4)


# One wave to a block keeps the interpreter short; rows, columns and K end in the middle of matrices and steps.
@pytest.mark.parametrize(
    ("chip", "dtype", "sizes", "turned"),
    [
        (GFX942, F16, (19, 8, 36), (False, False)),
        (GFX1100, BF16, (17, 5, 20), (False, True)),
        (GFX1201, BF16, (16, 16, 32), (True, False)),
    ],
    ids=lambda x: getattr(x, "name", None) or str(x).replace(" ", ""),
)
def test_products_are_numpys(chip, dtype, sizes, turned):
    kernel = wave_matmul_kernel("mm", chip, product(*sizes, dtype, *turned), F32, 16, (1, 1))
    check(kernel, *sizes, dtype, *turned)


@pytest.mark.long
@by_chip
@pytest.mark.parametrize("turned", [(a, b) for a in (False, True) for b in (False, True)], ids=str)
@pytest.mark.parametrize("sizes", [(33, 40, 70), (16, 24, 64), (64, 19, 7)], ids=str)
def test_products_of_all_layouts(chip, turned, sizes):
    kernel = wave_matmul_kernel("mm", chip, product(*sizes, BF16, *turned), F32, 32, (2, 1))
    check(kernel, *sizes, BF16, *turned)


def test_sizes_that_are_known_late():
    """Many rows by the waves, few by the way for those, in one kernel."""
    kernel = wave_matmul_kernel("mm", GFX1201, product(0, 8, 0, F16, names=True), F32, 16, (1, 1))
    check(kernel, 9, 8, 37, F16, sizes={"m": 9, "k": 37})
    check(kernel, 3, 8, 5, F16, sizes={"m": 3, "k": 5})


def test_an_epilogue_makes_one_result_of_two_products_in_each_batch():
    m, n, k, batch = 9, 8, 16, 2
    joined = apply("add", apply("mul", operand(0, F32), operand(1, F32)), operand(2, F32))
    a, c = Matrix("a", F16, k, 1, m * k), Matrix("c", F32, n, 1, m * n)
    bs = tuple(Matrix(name, F16, n, 1, k * n) for name in ("b", "other"))
    both = Product(m, n, k, a, bs, c, Epilogue((joined,), (Matrix("bias", F32, 0),)), batch)
    kernel = wave_matmul_kernel("mm", GFX1100, both, F32, 16, (1, 1))
    bias, w = rng.standard_normal(n).astype("f4"), rng.standard_normal((batch, k, n)).astype("f2")
    x, v = rng.standard_normal((batch, m, k)).astype("f2"), rng.standard_normal((batch, k, n)).astype("f2")
    c = np.full(batch * m * n, np.nan, "f4")
    interpret(kernel, {"a": x.ravel(), "b": w.ravel(), "other": v.ravel(), "c": c, "bias": bias})
    x, w, v = (z.astype("f4") for z in (x, w, v))
    np.testing.assert_allclose(c.reshape(batch, m, n), (x @ w) * (x @ v) + bias, rtol=1e-4, atol=1e-4)
    with pytest.raises(OpError, match="several Bs need an epilogue"):
        wave_matmul_kernel("mm", GFX1100, Product(m, n, k, a, bs, both.c), F32)


def test_what_has_no_instructions_is_refused_and_gets_another_schedule():
    spec = ProductSpec(product(64, 64, 64, F16), F32)
    with pytest.raises(OpError, match="gfx1030 has no instructions for products of f16 in f32"):
        wave_matmul_kernel("mm", GFX1030, spec.product, F32)
    names = {chip.name: TABLE.make("mm", chip, spec).text.count("wave mma") > 0 for chip in (*AMD_CHIPS, SM_90A)}
    assert names == {
        "gfx90a": True,
        "gfx942": True,
        "gfx1030": False,
        "gfx1100": True,
        "gfx1201": True,
        "sm_90a": False,
    }
    for other in (product(64, 64, 64, F32), product(4, 64, 64, F16)):
        assert "wave mma" not in TABLE.make("mm", GFX942, ProductSpec(other, F32)).text


@pytest.mark.parametrize(
    ("chip", "dtype", "turned"),
    [
        (GFX90A, BF16, False),
        (GFX942, F16, True),
        (GFX1100, F16, True),
        (GFX1201, BF16, False),
        *(
            pytest.param(*case, marks=pytest.mark.targets)
            for case in ((GFX90A, F16, True), (GFX942, BF16, False), (GFX1100, BF16, False), (GFX1201, F16, True))
        ),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_the_inner_loop_is_products(chip, dtype, turned):
    """At least 60 % of what the vector units issue multiplies matrices, nothing is spilled, and LDS has room for a
    second block."""
    kernel = wave_matmul_kernel("mm", chip, product(4096, 4096, 4096, dtype, False, turned), F32)
    mix = inner_loop(compile_assembly(kernel, chip))
    assert mix.matrix == 32 and mix.share >= 0.6, mix
    info = read_code_object(code_object(kernel, chip)).kernels["mm"]
    assert (info.spilled, info.scratch_bytes) == (0, 0) and info.lds_bytes <= 32 << 10
    assert info.occupancy(chip.name) >= 2


def test_the_mix_is_counted_in_the_loop_alone():
    text = "v_wmma_f32 v0\n.LBB0_1:\n v_mfma_x a0\n v_add_f32 v0\n ds_read_b128 v0\n s_branch .LBB0_1\nv_add v1\n"
    assert inner_loop(text) == (1, 2, 1) and inner_loop(text).share == 0.5
    assert inner_loop("v_add_f32 v0, v1\n s_endpgm\n") == (0, 0, 0) and inner_loop("").share == 0.0


def test_both_chips_for_computing_have_the_same_registers():
    assert GFX90A.matrix == GFX942.matrix and (GFX90A.wave, GFX1030.wave) == (64, 32)
