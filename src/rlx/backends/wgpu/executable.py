"""`WgpuBackend`: graphs to WGSL, and its runs."""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.text_gpu.executable import TextGpuExecutable, refuse_doubles
from rlx.backends.wgpu.device import open_gpu
from rlx.backends.wgpu.refusals import refuse_replaced_variables
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES


class WgpuBackend(Backend):
    """`Session("wgpu")`; `variant` is the interface that is meant, as "vulkan"."""

    name = "wgpu"

    def __init__(self, index: int = 0, variant: str = "") -> None:
        self._index, self._variant = index, variant

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        refuse_replaced_variables()
        refuse_doubles(graph, "wgpu", "WGSL")
        options = CompileOptions() if options is None else options
        gpu = open_gpu(self._index, self._variant)
        return TextGpuExecutable(compile_with_options(graph, "wgpu", options), gpu, "WGSL")
