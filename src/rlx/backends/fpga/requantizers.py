"""The requantiser of a layer: how the multipliers of an integer program become parameters and table entries of RTL.

Low bits that are 0 in every multiplier are left out of products: those of f32 have 24 digits, so that at least 7 of the
31 bits are, and the position of the rounding moves with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.fpga.ranges import Range, index_bits, signed_bits
from rlx.quantized.values import Multipliers

_I32_BITS = 32
# Digits of a multiplier that is the same for all channels, a stage each.
CONSTANT_DIGITS = 6


@dataclass(frozen=True)
class Requantizer:
    """`parameters` are those of rlx_requantize; tables have one number per channel."""

    parameters: dict[str, int]
    multipliers: tuple[int, ...]
    shifts: tuple[int, ...]
    lefts: tuple[int, ...]

    @property
    def digits(self) -> int:
        return self.parameters["DIGITS"]

    @property
    def interval(self) -> int:
        """Clocks from one sum to the next."""
        return 1 if self.parameters["PIPELINED"] else self.digits

    @property
    def shifts_differ(self) -> bool:
        return len(set(self.shifts)) > 1


def requantizer(
    multipliers: Multipliers,
    sums: Range,
    zero_point: int,
    clamp: Range,
    out_bits: int,
    *,
    digits: int = CONSTANT_DIGITS,
    pipelined: bool = True,
    dsp: bool = False,
    sum_bits: int | None = None,
    doubled: int = 0,
) -> Requantizer:
    """Parameters for sums in a range, which stand for themselves times 2^doubled."""
    m0 = [int(m) for m in multipliers.m0]
    zeros = min(((m & -m).bit_length() - 1 for m in m0 if m), default=0)
    dropped = min(zeros + doubled, multipliers.fraction_bits - 1)
    fraction = multipliers.fraction_bits - dropped
    factors = tuple(m << doubled >> dropped for m in m0)
    # At least as many bits as the fraction, so that the rounded product lies inside.
    width = max(fraction, *(f.bit_length() for f in factors))
    digits = min(digits, width)
    digit_bits = -(-width // digits)
    rights = [max(int(s), 0) for s in multipliers.shift]
    lefts = tuple(max(-int(s), 0) for s in multipliers.shift)
    sum_bits = sum_bits or sums.bits
    shifted = any(lefts)
    grown = max(signed_bits(sums.low << left, sums.high << left) for left in lefts)
    grown_bits = min(max(grown, 2), _I32_BITS) if shifted else sum_bits
    smallest, largest = min(rights), max(rights)
    grown_product = grown_bits + max(digit_bits * digits - fraction, 0)
    rounded_bits = grown_product + 1
    wide = max(rounded_bits + 1, largest + 2, signed_bits(clamp.low, clamp.high) + 1, signed_bits(zero_point, 0) + 2)
    return Requantizer(
        {
            "SUM_BITS": sum_bits,
            "GROWN_BITS": grown_bits,
            "LEFT_SHIFTED": int(shifted),
            "LEFT_BITS": index_bits(max(lefts) + 1),
            "DIGIT_BITS": digit_bits,
            "DIGITS": digits,
            "DIGIT_COUNT_BITS": index_bits(digits),
            "PIPELINED": int(pipelined),
            "DSP": int(dsp),
            "FRACTION_BITS": fraction,
            "SHIFT_MIN": smallest,
            "SHIFT_BITS": index_bits(largest - smallest + 1),
            "WIDE_BITS": wide,
            "ZERO_POINT": zero_point,
            "LOW": clamp.low,
            "HIGH": clamp.high,
            "OUT_BITS": out_bits,
        },
        factors,
        tuple(r - smallest for r in rights),
        lefts,
    )
