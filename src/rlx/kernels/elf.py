"""The symbols of object files: the one that kernels are called by, and those that an ELF file needs from elsewhere.

LLVM may turn an innocent instruction into a library call. Linking such an object would fail late or, worse, call
whatever the process happens to define under that name; so objects are looked at before they are linked.
"""

from __future__ import annotations

import struct

from rlx.errors import InternalError


def packed_symbol(kernel_name: str) -> str:
    """The symbol of the entry that reads its parameters from slots."""
    return f"{kernel_name}.packed"


_SYMBOL_TABLE = 2  # sh_type of SHT_SYMTAB
_NO_SECTION = 0  # st_shndx of an undefined symbol

# A symbol that the linker itself provides.
_LINKER_SYMBOLS = frozenset({"", "_GLOBAL_OFFSET_TABLE_"})


def undefined_symbols(code: bytes) -> set[str]:
    """Names that the object uses and does not define."""
    if code[:4] != b"\x7fELF" or len(code) < 64 or code[5] != 1:
        raise InternalError("object code is not a little-endian ELF file")
    try:
        return _undefined_symbols(code, is_64=code[4] == 2)
    except (struct.error, IndexError, ValueError) as error:
        raise InternalError(f"object code is a damaged ELF file: {error}") from None


def _undefined_symbols(code: bytes, is_64: bool) -> set[str]:
    if is_64:
        sections_at, (entry_size, count) = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<HH", code, 58)
        header, symbol = "<IIQQQQIIQQ", "<IBBHQQ"
    else:
        sections_at, (entry_size, count) = struct.unpack_from("<I", code, 32)[0], struct.unpack_from("<HH", code, 46)
        header, symbol = "<IIIIIIIIII", "<IIIBBH"
    sections = [struct.unpack_from(header, code, sections_at + i * entry_size) for i in range(count)]
    found = set()
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        offset, size, names_at = section[4], section[5], sections[section[6]][4]
        for at in range(offset, offset + size, struct.calcsize(symbol)):
            fields = struct.unpack_from(symbol, code, at)
            section_number = fields[3] if is_64 else fields[5]
            if section_number == _NO_SECTION:
                start = names_at + fields[0]
                found.add(code[start : code.index(b"\0", start)].decode("utf-8", "replace"))
    return found - _LINKER_SYMBOLS
