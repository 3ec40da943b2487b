"""Programs for TPUs, which XLA compiles: `Session("tpu")` where there is one, and files anywhere.

    made = compile_ahead(graph, topology="v5e:2x4")      # needs libtpu, and no TPU
    print(made)                                          # memory, layouts, what XLA expects
    made.save(folder)

The programs are those of the device `xla`. Products are bf16 unless a precision policy says otherwise.
"""

from __future__ import annotations

from rlx.backends.api import CompileOptions, Executable
from rlx.backends.tpu.ahead import AheadCompiled, compile_ahead
from rlx.backends.tpu.dumps import dump
from rlx.backends.tpu.plugin import open_space
from rlx.backends.tpu.policy import tpu_options
from rlx.backends.xla import XlaBackend
from rlx.backends.xla.executable import BoundProgram, XlaExecutable
from rlx.backends.xla.lowering import require_all
from rlx.ir.graph import Graph
from rlx.ir.verify import check

__all__ = ["AheadCompiled", "TpuBackend", "TpuExecutable", "compile_ahead"]


class TpuExecutable(XlaExecutable):
    """A program for one TPU."""

    def _compiled(self, graph: Graph) -> BoundProgram:
        made = super()._compiled(graph)
        dump(graph.name, "hlo", made.program.optimized_text)
        return made


class TpuBackend(XlaBackend):
    """`Session("tpu")`."""

    name = "tpu"

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = tpu_options(options)
        if options.verify:
            check(graph)
        prepared = require_all(graph, options)
        return TpuExecutable(prepared.copy().freeze(), open_space(self._index))
