"""Quantisation schemes; block decoding against vectors made with the `gguf` package (tests/ir/data)."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rlx.errors import OpError, ShapeError
from rlx.ir.op import Op
from rlx.quant.decode import FORMATS
from rlx.quant.schemes import QuantKind, QuantMap, QuantScheme, dequantize_blocks, dequantize_matrix, quantize_blocks

GOLDEN = json.loads((Path(__file__).parent / "data" / "gguf_golden.json").read_text())
ALL = [QuantScheme.int8_block(32), QuantScheme.int8_block_asym(64), QuantScheme.int4_block(128)] + [
    getattr(QuantScheme, kind.name) for kind in QuantKind if hasattr(QuantScheme, kind.name)
]


def from_hex(text, dtype):
    return np.frombuffer(bytes.fromhex(text), dtype)


# name, display, bits x10, elements, bytes
FACTS = [
    ("GgufQ2K", "gguf_q2k", 26, 256, 84),
    ("GgufQ3K", "gguf_q3k", 34, 256, 110),
    ("GgufQ4K", "gguf_q4k", 45, 256, 144),
    ("GgufQ5K", "gguf_q5k", 55, 256, 176),
    ("GgufQ6K", "gguf_q6k", 66, 256, 210),
    ("GgufQ8K", "gguf_q8k", 91, 256, 292),
    ("GgufQ4_0", "gguf_q4_0", 45, 32, 18),
    ("GgufQ8_0", "gguf_q8_0", 85, 32, 34),
    ("GgufQ4_1", "gguf_q4_1", 50, 32, 20),
    ("GgufQ5_0", "gguf_q5_0", 55, 32, 22),
    ("GgufQ5_1", "gguf_q5_1", 60, 32, 24),
]


@pytest.mark.parametrize(("name", "display", "bits", "elements", "block_bytes"), FACTS)
def test_gguf_facts(name, display, bits, elements, block_bytes):
    scheme = getattr(QuantScheme, name)
    assert (str(scheme), scheme.bits_per_element_x10, scheme.bits_per_element) == (display, bits, bits // 10)
    assert (scheme.gguf_block_size, scheme.gguf_block_bytes) == (elements, block_bytes)
    assert scheme.is_gguf
    assert not (scheme.has_scale or scheme.has_zero_point or scheme.scale_is_fp8)


def test_facts_of_the_other_schemes():
    by_display = {str(s): s for s in ALL if not s.is_gguf}
    assert set(by_display) == {"int8/32", "int8a/64", "int4/128", "fp8e4m3", "fp8e5m2", "nvfp4/16"}
    assert {n: s.bits_per_element for n, s in by_display.items()} == {
        "int8/32": 8,
        "int8a/64": 8,
        "int4/128": 4,
        "fp8e4m3": 8,
        "fp8e5m2": 8,
        "nvfp4/16": 4,
    }
    assert {n for n, s in by_display.items() if s.has_scale} == {"int8/32", "int8a/64", "int4/128", "nvfp4/16"}
    assert {n for n, s in by_display.items() if s.has_zero_point} == {"int8a/64"}
    assert {n for n, s in by_display.items() if s.scale_is_fp8} == {"nvfp4/16"}
    assert {s.nvfp4_group_size for s in ALL} == {16, None}
    assert all(s.gguf_block_size is None and s.gguf_block_bytes is None for s in by_display.values())


@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_text_round_trip(scheme):
    assert QuantScheme.parse(str(scheme)) == QuantScheme.of(scheme) == QuantScheme.of(str(scheme)) == scheme
    assert hash(QuantScheme.parse(str(scheme))) == hash(scheme)


def test_sizes_that_cannot_be_chosen_may_be_left_out():
    assert QuantScheme.of("nvfp4") == QuantScheme.of("nvfp4/16") == QuantScheme.Nvfp4Block


def test_every_ggml_format_has_a_scheme():
    assert {QuantScheme.of_ggml(name).block_format for name in FORMATS} == set(FORMATS.values())
    assert QuantScheme.of_ggml("Q4_K") is not None and QuantScheme.of_ggml("Q4_K") == QuantScheme.GgufQ4K


@pytest.mark.parametrize("text", ["", "q4k", "int8/", "int8/x", "int8/-1", "gguf_q4k/32", "int8", "nvfp4/32", "int8/0"])
def test_bad_scheme_text(text):
    with pytest.raises(OpError, match="quant scheme"):
        QuantScheme.parse(text)


def test_unknown_ggml_type_names_the_known_ones():
    with pytest.raises(OpError, match=r"Q4_2.*known types: .*Q4_K"):
        QuantScheme.of_ggml("Q4_2")


@pytest.mark.parametrize("name", GOLDEN["decode"])
def test_decode_is_bit_exact(name):
    vector = GOLDEN["decode"][name]
    got = dequantize_blocks(QuantScheme.of_ggml(name), from_hex(vector["bytes"], np.uint8))
    wanted = from_hex(vector["f32"], "<f4")
    assert got.dtype == np.float32
    assert got.tobytes() == wanted.tobytes()


def test_every_format_has_a_vector():
    # Q8_1 is a format of activations, which nobody decodes; it is computed by hand below.
    assert set(GOLDEN["decode"]) | {"Q8_1"} == set(FORMATS)
    assert set(GOLDEN["encode"]) == {"input"} | {name for name, fmt in FORMATS.items() if fmt.encode}
    assert {name for name, fmt in FORMATS.items() if not fmt.encode} == {n for n in FORMATS if n.startswith("IQ")}


def block_of(scale, *fields):
    return np.concatenate([np.array([scale], "<f2").view(np.uint8), *fields])


def test_q8_1_by_hand():
    codes = np.arange(-16, 16, dtype=np.int8)
    block = block_of(0.75, np.full(2, 0xAA, np.uint8), codes.view(np.uint8))
    assert np.array_equal(dequantize_blocks("gguf_q8_1", block), np.float32(0.75) * codes)


def test_q8_k_by_hand():
    codes = np.arange(-128, 128, dtype=np.int8)
    block = np.concatenate([np.array([0.75], "<f4").view(np.uint8), codes.view(np.uint8), np.full(32, 0xAA, np.uint8)])
    assert np.array_equal(dequantize_blocks("gguf_q8k", block), np.float32(0.75) * codes)


@pytest.mark.parametrize("name", [name for name in GOLDEN["encode"] if name != "input"])
def test_encode_is_bit_exact(name):
    values = from_hex(GOLDEN["encode"]["input"], "<f4")
    wanted = from_hex(GOLDEN["encode"][name], np.uint8)
    assert np.array_equal(quantize_blocks(QuantScheme.of_ggml(name), values), wanted)


@pytest.mark.parametrize(("name", "steps", "worst"), [("gguf_q8_0", 127, 0.5), ("gguf_q4_0", 8, 1.0)])
def test_encode_error_is_within_a_step(name, steps, worst):
    values = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)
    back = dequantize_blocks(name, quantize_blocks(name, values)).reshape(50, 32)
    step = np.abs(values).max(axis=1, keepdims=True) / steps
    # Half a step from rounding the code; a whole one where Q4_0 has no code for +8; 2^-11 from rounding d to f16.
    bound = worst * step + np.abs(back) * 2.0**-11
    assert (np.abs(back - values) <= bound * (1 + 1e-6)).all()


def test_decode_in_pieces():
    scheme = QuantScheme.GgufQ8_0
    values = np.random.default_rng(1).standard_normal(32 * 20_000).astype(np.float32)
    packed = quantize_blocks(scheme, values)
    whole = dequantize_blocks(scheme, packed)
    half = packed.size // 2
    assert np.array_equal(whole, np.concatenate([dequantize_blocks(scheme, p) for p in (packed[:half], packed[half:])]))
    assert np.abs(whole - values).max() < 0.02


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "IQ3_XXS", "TQ1_0"])
def test_decoding_needs_little_more_than_its_result(name):
    data = np.zeros((1 << 22) // FORMATS[name].elements * FORMATS[name].bytes, np.uint8)
    tracemalloc.start()
    result = dequantize_blocks(QuantScheme.of_ggml(name), data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.3 * result.nbytes


@pytest.mark.parametrize("name", FORMATS)
def test_any_bytes_decode_without_warnings(name):
    data = np.random.default_rng(2).integers(0, 256, 40 * FORMATS[name].bytes).astype(np.uint8)
    assert dequantize_blocks(QuantScheme.of_ggml(name), data).size == 40 * FORMATS[name].elements
    assert dequantize_blocks(QuantScheme.of_ggml(name), data[:0]).size == 0


def test_wrong_byte_counts():
    with pytest.raises(ShapeError, match=r"gguf_q4k blocks have 144 bytes, got 145 bytes, which leaves 1 over"):
        dequantize_blocks("gguf_q4k", np.zeros(145, np.uint8))
    with pytest.raises(ShapeError, match="hold 32 values, got 33"):
        quantize_blocks("gguf_q8_0", np.zeros(33))
    with pytest.raises(OpError, match=r"cannot write gguf_iq2_s; .*use one of: .*gguf_q4k"):
        quantize_blocks("gguf_iq2_s", np.zeros(256))
    with pytest.raises(OpError, match="not a GGUF format"):
        dequantize_blocks("int8/32", np.zeros(32, np.uint8))
    with pytest.raises(OpError, match="one-byte elements"):
        dequantize_blocks("gguf_q8_0", np.zeros(34, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38, 1e300])
def test_quantize_refuses_what_has_no_scale(bad):
    values = np.zeros(32)
    values[3] = bad
    for name in ("gguf_q8_0", "gguf_q4_0"):
        with pytest.raises(OpError, match="must be finite"):
            quantize_blocks(name, values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.encode])
def test_no_encoder_takes_what_is_not_finite(name, bad):
    values = np.ones(2 * FORMATS[name].elements)
    values[FORMATS[name].elements + 5] = bad
    with pytest.raises(OpError, match="must be finite"):
        quantize_blocks(QuantScheme.of_ggml(name), values)


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-40, 1e-30])
def test_values_below_the_smallest_scale_become_zero(tiny):
    for name in ("gguf_q8_0", "gguf_q4_0"):
        assert not dequantize_blocks(name, quantize_blocks(name, np.full(32, tiny, np.float32))).any()


def block_loop(codes, steps, zero_points, block_size):
    k, n = codes.shape
    out = np.empty((k, n), np.float32)
    for p in range(k):
        for j in range(n):
            out[p, j] = (np.float32(codes[p, j]) - zero_points[p // block_size, j]) * steps[p // block_size, j]
    return out


@pytest.mark.parametrize(("k", "block_size"), [(8, 4), (10, 4), (3, 8)])
def test_int8_matrix(k, block_size):
    rng, n = np.random.default_rng(k), 5
    codes = rng.integers(-128, 128, (k, n)).astype(np.int8)
    groups = (-(-k // block_size), n)
    steps, zero_points = (rng.standard_normal(groups).astype(np.float32) for _ in range(2))
    got = dequantize_matrix(f"int8a/{block_size}", k, n, codes, steps, zero_points)
    assert np.array_equal(got, block_loop(codes, steps, zero_points, block_size))
    got = dequantize_matrix(f"int8/{block_size}", k, n, codes.view(np.uint8).reshape(-1), steps, zero_points)
    assert np.array_equal(got, block_loop(codes, steps, np.zeros(groups, np.float32), block_size))


def test_int4_matrix():
    rng, k, n, block_size = np.random.default_rng(4), 7, 3, 4
    codes = rng.integers(0, 16, (k, n))
    flat = np.append(codes.reshape(-1), 9)  # an odd count leaves one nibble unused
    packed = (flat[0::2] | flat[1::2] << 4).astype(np.uint8)
    steps, zero_points = (rng.standard_normal((2, n)).astype(np.float32) for _ in range(2))
    got = dequantize_matrix("int4/4", k, n, packed, steps, zero_points)
    assert np.array_equal(got, block_loop(codes, steps, zero_points, block_size))
    without = block_loop(codes, steps, np.zeros((2, n), np.float32), block_size)
    assert np.array_equal(dequantize_matrix("int4/4", k, n, packed, steps), without)
    assert np.array_equal(dequantize_matrix("int4/4", k, n, packed, steps, np.empty(0, np.float32)), without)


@pytest.mark.parametrize(("name", "dtype"), [("fp8e4m3", ml_dtypes.float8_e4m3fn), ("fp8e5m2", ml_dtypes.float8_e5m2)])
def test_fp8_matrix_has_every_code(name, dtype):
    codes = np.arange(256, dtype=np.uint8).reshape(64, 4)
    wanted = codes.view(dtype).astype(np.float32)
    scale = np.array([1, 2, 0.5, -3], np.float32)
    assert np.array_equal(dequantize_matrix(name, 64, 4, codes), wanted, equal_nan=True)
    assert np.array_equal(dequantize_matrix(name, 64, 4, codes.view(dtype)), wanted, equal_nan=True)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(dequantize_matrix(name, 64, 4, codes, scale), wanted * scale, equal_nan=True)


def test_nvfp4_matrix():
    rng, k, n = np.random.default_rng(5), 20, 3
    codes = rng.integers(0, 16, (k, n))
    packed = (codes.reshape(-1)[0::2] | codes.reshape(-1)[1::2] << 4).astype(np.uint8)
    scale_bytes = rng.integers(0, 0x7F, (2, n)).astype(np.uint8)
    global_scale = np.array([0.37], np.float32)
    fp4 = codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    fp8 = scale_bytes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    wanted = fp4 * fp8[np.arange(k) // 16] * global_scale
    assert np.array_equal(dequantize_matrix("nvfp4/16", k, n, packed, scale_bytes, global_scale), wanted)


@pytest.mark.parametrize("name", ["gguf_q8_0", "gguf_q4_0"])
def test_gguf_matrix_is_stored_transposed(name):
    w = np.random.default_rng(6).standard_normal((64, 6)).astype(np.float32)
    packed = quantize_blocks(name, w.T)
    got = dequantize_matrix(name, 64, 6, packed)
    assert np.array_equal(got, dequantize_blocks(name, packed).reshape(6, 64).T)
    assert got.flags.c_contiguous
    assert np.corrcoef(got.reshape(-1), w.reshape(-1))[0, 1] > 0.99


def test_matrix_errors():
    with pytest.raises(ShapeError, match=r"int8/4 matrix \[4, 2\]: wanted 8 packed bytes, got 7"):
        dequantize_matrix("int8/4", 4, 2, np.zeros(7, np.uint8))
    with pytest.raises(OpError, match="scale operand is missing"):
        dequantize_matrix("int8/4", 4, 2, np.zeros(8, np.uint8))
    with pytest.raises(OpError, match="zero point operand is missing"):
        dequantize_matrix("int8a/4", 4, 2, np.zeros(8, np.uint8), np.ones((1, 2), np.float32))
    with pytest.raises(ShapeError, match=r"scale must have shape \[1, 2\], got \[4, 2\]"):
        dequantize_matrix("int8/4", 4, 2, np.zeros(8, np.uint8), np.ones((4, 2), np.float32))
    with pytest.raises(ShapeError, match="k must be a multiple of 256"):
        dequantize_matrix("gguf_q4k", 64, 2, np.zeros(144, np.uint8))


def test_quant_map():
    schemes = QuantMap()
    assert schemes.is_empty() and len(schemes) == 0 and schemes.get(3) is None
    schemes.insert(3, "gguf_q4k")
    schemes.insert(1, QuantScheme.int8_block(32))
    schemes.insert(3, QuantScheme.GgufQ6K)
    assert not schemes.is_empty()
    assert list(schemes) == [(3, QuantScheme.GgufQ6K), (1, QuantScheme.int8_block(32))]
    assert 1 in schemes and 2 not in schemes


class Dequant(Op):
    scheme: QuantScheme


def test_scheme_as_an_attribute():
    assert Dequant("int8/32") == Dequant(QuantScheme.int8_block(32))
    assert Dequant("int8/32").scheme == QuantScheme.int8_block(32)
    with pytest.raises(OpError, match=r"Dequant: scheme='int7/32' is not valid: unknown quant scheme"):
        Dequant("int7/32")
