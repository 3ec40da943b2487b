"""Build an export with the compilers that are here, run it on the host or in QEMU, and compare all outputs.

Nothing is assumed: where a tool is missing, the error names it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.cortex_m.project import Core
from rlx.errors import NotInstalled, RlxError
from rlx.quantized import Program
from rlx.quantized.values import limits

Array = np.ndarray[Any, np.dtype[Any]]

HOST_FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror")
_SECONDS = 300
_TICK_NANOSECONDS = 40
# Whose timer, on its board of QEMU, ticks that often.
COUNTED = ("cortex-m3", "cortex-m4", "cortex-m7")


def check_export(program: Program, folder: Path, name: str, core: Core, in_qemu: bool, count: int = 20) -> str:
    """Run random codes through the export and NumPy; a line about what agreed, or an error about what did not."""
    low, high = limits(program.input.dtype)
    rng = np.random.default_rng(0)
    codes = rng.integers(low, high + 1, (count, *program.input.dims)).astype(program.input.dtype.numpy)
    got = (run_in_qemu if in_qemu else run_on_host)(program, folder, name, core, codes)
    wanted = program.run(codes)
    if got.tolist() != wanted.tolist():
        wrong = int(np.count_nonzero(got != wanted))
        raise RlxError(f"cortex-m: {wrong} of {wanted.size} outputs of the C program are not those of {program.name}")
    where = f"QEMU {core.machine}" if in_qemu else "the host"
    return f"{count} random inputs give the same {wanted.size} outputs on {where}"


def run_on_host(program: Program, folder: Path, name: str, core: Core, codes: Array) -> Array:
    """The outputs of the C program for codes, built with the compiler of this machine."""
    compiler = next((c for c in (os.environ.get("CC", ""), "gcc", "clang", "cc") if c and shutil.which(c)), None)
    if compiler is None:
        raise NotInstalled("cortex-m: there is no C compiler here to check with; install gcc or clang")
    binary = folder / f"{name}.host"
    _call([compiler, *HOST_FLAGS, f"{name}.c", "main.c", "-o", binary.name], folder)
    try:
        return _outputs(program, [str(binary.resolve())], folder, codes)
    finally:
        binary.unlink()


def run_in_qemu(program: Program, folder: Path, name: str, core: Core, codes: Array) -> Array:
    """The same on the core itself, as QEMU emulates it."""
    _build_image(folder, name, core)
    try:
        return _outputs(program, _emulator(core, name), folder, codes)
    finally:
        _remove_image(folder, name)


class Measured(NamedTuple):
    """Of one run on a core: instructions and bytes of stack. Of the image: bytes of flash and of RAM without stack."""

    instructions: int
    stack: int
    flash: int
    ram: int


class Linked(NamedTuple):
    """Bytes of an image, with main and start-up code, as the linker made it; RAM is without stack."""

    flash: int
    ram: int


def linked(folder: Path, name: str, core: Core) -> Linked:
    """What the image of an export takes."""
    _build_image(folder, name, core)
    try:
        return _linked(folder / f"{name}.elf")
    finally:
        _remove_image(folder, name)


def _linked(image: Path) -> Linked:
    sections = _sections(image)
    flash = sum(sections.get(s, 0) for s in (".text", ".ARM.exidx", ".data"))
    return Linked(flash, sections.get(".data", 0) + sections.get(".bss", 0))


def measure(program: Program, folder: Path, name: str, core: Core, codes: Array, plain: bool = False) -> Measured:
    """What runs take in QEMU, instructions as the mean over the codes; `plain` leaves out products of pairs.

    QEMU counts a nanosecond per instruction, and the timer of its boards ticks every 40: the count is exact to 40. The
    stack is what was written to below main's own; flash and RAM are the sections that the linker made, with main and
    start-up code.
    """
    if core.name not in COUNTED:
        raise RlxError(f"cortex-m: instructions are counted on {', '.join(COUNTED)}, got {core.name}")
    _build_image(folder, name, core, "-DRLX_COUNT" + (" -DRLX_PLAIN" if plain else ""))
    figures = folder / "figures.bin"
    try:
        image = _linked(folder / f"{name}.elf")
        _outputs(program, [*_emulator(core, name), "-icount", "shift=0"], folder, codes)
        ticks, stack = np.frombuffer(figures.read_bytes(), "<u4").reshape(-1, 2).T
        instructions = round(float(ticks.mean()) * _TICK_NANOSECONDS)
        return Measured(instructions, int(stack.max()), image.flash, image.ram)
    finally:
        figures.unlink(missing_ok=True)
        _remove_image(folder, name)


def _build_image(folder: Path, name: str, core: Core, defines: str = "") -> None:
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm"):
        if shutil.which(tool) is None:
            raise NotInstalled(f"cortex-m: {tool} is missing; tools/install_tools.sh says what to install")
    _call(["make", "-s", f"{name}.elf", f"DEFINES={defines}"], folder)


def _sections(image: Path) -> dict[str, int]:
    """Section -> bytes, as the linker made them."""
    lines = _call(["arm-none-eabi-size", "-A", image.name], image.parent).splitlines()
    return {words[0]: int(words[1]) for line in lines if line.startswith(".") and (words := line.split())}


def _remove_image(folder: Path, name: str) -> None:
    for made in (f"{name}.elf", f"{name}.map"):
        (folder / made).unlink(missing_ok=True)


def _emulator(core: Core, name: str) -> list[str]:
    quiet = ["-nographic", "-monitor", "none", "-serial", "none"]
    files = ["-semihosting-config", "enable=on,target=native"]
    return ["qemu-system-arm", "-M", str(core.machine), *quiet, *files, "-kernel", f"{name}.elf"]


def _outputs(program: Program, command: list[str], folder: Path, codes: Array) -> Array:
    inputs, outputs = folder / "inputs.bin", folder / "outputs.bin"
    try:
        inputs.write_bytes(np.ascontiguousarray(codes).astype(codes.dtype.newbyteorder("<")).tobytes())
        _call(command, folder)
        data = np.frombuffer(outputs.read_bytes(), program.result.dtype.numpy)
        if data.size != len(codes) * program.result.size:
            raise RlxError(f"cortex-m: {data.size} outputs came back, and {len(codes) * program.result.size} should")
        return data.reshape(len(codes), *program.result.dims).copy()
    finally:
        inputs.unlink(missing_ok=True)
        outputs.unlink(missing_ok=True)


def _call(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise RlxError(f"cortex-m: {command[0]} did not end within {_SECONDS} seconds") from None
    if done.returncode:
        raise RlxError(f"cortex-m: {command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout
