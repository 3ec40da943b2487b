"""Products by matrices that waves load and store as a whole: kernels in the interpreter, faults that it finds, and
their text for Metal. tests/backends/metal_backend runs that text."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (NumPy's bf16)
import numpy as np
import pytest

from rlx.errors import BackendError, VerificationError
from rlx.ir.dtype import DType
from rlx.kernels.emit.gpu_c_emit import GpuKernel, legal_for_text
from rlx.kernels.emit.msl_emit import msl_module
from rlx.kernels.gpu.matmul_waves import wave_matmul_kernel
from rlx.kernels.gpu.schedules import TABLE
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.interpret import KernelFault, interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import METAL, METAL_MATRICES, OPENCL
from rlx.kernels.specs.expr import apply, operand
from rlx.kernels.specs.products import Epilogue, Matrix, Product, ProductSpec

UNIT = METAL_MATRICES.matrix
F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
rng = np.random.default_rng(0)


def turned(dtype=F32, threads=32, moved=False):
    """A transpose of 8x8 by a wave, through shared memory; `moved` by as much as the number of the thread."""
    k = GroupBuilder("turned")
    x, y = k.pointer("x", dtype), k.pointer("y", dtype, write=True)
    tile, fragment = k.shared("tile", dtype, 128), k.fragment("f", dtype, 8, 8)
    with k.parallel("block", 1), k.threads("thread", threads) as thread:
        for i in range(2):
            k.store(tile, thread * 2 + i, k.load(x, thread * 2 + i))
        k.barrier()
        start = thread if moved else k.as_index(0)
        k.wave_load(UNIT, fragment, k.region(tile, start, 8, 8), transposed=True)
        k.barrier()
        k.wave_store(UNIT, k.region(tile, 0, 8, 8), fragment)
        k.barrier()
        for i in range(2):
            k.store(y, thread * 2 + i, k.load(tile, thread * 2 + i))
    return k.build()


def test_a_matrix_goes_and_comes_as_a_whole():
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    verify(turned())
    interpret(turned(), {"x": x, "y": y})
    np.testing.assert_array_equal(y.reshape(8, 8), x.reshape(8, 8).T)


def test_what_waves_may_not_do():
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with pytest.raises(KernelFault, match="differ in where they read"):
        interpret(turned(moved=True), {"x": x, "y": y})
    with pytest.raises(KernelFault, match="a wave of 16 threads; the unit has 32"):
        interpret(turned(threads=16), {"x": x[:32], "y": y[:32]})
    k = GroupBuilder("wide")
    wide = k.fragment("wide", F32, 16, 16)
    with k.parallel("block", 1), k.threads("thread", 32):
        k.wave_fill(UNIT, wide, 0.0)
    with pytest.raises(VerificationError, match="wide is 16x16, not 8"):
        verify(k.build())
    for machine in (METAL, OPENCL):
        with pytest.raises(BackendError, match="turned has roles, fragments"):
            legal_for_text(turned(), machine, machine.name)


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("shape", [(16, 16, 24), (19, 9, 37)], ids=str)
def test_products(dtype, shape):
    m, n, k = shape
    product = Product("m", n, k, Matrix("a", dtype, k), Matrix("b", dtype, n), Matrix("c", F32, n))
    kernel = wave_matmul_kernel("product", METAL_MATRICES, product, F32)
    verify(kernel)
    a, b = (rng.standard_normal(dims).astype(dtype.numpy) for dims in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float32)
    interpret(kernel, {"a": a, "b": b, "c": c, "m": m})
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-5, atol=1e-5)


def test_several_products_with_an_epilogue():
    m, n, k = 16, 8, 32
    gate, up = operand(0, F32), operand(1, F32)
    epilogue = Epilogue((apply("mul", gate, up),))
    bs = [Matrix(f"b{i}", F16, 1, k) for i in range(2)]
    product = Product(m, n, k, Matrix("a", F16, k), bs, [Matrix("c", F32, n)], epilogue=epilogue)
    kernel = wave_matmul_kernel("gated", METAL_MATRICES, product, F32)
    a, *weights = (rng.standard_normal(dims).astype(np.float16) for dims in ((m, k), (n, k), (n, k)))
    c = np.zeros((m, n), np.float32)
    interpret(kernel, {"a": a, "b0": weights[0], "b1": weights[1], "c": c})
    wanted = [a.astype(np.float32) @ w.T.astype(np.float32) for w in weights]
    np.testing.assert_allclose(c, wanted[0] * wanted[1], rtol=1e-4, atol=1e-4)


def test_the_text_has_matrices_of_the_types_of_the_factors():
    product = Product(64, 64, 64, Matrix("a", F16, 64), Matrix("b", F16, 64), Matrix("c", F32, 64))
    spec = ProductSpec(product, F32)
    for machine, has_matrices in ((METAL, False), (METAL_MATRICES, True)):
        kernel = legal_for_text(TABLE.make("product", machine, spec), machine, "Metal")
        text = msl_module([GpuKernel("k0", kernel)])
        assert ("#include <metal_simdgroup_matrix>" in text) == has_matrices
        assert ("simdgroup_matrix<half, 8, 8>" in text) == has_matrices
        # Sixteen matrices of sums for each of the four of K that a step has.
        assert text.count("simdgroup_multiply_accumulate") == 64 * has_matrices
