"""The CPU backend: kernels from our own generator, walked as command tables by a pool of threads.

    program   LIR as code: kernels and host calls      plan      the same with sizes: command tables
    context   the memory of one run                    runner    a run, from checked inputs to outputs
    spmd      the native executor                      pool      its threads

What has no kernel yet is a `call`: the op's definition runs on the host, and the report says so.
"""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.cpu.executable import CpuExecutable as CpuExecutable
from rlx.ir.graph import Graph

NATIVE = ("Activation", "Binary", "Compare", "Where", "Cast", "MatMul", "Reshape")


class CpuBackend(Backend):
    """`Session("cpu")`."""

    name = "cpu"

    def supported_ops(self) -> frozenset[str]:
        return frozenset(NATIVE)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        from rlx.compile.compiler import CompilePipeline

        threads = options.threads if options is not None else None
        return CpuExecutable(CompilePipeline.new("cpu").compile(graph), threads)
