"""Objects of kernels to one WebAssembly module, which imports its memory and exports the kernels and the
address of its stack.

    linked = link([Export("k0", "map0.packed", code, "kernel map0")])
    linked.module        # for wasmtime, node or a browser

Kernels call nothing but themselves and use nothing but memory and a stack, so a module is their functions one after the
other, with the fields set that depend on where things are. The stack lies at the bottom and grows down: one that
overflows ends the run with a trap instead of writing over constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.wasm import binary
from rlx.backends.wasm.binary import CODE, DATA
from rlx.backends.wasm.objects import (
    FUNCTION_INDEX,
    GLOBAL_INDEX,
    MEMORY_ADDRESSES,
    SYMBOL_DATA,
    SYMBOL_FUNCTION,
    TYPE_INDEX,
    Relocation,
    Symbol,
    WasmObject,
)
from rlx.errors import InternalError

PAGE = 1 << 16
# More than the scratch memory that a kernel may have.
STACK_BYTES = 1 << 18
# The name under which a module wants its memory.
MEMORY = ("env", "memory")

_STACK_POINTER = "__stack_pointer"
# What the module calls it: threads that share memory need stacks of their own.
_STACK = "stack"
# Flags of a memory: it has a largest size, which shared memory must have, and threads may share it.
HAS_MAXIMUM, IS_SHARED = 1, 2
MAX_PAGES = 1 << 16
_MEMORY_IMPORT = b"".join(map(binary.name, MEMORY)) + bytes([binary.IS_MEMORY])
_FIELD = 5  # bytes that every relocated number takes


class Export(NamedTuple):
    """A function of an object, the name that the module gives it, and what the object is, for errors."""

    name: str
    symbol: str
    code: bytes
    what: str


class Linked(NamedTuple):
    """A module. Memory below `data_end` belongs to it: its stack and its constants. The byte at `memory_flags` tells
    the kind of its memory: who sets `IS_SHARED` there gets a module for memory that threads share."""

    module: bytes
    data_end: int
    memory_flags: int


def link(exports: Sequence[Export], stack_bytes: int = STACK_BYTES) -> Linked:
    """The module of kernels. An object that several exports share is placed once."""
    return _Linker(stack_bytes).link(exports)


class _Linker:
    def __init__(self, stack_bytes: int) -> None:
        self._types: dict[bytes, int] = {}
        self._functions: list[tuple[int, bytes]] = []
        self._segments: list[tuple[int, bytes]] = []
        self._stack_bytes = self._end = stack_bytes

    def link(self, exports: Sequence[Export]) -> Linked:
        placed: dict[bytes, dict[str, int]] = {}
        table = []
        for export in exports:
            if export.code not in placed:
                placed[export.code] = self._place(WasmObject(export.code, export.what))
            if export.symbol not in placed[export.code]:
                raise InternalError(f"{export.what}: the compiled code has no {export.symbol}")
            index = placed[export.code][export.symbol]
            table.append(binary.name(export.name) + bytes([binary.IS_FUNCTION]) + binary.number(index))
        module = self._module(table)
        return Linked(module, self._end, module.index(_MEMORY_IMPORT) + len(_MEMORY_IMPORT))

    def _place(self, parts: WasmObject) -> dict[str, int]:
        """Append an object; the numbers of its functions."""
        first = len(self._functions)
        addresses = []
        for segment in parts.segments:
            self._end = -(-self._end // segment.align) * segment.align
            addresses.append(self._end)
            self._end += len(segment.data)
        code = [bytearray(f.body) for f in parts.functions]
        data = [bytearray(s.data) for s in parts.segments]
        code_places = [(f.at, body) for f, body in zip(parts.functions, code)]
        data_places = [(s.at, body) for s, body in zip(parts.segments, data)]
        for section, places in ((CODE, code_places), (DATA, data_places)):
            for relocation in parts.relocations[section]:
                self._relocate(parts, relocation, places, first, addresses)
        for function, body in zip(parts.functions, code):
            self._functions.append((self._type(parts.types[function.type]), bytes(body)))
        self._segments += [(at, bytes(body)) for at, body in zip(addresses, data) if any(body)]
        return {s.name: self._function(parts, s, first) for s in parts.symbols if s.kind == SYMBOL_FUNCTION and s.name}

    def _type(self, text: bytes) -> int:
        return self._types.setdefault(text, len(self._types))

    def _function(self, parts: WasmObject, symbol: Symbol, first: int) -> int:
        if not symbol.is_defined:
            raise InternalError(f"{parts.what}: the compiled code calls {symbol.name}, which a module does not have")
        return first + symbol.number - len(parts.imported_functions)

    def _relocate(
        self,
        parts: WasmObject,
        relocation: Relocation,
        places: Sequence[tuple[int, bytearray]],
        first: int,
        addresses: Sequence[int],
    ) -> None:
        kind, at, number, addend = relocation
        body, offset = next((b, at - start) for start, b in places if start <= at < start + len(b))
        if kind == TYPE_INDEX:
            body[offset : offset + _FIELD] = binary.number(self._type(parts.types[number]), _FIELD)
            return
        symbol = parts.symbols[number]
        if kind == FUNCTION_INDEX:
            body[offset : offset + _FIELD] = binary.number(self._function(parts, symbol, first), _FIELD)
        elif kind == GLOBAL_INDEX and symbol.name == _STACK_POINTER:
            body[offset : offset + _FIELD] = binary.number(0, _FIELD)
        elif kind in MEMORY_ADDRESSES and symbol.kind == SYMBOL_DATA and symbol.is_defined:
            address = addresses[symbol.number] + symbol.offset + addend
            form = MEMORY_ADDRESSES[kind]
            if form == "word":
                body[offset : offset + 4] = address.to_bytes(4, "little")
            else:
                write = binary.number if form == "leb" else binary.signed
                body[offset : offset + _FIELD] = write(address, _FIELD)
        else:
            raise InternalError(f"{parts.what}: a relocation of type {kind} for {symbol.name!r} is not known here")

    def _module(self, exports: Sequence[bytes]) -> bytes:
        pages = -(-self._end // PAGE)
        memory = _MEMORY_IMPORT + bytes([HAS_MAXIMUM]) + binary.number(pages) + binary.number(MAX_PAGES)
        exports = [*exports, binary.name(_STACK) + bytes([binary.IS_GLOBAL, 0])]
        pointer = bytes([binary.I32, 1]) + binary.I32_CONST + binary.signed(self._stack_bytes) + binary.END
        segments = [
            b"\0" + binary.I32_CONST + binary.signed(at) + binary.END + binary.counted_bytes(data)
            for at, data in self._segments
        ]
        return binary.module(
            (
                (binary.TYPE, binary.entries(list(self._types))),
                (binary.IMPORT, binary.entries([memory])),
                (binary.FUNCTION, binary.entries([binary.number(kind) for kind, _ in self._functions])),
                (binary.GLOBAL, binary.entries([pointer])),
                (binary.EXPORT, binary.entries(exports)),
                (CODE, binary.entries([binary.counted_bytes(body) for _, body in self._functions])),
                (DATA, binary.entries(segments) if segments else b""),
            )
        )
