"""What the host is: predicates about its processor and system."""

from __future__ import annotations

import sys
from functools import cache


@cache
def machine() -> str:
    """The processor family in lower case, under one name each: `x86_64`, `aarch64`, ..."""
    import platform

    name = platform.machine().lower()
    return {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}.get(name, name)


def is_aarch64() -> bool:
    return machine() == "aarch64"


def is_x86_64() -> bool:
    return machine() == "x86_64"


def is_macos() -> bool:
    return sys.platform == "darwin"


def is_apple_silicon() -> bool:
    return is_macos() and is_aarch64()


def has_neon() -> bool:
    """NEON is part of every AArch64 processor."""
    return is_aarch64()


@cache
def has_avx2_likely() -> bool:
    """AVX2 on x86-64. Exact where the system lists the processor's flags, elsewhere assumed.

    Kernels do not rely on this: code generation asks LLVM for the features of the host.
    """
    if not is_x86_64():
        return False
    flags = _cpu_flags()
    return "avx2" in flags if flags else True


def has_amx() -> bool:
    """Apple's matrix coprocessor (not Intel's AMX), present in every Apple-silicon Mac."""
    return is_apple_silicon()


def has_metal() -> bool:
    return is_macos()


def _cpu_flags() -> frozenset[str]:
    """The processor flags that Linux lists; empty elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = (line.partition(":") for line in file)
            return next((frozenset(text.split()) for key, _, text in lines if key.strip() == "flags"), frozenset())
    except OSError:
        return frozenset()
