"""macOS: pages for code are writable and executable at once for the system (`MAP_JIT`), and for each thread one or the
other. Processors of Apple need a call after new code; those of Intel take the calls and do nothing."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

from rlx.systems.api import Posix

_MAP_JIT = 0x800
# What the system calls what Linux has as these flags. Intel's are words of two texts.
_ARM = {"asimddp": b"hw.optional.arm.FEAT_DotProd", "i8mm": b"hw.optional.arm.FEAT_I8MM"}
_INTEL = (b"machdep.cpu.features", b"machdep.cpu.leaf7_features")
_INTEL_NAMES = {"avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi2": "bmi2", "avx512_vnni": "avx512vnni"}
_INTEL_NAMES |= {f"avx512{part}": f"avx512{part}" for part in ("f", "bw", "dq", "vl", "cd")}


class MacOS(Posix):
    """`library` is that of the system, which has all of this in one."""

    def __init__(self, library: Any = None) -> None:
        super().__init__(library)
        number, size = ctypes.c_int, ctypes.c_size_t
        self.library.pthread_jit_write_protect_np.argtypes = (number,)
        self.library.pthread_jit_write_protect_np.restype = None
        self.library.sys_icache_invalidate.argtypes = (ctypes.c_void_p, size)
        self.library.sys_icache_invalidate.restype = None
        pointer = ctypes.c_void_p
        self.library.sysctlbyname.argtypes = (ctypes.c_char_p, pointer, pointer, pointer, size)

    def new_pages(self, size: int) -> int:
        access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        return self.map(size, access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_JIT)

    def fill_pages(self, address: int, image: bytes) -> None:
        self.library.pthread_jit_write_protect_np(0)
        try:
            ctypes.memmove(address, image, len(image))
        finally:
            self.library.pthread_jit_write_protect_np(1)
        self.library.sys_icache_invalidate(address, len(image))

    def cpu_flags(self) -> frozenset[str] | None:
        arm = {flag for flag, name in _ARM.items() if any(self._known(name))}
        words = b" ".join(self._known(name).rstrip(b"\0") for name in _INTEL).decode("ascii", "replace").lower().split()
        return frozenset(arm | {flag for flag, word in _INTEL_NAMES.items() if word in words})

    def _known(self, name: bytes) -> bytes:
        """What the system says under a name; nothing where it does not know it."""
        size = ctypes.c_size_t(0)
        if self.library.sysctlbyname(name, None, ctypes.byref(size), None, 0):
            return b""
        value = ctypes.create_string_buffer(size.value)
        if self.library.sysctlbyname(name, value, ctypes.byref(size), None, 0):
            return b""
        return value.raw[: size.value]
