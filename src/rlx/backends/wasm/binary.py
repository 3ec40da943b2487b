"""The binary form of WebAssembly: numbers of variable length, a cursor over bytes, and the numbers of sections; that is
all that the linker needs of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAGIC = b"\0asm\1\0\0\0"

# Sections in the order in which a module has them; customs may stand anywhere.
CUSTOM, TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, START, ELEMENT, CODE, DATA, DATA_COUNT = range(13)
# What imports and exports are.
IS_FUNCTION, IS_TABLE, IS_MEMORY, IS_GLOBAL = range(4)
I32 = 0x7F
I32_CONST, END = b"\x41", b"\x0b"


class Cursor:
    """Reads a part of a module from its beginning; an `IndexError` or a `ValueError` where it ends too early."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError(f"{count} bytes wanted at {self.at}, of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        """An unsigned number, seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self.byte()
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    def signed(self) -> int:
        start = self.at
        value = self.number()
        width = 7 * (self.at - start)
        return value - (1 << width) if value >> (width - 1) else value

    def name(self) -> str:
        return self.take(self.number()).decode()

    def counted(self) -> range:
        """What precedes a list: how many entries it has."""
        return range(self.number())


def number(value: int, width: int = 1) -> bytes:
    """An unsigned number in at least `width` bytes; relocated fields have five, whatever is in them."""
    out = bytearray()
    while value or len(out) < width:
        out.append(value & 127 | 128)
        value >>= 7
    out[-1] &= 127
    return bytes(out)


def signed(value: int, width: int = 1) -> bytes:
    """The same of a signed number."""
    out = bytearray()
    while not (-64 <= value < 64) or len(out) < width - 1:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value & 127)
    return bytes(out)


def name(text: str) -> bytes:
    return counted_bytes(text.encode())


def counted_bytes(data: bytes) -> bytes:
    return number(len(data)) + data


def entries(items: Sequence[bytes]) -> bytes:
    return number(len(items)) + b"".join(items)


def module(sections: Iterable[tuple[int, bytes]]) -> bytes:
    """A module of sections, in their order; those without content are left out."""
    return MAGIC + b"".join(bytes([kind]) + counted_bytes(content) for kind, content in sections if content)
