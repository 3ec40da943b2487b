"""`WgpuBackend` and `WgpuExecutable`: graphs to WGSL, and its runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Backend, CompileOptions, Executable, KernelTime, Prepared
from rlx.backends.kernel_times import timed
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.program import Preparation, Programs, build_programs
from rlx.backends.wgpu.arrays import DeviceArray, WgpuSpace
from rlx.backends.wgpu.code import wgsl_loading
from rlx.backends.wgpu.device import Gpu, open_gpu
from rlx.backends.wgpu.params import WgpuParams
from rlx.backends.wgpu.refusals import refuse_replaced_variables, refuse_unknown_types
from rlx.backends.wgpu.runner import Runner
from rlx.ir.graph import Graph
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.op import OP_CLASSES
from rlx.ir.shape import Size

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


class WgpuExecutable(Executable):
    """A program with its code, and those that make of its weights what can be made of them once. Threads may share
    one; their runs follow each other."""

    def __init__(self, compiled: CompileResult, programs: Programs, gpu: Gpu) -> None:
        self.compiled, self.programs, self._gpu = compiled, programs, gpu

    @staticmethod
    def of(compiled: CompileResult, gpu: Gpu) -> WgpuExecutable:
        return WgpuExecutable(compiled, build_programs(compiled, wgsl_loading()), gpu)

    @cached_property
    def space(self) -> WgpuSpace:  # type: ignore[override]
        return WgpuSpace.of(self._gpu)

    @cached_property
    def _main(self) -> Runner:
        return Runner(self.programs.main, self._gpu)

    @property
    def lir(self) -> LirModule:
        return self.compiled.lir

    @property
    def arena_bytes(self) -> Size:
        return self.programs.main.arena_size

    @property
    def report(self) -> CompileReport:
        return self.compiled.report("wgpu", where)

    def timed(self) -> AbstractContextManager[list[KernelTime]]:
        return timed()

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> WgpuParams:
        given = {**(before.values if before is not None else {}), **changed}
        made: dict[str, DeviceArray] = {}
        for preparation in self.programs.prepare:
            made.update(zip(preparation.results, self._made(preparation, given), strict=True))
        known = before if isinstance(before, WgpuParams) else None
        return WgpuParams(self.programs.main, self._gpu, given, made, known)

    def _made(self, preparation: Preparation, given: Mapping[str, Array]) -> list[DeviceArray]:
        params = WgpuParams(preparation.program, self._gpu, given)
        return Runner(preparation.program, self._gpu).run({}, params)

    def run(  # type: ignore[override]  # values of the device in and out
        self, inputs: Mapping[str, Array | DeviceArray], params: Mapping[str, Array] | Prepared
    ) -> list[DeviceArray]:
        """The outputs where they were computed. Nothing waits for them: reading one does."""
        return self._main.run(inputs, params if isinstance(params, WgpuParams) else self._params(params))

    @cached_property
    def _no_params(self) -> WgpuParams:
        return self.prepare({})

    def _params(self, params: Mapping[str, Array] | Prepared) -> WgpuParams:
        if not params and not isinstance(params, Prepared):
            return self._no_params
        return self.prepare(params.values if isinstance(params, Prepared) else params)


def where(graph: Graph, kernel: LirKernel) -> str:
    """Where a kernel runs, for reports."""
    from rlx.compile.report.report import place_of

    return place_of(graph, kernel, "native WGSL")
