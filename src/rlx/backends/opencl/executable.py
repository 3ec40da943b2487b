"""`OpenClBackend`: graphs to OpenCL C, and its runs."""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.opencl.device import open_gpu
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.text_gpu.executable import TextGpuExecutable, refuse_doubles
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES


class OpenClBackend(Backend):
    """`Session("opencl")`."""

    name = "opencl"

    def __init__(self, index: int = 0) -> None:
        self._index = index

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        gpu = open_gpu(self._index)
        if not gpu.device.has_f64:
            refuse_doubles(graph, "opencl", str(gpu.device))
        options = CompileOptions() if options is None else options
        return TextGpuExecutable(compile_with_options(graph, "opencl", options), gpu, "OpenCL C")
