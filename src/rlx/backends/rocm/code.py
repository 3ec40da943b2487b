"""Kernels as code objects for AMD's GPUs: loop IR -> object code by LLVM -> a code object by our linker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property

from rlx.backends.cuda.code import GpuCode, PtxLoader, disk_cache
from rlx.backends.cuda.context import codes_of
from rlx.backends.cuda.device import Gpu
from rlx.backends.native.object_cache import DiskCache
from rlx.backends.program.program import HostStep, Loading, LoopStep, Program
from rlx.backends.rocm.blas import blas_forms
from rlx.backends.rocm.link import link_code_object
from rlx.errors import BackendError, InternalError
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import AMD_CHIPS, Machine


def code_object(kernel: Kernel, machine: Machine) -> bytes:
    """The code object of one kernel."""
    from rlx.kernels.emit.llvm_codegen import compile_object

    return link_code_object([compile_object(kernel, machine)])


def joined_code_object(programs: Sequence[Program]) -> bytes:
    """One code object with all kernels of programs, each once and under a name of its own."""
    kernels: dict[str, tuple[Kernel, Machine]] = {}
    for program in programs:
        _refuse_host_steps(program)
        for code in codes_of(program).values():
            assert isinstance(code, AmdCode)
            kernels[code.key] = (code.kernel, code.machine)
    from rlx.kernels.emit.llvm_codegen import compile_object

    names, objects = set[str](), []
    for kernel, machine in kernels.values():
        name, number = kernel.name, 1
        while name in names:
            number += 1
            name = f"{kernel.name}_{number}"
        names.add(name)
        objects.append(compile_object(Kernel(name, kernel.params, kernel.arrays, kernel.body), machine))
    return link_code_object(objects)


def _refuse_host_steps(program: Program) -> None:
    for step in program.steps:
        if isinstance(step, HostStep):
            raise BackendError(f"rocm: {step.op.mnemonic} has no GPU kernel; the program uses it in {step.node}")
        if isinstance(step, LoopStep):
            for body in step.bodies:
                _refuse_host_steps(body)


class AmdCode(GpuCode):
    """The code object of a kernel, made when it is first needed."""

    def __init__(
        self,
        kernel: Kernel,
        machine: Machine,
        key: str,
        aligned: tuple[tuple[int, int], ...] = (),
        anywhere: Callable[[], GpuCode] | None = None,
    ) -> None:
        super().__init__(kernel.name, key, self._no_ptx, kernel.thread_count, aligned, anywhere)
        self.kernel, self.machine = kernel, machine

    @cached_property
    def image(self) -> bytes:
        """From disk, else made and kept there."""
        images = code_object_cache()
        kept = images.get(self.key) if images is not None else None
        if kept is None:
            kept = code_object(self.kernel, self.machine)
            if images is not None:
                images.put(self.key, kept)
        return kept

    def _image(self, gpu: Gpu) -> bytes:
        return self.image

    def _no_ptx(self) -> str:
        raise InternalError(f"kernel {self.name} is for an AMD GPU, which has no PTX")


class CodeObjectLoader(PtxLoader):
    """Makes code objects of kernels for one AMD GPU, of each once; safe to use from several threads."""

    def _made(
        self, kernel: Kernel, key: str, aligned: tuple[tuple[int, int], ...], anywhere: Callable[[], GpuCode] | None
    ) -> GpuCode:
        code = AmdCode(kernel, self.machine, key, aligned, anywhere)
        code.forms = blas_forms(kernel, self.machine)
        return code


def amd_loading(arch: str) -> Loading:
    """How programs for an AMD GPU are made."""
    loader = code_object_loader(arch)
    return Loading(loader.machine, loader.load)


def amd_machine(arch: str) -> Machine:
    """One of the chips that kernels are made for."""
    for chip in AMD_CHIPS:
        if chip.name == arch:
            return chip
    known = ", ".join(chip.name for chip in AMD_CHIPS)
    raise BackendError(f"rocm: no kernels are made for the architecture {arch!r}; use one of: {known}")


@cache
def code_object_loader(arch: str) -> CodeObjectLoader:
    return CodeObjectLoader(amd_machine(arch))


@cache
def code_object_cache() -> DiskCache | None:
    return disk_cache("code_objects")
