"""Encoders of GGUF's K types: 256 elements in sub-blocks of 16 or 32 with scales of their own, found by search.

A sub-block's scale (and minimum) starts from its range; some nearby scales are tried, each with the codes it gives and
then the scale that fits these codes best (weighted least squares), and the best one stays. The scales of a block are
then quantised themselves, and the codes are made again from what they became.

Searches run over all sub-blocks at once: arrays are `f32[elements, sub-blocks]`, so that a sum over the first axis adds
in the order of the elements, as GGML's scalar code does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError
from rlx.quant.block_fields import F32, U8
from rlx.quant.encode import halves, largest_magnitude, pack_bit_pairs

I32 = npt.NDArray[np.int32]
# Sub-blocks with nothing larger than this count as zero.
_TINY = np.float32(1e-15)


def _columns(values: F32, size: int) -> F32:
    """f32[blocks, 256] -> f32[size, sub-blocks]."""
    if not np.isfinite(values).all():
        raise OpError("quantize: the values must be finite")
    return np.ascontiguousarray(values.reshape(-1, size).T)


def _safe_divide(left: F32, right: F32) -> F32:
    """left / right, and 0 where right is 0."""
    return np.divide(left, right, out=np.zeros_like(left), where=right != 0)


def _rounded(values: F32, low: int, high: int) -> F32:
    """The nearest whole number (halves to even) within bounds."""
    return np.clip(np.rint(values), low, high)


def _search_symmetric(x: F32, levels: int) -> tuple[F32, F32]:
    """Scales s that make s·q close to x with q in -levels..levels-1, weighted by x², and the codes q + levels.

    Tried are the inverse scales -(levels + i/10) / x_max for i = 0, then -9..9.
    """
    top = largest_magnitude(x.T)[:, 0]
    live = np.abs(top) >= _TINY
    weights = x * x

    def fit(offset: float) -> tuple[F32, F32, F32]:
        factor = _safe_divide(np.full_like(top, -(np.float32(levels) + np.float32(0.1) * np.float32(offset))), top)
        codes = _rounded(factor * x, -levels, levels - 1)
        return np.add.reduce(weights * x * codes, axis=0), np.add.reduce(weights * codes * codes, axis=0), codes

    sum_lx, sum_l2, codes = fit(0)
    scale = _safe_divide(sum_lx, sum_l2)
    best = scale * sum_lx
    for offset in (i for i in range(-9, 10) if i):
        sum_lx, sum_l2, tried = fit(offset)
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        scale = np.where(better, _safe_divide(sum_lx, sum_l2), scale)
        best = np.where(better, scale * sum_lx, best)
        codes = np.where(better, tried, codes)
    return np.where(live, scale, np.float32(0)), np.where(live, codes + levels, np.float32(0))


def _search_q3(x: F32) -> tuple[F32, F32]:
    """Scales for codes q in -4..3, weighted by x², and the codes q + 4.

    In up to five rounds each code moves to where it serves best.
    """
    top = largest_magnitude(x.T)[:, 0]
    live = np.abs(top) >= _TINY
    codes = _rounded(_safe_divide(np.full_like(top, -4), top) * x, -4, 3)
    weights = x * x
    sum_lx = np.add.reduce(weights * x * codes, axis=0)
    sum_l2 = np.add.reduce(weights * codes * codes, axis=0)
    for _ in range(5):
        changed = False
        for element, weight, code in zip(x, weights, codes):
            rest_lx = sum_lx - weight * element * code
            rest_l2 = sum_l2 - weight * code * code
            moved = _rounded(_safe_divide(element * rest_l2, rest_lx), -4, 3)
            new_lx = rest_lx + weight * element * moved
            new_l2 = rest_l2 + weight * moved * moved
            better = (rest_lx > 0) & (moved != code) & (new_l2 > 0)
            better &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
            changed = changed or bool(better.any())
            code[better] = moved[better]
            sum_lx = np.where(better, new_lx, sum_lx)
            sum_l2 = np.where(better, new_l2, sum_l2)
        if not changed:
            break
    return np.where(live, _safe_divide(sum_lx, sum_l2), np.float32(0)), np.where(live, codes + 4, np.float32(0))


def _search_shifted(
    x: F32, weights: F32, top: int, first: float, steps: int, absolute: bool = False
) -> tuple[F32, F32, F32]:
    """Scales s and minimums m >= 0 that make s·q - m close to x with q in 0..top, and these codes q.

    Tried are the inverse scales (top + first + i/10) / (max - min) for i = 0..steps; the error is squared, or absolute.
    """
    low = np.minimum(x.min(axis=0), np.float32(0))
    high = x.max(axis=0)
    live = high != low
    sum_w = np.add.reduce(weights, axis=0)
    sum_x = np.add.reduce(weights * x, axis=0)

    def quantized(factor: F32) -> F32:
        return _rounded(factor * (x - low), 0, top)

    def error(scale: F32, offset: F32, codes: F32) -> F32:
        difference = scale * codes + offset - x
        return np.add.reduce(weights * (np.abs(difference) if absolute else difference * difference), axis=0)

    factor = _safe_divide(np.full_like(high, top), high - low)
    scale = _safe_divide(np.ones_like(high), factor)
    codes = quantized(factor)
    best = error(scale, low, codes)
    for i in range(steps + 1):
        goal = np.float32(first) + np.float32(0.1) * np.float32(i) + np.float32(top)
        tried = quantized(_safe_divide(np.full_like(high, goal), high - low))
        sum_l = np.add.reduce(weights * tried, axis=0)
        sum_l2 = np.add.reduce(weights * tried * tried, axis=0)
        sum_xl = np.add.reduce(weights * tried * x, axis=0)
        det = sum_w * sum_l2 - sum_l * sum_l
        new_scale = _safe_divide(sum_w * sum_xl - sum_x * sum_l, det)
        new_low = _safe_divide(sum_l2 * sum_x - sum_l * sum_xl, det)
        above = new_low > 0
        new_scale = np.where(above, _safe_divide(sum_xl, sum_l2), new_scale)
        new_low = np.where(above, np.float32(0), new_low)
        new_error = error(new_scale, new_low, tried)
        better = live & (det > 0) & (new_error < best)
        codes = np.where(better, tried, codes)
        best = np.where(better, new_error, best)
        scale = np.where(better, new_scale, scale)
        # The next try starts from the new minimum.
        low = np.where(better, new_low, low)
    return np.where(live, scale, np.float32(0)), -low, np.where(live, codes, np.float32(0))


def _scale_codes(scales: F32, top: int) -> tuple[F32, F32]:
    """Scales >= 0 of f32[blocks, n] as max/top, f32[blocks, 1], and codes 0..top."""
    largest = np.maximum(scales.max(axis=1, keepdims=True), np.float32(0))
    codes = _rounded(_safe_divide(np.full_like(largest, top), largest) * scales, 0, top)
    return largest / np.float32(top), codes


def _rounded_to_half(steps: F32) -> F32:
    with np.errstate(over="ignore", under="ignore"):
        return steps.astype(np.float16).astype(np.float32)


def _shifted_codes(values: F32, steps: F32, offsets: F32, searched: F32, top: int) -> U8:
    """Codes of x ≈ step·q - offset for the quantised steps; where a step became 0 the searched codes stay.

    `steps` and `offsets` are f32[blocks, n], `searched` is f32[elements, sub-blocks]. The result is u8[blocks, n, m].
    """
    runs = values.reshape(*steps.shape, -1)
    codes = _rounded(_safe_divide(runs + offsets[:, :, None], np.broadcast_to(steps[:, :, None], runs.shape)), 0, top)
    return np.where(steps[:, :, None] == 0, searched.T.reshape(runs.shape), codes).astype(np.uint8)


def _signed_codes(values: F32, steps: F32, searched: F32, levels: int) -> U8:
    """Codes q + levels of x ≈ step·q for the quantised steps; where a step became 0 the searched codes stay."""
    runs = values.reshape(*steps.shape, -1)
    codes = _rounded(_safe_divide(runs, np.broadcast_to(steps[:, :, None], runs.shape)), -levels, levels - 1)
    return np.where(steps[:, :, None] == 0, searched.T.reshape(runs.shape), codes + levels).astype(np.uint8)


def encode_q2_k(values: F32) -> U8:
    """16 sub-blocks, codes 0..3, scales and minimums of four bits, weights |x| and absolute errors."""
    x = _columns(values, 16)
    scale, minimum, searched = _search_shifted(x, np.abs(x), 3, -0.5, 15, absolute=True)
    d, scale_codes = _scale_codes(scale.reshape(-1, 16), 15)
    dmin, minimum_codes = _scale_codes(minimum.reshape(-1, 16), 15)
    steps, offsets = _rounded_to_half(d) * scale_codes, _rounded_to_half(dmin) * minimum_codes
    codes = _shifted_codes(values, steps, offsets, searched, 3)
    pairs = scale_codes.astype(np.uint8) | minimum_codes.astype(np.uint8) << 4
    packed = pack_bit_pairs(codes.reshape(-1, 2, 4, 32)).reshape(-1, 64)
    return np.concatenate([pairs, packed, halves(d, "Q2_K"), halves(dmin, "Q2_K")], axis=1)


def encode_q3_k(values: F32) -> U8:
    """16 sub-blocks, codes -4..3, signed scales of six bits."""
    found, searched = _search_q3(_columns(values, 16))
    scale = found.reshape(-1, 16)
    top = largest_magnitude(scale)
    factor = _safe_divide(np.full_like(top, -32), top)
    scale_codes = _rounded(factor * scale, -32, 31)
    d = _safe_divide(np.ones_like(factor), factor)
    codes = _signed_codes(values, _rounded_to_half(d) * scale_codes, searched, 4).reshape(-1, 8, 32)
    stored = (scale_codes + 32).astype(np.uint8)
    stored[top[:, 0] == 0] = 0
    low, high = stored & np.uint8(15), stored >> np.uint8(4)
    fields = [
        np.packbits(codes >> 2, axis=1, bitorder="little").reshape(-1, 32),
        pack_bit_pairs((codes & np.uint8(3)).reshape(-1, 2, 4, 32)).reshape(-1, 64),
        low[:, :8] | low[:, 8:] << 4,
        pack_bit_pairs(high.reshape(-1, 4, 4)),
        halves(d, "Q3_K"),
    ]
    return np.concatenate(fields, axis=1)


def _six_bit_fields(scale_codes: U8, minimum_codes: U8) -> U8:
    """Eight (scale, minimum) pairs of six bits in 12 bytes; see `_six_bit_pairs` of the decoders."""
    low = scale_codes[:, :4] | scale_codes[:, 4:] >> 4 << 6
    high = minimum_codes[:, :4] | minimum_codes[:, 4:] >> 4 << 6
    rest = np.bitwise_or(scale_codes[:, 4:] & 15, minimum_codes[:, 4:] << 4, dtype=np.uint8)
    return np.concatenate([low, high, rest], axis=1)


def _encode_paired(values: F32, top: int, first: float, steps: int, name: str) -> tuple[U8, U8]:
    """Head (d, dmin, pairs) and codes u8[blocks, 8, 32] of Q4_K and Q5_K; weights are sqrt(mean x²) + |x|."""
    x = _columns(values, 32)
    weights = np.sqrt(np.add.reduce(x * x, axis=0) / np.float32(32)) + np.abs(x)
    scale, minimum, searched = _search_shifted(x, weights, top, first, steps)
    d, scale_codes = _scale_codes(scale.reshape(-1, 8), 63)
    dmin, minimum_codes = _scale_codes(minimum.reshape(-1, 8), 63)
    run_steps, offsets = _rounded_to_half(d) * scale_codes, _rounded_to_half(dmin) * minimum_codes
    codes = _shifted_codes(values, run_steps, offsets, searched, top)
    pairs = _six_bit_fields(scale_codes.astype(np.uint8), minimum_codes.astype(np.uint8))
    return np.concatenate([halves(d, name), halves(dmin, name), pairs], axis=1), codes


def _paired_nibbles(codes: U8) -> U8:
    """u8[blocks, 8, 32] -> u8[blocks, 128]: rows 2p and 2p+1 share the bytes of pair p."""
    return np.bitwise_or(codes[:, 0::2] & 15, codes[:, 1::2] << 4, dtype=np.uint8).reshape(-1, 128)


def encode_q4_k(values: F32) -> U8:
    """8 sub-blocks, codes 0..15."""
    head, codes = _encode_paired(values, 15, -1.0, 20, "Q4_K")
    return np.concatenate([head, _paired_nibbles(codes)], axis=1)


def encode_q5_k(values: F32) -> U8:
    """8 sub-blocks, codes 0..31."""
    head, codes = _encode_paired(values, 31, -0.5, 15, "Q5_K")
    high = np.packbits(codes >> 4, axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([head, high, _paired_nibbles(codes)], axis=1)


def encode_q6_k(values: F32) -> U8:
    """16 sub-blocks, codes -32..31, signed scales of eight bits."""
    found, searched = _search_symmetric(_columns(values, 16), 32)
    scale = found.reshape(-1, 16)
    top = largest_magnitude(scale)
    top[np.abs(top) < _TINY] = 0
    factor = _safe_divide(np.full_like(top, -128), top)
    scale_codes = np.minimum(np.rint(factor * scale), 127)
    d = _safe_divide(np.ones_like(factor), factor)
    codes = _signed_codes(values, _rounded_to_half(d) * scale_codes, searched, 32).reshape(-1, 2, 4, 32)
    low = (codes[:, :, :2] & 15 | codes[:, :, 2:] << 4).reshape(-1, 128)
    high = pack_bit_pairs(codes >> np.uint8(4)).reshape(-1, 64)
    blocks = np.concatenate([low, high, scale_codes.astype(np.int8).view(np.uint8), halves(d, "Q6_K")], axis=1)
    blocks[top[:, 0] == 0] = 0
    return blocks


def encode_q8_k(values: F32) -> U8:
    """d = x_max / -127 in f32, and the sums of every 16 codes."""
    top = largest_magnitude(values)
    if not np.isfinite(top).all():
        raise OpError("quantize Q8_K: the values must be finite")
    factor = _safe_divide(np.full_like(top, -127), top)
    codes = np.minimum(np.rint(factor * values), 127).astype(np.int8)
    sums = codes.reshape(-1, 16, 16).sum(axis=2, dtype=np.int16).astype("<i2")
    d = _safe_divide(np.ones_like(factor), factor).astype("<f4")
    return np.concatenate([d.view(np.uint8), codes.view(np.uint8), sums.view(np.uint8)], axis=1)
