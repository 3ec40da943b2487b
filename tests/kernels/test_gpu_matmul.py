"""Products with GPU schedules, in the interpreter, which runs all threads from barrier to barrier and checks every
access, against NumPy."""

import numpy as np
import pytest

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.gpu.matmul import gpu_matmul_kernel, tile_shape
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.kernels.specs.expr import apply, operand

rng = np.random.default_rng(0)


def stored(array, transposed):
    """Memory and strides of a matrix [batch, rows, columns]."""
    rows, columns = array.shape[1:]
    if transposed:
        return np.ascontiguousarray(array.transpose(0, 2, 1)).reshape(-1), (1, rows, rows * columns)
    return np.ascontiguousarray(array).reshape(-1), (columns, 1, rows * columns)


def run(m, n, k, *, batch=1, a_turned=False, b_turned=False, dtype=DType.F32, named=(), bs=1, epilogue=None, acc=None):
    numpy = dtype.numpy
    draw = (lambda *s: rng.integers(-5, 6, s)) if dtype.is_int else (lambda *s: rng.standard_normal(s))
    a = draw(batch, m, k).astype(numpy)
    b = [draw(batch, k, n).astype(numpy) for _ in range(bs)]
    memory_a, strides_a = stored(a, a_turned)
    memories_b, strides_b = zip(*(stored(x, b_turned) for x in b))
    c_type = acc or (DType.F32 if dtype in (DType.BF16, DType.F16) else dtype)
    sizes = {name: name if name in named else size for name, size in (("m", m), ("n", n), ("k", k))}
    matrix_a = Matrix("a", dtype, *strides_a)
    matrices_b = tuple(Matrix(f"b{i}", dtype, *s) for i, s in enumerate(strides_b))
    matrix_c = Matrix("c", c_type, n, 1, m * n)
    product = Product(sizes["m"], sizes["n"], sizes["k"], matrix_a, matrices_b, matrix_c, epilogue, batch)
    kernel = gpu_matmul_kernel("product", product, acc)
    verify(kernel)
    c = np.full(batch * m * n, 99, c_type.numpy)
    arguments = {"a": memory_a, "c": c, **{f"b{i}": x for i, x in enumerate(memories_b)}}
    interpret(kernel, {**arguments, **{name: {"m": m, "n": n, "k": k}[name] for name in named}})
    wide = "i8" if dtype.is_int else "f8"
    return c.reshape(batch, m, n), [a.astype(wide) @ x.astype(wide) for x in b], kernel


@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 24), (3, 5, 7), (8, 9, 16)])
def test_few_rows(m, n, k, b_turned):
    got, (want,), _ = run(m, n, k, b_turned=b_turned)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("a_turned", "b_turned"), [(False, False), (True, False), (False, True), (True, True)])
def test_tiles(a_turned, b_turned):
    got, (want,), _ = run(20, 37, 18, a_turned=a_turned, b_turned=b_turned)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_large_tiles():
    got, (want,), kernel = run(66, 65, 3)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert tile_shape(DType.F32, kernel.origin.product)[:2] == (128, 128)


def test_several_blocks():
    got, (want,), kernel = run(65, 64, 3)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert tile_shape(DType.F32, kernel.origin.product)[:2] == (64, 64)


@pytest.mark.parametrize(("m", "batch"), [(2, 2), (9, 1)])
def test_sizes_that_are_named_and_batches(m, batch):
    got, (want,), _ = run(m, 6, 5, batch=batch, named=("m", "n", "k"))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("named", [(), ("m", "n", "k")])
@pytest.mark.parametrize("m", [2, 9])
def test_nothing_to_add_up_gives_zeros(m, named):
    got, _, _ = run(m, 6, 0, named=named)
    assert not got.any()


@pytest.mark.parametrize(("dtype", "acc"), [(DType.F64, None), (DType.BF16, None), (DType.I32, None)])
@pytest.mark.parametrize("m", [1, 9])
def test_types(m, dtype, acc):
    got, (want,), _ = run(m, 8, 16, dtype=dtype, b_turned=True, acc=acc)
    bound = 0 if dtype.is_int else 1e-12 if dtype is DType.F64 else 1e-5
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


@pytest.mark.parametrize("m", [1, 9])
def test_two_products_meet_in_an_epilogue(m):
    left, right = operand(0, DType.F32), operand(1, DType.F32)
    gated = Epilogue((apply("mul", left, right),))
    got, (x, y), _ = run(m, 8, 5, bs=2, epilogue=gated)
    np.testing.assert_allclose(got, x * y, rtol=1e-4, atol=1e-4)


def test_code_reads_whole_vectors():
    a, b, c = Matrix("a", DType.BF16, 4096), Matrix("b", DType.BF16, 1, 4096), Matrix("c", DType.F32, 1024)
    kernel = gpu_matmul_kernel("one_row", Product(1, 1024, 4096, a, b, c))
    ptx = compile_assembly(kernel, machine_named("sm_90a"))
    assert "ld.global.nc.v4" in ptx and "fma.rn.f32" in ptx
