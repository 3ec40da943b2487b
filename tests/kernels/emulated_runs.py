"""Kernels for other processors, run by an emulator: a kernel becomes a program that reads its arguments from standard
input and writes them to standard output when it is done. The program has no library; lld joins its two objects."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rlx.kernels.emit.llvm_codegen import compile_object, compile_text
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.ir.loop_ir import Buffer, Kernel
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import Machine

EMULATORS = {
    "riscv64": ["qemu-riscv64", "-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0"],
    "aarch64": ["qemu-aarch64", "-cpu", "max"],
}
LINKER = shutil.which("ld.lld-19") or shutil.which("ld.lld-20") or shutil.which("ld.lld")
ROOM = 64 << 20
ALIGN = 64
# How a program asks Linux for something, in machine code, since LLVM has no assembler here: the number and three
# arguments go into the registers where the system looks for them, one after the other.
_CALLS = {
    "riscv64": [
        *((source << 15) | (to << 7) | 0x13 for source, to in ((10, 17), (11, 10), (12, 11), (13, 12))),
        0x73,
        0x8067,
    ],
    "aarch64": [
        *(0xAA0003E0 | source << 16 | to for source, to in ((0, 8), (1, 0), (2, 1), (3, 2))),
        0xD4000001,
        0xD65F03C0,
    ],
}
# Input and output: the size of all, the number of parameters, the first and the last iteration, then for each parameter
# whether it is a buffer, and its place or value; then the buffers.
_PROGRAM = """
target triple = "{triple}"
@room = internal global [{room} x i8] zeroinitializer, align 4096
@slots = internal global [64 x i64] zeroinitializer
declare void @"{packed}"(ptr, i64, i64)

@system = internal constant [6 x i32] [{call}], section ".text.system", align 4

define ptr @memcpy(ptr %to, ptr %from, i64 %n) "no-builtins" noinline {{
entry: br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %go ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %go, label %end
go:
  %p = getelementptr i8, ptr %from, i64 %i
  %x = load volatile i8, ptr %p
  %q = getelementptr i8, ptr %to, i64 %i
  store volatile i8 %x, ptr %q
  %j = add i64 %i, 1
  br label %next
end: ret ptr %to
}}

define ptr @memset(ptr %to, i32 %value, i64 %n) "no-builtins" noinline {{
entry:
  %x = trunc i32 %value to i8
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %go ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %go, label %end
go:
  %q = getelementptr i8, ptr %to, i64 %i
  store volatile i8 %x, ptr %q
  %j = add i64 %i, 1
  br label %next
end: ret ptr %to
}}

define void @_start() {{
entry:
  %base = ptrtoint ptr @room to i64
  br label %read
read:
  %had = phi i64 [ 0, %entry ], [ %has, %read ]
  %to = add i64 %base, %had
  %left = sub i64 {room}, %had
  %got = call i64 @system(i64 63, i64 0, i64 %to, i64 %left)
  %has = add i64 %had, %got
  %more = icmp sgt i64 %got, 0
  br i1 %more, label %read, label %ready
ready:
  %count.at = getelementptr i64, ptr @room, i64 1
  %first.at = getelementptr i64, ptr @room, i64 2
  %last.at = getelementptr i64, ptr @room, i64 3
  %count = load i64, ptr %count.at
  %first = load i64, ptr %first.at
  %last = load i64, ptr %last.at
  br label %slot
slot:
  %i = phi i64 [ 0, %ready ], [ %i.next, %slot ]
  %twice = shl i64 %i, 1
  %kind.n = add i64 %twice, 4
  %value.n = add i64 %twice, 5
  %kind.at = getelementptr i64, ptr @room, i64 %kind.n
  %value.at = getelementptr i64, ptr @room, i64 %value.n
  %kind = load i64, ptr %kind.at
  %value = load i64, ptr %value.at
  %start = mul i64 %kind, %base
  %filled = add i64 %start, %value
  %slot.at = getelementptr i64, ptr @slots, i64 %i
  store i64 %filled, ptr %slot.at
  %i.next = add i64 %i, 1
  %again = icmp ult i64 %i.next, %count
  br i1 %again, label %slot, label %run
run:
  call void @"{packed}"(ptr @slots, i64 %first, i64 %last)
  %size = load i64, ptr @room
  br label %write
write:
  %written = phi i64 [ 0, %run ], [ %sum, %write ]
  %from = add i64 %base, %written
  %rest = sub i64 %size, %written
  %gone = call i64 @system(i64 64, i64 1, i64 %from, i64 %rest)
  %sum = add i64 %written, %gone
  %on = icmp ult i64 %sum, %size
  br i1 %on, label %write, label %end
end:
  %never = call i64 @system(i64 93, i64 0, i64 0, i64 0)
  unreachable
}}
"""


def needs_emulator(architecture: str) -> pytest.MarkDecorator:
    program = EMULATORS[architecture][0]
    missing = [what for what, found in ((program, shutil.which(program)), ("lld", LINKER)) if not found]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}: make tools")


@cache
def _program(kernel: Kernel, machine: Machine) -> bytes:
    architecture = machine.triple.split("-")[0]
    call = ", ".join(f"i32 {word}" for word in _CALLS[architecture])
    packed = packed_symbol(kernel.name)
    words = {"triple": machine.triple, "room": ROOM, "packed": packed, "call": call}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("kernel.o", "program.o", "program")]
        files[0].write_bytes(compile_object(kernel, machine))
        files[1].write_bytes(compile_text(_PROGRAM.format(**words), machine, "a program around a kernel"))
        command = [LINKER, "-static", "--no-relax", "-o", files[2], *files[:2]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return files[2].read_bytes()


def run_emulated(kernel: Kernel, arguments: dict[str, object], machine: Machine) -> None:
    """Run all iterations of a kernel; arrays among the arguments are changed as they would be natively."""
    head, body = [len(kernel.params), 0, grid_size(kernel, _sizes(kernel, arguments))], b""
    buffers, start = {}, -(-8 * (4 + 2 * len(kernel.params)) // ALIGN) * ALIGN
    for param in kernel.params:
        value = arguments[param.name]
        if isinstance(param, Buffer):
            buffers[param.name] = place = start + len(body)
            head += [1, place]
            body += value.tobytes() + bytes(-value.nbytes % ALIGN + ALIGN)
        else:
            number = np.asarray(value, param.dtype.numpy).tobytes().ljust(8, b"\0")
            head += [0, int.from_bytes(number, "little", signed=True)]
    size = start + len(body)
    assert size < ROOM
    given = np.array([size, *head], np.int64).tobytes().ljust(start, b"\0") + body
    with tempfile.NamedTemporaryFile(suffix=".elf") as file:
        file.write(_program(kernel, machine))
        file.flush()
        command = [*EMULATORS[machine.triple.split("-")[0]], file.name]
        Path(file.name).chmod(0o700)
        done = subprocess.run(command, input=given, capture_output=True, timeout=200)
    assert done.returncode == 0 and len(done.stdout) == size, (kernel.name, done.returncode, done.stderr[-500:])
    for name, place in buffers.items():
        array = arguments[name]
        found = np.frombuffer(done.stdout, np.uint8, array.nbytes, place)
        if array.flags.writeable:
            array.reshape(-1).view(np.uint8)[:] = found


def _sizes(kernel: Kernel, arguments: dict[str, object]) -> dict[str, object]:
    return {p.name: arguments[p.name] for p in kernel.params if not isinstance(p, Buffer)}
