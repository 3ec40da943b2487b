"""Streaming phases: what may run before the heavy part of a program, the heavy part, and what follows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rlx.ir.words import Words

if TYPE_CHECKING:
    from rlx.ir.graph import Graph


class Phase(Words):
    """When a node runs."""

    Prologue = "prologue"
    SteadyState = "steady_state"
    Epilogue = "epilogue"

    def order(self) -> int:
        """0, 1, 2 in the order of execution."""
        return _PHASES.index(self)


_PHASES = tuple(Phase)


class PhaseSchedule:
    """The phase of every node of a graph."""

    def __init__(self) -> None:
        self._phases: dict[int, Phase] = {}

    def set(self, node: int, phase: Phase) -> None:
        self._phases[node] = phase

    def get(self, node: int) -> Phase | None:
        return self._phases.get(node)

    def is_empty(self) -> bool:
        return not self._phases

    def __len__(self) -> int:
        return len(self._phases)

    def __iter__(self) -> Iterator[tuple[int, Phase]]:
        return iter(self._phases.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PhaseSchedule) and self._phases == other._phases

    __hash__ = None  # type: ignore[assignment]

    def nodes_in(self, phase: Phase) -> list[int]:
        """The nodes of one phase, by id."""
        return sorted(node for node, p in self._phases.items() if p is phase)

    def nodes_in_ordered(self, phase: Phase, schedule: Iterable[int]) -> list[int]:
        """The nodes of one phase, in the order of `schedule`."""
        return [node for node in schedule if self._phases.get(node) is phase]


def derive_phases(graph: Graph) -> PhaseSchedule:
    """Nodes without operands are Prologue, Sample and TopK are Epilogue.

    Any other node is Epilogue when it comes after the last Sample or TopK, or after the last heavy op (matmuls,
    attention); otherwise it is SteadyState.
    """
    picks = [node.op.picks for node in graph.nodes]
    lasts = (_last([node.op.is_heavy for node in graph.nodes]), _last(picks))
    first_of_epilogue = min((last + 1 for last in lasts if last is not None), default=len(picks))
    phases = PhaseSchedule()
    for i, node in enumerate(graph.nodes):
        if not node.inputs:
            phases.set(node.id, Phase.Prologue)
        elif picks[i] or i >= first_of_epilogue:
            phases.set(node.id, Phase.Epilogue)
        else:
            phases.set(node.id, Phase.SteadyState)
    return phases


def _last(flags: list[bool]) -> int | None:
    return next((i for i in reversed(range(len(flags))) if flags[i]), None)
