"""Shardings in the text of a module: the dialect of Shardy, which XLA reads to divide a program over devices.

    placement = Placement(mesh, [rows, None], [rows])
    module_of(graph, donated, placement).text      # sdy.mesh @mesh = <["x"=4, "y"=2]> and sdy.sharding on arguments

Each program has one mesh. Arguments that are not divided are on all devices; results without a sharding are divided as
XLA finds best.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlx.backends.xla.adapter import Division
from rlx.errors import ShardingError
from rlx.ir.graph import Graph
from rlx.ir.rewrite.rebuild import all_bodies
from rlx.ops.parallel.shard_map import ShardMap
from rlx.ops.parallel.sharding_constraint import ShardingConstraint
from rlx.sharding import UNCONSTRAINED, Mesh, NamedSharding, PartitionSpec
from rlx.sharding.partition_spec import names_of

MESH = "mesh"


class Placement(NamedTuple):
    """The mesh of a program, the shardings of its arguments, and those of its results; None: XLA chooses."""

    mesh: Mesh
    arguments: tuple[NamedSharding, ...]
    results: tuple[NamedSharding | None, ...]

    @property
    def declaration(self) -> str:
        axes = ", ".join(f'"{name}"={size}' for name, size in self.mesh.shape.items())
        return f"sdy.mesh @{MESH} = <[{axes}]>"

    def argument_attribute(self, number: int, rank: int) -> str:
        return f"sdy.sharding = {attribute(self.arguments[number], rank)}"

    def result_attribute(self, number: int, rank: int) -> str:
        sharding = self.results[number]
        return "" if sharding is None else f"sdy.sharding = {attribute(sharding, rank)}"


def attribute(sharding: NamedSharding, rank: int) -> str:
    """`#sdy.sharding<@mesh, [{"x"}, {?}]>`."""
    return f"#sdy.sharding{inner_attribute(sharding, rank)}"


def inner_attribute(sharding: NamedSharding, rank: int) -> str:
    """The same without its name, as lists of shardings have it."""
    entries = sharding.entries(rank)
    parts = ["{?}" if e is UNCONSTRAINED else "{" + ", ".join(f'"{n}"' for n in names_of(e)) + "}" for e in entries]
    return f"<@{MESH}, [{', '.join(parts)}]>"


def meshes_of(graph: Graph) -> set[Mesh]:
    """The meshes that a program names."""
    found = set()
    for part in (graph, *all_bodies(graph)):
        found |= {n.op.sharding.mesh for n in part.nodes if isinstance(n.op, ShardingConstraint)}
        found |= {n.op.mesh for n in part.nodes if isinstance(n.op, ShardMap)}
    return found


def one_mesh(meshes: set[Mesh], what: str) -> Mesh | None:
    """The mesh of a program; None if it has none, an error if there are several."""
    if len(meshes) > 1:
        text = " and ".join(sorted(map(str, meshes)))
        raise ShardingError(f"{what}: its arrays and constraints lie on the meshes {text}; a program has one mesh")
    return next(iter(meshes), None)


def wanted_arguments(graph: Graph, leaves: Sequence[int]) -> list[NamedSharding | None]:
    """The sharding of each leaf that is read only by constraints of one sharding; None for the others."""
    users: dict[int, set[NamedSharding | None]] = {}
    for node in graph.nodes:
        wanted = (
            node.op.in_shardings if isinstance(node.op, ShardMap) else [_sharding_of(graph, node.id)] * len(node.inputs)
        )
        for i, sharding in zip(node.inputs, wanted):
            users.setdefault(i, set()).add(sharding)
    for output in graph.outputs:
        users.setdefault(output, set()).add(None)
    found = [users.get(leaf, {None}) for leaf in leaves]
    return [next(iter(shardings)) if len(shardings) == 1 else None for shardings in found]


def wanted_results(graph: Graph) -> list[NamedSharding | None]:
    """The sharding of each output that is a constraint."""
    return [_sharding_of(graph, output) for output in graph.outputs]


def _sharding_of(graph: Graph, number: int) -> NamedSharding | None:
    op = graph.nodes[number].op
    return op.sharding if isinstance(op, ShardingConstraint) and not op.sharding.is_open else None


def named_division(mesh: Mesh, division: Division) -> NamedSharding | None:
    """How XLA has divided an array, in the names of a mesh; None if names cannot say it."""
    if not division.counts:
        return NamedSharding(mesh, PartitionSpec())
    for entries in _candidates(mesh, division.counts, tuple(n for n, size in mesh.shape.items() if size > 1)):
        sharding = NamedSharding(mesh, PartitionSpec(*entries))
        starts = [tuple(s.start for s in index) for index in sharding.indices(division.counts)]
        numbers = {start: n for n, start in enumerate(sorted(set(starts)))}
        if tuple(numbers[s] for s in starts) == division.part_of:
            return sharding
    return None


def _candidates(mesh: Mesh, counts: Sequence[int], free: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All ways to cut axes so often, with mesh axes used once each."""
    if not counts:
        yield ()
        return
    for size in range(len(free) + 1):
        for names in itertools.permutations(free, size):
            if mesh.axis_size(names) == counts[0]:
                rest = tuple(name for name in free if name not in names)
                yield from ((names, *others) for others in _candidates(mesh, counts[1:], rest))
