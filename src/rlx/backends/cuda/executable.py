"""`CudaExecutable`: a compiled program for NVIDIA GPUs. Immutable, and safe to run from any number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Executable, KernelTime, Prepared
from rlx.backends.cuda.arrays import CudaSpace, DeviceArray
from rlx.backends.cuda.code import GpuCode, gpu_loading
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.params import CudaParams
from rlx.backends.cuda.runner import Runner
from rlx.backends.kernel_times import timed
from rlx.backends.program.program import NativeStep, Preparation, Programs, build_programs
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.shape import Size

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report.report import CompileReport


class CudaExecutable(Executable):
    """A program with its code, and those that make of its weights what can be made of them once."""

    def __init__(self, compiled: CompileResult, programs: Programs, arch: str, gpu: Gpu | None) -> None:
        """Without a `gpu` there is code to look at, and nothing runs."""
        self.compiled, self.programs, self.arch, self._gpu = compiled, programs, arch, gpu

    @staticmethod
    def of(compiled: CompileResult, gpu: Gpu | None = None, arch: str | None = None) -> CudaExecutable:
        """The executable of programs that have been compiled, for the chip that `gpu` is, or for `arch`."""
        if arch is None:
            if gpu is None:
                raise BackendError("cuda: an architecture is needed where there is no GPU; pass arch='sm_90a'")
            arch = gpu.info.arch
        return CudaExecutable(compiled, build_programs(compiled, gpu_loading(arch)), arch, gpu)

    @cached_property
    def space(self) -> CudaSpace | None:  # type: ignore[override]
        return None if self._gpu is None else CudaSpace.of(self._gpu)

    @cached_property
    def _main(self) -> Runner:
        if self._gpu is None:
            raise BackendError(f"cuda: this program was compiled for {self.arch} without a GPU, and cannot run here")
        return Runner(self.programs.main, self._gpu)

    @property
    def lir(self) -> LirModule:
        return self.compiled.lir

    @property
    def arena_bytes(self) -> Size:
        return self.programs.main.arena_size

    @property
    def report(self) -> CompileReport:
        return self.compiled.report("cuda", self._where)

    def _where(self, graph: Graph, kernel: LirKernel) -> str:
        """Where a kernel runs, with the ways on tensor cores that it has, or why it has none."""
        from rlx.compile.report.report import place_of

        ops = " + ".join(graph.nodes[n].op.mnemonic for n in kernel.nodes)
        ways = self._ways.get((kernel.kind, ops), "")
        return place_of(graph, kernel, f"native {self.arch}{ways}")

    @cached_property
    def _ways(self) -> dict[tuple[str, str], str]:
        """By the label of a kernel; those of one label that differ are told one after the other."""
        found: dict[tuple[str, str], dict[str, None]] = {}
        for step in self.programs.main.steps:
            if isinstance(step, NativeStep) and isinstance(step.code, GpuCode):
                code = step.code
                text = " or ".join(form.name for form in code.forms) or (code.refusal and f"loops: {code.refusal}")
                found.setdefault(step.label, {})[text] = None
        joined = {label: "; ".join(filter(None, texts)) for label, texts in found.items()}
        return {label: f" ({text})" for label, text in joined.items() if text}

    def timed(self) -> AbstractContextManager[list[KernelTime]]:
        return timed()

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> CudaParams:
        main = self._main
        given = {**(before.values if before is not None else {}), **changed}
        made: dict[str, DeviceArray] = {}
        for preparation in self.programs.prepare:
            made.update(zip(preparation.results, self._made(main.gpu, preparation, given), strict=True))
        known = before if isinstance(before, CudaParams) else None
        return CudaParams(main.program, main.stream, given, made, known)

    def _made(self, gpu: Gpu, preparation: Preparation, given: Mapping[str, Array]) -> list[DeviceArray]:
        params = CudaParams(preparation.program, gpu.stream, given)
        return Runner(preparation.program, gpu).run({}, params)

    def run(  # type: ignore[override]  # values of the device in and out
        self, inputs: Mapping[str, Array | DeviceArray], params: Mapping[str, Array] | Prepared
    ) -> list[DeviceArray]:
        """The outputs where they were computed. Nothing waits for them: reading one does."""
        return self._main.run(inputs, params if isinstance(params, CudaParams) else self._params(params))

    @cached_property
    def _no_params(self) -> CudaParams:
        return self.prepare({})

    def _params(self, params: Mapping[str, Array] | Prepared) -> CudaParams:
        if not params and not isinstance(params, Prepared):
            return self._no_params
        return self.prepare(params.values if isinstance(params, Prepared) else params)
