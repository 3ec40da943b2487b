"""`RocmBackend`: graphs to executables for the AMD GPUs of this machine."""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.cuda.driver import Present
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.rocm.device import open_amd_gpu
from rlx.backends.rocm.executable import RocmExecutable
from rlx.backends.rocm.hip import probe
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES


class RocmBackend(Backend):
    """`Session("rocm")`."""

    name = "rocm"

    def __init__(self, index: int = 0) -> None:
        self._index = index

    def is_available(self) -> bool:
        return isinstance(probe(), Present)

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = CompileOptions() if options is None else options
        return RocmExecutable.of(compile_with_options(graph, "rocm", options), open_amd_gpu(self._index))
