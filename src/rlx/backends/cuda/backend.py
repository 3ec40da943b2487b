"""`CudaBackend`: graphs to executables for the NVIDIA GPUs of this machine."""

from __future__ import annotations

from rlx import env
from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.driver import Present, probe
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES

# Variables of the environment that have a meaning elsewhere, and what is written here instead.
REPLACED = {
    "RLX_CUDA_WMMA": "products are never rounded unasked; compile with the precision 'AutoMixed' or 'AutoMixedBf16'",
    "RLX_CUDA_PTX_CACHE": "set RLX_CACHE_DIR, the directory of all compiled code",
    "RLX_CUDA_LOG_FALLBACK": "set RLX_DISPATCH_REPORT=1, or print the report of a compiled program",
    "RLX_UMAP_CUDA_FUSED_KNN": "nearest neighbours are ordinary ops, and fused like all others",
}


def refuse_replaced_variables() -> None:
    for name, instead in REPLACED.items():
        if env.named(name):
            raise BackendError(f"cuda: the environment variable {name} is not read; {instead}. Unset it.")


class DriverBackend(Backend):
    """What backends over a driver share: a device by its number, and kernels for all ops."""

    def __init__(self, index: int = 0) -> None:
        self._index = index

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)


class CudaBackend(DriverBackend):
    """`Session("cuda")`."""

    name = "cuda"

    def is_available(self) -> bool:
        return isinstance(probe(), Present)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        refuse_replaced_variables()
        options = CompileOptions() if options is None else options
        gpu = open_gpu(self._index)
        return CudaExecutable.of(compile_with_options(graph, "cuda", options, gpu.info.arch), gpu)
