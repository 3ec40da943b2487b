"""`CpuExecutable`: a compiled program of the CPU backend. Immutable, and safe to run from any number of threads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Executable, KernelTime, Prepared
from rlx.backends.cpu.params import CpuParams
from rlx.backends.cpu.prepared_store import prepared_store
from rlx.backends.cpu.program import HostStep, Programs, build_programs
from rlx.backends.cpu.runner import Runner
from rlx.backends.cpu.threads import checked
from rlx.backends.cpu.timing import timed
from rlx.backends.memory import drop_pages
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.shape import Size
from rlx.kernels.targets import host

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report import CompileReport

_ELSEWHERE = {"view": "no code", "call": "host (no native kernel)"}


class CpuExecutable(Executable):
    """Two programs: one makes of the weights what can be made of them once, the other runs. Results do not depend on
    the number of threads."""

    def __init__(
        self, programs: Programs, compile: Callable[[], CompileResult], threads: int | None = None, key: str = ""
    ) -> None:
        """`compile` gives what the programs were made of: programs from disk do without it until a report is wanted.
        `key` is what they are kept under, if they are."""
        self._compile, self.programs, self._key = compile, programs, key
        count = None if threads is None else checked(threads, "CompileOptions.threads")
        self._main = Runner(programs.main, count)
        self._preparation = None if programs.prepare is None else Runner(programs.prepare, count)
        self._no_params = None if self._main.program.params else CpuParams(self._main.program, {})

    @staticmethod
    def of(compiled: CompileResult, threads: int | None = None, key: str = "") -> CpuExecutable:
        """The executable of programs that have been compiled."""
        return CpuExecutable(build_programs(compiled), lambda: compiled, threads, key)

    @cached_property
    def compiled(self) -> CompileResult:
        return self._compile()

    @property
    def lir(self) -> LirModule:
        return self.compiled.lir

    @property
    def arena_bytes(self) -> Size:
        return self._main.program.arena_size

    def timed(self) -> AbstractContextManager[list[KernelTime]]:
        return timed()

    @property
    def report(self) -> CompileReport:
        return self.compiled.report("cpu", where)

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> CpuParams:
        given = {**(before.values if before is not None else {}), **changed}
        if self._preparation is None:
            return CpuParams(self._main.program, given)
        results = self._results(self._preparation, given, source)
        return CpuParams(self._main.program, given, dict(zip(self.programs.prepared, results, strict=True)))

    def _results(self, preparation: Runner, given: Mapping[str, Array], source: str) -> list[Array]:
        """What is made of weights, from disk if it is there. Kernels make it faster than it can be read; host calls
        take longer, and what they made for a known source is kept."""
        is_slow = any(isinstance(step, HostStep) for step in preparation.program.steps)
        store = prepared_store() if source and self._key and is_slow else None
        key = hashlib.sha256(f"{self._key} {source}".encode()).hexdigest()
        found = None if store is None else store.find(key)
        if found is not None and len(found) == len(self.programs.prepared):
            return found
        made = preparation.run({}, CpuParams(preparation.program, given))
        if store is None:
            return made
        # What was read is not needed again, and what comes now takes its place.
        drop_pages(given.values())
        store.keep(key, made)
        # Mapped memory can be dropped and read again by the system, memory of our own cannot.
        return store.find(key) or made

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        if isinstance(params, CpuParams):
            return self._main.run(inputs, params)
        values = params.values if isinstance(params, Prepared) else params
        return self._main.run(inputs, self._no_params or self.prepare(values))


def where(kernel: LirKernel) -> str:
    """Where a kernel runs, for reports."""
    return _ELSEWHERE.get(kernel.kind, f"native {host().name}")
