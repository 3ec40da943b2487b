"""Programs handed to XLA: on the host, and on what XLA has a plugin for.

A program is bound to sizes, taken apart into ops that have a rule (`lowering`), written as StableHLO (`stablehlo` and
the modules `rules_*`) and compiled by the XLA that comes with jaxlib (`adapter`, the only file that knows it).
"""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.xla.arrays import open_space
from rlx.backends.xla.executable import XlaExecutable
from rlx.backends.xla.lowering import claimed_ops, require_all
from rlx.ir.graph import Graph
from rlx.ir.verify import check


class XlaBackend(Backend):
    """`Session("xla")`."""

    name = "xla"

    def __init__(self, index: int = 0) -> None:
        self._index = index

    def supported_ops(self) -> frozenset[str]:
        return claimed_ops()

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = CompileOptions() if options is None else options
        if options.verify:
            check(graph)
        prepared = require_all(graph, options)
        return XlaExecutable(prepared.copy().freeze(), open_space(self._index))
