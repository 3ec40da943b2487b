"""The key-value part of a GGUF file.

`GgufMetadata` is a mapping of plain Python values: numbers, strings, lists of strings, and NumPy arrays for lists of
numbers. Values are read when they are asked for. `typed()` keeps the type that the file gives each value, which is what
a byte-identical copy needs:

    write_gguf(copy, {**file.metadata.typed(), "general.name": "mine"}, file.tensors)
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.gguf.cursor import Cursor

MetadataValue: TypeAlias = "bool | int | float | str | npt.NDArray[np.generic] | list[MetadataValue]"
_T = TypeVar("_T")
# Lists of lists may nest this deep; no known file has more than one level.
MAX_DEPTH = 8


class ValueType(enum.IntEnum):
    """Types of metadata values, by their code in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


NUMBERS: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype(np.uint8),
    ValueType.INT8: np.dtype(np.int8),
    ValueType.UINT16: np.dtype(np.uint16),
    ValueType.INT16: np.dtype(np.int16),
    ValueType.UINT32: np.dtype(np.uint32),
    ValueType.INT32: np.dtype(np.int32),
    ValueType.FLOAT32: np.dtype(np.float32),
    ValueType.BOOL: np.dtype(np.bool_),
    ValueType.UINT64: np.dtype(np.uint64),
    ValueType.INT64: np.dtype(np.int64),
    ValueType.FLOAT64: np.dtype(np.float64),
}
TYPES_OF_NUMBERS: dict[np.dtype[np.generic], ValueType] = {dtype: kind for kind, dtype in NUMBERS.items()}
_VALUE_TYPES = {int(kind): kind for kind in ValueType}


class TypedValue(NamedTuple):
    """A value with its type in the file; `items` is the element type of an array and None otherwise."""

    type: ValueType
    items: ValueType | None
    value: MetadataValue

    def __str__(self) -> str:
        return f"{self.items.name.lower()}[]" if self.items is not None else self.type.name.lower()


class _Entry(NamedTuple):
    type: ValueType
    at: int
    end: int


class GgufMetadata(Mapping[str, MetadataValue]):
    """The metadata of an open file, in file order. Strings in arrays are checked to be UTF-8 when they are read."""

    def __init__(self, cursor: Cursor, count: int) -> None:
        self._cursor = cursor
        self._entries: dict[str, _Entry] = {}
        self._values: dict[str, MetadataValue] = {}
        for index in range(count):
            self._step_over_pair(index)

    def _step_over_pair(self, index: int) -> None:
        cursor = self._cursor
        start = cursor.at
        key = cursor.text(f"the key of metadata pair {index}")
        if not key:
            cursor.fail(f"metadata pair {index} has an empty key", start)
        if key in self._entries:
            cursor.fail(f"metadata key {key!r} occurs twice", start)
        kind = _value_type(cursor, f"metadata {key!r}")
        at = cursor.at
        if kind is ValueType.ARRAY:
            _skip_array(cursor, f"metadata {key!r}", 1)
        else:
            # Single values are read at once: they are few and small, and so a bad one is met when the file is opened.
            self._values[key] = _scalar(cursor, kind, f"metadata {key!r}")
        self._entries[key] = _Entry(kind, at, cursor.at)

    def __getitem__(self, key: str) -> MetadataValue:
        if key not in self._values:
            _, at, end = self._entries[key]
            self._values[key] = _array(self._cursor.moved(at, end), f"metadata {key!r}")
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def type_of(self, key: str) -> tuple[ValueType, ValueType | None]:
        """The type of a value and, for an array, of its elements."""
        entry = self._entries[key]
        if entry.type is not ValueType.ARRAY:
            return entry.type, None
        return entry.type, _value_type(self._cursor.moved(entry.at), f"metadata {key!r}")

    def length_of(self, key: str) -> int:
        """How many elements an array has; found without reading them."""
        entry = self._entries[key]
        if entry.type is not ValueType.ARRAY:
            raise FormatError(f"metadata {key!r} is a {entry.type.name.lower()}, not an array")
        return self._cursor.moved(entry.at + 4).length("an array")

    def typed(self) -> dict[str, TypedValue]:
        """Every value with its type, for `write_gguf`."""
        return {key: TypedValue(*self.type_of(key), self[key]) for key in self}

    # What a model cannot do without; the error names the key and what was found.

    def text(self, key: str, default: str | None = None) -> str:
        """The string at `key`."""
        return self._expect(key, str, "a string", default)

    def integer(self, key: str, default: int | None = None) -> int:
        """The whole number at `key`."""
        return self._expect(key, int, "a whole number", default)

    def number(self, key: str, default: float | None = None) -> float:
        """The number at `key`; a whole number will do."""
        value = self.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._expect(key, float, "a number", default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """The truth value at `key`."""
        return self._expect(key, bool, "true or false", default)

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        """The list of strings at `key`."""
        values: list[str] = self._expect(key, list, "a list of strings", default)
        if key in self and self.type_of(key)[1] is not ValueType.STRING:
            raise FormatError(f"{self._cursor.path}: metadata {key!r} must be a list of strings, got a list of lists")
        return values

    def numbers(self, key: str) -> npt.NDArray[np.generic]:
        """The list of numbers at `key`."""
        return self._expect(key, np.ndarray, "a list of numbers", None)

    def _expect(self, key: str, kind: type[_T], wanted: str, default: _T | None) -> _T:
        if key not in self:
            if default is None:
                raise FormatError(f"{self._cursor.path}: metadata {key!r} is missing; it must be {wanted}")
            return default
        value = self[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FormatError(f"{self._cursor.path}: metadata {key!r} must be {wanted}, got {value!r:.60}")
        return value


def _value_type(cursor: Cursor, what: str) -> ValueType:
    start = cursor.at
    code = cursor.u32(f"the type of {what}")
    kind = _VALUE_TYPES.get(code)
    if kind is None:
        cursor.fail(f"{what} has type {code}, which GGUF does not know; types are 0 to {len(_VALUE_TYPES) - 1}", start)
    return kind


def _scalar(cursor: Cursor, kind: ValueType, what: str) -> bool | int | float | str:
    if kind is ValueType.STRING:
        return cursor.text(what)
    if kind is ValueType.BOOL:
        return bool(_truths(cursor, 1, what)[0])
    return cursor.numbers(NUMBERS[kind], 1, what)[0].item()


def _truths(cursor: Cursor, count: int, what: str) -> npt.NDArray[np.bool_]:
    """Bytes that must be 0 or 1."""
    start = cursor.at
    values = cursor.numbers(np.dtype(np.uint8), count, what).view(np.uint8)
    if (values > 1).any():
        cursor.fail(f"{what} is a truth value, so its bytes must be 0 or 1, got {values.max()}", start)
    return values.view(np.bool_)


def _array_head(cursor: Cursor, what: str, depth: int) -> tuple[ValueType, int]:
    """Element type and count of an array, the count checked against the bytes that are left."""
    if depth > MAX_DEPTH:
        cursor.fail(f"{what} nests arrays more than {MAX_DEPTH} deep")
    items = _value_type(cursor, f"the elements of {what}")
    count = cursor.length(f"the count of {what}")
    if items in NUMBERS:
        least = NUMBERS[items].itemsize
    elif items is ValueType.STRING:
        least = cursor.length_bytes
    else:
        least = 4 + cursor.length_bytes
    cursor.need_items(count, least, what)
    return items, count


def _skip_array(cursor: Cursor, what: str, depth: int) -> None:
    items, count = _array_head(cursor, what, depth)
    if items is ValueType.BOOL:
        _truths(cursor, count, what)
    elif items in NUMBERS:
        cursor.at += count * NUMBERS[items].itemsize
    elif items is ValueType.STRING:
        cursor.skip_texts(count, what)
    else:
        for _ in range(count):
            _skip_array(cursor, what, depth + 1)


def _array(cursor: Cursor, what: str, is_rest: bool = True) -> MetadataValue:
    """The array at the cursor, which `_skip_array` has found sound but for the UTF-8 of its strings; `is_rest` if it
    goes on to where the cursor ends."""
    items, count = _array_head(cursor, what, 1)
    if items is ValueType.BOOL:
        return _truths(cursor, count, what)
    if items in NUMBERS:
        return cursor.numbers(NUMBERS[items], count, what)
    if items is ValueType.STRING:
        return list(cursor.texts(count, what, is_rest))
    return [_array(cursor, what, is_rest=False) for _ in range(count)]
