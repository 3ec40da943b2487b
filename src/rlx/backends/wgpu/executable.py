"""`WgpuBackend` and `WgpuExecutable`: graphs to WGSL, and its runs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Backend, CompileOptions, Executable
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.device_programs import DeviceExecutable
from rlx.backends.program.program import Program, Programs, build_programs
from rlx.backends.wgpu.arrays import DeviceArray, WgpuSpace
from rlx.backends.wgpu.code import wgsl_loading
from rlx.backends.wgpu.device import Gpu, open_gpu
from rlx.backends.wgpu.refusals import refuse_replaced_variables, refuse_unknown_types
from rlx.backends.wgpu.runner import Runner
from rlx.ir.graph import Graph
from rlx.ir.lir import LirKernel
from rlx.ir.op import OP_CLASSES

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report.report import CompileReport


class WgpuBackend(Backend):
    """`Session("wgpu")`; `variant` is the interface that is meant, as "vulkan"."""

    name = "wgpu"

    def __init__(self, index: int = 0, variant: str = "") -> None:
        self._index, self._variant = index, variant

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        refuse_replaced_variables()
        refuse_unknown_types(graph)
        options = CompileOptions() if options is None else options
        gpu = open_gpu(self._index, self._variant)
        return WgpuExecutable.of(compile_with_options(graph, "wgpu", options), gpu)


class WgpuExecutable(DeviceExecutable[DeviceArray]):
    """A program for one GPU. Threads may share it; their runs follow each other."""

    def __init__(self, compiled: CompileResult, programs: Programs, gpu: Gpu) -> None:
        super().__init__(compiled, programs)
        self._gpu = gpu

    @staticmethod
    def of(compiled: CompileResult, gpu: Gpu) -> WgpuExecutable:
        return WgpuExecutable(compiled, build_programs(compiled, wgsl_loading()), gpu)

    @cached_property
    def space(self) -> WgpuSpace:  # type: ignore[override]
        return WgpuSpace.of(self._gpu)

    def _runner(self, program: Program) -> Runner:
        return Runner(program, self._gpu)

    def _put(self, array: Array, what: str) -> DeviceArray:
        return DeviceArray.of(self._gpu, array, what)

    @property
    def report(self) -> CompileReport:
        return self.compiled.report("wgpu", where)


def where(graph: Graph, kernel: LirKernel) -> str:
    """Where a kernel runs, for reports."""
    from rlx.compile.report.report import place_of

    return place_of(graph, kernel, "native WGSL")
