"""MessagePack, as far as the metadata of code objects uses it: maps, lists, texts, whole numbers, truth values.

>>> unpack(pack({".name": "add", ".args": [8, True]}))
{'.name': 'add', '.args': [8, True]}
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rlx.errors import InternalError

Item: TypeAlias = "str | int | bool | Sequence[Item] | Mapping[str, Item] | None"

# First byte -> how a number, or the length of what follows, is written.
_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS: dict[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes) -> Item:
    """The one item that `data` is."""
    try:
        item, end = _item(data, 0)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise InternalError(f"damaged MessagePack: {error}") from None
    if end != len(data):
        raise InternalError(f"damaged MessagePack: {len(data) - end} bytes after its end")
    return item


def _item(data: bytes, at: int) -> tuple[Item, int]:
    first, at = data[at], at + 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _NUMBERS:
        number: int = struct.unpack_from(_NUMBERS[first], data, at)[0]
        return number, at + struct.calcsize(_NUMBERS[first])
    for short, mask, long in ((0xA0, 0x1F, _TEXTS), (0x90, 0x0F, _LISTS), (0x80, 0x0F, _MAPS)):
        if first in long:
            count, at = struct.unpack_from(long[first], data, at)[0], at + struct.calcsize(long[first])
        elif first & ~mask == short:
            count = first & mask
        else:
            continue
        if long is _TEXTS:
            if at + count > len(data):
                raise IndexError("a text goes beyond the end")
            return data[at : at + count].decode(), at + count
        return _listed(data, at, count) if long is _LISTS else _mapped(data, at, count)
    raise InternalError(f"MessagePack: no meaning is known for the byte {first:#x}")


def _listed(data: bytes, at: int, count: int) -> tuple[list[Item], int]:
    found: list[Item] = []
    for _ in range(count):
        item, at = _item(data, at)
        found.append(item)
    return found, at


def _mapped(data: bytes, at: int, count: int) -> tuple[dict[str, Item], int]:
    found: dict[str, Item] = {}
    for _ in range(count):
        key, at = _item(data, at)
        found[str(key)], at = _item(data, at)
    return found, at


def pack(item: Item) -> bytes:
    """The shortest form of each item."""
    if item is None or isinstance(item, bool):
        return bytes([next(byte for byte, constant in _CONSTANTS.items() if constant is item)])
    if isinstance(item, int):
        return _packed_number(item)
    if isinstance(item, str):
        text = item.encode()
        return _head(len(text), 0xA0, 32, _TEXTS) + text
    if isinstance(item, Mapping):
        pairs = (pack(key) + pack(value) for key, value in item.items())
        return _head(len(item), 0x80, 16, _MAPS) + b"".join(pairs)
    return _head(len(item), 0x90, 16, _LISTS) + b"".join(map(pack, item))


def _packed_number(number: int) -> bytes:
    if -32 <= number < 128:
        return struct.pack(">b", number)
    for byte, form in _NUMBERS.items():
        signed, bits = form[1].islower(), 8 * struct.calcsize(form)
        fits = -(1 << bits - 1) <= number < 0 if signed else 0 <= number < 1 << bits
        if fits:
            return bytes([byte]) + struct.pack(form, number)
    raise InternalError(f"{number} is no number of 64 bits")


def _head(count: int, short: int, limit: int, long: Mapping[int, str]) -> bytes:
    if count < limit:
        return bytes([short | count])
    for byte, form in long.items():
        if count < 1 << 8 * struct.calcsize(form):
            return bytes([byte]) + struct.pack(form, count)
    raise InternalError(f"{count} items or bytes are too many for MessagePack")
