"""`matmul_kernel` against f64 products: run-time sizes, remainders, layouts, dtypes, fused epilogues."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere, ran_natively
from scipy.special import ndtr

from rlx.backends.native import kernels as native
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import block_shape
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product, matmul_kernel, pack_panels, panel_width
from rlx.kernels.ir.extents import Extent
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.machines import AVX2, AVX512, CORTEX_M4, NEON, SSE2, Machine
from rlx.kernels.specs.expr import apply, index, literal, operand

F32, F64, BF16, I32 = DType.F32, DType.F64, DType.BF16, DType.I32
rng = np.random.default_rng(29)


def normal(*shape: int, dtype: DType = F32) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype.numpy)


def bias_gelu() -> Epilogue:
    return Epilogue((apply("gelu", apply("add", operand(0, F32), operand(1, F32))),), (Matrix("bias", F32, 0),))


def matrices(n: Extent, k: Extent, dtype: DType = F32, out: DType = F32) -> tuple[Matrix, Matrix, Matrix]:
    """A[m, k], B[k, n] and C[m, n], row by row."""
    return Matrix("a", dtype, k), Matrix("b", dtype, n), Matrix("c", out, n)


def close(found: np.ndarray, wanted: np.ndarray, depth: int, unit: float = 2.0**-24) -> None:
    """Within the error of a sum of `depth` products in any order, for operands of about 1."""
    scale = unit * 4 * max(1.0, np.sqrt(depth)) * max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=scale)


def test_tiles_fill_the_registers():
    assert [block_shape(t, F32, "n").tile_rows for t in (AVX512, AVX2, SSE2, NEON, CORTEX_M4)] == [6, 6, 6, 6, 2]
    assert [panel_width(t, F32) for t in (AVX512, AVX2, SSE2)] == [64, 16, 8]
    assert panel_width(AVX512, F64) == 32


def test_packing():
    b = normal(5, 37)
    packed = pack_panels(b, 16)
    assert packed.shape == (3, 5, 16)
    np.testing.assert_array_equal(packed.transpose(1, 0, 2).reshape(5, 48)[:, :37], b)
    assert not packed[2, :, 5:].any()
    with pytest.raises(ShapeError, match="a matrix is wanted"):
        pack_panels(normal(2, 3, 4), 8)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_gelu_linear_layer_for_every_batch_from_one_kernel(target: Machine, packed: bool):
    n, k = 136, 40
    product = Product("m", n, k, *matrices(n, k), bias_gelu())
    kernel = matmul_kernel("layer", target, product, packed=packed)
    b, bias = normal(k, n), normal(n)
    stored = pack_panels(b, panel_width(target, F32, n)) if packed else b
    for m in (0, 1, 2, 5, 13, 14, 15, 31, 56, 61, 130):
        a = normal(m, k)
        args = {"a": a, "b": stored, "c": np.full((m, n), np.nan, np.float32), "bias": bias, "m": m}
        found = ran_natively(kernel, args, target)["c"]
        x = a.astype(np.float64) @ b.astype(np.float64) + bias
        close(found, x * ndtr(x), k)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_all_sizes_at_run_time(target: Machine, packed: bool):
    kernel = matmul_kernel("product", target, Product("m", "n", "k", *matrices("n", "k")), packed=packed)
    for m, n, k in (
        (3, 5, 7),
        (1, 1, 1),
        (17, 33, 9),
        (4, 64, 16),
        (9, 130, 5),
        (2, 31, 0),
        (0, 8, 3),
        (3, 0, 3),
        (15, 100, 3),
    ):
        a, b = normal(m, k), normal(k, n)
        stored = pack_panels(b, panel_width(target, F32)) if packed else b
        args = {"a": a, "b": stored, "c": np.full((m, n), np.nan, np.float32), "m": m, "n": n, "k": k}
        close(ran_natively(kernel, args, target)["c"], a.astype(np.float64) @ b.astype(np.float64), k)


def test_interpreter_and_native_code_agree():
    for target, packed in ((AVX512, True), (AVX2, False), (SSE2, False), (NEON, True)):
        product = Product("m", "n", "k", *matrices("n", "k"), bias_gelu())
        kernel = matmul_kernel("product", target, product, packed=packed)
        for m, n, k in ((15, 37, 3), (2, 0, 2), (7, 8, 0)):
            b = normal(k, n)
            stored = pack_panels(b, panel_width(target, F32)) if packed else b
            args = {"a": normal(m, k), "b": stored, "c": np.zeros((m, n), np.float32), "bias": normal(n)}
            check_everywhere(kernel, args | {"m": m, "n": n, "k": k}, rtol=1e-5)


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_strided_batched_and_transposed_operands(target: Machine):
    """C[h] = A[h] @ B[h]^T for heads that lie side by side, as in attention; A and B are views of one array each."""
    heads, m, n, k = 3, 9, 21, 8
    a, b = normal(m, heads, k), normal(n, heads, k)
    product = Product(
        "m",
        n,
        k,
        a=Matrix("a", F32, heads * k, batch_stride=k),
        b=Matrix("b", F32, 1, heads * k, batch_stride=k),
        c=Matrix("c", F32, n, batch_stride="cb"),
        batch=heads,
    )
    kernel = matmul_kernel("heads", target, product)
    assert [p.name for p in kernel.params] == ["a", "b", "c", "m", "cb"]
    args = {"a": a, "b": b, "c": np.zeros((heads, m, n), np.float32), "m": m, "cb": m * n}
    wanted = np.einsum("mhk,nhk->hmn", a.astype(np.float64), b.astype(np.float64))
    close(ran_natively(kernel, args, target)["c"], wanted, k)


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_dtypes(target: Machine):
    m, n, k = 11, 37, 24

    def product(dtype: DType, out: DType, accumulator: DType | None = None) -> tuple[np.ndarray, np.ndarray]:
        a, b = normal(m, k, dtype=dtype) * dtype.numpy.type(2), normal(k, n, dtype=dtype) * dtype.numpy.type(2)
        stored = matrices(n, k, dtype, out)
        kernel = matmul_kernel("product", target, Product(m, n, k, *stored), accumulator=accumulator)
        found = ran_natively(kernel, {"a": a, "b": b, "c": np.zeros((m, n), out.numpy)}, target)["c"]
        return found, a.astype(np.float64) @ b.astype(np.float64)

    found, wanted = product(F64, F64)
    close(found, wanted, k, 2.0**-53)
    for half in (BF16, DType.F16):
        close(*product(half, F32), k)
        found, wanted = product(half, half)
        np.testing.assert_allclose(found.astype(float), wanted, rtol=2.0**-7, atol=1e-2)
    np.testing.assert_array_equal(*product(I32, I32))
    np.testing.assert_array_equal(*product(DType.I8, I32, accumulator=I32))


def test_epilogue_operands_of_every_shape():
    """scale per row, bias per column, one scalar, a residual of the full shape, and a stored bf16."""
    m, n, k = 15, 37, 8
    acc, scale, bias, one, residual = (operand(i, F32) for i in range(5))
    expr = apply(
        "cast", apply("add", apply("mul", apply("add", apply("mul", acc, scale), bias), one), residual), to=BF16
    )
    extra = (Matrix("scale", F32, 1, 0), Matrix("bias", F32, 0), Matrix("one", F32, 0, 0), Matrix("residual", F32, n))
    for target in NATIVE_TARGETS:
        product = Product("m", n, k, *matrices(n, k, out=BF16), Epilogue((expr,), extra))
        kernel = matmul_kernel("mixed", target, product)
        args = {"a": normal(m, k), "b": normal(k, n), "c": np.zeros((m, n), BF16.numpy), "scale": normal(m)}
        args |= {"bias": normal(n), "one": normal(1), "residual": normal(m, n), "m": m}
        found = ran_natively(kernel, args, target)["c"]
        x = {name: array.astype(np.float64) for name, array in args.items() if isinstance(array, np.ndarray)}
        wanted = (x["a"] @ x["b"] * x["scale"][:, None] + x["bias"]) * x["one"] + x["residual"]
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2.0**-7, atol=1e-5)


def test_residual_in_place():
    m, n, k = 13, 70, 5
    expr = apply("add", apply("tanh", operand(0, F32)), operand(1, F32))
    for target in NATIVE_TARGETS:
        epilogue = Epilogue((expr,), (Matrix("residual", F32, n),))
        kernel = matmul_kernel("residual", target, Product("m", n, k, *matrices(n, k), epilogue))
        a, b, c = normal(m, k), normal(k, n), normal(m, n)
        wanted = np.tanh(a.astype(np.float64) @ b.astype(np.float64)) + c
        native.load(kernel, target)(a, b, c, c, m)
        close(c, wanted, k)


def test_epilogue_sees_its_place():
    """Scores masked where the column is beyond the row, as in causal attention."""
    m, k = 19, 4
    masked = apply("where", apply("le", index(2), index(1)), operand(0, F32), literal(-np.inf, F32))
    for target in NATIVE_TARGETS:
        a, b, c = Matrix("a", F32, k), Matrix("b", F32, 1, k), Matrix("c", F32, m)
        kernel = matmul_kernel("scores", target, Product(m, m, k, a, b, c, Epilogue((masked,))))
        args = {"a": normal(m, k), "b": normal(m, k), "c": np.zeros((m, m), np.float32)}
        wanted = args["a"].astype(np.float64) @ args["b"].astype(np.float64).T
        found = ran_natively(kernel, args, target)["c"]
        close(np.where(np.tri(m, dtype=bool), found, 0), np.tril(wanted), k)
        assert (found[np.triu_indices(m, 1)] == -np.inf).all()


def test_any_division_of_the_blocks_gives_the_same_bits():
    m, n, k = 130, 200, 16
    kernel = matmul_kernel("product", NATIVE_TARGETS[0], Product("m", n, k, *matrices(n, k)))
    a, b, whole, parts = normal(m, k), normal(k, n), np.zeros((m, n), np.float32), np.zeros((m, n), np.float32)
    f = native.load(kernel, NATIVE_TARGETS[0])
    f(a, b, whole, m)
    count = grid_size(kernel, {"m": m})
    assert count > 4
    for block in reversed(range(count)):
        f(a, b, parts, m, first=block, last=block + 1)
    np.testing.assert_array_equal(whole, parts)


def test_a_hidden_conversion_is_refused():
    with pytest.raises(OpError, match="accumulates in f32 and stores i32; say the conversion in an epilogue"):
        matmul_kernel("product", AVX512, Product(4, 4, 4, *matrices(4, 4, out=I32)))
