"""Kernels as code for WebGPU: loop IR in words of 32 bits. Text is made of it when it is known how memory is bound."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from functools import cache, cached_property
from weakref import WeakValueDictionary

import numpy as np

from rlx.backends.native.kernels import cache_key
from rlx.backends.program.program import Loading, LoopStep, NativeStep, Program
from rlx.errors import InternalError
from rlx.kernels.emit.wgsl_emit import argument_words, scratch_words, table_words
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Space
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import WGSL
from rlx.kernels.words.words import NotInWords, in_words

# What every implementation of WebGPU has: invocations of a workgroup, and bytes that they share.
MOST_THREADS, MOST_SHARED = 256, 16384

_numbers = itertools.count(1)


class WgslCode:
    """A kernel in words. `address` is a number that no other code of this process has."""

    def __init__(self, kernel: Kernel, key: str) -> None:
        self.name, self.key, self._kernel = kernel.name, key, kernel
        self.address = next(_numbers)
        buffers = [p for p in kernel.params if isinstance(p, Buffer)]
        # Of each parameter, in order: the bytes of its elements if it is a buffer, else 0.
        self.sizes = tuple(p.dtype.size_bytes if isinstance(p, Buffer) else 0 for p in kernel.params)
        self.writes = tuple(b.writes for b in buffers)
        self.words = in_words(legalize(kernel, WGSL))
        self.threads = kernel.thread_count
        self.argument_words, self.scratch_words = argument_words(self.words), scratch_words(self.words)
        self.tables = np.array(table_words(self.words), np.uint32)
        shared = sum(4 * (a.size or 0) for a in self.words.arrays if a.space is Space.SHARED)
        if self.threads > MOST_THREADS or shared > MOST_SHARED:
            raise NotInWords(
                f"kernel {kernel.name}: {self.threads} threads with {shared} bytes between them; WebGPU promises "
                f"{MOST_THREADS} and {MOST_SHARED}; use smaller sizes, or the device cpu"
            )

    @cached_property
    def anywhere(self) -> Kernel:
        """The same for elements that do not begin where a word does."""
        return in_words(legalize(self._kernel, WGSL), trusts_alignment=False)


class WgslKernel:
    """A kernel with its code."""

    def __init__(self, kernel: Kernel, code: WgslCode) -> None:
        self.kernel, self.code = kernel, code


class WgslLoader:
    """Makes code of kernels, of each once; safe to use from several threads."""

    def __init__(self) -> None:
        self._kernels: WeakValueDictionary[str, WgslKernel] = WeakValueDictionary()
        self._lock = threading.Lock()

    def load(self, kernel: Kernel) -> WgslKernel:
        form = iterations_as_threads(kernel)
        key = cache_key(form, WGSL)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                found = self._kernels[key] = WgslKernel(form, WgslCode(form, key))
            return found


@cache
def loader() -> WgslLoader:
    return WgslLoader()


@cache
def wgsl_loading() -> Loading:
    """How programs for WebGPU are made."""
    return Loading(WGSL, loader().load)


def codes_of(program: Program) -> dict[int, WgslCode]:
    """All code of a program and of the bodies of its loops, by its number."""
    return {code.address: code for code in _codes(program)}


def _codes(program: Program) -> Iterator[WgslCode]:
    for step in program.steps:
        if isinstance(step, NativeStep):
            if not isinstance(step.code, WgslCode):
                raise InternalError(f"@{program.name}: {step.label} was not compiled for WebGPU")
            yield step.code
        elif isinstance(step, LoopStep):
            for body in step.bodies:
                yield from _codes(body)
