"""What an ONNX file holds: graphs of nodes, tensors and typed values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import FormatError, UnsupportedOnnx
from rlx.formats.mapped_file import U8, file_bytes
from rlx.ir.dtype import DType

Array = np.ndarray[Any, np.dtype[Any]]
# The number of an element type in ONNX -> its DType; 8 is text, and the ones not listed have no such type here.
ELEMENT_TYPES: dict[int, DType] = {
    1: DType.F32,
    2: DType.U8,
    3: DType.I8,
    4: DType.U16,
    5: DType.I16,
    6: DType.I32,
    7: DType.I64,
    9: DType.BOOL,
    10: DType.F16,
    11: DType.F64,
    12: DType.U32,
    13: DType.U64,
    14: DType.C64,
    15: DType.C128,
    16: DType.BF16,
    17: DType.F8E4M3,
    19: DType.F8E5M2,
    21: DType.U4,
    22: DType.I4,
    23: DType.F4E2M1,
}
_OTHER_TYPES = {
    0: "no type",
    8: "text",
    18: "float8e4m3fnuz",
    20: "float8e5m2fnuz",
    24: "float8e8m0",
    25: "uint2",
    26: "int2",
}
TEXT = 8


def element_type(number: int, where: str) -> DType:
    """The DType of a number in the file."""
    found = ELEMENT_TYPES.get(number)
    if found is None:
        name = _OTHER_TYPES.get(number, f"the unknown type {number}")
        raise UnsupportedOnnx(f"{where} holds elements of {name}, which rlx does not have")
    return found


class ExternalData(NamedTuple):
    """Bytes of a tensor in a file beside the model's."""

    path: Path
    offset: int
    length: int | None


@dataclass
class OnnxTensor:
    """A tensor of the file; `array()` reads it."""

    name: str
    shape: tuple[int, ...]
    type: int
    where: str
    # One of these holds the elements: bytes as in memory, a list of numbers, texts, or another file.
    raw: U8 | None = None
    listed: Array | None = None
    texts: list[bytes] = field(default_factory=list)
    external: ExternalData | None = None

    @property
    def dtype(self) -> DType:
        return element_type(self.type, self.where)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements as the file has them."""
        if self.external is not None and self.external.length is not None:
            return self.external.length
        if self.raw is not None:
            return self.raw.size
        return self.size * 4 if self.type not in ELEMENT_TYPES else self.size * self.dtype.numpy.itemsize

    def array(self) -> Array:
        """The elements; a read-only view of the file where they lie in it as they are."""
        if self.type == TEXT:
            if len(self.texts) != self.size:
                raise FormatError(
                    f"{self.where} has {len(self.texts)} texts, its shape {list(self.shape)} another number"
                )
            return np.array([text.decode("utf-8", "replace") for text in self.texts], object).reshape(self.shape)
        dtype = self.dtype
        content = self._external_bytes() if self.external is not None else self.raw
        if content is not None:
            return self._of_bytes(dtype, content).reshape(self.shape)
        listed = np.zeros(0) if self.listed is None else self.listed
        return self._of_list(dtype, listed).reshape(self.shape)

    def _of_bytes(self, dtype: DType, content: U8) -> Array:
        if dtype in _FOUR_BITS:
            if content.size != (self.size + 1) // 2:
                raise self._wrong_size(content.size, (self.size + 1) // 2)
            return _unpacked(dtype, content, self.size)
        needed = self.size * dtype.numpy.itemsize
        if content.size != needed:
            raise self._wrong_size(content.size, needed)
        stored = dtype.numpy.newbyteorder("<") if dtype.numpy.kind in "iufc" else dtype.numpy
        if content.ctypes.data % max(1, dtype.numpy.itemsize if dtype.numpy.kind != "c" else 8):
            # Tensors lie anywhere in these files; a copy is aligned, and nobody can change it.
            return np.frombuffer(content.tobytes(), stored)
        return content.view(stored)

    def _of_list(self, dtype: DType, listed: Array) -> Array:
        """Elements from the lists of numbers, in which small types lie one to a number, as their bits."""
        if dtype in _FOUR_BITS:
            return self._of_bytes(dtype, listed.astype(np.uint8))
        count = self.size * (2 if dtype.is_complex else 1)
        if listed.size != count:
            raise self._wrong_size(listed.size, count, "numbers")
        if dtype.is_complex:
            return np.ascontiguousarray(listed).view(dtype.numpy)
        if dtype.is_float and dtype.size_bytes < 4:
            bits = np.uint16 if dtype.size_bytes == 2 else np.uint8
            return listed.astype(bits).view(dtype.numpy)
        return listed.astype(dtype.numpy)

    def _external_bytes(self) -> U8:
        assert self.external is not None
        path, offset, length = self.external
        if not path.is_file():
            raise FormatError(f"{self.where} lies in {path}, which is missing; it belongs beside the model's file")
        if not self.size:
            return np.zeros(0, np.uint8)
        content = file_bytes(path)
        end = content.size if length is None else offset + length
        if not 0 <= offset <= end <= content.size:
            raise FormatError(f"{self.where}: {path} has {content.size} bytes, and not those from {offset} to {end}")
        return content[offset:end]

    def _wrong_size(self, found: int, needed: int, of: str = "bytes") -> FormatError:
        return FormatError(f"{self.where} has {found} {of}; its type {self.dtype}{list(self.shape)} needs {needed}")


_FOUR_BITS = (DType.I4, DType.U4, DType.F4E2M1)


def _unpacked(dtype: DType, content: U8, count: int) -> Array:
    """Two elements in each byte, the first in the low bits."""
    import ml_dtypes

    codes = np.stack([content & 15, content >> 4], axis=-1).reshape(-1)[:count]
    if dtype is DType.F4E2M1:
        return codes.view(ml_dtypes.float4_e2m1fn)
    if dtype is DType.I4:
        codes = (codes ^ 8).astype(np.int8) - 8
    return codes.astype(dtype.numpy)


class OnnxValue(NamedTuple):
    """The name and type of an input or output; sizes are numbers, names, or None where the file does not say."""

    name: str
    type: int | None
    shape: tuple[int | str | None, ...] | None
    # "tensor", or what else it is: sequence, map, optional, sparse tensor.
    kind: str = "tensor"


Attribute = Any


@dataclass
class OnnxNode:
    """One operation: its inputs and outputs by name, "" for those that are left out."""

    op: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Attribute]
    # Attributes that take the value of an attribute of the function they stand in.
    references: dict[str, str] = field(default_factory=dict)
    # The version of its domain that it was written for; 0 is that of the file.
    opset: int = 0

    def __str__(self) -> str:
        full = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{full} {self.name!r}" if self.name else f"{full} (-> {', '.join(filter(None, self.outputs))})"


@dataclass
class OnnxGraph:
    name: str
    nodes: list[OnnxNode]
    constants: dict[str, OnnxTensor]
    inputs: list[OnnxValue]
    outputs: list[OnnxValue]


@dataclass
class OnnxFunction:
    """An op that the file defines by a graph of others."""

    name: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    defaults: dict[str, Attribute]
    nodes: list[OnnxNode]
    opsets: dict[str, int]


@dataclass
class OnnxFile:
    path: str
    graph: OnnxGraph
    # Domain -> version; "" is the domain of the standard's own ops.
    opsets: dict[str, int]
    functions: dict[tuple[str, str], OnnxFunction]
    producer: str
    metadata: dict[str, str]
