"""`MetalBackend`: graphs to Metal's shading language, and its runs."""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.metal.device import open_gpu
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.text_gpu.executable import TextGpuExecutable, refuse_doubles
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES


class MetalBackend(Backend):
    """`Session("metal")`."""

    name = "metal"

    def __init__(self, index: int = 0) -> None:
        self._index = index

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        gpu = open_gpu(self._index)
        refuse_doubles(graph, "metal", "Metal")
        options = CompileOptions() if options is None else options
        return TextGpuExecutable(compile_with_options(graph, "metal", options), gpu, "Metal")
