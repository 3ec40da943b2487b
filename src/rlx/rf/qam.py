"""Quadrature amplitude modulation of 4, 16, 64, 256, ... points on a square, with Gray codes on both axes.

The bits of a symbol, most significant first, are those of the real part, then those of the imaginary part. Points have
the mean power 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.numpy as rnp
from rlx import ops
from rlx.errors import DTypeError, OpError, ShapeError
from rlx.numpy.arguments import array_function, value
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.rf.demodulation import complex_samples, positive

__all__ = ["qam_bits", "qam_constellation", "qam_demodulate", "qam_modulate", "qam_soft_bits"]


def _side(order: int, function: str) -> int:
    """Points on one axis."""
    side = math.isqrt(order) if isinstance(order, int) and order > 0 else 0
    if side < 2 or side * side != order or side & (side - 1):
        raise OpError(f"{function}: order must be 4, 16, 64, 256 or a higher power of 4, got {order!r}")
    return side


def _levels(side: int) -> npt.NDArray[np.float64]:
    """The position of each code on one axis: codes of neighbours differ in one bit."""
    place = np.arange(side)
    positions = np.empty(side)
    # Code c stands where the Gray code of the position is c.
    positions[place ^ (place >> 1)] = 2 * place - (side - 1)
    return positions / math.sqrt(2 * (side * side - 1) / 3)


def qam_constellation(order: int) -> npt.NDArray[np.complex128]:
    """The point of each symbol 0 .. order - 1."""
    side = _side(order, "qam_constellation")
    levels = _levels(side)
    return (levels[:, None] + 1j * levels[None, :]).reshape(-1)


@array_function
def qam_modulate(symbols: Any, order: int) -> Any:
    """The points c64[..] of symbols, whole numbers from 0 to order - 1; others are clamped."""
    points = qam_constellation(order)
    symbols = value(symbols)
    if not dtype_of(symbols).is_int:
        raise DTypeError(f"qam_modulate: needs whole numbers, got {dtype_of(symbols)}")
    chosen = rnp.clip(symbols, 0, order - 1)
    parts = [ops.gather(part.astype(np.float32), chosen) for part in (points.real, points.imag)]
    return ops.complex_(*parts)


@array_function
def qam_demodulate(points: Any, order: int) -> Any:
    """The symbol i32[..] whose point is nearest to each value."""
    side = _side(order, "qam_demodulate")
    points = complex_samples(points)
    scale = math.sqrt(2 * (side * side - 1) / 3)
    codes = []
    for part in (rnp.real(points), rnp.imag(points)):
        place = rnp.clip(rnp.round((part * scale + (side - 1)) * 0.5), 0, side - 1).astype("int32")
        codes.append(rnp.bitwise_xor(place, rnp.right_shift(place, 1)))
    return codes[0] * side + codes[1]


@array_function
def qam_bits(symbols: Any, order: int) -> Any:
    """The bits i32[.., log2(order)] of symbols, most significant first."""
    _side(order, "qam_bits")
    symbols = value(symbols)
    if not dtype_of(symbols).is_int:
        raise DTypeError(f"qam_bits: needs whole numbers, got {dtype_of(symbols)}")
    shifts = np.arange(order.bit_length() - 2, -1, -1, dtype=np.int32)
    return rnp.bitwise_and(rnp.right_shift(symbols.astype("int32")[..., None], shifts), 1)


@array_function
def qam_soft_bits(points: Any, order: int, noise: float) -> Any:
    """log P(bit = 0) - log P(bit = 1) for each bit, [.., log2(order)], with complex noise of the variance `noise`.

    Nearer points weigh more; the sum over all points of each half is exact.
    """
    positive("qam_soft_bits", noise=noise)
    side = _side(order, "qam_soft_bits")
    points = complex_samples(points)
    if not dims_of(points):
        raise ShapeError("qam_soft_bits: needs points [.., n], got a scalar")
    levels = _levels(side)
    found = []
    for part in (rnp.real(points), rnp.imag(points)):
        away = part[..., None] - levels.astype(dtype_of(part).numpy)
        weight = -(away * away) * (1.0 / noise)
        for bit in range(side.bit_length() - 2, -1, -1):
            is_one = (np.arange(side) >> bit) & 1 == 1
            zero, one = (rnp.where(mask, weight, -np.inf) for mask in (~is_one, is_one))
            found.append(ops.logsumexp(zero, -1) - ops.logsumexp(one, -1))
    return rnp.stack(found, -1)
