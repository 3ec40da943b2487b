"""GGUF block formats: how many elements and bytes a block holds, and how its bytes become numbers.

A quantised tensor is a run of equal blocks in row-major order. `FORMATS` maps the GGML name of a type (`"Q4_K"`) to its
`BlockFormat`; `decode` turns `u8[blocks, bytes]` into `f32[blocks, elements]`. All multi-byte fields are little endian,
`f16` is IEEE half. In the formulas `d` is the block's scale, `m` its minimum or offset, and `q` the code of an element.

The formats are the ones that files use. Every product is rounded to f32 in the order written, so that results agree
with GGML's scalar code to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError
from rlx.ir.nvfp4 import FP4_E2M1_LUT

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

# The 16 values of the non-linear 4-bit types IQ4_NL and IQ4_XS.
IQ4_VALUES: F32 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)


class BlockFormat(NamedTuple):
    """One block type: its size, its decoder and, for the types this package can write, its encoder."""

    elements: int
    bytes: int
    decode: Callable[[U8], F32]
    encode: Callable[[F32], U8] | None = None


def _f16(blocks: U8, at: int) -> F32:
    """The half at byte `at` of every block, as f32[blocks, 1]."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _nibbles(codes: U8) -> U8:
    """Low nibbles of the last axis, then its high nibbles: u8[..., m] -> u8[..., 2m]."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _bits(words: U8) -> U8:
    """The bits of every byte, least significant first: u8[blocks, m] -> u8[blocks, 8m]."""
    return np.unpackbits(words, axis=-1, bitorder="little")


def _bit_rows(words: U8) -> U8:
    """Bit r of byte c at [r, c]: u8[blocks, m] -> u8[blocks, 8, m]."""
    return _bits(words).reshape(len(words), -1, 8).swapaxes(1, 2)


def _bit_pairs(codes: U8) -> U8:
    """The four bit pairs of every byte, lowest first, on a new axis before the last: u8[..., m] -> u8[..., 4, m]."""
    shifts: U8 = np.array([[0], [2], [4], [6]], dtype=np.uint8)
    return (codes[..., None, :] >> shifts) & np.uint8(3)


def _decode_q4_0(blocks: U8) -> F32:
    """d:f16, q:u4[32] -> d·(q - 8); the low nibbles are the first half of the block."""
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:18]).astype(np.float32) - 8)


def _decode_q4_1(blocks: U8) -> F32:
    """d:f16, m:f16, q:u4[32] -> d·q + m."""
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:20]) + _f16(blocks, 2)


def _decode_q5_0(blocks: U8) -> F32:
    """d:f16, high:u1[32], low:u4[32] -> d·(q - 16) with q = low + 16·high."""
    codes = _nibbles(blocks[:, 6:22]) | (_bits(blocks[:, 2:6]) << 4)
    return _f16(blocks, 0) * (codes.astype(np.float32) - 16)


def _decode_q5_1(blocks: U8) -> F32:
    """d:f16, m:f16, high:u1[32], low:u4[32] -> d·q + m."""
    codes = _nibbles(blocks[:, 8:24]) | (_bits(blocks[:, 4:8]) << 4)
    return _f16(blocks, 0) * codes + _f16(blocks, 2)


def _decode_q8_0(blocks: U8) -> F32:
    """d:f16, q:i8[32] -> d·q."""
    return _f16(blocks, 0) * blocks[:, 2:34].view(np.int8)


def _decode_q8_k(blocks: U8) -> F32:
    """d:f32, q:i8[256], sums:i16[16] -> d·q; the sums of 16 codes serve dot products only."""
    return blocks[:, 0:4].view("<f4") * blocks[:, 4:260].view(np.int8)


def _six_bit_pairs(packed: U8) -> tuple[U8, U8]:
    """Eight (scale, minimum) pairs of six bits each from the 12 bytes that Q4_K and Q5_K keep them in.

    Pairs 0..3 are the low six bits of bytes 0..7; pairs 4..7 have their low nibbles in bytes 8..11 and their two high
    bits at the top of bytes 0..7.
    """
    low, high, nibbles = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (nibbles & 15) | ((low >> 6) << 4)], axis=-1)
    minimums = np.concatenate([high & 63, (nibbles >> 4) | ((high >> 6) << 4)], axis=-1)
    return scales, minimums


def _scaled_rows(blocks: U8, codes: U8) -> F32:
    """d·s·q - dmin·m for u8[blocks, 8, 32] codes: the shared frame of Q4_K and Q5_K."""
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    step = (_f16(blocks, 0) * scales)[:, :, None]
    offset = (_f16(blocks, 2) * minimums)[:, :, None]
    return (step * codes - offset).reshape(len(blocks), 256)


def _paired_rows(qs: U8) -> U8:
    """128 bytes -> u8[blocks, 8, 32]: byte row p holds row 2p in its low and row 2p+1 in its high nibbles."""
    return _nibbles(qs.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _decode_q4_k(blocks: U8) -> F32:
    """d:f16, dmin:f16, pairs:u6[8,2], q:u4[8,32]."""
    return _scaled_rows(blocks, _paired_rows(blocks[:, 16:144]))


def _decode_q5_k(blocks: U8) -> F32:
    """d:f16, dmin:f16, pairs:u6[8,2], high:u8[32] (bit r belongs to row r), low:u4[8,32]."""
    high = _bit_rows(blocks[:, 16:48]) << np.uint8(4)
    return _scaled_rows(blocks, _paired_rows(blocks[:, 48:176]) | high)


def _decode_q2_k(blocks: U8) -> F32:
    """pairs:u8[16] (scale in the low, minimum in the high nibble), q:u2[256], d:f16, dmin:f16 -> d·s·q - dmin·m."""
    pairs = blocks[:, 0:16]
    step: F32 = (_f16(blocks, 80) * (pairs & 15))[:, :, None]
    offset: F32 = (_f16(blocks, 82) * (pairs >> 4))[:, :, None]
    codes = _bit_pairs(blocks[:, 16:80].reshape(-1, 2, 32)).reshape(-1, 16, 16)
    return (step * codes - offset).reshape(len(blocks), 256)


def _decode_q3_k(blocks: U8) -> F32:
    """high:u8[32] (bit r belongs to row r), low:u2[256], scales:u6[16], d:f16 -> d·(s - 32)·(low + 4·high - 4)."""
    scales = _nibbles(blocks[:, 96:104]) | (_bit_pairs(blocks[:, 104:108]).reshape(-1, 16) << 4)
    step = (_f16(blocks, 108) * (scales.astype(np.float32) - 32))[:, :, None]
    low = _bit_pairs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    codes = (low | (_bit_rows(blocks[:, 0:32]) << 2)).astype(np.float32) - 4
    return (step * codes.reshape(-1, 16, 16)).reshape(len(blocks), 256)


def _decode_q6_k(blocks: U8) -> F32:
    """low:u4[256], high:u2[256], scales:i8[16], d:f16 -> d·s·(low + 16·high - 32).

    Elements run over [half, quarter, 32]; a quarter reads one nibble of 32 of the half's 64 low bytes and one bit pair
    of its 32 high bytes.
    """
    low = _nibbles(blocks[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = _bit_pairs(blocks[:, 128:192].reshape(-1, 2, 32))
    codes = (low | (high << 4)).astype(np.float32) - 32
    step = (_f16(blocks, 208) * blocks[:, 192:208].view(np.int8)).reshape(-1, 16, 1)
    return (step * codes.reshape(-1, 16, 16)).reshape(len(blocks), 256)


def _decode_iq4_nl(blocks: U8) -> F32:
    """d:f16, q:u4[32] -> d·table[q]."""
    return _f16(blocks, 0) * IQ4_VALUES[_nibbles(blocks[:, 2:18])]


def _decode_iq4_xs(blocks: U8) -> F32:
    """d:f16, tops:u2[8], nibbles:u4[8], q:u4[8,32] -> d·(s - 32)·table[q] with s = nibble + 16·top."""
    tops = _bit_pairs(blocks[:, 2:4]).swapaxes(1, 2).reshape(-1, 8)
    nibbles = _nibbles(blocks[:, 4:8, None]).reshape(-1, 8)
    step = _f16(blocks, 0) * ((nibbles | (tops << 4)).astype(np.float32) - 32)
    codes = _nibbles(blocks[:, 8:136].reshape(-1, 8, 16))
    return (step[:, :, None] * IQ4_VALUES[codes]).reshape(len(blocks), 256)


def _decode_mxfp4(blocks: U8) -> F32:
    """e:u8, q:u4[32] -> 2^(e - 127)·fp4(q)."""
    exponents = blocks[:, 0:1].astype(np.int32) - 127
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(FP4_E2M1_LUT[_nibbles(blocks[:, 1:17])], exponents))


def _halves(steps: F32, name: str) -> U8:
    """f32[blocks, 1] scales as the two bytes of an f16."""
    with np.errstate(over="ignore", under="ignore"):
        halves = steps.astype("<f2")
    if not np.isfinite(halves).all():
        raise OpError(f"quantize {name}: the values must be finite and small enough for an f16 scale; rescale them")
    return halves.view(np.uint8)


def _inverse(steps: F32) -> F32:
    """1/step, and 0 for the blocks whose step is 0 or too small to invert."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / steps
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _encode_q8_0(values: F32) -> U8:
    """d = max|x| / 127, q = x/d rounded half away from zero."""
    step = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scales = _halves(step, "Q8_0")
    scaled = (values * _inverse(step)).astype(np.float64)
    codes = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int8)
    return np.concatenate([scales, codes.view(np.uint8)], axis=1)


def _encode_q4_0(values: F32) -> U8:
    """d = x_max / -8 with x_max the value of largest magnitude, which so gets the code 0; q = min(15, ⌊x/d + 8.5⌋)."""
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)
    step = largest / np.float32(-8)
    scales = _halves(step, "Q4_0")
    scaled = values.astype(np.float64) * _inverse(step)
    codes = np.clip(np.trunc(scaled + 8.5), 0, 15).astype(np.uint8)
    return np.concatenate([scales, codes[:, :16] | (codes[:, 16:] << 4)], axis=1)


FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, 18, _decode_q4_0, _encode_q4_0),
    "Q4_1": BlockFormat(32, 20, _decode_q4_1),
    "Q5_0": BlockFormat(32, 22, _decode_q5_0),
    "Q5_1": BlockFormat(32, 24, _decode_q5_1),
    "Q8_0": BlockFormat(32, 34, _decode_q8_0, _encode_q8_0),
    "Q2_K": BlockFormat(256, 84, _decode_q2_k),
    "Q3_K": BlockFormat(256, 110, _decode_q3_k),
    "Q4_K": BlockFormat(256, 144, _decode_q4_k),
    "Q5_K": BlockFormat(256, 176, _decode_q5_k),
    "Q6_K": BlockFormat(256, 210, _decode_q6_k),
    "Q8_K": BlockFormat(256, 292, _decode_q8_k),
    "IQ4_NL": BlockFormat(32, 18, _decode_iq4_nl),
    "IQ4_XS": BlockFormat(256, 136, _decode_iq4_xs),
    "MXFP4": BlockFormat(32, 17, _decode_mxfp4),
}
