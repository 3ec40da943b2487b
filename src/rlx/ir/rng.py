"""Philox4x32-10, a counter-based generator: block number and key in, four 32-bit words out, no hidden state.

`philox4x32` is the stateless vector form that random ops evaluate with. `Philox4x32` is a stream on top of it:
the key is the seed and the counter runs from 0.

    >>> [f"{w:08x}" for w in Philox4x32(42).next_block()]
    ['9ceaf053', '77f5493b', '12bf50ad', '5742b3d7']
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
Words = tuple[U32, U32, U32, U32]

_ROUNDS = 10
_MULTIPLIER_0 = 0xD2511F53
# The seed documents' implementation has this multiplier instead; `compat` reproduces its streams.
_COMPAT_MULTIPLIER_0 = 0xD2561A75
_MULTIPLIER_1 = 0xCD9E8D57
_KEY_STEP_0 = 0x9E3779B9
_KEY_STEP_1 = 0xBB67AE85
_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)

_SMALLEST_F32 = np.float32(1.1754944e-38)


def philox4x32(
    counter: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    key: tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    compat: bool = False,
) -> Words:
    """Four u32 arrays for each 128-bit counter and 64-bit key (least significant word first); operands broadcast.

    One round maps `(c0, c1, c2, c3)` to `(hi(p1) ^ c1 ^ k0, lo(p1), hi(p0) ^ c3 ^ k1, lo(p0))` with `p0 = c0·M0` and
    `p1 = c2·M1`, then steps the key; there are ten.
    """
    # 32-bit words in 64-bit lanes: every product and sum fits, so nothing ever wraps.
    c0, c1, c2, c3, k0, k1 = (np.asarray(w, dtype=np.uint64) for w in (*counter, *key))
    m0 = np.uint64(_COMPAT_MULTIPLIER_0 if compat else _MULTIPLIER_0)
    m1 = np.uint64(_MULTIPLIER_1)
    for _ in range(_ROUNDS):
        p0, p1 = c0 * m0, c2 * m1
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _MASK, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + np.uint64(_KEY_STEP_0)) & _MASK, (k1 + np.uint64(_KEY_STEP_1)) & _MASK
    w0, w1, w2, w3 = (np.asarray(c, dtype=np.uint32) for c in (c0, c1, c2, c3))
    return w0, w1, w2, w3


def bits_to_uniform(bits: npt.ArrayLike) -> F32:
    """f32 in [0, 1) from the top 24 bits of each word: every value is a multiple of 2^-24.

    >>> bits_to_uniform(np.array([0, 0x80000000], np.uint32)).tolist()
    [0.0, 0.5]
    """
    return np.asarray((np.asarray(bits, dtype=np.uint32) >> np.uint32(8)) * np.float32(2**-24), dtype=np.float32)


def box_muller(u1: npt.ArrayLike, u2: npt.ArrayLike) -> F32:
    """Standard normal values sqrt(-2 ln u1)·cos(2π u2), computed in f64 and rounded once; u1 = 0 counts as tiny."""
    radius = np.sqrt(-2 * np.log(np.maximum(np.asarray(u1, dtype=np.float32), _SMALLEST_F32).astype(np.float64)))
    return np.asarray(radius * np.cos(2 * np.pi * np.asarray(u2, dtype=np.float64)), dtype=np.float32)


class Philox4x32:
    """A stream of words. Equal seeds give equal streams, on every machine; one stream belongs to one thread.

    `compat=True` reproduces the streams of the seed documents' implementation, which are not standard Philox.
    """

    def __init__(self, seed: int, compat: bool = False) -> None:
        if not 0 <= seed < 2**64:
            raise OpError(f"Philox4x32: the seed must be in [0, 2^64), got {seed}")
        self.key = (seed & 0xFFFFFFFF, seed >> 32)
        self.compat = compat
        # Index of the next word of the stream; word i is word i % 4 of block i // 4.
        self.position = 0

    def next_words(self, count: int) -> U32:
        """The next `count` words, as one array."""
        first, start = divmod(self.position, 4)
        # Only the low half of the counter is used: 2^64 blocks outlast any program.
        block = np.arange(first, first + -(-(start + count) // 4), dtype=np.uint64)
        words = philox4x32((block & _MASK, block >> _SHIFT, 0, 0), self.key, compat=self.compat)
        self.position += count
        return np.stack(words, axis=-1).reshape(-1)[start : start + count]

    def next_block(self) -> list[int]:
        """The four words of the next whole block; words left over of the current one are skipped."""
        self.position += -self.position % 4
        return [int(word) for word in self.next_words(4)]

    def next_u32(self) -> int:
        return int(self.next_words(1)[0])

    def next_f32(self) -> float:
        """Uniform in [0, 1); takes one word."""
        return float(bits_to_uniform(self.next_words(1))[0])

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """low + u·(high - low); takes one word."""
        return float(self.fill_uniform(np.empty(1, np.float32), low, high)[0])

    def normal(self) -> float:
        """A standard normal value; takes two words."""
        return float(self.fill_normal(np.empty(1, np.float32))[0])

    def fill_uniform(self, out: F32, low: float = 0.0, high: float = 1.0) -> F32:
        """Fills `out` with successive `uniform` values and returns it."""
        u = bits_to_uniform(self.next_words(out.size))
        out[...] = (np.float32(low) + u * np.float32(high - low)).reshape(out.shape)
        return out

    def fill_normal(self, out: F32, mean: float = 0.0, std: float = 1.0) -> F32:
        """Fills `out` with successive `normal` values, scaled and shifted, and returns it."""
        u = bits_to_uniform(self.next_words(2 * out.size))
        out[...] = (np.float32(mean) + np.float32(std) * box_muller(u[0::2], u[1::2])).reshape(out.shape)
        return out
