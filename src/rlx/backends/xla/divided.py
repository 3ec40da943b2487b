"""`DividedPrograms`: a program over the devices of a mesh, compiled for each combination of sizes and shardings.

Arrays that are divided already stay as they are; the others are put where constraints on them say, or on all devices.
Results lie where constraints say, over donated arguments, or where XLA has them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.xla.adapter import LoadedProgram
from rlx.backends.xla.arrays import Outcome, ShardedValue, XlaSpace, XlaValue
from rlx.backends.xla.lowering import lowered
from rlx.backends.xla.shardy import Placement, meshes_of, named_division, one_mesh, wanted_arguments, wanted_results
from rlx.backends.xla.stablehlo import module_of
from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.ir.leaves import Input, Param
from rlx.locks import fork_safe_lock
from rlx.sharding import Mesh, NamedSharding

# Combinations of sizes and shardings whose programs are kept.
KEPT = 64

Key = tuple[tuple[tuple[int, ...], NamedSharding], ...]


class DividedProgram(NamedTuple):
    """A program for one combination of sizes and shardings."""

    program: LoadedProgram
    placement: Placement
    failures: tuple[RlxError, ...]
    graph: Graph


class DividedPrograms:
    """The programs of one graph that have been made so far."""

    def __init__(
        self, graph: Graph, space: XlaSpace, donated: Mapping[str, int], bound: Callable[[Sequence[Any]], Graph]
    ) -> None:
        self._graph, self._space, self._donated, self._bound = graph, space, donated, bound
        self._leaves = [n for n in graph.nodes if isinstance(n.op, Input | Param)]
        self._wanted = wanted_arguments(graph, [n.id for n in self._leaves])
        self._meshes = meshes_of(graph)
        self._lock = fork_safe_lock()
        self._kept: OrderedDict[Key, DividedProgram] = OrderedDict()
        self.made = 0

    def mesh_for(self, values: Sequence[Any]) -> Mesh | None:
        """The mesh that a run is divided over; None for a run on one device."""
        given = {v.sharding.mesh for v in values if isinstance(v, ShardedValue)}
        if not given and not self._meshes:
            return None
        return one_mesh(self._meshes | given, f"@{self._graph.name}")

    def placed(self, mesh: Mesh, number: int, value: Any) -> ShardedValue:
        """The value of a leaf on the devices of the mesh."""
        if isinstance(value, ShardedValue):
            return value
        array = value.look() if isinstance(value, XlaValue) else np.asarray(value)
        sharding = self._wanted[number] or NamedSharding(mesh)
        return self._space.put_parts(lambda index: array[index], array.shape, sharding)

    def run(self, mesh: Mesh, values: Sequence[ShardedValue]) -> list[ShardedValue]:
        made = self.program_for(mesh, tuple((v.shape, v.sharding) for v in values))
        results = made.program.run_divided([v.buffer for v in values])
        client = self._space.client
        outcome = Outcome(client, results.pop()[0], made.failures) if made.failures else None
        shapes = [made.graph.shape(o) for o in made.graph.outputs]
        outputs = []
        for parts, shape, sharding in zip(results, shapes, made.placement.results, strict=True):
            assert sharding is not None
            buffer = client.joined(parts, shape.static_dims, shape.dtype.numpy, sharding)
            outputs.append(ShardedValue(self._space, buffer, shape.static_dims, shape.dtype.numpy, sharding, outcome))
        return outputs

    def described(self, arguments: Sequence[tuple[tuple[int, ...], NamedSharding | None]]) -> DividedProgram | None:
        """The program for arguments of such sizes and shardings; None if nothing is divided."""
        mesh = one_mesh(self._meshes | {s.mesh for _, s in arguments if s is not None}, f"@{self._graph.name}")
        if mesh is None:
            return None
        placed = zip(arguments, self._wanted, strict=True)
        return self.program_for(mesh, tuple((dims, s or wanted or NamedSharding(mesh)) for (dims, s), wanted in placed))

    def program_for(self, mesh: Mesh, key: Key) -> DividedProgram:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = self._compiled(mesh, key)
                self.made += 1
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return found

    def placement(self, mesh: Mesh, arguments: Sequence[NamedSharding]) -> Placement:
        """What is known of the shardings before XLA has chosen the others."""
        results = wanted_results(self._graph)
        homes = {number: name for name, number in self._donated.items()}
        names = {str(n.name): sharding for n, sharding in zip(self._leaves, arguments)}
        for number, name in homes.items():
            results[number] = results[number] or names[name]
        return Placement(mesh, tuple(arguments), tuple(results))

    def _compiled(self, mesh: Mesh, key: Key) -> DividedProgram:
        graph = self._bound([dims for dims, _ in key])
        made = lowered(graph)
        placement = self.placement(mesh, [sharding for _, sharding in key])
        # Only where the results lie as the arguments do is there memory to store over.
        names = {str(n.name): sharding for n, sharding in zip(self._leaves, placement.arguments)}
        donated = {name: n for name, n in self._donated.items() if placement.results[n] == names[name]}
        while True:
            module = module_of(made, donated, placement)
            program = self._space.client.compile_divided(module.text, mesh, graph.name)
            results = self._chosen(placement, program)
            if None not in results:
                return DividedProgram(program, placement._replace(results=results), module.failures, graph)
            # What XLA has chosen for them has no name here: such results go to all devices.
            asked = (r if r is not None else NamedSharding(mesh) for r in results)
            placement = placement._replace(results=tuple(asked))

    def _chosen(self, placement: Placement, program: LoadedProgram) -> tuple[NamedSharding | None, ...]:
        """The shardings of all results; None where XLA's choice has no name."""
        if placement.mesh.size == 1:
            # XLA divides nothing, and says nothing of it either.
            return tuple(known or NamedSharding(placement.mesh) for known in placement.results)
        divisions = program.result_divisions()
        return tuple(
            known or named_division(placement.mesh, divisions[number]) for number, known in enumerate(placement.results)
        )
