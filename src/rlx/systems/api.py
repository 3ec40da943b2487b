"""What a system is asked for. A library of the system is an argument of each, so that a stand-in can take its place."""

from __future__ import annotations

import abc
import ctypes
from typing import Any

from rlx.errors import BackendError


class System(abc.ABC):
    """Pages for code are first written, then run, and never both at a time."""

    @abc.abstractmethod
    def new_pages(self, size: int) -> int:
        """The address of memory for so many bytes of code; a BackendError where there is none."""

    @abc.abstractmethod
    def fill_pages(self, address: int, image: bytes) -> None:
        """Put code into pages that were got here; from then on it can be run, and not changed."""

    @abc.abstractmethod
    def free_pages(self, address: int, size: int) -> None:
        """Give pages back."""

    @abc.abstractmethod
    def address_of(self, symbol: str) -> int:
        """Where a function of the system is that generated code calls."""

    @abc.abstractmethod
    def make_sleeping_place(self, mutex: int, condition: int) -> None:
        """Make memory at two addresses, 128 bytes of zeros each, ready for threads that sleep there."""

    @abc.abstractmethod
    def cpu_flags(self) -> frozenset[str] | None:
        """What the CPU has, by Linux's names; None where the system does not say, and LLVM has to be asked."""


def no_memory(size: int) -> BackendError:
    return BackendError(f"the system has no memory for {size} bytes of code")


def no_execution() -> BackendError:
    return BackendError("this system does not let a process run code that it has made; rlx needs that")


def function_address(library: Any, symbol: str) -> int:
    """Where a library that ctypes has loaded keeps a function."""
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert address is not None
    return address


class Posix(System):
    """Threads sleep by a mutex and a condition variable, and all functions are the C library's."""

    def __init__(self, library: Any = None) -> None:
        # A copy of our own: types of arguments are set.
        self.library = library = ctypes.CDLL(None) if library is None else library
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        library.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
        library.mmap.restype = address
        library.munmap.argtypes, library.mprotect.argtypes = (address, size), (address, size, number)
        # Looked up once: the system's own lock of its libraries may be held by a thread that a forked child lacks.
        self._mutex_init, self._cond_init = library.pthread_mutex_init, library.pthread_cond_init

    def map(self, size: int, access: int, kind: int) -> int:
        address = self.library.mmap(None, size, access, kind, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise no_memory(size)
        return int(address)

    def free_pages(self, address: int, size: int) -> None:
        self.library.munmap(address, size)

    def address_of(self, symbol: str) -> int:
        return function_address(self.library, symbol)

    def make_sleeping_place(self, mutex: int, condition: int) -> None:
        failed = self._mutex_init(ctypes.c_void_p(mutex), None) | self._cond_init(ctypes.c_void_p(condition), None)
        if failed:
            raise OSError(failed, "the system has no mutex or condition variable left")
