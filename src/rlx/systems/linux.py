"""Linux, on any processor, and other POSIX systems as far as they are alike."""

from __future__ import annotations

import ctypes
import mmap
import platform
from pathlib import Path
from typing import Any

from rlx.systems.api import Posix, no_execution

# Which word of the kernel's list of facts has a bit, and the bit, of what an AArch64 CPU may have.
_HWCAP, _HWCAP2 = 16, 26
_AARCH64 = {"asimddp": (_HWCAP, 1 << 20), "i8mm": (_HWCAP2, 1 << 13)}


class Linux(Posix):
    """Pages are mapped writable, and protected once they are filled."""

    def __init__(self, library: Any = None) -> None:
        super().__init__(library)
        self._flush = _cache_flush() if platform.machine() == "aarch64" else None

    def new_pages(self, size: int) -> int:
        return self.map(size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def fill_pages(self, address: int, image: bytes) -> None:
        ctypes.memmove(address, image, len(image))
        if self.library.mprotect(address, len(image), mmap.PROT_READ | mmap.PROT_EXEC):
            raise no_execution()
        if self._flush is not None:
            self._flush(address, address + len(image))

    def cpu_flags(self) -> frozenset[str] | None:
        if platform.machine() == "aarch64":
            # The kernel's own word; emulators show the file below of the machine that they run on.
            known = self.library.getauxval
            known.restype, known.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
            return frozenset(name for name, (word, bit) in _AARCH64.items() if known(word) & bit)
        try:
            with Path("/proc/cpuinfo").open() as lines:
                return next(
                    (frozenset(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), None
                )
        except OSError:
            return None


def _cache_flush() -> Any:
    """The function that makes AArch64 cores see new code. It is the compiler's, whose library every process with C++ in
    it has; where it is missing, the kernel does it for pages that become executable."""
    try:
        flush = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except (OSError, AttributeError):
        return None
    flush.argtypes, flush.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    return flush
