"""`Gpu`: one adapter of WebGPU at work: its limits, its memory, its queue, the pipelines that were made for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from typing import Any

import numpy as np

from rlx.backends.text_gpu.code import TextCode, TextLoader
from rlx.backends.text_gpu.device import TextGpu
from rlx.backends.text_gpu.memory import Array, DeviceBuffer, Place, Pool
from rlx.backends.wgpu.adapters import Adapter, choose
from rlx.backends.wgpu.code import loader
from rlx.backends.wgpu.features import adapter_features, has_exact_f16, paying_features, requested
from rlx.backends.wgpu.pipelines import Pipelines
from rlx.backends.wgpu.recorder import Recorder
from rlx.errors import BackendError, OutOfMemory
from rlx.kernels.machines import Machine, wgsl_with
from rlx.knobs import knobs

# Positions are counted in 32 bits.
MOST_BYTES = 2**31 - 256

_RAISED_LIMITS = ("max-storage-buffer-binding-size", "max-buffer-size", "max-storage-buffers-per-shader-stage")


class Gpu(TextGpu):
    """A device of WebGPU."""

    name = "wgpu"

    def __init__(self, adapter: Adapter) -> None:
        import wgpu

        super().__init__()
        self.adapter, self.about = adapter, str(adapter)
        self._offered = adapter_features(adapter.handle)
        limits = {name: adapter.handle.limits[name] for name in _RAISED_LIMITS}
        try:
            self.handle: Any = adapter.handle.request_device_sync(
                required_features=requested(self._offered), required_limits=limits
            )
        except (RuntimeError, wgpu.GPUError) as error:
            raise BackendError(f"wgpu: {adapter} gives no device: {error}") from None
        self.queue: Any = self.handle.queue
        # All but the last binding of a buffer end where the next may begin.
        self.binding_bytes: int = limits["max-storage-buffer-binding-size"] // 256 * 256
        self.most_bindings: int = limits["max-storage-buffers-per-shader-stage"]
        self.shared_bytes: int = self.handle.limits["max-compute-workgroup-storage-size"]
        largest = min(limits["max-buffer-size"], MOST_BYTES, self.binding_bytes * self.most_bindings)
        # llvmpipe leaves all loops after so many rounds of them together; 0: no limit.
        self.most_rounds = 65535 if adapter.name.startswith("llvmpipe") else 0
        self.pool = Pool(self.name, largest, self._create)
        self.pipelines = Pipelines(self.handle)
        self.commands = Recorder(self)
        self._mark: DeviceBuffer | None = None

    @cached_property
    def has_exact_f16(self) -> bool:
        return has_exact_f16(self)

    @property
    def machine(self) -> Machine:
        """What kernels are made for here and now, by the features that are used."""
        named = knobs.wgpu_features
        wanted = paying_features(self.adapter.kind) if named is None else named.split(",")
        chosen = [name for name in self._offered if name in wanted]
        return wgsl_with([name for name in chosen if name != "f16" or self.has_exact_f16])

    @property
    def loader(self) -> TextLoader:  # type: ignore[override]
        return loader(self.machine)

    def _create(self, size: int, what: str) -> Any:
        import wgpu

        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        try:
            return self.handle.create_buffer(size=size, usage=usage)
        except wgpu.GPUError as error:
            raise OutOfMemory(f"wgpu: there is no memory for {size} bytes of {what}: {error}") from None

    def load(self, codes: Iterable[TextCode]) -> None:
        """Pipelines are made when it is known which buffers a command binds."""

    def write(self, address: int, array: Array) -> None:
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
