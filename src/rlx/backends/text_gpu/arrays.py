"""`DeviceArray`: a value in the memory of a GPU."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.memory_space import DeviceValue, HostArray, MemorySpace
from rlx.backends.text_gpu.device import TextGpu
from rlx.backends.text_gpu.memory import DeviceBuffer


class DeviceArray(DeviceValue):
    """Elements side by side in row-major order at the start of a buffer that it keeps alive."""

    def __init__(self, gpu: TextGpu, buffer: DeviceBuffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.gpu, self.buffer, self.shape, self.dtype = gpu, buffer, shape, dtype

    @property
    def address(self) -> int:
        return self.buffer.address

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @staticmethod
    def empty(gpu: TextGpu, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> DeviceArray:
        return DeviceArray(gpu, gpu.allocate(math.prod(shape) * dtype.itemsize, what), shape, dtype)

    @staticmethod
    def of(gpu: TextGpu, array: HostArray, what: str) -> DeviceArray:
        """A copy of an array of the host."""
        made = DeviceArray.empty(gpu, array.shape, array.dtype, what)
        # The buffer is larger than the array: the word that it ends in is written whole.
        data = np.zeros(-(-made.nbytes // 4) * 4, np.uint8)
        data[: made.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        gpu.write(made.address, data)
        return made

    @property
    def space(self) -> GpuSpace:
        return GpuSpace.of(self.gpu)

    def wait(self) -> None:
        self.gpu.wait()

    def numpy(self) -> HostArray:
        return self.gpu.read(self.address, self.shape, self.dtype)

    def view(self) -> HostArray | None:
        found = self.gpu.view(self.address, (self.nbytes,), np.dtype(np.uint8)) if self.nbytes else self.numpy()
        return None if found is None else np.asarray(_Held(found, self.buffer)).view(self.dtype).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)}, {self.gpu.about})"


class _Held:
    """Bytes of a buffer for NumPy to look at, which keep the buffer from being handed out again."""

    def __init__(self, array: HostArray, buffer: DeviceBuffer) -> None:
        self._array, self._buffer = array, buffer
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, True)}


class GpuSpace(MemorySpace):
    """The memory of one GPU."""

    def __init__(self, gpu: TextGpu) -> None:
        self.gpu, self.device = gpu, gpu.name

    @staticmethod
    def of(gpu: TextGpu) -> GpuSpace:
        """The space of a GPU, the same for all its values."""
        return _space(gpu)

    def put(self, array: HostArray) -> DeviceArray:
        return DeviceArray.of(self.gpu, array, "an array")

    def copy(self, value: DeviceValue) -> DeviceArray:
        assert isinstance(value, DeviceArray)
        twin = DeviceArray.empty(self.gpu, value.shape, value.dtype, "a copy")
        with self.gpu.lock:
            # Whole words, of which the last may have bytes beyond the value: buffers are larger.
            self.gpu.commands.copy(value.address, twin.address, -(-value.nbytes // 4) * 4)
            self.gpu.commands.flush()
        return twin


@cache
def _space(gpu: TextGpu) -> GpuSpace:
    return GpuSpace(gpu)
