"""Products of 8-bit codes against products of whole numbers in NumPy, and against f64 products of what codes mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_runs import check_everywhere, interpreted, ran_natively

from rlx.backends.native.elf import undefined_symbols
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.int8 import int8_matmul_kernel
from rlx.kernels.cpu.matmul.int8_blocks import int8_block_kernel
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product, panel_width
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import AVX2, AVX512_VNNI, CORTEX_M4, NEON, NEON_I8MM, SSE2, Machine, host, runs_here
from rlx.kernels.specs.expr import apply, operand
from rlx.ops.lowered.int8_products import (
    BLOCK,
    Int8Blocks,
    Int8Panels,
    block_bytes,
    byte_bias,
    has_byte_codes,
    pair_form,
)
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.panels import pack_rows
from rlx.quant.schemes import QuantScheme

F32, I8, I32, U8 = DType.F32, DType.I8, DType.I32, DType.U8
MACHINES = [t for t in (host(), AVX2, SSE2) if runs_here(t)]
BLOCK_TYPES = [name for name, layout in PANEL_FORMATS.items() if has_byte_codes(layout)]
rng = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global rng
    rng = np.random.default_rng(11)


def product(target: Machine, n: int, k: int, out: DType = I32, epilogue: Epilogue | None = None) -> Kernel:
    a, b, c = Matrix("a", U8, k), Matrix("b", I8, 0), Matrix("c", out, n)
    return int8_matmul_kernel("product", target, Product("m", n, k, a, b, c, epilogue))


def packed(target: Machine, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Panels of a random weight, and its codes as a matrix, found again by dividing."""
    w = rng.standard_normal((k, n)).astype(np.float32)
    panels, scales = Int8Panels(panel_width(target, I32, n)).eval(w)
    return panels, np.rint(w / scales).astype(np.int64)


@pytest.mark.parametrize("target", MACHINES, ids=lambda t: t.name)
@pytest.mark.parametrize(("n", "k"), [(1, 4), (17, 60), (64, 128), (130, 388), (83, 2052)])
def test_sums_are_exact(target: Machine, n: int, k: int):
    """Longer than a step along K, and not a multiple of lanes, tiles or panels."""
    panels, codes = packed(target, k, n)
    kernel = product(target, n, k)
    for m in (0, 1, 2, 5, 7, 49):
        a = rng.integers(1, 256, (m, k)).astype(np.uint8)
        args = {"a": a, "b": panels, "c": np.full((m, n), -1, np.int32), "m": m}
        np.testing.assert_array_equal(ran_natively(kernel, args, target)["c"], (a.astype(np.int64) - 128) @ codes)


def test_the_largest_codes_do_not_saturate():
    target, n, k = MACHINES[0], 16, 256
    panels, _ = Int8Panels(panel_width(target, I32, n)).eval(np.full((k, n), -1.0, np.float32))
    for code in (1, 255):
        args = {"a": np.full((1, k), code, np.uint8), "b": panels, "c": np.zeros((1, n), np.int32), "m": 1}
        assert (ran_natively(product(target, n, k), args, target)["c"] == (code - 128) * -127 * k).all()


@pytest.mark.parametrize("target", [NEON, CORTEX_M4, *MACHINES[:1]], ids=lambda t: t.name)
def test_interpreter_and_native_code_agree(target: Machine):
    m, n, k = 3, 19, 20
    panels, codes = packed(target, k, n)
    a = rng.integers(1, 256, (m, k)).astype(np.uint8)
    args = {"a": a, "b": panels, "c": np.zeros((m, n), np.int32), "m": m}
    found = check_everywhere(product(target, n, k), args)["c"]
    np.testing.assert_array_equal(found, (a.astype(np.int64) - 128) @ codes)


def test_scales_bias_and_activation_in_the_epilogue():
    """relu(sum·column·row + bias), the row's scale read with a stride of 0 along columns."""
    target, m, n, k = MACHINES[0], 9, 40, 64
    panels, codes = packed(target, k, n)
    total = apply("mul", apply("mul", apply("cast", operand(0, I32), to=F32), operand(1, F32)), operand(2, F32))
    expr = apply("max", apply("add", total, operand(3, F32)), apply("mul", operand(3, F32), operand(3, F32)))
    operands = (Matrix("column", F32, 0), Matrix("row", F32, 1, 0), Matrix("bias", F32, 0))
    kernel = product(target, n, k, F32, Epilogue((expr,), operands))
    a = rng.integers(1, 256, (m, k)).astype(np.uint8)
    column, row, bias = (rng.random(size).astype(np.float32) for size in (n, m, n))
    args = {"a": a, "b": panels, "c": np.zeros((m, n), np.float32), "column": column, "row": row, "bias": bias, "m": m}
    sums = ((a.astype(np.int64) - 128) @ codes).astype(np.float32)
    wanted = np.maximum(sums * column * row[:, None] + bias, bias * bias)
    np.testing.assert_array_equal(ran_natively(kernel, args, target)["c"], wanted)


def test_parallel_iterations_depend_on_shapes_only():
    kernel = product(host(), 1536, 384)
    assert grid_size(kernel, {"m": 96}) == 48 and grid_size(kernel, {"m": 1}) == 24


@pytest.mark.parametrize(
    ("target", "word"), [(AVX512_VNNI, "vpdpbusd"), (NEON_I8MM, "usdot"), (AVX2, "pmaddwd"), (SSE2, "pmaddwd")]
)
def test_instructions_of_machines(target: Machine, word: str):
    kernels = [product(target, 16, 64), block_product("Q4_1", target, 16, 64), block_product("Q8_0", target, 16, 64)]
    for kernel in kernels:
        assert word in compile_assembly(kernel, target)
        assert not undefined_symbols(compile_object(kernel, target))


# Blocks of GGUF types.


def block_product(name: str, target: Machine, n: int, k: int, digits: int = 1) -> Kernel:
    a, b, c = Matrix("a", U8, block_bytes(PANEL_FORMATS[name], k, digits)), Matrix("b", U8, 0), Matrix("c", F32, n)
    return int8_block_kernel("blocks", target, PANEL_FORMATS[name], Product("m", n, k, a, b, c), digits=digits)


def blocks(name: str, rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Random blocks as panels, and what they decode to; the mask keeps halves, wherever they lie, finite."""
    stored = rng.integers(0, 256, (rows * k // FORMATS[name].elements, FORMATS[name].bytes)).astype(np.uint8) & 0xBB
    return pack_rows(PANEL_FORMATS[name], stored, rows, k), FORMATS[name].decode(stored).reshape(rows, k)


def activations(m: int, k: int, name: str, digits: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of codes and scales for weights of a type, and the numbers that they stand for."""
    given = (rng.normal(size=(m, k)) * rng.lognormal(size=(m, 1))).astype(np.float32)
    layout = PANEL_FORMATS[name]
    per_byte, bias, pairs = layout.per_byte, byte_bias(layout), pair_form(layout, digits)
    rows = Int8Blocks(QuantScheme.of_ggml(name), digits).eval(given)
    records = rows.reshape(m, k // BLOCK, block_bytes(layout, BLOCK, digits))
    planes = records[..., : digits * BLOCK].view(np.int8).astype(np.float64).reshape(m, k // BLOCK, digits, BLOCK)
    if pairs is not None:
        assert np.abs(planes[:, :, -1]).max(initial=0) <= pairs.most
    ordered = sum(planes[:, :, d] * 256.0**d for d in range(digits))
    # Byte b of word j of a run holds its element j + per_byte*b.
    runs = ordered.reshape(m, k // BLOCK, 8 // per_byte, per_byte, 4)
    codes = runs.swapaxes(-1, -2).reshape(m, k // BLOCK, BLOCK)
    numbers = records[..., digits * BLOCK :].copy()
    groups = layout.groups
    scale = numbers.view("<f4")[..., 0].astype(np.float64)
    sums = numbers.view("<i4" if bias else "<f4")[..., 1 : 1 + groups]
    x = codes * scale[..., None]
    # Half a step, and what f32 makes of the largest codes.
    assert (np.abs(x.reshape(m, k) - given) <= np.repeat(scale, BLOCK, 1) * (0.5 + 2.0 ** (8 * digits - 23))).all()
    wanted = codes.reshape(*codes.shape[:-1], groups, BLOCK // groups).sum(-1)
    np.testing.assert_array_equal(sums, wanted * (-bias or 1))
    return rows, x.reshape(m, k)


def close(found: np.ndarray, x: np.ndarray, weights: np.ndarray) -> None:
    """Roundings of the sums of blocks add up like a random walk; minimums and offsets of codes, which are added apart,
    are at most as large as 128 steps, so as the largest weights of a row."""
    weights = weights.astype(np.float64)
    unit = 2.0**-24 * (4 + np.sqrt(x.shape[1] / BLOCK))
    reach = np.abs(x) @ (np.abs(weights) + 2 * np.abs(weights).max(axis=1, keepdims=True)).T
    assert (np.abs(found - x @ weights.T) <= unit * reach).all()


@pytest.mark.parametrize(
    ("target", "name", "digits"),
    [
        *((MACHINES[0], name, 2) for name in BLOCK_TYPES if PANEL_FORMATS[name].book is None),
        # All codebooks become tables of 16 entries, as IQ4_NL has one.
        *(
            pytest.param(MACHINES[0], name, 2, marks=pytest.mark.long)
            for name in BLOCK_TYPES
            if PANEL_FORMATS[name].book is not None
        ),
        *((MACHINES[0], name, 1) for name in ("Q4_K", "Q8_0", "Q6_K")),
        *((MACHINES[-1], name, 2) for name in ("Q4_1", "Q8_0")),
        *(pytest.param(MACHINES[0], name, 1, marks=pytest.mark.long) for name in BLOCK_TYPES),
        pytest.param(MACHINES[-1], "Q2_K", 2, marks=pytest.mark.long),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_blocks_of_every_type(name: str, target: Machine, digits: int):
    n, k = 83, 512
    panels, weights = blocks(name, n, k)
    kernel = block_product(name, target, n, k, digits)
    for m in (0, 1, 2, 3, 6, 8, 9, 51):
        rows, x = activations(m, k, name, digits)
        args = {"a": rows, "b": panels, "c": np.full((m, n), np.nan, np.float32), "m": m}
        close(ran_natively(kernel, args, target)["c"], x, weights)


@pytest.mark.parametrize(("name", "digits"), [("Q4_K", 1), ("Q4_K", 2), ("Q4_0", 2), ("Q5_1", 1), ("Q6_K", 2)])
def test_products_of_pairs_are_the_same_to_the_last_bit(name: str, digits: int):
    """Machines that multiply two codes at once, and those that do not; most rows and columns are not whole tiles."""
    one, two = (replace(MACHINES[0], adds_beside_dots=flag) for flag in (False, True))
    # Records that are no whole spans of activations, or no whole steps.
    n, k = 83, 608 if FORMATS[name].elements == BLOCK else 768
    panels, weights = blocks(name, n, k)
    kernels = [(target, block_product(name, target, n, k, digits)) for target in (one, two)]
    for m in (1, 5, 7, 9, 11, 14, 64, 259):
        rows, x = activations(m, k, name, digits)
        found = []
        for target, kernel in kernels:
            args = {"a": rows, "b": panels, "c": np.full((m, n), np.nan, np.float32), "m": m}
            found.append(ran_natively(kernel, args, target)["c"])
        np.testing.assert_array_equal(*found)
        close(found[0], x, weights)


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_the_largest_activations_and_codes_fit_into_pairs(name: str, digits: int):
    """Sums of a code and a digit are bytes: were one too large, these products would be far off."""
    target, n, k, m = replace(MACHINES[0], adds_beside_dots=True), 16, 64, 16
    size = FORMATS[name].bytes
    stored = np.zeros((n, k // 32, size), np.uint8)
    stored[..., :2] = np.float16(1.0).reshape(1).view(np.uint8)
    stored[: n // 2, :, 4:] = 255
    panels = pack_rows(PANEL_FORMATS[name], stored.reshape(-1, size), n, k)
    weights = FORMATS[name].decode(stored.reshape(-1, size)).reshape(n, k)
    assert weights.max() == 2 ** sum(PANEL_FORMATS[name].planes) - 1 and weights.min() == 0
    signs = np.where(np.arange(m)[:, None] >> np.arange(4) & 1, -1, 1)
    # All signs that four neighbours may have, each the largest of its block.
    given = np.tile(signs, (1, k // 4)).astype(np.float32)
    rows = Int8Blocks(QuantScheme.of_ggml(name), digits).eval(given)
    args = {"a": rows, "b": panels, "c": np.zeros((m, n), np.float32), "m": m}
    found = ran_natively(block_product(name, target, n, k, digits), args, target)["c"]
    np.testing.assert_allclose(found, given @ weights.T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("target", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("digits", [1, 2])
def test_the_largest_codes_of_eight_bits(target: Machine, digits: int):
    """Where two products of bytes are added in 16 bits, those of whole codes would not fit."""
    n, k, m = 16, 256, 16
    stored = np.zeros((n, k // 32, FORMATS["Q8_0"].bytes), np.uint8)
    stored[..., :2] = np.float16(1.0).reshape(1).view(np.uint8)
    stored[: n // 2, :, 2:], stored[n // 2 :, :, 2:] = 128, 127
    panels = pack_rows(PANEL_FORMATS["Q8_0"], stored.reshape(n * k // 32, -1), n, k)
    weights = FORMATS["Q8_0"].decode(stored.reshape(n * k // 32, -1)).reshape(n, k)
    assert weights.min() == -128 and weights.max() == 127
    signs = np.where(np.arange(m)[:, None] >> np.arange(4) & 1, -1, 1)
    given = np.tile(signs, (1, k // 4)).astype(np.float32)
    if digits == 2:
        # Lower digits of -128 but for the largest number.
        given[:, 1:] *= np.float32((256 * 126 - 128) / (256 * 127 + 127))
    rows = Int8Blocks(QuantScheme.GgufQ8_0, digits).eval(given)
    args = {"a": rows, "b": panels, "c": np.zeros((m, n), np.float32), "m": m}
    found = ran_natively(block_product("Q8_0", target, n, k, digits), args, target)["c"]
    np.testing.assert_allclose(found, given.astype(np.float64) @ weights.T, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("n", [1, 16, 40, 64])
def test_rows_longer_than_a_step(n: int):
    k, target = 32 * 140, MACHINES[0]
    panels, weights = blocks("Q4_1", n, k)
    for m in (1, 5, 51):
        rows, x = activations(m, k, "Q4_1")
        args = {"a": rows, "b": panels, "c": np.zeros((m, n), np.float32), "m": m}
        close(ran_natively(block_product("Q4_1", target, n, k), args, target)["c"], x, weights)


@pytest.mark.parametrize(
    ("name", "target", "m"),
    [
        ("Q4_1", NEON, 7),
        ("Q8_0", CORTEX_M4, 1),
        ("Q2_K", MACHINES[0], 2),
        ("Q8_0", MACHINES[0], 3),
        ("Q4_0", replace(AVX512_VNNI, adds_beside_dots=True), 9),
    ],
)
def test_blocks_in_the_interpreter(name: str, target: Machine, m: int):
    n, k = 17, 256 if name == "Q2_K" else 64
    panels, weights = blocks(name, n, k)
    rows, x = activations(m, k, name)
    args = {"a": rows, "b": panels, "c": np.zeros((m, n), np.float32), "m": m}
    close(interpreted(block_product(name, target, n, k), args)["c"], x, weights)


@pytest.mark.parametrize(("name", "digits"), [("Q4_K", 2), ("Q6_K", 1)])
def test_a_row_is_the_same_beside_any_number_of_others(name: str, digits: int):
    """Tiles of 1 to 8 rows, and several of them, add up each row in the same order."""
    n, k, target = 40, 1536, MACHINES[0]
    panels, _ = blocks(name, n, k)
    kernel = block_product(name, target, n, k, digits)
    rows, _ = activations(21, k, name, digits)

    def found(m: int) -> np.ndarray:
        args = {"a": rows[:m], "b": panels, "c": np.full((m, n), np.nan, np.float32), "m": m}
        return np.asarray(ran_natively(kernel, args, target)["c"])

    whole = found(21)
    for m in (1, 2, 4, 7, 8, 13):
        np.testing.assert_array_equal(found(m), whole[:m])


def test_tiles_of_several_rows_ask_for_codes_ahead_of_time():
    assert "prefetcht0" in compile_assembly(block_product("Q4_1", AVX512_VNNI, 16, 64), AVX512_VNNI)


def test_types_whose_codes_are_bytes_or_parts_of_them():
    assert {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q2_K", "Q5_K", "Q6_K", "Q3_K"} <= set(BLOCK_TYPES)
    # Tables of whole numbers are looked up as bytes; that of NVFP4 has halves.
    assert {"IQ4_NL", "IQ4_XS", "MXFP4"} <= set(BLOCK_TYPES) and "NVFP4" not in BLOCK_TYPES


@pytest.mark.parametrize(
    ("target", "word"), [(AVX512_VNNI, "vpshufb"), (AVX2, "vpshufb"), (NEON_I8MM, "tbl"), (SSE2, "pcmpeqb")]
)
def test_tables_are_looked_up_by_bytes(target: Machine, word: str):
    kernel = block_product("IQ4_NL", target, 16, 64)
    assert word in compile_assembly(kernel, target)
    assert not undefined_symbols(compile_object(kernel, target))
