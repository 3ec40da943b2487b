"""The reference backend: every graph, by the definition of its ops. The oracle of all others; never optimised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Backend, CompileOptions, Executable, Prepared
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.lir import LirBufferPlan, LirModule
from rlx.ir.op import OP_CLASSES
from rlx.ir.verify import check

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport


class ReferenceExecutable(Executable):
    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        values = params.values if isinstance(params, Prepared) else params
        # A result may be an input itself or a view of one; the caller's arrays must not be shared.
        return [array.copy() for array in interpret(self._graph, {**values, **inputs})]

    @property
    def report(self) -> CompileReport:
        from rlx.compile.report.report import CompileReport

        unplanned = LirBufferPlan(schedule=[n.id for n in self._graph.nodes])
        lir = LirModule(self._graph, unplanned)
        return CompileReport(lir, "reference", lambda graph, kernel: "NumPy, by definition")


class ReferenceBackend(Backend):
    """`Session("reference")`."""

    name = "reference"

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions) -> Executable:
        if options.verify:
            check(graph)
        return ReferenceExecutable(graph.copy().freeze())
