"""`CudaExecutable`: a compiled program for NVIDIA GPUs. Immutable, and safe to run from any number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.api import Array, Guards, Prepared, ShortCall
from rlx.backends.cuda.arrays import CudaSpace, DeviceArray
from rlx.backends.cuda.code import GpuCode, gpu_loading
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.launching import block_shared_bytes
from rlx.backends.cuda.persistent.matching import decode_step
from rlx.backends.cuda.persistent.plan import MOST_BATCH, Plan
from rlx.backends.cuda.persistent.runner import Decoding, machine_refusal
from rlx.backends.cuda.persistent.step import Step, Unfit
from rlx.backends.cuda.runner import Runner
from rlx.backends.program.device_programs import DeviceExecutable, DeviceParams
from rlx.backends.program.program import NativeStep, Program, Programs, build_programs
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.ir.leaves import Input
from rlx.ir.lir import LirKernel
from rlx.kernels.machines import machine_named
from rlx.knobs import knobs

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.compile.report.report import CompileReport

# Multiprocessors that a report counts with where there is no GPU.
H200_BLOCKS = 132


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
        return Runner(program, self._gpu_here, self._decoding if program is self.programs.main else None)

    @property
    def has_short_calls(self) -> bool:
        return bool(self._main.has_short_calls)

    def short_call(self, params: Prepared, result_class: type, guards: Guards = ()) -> ShortCall | None:
        if not isinstance(params, DeviceParams):
            return None
        found: ShortCall | None = self._main.short_call(params, result_class, guards)
        return found

    @cached_property
    def _decode_step(self) -> Step | str:
        """What one token of a decoder does, for one kernel; or why this program has no such step."""
        refusal = machine_refusal(machine_named(self.arch))
        if refusal:
            return refusal
        try:
            return decode_step(self.compiled.lir.as_graph())
        except Unfit as reason:
            return str(reason)

    @cached_property
    def _decoding(self) -> Decoding | None:
        if self._gpu is None or isinstance(self._decode_step, str):
            return None
        try:
            return Decoding(self._decode_step, self.programs.main, self._gpu)
        except Unfit as reason:
            # The report says so.
            self._decode_step = str(reason)
            return None

    @property
    def _notes(self) -> tuple[str, ...]:
        """How a decoder runs its steps. Programs without caches are none."""
        if not any(
            isinstance(leaf.op, Input) and leaf.op.key == "kv_len" for leaf in self.compiled.lir.as_graph().inputs
        ):
            return ()
        step = self._decode_step
        if isinstance(step, str):
            return (f"decode: a graph of kernels, not one kernel: {step}",)
        blocks = self._gpu.info.multiprocessors if self._gpu is not None else H200_BLOCKS
        limit = block_shared_bytes(machine_named(self.arch))
        fitting, reason = [], ""
        for batch in range(1, MOST_BATCH + 1):
            try:
                Plan(step, batch, blocks, limit)
                fitting.append(batch)
            except Unfit as found:
                reason = reason or f"; {batch} do not fit: {found}"
        if not fitting:
            return (f"decode: a graph of kernels, not one kernel{reason}",)
        form = f"one kernel for up to {fitting[-1]} sequences with one new token each{reason}"
        if not knobs.cuda_one_kernel:
            return (f"decode: a graph of kernels, since RLX_CUDA_ONE_KERNEL=0; without it {form}",)
        return (f"decode: {form}",)

    runs_ahead = True

    def run_ahead(  # type: ignore[override]  # values of the device in and out
        self, inputs: Mapping[str, Array | DeviceArray], params: DeviceParams[DeviceArray], moves: Array, steps: int
    ) -> list[DeviceArray] | None:
        found: list[DeviceArray] | None = self._main.run_ahead(inputs, params, moves, steps)
        return found

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
        return self.compiled.report(self.device, self._where, self._notes)

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
