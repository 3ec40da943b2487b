"""`quant_matmul_kernel` against f64 products with the weights that decoders of blocks give: every type, any rows."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere, ran_natively

from rlx.backends.native import kernels as native
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product
from rlx.kernels.cpu.matmul.quant import quant_matmul_kernel
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import AVX512, CORTEX_M4, NEON, Machine
from rlx.kernels.specs.expr import apply, operand
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.panels import PANEL_ROWS, pack_rows, unpack_rows

F32, BF16 = DType.F32, DType.BF16
rng = np.random.default_rng(31)


def blocks(name: str, rows: int, k: int, mask: int = 0xBB) -> np.ndarray:
    """Random blocks; the mask keeps halves, wherever they lie, finite and moderate."""
    block = FORMATS[name]
    return rng.integers(0, 256, (rows * k // block.elements, block.bytes)).astype(np.uint8) & mask


def decoded(name: str, stored: np.ndarray, rows: int, k: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        return FORMATS[name].decode(stored).reshape(rows, k)


def product(name: str, target: Machine, n: int, k: int, dtype: DType = F32, epilogue: Epilogue | None = None) -> Kernel:
    a, b, c = Matrix("a", dtype, k), Matrix("b", DType.U8, 0), Matrix("c", dtype, n)
    return quant_matmul_kernel("product", target, PANEL_FORMATS[name], Product("m", n, k, a, b, c, epilogue))


def close(found: np.ndarray, a: np.ndarray, weights: np.ndarray) -> None:
    """Roundings of a sum in any order add up like a random walk, as parts of the sum of absolute values; minimums,
    which are added apart, are about as large as the largest weight."""
    a, weights = a.astype(np.float64), weights.astype(np.float64)
    unit = 2.0**-24 * (2 + np.sqrt(a.shape[1]))
    reach = np.abs(a) @ (np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)).T
    assert (np.abs(found - a @ weights.T) <= unit * reach).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 16, 19])
def test_panels_hold_the_very_numbers_of_the_blocks(name: str, rows: int):
    k = 512
    stored = blocks(name, rows, k, mask=0xFF)
    layout = PANEL_FORMATS[name]
    with np.errstate(all="ignore"):
        panels = pack_rows(layout, stored, rows, k)
        found = unpack_rows(layout, panels, rows, k)
    assert panels.shape == (-(-rows // PANEL_ROWS), layout.panel_bytes(k))
    np.testing.assert_array_equal(found, decoded(name, stored, rows, k))
    # In bits an element: codebook types become numbers of 4 bits with f32 steps.
    assert layout.panel_bytes(k) / PANEL_ROWS / k * 8 <= max(6, 1.05 * stored.size / rows / k * 8)


CASES = [(NATIVE_TARGETS[0], name) for name in PANEL_FORMATS]
CASES += [(target, name) for target in NATIVE_TARGETS[1:] for name in ("Q4_1", "Q8_0", "Q3_K", "IQ4_XS")]


@pytest.mark.parametrize(("target", "name"), CASES, ids=lambda x: getattr(x, "name", x))
def test_few_rows_and_many(name: str, target: Machine):
    n, k = 83, 512
    stored = blocks(name, n, k)
    kernel = product(name, target, n, k)
    panels = pack_rows(PANEL_FORMATS[name], stored, n, k)
    for m in (0, 1, 3, 6, 7, 50):
        a = rng.normal(size=(m, k)).astype(np.float32)
        args = {"a": a, "b": panels, "c": np.full((m, n), np.nan, np.float32), "m": m}
        close(ran_natively(kernel, args, target)["c"], a, decoded(name, stored, n, k))


@pytest.mark.parametrize(
    ("name", "target", "m"),
    [("Q4_1", NEON, 7), ("Q8_0", CORTEX_M4, 1), ("Q6_K", NATIVE_TARGETS[0], 1), ("IQ4_NL", NATIVE_TARGETS[-1], 2)],
)
def test_interpreter_and_native_code_agree(name: str, target: Machine, m: int):
    n, k = 17, 256 if name == "Q6_K" else 64
    panels = pack_rows(PANEL_FORMATS[name], blocks(name, n, k), n, k)
    args = {"a": rng.normal(size=(m, k)).astype(np.float32), "b": panels, "c": np.zeros((m, n), np.float32), "m": m}
    check_everywhere(product(name, target, n, k), args, rtol=2e-5 * float(np.sqrt(k)))


def test_a_weight_longer_than_the_scratch_of_a_row():
    n, k = 16, 32 * 700
    stored = blocks("Q4_1", n, k)
    panels = pack_rows(PANEL_FORMATS["Q4_1"], stored, n, k)
    for m in (1, 5, 9):
        a = rng.normal(size=(m, k)).astype(np.float32)
        args = {"a": a, "b": panels, "c": np.zeros((m, n), np.float32), "m": m}
        found = ran_natively(product("Q4_1", NATIVE_TARGETS[0], n, k), args, NATIVE_TARGETS[0])["c"]
        close(found, a, decoded("Q4_1", stored, n, k))


def test_epilogue_and_halves():
    """silu(x·W) + residual, from bf16 to bf16."""
    n, k = 40, 64
    stored = blocks("Q8_0", n, k)
    expr = apply("cast", apply("add", apply("silu", operand(0, F32)), operand(1, F32)), to=BF16)
    epilogue = Epilogue((expr,), (Matrix("residual", F32, n),))
    panels = pack_rows(PANEL_FORMATS["Q8_0"], stored, n, k)
    for target in NATIVE_TARGETS:
        kernel = product("Q8_0", target, n, k, BF16, epilogue=epilogue)
        for m in (2, 13):
            a, residual = (rng.normal(size=(m, size)).astype(np.float32) for size in (k, n))
            args = {"a": (a * 0.01).astype(BF16.numpy), "b": panels, "c": np.zeros((m, n), BF16.numpy), "m": m}
            found = ran_natively(kernel, args | {"residual": residual}, target)["c"].astype(np.float64)
            x = args["a"].astype(np.float64) @ decoded("Q8_0", stored, n, k).T.astype(np.float64)
            wanted = x / (1 + np.exp(-x)) + residual
            np.testing.assert_allclose(found, wanted, rtol=2.0**-7, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("m", [1, 60])
def test_any_division_of_the_blocks_gives_the_same_bits(m: int):
    n, k = 200, 512
    panels = pack_rows(PANEL_FORMATS["Q4_K"], blocks("Q4_K", n, k), n, k)
    kernel = product("Q4_K", NATIVE_TARGETS[0], n, k)
    f = native.load(kernel, NATIVE_TARGETS[0])
    a, whole, parts = rng.normal(size=(m, k)).astype(np.float32), *np.zeros((2, m, n), np.float32)
    f(a, panels, whole, m)
    count = grid_size(kernel, {"m": m})
    assert count > 2
    for block in reversed(range(count)):
        f(a, panels, parts, m, first=block, last=block + 1)
    np.testing.assert_array_equal(whole, parts)


def test_codes_become_floats_in_registers():
    """Four-bit codes are masked and converted where they lie; those of a table are looked up by a permutation."""
    linear = compile_assembly(product("Q4_1", AVX512, 64, 64), AVX512)
    assert "vcvtdq2ps" in linear and "vgather" not in linear
    looked_up = compile_assembly(product("IQ4_NL", AVX512, 64, 64), AVX512)
    assert "vperm" in looked_up and "vgather" not in looked_up
