"""`XlaExecutable`: a program for XLA. It is compiled for sizes, once for each combination that runs bring.

Symbolic sizes are bound by the shapes of a run (see `ExecutableBySizes`); with the knob `xla_buckets` one program
serves several sizes (see `buckets`). Inputs that the program may store over (`graph.aliases`) are donated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.api import Array, Prepared
from rlx.backends.by_sizes import ExecutableBySizes, PlacedParams, require_memory
from rlx.backends.xla.adapter import LoadedProgram
from rlx.backends.xla.arrays import Outcome, ShardedValue, XlaSpace, XlaValue
from rlx.backends.xla.buckets import bucket, free_symbols
from rlx.backends.xla.divided import DividedProgram, DividedPrograms
from rlx.backends.xla.lowering import lowered
from rlx.backends.xla.stablehlo import module_of
from rlx.errors import RlxError
from rlx.ir.binding import infer_binding
from rlx.ir.graph import Graph
from rlx.ir.index_checks import check_ids, id_checks
from rlx.ir.leaves import Input
from rlx.ir.shape import Shape
from rlx.knobs import knobs
from rlx.sharding import Mesh, NamedSharding

# What a process can address. XLA ends it where a value has more bytes than it can count.
MOST_BYTES = 1 << 47


class XlaParams(PlacedParams[XlaValue]):
    """Params on one device, and on those of meshes from the first run that was divided over them."""

    def __init__(self, values: Mapping[str, Array], placed: Mapping[str, XlaValue]) -> None:
        super().__init__(values, placed)
        self._divided: dict[tuple[Mesh, str], ShardedValue] = {}

    def divided(self, mesh: Mesh, name: str, put: Callable[[Array], ShardedValue]) -> ShardedValue:
        if (mesh, name) not in self._divided:
            self._divided[mesh, name] = put(self.values[name])
        return self._divided[mesh, name]


class BoundProgram(NamedTuple):
    """The program for one combination of sizes."""

    program: LoadedProgram
    failures: tuple[RlxError, ...]
    graph: Graph


class XlaExecutable(ExecutableBySizes[BoundProgram, XlaValue]):
    """A program for one device of XLA, or for those of a mesh where arguments or constraints name one."""

    params_type = XlaParams

    def __init__(self, graph: Graph, space: XlaSpace) -> None:
        self._space, self.name = space, space.target
        self._checks = id_checks(graph)
        self._donated = donated_inputs(graph)
        super().__init__(graph, space)
        self._divided = DividedPrograms(graph, space, self._donated, self._programs.bound)
        if self._divided.mesh_for(()) is None:
            self._programs.make_if_fixed()

    @cached_property
    def _free(self) -> frozenset[str]:
        return free_symbols(self._graph)

    def run(  # type: ignore[override]  # values of the device in and out
        self, inputs: Mapping[str, Array | XlaValue], params: Mapping[str, Array] | Prepared
    ) -> list[XlaValue] | list[ShardedValue]:
        """The outputs where they were computed. Nothing waits for them: reading one does."""
        mesh = self._divided.mesh_for([*inputs.values()])
        if mesh is not None:
            return self._run_divided(mesh, inputs, self._placed_params(params))
        given = self._given(inputs, params)
        values = [given[name] for name, _ in self._leaves]
        sizes = self._rounded(values)
        if sizes:
            values = [self._padded(v, shape, sizes) for v, (_, shape) in zip(values, self._leaves)]
        bound = self._programs.at([v.shape for v in values])
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

    def _run_divided(self, mesh: Mesh, inputs: Mapping[str, Any], params: PlacedParams[XlaValue]) -> list[ShardedValue]:
        """A run over the devices of a mesh."""
        assert isinstance(params, XlaParams)
        for name, value in inputs.items():
            self._check_type(name, value)
        self._require_all({**params.values, **inputs})
        values = []
        for number, (name, _) in enumerate(self._leaves):
            if name in inputs:
                values.append(self._divided.placed(mesh, number, inputs[name]))
            else:
                values.append(params.divided(mesh, name, partial(self._divided.placed, mesh, number)))
        bound = self._programs.bound([v.shape for v in values]) if self._checks else self._graph
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

    def _compiled(self, graph: Graph) -> BoundProgram:
        made = lowered(graph)
        require_memory(made, MOST_BYTES)
        module = module_of(made, self._donated)
        program = self._space.client.compile(module.text, self._space.index, graph.name)
        return BoundProgram(program, module.failures, graph)

    @property
    def programs_made(self) -> int:
        return super().programs_made + self._divided.made

    def _where(self) -> str:
        return f"{self._space.device} ({self._space.client.platform})"


def donated_inputs(graph: Graph) -> dict[str, int]:
    """The output that is stored over an input, by its name, where both have one type."""
    shapes: dict[str, Shape] = {str(n.op.key): n.shape for n in graph.nodes if isinstance(n.op, Input)}
    return {key: number for number, key in graph.aliases.items() if graph.shape(graph.outputs[number]) == shapes[key]}
