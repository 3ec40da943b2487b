"""Every way in which `matmul_kernel` gets at its operands, for few rows and many, deep and shallow products."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere, ran_natively

from rlx.backends.native.kernels import check_symbols
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import block_shape
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product, matmul_kernel, pack_panels, panel_width
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.machines import AVX2, AVX512, CORTEX_M4, MACHINES, NEON, SSE2, Machine
from rlx.kernels.specs.expr import apply, operand

F32, F64, BF16 = DType.F32, DType.F64, DType.BF16
rng = np.random.default_rng(47)
SIZES = [(1, 5, 3), (2, 70, 40), (4, 64, 17), (7, 129, 33), (9, 20, 16), (60, 100, 50), (13, 65, 900)]


def normal(*shape: int, dtype: DType = F32) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype.numpy)


def close(found: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Roundings of a sum in any order add up like a random walk, as parts of the sum of absolute values."""
    wide = [x.astype(np.float64) for x in (a, b)]
    unit = 2.0**-24 * (2 + np.sqrt(a.shape[1]))
    assert (np.abs(found - wide[0] @ wide[1]) <= unit * (np.abs(wide[0]) @ np.abs(wide[1])) + 1e-30).all()


LAYOUTS = {
    "rows": (Matrix("b", F32, "n"), lambda b: b),
    "columns": (Matrix("b", F32, 1, "k"), lambda b: b.T),
    "apart": (Matrix("b", F32, "n3", 3), lambda b: np.repeat(b, 3, axis=1)),
}


@pytest.mark.parametrize("a_by_columns", [False, True], ids=["a", "a_turned"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_layouts(target: Machine, layout: str, a_by_columns: bool):
    matrix, stored = LAYOUTS[layout]
    left = Matrix("a", F32, 1, "m") if a_by_columns else Matrix("a", F32, "k")
    kernel = matmul_kernel("product", target, Product("m", "n", "k", left, matrix, Matrix("c", F32, "n")))
    for m, n, k in SIZES:
        a, b = normal(m, k), normal(k, n)
        args = {
            "a": np.ascontiguousarray(a.T if a_by_columns else a),
            "b": np.ascontiguousarray(stored(b)),
            "c": np.full((m, n), np.nan, np.float32),
        }
        sizes = {"m": m, "n": n, "k": k, "n3": 3 * n}
        close(ran_natively(kernel, args | sizes, target)["c"], a, b)


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_known_rows(target: Machine, layout: str):
    """Where the number of rows is known there is code for such blocks only; each row of every number is there."""
    n, k = 37, 70
    matrix, stored = {"rows": (Matrix("b", F32, n), lambda b: b), "columns": (Matrix("b", F32, 1, k), lambda b: b.T)}[
        layout
    ]
    b = normal(k, n)
    for m in (1, 2, 3, 4, 5, 7, 8, 9, 11, 14, 97, 130, 331):
        product = Product(m, n, k, Matrix("a", F32, k), matrix, Matrix("c", F32, n))
        kernel = matmul_kernel("product", target, product)
        a = normal(m, k)
        args = {"a": a, "b": np.ascontiguousarray(stored(b)), "c": np.full((m, n), np.nan, np.float32)}
        close(ran_natively(kernel, args, target)["c"], a, b)


def test_known_rows_need_less_code():
    def lines(m: int | str, batch: int | str = 1) -> int:
        matrices = (
            Matrix(name, F32, row, 1, 0 if batch == 1 else "s") for name, row in (("a", 70), ("b", 37), ("c", 37))
        )
        return matmul_kernel("product", AVX512, Product(m, 37, 70, *matrices, batch=batch)).text.count("\n")

    any_number = lines("m")
    assert all(lines(m) < 0.6 * any_number for m in (1, 8, 96))
    assert lines(96, "batch") < 0.6 * any_number  # All of these rows are one block, for any batch.
    assert lines(960, "batch") > 0.8 * any_number  # How high blocks are follows from how many there are.


def test_interpreter_and_native_code_agree():
    """Also for a chip with so little memory that a block is a few rows and columns."""
    for target, layout, (m, n, k) in ((AVX512, "columns", (9, 20, 18)), (CORTEX_M4, "rows", (5, 11, 70))):
        matrix, stored = LAYOUTS[layout]
        product = Product("m", "n", "k", Matrix("a", F32, "k"), matrix, Matrix("c", F32, "n"))
        kernel = matmul_kernel("product", target, product)
        b = normal(k, n)
        args = {"a": normal(m, k), "b": np.ascontiguousarray(stored(b)), "c": np.zeros((m, n), np.float32)}
        check_everywhere(kernel, args | {"m": m, "n": n, "k": k}, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 4, 10, 17, 72, 96, 130])
def test_few_columns(n: int):
    """One column is a matrix times a vector; a panel is no wider than it must be."""
    m, k = 37, 70
    for target in NATIVE_TARGETS:
        for b_matrix, stored in ((Matrix("b", F32, n), lambda b: b), (Matrix("b", F32, 1, k), lambda b: b.T)):
            product = Product("m", n, k, Matrix("a", F32, k), b_matrix, Matrix("c", F32, n))
            kernel = matmul_kernel("product", target, product)
            a, b = normal(m, k), normal(k, n)
            args = {"a": a, "b": np.ascontiguousarray(stored(b)), "c": np.zeros((m, n), np.float32), "m": m}
            close(ran_natively(kernel, args, target)["c"], a, b)
    # Of 72, 96 and 130 columns two or three panels are of equal width.
    assert panel_width(AVX512, F32, n) == (16 * -(-n // 16) if n <= 64 else 48)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_several_products_meet_in_several_results(packed: bool):
    """gate·silu(up) and up itself, from two Bs, beside a scale per row; C lies inside a wider array."""
    n, k, wide = 80, 48, 100
    gate, up, scale = operand(0, F32), operand(1, F32), operand(2, F32)
    exprs = (apply("mul", apply("mul", gate, apply("silu", up)), scale), apply("cast", up, to=BF16))
    for target in NATIVE_TARGETS:
        bs = tuple(Matrix(f"b{i}", F32, n, offset=5 if not packed else 0) for i in range(2))
        cs = (Matrix("c", F32, wide, offset=7), Matrix("d", BF16, n))
        epilogue = Epilogue(exprs, (Matrix("scale", F32, 1, 0),))
        product = Product("m", n, k, Matrix("a", F32, k), bs, cs, epilogue)
        kernel = matmul_kernel("gated", target, product, packed=packed)
        weights = [normal(k, n) * np.float32(0.2) for _ in bs]
        for m in (1, 3, 20):
            width = panel_width(target, F32, n)
            stored = [
                pack_panels(w, width) if packed else np.concatenate([np.zeros(5, "f4"), w.ravel()]) for w in weights
            ]
            args = {"a": normal(m, k), "b0": stored[0], "b1": stored[1], "scale": normal(m), "m": m}
            args |= {"c": np.full(7 + m * wide, 9, np.float32), "d": np.zeros((m, n), BF16.numpy)}
            after = ran_natively(kernel, args, target)
            g, u = (args["a"].astype(np.float64) @ w.astype(np.float64) for w in weights)
            rows = after["c"][7:].reshape(m, wide)
            wanted = g * u / (1 + np.exp(-u)) * args["scale"][:, None]
            np.testing.assert_allclose(rows[:, :n], wanted, rtol=1e-4, atol=1e-5)
            assert (rows[:, n:] == 9).all() and (after["c"][:7] == 9).all()
            np.testing.assert_allclose(after["d"].astype(float), u, rtol=2.0**-7, atol=1e-2)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i64", "u32"])
def test_whole_numbers_wrap(dtype: str):
    kind = DType.of(dtype)
    info = np.iinfo(kind.numpy)
    acc = kind if kind.size_bytes >= 4 else DType.I32
    for m, n, k in ((3, 40, 9), (20, 70, 300)):
        a, b = (rng.integers(info.min, info.max, dims, dtype=kind.numpy) for dims in ((m, k), (k, n)))
        product = Product(m, n, k, Matrix("a", kind, k), Matrix("b", kind, n), Matrix("c", kind, n))
        kernel = matmul_kernel("product", AVX512, product, accumulator=acc)
        found = ran_natively(kernel, {"a": a, "b": b, "c": np.zeros((m, n), kind.numpy)}, NATIVE_TARGETS[0])["c"]
        np.testing.assert_array_equal(found, a @ b)


def test_scratch_fits_every_machine():
    for target in MACHINES.values():
        for acc in (F32, F64):
            for case in itertools.product((1, 2, 4), (True, False), (True, False), (1, 2)):
                products, copies_b, copies_a, _ = case
                shape = block_shape(target, acc, "n", *case)
                scratch = products * shape.rows * shape.columns
                scratch += shape.rows * (shape.depth + shape.pad) if copies_a else 0
                scratch += shape.depth * shape.width if copies_b else 0
                assert scratch * acc.size_bytes <= max(
                    target.scratch_bytes, 3 * products * shape.rows * shape.columns * 4
                )
                assert shape.depth % shape.lanes == 0 and shape.tile_rows % 2 == 0


@pytest.mark.parametrize("half", [DType.F16, BF16], ids=str)
def test_panels_of_a_narrower_type(half: DType):
    """Weights as they are stored: widened in registers, with the bits of the same weights in f32."""
    n, k = 136, 70
    for target in NATIVE_TARGETS:
        b = normal(k, n, dtype=half)
        width = panel_width(target, F32, n)
        products = {
            dtype: Product("m", n, k, Matrix("a", F32, k), Matrix("b", dtype, 0), Matrix("c", F32, n))
            for dtype in (half, F32)
        }
        kernels = {dtype: matmul_kernel("product", target, x, packed=True) for dtype, x in products.items()}
        for m in (1, 3, 6, 50):
            a = normal(m, k)
            found = []
            for dtype, kernel in kernels.items():
                stored = pack_panels(b, width).astype(dtype.numpy)
                args = {"a": a, "b": stored, "c": np.zeros((m, n), np.float32), "m": m}
                found.append(ran_natively(kernel, args, target)["c"])
            np.testing.assert_array_equal(*found)
            close(found[0], a, b)


@pytest.mark.parametrize("half", [DType.F16, BF16], ids=str)
def test_narrower_panels_compile_everywhere_and_mean_the_same(half: DType):
    m, n, k = 5, 24, 9
    for target in (AVX512, AVX2, SSE2, NEON):
        product = Product(m, n, k, Matrix("a", F32, k), Matrix("b", half, 0), Matrix("c", F32, n))
        kernel = matmul_kernel("product", target, product, packed=True)
        check_symbols(compile_object(kernel, target))
        stored = pack_panels(normal(k, n, dtype=half), panel_width(target, F32, n))
        args = {"a": normal(m, k), "b": stored, "c": np.zeros((m, n), np.float32)}
        check_everywhere(kernel, args, rtol=1e-5)
