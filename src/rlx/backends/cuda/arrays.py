"""`DeviceArray`: a value in the memory of a GPU."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.memory import Array, DeviceBuffer
from rlx.backends.cuda.streams import Stream
from rlx.backends.memory_space import DeviceValue, HostArray, MemorySpace


class DeviceArray(DeviceValue):
    """Elements side by side in row-major order, `offset` bytes after the start of a buffer that it keeps alive."""

    def __init__(
        self, buffer: DeviceBuffer, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream, offset: int = 0
    ) -> None:
        self.buffer, self.shape, self.dtype, self.stream, self.offset = buffer, shape, dtype, stream, offset

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream, what: str = "") -> DeviceArray:
        size = math.prod(shape) * dtype.itemsize
        return DeviceArray(stream.gpu.pool.allocate(size, stream, what), shape, dtype, stream)

    @staticmethod
    def of(array: Array, stream: Stream, what: str = "") -> DeviceArray:
        """A copy of an array of the host."""
        given = np.ascontiguousarray(array).reshape(array.shape)
        copy = DeviceArray.empty(given.shape, given.dtype, stream, what)
        stream.gpu.staging.upload(given, copy.address, stream)
        return copy

    @property
    def space(self) -> CudaSpace:
        return _space(self.stream.gpu)

    def wait(self) -> None:
        self.stream.synchronize()

    def copy(self) -> DeviceArray:
        twin = DeviceArray.empty(self.shape, self.dtype, self.stream)
        if self.nbytes:
            self.stream.gpu.driver.cuMemcpyDtoDAsync_v2(twin.address, self.address, self.nbytes, self.stream.handle)
        return twin

    def numpy(self) -> Array:
        """A copy on the host; waits for what computes it."""
        array = np.empty(self.shape, self.dtype)
        self.stream.gpu.staging.download(self.address, array, self.stream)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How CuPy, torch and Numba read it without a copy; types that NumPy has no letter for go by DLPack."""
        if self.dtype.kind == "V":
            raise AttributeError(f"{self.dtype} has no __cuda_array_interface__; use dlpack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": self.stream.handle.value or 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.stream.gpu.driver.dlpack_kinds[0], self.stream.gpu.info.index

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A capsule for `from_dlpack` of another library, whose stream waits for what computes the array."""
        from rlx.backends.cuda.dlpack import to_capsule

        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"dlpack: an array on {self.space.device} is not given to device {tuple(dl_device)}")
        return to_capsule(self.copy() if copy else self, stream)

    def __repr__(self) -> str:
        return (
            f"DeviceArray({self.dtype}{list(self.shape)}, {self.stream.gpu.driver.device}:{self.stream.gpu.info.index})"
        )


class CudaSpace(MemorySpace):
    """The memory of one GPU, as its main stream sees it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        index = gpu.info.index
        self.device = f"{gpu.driver.device}:{index}" if index else gpu.driver.device

    @staticmethod
    def of(gpu: Gpu) -> CudaSpace:
        """The space of a GPU, the same for all its values."""
        return _space(gpu)

    def put(self, array: HostArray) -> DeviceArray:
        self.gpu.use()
        return DeviceArray.of(array, self.gpu.stream, "an array")

    def adopt(self, value: Any) -> DeviceArray | None:
        from rlx.backends.cuda.dlpack import from_array

        where = getattr(value, "__dlpack_device__", None)
        if where is None or where()[0] not in self.gpu.driver.dlpack_kinds or where()[1] != self.gpu.info.index:
            return None
        return from_array(value, self.gpu.stream)

    def copy(self, value: DeviceValue) -> DeviceArray:
        assert isinstance(value, DeviceArray)
        self.gpu.use()
        return value.copy()


@cache
def _space(gpu: Gpu) -> CudaSpace:
    return CudaSpace(gpu)
