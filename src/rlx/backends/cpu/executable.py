"""`CpuExecutable`: a compiled program of the CPU backend. Immutable, and safe to run from any number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Executable, Prepared
from rlx.backends.cpu.params import CpuParams
from rlx.backends.cpu.program import build_program
from rlx.backends.cpu.runner import Runner
from rlx.backends.cpu.threads import checked
from rlx.ir.lir import LirKernel
from rlx.kernels.targets import host

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report import CompileReport

_ELSEWHERE = {"view": "no code", "call": "host (no native kernel)"}


class CpuExecutable(Executable):
    """Two programs: one makes of the weights what can be made of them once, the other runs. Results do not depend on
    the number of threads."""

    def __init__(self, compiled: CompileResult, threads: int | None = None) -> None:
        self.compiled, self.lir = compiled, compiled.lir
        count = None if threads is None else checked(threads, "CompileOptions.threads")
        self._main = Runner(build_program(compiled.lir), count)
        self._preparation = None if compiled.prepare is None else Runner(build_program(compiled.prepare), count)
        self._no_params = None if self._main.program.params else CpuParams(self._main.program, {})

    @property
    def report(self) -> CompileReport:
        return self.compiled.report("cpu", where)

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None) -> CpuParams:
        given = {**(before.values if before is not None else {}), **changed}
        if self._preparation is None:
            return CpuParams(self._main.program, given)
        results = self._preparation.run({}, CpuParams(self._preparation.program, given))
        return CpuParams(self._main.program, given, dict(zip(self.compiled.prepared, results, strict=True)))

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        if isinstance(params, CpuParams):
            return self._main.run(inputs, params)
        values = params.values if isinstance(params, Prepared) else params
        return self._main.run(inputs, self._no_params or self.prepare(values))


def where(kernel: LirKernel) -> str:
    """Where a kernel runs, for reports."""
    return _ELSEWHERE.get(kernel.kind, f"native {host().name}")
