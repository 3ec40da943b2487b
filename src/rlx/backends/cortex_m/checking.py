"""Build an export with the compilers that are here, run it on the host or in QEMU, and compare all outputs.

Nothing is assumed: where a tool is missing, the error names it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
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
        wrong = int(np.count_nonzero(got != wanted)) if got.shape == wanted.shape else wanted.size
        raise RlxError(f"cortex-m: {wrong} of {wanted.size} outputs of the C program are not those of {program.name}")
    where = f"QEMU {core.machine}" if in_qemu else "the host"
    return f"{count} random inputs give the same {wanted.size} outputs on {where}"


class Around(NamedTuple):
    """A program around a network: the name of its image, its main, and the file that it needs beside the network."""

    image: str
    main: str = "main.c"
    extra: str = ""


def run_on_host(program: Program, folder: Path, name: str, core: Core, codes: Array) -> Array:
    """The outputs of the C program for codes, built with the compiler of this machine."""
    return _shaped(program, _exchange_on_host(folder, name, Around(name), {"inputs.bin": _bytes(codes)}, "outputs.bin"))


def run_in_qemu(program: Program, folder: Path, name: str, core: Core, codes: Array) -> Array:
    """The same on the core itself, as QEMU emulates it."""
    data = _exchange_in_qemu(folder, name, Around(name), core, {"inputs.bin": _bytes(codes)}, "outputs.bin")
    return _shaped(program, data)


def run_stream(program: Program, folder: Path, name: str, core: Core, rows: Array, in_qemu: bool) -> Array:
    """What the network says of each window, while rows are pushed."""
    around = Around(f"{name}_stream", "stream_main.c", f"{name}_stream.c")
    given = {"inputs.bin": _bytes(rows)}
    return _shaped(program, _exchange(folder, name, around, core if in_qemu else None, given, "outputs.bin"))


def run_learning(folder: Path, name: str, core: Core, codes: Array, labels: Array, in_qemu: bool) -> Array:
    """The mean loss of each time that the last layer goes through the examples."""
    around = Around(f"{name}_learn", "learn_main.c", f"{name}_learn.c")
    records = b"".join(_bytes(c) + int(n).to_bytes(4, "little") for c, n in zip(codes, labels))
    data = _exchange(folder, name, around, core if in_qemu else None, {"examples.bin": records}, "losses.bin")
    return np.frombuffer(data, "<f4").copy()


def _exchange(
    folder: Path, name: str, around: Around, core: Core | None, given: Mapping[str, bytes], wanted: str
) -> bytes:
    """Build a program, on the host or for a core; what it writes to one file after it was given others."""
    if core is None:
        return _exchange_on_host(folder, name, around, given, wanted)
    return _exchange_in_qemu(folder, name, around, core, given, wanted)


def _exchange_on_host(folder: Path, name: str, around: Around, given: Mapping[str, bytes], wanted: str) -> bytes:
    compiler = next((c for c in (os.environ.get("CC", ""), "gcc", "clang", "cc") if c and shutil.which(c)), None)
    if compiler is None:
        raise NotInstalled("cortex-m: there is no C compiler here to check with; install gcc or clang")
    binary = folder / f"{around.image}.host"
    sources = [f"{name}.c", around.main, *([around.extra] if around.extra else [])]
    _call([compiler, *HOST_FLAGS, *sources, "-o", binary.name], folder)
    try:
        return _written([str(binary.resolve())], folder, given, wanted)
    finally:
        binary.unlink()


def _exchange_in_qemu(
    folder: Path, name: str, around: Around, core: Core, given: Mapping[str, bytes], wanted: str
) -> bytes:
    _build_image(folder, around, core)
    try:
        return _written(_emulator(core, around.image), folder, given, wanted)
    finally:
        _remove_image(folder, around.image)


def _bytes(codes: Array) -> bytes:
    return np.ascontiguousarray(codes).astype(codes.dtype.newbyteorder("<")).tobytes()


def _shaped(program: Program, data: bytes) -> Array:
    value = program.result
    if len(data) % value.size_bytes:
        raise RlxError(f"cortex-m: {len(data)} bytes came back, which are no whole outputs of {value.size_bytes} bytes")
    return np.frombuffer(data, value.dtype.numpy).reshape(-1, *value.dims).copy()


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
    _build_image(folder, Around(name), core)
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
    _build_image(folder, Around(name), core, "-DRLX_COUNT" + (" -DRLX_PLAIN" if plain else ""))
    figures = folder / "figures.bin"
    try:
        image = _linked(folder / f"{name}.elf")
        _written([*_emulator(core, name), "-icount", "shift=0"], folder, {"inputs.bin": _bytes(codes)}, "outputs.bin")
        ticks, stack = np.frombuffer(figures.read_bytes(), "<u4").reshape(-1, 2).T
        instructions = round(float(ticks.mean()) * _TICK_NANOSECONDS)
        return Measured(instructions, int(stack.max()), image.flash, image.ram)
    finally:
        figures.unlink(missing_ok=True)
        _remove_image(folder, name)


def _build_image(folder: Path, around: Around, core: Core, defines: str = "") -> None:
    """The image of a program for a core: by the Makefile where Debian's compiler is, else by that of ziglang."""
    has_gcc = shutil.which("arm-none-eabi-gcc") is not None
    if not has_gcc and importlib.util.find_spec("ziglang") is None:
        raise NotInstalled(
            "cortex-m: arm-none-eabi-gcc is missing, and so is the Python package ziglang;"
            " tools/install_tools.sh says what to install"
        )
    if shutil.which("qemu-system-arm") is None:
        raise NotInstalled("cortex-m: qemu-system-arm is missing; tools/install_tools.sh says what to install")
    if has_gcc:
        names = [f"IMAGE={around.image}", f"MAIN={around.main}", f"EXTRA={around.extra}"]
        _call(["make", "-s", f"{around.image}.elf", f"DEFINES={defines}", *names], folder)
        return
    code = next(
        f.name for f in sorted(folder.glob("*.[co]")) if f.with_suffix(".h").exists() and f.stem != "host_files"
    )
    sources = [code, around.main, *([around.extra] if around.extra else []), "startup.c"]
    flags = [*core.zig.split(), *defines.split(), "-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    freestanding = ["-fomit-frame-pointer", "-ffreestanding", "-ffunction-sections", "-DRLX_SEMIHOSTING"]
    linking = ["-Wl,-T,link.ld", "-Wl,-e,reset", "-Wl,--gc-sections", "-o", f"{around.image}.elf"]
    _call([sys.executable, "-m", "ziglang", "cc", *flags, *freestanding, *sources, *linking], folder)


def _sections(image: Path) -> dict[str, int]:
    """Section -> bytes, as the linker made them: the table of sections of a 32-bit ELF file."""
    data = image.read_bytes()
    (table,) = struct.unpack_from("<I", data, 32)
    size, count, names = struct.unpack_from("<3H", data, 46)
    rows = [struct.unpack_from("<6I", data, table + n * size) for n in range(count)]
    text = data[rows[names][4] :]
    return {text[row[0] : text.index(0, row[0])].decode("ascii"): row[5] for row in rows}


def _remove_image(folder: Path, name: str) -> None:
    for made in (f"{name}.elf", f"{name}.map"):
        (folder / made).unlink(missing_ok=True)


def _emulator(core: Core, name: str) -> list[str]:
    quiet = ["-nographic", "-monitor", "none", "-serial", "none"]
    files = ["-semihosting-config", "enable=on,target=native"]
    return ["qemu-system-arm", "-M", str(core.machine), *quiet, *files, "-kernel", f"{name}.elf"]


def _written(command: list[str], folder: Path, given: Mapping[str, bytes], wanted: str) -> bytes:
    """What a program writes to a file, given others; all are removed."""
    try:
        for name, data in given.items():
            (folder / name).write_bytes(data)
        _call(command, folder)
        return (folder / wanted).read_bytes()
    finally:
        for name in (*given, wanted):
            (folder / name).unlink(missing_ok=True)


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
