"""Arenas: the memory for values between kernels. Kept between runs, each used by one run at a time."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from rlx.backends.memory import Array, aligned_empty

_BYTE = np.dtype(np.uint8)


class Arena(NamedTuple):
    memory: Array
    address: int


class Arenas:
    """As many as runs were ever at work at once, each as large as the largest that it was needed for."""

    def __init__(self) -> None:
        # Appending to a deque and popping from it are atomic, and stay so in a child that was forked in between.
        self._free: deque[Arena] = deque()

    def take(self, size: int) -> Arena:
        try:
            arena = self._free.pop()
        except IndexError:
            return Arena(*aligned_empty((size,), _BYTE))
        return arena if arena.memory.nbytes >= size else Arena(*aligned_empty((size,), _BYTE))

    def give(self, arena: Arena) -> None:
        self._free.append(arena)
