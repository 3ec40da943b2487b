"""`ExecutableBySizes`: what engines share that have memory of their own and compile for sizes.

    programs = ProgramsBySizes(graph, make)      # make(bound graph) gives a program, in a type of the engine's own
    programs.at([(4, 3), (3,)])                  # the sizes of all leaves, in their order

There is one program for each combination of sizes that runs bring; those of the last `KEPT` combinations stay. Params
lie on the device from the moment they are set.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from rlx.backends.api import Array, Executable, Prepared
from rlx.backends.memory_space import DeviceValue, MemorySpace
from rlx.errors import BindingError, OutOfMemory
from rlx.ir.binding import bind_graph, infer_binding
from rlx.ir.graph import Graph
from rlx.ir.leaves import Input, Param
from rlx.ir.lir import LirBufferPlan, LirModule
from rlx.ir.rewrite.rebuild import all_bodies
from rlx.ir.shape import Shape
from rlx.locks import fork_safe_lock

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport

P = TypeVar("P")
V = TypeVar("V", bound=DeviceValue)
Sizes = tuple[tuple[int, ...], ...]

# Combinations of sizes whose programs are kept; a compile takes a thousand times as long as to look one up.
KEPT = 64


class ProgramsBySizes(Generic[P]):
    """The programs made so far."""

    def __init__(self, graph: Graph, make: Callable[[Graph], P]) -> None:
        self._graph, self._make = graph, make
        self.leaves = leaves_of(graph)
        self._programs: OrderedDict[Sizes, P] = OrderedDict()
        self._lock = fork_safe_lock()
        # How many combinations of sizes have been compiled so far.
        self.made = 0

    def make_if_fixed(self) -> None:
        """Make the one program that a graph without symbols has."""
        if not self._graph.has_dynamic_dims():
            self.at([shape.static_dims for _, shape in self.leaves])

    def at(self, dims: Sequence[tuple[int, ...]]) -> P:
        key = tuple(dims)
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
                return found
            made = self._make(self.bound(key))
            self._programs[key] = made
            self.made += 1
            if len(self._programs) > KEPT:
                self._programs.popitem(last=False)
            return made

    def bound(self, dims: Sequence[tuple[int, ...]]) -> Graph:
        """The graph with the sizes that its leaves have."""
        graph = self._graph
        binding = infer_binding((name, shape, size) for (name, shape), size in zip(self.leaves, dims))
        if not graph.has_dynamic_dims():
            return graph
        free = [s for s in graph.dynamic_symbols() if s not in binding]
        if free:
            text = ", ".join(free)
            raise BindingError(f"graph @{graph.name}: no input determines the size of {text}; bind it first")
        return bind_graph(graph, binding)


def leaves_of(graph: Graph) -> list[tuple[str, Shape]]:
    """The names and types of inputs and params, in their order."""
    return [(str(n.op.key), n.shape) for n in graph.nodes if isinstance(n.op, Input | Param)]


class PlacedParams(Prepared, Generic[V]):
    """Params by name, as the caller gave them and on the device."""

    def __init__(self, values: Mapping[str, Array], placed: Mapping[str, V]) -> None:
        super().__init__(values)
        self.placed = placed

    @property
    def byte_size(self) -> int:
        return sum(int(np.prod(v.shape, dtype=np.int64)) * v.dtype.itemsize for v in self.placed.values())


class ExecutableBySizes(Executable, Generic[P, V]):
    """Immutable but for the programs that it has made so far. Values are `DeviceValue`s of its space."""

    name: str
    params_type: type[PlacedParams[Any]] = PlacedParams

    def __init__(self, graph: Graph, space: MemorySpace) -> None:
        self._graph, self.space, self._memory = graph, space, space
        self._programs = ProgramsBySizes(graph, self._compiled)
        self._leaves = self._programs.leaves
        self._types = dict(self._leaves)

    @abstractmethod
    def _compiled(self, graph: Graph) -> P:
        """The program for bound sizes."""

    @abstractmethod
    def _where(self) -> str:
        """The device, and what else there is to say about runs, for the report."""

    def _put(self, array: Array) -> V:
        # The space of an engine has values of its own kind.
        value: Any = self._memory.put(array)
        return value

    def prepare(
        self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = ""
    ) -> PlacedParams[V]:
        values = {**(before.values if before is not None else {}), **changed}
        known: Mapping[str, V] = before.placed if isinstance(before, PlacedParams) else {}
        placed = {
            name: known[name] if name in known and name not in changed else self._put(value)
            for name, value in values.items()
        }
        return self.params_type(values, placed)

    def _placed_params(self, params: Mapping[str, Array] | Prepared) -> PlacedParams[V]:
        if isinstance(params, PlacedParams):
            return params
        return self.prepare(params.values if isinstance(params, Prepared) else params)

    def _given(self, inputs: Mapping[str, Any], params: Mapping[str, Array] | Prepared) -> dict[str, V]:
        """All leaves on the device."""
        placed = self._placed_params(params).placed
        given = {**placed, **{name: self._placed(name, value) for name, value in inputs.items()}}
        self._require_all(given)
        return given

    def _require_all(self, given: Mapping[str, Any]) -> None:
        missing = [name for name, _ in self._leaves if name not in given]
        if missing:
            raise BindingError(f"@{self._graph.name}: no value for {', '.join(map(repr, missing))}")

    def _placed(self, name: str, value: Any) -> V:
        self._check_type(name, value)
        found: Any = value if isinstance(value, DeviceValue) else self._put(np.asarray(value))
        return found

    def _check_type(self, name: str, value: Any) -> None:
        shape = self._types.get(name)
        if shape is None:
            raise BindingError(f"@{self._graph.name} has no input {name!r}")
        if value.dtype != shape.dtype.numpy:
            got = f"{value.dtype}{list(value.shape)}"
            raise BindingError(f"@{self._graph.name}: input {name!r} is declared {shape}, got {got}")

    @property
    def programs_made(self) -> int:
        """How many combinations of sizes have been compiled so far."""
        return self._programs.made

    @property
    def report(self) -> CompileReport:
        from rlx.compile.report.report import CompileReport

        made = f"{self.programs_made} program{'' if self.programs_made == 1 else 's'} compiled so far"
        unplanned = LirBufferPlan(schedule=[n.id for n in self._graph.nodes])
        where = f"{self._where()}, {made}"
        return CompileReport(LirModule(self._graph, unplanned), self.name, lambda graph, kernel: where)


def require_memory(graph: Graph, most_bytes: int) -> None:
    """Refuse values that no memory holds, before an engine sees them."""
    for part in (graph, *all_bodies(graph)):
        for node in part.nodes:
            for shape in node.shapes:
                size = math.prod(shape.static_dims) * shape.dtype.numpy.itemsize
                if size > most_bytes:
                    raise OutOfMemory(
                        f"@{graph.name}: there is no memory for {node!r}, {size} bytes; run the program on smaller "
                        "inputs, or on parts of them"
                    )
