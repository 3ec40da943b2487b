"""Kernels as code for GPUs whose drivers compile text. Equal kernels have one code in a process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from rlx.backends.native.kernels import cache_key
from rlx.backends.program.program import Loading, LoopStep, NativeStep, Program
from rlx.errors import InternalError
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.ir.loop_ir import Buffer, Kernel
from rlx.kernels.machines import Machine

_numbers = itertools.count(1)


class TextCode:
    """A kernel of which text is made. `address` is a number that no other code of this process has."""

    def __init__(self, kernel: Kernel, key: str) -> None:
        self.name, self.key = kernel.name, key
        self.address = next(_numbers)
        # Of each parameter, in order: the bytes of its elements if it is a buffer, else 0.
        self.sizes = tuple(p.dtype.size_bytes if isinstance(p, Buffer) else 0 for p in kernel.params)
        self.threads = kernel.thread_count


class LoadedText:
    """A kernel with its code."""

    def __init__(self, kernel: Kernel, code: TextCode) -> None:
        self.kernel, self.code = kernel, code


class TextLoader:
    """Makes code of kernels, of each once; safe to use from several threads."""

    def __init__(self, machine: Machine, make: Callable[[Kernel, str], TextCode]) -> None:
        self._machine, self._make = machine, make
        self._kernels: WeakValueDictionary[str, LoadedText] = WeakValueDictionary()
        self._lock = threading.Lock()

    def load(self, kernel: Kernel) -> LoadedText:
        form = iterations_as_threads(kernel)
        key = cache_key(form, self._machine)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                found = self._kernels[key] = LoadedText(form, self._make(form, key))
            return found

    @property
    def loading(self) -> Loading:
        """How programs are made."""
        return Loading(self._machine, self.load)


def codes_of(program: Program) -> dict[int, TextCode]:
    """All code of a program and of the bodies of its loops, by its number."""
    return {code.address: code for code in _codes(program)}


def _codes(program: Program) -> Iterator[TextCode]:
    for step in program.steps:
        if isinstance(step, NativeStep):
            if not isinstance(step.code, TextCode):
                raise InternalError(f"@{program.name}: {step.label} was not compiled for a GPU by text")
            yield step.code
        elif isinstance(step, LoopStep):
            for body in step.bodies:
                yield from _codes(body)
