"""Buffers of a GPU, numbered, so that a place in one is one number: an address, as on any other device.

    address = number of the buffer << 40 | offset in bytes

Programs compute with such addresses; `Place.of` takes them apart when a kernel is bound. Buffers come back to a pool
when nobody holds them. Work is queued in order, so memory may be handed out again at once.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import OutOfMemory

Array = np.ndarray[Any, np.dtype[Any]]

_SHIFT = 40
# The smallest buffer, and from where on sizes are not rounded to powers of two.
_SMALLEST, _LARGE = 256, 1 << 20
# Bytes that are kept for later.
KEPT_BYTES = 256 << 20


class Place(NamedTuple):
    """A buffer's number, and bytes from its start."""

    number: int
    offset: int

    @staticmethod
    def of(address: int) -> Place:
        return Place(address >> _SHIFT, address & ((1 << _SHIFT) - 1))


class DeviceBuffer:
    """Memory of a GPU that belongs to whoever holds this."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size

    @property
    def address(self) -> int:
        return self.number << _SHIFT


def rounded(size: int) -> int:
    """The size of the buffer that so many bytes get."""
    if size <= _LARGE:
        return max(_SMALLEST, 1 << (max(size, 1) - 1).bit_length())
    return -(-size // _LARGE) * _LARGE


class Pool:
    """Buffers of one device; used by one thread at a time, but given back by any. `create` makes one of so many bytes,
    and raises OutOfMemory where there is no room; `release` is told of one that nobody needs any longer."""

    def __init__(
        self,
        name: str,
        largest: int,
        create: Callable[[int, str], Any],
        release: Callable[[Any], None] | None = None,
    ) -> None:
        self._name, self._largest, self._make, self._release = name, largest, create, release
        self.handles: dict[int, Any] = {}
        self._free: dict[int, list[int]] = {}
        self._kept = 0
        self._next = 1
        # Appending is atomic: finalizers may run anywhere.
        self._returned: deque[tuple[int, int]] = deque()
        self.gone: list[int] = []  # numbers of buffers that no longer exist, for who remembers them

    def allocate(self, size: int, what: str) -> DeviceBuffer:
        """Memory for so many bytes. What is too large is refused before the GPU hears of it."""
        if size > self._largest:
            raise OutOfMemory(
                f"{self._name}: {what} has {size} bytes, and a buffer of this GPU has at most {self._largest}; "
                "use smaller inputs, or quantised weights"
            )
        self._collect()
        whole = min(rounded(size), self._largest // 4 * 4)
        free = self._free.get(whole)
        if free:
            number = free.pop()
            self._kept -= whole
        else:
            number = self._create(whole, what)
        buffer = DeviceBuffer(number, whole)
        weakref.finalize(buffer, self._returned.append, (number, whole))
        return buffer

    def _create(self, size: int, what: str) -> int:
        handle = self._make(size, what)
        number = self._next
        self._next += 1
        self.handles[number] = handle
        return number

    def _collect(self) -> None:
        """Take in what has been given back, and let go of what is too much."""
        while self._returned:
            number, size = self._returned.popleft()
            if self._kept + size > KEPT_BYTES:
                handle = self.handles.pop(number)
                if self._release is not None:
                    self._release(handle)
                self.gone.append(number)
            else:
                self._free.setdefault(size, []).append(number)
                self._kept += size
