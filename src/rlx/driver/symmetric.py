"""Symmetric memory: every rank has a heap of the same layout, and reads and writes those of the others.

transports = LocalTransport.fan_out(4, heap_bytes=1 << 20)      # one for each of four threads
place = transports[0].heap.alloc(1024)                          # the same place on every rank
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, NewType, Protocol

import numpy as np

from rlx.errors import RlxError

Array = np.ndarray[Any, np.dtype[Any]]

Rank = NewType("Rank", int)


class CollectiveError(RlxError):
    """An exchange between ranks that cannot be made."""


class OutOfBounds(CollectiveError):
    """Bytes outside of the heap."""


class LengthMismatch(CollectiveError):
    """Data that does not have the length of its place."""


class UnknownRank(CollectiveError):
    """A rank that is not there."""


class TransportError(CollectiveError):
    """The exchange itself failed: another rank has not come to a barrier, or has given up."""


class SymmetricBuffer(NamedTuple):
    """A place in the heap of a rank: `len` bytes from `offset` on."""

    rank: Rank
    offset: int
    len: int

    def on(self, rank: int) -> SymmetricBuffer:
        """The same place on another rank."""
        return self._replace(rank=Rank(rank))


class SymmetricHeap:
    """The memory of all ranks. What is allocated has the same place on each."""

    ALIGNMENT = 64

    def __init__(self, num_ranks: int, size_bytes: int) -> None:
        if num_ranks < 1 or size_bytes < 0:
            raise CollectiveError(
                f"SymmetricHeap: needs at least one rank and a size, got {num_ranks} and {size_bytes}"
            )
        self.num_ranks, self.size_bytes = num_ranks, size_bytes
        self._memory = np.zeros((num_ranks, size_bytes), np.uint8)
        self._used = 0
        self._lock = threading.Lock()

    def alloc(self, len: int, rank: int = 0) -> SymmetricBuffer:
        """Room for `len` bytes on every rank."""
        with self._lock:
            end = self._used + len
            if len < 0 or end > self.size_bytes:
                raise OutOfBounds(f"SymmetricHeap: {len} bytes are wanted, {self.size_bytes - self._used} are left")
            place = SymmetricBuffer(Rank(rank), self._used, len)
            self._used = -(-end // self.ALIGNMENT) * self.ALIGNMENT
        return place

    def bytes(self, place: SymmetricBuffer) -> Array:
        """The bytes of a place, to be read and written."""
        if not 0 <= place.rank < self.num_ranks:
            raise UnknownRank(f"there are the ranks 0..{self.num_ranks - 1}, got {place.rank}")
        if place.offset < 0 or place.len < 0 or place.offset + place.len > self.size_bytes:
            raise OutOfBounds(
                f"the heap has {self.size_bytes} bytes, {place.offset}..{place.offset + place.len} are outside"
            )
        found: Array = self._memory[place.rank, place.offset : place.offset + place.len]
        return found


class SymmetricTransport(Protocol):
    """How one rank reaches the others."""

    def num_ranks(self) -> int: ...

    def this_rank(self) -> Rank: ...

    def put(self, place: SymmetricBuffer, data: Array) -> None:
        """Store bytes at a place of any rank."""

    def get(self, place: SymmetricBuffer) -> Array:
        """A copy of the bytes at a place of any rank."""

    def barrier(self) -> None:
        """Until all ranks are here; what they have put before can be read after it."""


class LocalTransport:
    """Ranks that are threads of one process: one heap, one barrier."""

    def __init__(self, heap: SymmetricHeap, rank: int, barrier: threading.Barrier) -> None:
        self.heap, self._rank, self._barrier = heap, Rank(rank), barrier

    @staticmethod
    def fan_out(num_ranks: int, heap_bytes: int = 1 << 20, timeout: float | None = 60.0) -> list[LocalTransport]:
        """One transport for each rank. A rank that waits longer than `timeout` seconds for the others gives up."""
        heap, barrier = SymmetricHeap(num_ranks, heap_bytes), threading.Barrier(num_ranks, timeout=timeout)
        return [LocalTransport(heap, rank, barrier) for rank in range(num_ranks)]

    def num_ranks(self) -> int:
        return self.heap.num_ranks

    def this_rank(self) -> Rank:
        return self._rank

    def put(self, place: SymmetricBuffer, data: Array) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        goal = self.heap.bytes(place)
        if len(raw) != len(goal):
            raise LengthMismatch(f"put: the place has {len(goal)} bytes, got {len(raw)}")
        goal[:] = raw

    def get(self, place: SymmetricBuffer) -> Array:
        return self.heap.bytes(place).copy()

    def barrier(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise TransportError(f"rank {self._rank}: another rank has not come to the barrier") from None

    def abort(self) -> None:
        """Let ranks that wait for this one know that it will not come."""
        self._barrier.abort()
