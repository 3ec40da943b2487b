"""Real multipliers as integers, and what integer programs do with them: one arithmetic for NumPy, kernels and C.

A multiplier m > 0 is kept as (m0, shift) with m ≈ m0 · 2^-31 · 2^-shift and m0 in [2^30, 2^31). An i32 sum times m is

    rdpot(srdhm(acc · 2^left, m0), right),    right = max(shift, 0), left = max(-shift, 0)

that is: a product of which the high half is kept, then a shift, each rounded. Multipliers of 1 and more have a negative
shift; their sum is shifted left first, and saturates. With 15 instead of 31 bits, m0 has 16 bits.

    >>> split_multiplier(0.3)
    (1288490240, 1)
    >>> m0, shift = split_multiplier(0.3)
    >>> scaled(np.int64([64, -421]), m0, shift).tolist()
    [19, -127]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.errors import OpError

Array = np.ndarray[Any, np.dtype[Any]]

LOWEST, HIGHEST = -(2**31), 2**31 - 1
MOST_SHIFT = 31


def split_multiplier(multiplier: float, fraction_bits: int = 31) -> tuple[int, int]:
    """(m0, shift) of a multiplier, which is rounded to f32 first.

    Below 2^-32 the shift ends at 31 and m0 loses digits instead; 0 gives (0, 0).
    """
    m = float(np.float32(multiplier))
    if not (math.isfinite(m) and 0 <= m < 2.0**MOST_SHIFT):
        raise OpError(f"requantize: a multiplier must be in [0, 2^{MOST_SHIFT}), got {multiplier}; check the scales")
    fraction, exponent = math.frexp(m)
    # f32 has 24 digits, so that the product is an integer.
    m0, shift = int(fraction * 2.0**31), -exponent if m else 0
    if shift > MOST_SHIFT:
        lost = shift - MOST_SHIFT
        m0, shift = (m0 + (1 << (lost - 1))) >> lost if lost < 40 else 0, MOST_SHIFT
    return (m0, shift) if fraction_bits == 31 else _in_16_bits(m0, shift)


def _in_16_bits(m0: int, shift: int) -> tuple[int, int]:
    narrow = (m0 + 2**15) >> 16
    return (2**14, shift - 1) if narrow == 2**15 else (narrow, shift)


def split_multipliers(multipliers: Any, fraction_bits: int = 31) -> tuple[Array, Array]:
    """The tables of several multipliers, i32."""
    pairs = [split_multiplier(m, fraction_bits) for m in np.atleast_1d(multipliers)]
    table = np.asarray(pairs, np.int32).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def srdhm(a: Any, b: Any, fraction_bits: int = 31) -> Array:
    """a·b / 2^fraction_bits, saturated to i32; ties go towards +∞ (saturating rounding doubling high multiply).

    >>> srdhm(np.int64([1, -1, 3, -3]), 2**30).tolist()
    [1, 0, 2, -1]
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    half = np.int64(1 << (fraction_bits - 1))
    nudged = product + np.where(product >= 0, half, 1 - half)
    # Division that truncates: the magnitude is shifted and gets its sign back.
    quotient = np.sign(nudged) * (np.abs(nudged) >> fraction_bits)
    return np.clip(quotient, LOWEST, HIGHEST)


def rdpot(x: Any, shift: Any) -> Array:
    """x / 2^shift for shifts from 0 to 31; ties go away from zero (rounding division by a power of two).

    >>> rdpot(np.int64([1, -1, 3, -3]), 1).tolist()
    [1, -1, 2, -2]
    """
    x = np.asarray(x, np.int64)
    mask = (np.int64(1) << np.asarray(shift, np.int64)) - 1
    threshold = (mask >> 1) + (x < 0)
    return np.asarray((x >> np.asarray(shift, np.int64)) + ((x & mask) > threshold))


def scaled(acc: Any, m0: Any, shift: Any, fraction_bits: int = 31) -> Array:
    """i32 sums times the multiplier (m0, shift), as i64; tables broadcast."""
    shift = np.clip(np.asarray(shift, np.int64), -MOST_SHIFT, MOST_SHIFT)
    left, right = np.maximum(-shift, 0), np.maximum(shift, 0)
    grown = np.clip(np.asarray(acc, np.int64) << left, LOWEST, HIGHEST)
    return rdpot(srdhm(grown, m0, fraction_bits), right)
