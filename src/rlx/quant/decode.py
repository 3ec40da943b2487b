"""GGUF block formats: how many elements and bytes a block holds, and how its bytes become numbers.

A quantised tensor is a run of equal blocks in row-major order. `FORMATS` maps the GGML name of a type (`"Q4_K"`) to its
`BlockFormat`; `decode` turns `u8[blocks, bytes]` into `f32[blocks, elements]`. All multi-byte fields are little endian,
`f16` is IEEE half. In the formulas `d` is the block's scale, `m` its minimum or offset, and `q` the code of an element.

The formats are the ones that files use. Every product is rounded to f32 in the order written, so that results agree
with GGML's scalar code to the last bit. Decoders may meet any bits: callers silence NumPy's warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlx.quant import codebooks, encode, encode_k
from rlx.quant.block_fields import F32, U8, bit_pairs, bit_rows, bits, f16, nibbles
from rlx.quant.nvfp4 import FP4_E2M1_LUT

# The 16 values of the non-linear 4-bit types IQ4_NL and IQ4_XS.
IQ4_VALUES: F32 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
# GGML keeps the 4-bit floats as whole numbers, which have no negative zero.
FP4_VALUES: F32 = FP4_E2M1_LUT + np.float32(0)


class BlockFormat(NamedTuple):
    """One block type: its size, its decoder and, for the types this package can write, its encoder."""

    elements: int
    bytes: int
    decode: Callable[[U8], F32]
    encode: Callable[[F32], U8] | None = None


def _decode_q4_0(blocks: U8) -> F32:
    """d:f16, q:u4[32] -> d·(q - 8); the low nibbles are the first half of the block."""
    return f16(blocks, 0) * (nibbles(blocks[:, 2:18]).astype(np.float32) - 8)


def _decode_q4_1(blocks: U8) -> F32:
    """d:f16, m:f16, q:u4[32] -> d·q + m."""
    return f16(blocks, 0) * nibbles(blocks[:, 4:20]) + f16(blocks, 2)


def _decode_q5_0(blocks: U8) -> F32:
    """d:f16, high:u1[32], low:u4[32] -> d·(q - 16) with q = low + 16·high."""
    codes = nibbles(blocks[:, 6:22]) | (bits(blocks[:, 2:6]) << 4)
    return f16(blocks, 0) * (codes.astype(np.float32) - 16)


def _decode_q5_1(blocks: U8) -> F32:
    """d:f16, m:f16, high:u1[32], low:u4[32] -> d·q + m."""
    codes = nibbles(blocks[:, 8:24]) | (bits(blocks[:, 4:8]) << 4)
    return f16(blocks, 0) * codes + f16(blocks, 2)


def _decode_q8_0(blocks: U8) -> F32:
    """d:f16, q:i8[32] -> d·q."""
    return f16(blocks, 0) * blocks[:, 2:34].view(np.int8)


def _decode_q8_k(blocks: U8) -> F32:
    """d:f32, q:i8[256], sums:i16[16] -> d·q; the sums of 16 codes serve dot products only."""
    return blocks[:, 0:4].view("<f4") * blocks[:, 4:260].view(np.int8)


def six_bit_pairs(packed: U8) -> tuple[U8, U8]:
    """Eight (scale, minimum) pairs of six bits each from the 12 bytes that Q4_K and Q5_K keep them in.

    Pairs 0..3 are the low six bits of bytes 0..7; pairs 4..7 have their low nibbles in bytes 8..11 and their two high
    bits at the top of bytes 0..7.
    """
    low, high, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (rest & 15) | ((low >> 6) << 4)], axis=-1)
    minimums = np.concatenate([high & 63, (rest >> 4) | ((high >> 6) << 4)], axis=-1)
    return scales, minimums


def _scaled_rows(blocks: U8, codes: U8) -> F32:
    """d·s·q - dmin·m for u8[blocks, 8, 32] codes: the shared frame of Q4_K and Q5_K."""
    scales, minimums = six_bit_pairs(blocks[:, 4:16])
    step = (f16(blocks, 0) * scales)[:, :, None]
    offset = (f16(blocks, 2) * minimums)[:, :, None]
    return (step * codes - offset).reshape(len(blocks), 256)


def _paired_rows(qs: U8) -> U8:
    """128 bytes -> u8[blocks, 8, 32]: byte row p holds row 2p in its low and row 2p+1 in its high nibbles."""
    return nibbles(qs.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _decode_q4_k(blocks: U8) -> F32:
    """d:f16, dmin:f16, pairs:u6[8,2], q:u4[8,32]."""
    return _scaled_rows(blocks, _paired_rows(blocks[:, 16:144]))


def _decode_q5_k(blocks: U8) -> F32:
    """d:f16, dmin:f16, pairs:u6[8,2], high:u8[32] (bit r belongs to row r), low:u4[8,32]."""
    high = bit_rows(blocks[:, 16:48]) << np.uint8(4)
    return _scaled_rows(blocks, _paired_rows(blocks[:, 48:176]) | high)


def _decode_q2_k(blocks: U8) -> F32:
    """pairs:u8[16] (scale in the low, minimum in the high nibble), q:u2[256], d:f16, dmin:f16 -> d·s·q - dmin·m."""
    pairs = blocks[:, 0:16]
    step: F32 = (f16(blocks, 80) * (pairs & 15))[:, :, None]
    offset: F32 = (f16(blocks, 82) * (pairs >> 4))[:, :, None]
    codes = bit_pairs(blocks[:, 16:80].reshape(-1, 2, 32)).reshape(-1, 16, 16)
    return (step * codes - offset).reshape(len(blocks), 256)


def _decode_q3_k(blocks: U8) -> F32:
    """high:u8[32] (bit r belongs to row r), low:u2[256], scales:u6[16], d:f16 -> d·(s - 32)·(low + 4·high - 4)."""
    scales = nibbles(blocks[:, 96:104]) | (bit_pairs(blocks[:, 104:108]).reshape(-1, 16) << 4)
    step = (f16(blocks, 108) * (scales.astype(np.float32) - 32))[:, :, None]
    low = bit_pairs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    codes = (low | (bit_rows(blocks[:, 0:32]) << 2)).astype(np.float32) - 4
    return (step * codes.reshape(-1, 16, 16)).reshape(len(blocks), 256)


def _decode_q6_k(blocks: U8) -> F32:
    """low:u4[256], high:u2[256], scales:i8[16], d:f16 -> d·s·(low + 16·high - 32).

    Elements run over [half, quarter, 32]; a quarter reads one nibble of 32 of the half's 64 low bytes and one bit pair
    of its 32 high bytes.
    """
    low = nibbles(blocks[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = bit_pairs(blocks[:, 128:192].reshape(-1, 2, 32))
    codes = (low | (high << 4)).astype(np.float32) - 32
    step = (f16(blocks, 208) * blocks[:, 192:208].view(np.int8)).reshape(-1, 16, 1)
    return (step * codes.reshape(-1, 16, 16)).reshape(len(blocks), 256)


def _decode_iq4_nl(blocks: U8) -> F32:
    """d:f16, q:u4[32] -> d·table[q]."""
    return f16(blocks, 0) * IQ4_VALUES[nibbles(blocks[:, 2:18])]


def _decode_iq4_xs(blocks: U8) -> F32:
    """d:f16, tops:u2[8], nibbles:u4[8], q:u4[8,32] -> d·(s - 32)·table[q] with s = nibble + 16·top."""
    tops = bit_pairs(blocks[:, 2:4]).swapaxes(1, 2).reshape(-1, 8)
    lows = nibbles(blocks[:, 4:8, None]).reshape(-1, 8)
    step = f16(blocks, 0) * ((lows | (tops << 4)).astype(np.float32) - 32)
    codes = nibbles(blocks[:, 8:136].reshape(-1, 8, 16))
    return (step[:, :, None] * IQ4_VALUES[codes]).reshape(len(blocks), 256)


def _decode_mxfp4(blocks: U8) -> F32:
    """e:u8, q:u4[32] -> 2^(e - 127)·fp4(q)."""
    exponents = blocks[:, 0:1].astype(np.int32) - 127
    return np.asarray(np.ldexp(FP4_VALUES[nibbles(blocks[:, 1:17])], exponents))


def nvfp4_steps(codes: U8) -> F32:
    """e4m3 scales; their sign bit is ignored, and 0x7F means 0."""
    exponents, mantissas = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissas / 8, exponents - 7)
    steps = np.where(exponents == 0, mantissas * np.float32(2.0**-9), normal).astype(np.float32)
    steps[codes == 0x7F] = 0
    return steps


def _decode_nvfp4(blocks: U8) -> F32:
    """s:u8[4], q:u4[4,16] -> e4m3(s)·fp4(q)."""
    steps = nvfp4_steps(blocks[:, 0:4])
    return np.asarray((steps[:, :, None] * FP4_VALUES[nibbles(blocks[:, 4:36].reshape(-1, 4, 8))]).reshape(-1, 64))


def _decode_q8_1(blocks: U8) -> F32:
    """d:f16, s:f16, q:i8[32] -> d·q; s = d·Σq serves dot products only."""
    return f16(blocks, 0) * blocks[:, 4:36].view(np.int8)


def _decode_q1_0(blocks: U8) -> F32:
    """d:f16, q:u1[128] -> d where the bit is set, else -d."""
    return np.where(bits(blocks[:, 2:18]) == 1, f16(blocks, 0), -f16(blocks, 0))


def _decode_q2_0(blocks: U8) -> F32:
    """d:f16, q:u2[64], four neighbours in a byte -> d·(q - 1)."""
    codes = bit_pairs(blocks[:, 2:18]).swapaxes(1, 2).reshape(-1, 64)
    return f16(blocks, 0) * (codes.astype(np.float32) - 1)


def _digits(packed: U8, count: int) -> U8:
    """The first `count` base-3 digits of every byte b, which stands for the fraction b/256: u8[n, m] -> u8[n, count·m].

    Digit i is the whole part of 3·frac(3^i·b/256).
    """
    powers: U8 = np.array([3**i for i in range(count)], dtype=np.uint8)
    fractions = packed[:, None, :] * powers[:, None]
    return (fractions.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(packed), -1)


def ternary_digits(blocks: U8) -> U8:
    """The codes of TQ1_0: base-3 digits of 48 bytes (5 each) and of 4 bytes (4 each)."""
    parts = [_digits(blocks[:, 0:32], 5), _digits(blocks[:, 32:48], 5), _digits(blocks[:, 48:52], 4)]
    return np.concatenate(parts, axis=1)


def _decode_tq1_0(blocks: U8) -> F32:
    """q: see `ternary_digits`, d:f16 -> d·(q - 1)."""
    return f16(blocks, 52) * (ternary_digits(blocks).astype(np.float32) - 1)


def _decode_tq2_0(blocks: U8) -> F32:
    """q:u2[2,4,32], d:f16 -> d·(q - 1)."""
    codes = bit_pairs(blocks[:, 0:64].reshape(-1, 2, 32)).reshape(-1, 256)
    return f16(blocks, 64) * (codes.astype(np.float32) - 1)


FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, 18, _decode_q4_0, encode.encode_q4_0),
    "Q4_1": BlockFormat(32, 20, _decode_q4_1, encode.encode_q4_1),
    "Q5_0": BlockFormat(32, 22, _decode_q5_0, encode.encode_q5_0),
    "Q5_1": BlockFormat(32, 24, _decode_q5_1, encode.encode_q5_1),
    "Q8_0": BlockFormat(32, 34, _decode_q8_0, encode.encode_q8_0),
    "Q8_1": BlockFormat(32, 36, _decode_q8_1, encode.encode_q8_1),
    "Q2_K": BlockFormat(256, 84, _decode_q2_k, encode_k.encode_q2_k),
    "Q3_K": BlockFormat(256, 110, _decode_q3_k, encode_k.encode_q3_k),
    "Q4_K": BlockFormat(256, 144, _decode_q4_k, encode_k.encode_q4_k),
    "Q5_K": BlockFormat(256, 176, _decode_q5_k, encode_k.encode_q5_k),
    "Q6_K": BlockFormat(256, 210, _decode_q6_k, encode_k.encode_q6_k),
    "Q8_K": BlockFormat(256, 292, _decode_q8_k, encode_k.encode_q8_k),
    "IQ1_S": BlockFormat(256, 50, codebooks.CODEBOOK_TYPES["IQ1_S"].decode),
    "IQ1_M": BlockFormat(256, 56, codebooks.CODEBOOK_TYPES["IQ1_M"].decode),
    "IQ2_XXS": BlockFormat(256, 66, codebooks.CODEBOOK_TYPES["IQ2_XXS"].decode),
    "IQ2_XS": BlockFormat(256, 74, codebooks.CODEBOOK_TYPES["IQ2_XS"].decode),
    "IQ2_S": BlockFormat(256, 82, codebooks.CODEBOOK_TYPES["IQ2_S"].decode),
    "IQ3_XXS": BlockFormat(256, 98, codebooks.CODEBOOK_TYPES["IQ3_XXS"].decode),
    "IQ3_S": BlockFormat(256, 110, codebooks.CODEBOOK_TYPES["IQ3_S"].decode),
    "IQ4_NL": BlockFormat(32, 18, _decode_iq4_nl),
    "IQ4_XS": BlockFormat(256, 136, _decode_iq4_xs),
    "TQ1_0": BlockFormat(256, 54, _decode_tq1_0, encode.encode_tq1_0),
    "TQ2_0": BlockFormat(256, 66, _decode_tq2_0, encode.encode_tq2_0),
    "MXFP4": BlockFormat(32, 17, _decode_mxfp4, encode.encode_mxfp4),
    "NVFP4": BlockFormat(64, 36, _decode_nvfp4, encode.encode_nvfp4),
    "Q1_0": BlockFormat(128, 18, _decode_q1_0, encode.encode_q1_0),
    "Q2_0": BlockFormat(64, 18, _decode_q2_0, encode.encode_q2_0),
}
