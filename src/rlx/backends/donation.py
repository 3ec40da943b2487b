"""`Held`: inputs that a run overwrites, as an earlier run left them. What was found out about their memory then holds
still, so a run that gets them back need not look at each again: a decoder has a hundred caches, and microseconds."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_serials = itertools.count()


class HeldInput(NamedTuple):
    """An input by its number, where it lies and how large it is: contiguous, aligned and of the dtype that the program
    needs, without a byte in common with another one that is held."""

    number: int
    address: int
    shape: tuple[int, ...]


class Held:
    """All inputs that runs of one program overwrite. It is numbers only and keeps no memory alive: that is up to who
    knows that these very arrays come back. `serial` tells one from another."""

    __slots__ = ("_ends", "_starts", "inputs", "serial")

    def __init__(self, inputs: Sequence[HeldInput], sizes: Sequence[int]) -> None:
        """`sizes` are the bytes that each has."""
        self.inputs, self.serial = tuple(inputs), next(_serials)
        spans = sorted((i.address, i.address + size) for i, size in zip(inputs, sizes) if size)
        self._starts, self._ends = [start for start, _ in spans], [end for _, end in spans]

    def meets(self, start: int, size: int) -> bool:
        """Whether one of `size` bytes from an address on belongs to an array that is held."""
        after = bisect_right(self._starts, start)
        if after and start < self._ends[after - 1]:
            return size > 0
        return after < len(self._starts) and self._starts[after] < start + size
