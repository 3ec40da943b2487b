"""Groups of nodes that become kernels, and an order in which they can run, kept up to date while groups are joined.

Two groups may be one kernel only if no third one stands between them, needing the one and feeding the other. Every
group has a place, and stands behind all that it needs; so a search for a way from one to another never looks behind the
second or in front of the first. Joining two moves only what stands between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from rlx.errors import InternalError
from rlx.ir.graph import Node, NodeId

# A search that has seen so many groups gives up, and the two stay apart: they are far from each other anyway.
MAX_SEARCH = 2048


class Group:
    """Nodes that one kernel computes; a product or a joined value comes first. `kind` is that of `kernel_kind`."""

    __slots__ = ("kind", "nodes")

    def __init__(self, kind: str, node: Node) -> None:
        self.kind = kind
        self.nodes = [node.id]

    @property
    def head(self) -> NodeId:
        return self.nodes[0]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.nodes}>"


class GroupOrder:
    """Which groups need which, and a place for each behind all that it needs."""

    def __init__(self, needs: Mapping[Group, Sequence[Group]]) -> None:
        """`needs` has the groups in an order in which they can run."""
        # Dicts instead of sets: their order, and so all that follows from it, is the same in every run.
        self._before = {g: dict.fromkeys(producers) for g, producers in needs.items()}
        self._after: dict[Group, dict[Group, None]] = {g: {} for g in needs}
        for group, producers in self._before.items():
            for producer in producers:
                self._after[producer][group] = None
        self._place = {g: place for place, g in enumerate(needs)}

    def reaches(self, start: Group, end: Group) -> bool:
        """Whether `end` needs `start`, or something that does."""
        return start in self._before[end] or self.is_between(start, end)

    def is_between(self, start: Group, end: Group) -> bool:
        """Whether `end` needs another group that needs `start`."""
        found = self._between(start, end)
        return found is None or any(start in self._before[g] for g in found)

    def _between(self, start: Group, end: Group, limit: int | None = MAX_SEARCH) -> dict[Group, None] | None:
        """The groups behind `start` that `end` needs; None if there are more than `limit`."""
        first = self._place[start]
        stack, seen = [end], dict[Group, None]()
        while stack:
            for earlier in self._before[stack.pop()]:
                if self._place[earlier] > first and earlier not in seen:
                    if len(seen) == limit:
                        return None
                    seen[earlier] = None
                    stack.append(earlier)
        return seen

    def _behind(self, start: Group, end: Group) -> list[Group]:
        """The groups in front of `end` that need `start`."""
        last = self._place[end]
        stack, seen = [start], dict[Group, None]()
        while stack:
            for later in self._after[stack.pop()]:
                if self._place[later] < last and later not in seen:
                    seen[later] = None
                    stack.append(later)
        return list(seen)

    def join(self, into: Group, rest: Group) -> None:
        """Make `into` stand for both; nothing may be between them."""
        first, second = (into, rest) if self._place[into] < self._place[rest] else (rest, into)
        # Chains are joined without a search, however far apart they stand, so this one must not give up.
        needed = self._between(first, second, limit=None)
        assert needed is not None and not any(first in self._before[g] for g in needed)
        needing = self._behind(first, second)
        # What the second needs comes first, then both, then what needs the first: in places that all these had.
        moved = [*sorted(needed, key=self._place.__getitem__), into, *sorted(needing, key=self._place.__getitem__)]
        places = sorted(self._place[g] for g in (*needed, *needing, first, second))
        self._place.update(zip(moved, places))
        self._replace(rest, [into])
        self._before[into].pop(into, None)
        self._after[into].pop(into, None)
        for producer in self._before.pop(rest):
            if producer is not into:
                self._before[into][producer] = None
                self._after[producer][into] = None
        del self._place[rest]

    def remove(self, group: Group) -> None:
        """Leave out a group that its readers compute themselves: they need what it needs."""
        self._replace(group, list(self._before[group]))
        del self._before[group], self._place[group]

    def _replace(self, group: Group, by: Sequence[Group]) -> None:
        """Let nobody need `group`, nor be needed by it, but let its readers need `by`."""
        for producer in self._before[group]:
            del self._after[producer][group]
        for reader in self._after.pop(group):
            del self._before[reader][group]
            for other in by:
                if other is not reader:
                    self._before[reader][other] = None
                    self._after[other][reader] = None

    def __iter__(self) -> Iterator[Group]:
        """All groups, those that others need first, else in the order of their first nodes in the program.

        Not of their last ones: the gradient of a weight may be joined with the optimiser's update, which stands at the
        end of a training step, and all that the gradient is computed from would be kept until then.
        """
        waiting = {g: len(producers) for g, producers in self._before.items()}
        # A node may be in several groups that compute it for themselves, but only in one as its last.
        by_place = {(min(g.nodes), max(g.nodes)): g for g in waiting}
        places = {g: place for place, g in by_place.items()}
        ready = [place for place, g in by_place.items() if not waiting[g]]
        heapq.heapify(ready)
        count = 0
        while ready:
            group = by_place[heapq.heappop(ready)]
            count += 1
            yield group
            for later in self._after[group]:
                waiting[later] -= 1
                if not waiting[later]:
                    heapq.heappush(ready, places[later])
        if count != len(waiting):
            stuck = [g for g, left in waiting.items() if left]
            raise InternalError(f"{len(stuck)} groups of nodes need each other, among them {stuck[0]!r}")
