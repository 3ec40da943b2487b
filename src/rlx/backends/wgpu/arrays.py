"""`DeviceArray`: a value in the memory of a GPU."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.memory_space import DeviceValue, HostArray, MemorySpace
from rlx.backends.wgpu.device import Gpu
from rlx.backends.wgpu.memory import DeviceBuffer


class DeviceArray(DeviceValue):
    """Elements side by side in row-major order at the start of a buffer that it keeps alive."""

    def __init__(self, gpu: Gpu, buffer: DeviceBuffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.gpu, self.buffer, self.shape, self.dtype = gpu, buffer, shape, dtype

    @property
    def address(self) -> int:
        return self.buffer.address

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @staticmethod
    def empty(gpu: Gpu, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> DeviceArray:
        return DeviceArray(gpu, gpu.allocate(math.prod(shape) * dtype.itemsize, what), shape, dtype)

    @staticmethod
    def of(gpu: Gpu, array: HostArray, what: str) -> DeviceArray:
        """A copy of an array of the host."""
        made = DeviceArray.empty(gpu, array.shape, array.dtype, what)
        # The buffer is larger than the array: the word that it ends in is written whole.
        data = np.zeros(-(-made.nbytes // 4) * 4, np.uint8)
        data[: made.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        gpu.write(made.address, data)
        return made

    @property
    def space(self) -> WgpuSpace:
        return WgpuSpace.of(self.gpu)

    def wait(self) -> None:
        self.gpu.wait()

    def numpy(self) -> HostArray:
        return self.gpu.read(self.address, self.shape, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)}, {self.gpu.adapter})"


class WgpuSpace(MemorySpace):
    """The memory of one GPU."""

    device = "wgpu"

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    @staticmethod
    def of(gpu: Gpu) -> WgpuSpace:
        """The space of a GPU, the same for all its values."""
        return _space(gpu)

    def put(self, array: HostArray) -> DeviceArray:
        return DeviceArray.of(self.gpu, array, "an array")

    def copy(self, value: DeviceValue) -> DeviceArray:
        assert isinstance(value, DeviceArray)
        twin = DeviceArray.empty(self.gpu, value.shape, value.dtype, "a copy")
        with self.gpu.lock:
            handles = self.gpu.pool.handles
            encoder = self.gpu.handle.create_command_encoder()
            source, to = handles[value.buffer.number], handles[twin.buffer.number]
            encoder.copy_buffer_to_buffer(source, 0, to, 0, min(source.size, to.size))
            self.gpu.queue.submit([encoder.finish()])
        return twin


@cache
def _space(gpu: Gpu) -> WgpuSpace:
    return WgpuSpace(gpu)
