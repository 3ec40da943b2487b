"""Timing: a monotonic clock reading, the time of one call, and a way to empty the caches in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

_T = TypeVar("_T")
_CACHE_LINE = 64


class Tick(NamedTuple):
    """A reading of the monotonic clock.

    >>> start = Tick.now()
    >>> start.elapsed_ns() >= 0
    True
    """

    ns: int

    @staticmethod
    def now() -> Tick:
        return Tick(time.perf_counter_ns())

    def elapsed_ns(self) -> int:
        """Nanoseconds since this reading; never negative."""
        return max(time.perf_counter_ns() - self.ns, 0)

    def elapsed_us(self) -> float:
        return self.elapsed_ns() / 1e3

    def elapsed_ms(self) -> float:
        return self.elapsed_ns() / 1e6


def time_ns(call: Callable[[], _T]) -> tuple[_T, int]:
    """The result of `call()` and the nanoseconds it took."""
    start = Tick.now()
    result = call()
    return result, start.elapsed_ns()


class CacheBuster:
    """Displaces what the caches hold, so that the next timed run starts cold."""

    def __init__(self, bytes: int = 32 << 20) -> None:
        self._data = np.zeros(max(bytes, _CACHE_LINE), np.uint8)

    def thrash(self) -> int:
        """Write to one byte of every cache line. The sum that comes back only makes sure that it happened."""
        lines = self._data[::_CACHE_LINE]
        lines += 1
        return int(lines.sum())
