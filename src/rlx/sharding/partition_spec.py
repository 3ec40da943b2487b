"""`PartitionSpec`: over which mesh axes each axis of an array is divided.

>>> PartitionSpec("x", None, ("y", "z"))
PartitionSpec('x', None, ('y', 'z'))

One entry per array axis: None keeps it whole, a name divides it over that mesh axis, several names over all of them,
the first one slowest. Axes behind the last entry stay whole. `UNCONSTRAINED` leaves an axis to the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlx.errors import ShardingError


class _Unconstrained:
    """The one value of its class."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()

Entry = None | str | tuple[str, ...] | _Unconstrained


class PartitionSpec:
    """See the module; `P` for short."""

    __slots__ = ("entries",)
    UNCONSTRAINED = UNCONSTRAINED

    def __init__(self, *entries: Entry) -> None:
        self.entries: tuple[Entry, ...] = tuple(_entry(e) for e in entries)
        used = [name for entry in self.entries if isinstance(entry, str | tuple) for name in names_of(entry)]
        if len(set(used)) != len(used):
            twice = next(name for name in used if used.count(name) > 1)
            raise ShardingError(f"PartitionSpec: the mesh axis {twice!r} is used twice; it divides one array axis only")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Entry:
        return self.entries[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self._without_tail == other._without_tail

    def __hash__(self) -> int:
        return hash(self._without_tail)

    @property
    def _without_tail(self) -> tuple[Entry, ...]:
        """The entries that matter: axes that are not named stay whole."""
        last = max((i + 1 for i, e in enumerate(self.entries) if e is not None), default=0)
        return self.entries[:last]

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(repr, self.entries))})"


P = PartitionSpec


def _entry(entry: Any) -> Entry:
    if entry is None or isinstance(entry, str | _Unconstrained):
        return entry
    if isinstance(entry, tuple | list) and all(isinstance(name, str) for name in entry):
        names = tuple(entry)
        return names if len(names) > 1 else names[0] if names else None
    raise ShardingError(f"PartitionSpec: an entry is None, a name of a mesh axis or a tuple of names, got {entry!r}")


def names_of(entry: Entry) -> tuple[str, ...]:
    """The mesh axes of an entry, the slowest first."""
    if isinstance(entry, str):
        return (entry,)
    return entry if isinstance(entry, tuple) else ()
