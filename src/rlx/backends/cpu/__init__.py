"""The CPU backend: kernels from our own generator, walked as command tables by a pool of threads.

    context   the memory of one run                    executor  the native code that walks the tables
    runner    a run, from checked inputs to outputs    pool      its threads

`rlx.backends.program` has what a program is, with sizes (`plan`) and without, and how it is kept on disk.

What has no kernel yet is a `call`: the op's definition runs on the host, and the report says so.
"""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.cpu.executable import CpuExecutable as CpuExecutable
from rlx.backends.cpu.executor import executor as native_executor
from rlx.backends.cpu.executor import start_executor
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.program_cache import SMALL, find_programs, keep_programs, program_key
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES
from rlx.kernels.emit.llvm_pages import drop_llvm_pages


class CpuBackend(Backend):
    """`Session("cpu")`."""

    name = "cpu"

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = CompileOptions() if options is None else options
        key = program_key(graph, options)
        found = None if key is None else find_programs(key)
        if found is not None:
            # A copy: the caller may go on changing the graph.
            compiled = graph.copy()
            return CpuExecutable(
                found, lambda: compile_with_options(compiled, "cpu", options), options.threads, key or ""
            )
        start_executor()
        executable = CpuExecutable.of(compile_with_options(graph, "cpu", options), options.threads, key or "")
        if key is not None:
            keep_programs(key, executable.programs)
        if key is not None and len(graph.nodes) >= SMALL:
            # The first run would load LLVM again for it.
            native_executor()
            drop_llvm_pages()
        return executable
