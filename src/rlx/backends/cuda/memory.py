"""Memory of the GPU: allocations in the order of a stream, and copies from and to the host through pinned memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from ctypes import c_uint64, c_ulonglong, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.cuda.driver_types import (
    HOST_ALLOC_PORTABLE,
    MEM_ALLOCATION_PINNED,
    MEM_LOCATION_DEVICE,
    MemPoolProps,
    PoolAttribute,
)
from rlx.backends.cuda.errors import OUT_OF_MEMORY, SUCCESS
from rlx.backends.memory import address_of

if TYPE_CHECKING:
    from rlx.backends.cuda.device import Gpu
    from rlx.backends.cuda.streams import Stream

Array = np.ndarray[Any, np.dtype[Any]]

# The driver copies this much of pageable memory aside before the call returns: staging would copy it twice.
SMALL = 64 << 10
# Large enough for the full speed of the bus, small enough that two of them overlap soon.
STAGE_BYTES = 16 << 20


# Small memory that was freed in the order of the main stream is handed out again by ourselves: two calls of the driver
# less for each result of a small program. Bytes of the largest, and of all that are kept.
SMALL_BLOCK, KEPT_BYTES = 1 << 20, 64 << 20


class DeviceBuffer:
    """Memory of the GPU; freed in the order of its stream when nobody holds it any more. It may go to `kept`, for
    others of its size."""

    __slots__ = ("_driver", "_kept", "_stream", "address", "size")

    def __init__(self, stream: Stream, address: int, size: int, kept: _Kept | None = None) -> None:
        self._stream, self._driver, self._kept = stream, stream.gpu.driver, kept
        self.address, self.size = address, size

    def __del__(self) -> None:
        address = getattr(self, "address", 0)
        if address and self._driver.is_usable:
            if self._kept is not None and self._kept.take(address, self.size):
                return
            # Its code is not looked at: what failed before would be reported here a second time.
            self._driver.raw("cuMemFreeAsync")(address, self._stream.handle)


class _Kept:
    """Freed blocks by their size; lists of Python hand out one at a time without a lock."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[int]] = {}
        self._bytes = 0

    def take(self, address: int, size: int) -> bool:
        """Keep a block; False if there are too many."""
        if self._bytes + size > KEPT_BYTES:
            return False
        self._bytes += size
        self._blocks.setdefault(size, []).append(address)
        return True

    def give(self, size: int) -> int:
        """A block of that size; 0 if there is none."""
        try:
            address = self._blocks[size].pop()
        except (KeyError, IndexError):
            return 0
        self._bytes -= size
        return address

    def all(self) -> Iterator[int]:
        """All blocks, which are no longer kept."""
        for size in list(self._blocks):
            while address := self.give(size):
                yield address


class Pool:
    """A memory pool of our own, so that what other libraries do with the default one does not matter. It keeps what was
    freed, until it is trimmed."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._driver = gpu, gpu.driver
        self._kept = _Kept()
        props = MemPoolProps(allocation_type=MEM_ALLOCATION_PINNED)
        props.location.type, props.location.id = MEM_LOCATION_DEVICE, gpu.info.index
        self.handle = c_void_p()
        self._driver.cuMemPoolCreate(ctypes.byref(self.handle), ctypes.byref(props))
        threshold = c_uint64(2**64 - 1)
        self._driver.cuMemPoolSetAttribute(
            self.handle, int(PoolAttribute.RELEASE_THRESHOLD), ctypes.addressof(threshold)
        )

    def allocate(self, size: int, stream: Stream, what: str = "") -> DeviceBuffer:
        """Memory of at least one byte; where there is none, what lies idle is given back and it is tried again."""
        kept = None
        if size <= SMALL_BLOCK and stream is self._gpu.stream and not stream.is_capturing:
            kept = self._kept
            known = kept.give(size)
            if known:
                return DeviceBuffer(stream, known, size, kept)
        address = c_ulonglong()
        code = self._allocate(address, size, stream)
        if code == OUT_OF_MEMORY:
            stream.synchronize()
            self.trim()
            code = self._allocate(address, size, stream)
        if code != SUCCESS:
            free, total = self._gpu.free_memory()
            detail = f"{_mib(size)} wanted{f' for {what}' if what else ''}, {_mib(free)} of {_mib(total)} free"
            raise self._driver.error(code, "cuMemAllocFromPoolAsync", detail)
        return DeviceBuffer(stream, address.value, size, kept)

    def _allocate(self, address: c_ulonglong, size: int, stream: Stream) -> int:
        allocate = self._driver.raw("cuMemAllocFromPoolAsync")
        return int(allocate(ctypes.byref(address), max(size, 1), self.handle, stream.handle))

    def trim(self, keep: int = 0) -> None:
        """Give memory that nobody uses back to the system."""
        for address in self._kept.all():
            self._driver.raw("cuMemFreeAsync")(address, self._gpu.stream.handle)
        self._driver.cuMemPoolTrimTo(self.handle, keep)

    @property
    def used_bytes(self) -> int:
        return self._attribute(PoolAttribute.USED_MEM_CURRENT)

    @property
    def most_used_bytes(self) -> int:
        """What was used at most since the process began."""
        return self._attribute(PoolAttribute.USED_MEM_HIGH)

    def _attribute(self, which: PoolAttribute) -> int:
        value = c_uint64()
        self._driver.cuMemPoolGetAttribute(self.handle, int(which), ctypes.addressof(value))
        return value.value


class _Stage:
    """A piece of pinned host memory, and when the last copy out of it or into it is done."""

    def __init__(self, gpu: Gpu) -> None:
        from rlx.backends.cuda.streams import Event

        address = c_void_p()
        gpu.driver.cuMemHostAlloc(ctypes.byref(address), STAGE_BYTES, HOST_ALLOC_PORTABLE)
        self.address = address.value or 0
        self.event = Event(gpu)
        self.is_busy = False

    def wait(self) -> None:
        if self.is_busy:
            self.event.synchronize()
            self.is_busy = False


class Staging:
    """Copies between arrays of the host and the GPU at the speed of the bus: two pieces of pinned memory take turns,
    so that the host fills one while the GPU reads the other."""

    def __init__(self, gpu: Gpu) -> None:
        self._driver = gpu.driver
        self._stages = [_Stage(gpu), _Stage(gpu)]
        self._lock = threading.Lock()

    def upload(self, array: Array, to: int, stream: Stream) -> None:
        """Copy a contiguous array to an address of the GPU; the array may be changed as soon as this returns."""
        source, size = address_of(array), array.nbytes
        if size <= SMALL:
            if size:
                self._driver.cuMemcpyHtoDAsync_v2(to, source, size, stream.handle)
            return
        with self._lock:
            for number, start in enumerate(range(0, size, STAGE_BYTES)):
                stage, count = self._stages[number % 2], min(STAGE_BYTES, size - start)
                stage.wait()
                ctypes.memmove(stage.address, source + start, count)
                self._driver.cuMemcpyHtoDAsync_v2(to + start, stage.address, count, stream.handle)
                self._mark(stage, stream)

    def download(self, source: int, array: Array, stream: Stream) -> None:
        """Fill a contiguous array from an address of the GPU; it is filled when this returns."""
        to, size = address_of(array), array.nbytes
        if size <= SMALL:
            if size:
                self._driver.cuMemcpyDtoHAsync_v2(to, source, size, stream.handle)
                stream.synchronize()
            return
        with self._lock:
            waiting: list[tuple[_Stage, int, int]] = []
            for number, start in enumerate(range(0, size, STAGE_BYTES)):
                stage, count = self._stages[number % 2], min(STAGE_BYTES, size - start)
                stage.wait()
                self._driver.cuMemcpyDtoHAsync_v2(stage.address, source + start, count, stream.handle)
                self._mark(stage, stream)
                waiting.append((stage, start, count))
                if len(waiting) == 2:
                    self._take(*waiting.pop(0), to)
            for stage, start, count in waiting:
                self._take(stage, start, count, to)

    def _mark(self, stage: _Stage, stream: Stream) -> None:
        stream.record(stage.event)
        stage.is_busy = True

    def _take(self, stage: _Stage, start: int, count: int, to: int) -> None:
        stage.wait()
        ctypes.memmove(to + start, stage.address, count)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
