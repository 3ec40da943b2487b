"""The reference backend: every graph, by the definition of its ops. The oracle of all others; never optimised."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.api import Array, Backend, CompileOptions, Executable
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES
from rlx.ir.verify import check


class ReferenceExecutable(Executable):
    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array]) -> list[Array]:
        # A result may be an input itself or a view of one; the caller's arrays must not be shared.
        return [array.copy() for array in interpret(self._graph, {**params, **inputs})]

    @property
    def report(self) -> str:
        return f"reference: {len(self._graph)} nodes of @{self._graph.name}, interpreted one by one in NumPy\n"


class ReferenceBackend(Backend):
    """`Session("reference")`."""

    name = "reference"

    def supported_ops(self) -> frozenset[str]:
        return frozenset(OP_CLASSES)

    def compile(self, graph: Graph, options: CompileOptions) -> Executable:
        if options.verify:
            check(graph)
        return ReferenceExecutable(graph.copy().freeze())
