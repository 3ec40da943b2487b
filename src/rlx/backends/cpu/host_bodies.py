"""Bodies of loops that the host runs, because something in them has no kernel: programs of their own, compiled once and
called in every round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module

import numpy as np

from rlx.backends.api import Executable
from rlx.backends.memory import Array
from rlx.ir.graph import Graph


def run_compiled(body: Graph, operands: Sequence[Array]) -> list[Array]:
    """The outputs of a body, for operands in the order of its inputs."""
    # A row of a vector is a number to NumPy.
    inputs = {str(node.name): np.asarray(x) for node, x in zip(body.inputs, operands, strict=True)}
    return _program(body).run(inputs, {})


def prepare_for_bodies() -> None:
    """Import, before the first run, all that compiles a body when a run first comes to it."""
    import_module("rlx.backends.cpu.executable")
    import_module("rlx.compile.compiler")
    import_module("rlx.kernels.from_lir")
    import_module("rlx.kernels.emit.llvm_codegen")
    import_module("llvmlite.binding")


@lru_cache(64)
def _program(body: Graph) -> Executable:
    from rlx.backends.cpu.executable import CpuExecutable
    from rlx.compile.compiler import CompilePipeline

    return CpuExecutable.of(CompilePipeline.new("cpu").compile(body))
