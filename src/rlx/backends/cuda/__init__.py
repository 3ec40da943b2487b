"""NVIDIA GPUs: the same kernels through LLVM's NVPTX target and the driver. Making PTX needs no GPU, running it no
toolkit.

    driver (driver_types, errors)   libcuda, every call checked      device    a GPU: what it is, its context and memory
    streams                         streams, events, graphs          memory    pools, copies through pinned memory
    modules                         assembled code and launches      timing    measuring so that readings compare
    code (alignment)                kernels as PTX and cubins, kept on disk
    executable, runner, context     a program's run: arena, launches, graphs of those that come again
    hopper/                         products and attention on the tensor cores of sm_90a
    dlpack                          arrays of other libraries, and ours for them
"""

from __future__ import annotations

from typing import Any

from rlx.compile.pipeline import lower_to_lir
from rlx.errors import BackendError
from rlx.ir.kernel_kind import CALL, LOOP, VIEW
from rlx.kernels.from_lir import generator, make_kernel


def compile_to_ptx(program: Any, arch: str = "sm_90a") -> str:
    """The PTX of every kernel of a program, one after the other; an op without a kernel is an error that names it."""
    from rlx.kernels.emit.llvm_codegen import compile_assembly
    from rlx.kernels.machines import machine_named

    lir = lower_to_lir(program, generator(machine_named(arch)))
    graph = lir.as_graph()
    texts = []
    for number, kernel in enumerate(lir.kernels):
        if kernel.kind == VIEW:
            continue
        if kernel.kind in (CALL, LOOP):
            missing = graph.nodes[kernel.nodes[0]].op.mnemonic
            raise BackendError(
                f"compile_to_ptx: {missing} has no GPU kernel yet; the program uses it in {kernel.nodes[0]}"
            )
        made = make_kernel(f"{kernel.kind}{number}", graph, kernel, machine_named(arch))
        texts.append(compile_assembly(made.kernel, machine_named(arch)))
    return "\n".join(texts)
