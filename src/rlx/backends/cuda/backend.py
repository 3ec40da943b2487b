"""`CudaBackend`: graphs to executables for the NVIDIA GPUs of this machine."""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.driver import Present, probe
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES


class CudaBackend(Backend):
    """`Session("cuda")`."""

    name = "cuda"

    def __init__(self, index: int = 0) -> None:
        self._index = index

    def is_available(self) -> bool:
        return isinstance(probe(), Present)

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = CompileOptions() if options is None else options
        return CudaExecutable.of(compile_with_options(graph, "cuda", options), open_gpu(self._index))
