"""Writing GGUF files.

    write_gguf("copy.gguf", file.metadata, file.tensors)                       # byte for byte what was read
    write_gguf("new.gguf", {"general.architecture": "llama"}, {"w": array})

Metadata values may be plain Python values, NumPy scalars and arrays (whose dtype is kept), or `TypedValue`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Literal, Protocol

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.gguf.cursor import ByteOrder
from rlx.formats.gguf.metadata import (
    MAX_DEPTH,
    NUMBERS,
    TYPES_OF_NUMBERS,
    GgufMetadata,
    MetadataValue,
    TypedValue,
    ValueType,
)
from rlx.formats.gguf.reader import DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, VERSIONS, GgufTensor, packed_bytes
from rlx.formats.gguf.tensor_types import TensorType, swap_words, type_of_dtype
from rlx.formats.mapped_file import U8, replace_file


class PackedTensor(Protocol):
    """What the writer needs of a tensor. `data` is called once, when its turn to be written has come."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> TensorType: ...
    def data(self) -> U8: ...


Tensors = Mapping[str, "npt.NDArray[np.generic] | PackedTensor"] | Iterable[PackedTensor]


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, MetadataValue | np.generic | TypedValue],
    tensors: Tensors,
    *,
    version: int = 3,
    byte_order: Literal["little", "big"] = "little",
) -> None:
    """Write a file that appears whole or not at all. `general.alignment` in the metadata sets the alignment."""
    if version not in VERSIONS:
        raise FormatError(f"write_gguf: versions are 1, 2 and 3, got {version}")
    values = metadata.typed() if isinstance(metadata, GgufMetadata) else metadata
    typed = {key: _typed(key, value) for key, value in values.items()}
    alignment = _alignment(typed)
    packed = _packed(tensors)
    order: ByteOrder = "<" if byte_order == "little" else ">"
    head = _Head(order, version)
    head.raw(MAGIC).u32(version).length(len(packed)).length(len(typed))
    for key, entry in typed.items():
        head.text(key).typed(key, entry)
    at = 0
    for tensor in packed:
        head.tensor(tensor, at)
        at += _aligned(packed_bytes(tensor.name, tensor.shape, tensor.type), alignment)
    with replace_file(Path(path)) as file:
        file.write(head.content)
        file.write(bytes(-len(head.content) % alignment if packed else 0))
        for tensor in packed:
            _write_tensor(file, tensor, order, alignment)


def _write_tensor(file: IO[bytes], tensor: PackedTensor, order: ByteOrder, alignment: int) -> None:
    data = tensor.data()
    wanted = packed_bytes(tensor.name, tensor.shape, tensor.type)
    if data.size != wanted:
        raise FormatError(f"write_gguf: tensor {tensor.name!r} must have {wanted} bytes, got {data.size}")
    file.write((data if order == "<" else swap_words(tensor.type, data)).data)
    file.write(bytes(-wanted % alignment))


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _alignment(typed: Mapping[str, TypedValue]) -> int:
    entry = typed.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    good = entry.type is ValueType.UINT32 and isinstance(value, int) and value >= 8 and not value & (value - 1)
    if not isinstance(value, int) or not good:
        raise FormatError(f"write_gguf: general.alignment must be a uint32 power of two from 8 on, got {value!r}")
    return value


def _packed(tensors: Tensors) -> list[PackedTensor]:
    """The tensors in order, each with a name of its own."""
    if not isinstance(tensors, Mapping):
        found = list(tensors)
        if len({tensor.name for tensor in found}) != len(found):
            raise FormatError("write_gguf: two tensors have the same name")
        return found
    return [_array_tensor(name, t) if isinstance(t, np.ndarray) else _named(name, t) for name, t in tensors.items()]


def _array_tensor(name: str, values: npt.NDArray[np.generic]) -> GgufTensor:
    kind = type_of_dtype(values.dtype)
    flat = np.ascontiguousarray(values).reshape(-1)
    return GgufTensor(name, values.shape, kind, flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8))


def _named(name: str, tensor: PackedTensor) -> PackedTensor:
    return tensor if tensor.name == name else GgufTensor(name, tensor.shape, tensor.type, tensor.data())


def _typed(key: str, value: MetadataValue | np.generic | TypedValue) -> TypedValue:
    """A value with the type it gets in the file: what a NumPy value has, else the narrowest usual one."""
    if isinstance(value, TypedValue):
        return value
    if isinstance(value, str):
        return TypedValue(ValueType.STRING, None, value)
    if isinstance(value, np.generic):
        return TypedValue(_number_type(key, value.dtype), None, value.item())
    if isinstance(value, bool):
        return TypedValue(ValueType.BOOL, None, value)
    if isinstance(value, int):
        return TypedValue(_integer_type(key, value, value), None, value)
    if isinstance(value, float):
        return TypedValue(ValueType.FLOAT32, None, value)
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise FormatError(
                f"write_gguf: metadata {key!r} must be a list or an array with one axis, got {value.ndim}"
            )
        return TypedValue(ValueType.ARRAY, _number_type(key, value.dtype), value)
    if isinstance(value, list):
        return _typed_list(key, value)
    raise FormatError(f"write_gguf: metadata {key!r} cannot be written: {type(value).__name__}")


def _typed_list(key: str, items: list[MetadataValue]) -> TypedValue:
    if not items:
        raise FormatError(f"write_gguf: metadata {key!r} is an empty list, whose type is unknown; give an empty array")
    if all(isinstance(item, str) for item in items):
        return TypedValue(ValueType.ARRAY, ValueType.STRING, items)
    if all(isinstance(item, bool) for item in items):
        return TypedValue(ValueType.ARRAY, ValueType.BOOL, np.array(items))
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        numbers = [int(item) for item in items]  # type: ignore[arg-type]
        kind = _integer_type(key, min(numbers), max(numbers), ValueType.INT32)
        return TypedValue(ValueType.ARRAY, kind, np.array(numbers, NUMBERS[kind]))
    if all(isinstance(item, int | float) and not isinstance(item, bool) for item in items):
        return TypedValue(ValueType.ARRAY, ValueType.FLOAT32, np.array(items, np.float32))
    if all(isinstance(item, list | np.ndarray) for item in items):
        return TypedValue(ValueType.ARRAY, ValueType.ARRAY, items)
    raise FormatError(f"write_gguf: metadata {key!r} mixes values of different kinds in one list")


def _integer_type(key: str, low: int, high: int, first: ValueType = ValueType.UINT32) -> ValueType:
    for kind in (first, ValueType.INT32, ValueType.INT64, ValueType.UINT64):
        bounds = np.iinfo(NUMBERS[kind])  # type: ignore[type-var]
        if bounds.min <= low and high <= bounds.max:
            return kind
    raise FormatError(f"write_gguf: metadata {key!r} needs more than 64 bits: {low} to {high}")


def _number_type(key: str, dtype: np.dtype[np.generic]) -> ValueType:
    kind = TYPES_OF_NUMBERS.get(dtype.newbyteorder("="))
    if kind is None:
        raise FormatError(f"write_gguf: metadata {key!r} has dtype {dtype}; GGUF metadata has no such type")
    return kind


class _Head:
    """The part of a file before the tensors' bytes, as it grows."""

    def __init__(self, order: ByteOrder, version: int) -> None:
        self.content = bytearray()
        self._order = order
        self._length = struct.Struct(f"{order}{'I' if version == 1 else 'Q'}")
        self._u32 = struct.Struct(f"{order}I")
        self._u64 = struct.Struct(f"{order}Q")

    def raw(self, data: bytes) -> _Head:
        self.content += data
        return self

    def u32(self, value: int) -> _Head:
        return self.raw(self._u32.pack(value))

    def length(self, value: int) -> _Head:
        try:
            return self.raw(self._length.pack(value))
        except struct.error:
            raise FormatError(f"write_gguf: {value} does not fit into a file of this version") from None

    def text(self, value: str) -> _Head:
        try:
            data = value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise FormatError(f"write_gguf: {value!r:.60} is not text that UTF-8 can hold: {error.reason}") from None
        return self.length(len(data)).raw(data)

    def typed(self, key: str, entry: TypedValue) -> _Head:
        self.u32(entry.type)
        return self._array(key, entry) if entry.items is not None else self._single(key, entry.type, entry.value)

    def _array(self, key: str, entry: TypedValue, depth: int = 1) -> _Head:
        values = entry.value
        if entry.items is None or not isinstance(values, list | np.ndarray) or depth > MAX_DEPTH:
            raise FormatError(f"write_gguf: metadata {key!r} must be a list, at most {MAX_DEPTH} deep")
        self.u32(entry.items).length(len(values))
        if entry.items in NUMBERS:
            dtype = NUMBERS[entry.items].newbyteorder(self._order)
            return self.raw(np.asarray(values).astype(dtype, copy=False).tobytes())
        for item in values:
            if entry.items is ValueType.ARRAY:
                self._array(key, _typed(key, item), depth + 1)
            else:
                self._single(key, entry.items, item)
        return self

    def _single(self, key: str, kind: ValueType, value: MetadataValue) -> _Head:
        if kind is ValueType.STRING and isinstance(value, str):
            return self.text(value)
        wanted = float | int if kind in (ValueType.FLOAT32, ValueType.FLOAT64) else int
        if kind not in NUMBERS or not isinstance(value, wanted):
            raise FormatError(f"write_gguf: metadata {key!r} is a {kind.name.lower()}, got {value!r:.60}")
        try:
            number = np.array(value, NUMBERS[kind])
        except OverflowError:
            raise FormatError(f"write_gguf: metadata {key!r}: {kind.name.lower()} cannot hold {value}") from None
        return self.raw(number.astype(number.dtype.newbyteorder(self._order)).tobytes())

    def tensor(self, tensor: PackedTensor, offset: int) -> _Head:
        if len(tensor.shape) > MAX_DIMS:
            raise FormatError(
                f"write_gguf: tensor {tensor.name!r} has {len(tensor.shape)} dims; GGUF allows {MAX_DIMS}"
            )
        self.text(tensor.name).u32(len(tensor.shape))
        for size in reversed(tensor.shape):
            self.length(size)
        return self.u32(tensor.type.code).raw(self._u64.pack(offset))
