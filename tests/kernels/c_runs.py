"""Kernels as C: compiled, many to a file, by whatever C compiler is here, and called like LLVM's code."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ml_dtypes  # noqa: F401  (NumPy knows bf16 by it)
import numpy as np
import pytest
from kernel_runs import Arguments

from rlx.backends.native.kernels import NativeKernel
from rlx.kernels.emit.c_emit import c_packed_symbol, c_source
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import Machine, host

FLAGS = ["-std=c99", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused"]
# Loops over nothing may divide by its size: they never run.
FLAGS += ["-Wno-div-by-zero", "-Wno-unknown-warning-option"]


@functools.cache
def c_compiler() -> list[str]:
    """The command of a C compiler of this machine, `CC` if that is set; the test is skipped where there is none."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("gcc", "clang"):
        found = shutil.which(name)
        if found:
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    pytest.skip("no C compiler: neither gcc nor clang is on the path, and ziglang is not installed (make tools)")


class Case(NamedTuple):
    """A kernel with what it is called with, and what LLVM's code left there."""

    kernel: Kernel
    before: Arguments
    after: Arguments


def is_fused(machine: Machine) -> bool:
    """Whether LLVM makes one instruction of `fma` for the machine; the oldest x86 has none."""
    return machine.cpu != "x86-64"


def renamed(kernel: Kernel, name: str) -> Kernel:
    return Kernel(name, kernel.params, kernel.arrays, kernel.body)


class _Entry(NamedTuple):
    """What `NativeKernel` wants of linked code: here it is an address in a shared library."""

    address: int
    addresses: dict[str, int]


def compile_c(kernels: Sequence[Kernel], folder: Path, machine: Machine | None = None) -> list[NativeKernel]:
    """The kernels in one C file and one shared library, each callable with checked arguments."""
    machine = machine or host()
    named = [renamed(k, f"k{i}_{k.name}") for i, k in enumerate(kernels)]
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "kernels.c", folder / "kernels.so"
    source.write_text(c_source(named, machine, is_fused(machine)))
    command = [*c_compiler(), *FLAGS, str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:4000]}"
    loaded = ctypes.CDLL(str(library))
    calls = []
    for kernel in named:
        address = ctypes.cast(getattr(loaded, c_packed_symbol(kernel.name)), ctypes.c_void_p).value
        assert address is not None
        entry = _Entry(address, {packed_symbol(kernel.name): address})
        call = NativeKernel(kernel, machine, entry)  # type: ignore[arg-type]
        call.library = loaded  # type: ignore[attr-defined]  # keeps the code in memory
        calls.append(call)
    return calls


def differences(wanted: Arguments, found: Arguments) -> list[str]:
    """Buffers whose bytes differ; any NaN is as good as any other."""
    wrong = []
    for name, array in wanted.items():
        if not isinstance(array, np.ndarray):
            continue
        same = array.reshape(-1).view(np.uint8) == found[name].reshape(-1).view(np.uint8)
        equal = same.reshape(array.size, array.dtype.itemsize).all(axis=1) if array.size else np.ones(0, bool)
        if array.dtype.kind not in "iub":
            a, b = (x.reshape(-1).astype(np.float64) for x in (array, found[name]))
            equal |= np.isnan(a) & np.isnan(b)
        if not equal.all():
            at = int(np.argmin(equal))
            pair = (array.reshape(-1)[at], found[name].reshape(-1)[at])
            wrong.append(f"{name}[{at}]: LLVM gives {pair[0]!r}, C {pair[1]!r}; {int((~equal).sum())} differ")
    return wrong


def copied(arguments: Arguments) -> Arguments:
    """Copies of the arrays that share memory where the given ones do: some kernels work in place."""
    owners: dict[int, np.ndarray] = {}

    def copy_of(array: np.ndarray) -> np.ndarray:
        owner = array if array.base is None else array.base
        assert isinstance(owner, np.ndarray) and owner.base is None and array.flags.c_contiguous
        new = owners.setdefault(id(owner), owner.copy())
        start = array.ctypes.data - owner.ctypes.data
        return new.reshape(-1).view(np.uint8)[start : start + array.nbytes].view(array.dtype)

    return {name: copy_of(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


def c_differences(cases: Sequence[Case], folder: Path, per_file: int = 50) -> list[str]:
    """What C computes otherwise than LLVM did, by kernel."""
    wrong = []
    for start in range(0, len(cases), per_file):
        part = cases[start : start + per_file]
        calls = compile_c([c.kernel for c in part], folder / str(start))
        for case, call in zip(part, calls, strict=True):
            after = copied(case.before)
            call(*(after[p.name] for p in case.kernel.params))
            wrong += [f"{call.kernel.name}: {text}" for text in differences(case.after, after)]
    return wrong
