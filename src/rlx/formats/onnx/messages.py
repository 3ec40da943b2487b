"""Protocol Buffers on the wire: a message is a list of fields, each a number, a kind and a value.

    varint      7 bits in each byte, the lowest first; the top bit says that another byte follows
    fixed       4 or 8 bytes, little endian
    bytes       a varint with the length, then the bytes: texts, messages inside of messages, packed lists of numbers

Every length is checked against the bytes that are there before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import U8

# Kinds of fields.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10
# Graphs lie in attributes of nodes of graphs; deeper than this no exporter goes.
DEEPEST = 64


class Message:
    """The bytes of one message, from `start` to `end` of `content`; `path` names the file in errors."""

    __slots__ = ("content", "depth", "end", "path", "start")

    def __init__(self, path: str, content: U8, start: int, end: int, depth: int = 0) -> None:
        self.path, self.content, self.start, self.end, self.depth = path, content, start, end, depth

    def fields(self) -> Iterator[Field]:
        """The fields, in the order of the file."""
        at = self.start
        while at < self.end:
            key, at = self._varint(at)
            number, kind = key >> 3, key & 7
            if number == 0:
                self.fail(at, "a field has the number 0")
            if kind == VARINT:
                value, at = self._varint(at)
                yield Field(self, number, kind, value, at, at)
            elif kind in (FIXED32, FIXED64):
                size = 4 if kind == FIXED32 else 8
                self._need(at, size)
                yield Field(self, number, kind, 0, at, at + size)
                at += size
            elif kind == BYTES:
                size, at = self._varint(at)
                self._need(at, size)
                yield Field(self, number, kind, 0, at, at + size)
                at += size
            else:
                self.fail(at, f"a field has the kind {kind}, which ONNX does not use")

    def fail(self, at: int, what: str) -> NoReturn:
        raise FormatError(f"{self.path}: byte {at}: {what}; this is no ONNX file, or it is damaged")

    def _need(self, at: int, size: int) -> None:
        if size > self.end - at:
            self.fail(at, f"a field says it has {size} bytes, but {self.end - at} are left")

    def _varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        content, end = self.content, min(self.end, at + _MOST_VARINT_BYTES)
        while at < end:
            byte = int(content[at])
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
            shift += 7
        self.fail(at, "a number does not end")

    def varints(self) -> npt.NDArray[np.int64]:
        """The message as nothing but varints, as signed numbers of 64 bits: a packed list."""
        part = self.content[self.start : self.end]
        if not part.size:
            return np.zeros(0, np.int64)
        is_last = part < 128
        if not is_last[-1]:
            self.fail(self.end, "a list of numbers does not end")
        ends = np.flatnonzero(is_last)
        starts = np.concatenate([[0], ends[:-1] + 1])
        place = np.arange(part.size) - np.repeat(starts, ends - starts + 1)
        if place.max() >= _MOST_VARINT_BYTES:
            self.fail(self.start, "a number of a list does not end")
        digits = (part & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
        return np.bitwise_or.reduceat(digits, starts).view(np.int64)


class Field:
    """One field of a message: its number, and what it holds."""

    __slots__ = ("_end", "_start", "_value", "kind", "message", "number")

    def __init__(self, message: Message, number: int, kind: int, value: int, start: int, end: int) -> None:
        self.message, self.number, self.kind = message, number, kind
        self._value, self._start, self._end = value, start, end

    @property
    def integer(self) -> int:
        """A varint as a signed number of 64 bits."""
        self._require(VARINT)
        value = self._value & (2**64 - 1)
        return value - 2**64 if value >= 2**63 else value

    @property
    def number32(self) -> float:
        self._require(FIXED32)
        (value,) = struct.unpack_from("<f", self.message.content.data, self._start)
        return float(value)

    @property
    def bytes(self) -> U8:
        """A view of the file."""
        self._require(BYTES)
        return self.message.content[self._start : self._end]

    @property
    def text(self) -> str:
        try:
            return self.bytes.tobytes().decode("utf-8")
        except UnicodeDecodeError:
            self.message.fail(self._start, "a text is not UTF-8")

    @property
    def inner(self) -> Message:
        """The message that lies in this field."""
        self._require(BYTES)
        outer = self.message
        if outer.depth >= DEEPEST:
            outer.fail(self._start, f"messages lie more than {DEEPEST} deep in one another")
        return Message(outer.path, outer.content, self._start, self._end, outer.depth + 1)

    @property
    def integers(self) -> npt.NDArray[np.int64]:
        """What this field adds to a list of whole numbers: one, or a packed part."""
        return np.array([self.integer], np.int64) if self.kind == VARINT else self.inner.varints()

    def numbers(self, dtype: str) -> npt.NDArray[np.generic]:
        """What this field adds to a list of floats: one, or a packed part; `dtype` is `<f4` or `<f8`."""
        raw = self.message.content[self._start : self._end]
        if self.kind == VARINT or raw.size % np.dtype(dtype).itemsize:
            self.message.fail(self._start, "a list of floats has bytes that are none")
        return np.frombuffer(raw.tobytes(), dtype)

    def _require(self, kind: int) -> None:
        if self.kind != kind:
            self.message.fail(self._start, f"field {self.number} has the kind {self.kind}, where {kind} is needed")
