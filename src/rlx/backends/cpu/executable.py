"""`CpuExecutable`: a compiled program of the CPU backend. Immutable, and safe to run from any number of threads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlx.backends.api import Array, Executable, Guards, KernelTime, Prepared, ShortCall
from rlx.backends.cpu.preparer import Preparer
from rlx.backends.cpu.runner import Runner
from rlx.backends.cpu.threads import checked
from rlx.backends.donation import Held
from rlx.backends.kernel_times import timed
from rlx.backends.memory import drop_pages
from rlx.backends.program.loop_plan import working_bytes
from rlx.backends.program.params import CpuParams
from rlx.backends.program.prepared_store import prepared_store
from rlx.backends.program.program import Preparation, Programs, build_programs
from rlx.ir.graph import Graph
from rlx.ir.shape import Size
from rlx.kernels.machines import host
from rlx.kernels.tuning import is_trying, tuned_stamp

if TYPE_CHECKING:
    from rlx.backends.program.signature import Signature
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report.report import CompileReport, Where
    from rlx.ir.lir import LirKernel, LirModule


class CpuExecutable(Executable):
    """A program that runs, and those that make of its weights what can be made of them once. Results do not depend on
    the number of threads."""

    def __init__(
        self, programs: Programs, compile: Callable[[], CompileResult], threads: int | None = None, key: str = ""
    ) -> None:
        """`compile` gives what the programs were made of: programs from disk do without it until a report is wanted.
        `key` is what they are kept under, if they are."""
        self._compile, self.programs, self._key = compile, programs, key
        self._threads = None if threads is None else checked(threads, "CompileOptions.threads")
        self._main = Runner(programs.main, self._threads)
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
        return working_bytes(self._main.program)

    def timed(self) -> AbstractContextManager[list[KernelTime]]:
        return timed()

    def save(self, path: str, signature: Signature, prepared: Prepared | None, weights: str) -> None:
        # Reading a file makes executables, so that the module stands on this one.
        from rlx.backends.cpu.saved_programs import save_program

        save_program(path, signature, self.programs, prepared, weights)

    @property
    def report(self) -> CompileReport:
        needed, arena = self.arena_bytes, self._main.program.arena_size
        notes = () if needed == arena else (f"arena with what loops need inside: {needed} bytes",)
        return self.compiled.report("cpu", where_tuned(self.lir), notes)

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> CpuParams:
        given = {**(before.values if before is not None else {}), **changed}
        made: dict[str, Array] = {}
        for preparation in self.programs.prepare:
            made.update(zip(preparation.results, self._made(preparation, given, source), strict=True))
        return CpuParams(self._main.program, given, made)

    def _made(self, preparation: Preparation, given: Mapping[str, Array], source: str) -> Sequence[Array]:
        """What a program makes of weights, from disk if it is there. Kernels make it faster than it can be read; host
        calls take longer, and what they made for a known source is kept."""
        store = prepared_store() if source and self._key and not preparation.is_native else None
        if store is None:
            return self._run_once(preparation, given)
        key = hashlib.sha256(" ".join([self._key, source, *preparation.results]).encode()).hexdigest()
        found = store.find(key)
        if found is None:
            made = self._run_once(preparation, given)
            if not store.keep(key, made):
                return made
            # Mapped memory can be dropped and read again by the system, memory of our own cannot.
            del made
            found = store.find(key)
        return found if found is not None else self._run_once(preparation, given)

    def _run_once(self, preparation: Preparation, given: Mapping[str, Array]) -> Sequence[Array]:
        """The results of a preparation. Neither its arena stays in memory nor weights that lie in a mapped file."""
        params = CpuParams(preparation.program, given)
        results = Preparer(preparation.program, self._threads).run({}, params)
        drop_pages(params.arrays)
        return results

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        return self._main.run(inputs, params if isinstance(params, CpuParams) else self._params(params))

    def run_plain(self, arrays: Sequence[Any], params: Prepared) -> list[Array] | None:
        return self._main.run_plain(arrays, params) if isinstance(params, CpuParams) else None

    @property
    def has_short_calls(self) -> bool:
        return self._main.has_short_calls

    def short_call(self, params: Prepared, result_class: type, guards: Guards = ()) -> ShortCall | None:
        return self._main.short_call(params, result_class, guards) if isinstance(params, CpuParams) else None

    def hold(self, results: Sequence[Array], homes: Mapping[str, int]) -> Held | None:
        return self._main.hold(results, homes)

    def run_held(
        self, held: Held, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared
    ) -> list[Array] | None:
        return self._main.run_held(held, inputs, params if isinstance(params, CpuParams) else self._params(params))

    def _params(self, params: Mapping[str, Array] | Prepared) -> CpuParams:
        return self._no_params or self.prepare(params.values if isinstance(params, Prepared) else params)


def where(graph: Graph, kernel: LirKernel) -> str:
    """Where a kernel runs, for reports."""
    from rlx.compile.report.report import place_of

    return place_of(graph, kernel, f"native {host().name}")


def where_tuned(lir: LirModule) -> Where:
    """`where`, with the parameters of kernels for which `rlx tune` has found others than the usual."""
    if not is_trying() and not tuned_stamp():
        return where
    from rlx.compile.memory.lir_liveness import steps_of
    from rlx.kernels.tunable import shown, sites

    steps = steps_of(lir)
    tuned = {steps[n]: shown(s.used) for n, s in sites(lir).items() if s.used != s.sets[0]}

    def told(graph: Graph, kernel: LirKernel) -> str:
        return where(graph, kernel) + (f", tuned: {tuned[kernel]}" if kernel in tuned else "")

    return told
