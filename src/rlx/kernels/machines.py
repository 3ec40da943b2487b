"""Machine descriptions: what an emitter and a kernel maker must know of a chip, and nothing else.

`host()` describes this machine; `MACHINES` names the ones that can be emitted for from anywhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache

from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.knobs import knobs
from rlx.systems import this_system


@dataclass(frozen=True)
class MatrixUnit:
    """Instructions that add a product of matrices with `side` rows and columns to sums in f32, all three of them spread
    over the registers of a wave of `threads`. Thread t has, of row t % 16 of A and of column t % 16 of B, the
    `factor_lanes` elements from `first_element(t)` on, and `sum_lanes` sums of column t % 16 of C. Where these numbers
    are 0, nobody knows which thread has what: matrices come from shared memory, and go there."""

    threads: int
    factor_lanes: int = 0
    sum_lanes: int = 0
    interleaves_rows: bool = False  # threads take rows of C in turns; else each has rows side by side
    side: int = 16
    factors: tuple[DType, ...] = (DType.F16, DType.BF16)  # what A and B may be

    @property
    def is_by_memory(self) -> bool:
        return not self.factor_lanes

    def first_element(self, thread: int) -> int:
        """Where along K the elements of a thread begin."""
        return thread // self.side * self.factor_lanes % self.side

    def row(self, thread: int, lane: int) -> int:
        """The row of C that a sum of a thread belongs to.

        >>> [MatrixUnit(64, 4, 4).row(17, lane) for lane in range(4)]
        [4, 5, 6, 7]
        >>> [MatrixUnit(32, 16, 8, True).row(17, lane) for lane in range(4)]
        [1, 3, 5, 7]
        """
        group = thread // self.side
        return lane * (self.threads // self.side) + group if self.interleaves_rows else group * self.sum_lanes + lane


@dataclass(frozen=True)
class Machine:
    """One chip family. Machines with equal fields get equal code, so a machine's repr is part of every cache key."""

    name: str
    triple: str
    cpu: str
    features: str = ""
    vector_bytes: int = 16
    vector_registers: int = 16
    masked_bytes: int = 0  # the smallest element that masked loads and stores handle natively; 0: none
    has_rounding: bool = True  # floor, ceil, trunc and round are instructions
    has_f64: bool = True  # f64 is a type of values
    has_fma: bool = False  # a*b + c is an instruction that rounds once
    has_scale2: bool = False  # x * 2**n is an instruction for whole vectors
    has_f16_conversion: bool = True  # f16 <-> f32 are instructions that round to nearest even
    keeps_subnormals: bool = True  # no instruction takes f32 below 1.2e-38 for 0
    has_bf16_conversion: bool = False  # f32 -> bf16 is an instruction that rounds to nearest even
    has_exp2: bool = False  # 2**x is an instruction, right to the last bits but one
    has_quick_division: bool = False  # f32 division right to the last bits but one is several times as fast
    gpu: str = ""  # "nvptx", "amdgcn", "wgsl", "opencl" or "metal": in which words kernels are written
    has_early_launch: bool = False  # a kernel may begin before the one in front of it ends, and wait for it
    lookup_lanes: tuple[int, ...] = ()  # vectors of f32 whose lanes an instruction picks by a vector of numbers
    byte_lookup_lanes: tuple[int, ...] = ()  # vectors of bytes by which an instruction picks from a table of 16
    dot4_lanes: tuple[int, ...] = ()  # vectors of i32 to which an instruction adds products of four bytes each
    dot4_is_signed: bool = False  # it takes bytes with signs on both sides; else those of the first operand have none
    adds_beside_dots: bool = False  # while it multiplies bytes, it adds twice as many vectors of them
    pair_lanes: tuple[int, ...] = ()  # vectors of i32 whose products of bytes are added two by two, in 16 bits
    dot2_lanes: tuple[int, ...] = ()  # vectors of f32 to which an instruction adds products of two bf16 each
    shared_bytes: int = 48 << 10  # what the threads of a block may share
    few_rows: int = 8  # rows up to which a product has code for each number of them
    scratch_bytes: int = 128 << 10  # what one kernel may keep on the stack of a thread
    more_copies_bytes: int = 0  # the same for products that copy operands and use them often, where that is more
    wave: int = 32  # threads of a GPU that run together
    has_subgroups: bool = False  # threads that run together combine values; how many they are only the run knows
    matrix: MatrixUnit | None = None  # instructions for whole matrices
    sorts_blocks: bool = False  # the threads of a block sort and search a row together
    shares_lines: bool = False  # the threads of a block transform a line together
    loads_pairs: bool = False  # two neighbours are loaded at once, where they begin at a multiple of their size
    line_bytes: int = 1 << 20  # the same for lines that go through many passes; 0: none, they would not stay in a cache

    @property
    def copies_bytes(self) -> int:
        """What a product that copies its operands and uses them often may keep on the stack of a thread."""
        return max(self.scratch_bytes, self.more_copies_bytes)

    @property
    def holds_windows(self) -> bool:
        """Whether scratch holds what a block of windows over a picture sees, with the weights and the sums."""
        return not self.is_gpu and self.line_bytes >= 1 << 19

    @property
    def is_gpu(self) -> bool:
        return bool(self.gpu)

    @property
    def is_text(self) -> bool:
        """Whether a GPU's own compiler makes code of text, and takes its time for large kernels."""
        return self.gpu in ("wgsl", "opencl", "metal")

    @property
    def has_wgmma(self) -> bool:
        """Whether a group of four warps multiplies tiles in shared memory: on Hopper, and on no other generation."""
        return self.name == "sm_90a"

    @property
    def has_mma(self) -> bool:
        """Whether a warp of an NVIDIA chip multiplies bf16, and copies without waiting."""
        return self.generation >= 80

    @property
    def generation(self) -> int:
        """The number of an NVIDIA architecture, 90 for sm_90a; 0 for other machines."""
        return int("".join(filter(str.isdigit, self.name))) if self.gpu == "nvptx" else 0

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bytes // dtype.size_bytes)

    def has_masked_access(self, dtype: DType) -> bool:
        return 0 < self.masked_bytes <= dtype.size_bytes


_LINUX_X86 = "x86_64-unknown-linux-gnu"

# The x86-64 feature levels and not a CPU's own name: one object file then serves every machine of a level.
AVX512 = Machine(
    name="avx512",
    triple=_LINUX_X86,
    cpu="x86-64-v4",
    # By default LLVM halves 512-bit vectors on some CPUs; kernels here choose their own width.
    features="-prefer-256-bit",
    vector_bytes=64,
    vector_registers=32,
    masked_bytes=1,
    has_fma=True,
    has_scale2=True,
    lookup_lanes=(8, 16),
    byte_lookup_lanes=(16, 32, 64),
    pair_lanes=(4, 8, 16),
    more_copies_bytes=288 << 10,  # a third of the second-level caches that such chips have
)
AVX2 = Machine(
    name="avx2",
    triple=_LINUX_X86,
    cpu="x86-64-v3",
    vector_bytes=32,
    masked_bytes=4,
    has_fma=True,
    lookup_lanes=(8,),
    byte_lookup_lanes=(16, 32),
    pair_lanes=(4, 8),
)
SSE2 = Machine(
    name="generic",
    triple=_LINUX_X86,
    cpu="x86-64",
    has_rounding=False,
    has_f16_conversion=False,
)
SSE4 = replace(SSE2, name="sse4", cpu="x86-64-v2", has_rounding=True, byte_lookup_lanes=(16,), pair_lanes=(4,))
NEON = Machine(
    name="neon",
    triple="aarch64-unknown-linux-gnu",
    cpu="generic",
    vector_registers=32,
    has_fma=True,
    byte_lookup_lanes=(16,),
)
RISCV = Machine(
    name="riscv64",
    triple="riscv64-unknown-linux-gnu",
    cpu="generic-rv64",
    features="+m,+a,+f,+d,+c,+v",
    vector_registers=32,
    masked_bytes=1,
    has_rounding=False,
    has_f16_conversion=False,
)
WASM = Machine(
    name="wasm32",
    triple="wasm32-unknown-unknown",
    cpu="generic",
    # All browsers have these since 2023; without the others LLVM calls functions for copies and conversions.
    features="+simd128,+bulk-memory,+nontrapping-fptoint,+sign-ext,+mutable-globals",
    has_f16_conversion=False,
    line_bytes=128 << 10,
)
CORTEX_M4 = Machine(
    name="cortex-m4",
    triple="thumbv7em-none-eabihf",
    cpu="cortex-m4",
    vector_bytes=4,
    vector_registers=8,
    has_rounding=False,
    has_f16_conversion=False,
    scratch_bytes=8 << 10,
    line_bytes=0,
)
# No PTX version is asked for: LLVM takes the oldest that knows the chip, which every driver for the chip accepts.
SM_90A = Machine(
    name="sm_90a",
    triple="nvptx64-nvidia-cuda",
    cpu="sm_90a",
    vector_registers=255,
    has_bf16_conversion=True,
    has_exp2=True,
    has_quick_division=True,
    has_early_launch=True,
    gpu="nvptx",
    scratch_bytes=32 << 10,
    sorts_blocks=True,
    shares_lines=True,
    loads_pairs=True,
)
# AMD's GPUs of two families: for computing (gfx9), with waves of 64 and MFMA, and for graphics (gfx10 and later), with
# waves of 32 and, from gfx11 on, WMMA. Registers are those that one thread may have.
GFX942 = Machine(
    name="gfx942",
    triple="amdgcn-amd-amdhsa",
    cpu="gfx942",
    vector_registers=256,
    gpu="amdgcn",
    shared_bytes=64 << 10,
    scratch_bytes=32 << 10,
    wave=64,
    matrix=MatrixUnit(threads=64, factor_lanes=4, sum_lanes=4),
)
GFX90A = replace(GFX942, name="gfx90a", cpu="gfx90a")
GFX1030 = replace(GFX942, name="gfx1030", cpu="gfx1030", features="+wavefrontsize32", wave=32, matrix=None)
GFX1100 = replace(
    GFX1030,
    name="gfx1100",
    cpu="gfx1100",
    # Both halves of a wave have all of A and B.
    matrix=MatrixUnit(threads=32, factor_lanes=16, sum_lanes=8, interleaves_rows=True),
)
GFX1201 = replace(GFX1030, name="gfx1201", cpu="gfx1201", matrix=MatrixUnit(threads=32, factor_lanes=8, sum_lanes=8))
AMD_CHIPS = (GFX90A, GFX942, GFX1030, GFX1100, GFX1201)
# Any GPU through WebGPU: kernels are text in words of 32 bits (`rlx.kernels.words`), and no instruction is promised.
WGSL = Machine(
    name="wgsl",
    triple="",
    cpu="",
    shared_bytes=16 << 10,
    # Compilers of WGSL take seconds for kernels of many thousand instructions.
    few_rows=1,
    has_f64=False,
    has_f16_conversion=False,
    # What WGSL, OpenCL and Metal allow, and SwiftShader, Apple's GPUs and others do.
    keeps_subnormals=False,
    gpu="wgsl",
    scratch_bytes=8 << 10,
)
# What an adapter of WebGPU may have beyond that. The names of machines that have some of it end with `+` and its name.
WGSL_FEATURES: dict[str, dict[str, object]] = {
    "f16": {"has_f16_conversion": True},
    "subgroups": {"has_subgroups": True},
    "dot4": {"dot4_lanes": (1,), "dot4_is_signed": True},
}


def wgsl_with(features: Collection[str]) -> Machine:
    """The machine of an adapter with some features.

    >>> wgsl_with(["subgroups", "f16"]).name
    'wgsl+f16+subgroups'
    """
    chosen = [name for name in WGSL_FEATURES if name in features]
    fields = {field: value for name in chosen for field, value in WGSL_FEATURES[name].items()}
    return replace(WGSL, name="+".join(["wgsl", *chosen]), **fields)  # type: ignore[arg-type]


# Any device through OpenCL: its C has all types. Devices without f64 get the second.
OPENCL = replace(WGSL, name="opencl", gpu="opencl", has_f64=True, scratch_bytes=32 << 10)
OPENCL_F32 = replace(OPENCL, name="opencl-f32", has_f64=False)
# Apple GPUs: all types but f64.
METAL = replace(OPENCL_F32, name="metal", gpu="metal", scratch_bytes=8 << 10)
# Those since 2020 (A14, M1) multiply matrices of 8 by 8, and the threads of a block share twice as much.
METAL_MATRICES = replace(
    METAL,
    name="metal-matrices",
    shared_bytes=32 << 10,
    matrix=MatrixUnit(threads=32, side=8, factors=(DType.F16, DType.BF16, DType.F32)),
)

# The same machines with instructions for dot products of bytes, and of bf16.
AVX512_VNNI = replace(AVX512, name="avx512vnni", features=f"{AVX512.features},+avx512vnni", dot4_lanes=(4, 8, 16))
AVX512_BF16 = replace(
    AVX512_VNNI, name="avx512bf16", features=f"{AVX512_VNNI.features},+avx512bf16", dot2_lanes=(4, 8, 16)
)
AVX_VNNI_FLAGS = frozenset({"avx_vnni", "avxvnni"})
AVX2_VNNI = replace(AVX2, name="avx2vnni", features="+avxvnni", dot4_lanes=(4, 8))
NEON_DOT = replace(NEON, name="neon-dot", features="+dotprod", dot4_lanes=(4,), dot4_is_signed=True)
NEON_I8MM = replace(NEON, name="neon-i8mm", features="+dotprod,+i8mm", dot4_lanes=(4,))

MACHINES = {t.name: t for t in (AVX512, AVX2, SSE2, NEON, RISCV, WASM, CORTEX_M4, SM_90A, GFX942)}
DOT_MACHINES = {t.name: t for t in (AVX512_VNNI, AVX512_BF16, AVX2_VNNI, NEON_DOT, NEON_I8MM)}
# What `RLX_CPU` may lower a machine to.
LEVELS = {t.name: t for t in (SSE2, SSE4, AVX2, AVX2_VNNI, AVX512, AVX512_VNNI, AVX512_BF16)}
LEVELS |= {t.name: t for t in (NEON, NEON_DOT, NEON_I8MM, RISCV)}


def machine_named(name: str) -> Machine:
    """A machine by name; `sm_NN` names any NVIDIA architecture, `gfxNNN` any AMD one."""
    others = (WGSL, OPENCL, OPENCL_F32, METAL, METAL_MATRICES, *AMD_CHIPS)
    known = {**MACHINES, **DOT_MACHINES, **LEVELS, **{machine.name: machine for machine in others}}
    if name in known:
        return known[name]
    # LLVM ends the process on names it cannot make sense of, so nothing else is passed on.
    if re.fullmatch(r"sm_\d+[af]?", name):
        number = int(re.sub(r"\D", "", name))
        # Loads and copies that say how they use the caches are younger than these chips.
        features = "+ptx74" if 80 <= number < 89 else ""
        older = replace(SM_90A, has_bf16_conversion=number >= 80, has_early_launch=number >= 90)
        return replace(older, name=name, cpu=name, features=features)
    base, *chosen = name.split("+")
    if base == WGSL.name and set(chosen) <= set(WGSL_FEATURES):
        return wgsl_with(chosen)
    if re.fullmatch(r"gfx[0-9a-f]+", name):
        # No more is promised than all chips of a family have.
        return replace(GFX942 if re.fullmatch(r"gfx9..", name) else GFX1030, name=name, cpu=name, matrix=None)
    raise BackendError(f"unknown machine {name!r}; use one of: {' '.join(known)}, or sm_NN, or gfxNNN")


@cache
def host() -> Machine:
    """The description of this machine, or of one with fewer instructions if the knob `cpu` says so. Found once."""
    return detected() if knobs.cpu is None else lowered(detected(), knobs.cpu, _cpu_flags())


def lowered(here: Machine, name: str, flags: Collection[str] = ()) -> Machine:
    """A machine, whose CPU has some flags, as one of its family that has no more instructions."""
    if here.cpu == AVX512.cpu and AVX_VNNI_FLAGS.intersection(flags):
        # It has dot products for shorter vectors in another encoding, too, of which its own code makes no use.
        here = replace(here, features=f"{here.features},{AVX2_VNNI.features}")
    family = here.triple.split("-")[0]
    levels = {n: replace(t, triple=here.triple) for n, t in LEVELS.items() if t.triple.startswith(f"{family}-")}
    fitting = {n: t for n, t in levels.items() if has_instructions(here, t)}
    if name not in fitting:
        raise BackendError(f"RLX_CPU={name}: this CPU runs no such code; it runs that of: {' '.join(fitting)}")
    return fitting[name]


def detected() -> Machine:
    """What this machine has."""
    import platform

    family = platform.machine().lower()
    if family in ("x86_64", "amd64"):
        flags = _cpu_flags()
        if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
            if not flags & {"avx512_vnni", "avx512vnni"}:
                return _on_this_system(AVX512)
            known = AVX512_BF16 if flags & {"avx512_bf16", "avx512bf16"} else AVX512_VNNI
            # AMD's have four units for vectors, of which two multiply; no other maker's have these instructions.
            return _on_this_system(replace(known, adds_beside_dots="sse4a" in flags))
        if {"avx2", "fma", "f16c", "bmi2"} <= flags:
            return _on_this_system(AVX2_VNNI if flags & AVX_VNNI_FLAGS else AVX2)
        return _on_this_system(SSE2)
    if family in ("aarch64", "arm64"):
        flags = _cpu_flags()
        if "i8mm" in flags:
            return _on_this_system(NEON_I8MM)
        return _on_this_system(NEON_DOT if flags & {"asimddp", "dotprod"} else NEON)
    if family == "riscv64":
        return _on_this_system(RISCV)
    raise BackendError(f"no machine description for {family!r}; add one to rlx.kernels.machines")


def runs_here(description: Machine) -> bool:
    """Whether code for this target can be called in this process."""
    return not description.is_gpu and has_instructions(host(), description)


def has_instructions(here: Machine, description: Machine) -> bool:
    """Whether one machine has all instructions of another."""
    order = [t.cpu for t in (SSE2, SSE4, AVX2, AVX512)]
    # Instructions for dot products come in encodings of which a machine may have one and not the other.
    wanted, present = ({f for f in t.features.split(",") if f.startswith("+")} for t in (description, here))
    if description.triple != here.triple or not wanted <= present:
        return False
    return description.cpu == here.cpu or (
        description.cpu in order and here.cpu in order and order.index(description.cpu) < order.index(here.cpu)
    )


def _on_this_system(description: Machine) -> Machine:
    if sys.platform.startswith("linux"):
        return description
    from llvmlite import binding

    # ELF objects everywhere: one format to check and load, whatever the system's own is.
    return replace(description, triple=f"{binding.get_process_triple()}-elf")


def _cpu_flags() -> frozenset[str]:
    """The CPU's feature flags by Linux's names, or by LLVM's where the system does not say."""
    flags = this_system().cpu_flags()
    if flags is not None:
        return flags
    from llvmlite import binding

    return frozenset(name.replace("-", "_") for name, present in binding.get_host_cpu_features().items() if present)
