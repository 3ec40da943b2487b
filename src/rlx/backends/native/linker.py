"""Object code to functions of this process.

Kernels are small and call next to nothing: on x86-64 and AArch64 they are placed by the few lines below, so that a
process which finds all its code on disk never loads LLVM, which takes longer and more memory than everything else at
start. What these lines do not know, and other machines, is left to LLVM's linker.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from rlx.backends.native.elf import LINKER_SYMBOLS, NO_SECTION, ElfObject, Section, damaged
from rlx.errors import InternalError
from rlx.kernels.machines import Machine
from rlx.systems import this_system

_X86_64, _AARCH64 = 62, 183  # e_machine
# sh_type and sh_flags: relocations with addends, tables for unwinding the stack, data in memory and how it is used.
_RELOCATIONS, _UNWIND = 4, 0x70000001
_WRITABLE, _IN_MEMORY = 1, 2
_NO_BITS = 8
# A jump to the address behind it: calls reach no farther than 2 GiB, or 128 MiB, and the process has its functions
# anywhere. jmp *[rip], and ldr x16, 8; br x16.
_JUMPS = {_X86_64: b"\xff\x25\x00\x00\x00\x00", _AARCH64: b"\x50\x00\x00\x58\x00\x02\x1f\xd6"}
_JUMP_BYTES = 16


class Linked(NamedTuple):
    """The addresses of symbols, and what keeps the code in memory."""

    addresses: Mapping[str, int]
    memory: Any


def link(code: bytes, name: str, machine: Machine, exports: Collection[str], allowed: Collection[str]) -> Linked:
    """Place an object into memory. It may use the functions of the process that are `allowed`, and no others."""
    parts = ElfObject(code)
    require_symbols(parts, name, allowed)
    imports = {symbol: this_system().address_of(symbol) for symbol in sorted(parts.undefined)}
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
    return parts.is_64 and parts.machine in _JUMPS


def _place(parts: ElfObject, imports: Mapping[str, int]) -> Linked | None:
    """The code where it can run; None where it needs something that is not known here."""
    try:
        jump, relocate = _JUMPS[parts.machine], _RELOCATE[parts.machine]
        starts, size = _layout(parts)
        jumps = {symbol: size + i * _JUMP_BYTES for i, symbol in enumerate(imports)}
        image = bytearray(size + len(jumps) * _JUMP_BYTES)
        for number, start in starts.items():
            section = parts.sections[number]
            content = parts.code[section.at : section.at + section.size]
            image[start : start + len(content)] = content
        for symbol, start in jumps.items():
            image[start : start + _JUMP_BYTES] = (jump + imports[symbol].to_bytes(8, "little")).ljust(_JUMP_BYTES)
        memory = _CodeMemory(len(image))
        places = _symbol_offsets(parts, starts, jumps)
        for section in parts.sections:
            if section.kind == _RELOCATIONS and section.info in starts:
                for here, kind, target in _relocations(parts, section, starts[section.info], places):
                    relocate(image, here, kind, target, memory.address)
    except _Unknown:
        return None
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise damaged(error) from None
    memory.fill(image)
    named = zip(parts.symbols, places)
    defined = {s.name: memory.address + at for s, at in named if at is not None and s.section != NO_SECTION}
    return Linked(defined, memory)


class _CodeMemory:
    """Pages for code. They are given back when this object is gone; not so at the end of the process, when threads may
    still be inside."""

    def __init__(self, size: int) -> None:
        system = this_system()
        self.address = system.new_pages(size)
        weakref.finalize(self, system.free_pages, self.address, size).atexit = False

    def fill(self, image: bytearray) -> None:
        this_system().fill_pages(self.address, bytes(image))


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


def _relocations(
    parts: ElfObject, table: Section, start: int, places: list[int | None]
) -> Iterator[tuple[int, int, int]]:
    """Where the image needs an address, in which form, and that of what, from the start of the image."""
    for at in range(table.at, table.at + table.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", parts.code, at)
        symbol = places[info >> 32]
        if symbol is None:
            raise _Unknown
        yield start + offset, info & 0xFFFFFFFF, symbol + addend


def _relocate_x86_64(image: bytearray, here: int, kind: int, target: int, base: int) -> None:
    match kind:
        case 2 | 4:  # relative data, and calls
            struct.pack_into("<i", image, here, target - here)
        case 1:
            struct.pack_into("<Q", image, here, base + target)
        case _:
            raise _Unknown


# How many bits of an offset within a page an instruction leaves out, since what it loads is aligned to as much.
_IN_PAGE = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}


def _relocate_aarch64(image: bytearray, here: int, kind: int, target: int, base: int) -> None:
    match kind:
        case 257:
            struct.pack_into("<Q", image, here, base + target)
        case 260:
            struct.pack_into("<q", image, here, target - here)
        case 261:
            struct.pack_into("<i", image, here, target - here)
        case 282 | 283:  # b and bl
            _set_bits(image, here, _signed_bits(target - here >> 2, 26), 0, 26)
        case 275:  # adrp: pages between this one and that of the target
            pages = _signed_bits((base + target >> 12) - (base + here >> 12), 21)
            _set_bits(image, here, pages & 3, 29, 2)
            _set_bits(image, here, pages >> 2, 5, 19)
        case _ if kind in _IN_PAGE:  # the rest of what adrp has left, in add and loads
            _set_bits(image, here, (base + target & 0xFFF) >> _IN_PAGE[kind], 10, 12)
        case _:
            raise _Unknown


def _signed_bits(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise OverflowError(f"{value} has no place in {bits} bits")
    return value & (1 << bits) - 1


def _set_bits(image: bytearray, at: int, value: int, first: int, count: int) -> None:
    """Write a field of an instruction."""
    (word,) = struct.unpack_from("<I", image, at)
    mask = ((1 << count) - 1) << first
    struct.pack_into("<I", image, at, word & ~mask | value << first)


_RELOCATE: Mapping[int, Callable[[bytearray, int, int, int, int], None]] = {
    _X86_64: _relocate_x86_64,
    _AARCH64: _relocate_aarch64,
}


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
