"""A libcuda whose assembler is the real one: programs run to their last launch, and nothing is computed.

Every code that a program launches goes through `ptxas` for its chip, and every launch is held against what the code and
the chip allow: threads, registers, shared memory, clusters, the size of the grid. Memory is addresses alone, so models
of any size fit.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from fake_libcuda import FakeCuda, _number, _set

from rlx.backends.cuda.driver_types import FunctionAttribute

# Of a block on all chips since sm_70; of a cluster that no attribute enlarges.
MOST_THREADS, MOST_REGISTERS, PLAIN_SHARED, MOST_CLUSTER = 1024, 65536, 48 << 10, 8
# What a block may ask for, by capability.
SHARED = {(7, 5): 64 << 10, (8, 0): 163 << 10, (8, 6): 99 << 10, (8, 9): 99 << 10, (12, 0): 99 << 10}
LARGE_SHARED = 227 << 10


class Code(NamedTuple):
    """What the assembler says of an entry."""

    name: str
    params: int
    registers: int
    stack: int
    spilled: int
    shared: int
    barriers: int
    warnings: tuple[str, ...]
    threads: int  # that a block must have, or may have at most; 0 if nothing is said
    text: str


class AssemblingCuda(FakeCuda):
    """`codes` are all entries that were loaded, `wrong` what does not assemble and launches that the driver would
    refuse."""

    def __init__(self, ptxas: str, capability=(9, 0)):
        super().__init__(capability=capability, memory=1 << 40)
        self.ptxas = ptxas
        self.codes, self.wrong, self._allowed = {}, [], {}
        self._next, self._sizes = 1 << 20, {}

    @property
    def most_shared(self):
        return SHARED.get(self.capability, LARGE_SHARED)

    # Code.

    def _assembled(self, text: str) -> list[Code] | None:
        found = _assembled(self.ptxas, text)
        if isinstance(found, str):
            self.wrong.append(f"does not assemble: {found}")
            return None
        self.codes.update({(c.name, hashlib.sha256(text.encode()).hexdigest()): c for c in found})
        return found

    def cuLinkAddData_v2(self, state, kind, data, size, name, count, keys, values):
        self._links[_number(state)] = data[: size - 1]
        return 0

    def cuModuleLoadDataEx(self, out, image, count, keys, values):
        codes = self._assembled(image.rstrip(b"\0").decode())
        if codes is None:
            return 218
        self._modules[self._new("module", out)] = codes

    def cuModuleGetFunction(self, out, module, name):
        found = [c for c in self._modules[_number(module)] if c.name == name.decode()]
        if not found:
            return 500
        handle = next(self._handles)
        self._functions[handle] = found[0]
        _set(out, handle)

    def cuFuncGetAttribute(self, out, which, function):
        code = self._functions[_number(function)]
        values = {
            FunctionAttribute.NUM_REGS: code.registers,
            FunctionAttribute.LOCAL_SIZE_BYTES: code.stack,
            FunctionAttribute.SHARED_SIZE_BYTES: code.shared,
        }
        _set(out, values.get(which, MOST_THREADS))

    def cuFuncSetAttribute(self, function, which, value):
        code = self._functions[_number(function)]
        if value + code.shared > self.most_shared:
            self.wrong.append(f"{code.name}: {value} bytes of shared memory are allowed, {self.most_shared} exist")
            return 1
        self._allowed[_number(function)] = value

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out, function, threads, shared):
        code = self._functions[_number(function)]
        registers = max(code.registers, 1) * threads
        room = self.most_shared // max(shared + code.shared, 1)
        _set(out, min(2048 // threads, MOST_REGISTERS // registers, room, 32))

    def _launch(self, function, grid, block, attributes, stream, arguments, shared=0):
        code = self._functions[_number(function)]
        self.launches.append((code.name, grid, block, attributes))
        refusals = list(self._refusals(code, _number(function), grid, block, attributes, shared))
        self.wrong += [f"{code.name} {grid} x {block}: {refusal}" for refusal in refusals]
        return 1 if refusals else 0

    def _refusals(self, code, handle, grid, block, attributes, shared):
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= MOST_THREADS:
            yield f"{threads} threads"
        if code.threads and threads > code.threads:
            yield f"{threads} threads where the code says {code.threads}"
        if not 0 < grid[0] < 1 << 31 or not all(0 < size < 1 << 16 for size in grid[1:]):
            yield "the grid"
        if -(-code.registers // 8) * 8 * -(-threads // 32) * 32 > MOST_REGISTERS:
            yield f"{code.registers} registers of each thread"
        if code.shared > PLAIN_SHARED or shared > max(self._allowed.get(handle, 0), PLAIN_SHARED - code.shared):
            yield f"{code.shared} + {shared} bytes of shared memory, {self._allowed.get(handle, 0)} allowed"
        for number, value in attributes.items():
            if number == 4 and (value.cluster.x > MOST_CLUSTER or grid[0] % value.cluster.x):
                yield f"clusters of {value.cluster.x}"

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra):
        grid, block = (tuple(map(_number, sizes)) for sizes in ((gx, gy, gz), (bx, by, bz)))
        return self._launch(function, grid, block, {}, stream, arguments, _number(shared))

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        c = config._obj
        attributes = {c.attributes[i].id: c.attributes[i].value for i in range(c.attribute_count)}
        grid, block = (c.grid_x, c.grid_y, c.grid_z), (c.block_x, c.block_y, c.block_z)
        return self._launch(function, grid, block, attributes, c.stream, arguments, c.shared_bytes)

    # Memory, of which there are addresses alone.

    def cuMemAllocFromPoolAsync(self, out, size, pool, stream):
        freed = self.freed.get(size)
        address = freed.pop() if freed else self._next
        if address == self._next:
            self._next += -(-size // 512) * 512
        self._sizes[address] = size
        self.used += size
        _set(out, address)

    def cuMemFreeAsync(self, address, stream):
        size = self._sizes.pop(address)
        self.used -= size
        self.freed.setdefault(size, []).append(address)

    def cuMemcpyHtoDAsync_v2(self, to, source, size, stream):
        return 0

    def cuMemcpyDtoHAsync_v2(self, to, source, size, stream):
        ctypes.memset(_number(to), 0, size)

    def cuMemcpyDtoDAsync_v2(self, to, source, size, stream):
        return 0

    def cuMemsetD8Async(self, address, value, size, stream):
        return 0


def _assembled(ptxas: str, text: str) -> list[Code] | str:
    """What `ptxas` says about every entry of a text; why it does not take it, where it does not."""
    arch = re.search(r"^\.target (\w+)", text, re.MULTILINE)[1]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(text)
        command = [ptxas, "-v", f"-arch={arch}", "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return list(_entries(text, done.stderr + done.stdout)) if done.returncode == 0 else done.stderr[:600]


def _entries(text: str, said: str):
    warnings = tuple(line for line in said.splitlines() if "(C7" in line or "warning" in line.lower())
    for name, params, head in re.findall(r"\.entry (\w+)\(([^)]*)\)([^{]*)", text):
        part = said.split(f"Compiling entry function '{name}'", 1)[-1].split("Compiling entry function", 1)[0]

        def number(pattern, part=part):
            found = re.search(pattern, part)
            return int(found[1]) if found else 0

        threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)", head)
        spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
        yield Code(
            name,
            params.count(".param"),
            number(r"Used (\d+) registers"),
            number(r"(\d+) bytes stack frame"),
            spilled,
            number(r"(\d+) bytes smem"),
            number(r"used (\d+) barriers"),
            warnings,
            int(threads[1]) if threads else 0,
            text,
        )
