"""A single row times GGUF codes in whole numbers: as exact as it says, on whatever a row may hold."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import check_everywhere, ran_natively

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.cpu.matmul.quant import quant_matmul_kernel
from rlx.kernels.cpu.quant_digits import has_digits
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import AVX2_VNNI, AVX512, AVX512_VNNI, NEON_I8MM, Machine, runs_here
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.panels import pack_rows

F32 = DType.F32
rng = np.random.default_rng(7)
HERE = [t for t in (AVX512_VNNI, AVX2_VNNI, NEON_I8MM) if runs_here(t)]
WITH_DIGITS = [name for name, layout in PANEL_FORMATS.items() if has_digits(AVX512_VNNI, layout, 16)]

needs_dots = pytest.mark.skipif(not HERE, reason="this machine has no dot products of bytes")


def product(name: str, target: Machine, n: int, k: int) -> Kernel:
    a, b, c = Matrix("a", F32, k), Matrix("b", DType.U8, 0), Matrix("c", F32, n)
    return quant_matmul_kernel("product", target, PANEL_FORMATS[name], Product("m", n, k, a, b, c))


def weights_of(name: str, n: int, k: int, mask: int = 0xBB) -> tuple[np.ndarray, np.ndarray]:
    """Panels of random blocks, and what they stand for. The mask keeps halves, wherever they lie, finite."""
    block = FORMATS[name]
    stored = rng.integers(0, 256, (n * k // block.elements, block.bytes)).astype(np.uint8) & mask
    return pack_rows(PANEL_FORMATS[name], stored, n, k), block.decode(stored).reshape(n, k).astype(np.float64)


def multiplied(name: str, row: np.ndarray, panels: np.ndarray, n: int, target: Machine) -> np.ndarray:
    args = {"a": row[None].astype(np.float32), "b": panels, "c": np.zeros((1, n), np.float32), "m": 1}
    return ran_natively(product(name, target, n, row.size), args, target)["c"][0]


def test_the_common_types_have_digits():
    assert {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q2_K"} <= set(WITH_DIGITS)
    assert not has_digits(AVX512, PANEL_FORMATS["Q4_1"], 16), "without the instruction it would be slower"


@needs_dots
@pytest.mark.parametrize("target", HERE, ids=lambda t: t.name)
@pytest.mark.parametrize("name", WITH_DIGITS)
@pytest.mark.parametrize("spread", [0, 20])
def test_a_row_is_multiplied_to_the_last_bits(name: str, target: Machine, spread: int):
    """Floats only add up groups, so the bound has the number of groups in it, not that of elements; numbers that are
    2^-20 of the largest count as well."""
    n, k = 83, 1024
    panels, weights = weights_of(name, n, k)
    row = (rng.normal(size=k) * 2.0 ** rng.integers(-spread, 1, k)).astype(np.float32)
    found = multiplied(name, row, panels, n, target)
    x = row.astype(np.float64)
    groups = k / PANEL_FORMATS[name].group
    reach = np.abs(x) @ (np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)).T
    lost = 2.0**-30 * np.abs(x).max() * np.abs(weights).sum(axis=1)
    assert (np.abs(found - weights @ x) <= 2.0**-24 * (3 + np.sqrt(groups)) * reach + lost).all()


@needs_dots
@pytest.mark.parametrize("bits", [8, 16, 23])
def test_whole_numbers_stay_whole(bits: int):
    """Steps of 1 and numbers of so many bits: the sum of a block is right to the last bit of its f32."""
    n, k = 33, 32
    codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
    stored = np.concatenate([np.full((n, 1), 1.0, np.float16).view(np.uint8), codes.view(np.uint8)], axis=1)
    panels = pack_rows(PANEL_FORMATS["Q8_0"], stored, n, k)
    row = rng.integers(-(2**bits) + 1, 2**bits, k)
    found = multiplied("Q8_0", row, panels, n, HERE[0])
    exact = codes.astype(np.int64) @ row
    # The upper two digits and the lower two are rounded apart.
    np.testing.assert_allclose(found, exact.astype(np.float64), rtol=0, atol=2.0**-23 * np.abs(exact).max())


@needs_dots
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 3e38, -1.0])
def test_rows_of_one_number(name: str, value: float):
    n, k = 19, 64
    panels, weights = weights_of(name, n, k, mask=0x33)
    row = np.full(k, value, np.float32)
    with np.errstate(over="ignore"):
        wanted = (weights @ row.astype(np.float64)).astype(np.float32)
    found = multiplied(name, row, panels, n, HERE[0])
    finite = np.isfinite(wanted)
    lost = 2.0**-127 * np.abs(weights).sum(axis=1) * 1.01
    error = np.abs(found[finite].astype(np.float64) - wanted[finite])
    assert (error <= 2e-6 * np.abs(wanted[finite]) + lost[finite]).all()
    assert not np.isfinite(found[~finite]).any()


@needs_dots
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_makes_none(value: float):
    n, k = 40, 96
    panels, _ = weights_of("Q4_1", n, k)
    row = rng.normal(size=k).astype(np.float32)
    row[57] = value
    assert np.isnan(multiplied("Q4_1", row, panels, n, HERE[0])).all()


@pytest.mark.parametrize("target", [AVX512_VNNI, AVX2_VNNI, NEON_I8MM], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["Q4_1", "Q4_0", "Q8_0", "Q4_K", "Q2_K"])
def test_the_interpreter_and_other_vectors_agree(name: str, target: Machine):
    """Kernels written for vectors of 16, 8 and 4 lanes, run by the interpreter and as code for this machine."""
    n, k = 17, max(FORMATS[name].elements, 64)
    panels, weights = weights_of(name, n, k)
    a = rng.normal(size=(1, k)).astype(np.float32)
    args = {"a": a, "b": panels, "c": np.zeros((1, n), np.float32), "m": 1}
    found = check_everywhere(product(name, target, n, k), args, rtol=2e-5)["c"]
    np.testing.assert_allclose(found[0], weights @ a[0], rtol=1e-5, atol=1e-5 * np.abs(weights).max())


def test_digits_become_dot_product_instructions():
    assert compile_assembly(product("Q4_1", AVX512_VNNI, 64, 64), AVX512_VNNI).count("vpdpbusd") >= 32
    for name in ("Q4_1", "Q4_0", "Q8_0"):
        assert "usdot" in compile_assembly(product(name, NEON_I8MM, 64, 64), NEON_I8MM)
