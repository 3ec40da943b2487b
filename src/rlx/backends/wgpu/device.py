"""`Gpu`: one adapter at work: its limits, its memory, its queue, the pipelines that were made for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rlx.backends.wgpu.adapters import Adapter, choose
from rlx.backends.wgpu.memory import Array, DeviceBuffer, Place, Pool
from rlx.backends.wgpu.pipelines import Pipelines
from rlx.errors import BackendError
from rlx.locks import fork_safe_lock

# Positions are counted in 32 bits.
MOST_BYTES = 2**31 - 256

_RAISED_LIMITS = ("max-storage-buffer-binding-size", "max-buffer-size", "max-storage-buffers-per-shader-stage")


class Gpu:
    """A device of WebGPU. Runs of all threads follow each other under its `lock`."""

    def __init__(self, adapter: Adapter) -> None:
        import wgpu

        self.adapter = adapter
        limits = {name: adapter.handle.limits[name] for name in _RAISED_LIMITS}
        try:
            self.handle: Any = adapter.handle.request_device_sync(required_limits=limits)
        except (RuntimeError, wgpu.GPUError) as error:
            raise BackendError(f"wgpu: {adapter} gives no device: {error}") from None
        self.queue: Any = self.handle.queue
        # All but the last binding of a buffer end where the next may begin.
        self.binding_bytes: int = limits["max-storage-buffer-binding-size"] // 256 * 256
        self.most_bindings: int = limits["max-storage-buffers-per-shader-stage"]
        self.shared_bytes: int = self.handle.limits["max-compute-workgroup-storage-size"]
        largest = min(limits["max-buffer-size"], MOST_BYTES, self.binding_bytes * self.most_bindings)
        self.pool = Pool(self.handle, largest)
        self.pipelines = Pipelines(self.handle)
        self.lock = fork_safe_lock()
        self._mark: DeviceBuffer | None = None

    def allocate(self, size: int, what: str) -> DeviceBuffer:
        with self.lock:
            return self.pool.allocate(size, what)

    def write(self, address: int, array: Array) -> None:
        """Copy an array of the host; it may change as soon as this returns."""
        if not array.nbytes:
            return
        place = Place.of(address)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        odd, end = place.offset % 4, (place.offset + data.nbytes) % 4
        with self.lock:
            if odd or end:
                # Whole words only: what is around the array is read and written back.
                first, last = place.offset - odd, place.offset + data.nbytes + (-end) % 4
                around = self._read(place.number, first, last - first)
                around[odd : odd + data.nbytes] = data
                data, place = around, Place(place.number, first)
            self.queue.write_buffer(self.pool.handles[place.number], place.offset, data)

    def read(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy on the host, when all work before it is done."""
        size = dtype.itemsize
        for dim in dims:
            size *= dim
        if not size:
            return np.empty(dims, dtype)
        place = Place.of(address)
        odd = place.offset % 4
        with self.lock:
            data = self._read(place.number, place.offset - odd, -(-(odd + size) // 4) * 4)
        return data[odd : odd + size].copy().view(dtype).reshape(dims)

    def _read(self, number: int, offset: int, size: int) -> Array:
        found = self.queue.read_buffer(self.pool.handles[number], offset, size)
        return np.frombuffer(found, np.uint8).copy()

    def wait(self) -> None:
        """Return when all work is done. A read says so everywhere; wgpu 0.32 cannot wait for its queue itself."""
        with self.lock:
            if self._mark is None:
                self._mark = self.pool.allocate(4, "a mark")
            self._read(self._mark.number, 0, 4)


def open_gpu(index: int = 0, variant: str = "") -> Gpu:
    """The device of an adapter, the same for all that use it."""
    return _device(choose(index, variant))


@cache
def _device(adapter: Adapter) -> Gpu:
    return Gpu(adapter)
