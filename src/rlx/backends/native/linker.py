"""Object code to functions of this process.

Kernels are small and call next to nothing: on x86-64 Linux they are placed by the few lines below, so that a process
which finds all its code on disk never loads LLVM, which takes longer and more memory than everything else at start.
What these lines do not know, and other machines, is left to LLVM's linker.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import struct
import sys
import weakref
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

from rlx.backends.native.elf import LINKER_SYMBOLS, NO_SECTION, ElfObject, Section, damaged
from rlx.errors import BackendError, InternalError
from rlx.kernels.machines import Machine

_X86_64 = 62  # e_machine
# sh_type and sh_flags: relocations with addends, tables for unwinding the stack, data in memory and how it is used.
_RELOCATIONS, _UNWIND = 4, 0x70000001
_WRITABLE, _IN_MEMORY = 1, 2
_NO_BITS = 8
# A sum of an address and an addend, whole or relative to where it is stored.
_ABSOLUTE, _RELATIVE, _CALL = 1, 2, 4
# jmp *[rip], and the address behind it: calls reach 2 GiB, and the process has its functions anywhere.
_JUMP = b"\xff\x25\x00\x00\x00\x00"
_JUMP_BYTES = 16


class Linked(NamedTuple):
    """The addresses of symbols, and what keeps the code in memory."""

    addresses: Mapping[str, int]
    memory: Any


def link(code: bytes, name: str, machine: Machine, exports: Collection[str], allowed: Collection[str]) -> Linked:
    """Place an object into memory. It may use the functions of the process that are `allowed`, and no others."""
    parts = ElfObject(code)
    require_symbols(parts, name, allowed)
    imports = {symbol: _process_address(symbol) for symbol in sorted(parts.undefined)}
    placed = _place(parts, imports) if _is_ours(parts) else None
    if placed is None:
        return _link_with_llvm(code, name, machine, exports, imports)
    missing = [symbol for symbol in exports if symbol not in placed.addresses]
    if missing:
        raise InternalError(f"{name}: the compiled code has no {', '.join(missing)}")
    return placed


def require_symbols(parts: ElfObject, name: str, allowed: Collection[str]) -> None:
    """Refuse object code that calls anything but what is `allowed`."""
    strange = parts.undefined.difference(allowed)
    if strange:
        raise InternalError(
            f"{name}: the compiled code calls {', '.join(sorted(strange))}, which rlx does not provide; "
            "an operation was left to LLVM that the target has no instruction for: expand it in rlx.kernels.legalize"
        )


def _is_ours(parts: ElfObject) -> bool:
    return sys.platform == "linux" and parts.is_64 and parts.machine == _X86_64


def _place(parts: ElfObject, imports: Mapping[str, int]) -> Linked | None:
    """The code where it can run; None where it needs something that is not known here."""
    try:
        starts, size = _layout(parts)
        jumps = {symbol: size + i * _JUMP_BYTES for i, symbol in enumerate(imports)}
        image = bytearray(size + len(jumps) * _JUMP_BYTES)
        for number, start in starts.items():
            section = parts.sections[number]
            content = parts.code[section.at : section.at + section.size]
            image[start : start + len(content)] = content
        for symbol, start in jumps.items():
            image[start : start + _JUMP_BYTES] = (_JUMP + imports[symbol].to_bytes(8, "little")).ljust(_JUMP_BYTES)
        memory = _CodeMemory(len(image))
        places = _symbol_offsets(parts, starts, jumps)
        for section in parts.sections:
            if section.kind == _RELOCATIONS and section.info in starts:
                _relocate(parts, section, starts[section.info], image, memory.address, places)
    except _Unknown:
        return None
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise damaged(error) from None
    memory.fill(image)
    named = zip(parts.symbols, places)
    defined = {s.name: memory.address + at for s, at in named if at is not None and s.section != NO_SECTION}
    return Linked(defined, memory)


class _CodeMemory:
    """Pages for code: first written, then run, never both. They are given back when this object is gone; not so at the
    end of the process, when threads may still be inside."""

    def __init__(self, size: int) -> None:
        access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = _system().mmap(None, size, access, kind, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise BackendError(f"the system has no memory for {size} bytes of code")
        self.address, self._size = address, size
        weakref.finalize(self, _system().munmap, address, size).atexit = False

    def fill(self, image: bytearray) -> None:
        ctypes.memmove(self.address, bytes(image), self._size)
        if _system().mprotect(self.address, self._size, mmap.PROT_READ | mmap.PROT_EXEC):
            raise BackendError("this system does not let a process run code that it has made; rlx needs that")


class _Unknown(Exception):
    """Something in an object that this file has no meaning for."""


def _layout(parts: ElfObject) -> tuple[dict[int, int], int]:
    """Where each section that belongs into memory begins, by its number, and the end of all."""
    starts, end = dict[int, int](), 0
    for number, section in enumerate(parts.sections):
        # Nothing unwinds through kernels.
        if not section.flags & _IN_MEMORY or section.kind == _UNWIND or not section.size:
            continue
        align = max(section.align, 1)
        if section.flags & _WRITABLE or section.kind == _NO_BITS or align > mmap.PAGESIZE:
            raise _Unknown
        if section.at + section.size > len(parts.code):
            raise ValueError("a section goes beyond the end")
        start = -(-end // align) * align
        starts[number], end = start, start + section.size
    if not starts:
        raise ValueError("there is no code")
    return starts, -(-end // _JUMP_BYTES) * _JUMP_BYTES


def _symbol_offsets(parts: ElfObject, starts: Mapping[int, int], jumps: Mapping[str, int]) -> list[int | None]:
    """For each symbol how far it is from the start of the code; None for what is not in memory."""
    found: list[int | None] = []
    for symbol in parts.symbols:
        if symbol.section == NO_SECTION:
            found.append(None if symbol.name in LINKER_SYMBOLS else jumps[symbol.name])
        else:
            start = starts.get(symbol.section)
            found.append(None if start is None else start + symbol.value)
    return found


def _relocate(
    parts: ElfObject, table: Section, start: int, image: bytearray, base: int, places: list[int | None]
) -> None:
    """Write the addresses that a section needs into the image."""
    for at in range(table.at, table.at + table.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", parts.code, at)
        symbol, kind = places[info >> 32], info & 0xFFFFFFFF
        here = start + offset
        if symbol is None:
            raise _Unknown
        if kind in (_RELATIVE, _CALL):
            struct.pack_into("<i", image, here, symbol + addend - here)
        elif kind == _ABSOLUTE:
            struct.pack_into("<Q", image, here, base + symbol + addend)
        else:
            raise _Unknown


@cache
def _system() -> Any:
    """The C library, a copy of our own with types."""
    library = ctypes.CDLL(None)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes, library.mmap.restype = (address, size, number, number, number, ctypes.c_long), address
    library.munmap.argtypes, library.mprotect.argtypes = (address, size), (address, size, number)
    return library


@cache
def _process_address(symbol: str) -> int:
    address = ctypes.cast(getattr(ctypes.CDLL(None), symbol), ctypes.c_void_p).value
    assert address is not None
    return address


def _link_with_llvm(
    code: bytes, name: str, machine: Machine, exports: Collection[str], imports: Mapping[str, int]
) -> Linked:
    from llvmlite import binding

    library = binding.JITLibraryBuilder().add_object_img(code)
    for symbol in exports:
        library.export_symbol(symbol)
    for symbol, address in imports.items():
        library.import_symbol(symbol, address)
    linked = library.link(_jit(machine), f"{name}.{next(_serial)}")
    return Linked({symbol: linked[symbol] for symbol in exports}, linked)


# LLVM wants every library to have a name of its own.
_serial = itertools.count()


@cache
def _jit(machine: Machine) -> Any:
    from rlx.kernels.emit.llvm_codegen import create_jit

    return create_jit(machine)
