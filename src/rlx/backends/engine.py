"""Engines: targets that bring kernels for whole ops. An engine is told a program op by op.

    class Mlx(Engine[mx.array]):
        def constant(self, array): return mx.array(array)
        def emit(self, node, operands): return [TABLE[type(node.op)](node.op, *operands)]
        def fetch(self, value): return np.asarray(value)

An engine that computes as it is told needs no more than this: every run walks the program through `emit`. One that
collects a program and compiles it in the end (text for another compiler) overrides `build`. Programs come in the ops
that the engine claims: all others are decomposed before, and what cannot be is refused by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlx.backends.api import Array, Backend, CompileOptions, Executable, Prepared
from rlx.ir.graph import Graph, Node
from rlx.ir.interpret import bound_to
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.lir import LirBufferPlan, LirModule
from rlx.ir.op import Op
from rlx.ir.verify import check

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport

V = TypeVar("V")

# Forms in other ops, from packages that define ops, for engines without a kernel for these: an op and its operands to a
# builder, or None.
OP_FORMS: dict[type[Op], Callable[..., Callable[..., Any] | None]] = {}


class Engine(ABC, Generic[V]):
    """What computes ops on values of its own kind. Holds no state of a run."""

    name: str
    # Where ops run, for reports.
    where: str = ""
    # The kinds of ops (class names) that `emit` takes; None: all of them.
    claims: frozenset[str] | None = None

    @abstractmethod
    def constant(self, array: Array) -> V:
        """An array of the host as a value."""

    @abstractmethod
    def emit(self, node: Node, operands: Sequence[V]) -> Sequence[V]:
        """The results of a node, whose sizes are bound. A body of its op is a program for `walk`."""

    @abstractmethod
    def fetch(self, value: V) -> Array:
        """A value as an array of the host that belongs to the caller."""

    def walk(self, graph: Graph, leaves: Mapping[str, V]) -> list[V]:
        """The outputs of a program with bound sizes for values of its leaves."""
        results: list[Sequence[V]] = []
        for node in graph.nodes:
            if isinstance(node.op, Input | Param):
                results.append((leaves[node.op.key],))
            elif isinstance(node.op, Constant):
                results.append((self.constant(node.op.value.array),))
            elif isinstance(node.op, Project):
                results.append((results[node.inputs[0]][node.op.index],))
            else:
                results.append(self.emit(node, [results[i][0] for i in node.inputs]))
        return [results[o][0] for o in graph.outputs]

    def build(self, graph: Graph, options: CompileOptions) -> Executable:
        """A program in the ops that the engine claims, ready to run."""
        return EngineExecutable(self, graph)


class EngineExecutable(Executable, Generic[V]):
    """A program that an engine walks at every run."""

    def __init__(self, engine: Engine[V], graph: Graph) -> None:
        self._engine, self._graph = engine, graph

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        engine, graph = self._engine, self._graph
        given = {**(params.values if isinstance(params, Prepared) else params), **inputs}
        outputs = engine.walk(bound_to(graph, given), {key: engine.constant(array) for key, array in given.items()})
        return [engine.fetch(value) for value in outputs]

    @property
    def report(self) -> CompileReport:
        from rlx.compile.report.report import CompileReport

        unplanned = LirBufferPlan(schedule=[n.id for n in self._graph.nodes])
        where = self._engine.where or self._engine.name
        return CompileReport(LirModule(self._graph, unplanned), self._engine.name, lambda graph, kernel: where)


class EngineBackend(Backend):
    """The backend of a target that has an engine."""

    def __init__(self, make: Callable[[], Engine[V]]) -> None:
        self._engine = make()
        self.name = self._engine.name

    def supported_ops(self) -> frozenset[str]:
        from rlx.ir.op import OP_CLASSES

        return frozenset(OP_CLASSES) if self._engine.claims is None else self._engine.claims

    def compile(self, graph: Graph, options: CompileOptions) -> Executable:
        if options.verify:
            check(graph)
        from rlx.compile.precision.apply import AutoMixedPrecision

        # The policy, and no other optimisation: what runs is still what was written, in other types.
        graph = AutoMixedPrecision(options.precision_policy).run(graph)
        if self._engine.claims is not None:
            from rlx.compile.claims.logical_kernel import KernelDispatchConfig
            from rlx.compile.pipeline import legalize

            graph, _ = legalize(graph, self.name, self._engine.claims, KernelDispatchConfig.from_env())
        return self._engine.build(graph.copy().freeze(), options)
