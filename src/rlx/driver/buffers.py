"""Values in memory: a `Buffer` with a type and a device, a `BufferHandle` that only describes one, and a `DeviceArena`,
one piece of memory in which a plan has given every value its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import BackendError, BindingError, DTypeError, ShapeError
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.lir import LirBufferPlan
from rlx.ir.shape import Shape
from rlx.runtime.device import Device, is_available

Array = np.ndarray[Any, np.dtype[Any]]


class Buffer:
    """The bytes of one value, its type, and the device whose memory they are in.

    >>> b = Buffer.zeros(Shape((2, 3), "f32"))
    >>> b.as_f32_mut()[0] = 7
    >>> b.num_elements, b.byte_size, b.as_f32().tolist()[:2], b.device.value
    (6, 24, [7.0, 0.0], 'cpu')
    """

    def __init__(self, data: bytearray, shape: Shape, device: Device) -> None:
        self._data, self.shape, self.device = data, shape, device

    @classmethod
    def new_host(cls, data: bytes | bytearray | memoryview | Array, shape: Shape | str) -> Buffer:
        """A copy of these bytes, in host memory."""
        declared = Shape.of(shape)
        raw = bytearray(np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else data)
        wanted = _size(declared)
        if isinstance(data, np.ndarray) and DType.of(data.dtype) is not declared.dtype:
            raise DTypeError(f"Buffer: the type is {declared}, got an array of {DType.of(data.dtype)}")
        if len(raw) != wanted:
            raise ShapeError(f"Buffer: {declared} has {wanted} bytes, got {len(raw)}")
        return cls(raw, declared, Device.Cpu)

    @classmethod
    def zeros(cls, shape: Shape | str) -> Buffer:
        """Zeros, in host memory."""
        declared = Shape.of(shape)
        return cls(bytearray(_size(declared)), declared, Device.Cpu)

    @property
    def dtype(self) -> DType:
        return self.shape.dtype

    @property
    def num_elements(self) -> int:
        return _count(self.shape)

    @property
    def byte_size(self) -> int:
        return len(self._data)

    def host_bytes(self) -> memoryview:
        """The bytes, which can be read only; an error where they are not in host memory."""
        self._require_host()
        return memoryview(self._data).toreadonly()

    def as_f32(self) -> Array:
        """The values of an f32 buffer, flat and read only."""
        values = self.as_f32_mut()
        values.flags.writeable = False
        return values

    def as_f32_mut(self) -> Array:
        """The values of an f32 buffer, flat; what is written there is in the buffer."""
        self._require_host()
        if self.dtype is not DType.F32:
            raise DTypeError(f"Buffer: {self.shape} is not f32; read its host_bytes")
        return np.frombuffer(self._data, np.float32)

    def to_device(self, device: str | Device) -> Buffer:
        """A copy in the memory of a device."""
        goal = Device.parse(device)
        if not is_available(goal):
            raise BackendError(f"Buffer: device {goal.value!r} is not available here")
        return Buffer(bytearray(self._data), self.shape, goal)

    def to_host(self) -> Buffer:
        """A copy in host memory."""
        return Buffer(bytearray(self._data), self.shape, Device.Cpu)

    def _require_host(self) -> None:
        if self.device not in (Device.Cpu, Device.Reference):
            raise BackendError(f"Buffer: its bytes are in the memory of {self.device.value}; call to_host() first")

    def __repr__(self) -> str:
        return f"Buffer({self.shape}, {self.device.value})"


class BufferHandle:
    """A state that outlives runs, described: its name, dims and dtype."""

    def __init__(self, name: str, dims: Sequence[int], dtype: DTypeLike = DType.F32) -> None:
        self.name, self.shape = name, Shape(dims, dtype)
        _count(self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape.static_dims

    @property
    def dtype(self) -> DType:
        return self.shape.dtype

    @property
    def num_elements(self) -> int:
        return _count(self.shape)

    @property
    def byte_size(self) -> int:
        return _size(self.shape)

    def __repr__(self) -> str:
        return f"BufferHandle({self.name!r}, {self.shape})"


class DeviceArena:
    """Memory for all values of a program: `places` says for each id where it is, as (offset, bytes)."""

    def __init__(self, size_bytes: int, places: Mapping[int, tuple[int, int]]) -> None:
        for key, (offset, length) in places.items():
            if offset < 0 or length < 0 or offset + length > size_bytes:
                raise BindingError(
                    f"DeviceArena: value {key} is at {offset}..{offset + length}, outside of {size_bytes} bytes"
                )
        self._memory = np.zeros(size_bytes, np.uint8)
        self._places = dict(places)

    @classmethod
    def of_plan(cls, plan: LirBufferPlan) -> DeviceArena:
        """The arena of a memory plan with fixed sizes."""
        places = {}
        for node, slot in plan.assignments.items():
            if not isinstance(slot.offset, int) or not isinstance(slot.size, int):
                raise ShapeError(f"DeviceArena: the plan has symbolic sizes ({slot.size}); bind them first")
            places[int(node)] = (slot.offset, slot.size)
        if not isinstance(plan.arena_size, int):
            raise ShapeError(f"DeviceArena: the plan has symbolic sizes ({plan.arena_size}); bind them first")
        return cls(plan.arena_size, places)

    @property
    def size_bytes(self) -> int:
        return len(self._memory)

    def has_buffer(self, id: int) -> bool:
        return int(id) in self._places

    def byte_offset(self, id: int) -> int:
        """Where a value begins."""
        return self._place(id)[0]

    def write_input_f32(self, id: int, values: Any) -> None:
        """Store f32 values, as many as there is room for."""
        array = np.asarray(values)
        if array.dtype != np.float32:
            raise DTypeError(f"DeviceArena: value {id} takes f32, got {array.dtype}")
        goal = self._f32(id)
        if array.size != goal.size:
            raise ShapeError(f"DeviceArena: value {id} has room for {goal.size} numbers, got {array.size}")
        goal[:] = array.reshape(-1)

    def read_output_f32(self, id: int) -> Array:
        """A copy of the f32 values that are stored there."""
        return self._f32(id).copy()

    def _f32(self, id: int) -> Array:
        offset, length = self._place(id)
        if length % 4:
            raise DTypeError(f"DeviceArena: value {id} has {length} bytes, which are no f32 numbers")
        return self._memory[offset : offset + length].view(np.float32)

    def _place(self, id: int) -> tuple[int, int]:
        if not self.has_buffer(id):
            raise BindingError(f"DeviceArena: there is no value {id}")
        return self._places[int(id)]


def _count(shape: Shape) -> int:
    return int(np.prod(shape.static_dims, dtype=np.int64))


def _size(shape: Shape) -> int:
    size = shape.size_bytes()
    if not isinstance(size, int):
        raise ShapeError(f"a buffer needs fixed sizes, got {shape}")
    return size
