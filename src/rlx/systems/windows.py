"""Windows: pages by `VirtualAlloc`, and threads that sleep by `WaitOnAddress`, which needs no preparation. The executor
asks for the functions; see `rlx.backends.cpu.executor_ir`."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from rlx.systems.api import System, function_address, no_execution, no_memory

_COMMIT_AND_RESERVE, _RELEASE = 0x3000, 0x8000
_READ_WRITE, _EXECUTE_READ = 0x04, 0x20
# The number under which the system knows a feature of AArch64.
_ARM_DOT_PRODUCTS = 43
# Which library has what generated code calls; `__chkstk` is called by functions with more than a page of variables.
_LIBRARIES = {
    "kernelbase": ("WaitOnAddress", "WakeByAddressAll"),
    "kernel32": ("QueryPerformanceCounter", "QueryPerformanceFrequency", "SwitchToThread"),
    "ntdll": ("memcpy", "memmove", "memset", "__chkstk"),
}


class Windows(System):
    """`libraries` gives a library of the system by its name."""

    def __init__(self, libraries: Any = None) -> None:
        # The name is there on Windows alone.
        self._libraries: Any = vars(ctypes)["WinDLL"] if libraries is None else libraries
        self._kernel = kernel = self._libraries("kernel32")
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
        kernel.VirtualAlloc.argtypes, kernel.VirtualAlloc.restype = (address, size, number, number), address
        kernel.VirtualProtect.argtypes = (address, size, number, address)
        kernel.VirtualFree.argtypes = (address, size, number)
        kernel.GetCurrentProcess.restype = address
        kernel.FlushInstructionCache.argtypes = (address, address, size)
        kernel.IsProcessorFeaturePresent.argtypes = (number,)

    def new_pages(self, size: int) -> int:
        address = self._kernel.VirtualAlloc(None, size, _COMMIT_AND_RESERVE, _READ_WRITE)
        if not address:
            raise no_memory(size)
        return int(address)

    def fill_pages(self, address: int, image: bytes) -> None:
        ctypes.memmove(address, image, len(image))
        before = ctypes.c_uint32()
        if not self._kernel.VirtualProtect(address, len(image), _EXECUTE_READ, ctypes.byref(before)):
            raise no_execution()
        self._kernel.FlushInstructionCache(self._kernel.GetCurrentProcess(), address, len(image))

    def free_pages(self, address: int, size: int) -> None:
        # All of an allocation goes back at once; its size is not said again.
        self._kernel.VirtualFree(address, 0, _RELEASE)

    def address_of(self, symbol: str) -> int:
        library = next(name for name, symbols in _LIBRARIES.items() if symbol in symbols)
        return function_address(self._libraries(library), symbol)

    def make_sleeping_place(self, mutex: int, condition: int) -> None:
        pass  # an address with a number at it is all that is waited on

    def cpu_flags(self) -> frozenset[str] | None:
        if platform.machine().lower() not in ("arm64", "aarch64"):
            return None  # LLVM asks the CPU itself
        has_dots = self._kernel.IsProcessorFeaturePresent(_ARM_DOT_PRODUCTS)
        return frozenset({"asimddp"}) if has_dots else frozenset()
