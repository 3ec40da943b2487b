"""Relocatable objects as LLVM writes them for wasm32: functions, constants, symbols, and where addresses go.

An object is a module with two more sections: `linking` names its symbols and says how its constants are aligned,
`reloc.CODE` and `reloc.DATA` say which fields depend on where things are placed.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.wasm.binary import (
    CODE,
    CUSTOM,
    DATA,
    FUNCTION,
    IMPORT,
    IS_FUNCTION,
    IS_GLOBAL,
    IS_MEMORY,
    IS_TABLE,
    MAGIC,
    TYPE,
    Cursor,
)
from rlx.errors import InternalError

# Parts of the section `linking`, and what a symbol may be.
_SEGMENT_INFO, _SYMBOLS = 5, 8
SYMBOL_FUNCTION, SYMBOL_DATA, SYMBOL_GLOBAL, SYMBOL_SECTION, SYMBOL_TABLE = 0, 1, 2, 3, 5
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40
# Types of relocations with an addend.
MEMORY_ADDRESSES = {3: "leb", 4: "sleb", 5: "word"}
FUNCTION_INDEX, TYPE_INDEX, GLOBAL_INDEX = 0, 6, 7


class Symbol(NamedTuple):
    """`number` is that of a function, of a global or of a segment of data, in which the symbol begins at `offset`."""

    kind: int
    name: str
    number: int
    offset: int
    is_defined: bool


class Relocation(NamedTuple):
    """A field at `at` of a section that names a symbol, or a type, by `number`."""

    kind: int
    at: int
    number: int
    addend: int


class Segment(NamedTuple):
    """Constants, and what their address must be a multiple of."""

    data: bytes
    align: int
    at: int  # where the bytes begin in the section, as relocations count


class Function(NamedTuple):
    """A body, and where it begins in the section of code."""

    type: int
    body: bytes
    at: int


class WasmObject:
    """An object taken apart; `what` names it in errors."""

    def __init__(self, code: bytes, what: str) -> None:
        self.what = what
        self.types: list[bytes] = []
        self.imported_functions: list[str] = []
        self.imported_globals: list[str] = []
        self.functions: list[Function] = []
        self.segments: list[Segment] = []
        self.symbols: list[Symbol] = []
        self.relocations: dict[int, list[Relocation]] = {CODE: [], DATA: []}
        self._declared: list[int] = []
        try:
            self._read(code)
        except (IndexError, ValueError, UnicodeDecodeError) as error:
            raise InternalError(f"{what}: this is no WebAssembly object: {error}") from None

    def _read(self, code: bytes) -> None:
        whole = Cursor(code)
        if whole.take(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin like one")
        kinds: list[int] = []
        readers = {
            CUSTOM: lambda part: self._custom(part, kinds),
            TYPE: self._types,
            IMPORT: self._imports,
            FUNCTION: self._functions,
            CODE: self._code,
            DATA: self._data,
        }
        while whole:
            kind = whole.byte()
            part = Cursor(whole.take(whole.number()))
            if kind in readers:
                readers[kind](part)
            kinds.append(kind)

    def _types(self, part: Cursor) -> None:
        for _ in part.counted():
            start = part.at
            part.byte()
            for _ in range(2):
                part.take(part.number())
            self.types.append(part.data[start : part.at])

    def _imports(self, part: Cursor) -> None:
        for _ in part.counted():
            part.name()
            name, kind = part.name(), part.byte()
            if kind == IS_FUNCTION:
                part.number()
                self.imported_functions.append(name)
            elif kind == IS_GLOBAL:
                part.take(2)
                self.imported_globals.append(name)
            elif kind in (IS_MEMORY, IS_TABLE):
                if kind == IS_TABLE:
                    part.byte()
                has_maximum = part.byte() & 1
                for _ in range(1 + has_maximum):
                    part.number()
            else:
                raise ValueError(f"it imports a thing of kind {kind}")

    def _functions(self, part: Cursor) -> None:
        self._declared = [part.number() for _ in part.counted()]

    def _code(self, part: Cursor) -> None:
        for index in part.counted():
            size = part.number()
            at = part.at
            self.functions.append(Function(self._declared[index], part.take(size), at))

    def _data(self, part: Cursor) -> None:
        for _ in part.counted():
            if part.number() != 0:
                raise ValueError("a segment of data that is not placed in memory")
            part.byte()
            part.signed()
            part.byte()
            size = part.number()
            at = part.at
            self.segments.append(Segment(part.take(size), 1, at))

    def _custom(self, part: Cursor, kinds: list[int]) -> None:
        name = part.name()
        if name == "linking":
            self._linking(part)
        elif name in ("reloc.CODE", "reloc.DATA"):
            found = self.relocations[kinds[part.number()]]
            for _ in part.counted():
                kind, at, index = part.byte(), part.number(), part.number()
                found.append(Relocation(kind, at, index, part.signed() if kind in MEMORY_ADDRESSES else 0))

    def _linking(self, whole: Cursor) -> None:
        if (version := whole.number()) != 2:
            raise ValueError(f"its symbols are written in version {version} of the format, not 2")
        while whole:
            kind = whole.byte()
            part = Cursor(whole.take(whole.number()))
            if kind == _SEGMENT_INFO:
                for index in part.counted():
                    part.name()
                    self.segments[index] = self.segments[index]._replace(align=1 << part.number())
                    part.number()
            elif kind == _SYMBOLS:
                self.symbols = [self._symbol(part) for _ in part.counted()]

    def _symbol(self, part: Cursor) -> Symbol:
        kind, flags = part.byte(), part.number()
        is_defined = not flags & _UNDEFINED
        if kind == SYMBOL_DATA:
            name = part.name()
            index, offset = (part.number(), part.number()) if is_defined else (-1, 0)
            if is_defined:
                part.number()
            return Symbol(kind, name, index, offset, is_defined)
        index = part.number()
        if kind == SYMBOL_SECTION:
            return Symbol(kind, "", index, 0, True)
        if is_defined or flags & _EXPLICIT_NAME:
            return Symbol(kind, part.name(), index, 0, is_defined)
        imports = {SYMBOL_FUNCTION: self.imported_functions, SYMBOL_GLOBAL: self.imported_globals}
        return Symbol(kind, imports[kind][index] if kind in imports else "", index, 0, False)
