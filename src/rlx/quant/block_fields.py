"""Fields of packed blocks: halves, nibbles, bits and bit pairs of `u8[blocks, bytes]`, read for all blocks at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


def f16(blocks: U8, at: int) -> F32:
    """The half at byte `at` of every block, as f32[blocks, 1]."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def nibbles(codes: U8) -> U8:
    """Low nibbles of the last axis, then its high nibbles: u8[..., m] -> u8[..., 2m]."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def bits(words: U8) -> U8:
    """The bits of every byte, least significant first: u8[blocks, m] -> u8[blocks, 8m]."""
    return np.unpackbits(words, axis=-1, bitorder="little")


def bit_rows(words: U8) -> U8:
    """Bit r of byte c at [r, c]: u8[blocks, m] -> u8[blocks, 8, m]."""
    return bits(words).reshape(len(words), -1, 8).swapaxes(1, 2)


def bit_pairs(codes: U8) -> U8:
    """The four bit pairs of every byte, lowest first, on a new axis before the last: u8[..., m] -> u8[..., 4, m]."""
    shifts: U8 = np.array([[0], [2], [4], [6]], dtype=np.uint8)
    return (codes[..., None, :] >> shifts) & np.uint8(3)
