"""`RocmExecutable`: a compiled program for AMD GPUs. Immutable, and safe to run from any number of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.program.program import build_programs
from rlx.backends.rocm.code import amd_loading, joined_code_object
from rlx.errors import BackendError

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult


class RocmExecutable(CudaExecutable):
    """A program for one AMD chip."""

    device: ClassVar[str] = "rocm"

    @staticmethod
    def of(compiled: CompileResult, gpu: Gpu | None = None, arch: str | None = None) -> RocmExecutable:
        """The executable of programs that have been compiled, for the chip that `gpu` is, or for `arch`."""
        if arch is None:
            if gpu is None:
                raise BackendError("rocm: an architecture is needed where there is no GPU; pass arch='gfx942'")
            arch = gpu.info.arch
        return RocmExecutable(compiled, build_programs(compiled, amd_loading(arch)), arch, gpu)

    def code_object(self) -> bytes:
        """All kernels in one code object, those that prepare weights too."""
        return joined_code_object([self.programs.main, *(p.program for p in self.programs.prepare)])
