"""Copies that overlap with work: a protocol, its immediate form, and the two buffers such code switches between."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from rlx.errors import OpError

_T = TypeVar("_T")
HostBuffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]


class BarrierToken(NamedTuple):
    """Stands for a copy that was issued; give it to `wait`."""

    serial: int


class AsyncCopy(Protocol):
    """Starts copies and waits for them. Between the two calls, neither buffer may be touched."""

    def issue(self, src: HostBuffer, dst: HostBuffer, nbytes: int) -> BarrierToken:
        """Begin to copy the first `nbytes` bytes of `src` over those of `dst`."""

    def wait(self, token: BarrierToken) -> None:
        """Return when the copy that `token` stands for is done."""


class SyncCopy:
    """An AsyncCopy for devices without a copy engine: every copy is done when `issue` returns."""

    def __init__(self) -> None:
        self._issued = 0

    def issue(self, src: HostBuffer, dst: HostBuffer, nbytes: int) -> BarrierToken:
        source, target = _bytes_of(src), _bytes_of(dst)
        if target.readonly or not 0 <= nbytes <= min(len(source), len(target)):
            raise OpError(
                f"copy of {nbytes} bytes: needs a source of that size and a writable target, "
                f"got {len(source)} bytes into {len(target)}{' read-only' if target.readonly else ''} bytes"
            )
        target[:nbytes] = source[:nbytes]
        self._issued += 1
        return BarrierToken(self._issued)

    def wait(self, token: BarrierToken) -> None:
        if not 1 <= token.serial <= self._issued:
            raise OpError(f"wait: no copy with the token {token.serial} was issued here")


def _bytes_of(buffer: HostBuffer) -> memoryview:
    return memoryview(buffer.data if isinstance(buffer, np.ndarray) else buffer).cast("B")


class DoubleBuffer(Generic[_T]):
    """Two buffers in turn: one is worked on (`current`) while the other is filled (`next`).

    >>> b = DoubleBuffer("a", "b")
    >>> b.swap()
    >>> b.current, b.next, b.pair
    ('b', 'a', ('b', 'a'))
    """

    def __init__(self, a: _T, b: _T) -> None:
        self._pair = (a, b)

    @property
    def current(self) -> _T:
        return self._pair[0]

    @property
    def next(self) -> _T:
        return self._pair[1]

    @property
    def pair(self) -> tuple[_T, _T]:
        """(current, next)."""
        return self._pair

    def swap(self) -> None:
        self._pair = (self._pair[1], self._pair[0])
