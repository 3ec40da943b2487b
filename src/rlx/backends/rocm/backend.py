"""`RocmBackend`: graphs to executables for the AMD GPUs of this machine."""

from __future__ import annotations

from rlx.backends.api import CompileOptions, Executable
from rlx.backends.cuda.backend import DriverBackend
from rlx.backends.cuda.driver import Present
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.rocm.device import open_amd_gpu
from rlx.backends.rocm.executable import RocmExecutable
from rlx.backends.rocm.hip import probe
from rlx.ir.graph import Graph


class RocmBackend(DriverBackend):
    """`Session("rocm")`."""

    name = "rocm"

    def is_available(self) -> bool:
        return isinstance(probe(), Present)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = CompileOptions() if options is None else options
        return RocmExecutable.of(compile_with_options(graph, "rocm", options), open_amd_gpu(self._index))
