"""NVIDIA GPUs: the same kernels through LLVM's NVPTX target. Making PTX needs no GPU and no toolkit."""

from __future__ import annotations

from typing import Any

from rlx.compile.lower.bodies import LOOP
from rlx.compile.pipeline import lower_to_lir
from rlx.errors import BackendError
from rlx.kernels.from_lir import generator, make_kernel


def compile_to_ptx(program: Any, arch: str = "sm_90a") -> str:
    """The PTX of every kernel of a program, one after the other; an op without a kernel is an error that names it."""
    from rlx.kernels.emit.llvm_codegen import compile_assembly
    from rlx.kernels.machines import machine_named

    lir = lower_to_lir(program, generator(machine_named(arch)))
    graph = lir.as_graph()
    texts = []
    for number, kernel in enumerate(lir.kernels):
        if kernel.kind == "view":
            continue
        if kernel.kind in ("call", LOOP):
            missing = graph.nodes[kernel.nodes[0]].op.mnemonic
            raise BackendError(
                f"compile_to_ptx: {missing} has no GPU kernel yet; the program uses it in {kernel.nodes[0]}"
            )
        made = make_kernel(f"{kernel.kind}{number}", graph, kernel, machine_named(arch))
        texts.append(compile_assembly(made.kernel, machine_named(arch)))
    return "\n".join(texts)
