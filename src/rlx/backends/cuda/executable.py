"""`CudaExecutable`: a compiled program for NVIDIA GPUs. Immutable, and safe to run from any number of threads."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.api import Array
from rlx.backends.cuda.arrays import CudaSpace, DeviceArray
from rlx.backends.cuda.code import GpuCode, gpu_loading
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.runner import Runner
from rlx.backends.program.device_programs import DeviceExecutable
from rlx.backends.program.program import NativeStep, Program, Programs, build_programs
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.ir.lir import LirKernel

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report.report import CompileReport


class CudaExecutable(DeviceExecutable[DeviceArray]):
    """A program for one kind of GPU."""

    device: ClassVar[str] = "cuda"

    def __init__(self, compiled: CompileResult, programs: Programs, arch: str, gpu: Gpu | None) -> None:
        """Without a `gpu` there is code to look at, and nothing runs."""
        super().__init__(compiled, programs)
        self.arch, self._gpu = arch, gpu

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

    def _runner(self, program: Program) -> Runner:
        return Runner(program, self._gpu_here)

    def _put(self, array: Array, what: str) -> DeviceArray:
        return DeviceArray.of(array, self._gpu_here.stream, what)

    @property
    def _gpu_here(self) -> Gpu:
        if self._gpu is None:
            raise BackendError(
                f"{self.device}: this program was compiled for {self.arch} without a GPU, and cannot run here"
            )
        return self._gpu

    @property
    def report(self) -> CompileReport:
        return self.compiled.report(self.device, self._where)

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
