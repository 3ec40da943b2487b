"""Machine descriptions: what an emitter and a kernel maker must know of a chip, and nothing else.

`host()` describes this machine; `TARGETS` names the ones that can be emitted for from anywhere.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rlx.errors import BackendError
from rlx.ir.dtype import DType


@dataclass(frozen=True)
class Target:
    """One chip family. Targets with equal fields get equal code, so a target's repr is part of every cache key."""

    name: str
    triple: str
    cpu: str
    features: str = ""
    vector_bytes: int = 16
    vector_registers: int = 16
    masked_bytes: int = 0  # the smallest element that masked loads and stores handle natively; 0: none
    has_rounding: bool = True  # floor, ceil, trunc and round are instructions
    has_f16_conversion: bool = True  # f16 <-> f32 are instructions that round to nearest even
    gpu: str = ""  # "nvptx" or "amdgcn": which built-ins give the block and thread numbers

    @property
    def is_gpu(self) -> bool:
        return bool(self.gpu)

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bytes // dtype.size_bytes)

    def has_masked_access(self, dtype: DType) -> bool:
        return 0 < self.masked_bytes <= dtype.size_bytes


_LINUX_X86 = "x86_64-unknown-linux-gnu"

# The x86-64 feature levels and not a CPU's own name: one object file then serves every machine of a level.
AVX512 = Target(
    name="avx512",
    triple=_LINUX_X86,
    cpu="x86-64-v4",
    # By default LLVM halves 512-bit vectors on some CPUs; kernels here choose their own width.
    features="-prefer-256-bit",
    vector_bytes=64,
    vector_registers=32,
    masked_bytes=1,
)
AVX2 = Target(name="avx2", triple=_LINUX_X86, cpu="x86-64-v3", vector_bytes=32, masked_bytes=4)
SSE2 = Target(
    name="generic",
    triple=_LINUX_X86,
    cpu="x86-64",
    has_rounding=False,
    has_f16_conversion=False,
)
NEON = Target(name="neon", triple="aarch64-unknown-linux-gnu", cpu="generic", vector_registers=32)
RISCV = Target(
    name="riscv64",
    triple="riscv64-unknown-linux-gnu",
    cpu="generic-rv64",
    features="+m,+a,+f,+d,+c,+v",
    vector_registers=32,
    masked_bytes=1,
    has_rounding=False,
    has_f16_conversion=False,
)
WASM = Target(
    name="wasm32",
    triple="wasm32-unknown-unknown",
    cpu="generic",
    features="+simd128",
    has_f16_conversion=False,
)
CORTEX_M4 = Target(
    name="cortex-m4",
    triple="thumbv7em-none-eabihf",
    cpu="cortex-m4",
    vector_bytes=4,
    vector_registers=8,
    has_rounding=False,
    has_f16_conversion=False,
)
# No PTX version is asked for: LLVM takes the oldest that knows the chip, which every driver for the chip accepts.
SM_90A = Target(name="sm_90a", triple="nvptx64-nvidia-cuda", cpu="sm_90a", vector_registers=255, gpu="nvptx")
GFX942 = Target(name="gfx942", triple="amdgcn-amd-amdhsa", cpu="gfx942", vector_registers=256, gpu="amdgcn")

TARGETS = {t.name: t for t in (AVX512, AVX2, SSE2, NEON, RISCV, WASM, CORTEX_M4, SM_90A, GFX942)}


def target(name: str) -> Target:
    """A target by name; `sm_NN` names any NVIDIA architecture, `gfxNNN` any AMD one."""
    if name in TARGETS:
        return TARGETS[name]
    # LLVM ends the process on names it cannot make sense of, so nothing else is passed on.
    if re.fullmatch(r"sm_\d+[af]?", name):
        return replace(SM_90A, name=name, cpu=name)
    if re.fullmatch(r"gfx[0-9a-f]+", name):
        return replace(GFX942, name=name, cpu=name)
    raise BackendError(f"unknown target {name!r}; use one of: {' '.join(TARGETS)}, or sm_NN, or gfxNNN")


@cache
def host() -> Target:
    """The description of this machine."""
    import platform

    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        flags = _x86_flags()
        if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
            return _on_this_system(AVX512)
        if {"avx2", "fma", "f16c", "bmi2"} <= flags:
            return _on_this_system(AVX2)
        return _on_this_system(SSE2)
    if machine in ("aarch64", "arm64"):
        return _on_this_system(NEON)
    if machine == "riscv64":
        return _on_this_system(RISCV)
    raise BackendError(f"no machine description for {machine!r}; add one to rlx.kernels.targets")


def runs_here(description: Target) -> bool:
    """Whether code for this target can be called in this process."""
    if description.is_gpu:
        return False
    here = host()
    order = [t.cpu for t in (SSE2, AVX2, AVX512)]
    if description.triple != here.triple:
        return False
    return description.cpu == here.cpu or (
        description.cpu in order and here.cpu in order and order.index(description.cpu) < order.index(here.cpu)
    )


def _on_this_system(description: Target) -> Target:
    if sys.platform.startswith("linux"):
        return description
    from llvmlite import binding

    # ELF objects everywhere: one format to check and load, whatever the system's own is.
    return replace(description, triple=f"{binding.get_process_triple()}-elf")


def _x86_flags() -> set[str]:
    """The CPU's feature flags by Linux's names."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            for line in lines:
                if line.startswith("flags"):
                    return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    from llvmlite import binding

    return {name.replace("-", "_") for name, present in binding.get_host_cpu_features().items() if present}
