"""`WasmBackend` and `WasmExecutable`: graphs to WebAssembly that runs in this process, through wasmtime."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Backend, CompileOptions, Executable, KernelTime, Prepared
from rlx.backends.kernel_times import timed
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.loop_plan import working_bytes
from rlx.backends.program.params import CpuParams
from rlx.backends.program.program import Programs, build_programs
from rlx.backends.wasm.code import wasm_loading
from rlx.backends.wasm.runner import Runner
from rlx.ir.graph import Graph
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.op import OP_CLASSES
from rlx.ir.shape import Size

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report.report import CompileReport


class WasmBackend(Backend):
    """`Session("wasm")`."""

    name = "wasm"

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = CompileOptions() if options is None else options
        return WasmExecutable.of(compile_with_options(graph, "wasm", options))


class WasmExecutable(Executable):
    """A program with its code, and those that make of its weights what can be made of them once. Threads may share
    one; their runs follow each other."""

    def __init__(self, compiled: CompileResult, programs: Programs) -> None:
        self.compiled, self.programs = compiled, programs

    @staticmethod
    def of(compiled: CompileResult) -> WasmExecutable:
        return WasmExecutable(compiled, build_programs(compiled, wasm_loading()))

    @cached_property
    def _main(self) -> Runner:
        return Runner(self.programs.main)

    @property
    def lir(self) -> LirModule:
        return self.compiled.lir

    @property
    def arena_bytes(self) -> Size:
        return working_bytes(self.programs.main)

    @property
    def report(self) -> CompileReport:
        return self.compiled.report("wasm", where)

    def timed(self) -> AbstractContextManager[list[KernelTime]]:
        return timed()

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> CpuParams:
        given = {**(before.values if before is not None else {}), **changed}
        made: dict[str, Array] = {}
        for preparation in self.programs.prepare:
            results = Runner(preparation.program).run({}, CpuParams(preparation.program, given))
            made.update(zip(preparation.results, results, strict=True))
        return CpuParams(self.programs.main, given, made)

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        if not isinstance(params, CpuParams):
            params = self.prepare(params.values if isinstance(params, Prepared) else params)
        return self._main.run(inputs, params)


def where(graph: Graph, kernel: LirKernel) -> str:
    """Where a kernel runs, for reports."""
    from rlx.compile.report.report import place_of

    return place_of(graph, kernel, "native wasm32")
