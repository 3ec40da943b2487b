"""`DeviceArray`: a value in the memory of a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.backends.cuda.memory import Array, DeviceBuffer
from rlx.backends.cuda.streams import Stream


class DeviceArray:
    """Elements side by side in row-major order, `offset` bytes after the start of a buffer that it keeps alive."""

    __slots__ = ("buffer", "dtype", "offset", "shape", "stream")

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
        """How CuPy, torch and Numba read it without a copy."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": self.stream.handle.value or 1,
        }

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)}, cuda:{self.stream.gpu.info.index})"
