"""`TextGpuExecutable`: the programs of a graph on one device."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.api import Array
from rlx.backends.program.device_programs import DeviceExecutable
from rlx.backends.program.program import Program, build_programs
from rlx.backends.text_gpu.arrays import DeviceArray, GpuSpace
from rlx.backends.text_gpu.device import TextGpu
from rlx.backends.text_gpu.runner import Runner
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.lir import LirKernel

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report.report import CompileReport


class TextGpuExecutable(DeviceExecutable[DeviceArray]):
    """A program for one GPU. Threads may share it; their runs follow each other."""

    def __init__(self, compiled: CompileResult, gpu: TextGpu, language: str) -> None:
        super().__init__(compiled, build_programs(compiled, gpu.loader.loading))
        self._gpu, self._language = gpu, language

    @cached_property
    def space(self) -> GpuSpace:  # type: ignore[override]
        return GpuSpace.of(self._gpu)

    def _runner(self, program: Program) -> Runner:
        return Runner(program, self._gpu)

    def _put(self, array: Array, what: str) -> DeviceArray:
        return DeviceArray.of(self._gpu, array, what)

    @property
    def report(self) -> CompileReport:
        return self.compiled.report(self._gpu.name, self._where)

    def _where(self, graph: Graph, kernel: LirKernel) -> str:
        """Where a kernel runs, for reports."""
        from rlx.compile.report.report import place_of

        return place_of(graph, kernel, f"native {self._language}")


def refuse_doubles(graph: Graph, target: str, language: str) -> None:
    """An error that names the nodes, where a device has no f64."""
    from rlx.compile.claims.legalize import LegalizeError, Offender

    found = [n for n in graph.nodes if any(s.dtype in (DType.F64, DType.C128) for s in n.shapes)]
    if found:
        offenders = [Offender(n.id, n.op.mnemonic) for n in found]
        reasons = {n.op.mnemonic: f"{language} has no f64; cast to f32, or use the device cpu" for n in found}
        raise LegalizeError(target, offenders, reasons)
