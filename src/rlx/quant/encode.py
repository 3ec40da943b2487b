"""Encoders of GGUF blocks: `f32[blocks, elements]` -> `u8[blocks, bytes]`, by GGML's reference rounding.

The layouts are described at the decoders in `rlx.quant.decode`; the 256-element K types are in
`rlx.quant.encode_k`. Sums are taken in the order of the elements and in f32, so that results agree with GGML's
scalar code to the last bit.
"""

from __future__ import annotations

import numpy as np

from rlx.errors import OpError
from rlx.quant.block_fields import F32, U8
from rlx.quant.nvfp4 import FP4_E2M1_LUT

# Half way between two 4-bit floats belongs to the smaller one.
_FP4_BORDERS: F32 = (FP4_E2M1_LUT[:7] + FP4_E2M1_LUT[1:8]) / np.float32(2)


def halves(steps: F32, name: str) -> U8:
    """f32[blocks, n] scales as the bytes of f16."""
    with np.errstate(over="ignore", under="ignore"):
        values = steps.astype("<f2")
    if not np.isfinite(values).all():
        raise OpError(f"quantize {name}: the values must be finite and small enough for an f16 scale; rescale them")
    return values.view(np.uint8)


def inverse(steps: F32) -> F32:
    """1/step, and 0 for the blocks whose step is 0 or too small to invert."""
    with np.errstate(divide="ignore", over="ignore"):
        result = 1 / steps
    return np.where(np.isfinite(result), result, np.float32(0))


def largest_magnitude(values: F32) -> F32:
    """The value with the largest magnitude of every row, with its sign; the first of several: f32[rows, 1]."""
    # Adding 0 turns -0.0 into 0.0, which is what a search that starts at zero finds in a row of zeros.
    return np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1) + np.float32(0)


def _round_away(values: F32) -> F32:
    """The nearest whole number, halves away from zero. The sum is in f64 because x + 0.5 may round up in f32."""
    wide = values.astype(np.float64)
    return np.trunc(wide + np.copysign(0.5, wide)).astype(np.float32)


def _packed_nibbles(codes: U8) -> U8:
    """The first half of every row in the low, the second half in the high nibbles."""
    half = codes.shape[1] // 2
    return np.bitwise_or(codes[:, :half] & 15, codes[:, half:] << 4, dtype=np.uint8)


def _symmetric(values: F32, levels: int, name: str) -> tuple[U8, U8]:
    """Scale bytes and codes: d = x_max / -levels, q = min(2·levels - 1, ⌊x/d + levels + 1/2⌋).

    x_max, the value of largest magnitude, so gets the code 0.
    """
    step = largest_magnitude(values) / np.float32(-levels)
    scales = halves(step, name)
    codes = np.trunc(values * inverse(step) + np.float32(levels + 0.5))
    return scales, np.clip(codes, 0, 2 * levels - 1).astype(np.uint8)


def _shifted(values: F32, top: int, name: str) -> tuple[U8, U8]:
    """Scale and offset bytes, and codes: d = (max - min) / top, m = min, q = ⌊(x - m)/d + 1/2⌋."""
    # By index, because of 0.0 and -0.0 the first must be taken.
    low = np.take_along_axis(values, values.argmin(axis=1)[:, None], axis=1)
    high = np.take_along_axis(values, values.argmax(axis=1)[:, None], axis=1)
    with np.errstate(over="ignore"):
        step = (high - low) / np.float32(top)
    fields = np.concatenate([halves(step, name), halves(low, name)], axis=1)
    codes = np.trunc((values - low) * inverse(step) + np.float32(0.5))
    return fields, np.clip(codes, 0, top).astype(np.uint8)


def _fifth_bits(codes: U8) -> U8:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def encode_q4_0(values: F32) -> U8:
    scales, codes = _symmetric(values, 8, "Q4_0")
    return np.concatenate([scales, _packed_nibbles(codes)], axis=1)


def encode_q4_1(values: F32) -> U8:
    fields, codes = _shifted(values, 15, "Q4_1")
    return np.concatenate([fields, _packed_nibbles(codes)], axis=1)


def encode_q5_0(values: F32) -> U8:
    scales, codes = _symmetric(values, 16, "Q5_0")
    return np.concatenate([scales, _fifth_bits(codes), _packed_nibbles(codes)], axis=1)


def encode_q5_1(values: F32) -> U8:
    fields, codes = _shifted(values, 31, "Q5_1")
    return np.concatenate([fields, _fifth_bits(codes), _packed_nibbles(codes)], axis=1)


def encode_q8_0(values: F32) -> U8:
    """d = max|x| / 127, q = x/d rounded half away from zero."""
    step = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scales = halves(step, "Q8_0")
    codes = _round_away(values * inverse(step)).astype(np.int8)
    return np.concatenate([scales, codes.view(np.uint8)], axis=1)


def encode_q8_1(values: F32) -> U8:
    """As Q8_0, with s = d·Σq after the scale."""
    step = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    codes = _round_away(values * inverse(step)).astype(np.int8)
    total = codes.sum(axis=1, dtype=np.float32, keepdims=True) * step
    fields = [halves(step, "Q8_1"), halves(total, "Q8_1"), codes.view(np.uint8)]
    return np.concatenate(fields, axis=1)


def _ternary(values: F32, name: str) -> tuple[U8, U8]:
    """Scale bytes and codes: d = max|x|, q = 1 + x/d rounded."""
    step = np.abs(values).max(axis=1, keepdims=True)
    return halves(step, name), (_round_away(values * inverse(step)) + 1).astype(np.uint8)


def _packed_digits(codes: U8, columns: int) -> U8:
    """Base-3 digits, most significant first, as the smallest byte b with b/256 at or above the fraction they mean."""
    digits = codes.reshape(len(codes), -1, columns)
    powers = np.array([[3 ** (4 - i)] for i in range(digits.shape[1])], dtype=np.uint16)
    number = (digits * powers).sum(axis=1, dtype=np.uint16)
    return ((number.astype(np.uint32) * 256 + 242) // 243).astype(np.uint8)


def encode_tq1_0(values: F32) -> U8:
    scales, codes = _ternary(values, "TQ1_0")
    parts = [_packed_digits(codes[:, :160], 32), _packed_digits(codes[:, 160:240], 16)]
    return np.concatenate([*parts, _packed_digits(codes[:, 240:], 4), scales], axis=1)


def pack_bit_pairs(codes: U8) -> U8:
    """u8[..., 4, m] codes below 4 -> u8[..., m], the first in the lowest bits."""
    shifts: U8 = np.array([[0], [2], [4], [6]], dtype=np.uint8)
    return np.bitwise_or.reduce(codes << shifts, axis=-2)


def encode_tq2_0(values: F32) -> U8:
    scales, codes = _ternary(values, "TQ2_0")
    return np.concatenate([pack_bit_pairs(codes.reshape(-1, 2, 4, 32)).reshape(-1, 64), scales], axis=1)


def _fp4_codes(scaled: F32) -> U8:
    """The nearest 4-bit float of every value; 0 for values between -1/4 and 0."""
    magnitudes = np.searchsorted(_FP4_BORDERS, np.abs(scaled), side="left").astype(np.uint8)
    return np.where((scaled < 0) & (magnitudes > 0), magnitudes | 8, magnitudes).astype(np.uint8)


def encode_mxfp4(values: F32) -> U8:
    """e = ⌊log2 max|x|⌋ - 2 + 127, q the nearest 4-bit float of x / 2^(e - 127)."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise OpError("quantize MXFP4: the values must be finite")
    # frexp gives largest = f·2^p with f in [1/2, 1), so ⌊log2 largest⌋ = p - 1.
    exponents = np.clip(np.frexp(largest)[1] - 1 - 2 + 127, 0, 254)
    exponents[largest == 0] = 0
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(values, 127 - exponents)
    return np.concatenate([exponents.astype(np.uint8), _packed_nibbles(_fp4_codes(scaled))], axis=1)


def _ue4m3_codes(values: F32) -> U8:
    """The nearest unsigned E4M3 code of values >= 0, ties up. As in GGML's own conversion, values below the smallest
    normal number never round up to it, and everything from 248 on becomes 448."""
    mantissas, exponents = np.frexp(np.minimum(values, np.float32(448)))
    # The code of a normal number f·2^p, f in [1/2, 1), is 8·(p + 6) plus the eighths of 2f above 1.
    normal = 8 * (exponents + 5) + np.floor(16 * mantissas + np.float32(0.5)).astype(np.int32)
    denormal = np.minimum(np.floor(values * np.float32(512) + np.float32(0.5)), 7)
    small = (exponents <= -6) | (values == 0)
    codes = np.where(small, denormal, np.where(normal >= 0x78, 0x7E, normal))
    return codes.astype(np.uint8)


def encode_nvfp4(values: F32) -> U8:
    """Per 16 elements: s = e4m3(max|x| / 6), q the nearest 4-bit float of x / s."""
    groups = values.reshape(-1, 4, 16)
    largest = np.abs(groups).max(axis=2)
    if not np.isfinite(largest).all():
        raise OpError("quantize NVFP4: the values must be finite")
    codes = _ue4m3_codes(largest / np.float32(6))
    exponents, mantissas = (codes >> 3).astype(np.int32), (codes & 7).astype(np.float32)
    steps = np.where(exponents == 0, mantissas * np.float32(2.0**-9), np.ldexp(1 + mantissas / 8, exponents - 7))
    nearest = _fp4_codes(_quotients(groups, steps[:, :, None]))
    packed = (nearest[:, :, :8] | nearest[:, :, 8:] << 4).reshape(-1, 32)
    return np.concatenate([codes, packed], axis=1)


def _quotients(values: F32, steps: F32) -> F32:
    """x / step, and 0 where the step is 0."""
    return np.divide(values, steps, out=np.zeros_like(values), where=steps != 0)


def encode_q1_0(values: F32) -> U8:
    """d = mean|x|, one bit for the sign."""
    total = np.add.reduce(np.ascontiguousarray(np.abs(values).T), axis=0)
    signs = np.packbits(values >= 0, axis=1, bitorder="little")
    return np.concatenate([halves((total / np.float32(128))[:, None], "Q1_0"), signs], axis=1)


def encode_q2_0(values: F32) -> U8:
    scales, codes = _ternary(values, "Q2_0")
    return np.concatenate([scales, pack_bit_pairs(codes.reshape(-1, 16, 4).swapaxes(1, 2))], axis=1)
