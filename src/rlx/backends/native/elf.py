"""Object files: sections, symbols, the one that kernels are called by, and those that a file needs from elsewhere.

LLVM may turn an innocent instruction into a library call. Linking such an object would fail late or, worse, call
whatever the process happens to define under that name; so objects are looked at before they are linked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlx.errors import InternalError

SYMBOLS = 2  # sh_type of SHT_SYMTAB
NO_SECTION = 0  # st_shndx of an undefined symbol

# Symbols that the linker itself provides.
LINKER_SYMBOLS = frozenset({"", "_GLOBAL_OFFSET_TABLE_"})

_DAMAGES = (struct.error, IndexError, ValueError)


class Section(NamedTuple):
    """A section header: numbers as the format has them."""

    name: int
    kind: int
    flags: int
    address: int
    at: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int = 0
    info: int = 0  # the binding, shifted by 4, and the type
    other: int = 0  # the visibility


class ElfObject:
    """A little-endian ELF file, taken apart; an InternalError for what is none."""

    def __init__(self, code: bytes) -> None:
        if code[:4] != b"\x7fELF" or len(code) < 64 or code[5] != 1:
            raise InternalError("object code is not a little-endian ELF file")
        self.code, self.is_64 = code, code[4] == 2
        try:
            self.machine: int = struct.unpack_from("<H", code, 18)[0]
            self.sections = tuple(self._sections())
            self.symbols = tuple(s for table in self.sections if table.kind == SYMBOLS for s in self.symbols_of(table))
        except _DAMAGES as error:
            raise damaged(error) from None

    def _sections(self) -> Iterator[Section]:
        start, counts, header = (40, 58, "<IIQQQQIIQQ") if self.is_64 else (32, 46, "<IIIIIIIIII")
        at = struct.unpack_from("<Q" if self.is_64 else "<I", self.code, start)[0]
        size, count = struct.unpack_from("<HH", self.code, counts)
        for number in range(count):
            yield Section(*struct.unpack_from(header, self.code, at + number * size))

    def symbols_of(self, table: Section) -> Iterator[Symbol]:
        """The entries of a table of symbols."""
        names = self.sections[table.link].at
        fields = struct.Struct("<IBBHQQ" if self.is_64 else "<IIIBBH")
        for at in range(table.at, table.at + table.size, fields.size):
            entry: Sequence[int] = fields.unpack_from(self.code, at)
            start = names + entry[0]
            name = self.code[start : self.code.index(b"\0", start)].decode("utf-8", "replace")
            info, other, section, value, size = entry[1:] if self.is_64 else (*entry[3:], *entry[1:3])
            yield Symbol(name, section, value, size, info, other)

    @property
    def undefined(self) -> frozenset[str]:
        """Names that the object uses and does not define."""
        return frozenset(s.name for s in self.symbols if s.section == NO_SECTION) - LINKER_SYMBOLS


def damaged(error: Exception) -> InternalError:
    return InternalError(f"object code is a damaged ELF file: {error}")


def undefined_symbols(code: bytes) -> frozenset[str]:
    """Names that the object uses and does not define."""
    return ElfObject(code).undefined
