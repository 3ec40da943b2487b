"""Products of a few columns and steps, whose lanes are rows or whole products, against NumPy on every machine here."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere, ran_natively

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.narrow import is_narrow, narrow_kernel
from rlx.kernels.cpu.schedules import TABLE
from rlx.kernels.machines import AVX2, AVX512, CORTEX_M4, Machine
from rlx.kernels.specs.expr import apply, operand
from rlx.kernels.specs.products import Epilogue, Matrix, Product, ProductSpec

F32, F64, BF16 = DType.F32, DType.F64, DType.BF16
rng = np.random.default_rng(61)
BATCH, ROWS = 70, 137


def close(found: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(found, a.astype("f8") @ b.astype("f8"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("n, k", [(3, 3), (1, 8), (8, 2), (4, 4), (5, 1)])
def test_lanes_are_rows(n: int, k: int, dtype: DType, target: Machine):
    """Rows of A side by side, apart, and as columns; B by rows and by columns; as many rows as there are, too few to
    fill a vector and too few for a whole part."""
    a_layouts = {
        "rows": (Matrix("a", dtype, k), lambda a: a),
        "apart": (Matrix("a", dtype, 2 * k, 2), lambda a: np.repeat(a, 2, axis=1)),
        "columns": (Matrix("a", dtype, 1, "m"), lambda a: a.T),
    }
    b_layouts = {"rows": (Matrix("b", dtype, n), lambda b: b), "columns": (Matrix("b", dtype, 1, k), lambda b: b.T)}
    for a_matrix, a_stored in a_layouts.values():
        for b_matrix, b_stored in b_layouts.values():
            product = Product("m", n, k, a_matrix, b_matrix, Matrix("c", dtype, n))
            spec = ProductSpec(product, dtype)
            assert is_narrow(target, spec)
            kernel = narrow_kernel("product", target, spec)
            for m in (1, ROWS, 40 * target.lanes(dtype) + 5):
                a, b = (rng.normal(size=s).astype(dtype.numpy) for s in ((m, k), (k, n)))
                args = {"a": np.ascontiguousarray(a_stored(a)), "b": np.ascontiguousarray(b_stored(b))}
                args |= {"c": np.full((m, n), np.nan, dtype.numpy), "m": m}
                close(ran_natively(kernel, args, target)["c"], a, b)


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 4, 2), (1, 8, 1), (1, 3, 3)], ids=str)
def test_lanes_are_products(sizes: tuple[int, int, int], target: Machine):
    m, k, n = sizes
    a_layouts = (Matrix("a", F32, k, 1, m * k), "bmk->bmk"), (Matrix("a", F32, 1, m, m * k), "bmk->bkm")
    b_layouts = (Matrix("b", F32, n, 1, k * n), "bkn->bkn"), (Matrix("b", F32, 1, k, k * n), "bkn->bnk")
    for a_matrix, a_stored in a_layouts:
        for b_matrix, b_stored in b_layouts:
            product = Product(m, n, k, a_matrix, b_matrix, Matrix("c", F32, n, 1, m * n), None, "batch")
            spec = ProductSpec(product, F32)
            assert is_narrow(target, spec)
            kernel = narrow_kernel("product", target, spec)
            for batch in (1, BATCH, 40 * target.lanes(F32) + 3):
                a, b = (rng.normal(size=s).astype("f4") for s in ((batch, m, k), (batch, k, n)))
                args = {"a": np.einsum(a_stored, a).copy(), "b": np.einsum(b_stored, b).copy()}
                args |= {"c": np.full((batch, m, n), np.nan, "f4"), "batch": batch}
                close(ran_natively(kernel, args, target)["c"], a, b)


def finished(batch_stride: int) -> ProductSpec:
    """max(a @ b0 · (a @ b1) + bias, residual), where the residual is what the result is stored over."""
    expr = apply("add", apply("mul", operand(0, F32), operand(1, F32)), operand(2, F32))
    epilogue = Epilogue((apply("max", expr, operand(3, F32)),), (Matrix("e0", F32, 0), Matrix("e1", F32, 2, 1, 2 * 3)))
    bs = tuple(Matrix(f"b{i}", F32, 2, 1, batch_stride) for i in range(2))
    product = Product(3, 2, 4, Matrix("a", F32, 4, 1, 12), bs, Matrix("c", F32, 2, 1, 6), epilogue, "batch")
    return ProductSpec(product, F32)


@pytest.mark.parametrize("batch_stride", [0, 8], ids=["one B", "many"])
def test_epilogues_may_read_what_they_store_over(batch_stride: int):
    spec, batch = finished(batch_stride), 37
    for machine in (AVX512, AVX2):
        kernel = narrow_kernel("product", machine, spec)
        a, bias, c = (rng.normal(size=s).astype("f4") for s in ((batch, 3, 4), (2,), (batch, 3, 2)))
        bs = [rng.normal(size=(batch if batch_stride else 1, 4, 2)).astype("f4") for _ in range(2)]
        args = {"a": a, "b0": bs[0], "b1": bs[1], "c": c, "e0": bias, "e1": c, "batch": batch}
        wanted = np.maximum((a @ bs[0]) * (a @ bs[1]) + bias, c)
        np.testing.assert_allclose(check_everywhere(kernel, args, rtol=1e-5)["c"], wanted, rtol=1e-4, atol=1e-5)


def test_a_row_has_the_same_bits_wherever_it_stands():
    spec = ProductSpec(Product("m", 3, 3, Matrix("a", F32, 3), Matrix("b", F32, 3), Matrix("c", F32, 3)), F32)
    for target in NATIVE_TARGETS:
        kernel = narrow_kernel("product", target, spec)
        b, row = rng.normal(size=(3, 3)).astype("f4"), rng.normal(size=3).astype("f4")
        args = {"a": np.tile(row, (ROWS, 1)), "b": b, "c": np.zeros((ROWS, 3), "f4"), "m": ROWS}
        found = ran_natively(kernel, args, target)["c"]
        assert (found == found[0]).all()


def test_other_products_keep_panels():
    a, c = Matrix("a", F32, "k"), Matrix("c", F32, "n")

    def spec(m: int | str, n: int, k: int, dtype: DType = F32, **options: bool) -> ProductSpec:
        matrices = (Matrix(name, dtype, s) for name, s in (("a", k), ("b", n), ("c", n)))
        return ProductSpec(Product(m, n, k, *matrices), F32, **options)

    assert is_narrow(AVX512, spec("m", 3, 3))
    assert [s.name for s in TABLE.candidates(AVX512, spec("m", 3, 3))] == ["few columns", "numbers"]
    for other in (
        spec("m", 5, 5),
        spec("m", 1, 16),
        spec(3, 3, 3),
        spec("m", 3, 3, BF16),
        spec("m", 3, 3, packed=True),
    ):
        assert not is_narrow(AVX512, other)
    assert not is_narrow(AVX512, ProductSpec(Product("m", "n", "k", a, Matrix("b", F32, "n"), c), F32))
    assert not is_narrow(CORTEX_M4, spec("m", 3, 3))
    matrices = (Matrix(name, F32, 4, 1, 16) for name in "abc")
    assert not is_narrow(AVX512, ProductSpec(Product(4, 4, 4, *matrices, batch="batch"), F32))
