"""Kernels as code for WebAssembly: loop IR -> relocatable objects; the linker makes one module of all of a program."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from weakref import WeakValueDictionary

from rlx.backends.native.code_cache import object_cache
from rlx.backends.native.kernels import cache_key
from rlx.backends.program.program import ConstantValue, Loading, LoopStep, NativeStep, Program
from rlx.backends.wasm.linker import Export, Linked, link
from rlx.errors import InternalError
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import WASM, Machine

_numbers = itertools.count(1)


class WasmCode:
    """The object of a kernel. `address` is a number that no other code of this process has."""

    def __init__(self, name: str, key: str, code: bytes) -> None:
        self.name, self.key, self.code = name, key, code
        self.address = next(_numbers)


class WasmKernel:
    """A kernel with its code."""

    def __init__(self, kernel: Kernel, code: WasmCode) -> None:
        self.kernel, self.code = kernel, code


class WasmLoader:
    """Makes objects of kernels, of each once; safe to use from several threads."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._kernels: WeakValueDictionary[str, WasmKernel] = WeakValueDictionary()
        self._lock = threading.Lock()

    def load(self, kernel: Kernel) -> WasmKernel:
        key = cache_key(kernel, self.machine)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                found = self._kernels[key] = WasmKernel(kernel, WasmCode(kernel.name, key, self._object(kernel, key)))
            return found

    def _object(self, kernel: Kernel, key: str) -> bytes:
        objects = object_cache()
        code = objects.get(key) if objects is not None else None
        if code is None:
            from rlx.kernels.emit.llvm_codegen import compile_object

            code = compile_object(kernel, self.machine)
            if objects is not None:
                objects.put(key, code)
        return code


# The same with a product and a sum as one instruction, rounded once or twice as the chip does it faster. Chromium has
# it since 2023, Safari does not.
RELAXED = replace(WASM, name="wasm32-relaxed", features=f"{WASM.features},+relaxed-simd")


@cache
def wasm_loading(machine: Machine = WASM) -> Loading:
    """How programs for WebAssembly are made."""
    return Loading(machine, WasmLoader(machine).load)


def steps_inside(program: Program) -> Iterator[NativeStep | LoopStep]:
    """The kernels and loops of a program, with those of the bodies of loops."""
    for step in program.steps:
        if isinstance(step, NativeStep | LoopStep):
            yield step
        if isinstance(step, LoopStep):
            for body in step.bodies:
                yield from steps_inside(body)


def constants_inside(program: Program) -> Iterator[ConstantValue]:
    """The constants of a program, with those of the bodies of loops."""
    yield from program.constants
    for step in program.steps:
        if isinstance(step, LoopStep):
            for body in step.bodies:
                yield from constants_inside(body)


def codes_of(*programs: Program) -> dict[int, WasmCode]:
    """All code of programs, by its number."""
    found: dict[int, WasmCode] = {}
    for program in programs:
        for step in steps_inside(program):
            if isinstance(step, NativeStep):
                if not isinstance(step.code, WasmCode):
                    raise InternalError(f"@{program.name}: {step.label} was not compiled for WebAssembly")
                found[step.code.address] = step.code
    return found


def export_names(codes: dict[int, WasmCode]) -> dict[int, str]:
    """What a module calls its kernels, by the numbers of their code: short names, since a page loads them."""
    return {number: f"k{position}" for position, number in enumerate(codes)}


def link_codes(codes: dict[int, WasmCode]) -> Linked:
    """The module of all kernels, under their `export_names`."""
    names = export_names(codes)
    return link([Export(names[n], packed_symbol(c.name), c.code, f"kernel {c.name}") for n, c in codes.items()])
