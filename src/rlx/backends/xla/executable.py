"""`XlaExecutable`: a program for XLA. It is compiled for sizes, once for each combination that runs bring.

Symbolic sizes are bound by the shapes of a run; the programs of the last `KEPT` combinations stay, and with the knob
`xla_buckets` one program serves several sizes (see `buckets`). Params lie on the device from the moment they are set.
Inputs that the program may store over (`graph.aliases`) are donated.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.backends.api import Array, Executable, Prepared
from rlx.backends.xla.adapter import LoadedProgram
from rlx.backends.xla.arrays import Outcome, ShardedValue, XlaSpace, XlaValue
from rlx.backends.xla.buckets import bucket, free_symbols
from rlx.backends.xla.divided import DividedProgram, DividedPrograms
from rlx.backends.xla.lowering import lowered
from rlx.backends.xla.stablehlo import module_of
from rlx.errors import BindingError, OutOfMemory, RlxError
from rlx.ir.binding import bind_graph, infer_binding
from rlx.ir.graph import Graph
from rlx.ir.index_checks import check_ids, id_checks
from rlx.ir.leaves import Input, Param
from rlx.ir.lir import LirBufferPlan, LirModule
from rlx.ir.rewrite.rebuild import all_bodies
from rlx.ir.shape import Shape
from rlx.knobs import knobs
from rlx.locks import fork_safe_lock
from rlx.sharding import Mesh, NamedSharding

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport

# Combinations of sizes whose programs are kept; a compile takes a thousand times as long as to look one up.
KEPT = 64

# What a process can address. XLA ends it where a value has more bytes than it can count.
MOST_BYTES = 1 << 47


class XlaParams(Prepared):
    """Params by name, as the caller gave them and on the device."""

    def __init__(self, values: Mapping[str, Array], placed: Mapping[str, XlaValue]) -> None:
        super().__init__(values)
        self.placed = placed
        # On the devices of a mesh, from the first run that was divided over it.
        self._divided: dict[tuple[Mesh, str], ShardedValue] = {}

    def divided(self, mesh: Mesh, name: str, put: Callable[[Array], ShardedValue]) -> ShardedValue:
        if (mesh, name) not in self._divided:
            self._divided[mesh, name] = put(self.values[name])
        return self._divided[mesh, name]

    @property
    def byte_size(self) -> int:
        return sum(int(np.prod(v.shape, dtype=np.int64)) * v.dtype.itemsize for v in self.placed.values())


class _Bound(NamedTuple):
    """The program for one combination of sizes."""

    program: LoadedProgram
    failures: tuple[RlxError, ...]
    graph: Graph


class XlaExecutable(Executable):
    """Immutable but for the programs that it has made so far."""

    def __init__(self, graph: Graph, space: XlaSpace) -> None:
        self._graph, self.space = graph, space
        self._leaves = [(str(n.op.key), n.shape) for n in graph.nodes if isinstance(n.op, Input | Param)]
        self._inputs = {str(n.op.key) for n in graph.nodes if isinstance(n.op, Input)}
        self._checks = id_checks(graph)
        self._donated = _donated(graph)
        self._bound: OrderedDict[tuple[tuple[int, ...], ...], _Bound] = OrderedDict()
        self._made = 0
        self._lock = fork_safe_lock()
        self._divided = DividedPrograms(graph, space, self._donated, self._graph_for)
        if not graph.has_dynamic_dims() and self._divided.mesh_for(()) is None:
            self._program_for(tuple(shape.static_dims for _, shape in self._leaves))

    @cached_property
    def _free(self) -> frozenset[str]:
        return free_symbols(self._graph)

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> XlaParams:
        values = {**(before.values if before is not None else {}), **changed}
        known = before.placed if isinstance(before, XlaParams) else {}
        placed = {
            name: known[name] if name in known and name not in changed else self._space.put(value)
            for name, value in values.items()
        }
        return XlaParams(values, placed)

    @property
    def _space(self) -> XlaSpace:
        assert isinstance(self.space, XlaSpace)
        return self.space

    def run(  # type: ignore[override]  # values of the device in and out
        self, inputs: Mapping[str, Array | XlaValue], params: Mapping[str, Array] | Prepared
    ) -> list[XlaValue] | list[ShardedValue]:
        """The outputs where they were computed. Nothing waits for them: reading one does."""
        placed = params if isinstance(params, XlaParams) else self.prepare(_values_of(params))
        mesh = self._divided.mesh_for([*inputs.values()])
        if mesh is not None:
            return self._run_divided(mesh, inputs, placed)
        given = {**placed.placed, **{name: self._placed(name, value) for name, value in inputs.items()}}
        self._require_all(given)
        values = [given[name] for name, _ in self._leaves]
        sizes = self._rounded(values)
        if sizes:
            values = [self._padded(v, shape, sizes) for v, (_, shape) in zip(values, self._leaves)]
        bound = self._program_for(tuple(v.shape for v in values))
        self._check_ids(bound.graph, given)
        results = bound.program.run([v.buffer for v in self._exclusive(values)])
        outcome = None
        if bound.failures:
            outcome = Outcome(self._space.client, results.pop(), bound.failures)
        shapes = [bound.graph.shape(o) for o in bound.graph.outputs]
        outputs = [
            XlaValue(self._space, result, shape.static_dims, shape.dtype.numpy, outcome)
            for result, shape in zip(results, shapes, strict=True)
        ]
        return [self._cut(v, self._graph.shape(o), sizes) for v, o in zip(outputs, self._graph.outputs)]

    def divided_program(
        self, arguments: Sequence[tuple[tuple[int, ...], NamedSharding | None]]
    ) -> DividedProgram | None:
        """The program for arguments of such sizes and shardings, compiled if it was not; None if nothing is divided."""
        return self._divided.described(arguments)

    def _require_all(self, given: Mapping[str, Any]) -> None:
        missing = [name for name, _ in self._leaves if name not in given]
        if missing:
            raise BindingError(f"@{self._graph.name}: no value for {', '.join(map(repr, missing))}")

    def _run_divided(self, mesh: Mesh, inputs: Mapping[str, Any], params: XlaParams) -> list[ShardedValue]:
        """A run over the devices of a mesh."""
        for name, value in inputs.items():
            self._check_type(name, value)
        given = {**params.values, **inputs}
        self._require_all(given)
        values = []
        for number, (name, _) in enumerate(self._leaves):
            if name in inputs:
                values.append(self._divided.placed(mesh, number, inputs[name]))
            else:
                values.append(params.divided(mesh, name, partial(self._divided.placed, mesh, number)))
        bound = self._graph_for([v.shape for v in values]) if self._checks else self._graph
        self._check_ids(bound, {name: v for (name, _), v in zip(self._leaves, values) if v.is_fully_addressable})
        return self._divided.run(mesh, self._exclusive(values))

    def _rounded(self, values: list[XlaValue]) -> dict[str, tuple[int, int]]:
        """The size of each symbol that is rounded up, and what it is rounded to."""
        if not knobs.xla_buckets or not self._free or not self._space.client.is_host:
            return {}
        binding = infer_binding((name, shape, v.shape) for (name, shape), v in zip(self._leaves, values))
        rounded = {symbol: (size, bucket(size)) for symbol, size in binding.items() if symbol in self._free}
        return {symbol: both for symbol, both in rounded.items() if both[0] != both[1]}

    def _padded(self, value: XlaValue, shape: Shape, sizes: Mapping[str, tuple[int, int]]) -> XlaValue:
        """A value with zeros behind it along the axes that grow."""
        grown = [sizes[str(d)][1] if str(d) in sizes else n for d, n in zip(shape.dims, value.shape)]
        if tuple(grown) == value.shape:
            return value
        padded = np.zeros(grown, value.dtype)
        padded[tuple(slice(n) for n in value.shape)] = value.look()
        return self._space.put(padded)

    def _cut(self, value: XlaValue, shape: Shape, sizes: Mapping[str, tuple[int, int]]) -> XlaValue:
        """A result without what belongs to zeros."""
        kept = [sizes[str(d)][0] if str(d) in sizes else n for d, n in zip(shape.dims, value.shape)]
        if tuple(kept) == value.shape:
            return value
        return self._space.put(value.look()[tuple(slice(n) for n in kept)])

    def _placed(self, name: str, value: Any) -> XlaValue:
        self._check_type(name, value)
        return value if isinstance(value, XlaValue) else self._space.put(np.asarray(value))

    def _check_type(self, name: str, value: Any) -> None:
        shape = dict(self._leaves).get(name)
        if shape is None:
            raise BindingError(f"@{self._graph.name} has no input {name!r}")
        if value.dtype != shape.dtype.numpy:
            got = f"{value.dtype}{list(value.shape)}"
            raise BindingError(f"@{self._graph.name}: input {name!r} is declared {shape}, got {got}")

    def _check_ids(self, graph: Graph, given: Mapping[str, XlaValue] | Mapping[str, ShardedValue]) -> None:
        """Ids from outside are errors where they are not valid; those in memory of the host can be looked at."""
        if not self._checks or not self._space.client.is_host:
            return
        for check in id_checks(graph) if graph is not self._graph else self._checks:
            if check.key in given:
                check_ids(check.op, given[check.key].look(), check.sizes, check.key)

    def _exclusive(self, values: list[Any]) -> list[Any]:
        """Values with those copied that are given away though another argument is the same one."""
        if not self._donated:
            return values
        seen: set[int] = set()
        for number, (name, _) in enumerate(self._leaves):
            value = values[number]
            is_shared = id(value.buffer) in seen or any(
                other.buffer is value.buffer for i, other in enumerate(values) if i != number
            )
            if name in self._donated and is_shared:
                values[number] = self._space.copy(value)
            seen.add(id(values[number].buffer))
        return values

    def _program_for(self, dims: tuple[tuple[int, ...], ...]) -> _Bound:
        with self._lock:
            found = self._bound.get(dims)
            if found is not None:
                self._bound.move_to_end(dims)
                return found
            made = self._compiled(dims)
            self._bound[dims] = made
            self._made += 1
            if len(self._bound) > KEPT:
                self._bound.popitem(last=False)
            return made

    def _compiled(self, dims: tuple[tuple[int, ...], ...]) -> _Bound:
        graph = self._graph_for(dims)
        made = lowered(graph)
        _require_memory(made)
        module = module_of(made, self._donated)
        program = self._space.client.compile(module.text, self._space.index, graph.name)
        return _Bound(program, module.failures, graph)

    def _graph_for(self, dims: Sequence[tuple[int, ...]]) -> Graph:
        """The program with the sizes that its leaves have."""
        graph = self._graph
        binding = infer_binding((name, shape, size) for (name, shape), size in zip(self._leaves, dims))
        if graph.has_dynamic_dims():
            free = [s for s in graph.dynamic_symbols() if s not in binding]
            if free:
                text = ", ".join(free)
                raise BindingError(f"graph @{graph.name}: no input determines the size of {text}; bind it first")
            graph = bind_graph(graph, binding)
        return graph

    @property
    def programs_made(self) -> int:
        """How many combinations of sizes have been compiled so far."""
        return self._made + self._divided.made

    @property
    def report(self) -> CompileReport:
        from rlx.compile.report.report import CompileReport

        where = f"{self._space.device} ({self._space.client.platform})"
        made = f"{self.programs_made} program{'' if self.programs_made == 1 else 's'} compiled so far"
        unplanned = LirBufferPlan(schedule=[n.id for n in self._graph.nodes])
        return CompileReport(LirModule(self._graph, unplanned), "xla", lambda graph, kernel: f"{where}, {made}")


def _values_of(params: Mapping[str, Array] | Prepared) -> Mapping[str, Array]:
    return params.values if isinstance(params, Prepared) else params


def _donated(graph: Graph) -> dict[str, int]:
    """The output that is stored over an input, by its name, where both have one type."""
    shapes: dict[str, Shape] = {str(n.op.key): n.shape for n in graph.nodes if isinstance(n.op, Input)}
    return {key: number for number, key in graph.aliases.items() if graph.shape(graph.outputs[number]) == shapes[key]}


def _require_memory(graph: Graph) -> None:
    """Refuse values that no memory holds, before XLA sees them."""
    for part in (graph, *all_bodies(graph)):
        for node in part.nodes:
            for shape in node.shapes:
                size = math.prod(shape.static_dims) * shape.dtype.numpy.itemsize
                if size > MOST_BYTES:
                    raise OutOfMemory(
                        f"@{graph.name}: there is no memory for {node!r}, {size} bytes; run the program on smaller "
                        "inputs, or on parts of them"
                    )
