"""Bodies of loops that the host runs, because something in them has no kernel: programs of their own for the
host's CPU, compiled once and called in every round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module

import numpy as np

from rlx.backends.api import Backend, CompileOptions, Executable, backend_for
from rlx.backends.memory import Array
from rlx.ir.graph import Graph


def run_compiled(body: Graph, operands: Sequence[Array]) -> list[Array]:
    """The outputs of a body, for operands in the order of its inputs."""
    # A row of a vector is a number to NumPy.
    inputs = {str(node.name): np.asarray(x) for node, x in zip(body.inputs, operands, strict=True)}
    return _program(body).run(inputs, {})


def prepare_for_bodies() -> None:
    """Import, before the first run, all that compiles a body when a run first comes to it."""
    _host_backend()
    import_module("rlx.compile.compiler")
    import_module("rlx.kernels.from_lir")
    import_module("rlx.kernels.emit.llvm_codegen")
    import_module("llvmlite.binding")


@cache
def _host_backend() -> Backend:
    return backend_for("cpu")


@lru_cache(64)
def _program(body: Graph) -> Executable:
    return _host_backend().compile(body, CompileOptions())
