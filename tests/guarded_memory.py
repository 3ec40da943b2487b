"""Memory that tells when a program leaves it: arrays that end at a page nobody may touch, with redzones around them.

`on_guard_page(array)` is a copy of an operand that ends exactly at such a page; reading or writing one byte too far
ends the process. `guarded()` gives the CPU device all its memory so (results, copies, arenas), filled with a byte of
choice, and aligned as it wants it: the up to 63 bytes to the page are a redzone, which `broken_redzones` looks at.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os

import numpy as np

from rlx.backends import memory
from rlx.backends.cpu import runner
from rlx.backends.program import arena

PAGE = mmap.PAGESIZE
REDZONE = 0xC7
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _Block:
    """Pages with a forbidden one before and behind; `room` is what lies between."""

    def __init__(self, size: int) -> None:
        pages = -(-max(size, 1) // PAGE)
        try:
            self.map = mmap.mmap(-1, (pages + 2) * PAGE)
        except OSError as error:
            raise MemoryError(str(error)) from None
        whole = np.frombuffer(self.map, np.uint8)
        for at in (0, (pages + 1) * PAGE):
            if _mprotect(whole.ctypes.data + at, PAGE, mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0):
                # A process has so many maps and no more: a loop without an end takes them all.
                raise MemoryError(f"mprotect: {os.strerror(ctypes.get_errno())}")
        self.room = whole[PAGE:-PAGE]


def on_guard_page(array: np.ndarray) -> np.ndarray:
    """A copy that ends where its last page does."""
    room = _Block(array.nbytes).room
    copy = room[room.size - array.nbytes :].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Guarded:
    """Blocks handed out, and the byte that new ones are filled with."""

    def __init__(self, filling: int) -> None:
        self.filling = filling
        self.blocks: list[tuple[np.ndarray, int, int]] = []

    def empty(self, dims: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
        size = math.prod(dims) * dtype.itemsize
        room = _Block(size).room
        start = (room.size - size) // memory.ALIGNMENT * memory.ALIGNMENT
        room[:start] = room[start + size :] = REDZONE
        room[start : start + size] = self.filling
        self.blocks.append((room, start, start + size))
        array = np.ndarray(dims, dtype, room, start)
        return array, array.ctypes.data

    def broken_redzones(self) -> int:
        return sum(bool((room[:a] != REDZONE).any() or (room[b:] != REDZONE).any()) for room, a, b in self.blocks)


@contextlib.contextmanager
def guarded(filling: int):
    """Inside, the CPU device has all memory of runs from a `Guarded`, and no arena is used twice."""
    given = Guarded(filling)
    places = [(m, "aligned_empty", given.empty) for m in (memory, runner, arena)]
    places.append((memory, "SMALL_RESULT", -1))
    places.append((arena.Arenas, "give", lambda self, used: None))
    before = [getattr(where, name) for where, name, _ in places]
    try:
        for where, name, value in places:
            setattr(where, name, value)
        yield given
    finally:
        for (where, name, _), value in zip(places, before):
            setattr(where, name, value)
