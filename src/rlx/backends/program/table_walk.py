"""The walk over a command table in Python, for devices that the native executor does not run on.

Commands run in order; a control at the end of a segment counts, moves addresses and says which segment follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.backends.api import KernelTime
from rlx.backends.program.command_table import Segment, Table
from rlx.backends.program.table_layout import Command, Control, Move

Words = np.ndarray[Any, np.dtype[np.int64]]

# Of a command: its segment and its number there, and its row.
Call = Callable[[tuple[int, int], list[int]], None]


def walk(
    table: Table, values: Words, patch: Callable[[Segment], None], call: Call, byte_at: Callable[[int], bool]
) -> None:
    """Run a table: `patch` puts the addresses of a segment into its arguments, `call` runs a command, and `byte_at`
    says whether the byte at an address is not 0."""
    counters = [0] * table.counters
    number = 0
    while True:
        segment = table.segments[number]
        patch(segment)
        control = -1
        for position, command in enumerate(segment.commands.tolist()):
            if command[Command.ENTRY] == 0:
                control = command[Command.ARGS]
            else:
                call((number, position), command)
        if control < 0:
            return
        number = decide(table, table.controls[control].tolist(), counters, values, byte_at)


def decide(table: Table, control: list[int], counters: list[int], values: Words, byte_at: Callable[[int], bool]) -> int:
    """Do what a control says, on its counter and on the addresses of a run; gives the segment that follows."""
    counter = control[Control.COUNTER]
    count = counters[counter] = counters[counter] + 1 if control[Control.STEP] else 0
    holds = count < control[Control.LIMIT]
    if holds and control[Control.PREDICATE] >= 0:
        holds = byte_at(int(values[control[Control.PREDICATE]]) + control[Control.PREDICATE_OFFSET])
    first = control[Control.MOVES]
    for move in table.moves[first : first + control[Control.MOVE_COUNT]].tolist():
        source = Move.FIRST if count == 0 else Move.ODD if count % 2 else Move.EVEN
        row = count * move[Move.NUMERATOR] // move[Move.DENOMINATOR]
        values[move[Move.TO]] = values[move[source]] + move[source + 1] + row * move[Move.STRIDE]
    return int(control[Control.THEN if holds else Control.ELSE])


class Times:
    """How long each command of a table took, over all rounds of loops."""

    def __init__(self, table: Table) -> None:
        self._labels = [label for segment in table.segments for label in segment.labels]
        self._starts = np.cumsum([0, *(len(segment.commands) for segment in table.segments)])
        self._seconds = [0.0] * len(self._labels)

    def add(self, place: tuple[int, int], seconds: float) -> None:
        self._seconds[int(self._starts[place[0]]) + place[1]] += seconds

    def found(self) -> list[KernelTime]:
        return [KernelTime(*label, s) for label, s in zip(self._labels, self._seconds) if label != ("", "")]
