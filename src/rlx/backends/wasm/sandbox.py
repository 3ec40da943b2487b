"""A module at work in this process, through wasmtime: one linear memory, and the kernels as functions over it.

Addresses are those of the linear memory, of which there are 4 GiB; nothing of the process is reachable from it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rlx.backends.memory import ALIGNMENT, Array
from rlx.backends.wasm.linker import MAX_PAGES, PAGE, Linked
from rlx.errors import BackendError, InternalError

MAX_BYTES = MAX_PAGES * PAGE

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def require_room(what: str, parts: dict[str, int]) -> None:
    """Refuse what does not fit into the memory of a module, with the numbers."""
    total = sum(parts.values())
    if total <= MAX_BYTES - PAGE:
        return
    listed = ", ".join(f"{size} of {name}" for name, size in parts.items() if size)
    raise BackendError(
        f"{what}: WebAssembly has {MAX_BYTES} bytes of memory, and {total} are needed ({listed}); "
        "use smaller inputs, quantised weights, or the device cpu"
    )


class Sandbox:
    """An instance of a module. Used by one thread at a time."""

    def __init__(self, linked: Linked, what: str) -> None:
        import wasmtime

        self._what = what
        engine = _engine()
        self._store = wasmtime.Store(engine)
        try:
            module = wasmtime.Module(engine, linked.module)
            limits = wasmtime.Limits(max(1, -(-linked.data_end // PAGE)), MAX_PAGES)
            self._memory = wasmtime.Memory(self._store, wasmtime.MemoryType(limits))
            instance = wasmtime.Instance(self._store, module, [self._memory])
        except wasmtime.WasmtimeError as error:
            raise InternalError(f"{what}: wasmtime refuses the module: {error}") from None
        self.functions: dict[str, Any] = dict(instance.exports(self._store).items())
        self.start = aligned(linked.data_end)
        self._view()

    def _view(self) -> None:
        """The memory as bytes; growing it may have moved it."""
        size = self._memory.data_len(self._store)
        address = ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value
        assert address is not None
        self.bytes: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def reserve(self, end: int) -> None:
        """Let the memory reach to `end`."""
        import wasmtime

        missing = -(-(end - len(self.bytes)) // PAGE)
        if missing <= 0:
            return
        try:
            self._memory.grow(self._store, missing)
        except wasmtime.WasmtimeError:
            raise BackendError(
                f"{self._what}: there is no memory for a run, {end} bytes; use smaller inputs, or parts of them"
            ) from None
        self._view()

    def write(self, address: int, array: Array) -> None:
        size = array.nbytes
        self.bytes[address : address + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def read(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy of an array in memory."""
        array = np.empty(dims, dtype)
        array.reshape(-1).view(np.uint8)[...] = self.bytes[address : address + array.nbytes]
        return array

    def copy(self, source: int, to: int, size: int) -> None:
        self.bytes[to : to + size] = self.bytes[source : source + size].copy()

    def call(self, name: str, arguments: int, iterations: int) -> None:
        """Run all iterations of a kernel, whose arguments lie in 8-byte slots from `arguments` on."""
        import wasmtime

        try:
            self.functions[name](self._store, arguments, 0, iterations)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise InternalError(f"{self._what}: kernel {name} stopped: {error}") from None


_engines: list[Any] = []


def _engine() -> Any:
    """One for the process: what it compiles for and how is the same for all modules."""
    import wasmtime

    if not _engines:
        _engines.append(wasmtime.Engine())
    return _engines[0]
