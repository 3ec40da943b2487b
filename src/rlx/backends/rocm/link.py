"""`link_code_object`: relocatable objects of kernels -> the shared object that AMD's loader takes (`.hsaco`).

LLVM leaves in each object the code, a descriptor of 64 bytes for each kernel (`name.kd`), tables, and a note with what
the runtime must know (metadata V5). Loading needs more: addresses, segments with permissions, a table of dynamic
symbols with its hashes, and one note for all kernels. The layout is that of lld, so that the two can be compared:

    read        headers, .note, .dynsym, .gnu.hash, .hash, .dynstr, .rodata
    execute     .text
    write       .dynamic

>>> from rlx.errors import InternalError
>>> try:
...     link_code_object([])
... except InternalError as error:
...     print(error)
a code object is linked from at least one object
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.native.elf import NO_SECTION, ElfObject, Section, Symbol, damaged
from rlx.backends.rocm.message_pack import Item, pack, unpack
from rlx.errors import InternalError

AMDGPU = 224  # e_machine
# e_ident: 64 bits, little-endian, version 1, the HSA interface, and the version of the metadata, V5.
IDENT = bytes([0x7F, 0x45, 0x4C, 0x46, 2, 1, 1, 64, 3]) + bytes(7)
NOTE_NAME, NOTE_TYPE = b"AMDGPU\0", 32
PAGE = 0x1000

# sh_type and sh_flags.
_CONTENT, _SYMBOLS, _NAMES, _RELOCATIONS, _HASH, _DYNAMIC, _NOTE, _NO_BITS = 1, 2, 3, 4, 5, 6, 7, 8
_DYNAMIC_SYMBOLS, _GNU_HASH = 11, 0x6FFFFFF6
_WRITE, _IN_MEMORY, _EXECUTE = 1, 2, 4
# Types of relocations: a sum of an address and an addend less the place it goes to, whole or half of it.
_REL32, _REL64, _REL32_LO, _REL32_HI = 4, 5, 10, 11
_GLOBAL = 1
_SEGMENTS = 8


class _Piece(NamedTuple):
    """A section of one object, and where it begins in the section of the result that has it."""

    object: int
    section: int
    start: int


class _Part:
    """A section of the result."""

    def __init__(self, name: str, kind: int, flags: int, align: int, data: bytes = b"", entry: int = 0) -> None:
        self.name, self.kind, self.flags, self.align, self.entry = name, kind, flags, align, entry
        self.data = bytearray(data)
        self.address = self.at = self.link = self.info = 0
        self.pieces: list[_Piece] = []

    def add(self, piece: tuple[int, int], section: Section, content: bytes) -> None:
        self.align = max(self.align, section.align)
        missing = -len(self.data) % max(section.align, 1)
        # Code ends with s_code_end, which may fill what follows; elsewhere it does not matter.
        self.data += bytes(self.data[-4:]) * (missing // 4) + bytes(missing % 4)
        self.pieces.append(_Piece(*piece, len(self.data)))
        self.data += content

    @property
    def end(self) -> int:
        return self.address + len(self.data)


def link_code_object(objects: Sequence[bytes]) -> bytes:
    """One code object with the kernels of all objects, whose names must differ."""
    if not objects:
        raise InternalError("a code object is linked from at least one object")
    parts = [ElfObject(code) for code in objects]
    try:
        return _Linker(parts).linked()
    except (struct.error, IndexError, ValueError) as error:
        raise damaged(error) from None


def metadata_of(parts: ElfObject) -> dict[str, Item]:
    """What the note of an object says."""
    for section in parts.sections:
        if section.kind == _NOTE:
            content = parts.code[section.at : section.at + section.size]
            name_size, size, kind = struct.unpack_from("<III", content)
            start = 12 + -(-name_size // 4) * 4
            if content[12 : 12 + name_size] == NOTE_NAME and kind == NOTE_TYPE:
                found = unpack(content[start : start + size])
                if isinstance(found, dict):
                    return found
    raise InternalError("the object has no note with the metadata of AMD's kernels")


class _Linker:
    def __init__(self, objects: Sequence[ElfObject]) -> None:
        self.objects = objects
        self.flags = {struct.unpack_from("<I", o.code, 48)[0] for o in objects}
        if {o.machine for o in objects} != {AMDGPU} or len(self.flags) != 1:
            raise InternalError("a code object is linked from objects for one AMD GPU")
        self.text = _Part(".text", _CONTENT, _IN_MEMORY | _EXECUTE, 4)
        self.rodata = _Part(".rodata", _CONTENT, _IN_MEMORY, 4)
        self._gather()
        self.exported = self._exported()

    def linked(self) -> bytes:
        names = b"\0" + b"".join(symbol.name.encode() + b"\0" for _, symbol in self.exported)
        note = _Part(".note", _NOTE, _IN_MEMORY, 4, self._note())
        symbols = _Part(".dynsym", _DYNAMIC_SYMBOLS, _IN_MEMORY, 8, bytes(24 * (len(self.exported) + 1)), 24)
        listed = [symbol.name for _, symbol in self.exported]
        gnu_hash = _Part(".gnu.hash", _GNU_HASH, _IN_MEMORY, 8, _gnu_hash(listed))
        hashes = _Part(".hash", _HASH, _IN_MEMORY, 4, _system_hash(listed), 4)
        text_of = _Part(".dynstr", _NAMES, _IN_MEMORY, 1, names)
        dynamic = _Part(".dynamic", _DYNAMIC, _IN_MEMORY | _WRITE, 8, bytes(16 * 7), 16)
        readable = [note, symbols, gnu_hash, hashes, text_of, self.rodata]
        parts = [*readable, self.text, dynamic]
        gnu_hash.link = hashes.link = parts.index(symbols) + 1
        symbols.link = dynamic.link = parts.index(text_of) + 1
        symbols.info = 1  # the number of local ones, which is the empty one
        self._place(readable, 64 + 56 * _SEGMENTS)
        dynamic.data[:] = struct.pack(
            "<14Q",
            *(6, symbols.address, 11, 24, 5, text_of.address, 10, len(text_of.data)),
            *(0x6FFFFEF5, gnu_hash.address, 4, hashes.address, 0, 0),
        )
        self._place([self.text], self.rodata.at + len(self.rodata.data), self.rodata.end)
        self._place([dynamic], self.text.at + len(self.text.data), self.text.end)
        symbols.data[24:] = self._symbols(parts)
        self._relocate()
        return self._file(parts, note, dynamic)

    # What the objects have.

    def _gather(self) -> None:
        for number, parts in enumerate(self.objects):
            for index, section in enumerate(parts.sections):
                if not section.flags & _IN_MEMORY or section.kind == _NOTE or not section.size:
                    continue
                if section.flags & _WRITE or section.kind == _NO_BITS:
                    raise InternalError("a kernel has variables that are written; code objects here have none")
                content = parts.code[section.at : section.at + section.size]
                if len(content) != section.size:
                    raise ValueError("a section goes beyond the end")
                to = self.text if section.flags & _EXECUTE else self.rodata
                to.add((number, index), section, content)

    def _exported(self) -> list[tuple[int, Symbol]]:
        """The global symbols of all objects, by the object that has each."""
        found: dict[str, tuple[int, Symbol]] = {}
        for number, parts in enumerate(self.objects):
            missing = sorted(parts.undefined)
            if missing:
                raise InternalError(f"a kernel calls {', '.join(missing)}, which no code object has")
            for symbol in parts.symbols:
                if symbol.info >> 4 != _GLOBAL or symbol.section == NO_SECTION:
                    continue
                if symbol.name in found:
                    raise InternalError(f"two kernels of a code object have the name {symbol.name}")
                found[symbol.name] = (number, symbol)
        return list(found.values())

    def _note(self) -> bytes:
        merged: dict[str, Item] = {}
        kernels: list[Item] = []
        for parts in self.objects:
            merged |= metadata_of(parts)
            own = merged["amdhsa.kernels"]
            assert isinstance(own, list)
            kernels += own
        merged["amdhsa.kernels"] = kernels
        data = pack(merged)
        head = struct.pack("<III", len(NOTE_NAME), len(data), NOTE_TYPE) + NOTE_NAME + b"\0"
        return head + data + bytes(-len(data) % 4)

    # Where all lies.

    def _place(self, parts: Sequence[_Part], at: int, end: int | None = None) -> None:
        """Sections of one segment, one after the other; a segment of its own begins on a page of its own."""
        for part in parts:
            part.at = at = -(-at // part.align) * part.align
            part.address = at if end is None else -(-end // PAGE) * PAGE + at % PAGE
            at += len(part.data)
            end = None if end is None else part.end

    def _address(self, number: int, section: int) -> int:
        for part in (self.text, self.rodata):
            for piece in part.pieces:
                if (piece.object, piece.section) == (number, section):
                    return part.address + piece.start
        raise InternalError("a symbol of a kernel lies in no section that is loaded")

    def _symbols(self, parts: Sequence[_Part]) -> bytes:
        packed, at = b"", 1
        for number, symbol in self.exported:
            address = self._address(number, symbol.section) + symbol.value
            holder = self.text if self.text.address <= address < self.text.end else self.rodata
            section = parts.index(holder) + 1
            packed += struct.pack("<IBBHQQ", at, symbol.info, symbol.other, section, address, symbol.size)
            at += len(symbol.name.encode()) + 1
        return packed

    def _relocate(self) -> None:
        for part in (self.text, self.rodata):
            for piece in part.pieces:
                parts = self.objects[piece.object]
                for table in parts.sections:
                    if table.kind == _RELOCATIONS and table.info == piece.section:
                        self._apply(table, part, piece)

    def _apply(self, table: Section, part: _Part, piece: _Piece) -> None:
        parts = self.objects[piece.object]
        for at in range(table.at, table.at + table.size, 24):
            offset, info, addend = struct.unpack_from("<QQq", parts.code, at)
            symbol, kind = parts.symbols[info >> 32], info & 0xFFFFFFFF
            place = piece.start + offset
            value = self._address(piece.object, symbol.section) + symbol.value + addend - (part.address + place)
            if kind == _REL64:
                struct.pack_into("<q", part.data, place, value)
            elif kind in (_REL32, _REL32_LO):
                struct.pack_into("<I", part.data, place, value & 0xFFFFFFFF)
            elif kind == _REL32_HI:
                struct.pack_into("<I", part.data, place, value >> 32 & 0xFFFFFFFF)
            else:
                raise InternalError(f"a kernel needs a relocation of the type {kind}, which code objects here have not")

    # The file.

    def _file(self, parts: Sequence[_Part], note: _Part, dynamic: _Part) -> bytes:
        section_names = b"\0" + b"".join(p.name.encode() + b"\0" for p in parts) + b".shstrtab\0"
        image = bytearray(dynamic.at + len(dynamic.data))
        for part in parts:
            image[part.at : part.at + len(part.data)] = part.data
        names_at = len(image)
        image += section_names
        image += bytes(-len(image) % 8)
        sections_at, name = len(image), 1
        image += bytes(64)
        for part in parts:
            words = (part.address, part.at, len(part.data), part.link, part.info, part.align, part.entry)
            image += struct.pack("<IIQQQQIIQQ", name, part.kind, part.flags, *words)
            name += len(part.name) + 1
        image += struct.pack("<IIQQQQIIQQ", name, _NAMES, 0, 0, names_at, len(section_names), 0, 0, 1, 0)
        programs = self._segments(note, dynamic)
        (flags,) = self.flags
        count = len(parts) + 2
        head = struct.pack(
            "<HHIQQQIHHHHHH", 3, AMDGPU, 1, 0, 64, sections_at, flags, 64, 56, _SEGMENTS, 64, count, count - 1
        )
        image[: 64 + len(programs)] = IDENT + head + programs
        return bytes(image)

    def _segments(self, note: _Part, dynamic: _Part) -> bytes:
        # type, flags (4 read, 2 write, 1 execute), offset, address twice, bytes in the file and in memory, alignment
        read, write = 4, 6
        whole = len(dynamic.data) + -dynamic.end % PAGE  # no longer writable once it has been loaded, by whole pages

        def segment(kind: int, flags: int, at: int, address: int, size: int, memory: int, align: int) -> bytes:
            return struct.pack("<IIQQQQQQ", kind, flags, at, address, address, size, memory, align)

        def of(kind: int, flags: int, part: _Part, align: int, memory: int | None = None) -> bytes:
            size = len(part.data)
            return segment(kind, flags, part.at, part.address, size, size if memory is None else memory, align)

        return b"".join(
            [
                segment(6, read, 64, 64, 56 * _SEGMENTS, 56 * _SEGMENTS, 8),
                segment(1, read, 0, 0, self.rodata.end, self.rodata.end, PAGE),
                of(1, read | 1, self.text, PAGE),
                of(1, write, dynamic, PAGE, whole),
                of(2, write, dynamic, 8),
                of(0x6474E552, read, dynamic, 1, whole),
                segment(0x6474E551, write, 0, 0, 0, 0, 0),
                of(4, read, note, 4),
            ]
        )


def _gnu_hash(names: Sequence[str]) -> bytes:
    """One bucket, and a filter of one word that says which names may be there."""
    found = []
    for name in names:
        value = 5381
        for byte in name.encode():
            value = (value * 33 + byte) & 0xFFFFFFFF
        found.append(value)
    bits = 0
    for value in found:
        bits |= 1 << value % 64 | 1 << (value >> 26) % 64
    chain = [value & ~1 for value in found]
    chain[-1] |= 1
    return struct.pack(f"<IIIIQI{len(chain)}I", 1, 1, 1, 26, bits, 1, *chain)


def _system_hash(names: Sequence[str]) -> bytes:
    """As many buckets as symbols; each begins a chain."""
    count = len(names) + 1
    buckets, chains = [0] * count, [0] * count
    for number, name in enumerate(names, 1):
        value = 0
        for byte in name.encode():
            value = (value << 4) + byte
            high = value & 0xF0000000
            value = (value ^ high >> 24) & ~high
        bucket = value % count
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<II{2 * count}I", count, count, *buckets, *chains)
