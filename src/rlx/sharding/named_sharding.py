"""`NamedSharding`: a mesh, and how an array is divided over its axes. It says where every element lies.

>>> mesh = Mesh((4, 2), ("x", "y"))
>>> s = NamedSharding(mesh, PartitionSpec(("x", "y"), None))
>>> str(s), s.shard_shape((16, 3))
('[x=4,y=2]((x, y), None)', (2, 3))

The text is what programs carry: `NamedSharding.of(str(s)) == s`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rlx.errors import ShardingError
from rlx.ir.dims import Dim, require_equal
from rlx.ir.op import attribute_type
from rlx.sharding.mesh import Mesh
from rlx.sharding.partition_spec import UNCONSTRAINED, Entry, PartitionSpec, names_of

Index = tuple[slice, ...]

_TEXT = re.compile(r"\s*\[([^\]]*)\]\s*\((.*)\)\s*", re.DOTALL)
_ENTRY = re.compile(r"\s*(?:\(([^()]*)\)|([^,()]+))\s*(?:,|$)")


@attribute_type
class NamedSharding:
    """Immutable. Arrays on all devices of the mesh: in parts along axes with an entry, whole along the others."""

    __slots__ = ("mesh", "spec")

    def __init__(self, mesh: Mesh, spec: PartitionSpec | None = None) -> None:
        if not isinstance(mesh, Mesh):
            raise ShardingError(f"NamedSharding: a Mesh is needed, got {mesh!r}")
        spec = PartitionSpec() if spec is None else spec
        if not isinstance(spec, PartitionSpec):
            raise ShardingError(f"NamedSharding: a PartitionSpec is needed, got {spec!r}; write P('x', None)")
        for entry in spec:
            mesh.axis_size(names_of(entry), "PartitionSpec")
        self.mesh, self.spec = mesh, spec

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has all of the array."""
        return all(self.mesh.axis_size(names_of(entry)) == 1 for entry in self.spec)

    @property
    def is_open(self) -> bool:
        """Whether an axis is left to the compiler."""
        return any(entry is UNCONSTRAINED for entry in self.spec)

    def entries(self, rank: int, what: str = "NamedSharding") -> list[Entry]:
        """One entry for each axis of an array."""
        if len(self.spec) > rank:
            raise ShardingError(f"{what}: {self.spec} has {len(self.spec)} entries for an array with {rank} axes")
        return [*self.spec, *[None] * (rank - len(self.spec))]

    def counts(self, rank: int, what: str = "NamedSharding") -> list[int]:
        """In how many parts each axis is divided."""
        return [self.mesh.axis_size(names_of(entry)) for entry in self.entries(rank, what)]

    def require_divides(self, dims: Sequence[int | Dim], what: str) -> None:
        """An error unless the parts are of one size; of symbolic sizes it is demanded when they are bound."""
        counts = self.counts(len(dims), what)
        for axis, (size, count) in enumerate(zip(dims, counts)):
            if count > 1 and not require_equal(size % count, 0, what):
                over = " and ".join(map(repr, names_of(self.entries(len(dims))[axis])))
                near = -(-int(size) // count) * count if isinstance(size, int) else f"a multiple of {count}"
                raise ShardingError(
                    f"{what}: axis {axis} of [{', '.join(map(str, dims))}] has the size {size}, which does not divide "
                    f"into {count} parts over the mesh axis {over} of {self.mesh}; make it {near}, or keep it whole "
                    "with None"
                )

    def shard_shape(self, dims: Sequence[int], what: str = "NamedSharding") -> tuple[int, ...]:
        """The shape of the part that one device has."""
        self.require_divides(dims, what)
        return tuple(size // count for size, count in zip(dims, self.counts(len(dims))))

    def indices(self, dims: Sequence[int]) -> list[Index]:
        """Which part each device has, in the order of `mesh.flat_ids`."""
        part = self.shard_shape(dims)
        entries = self.entries(len(dims))
        found: list[Index] = []
        for position in range(self.mesh.size):
            place = self.mesh.coordinates(position)
            starts = [_number(place, self.mesh, names_of(entry)) * size for entry, size in zip(entries, part)]
            found.append(tuple(slice(start, start + size) for start, size in zip(starts, part)))
        return found

    def with_leading(self, entry: Entry) -> NamedSharding:
        """For arrays with one more axis in front."""
        return NamedSharding(self.mesh, PartitionSpec(entry, *self.spec))

    def __str__(self) -> str:
        return f"[{self.mesh}]({', '.join(map(_entry_text, self.spec))})"

    @staticmethod
    def of(text: str | NamedSharding) -> NamedSharding:
        if isinstance(text, NamedSharding):
            return text
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ShardingError(f"{text!r} is no sharding; write [x=4,y=2](x, None, (x, y))")
        return NamedSharding(Mesh.of(match[1]), PartitionSpec(*_read_entries(match[2])))

    def __repr__(self) -> str:
        return f"NamedSharding({self.mesh!r}, {self.spec!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSharding) and self.mesh == other.mesh and self.spec == other.spec

    def __hash__(self) -> int:
        return hash((self.mesh, self.spec))


def _number(place: dict[str, int], mesh: Mesh, names: Sequence[str]) -> int:
    """Which part of an axis a device has that is divided over mesh axes."""
    number = 0
    for name in names:
        number = number * mesh.shape[name] + place[name]
    return number


def _entry_text(entry: Entry) -> str:
    if isinstance(entry, tuple):
        return f"({', '.join(entry)})"
    return "?" if entry is UNCONSTRAINED else str(entry)


def _read_entries(text: str) -> Iterator[Entry]:
    place = 0
    while place < len(text):
        match = _ENTRY.match(text, place)
        if match is None:
            raise ShardingError(f"({text}) are no entries of a sharding; write (x, None, (x, y))")
        place = match.end()
        if match[1] is not None:
            yield tuple(name.strip() for name in match[1].split(","))
        else:
            word = match[2].strip()
            yield UNCONSTRAINED if word == "?" else None if word == "None" else word
