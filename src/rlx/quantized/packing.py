"""Weights of 8, 4 and 2 bits as bytes: several codes per byte, the first in the lowest bits.

>>> pack([7, -7, 1, -1, 3], 4).hex(" ")
'97 f1 03'
>>> unpack(bytes.fromhex("97f103"), 5, 4).tolist()
[7, -7, 1, -1, 3]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import RlxError


class QuantizedError(RlxError):
    """An integer program that cannot be: the message names the layer and the number."""


Array = np.ndarray[Any, np.dtype[Any]]

# Bits -> the largest code that is used; the lowest one of two's complement is not, so that ranges are symmetric.
LARGEST_CODE = {8: 127, 4: 7, 2: 1}


def packed_size(count: int, bits: int) -> int:
    """How many bytes `count` codes take."""
    return -(-count * bits // 8)


def pack(codes: Any, bits: int) -> bytes:
    """Codes in row-major order as bytes; unused bits of the last byte are 0."""
    flat = np.asarray(codes).reshape(-1)
    largest = largest_code(bits)
    if flat.size and (flat.min() < -largest - 1 or flat.max() > largest):
        raise QuantizedError(
            f"pack: {bits}-bit codes lie in [{-largest - 1}, {largest}], got {flat.min()} to {flat.max()}"
        )
    lanes = 8 // bits
    padded = np.zeros(packed_size(flat.size, bits) * lanes, np.uint8)
    padded[: flat.size] = flat.astype(np.int8).view(np.uint8) & (2**bits - 1)
    shifted = padded.reshape(-1, lanes) << (bits * np.arange(lanes, dtype=np.uint8))
    return np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8).tobytes()


def unpack(data: bytes | memoryview, count: int, bits: int) -> Array:
    """`count` codes, i8."""
    largest = largest_code(bits)
    packed = np.frombuffer(data, np.uint8)
    if packed.size != packed_size(count, bits):
        raise QuantizedError(
            f"unpack: {count} codes of {bits} bits are {packed_size(count, bits)} bytes, got {packed.size}"
        )
    lanes = 8 // bits
    codes = (packed[:, None] >> (bits * np.arange(lanes, dtype=np.uint8))) & np.uint8(2**bits - 1)
    signed = codes.astype(np.int16)
    return np.where(signed > largest, signed - 2**bits, signed).astype(np.int8).reshape(-1)[:count]


def largest_code(bits: int) -> int:
    if bits not in LARGEST_CODE:
        raise QuantizedError(f"weights have 8, 4 or 2 bits, got {bits}")
    return LARGEST_CODE[bits]
