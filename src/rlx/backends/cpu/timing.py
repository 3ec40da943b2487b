"""Times of single kernels: a table run command by command, by this thread, with a look at the clock around each.

The same commands, addresses and decisions as in the native executor (`executor_ir`), of which this is the plain
reading.
"""

from __future__ import annotations

import ctypes
import time

from rlx.backends.api import KernelTime
from rlx.backends.program.command_table import Segment, Table
from rlx.backends.program.table_layout import Command, Control, Move, Patch

_PACKED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class TimedTable:
    """One run of a table over the slots and values of a context."""

    def __init__(self, table: Table, slots: memoryview, slots_at: int, values: memoryview) -> None:
        self._table, self._slots, self._slots_at, self._values = table, slots, slots_at, values
        self._counters = [0] * table.counters
        self._seconds = [[0.0] * len(s.commands) for s in table.segments]

    def run(self) -> list[KernelTime]:
        number: int | None = 0
        while number is not None:
            number = self._run_segment(number)
        return [
            KernelTime(*label, seconds)
            for segment, spent in zip(self._table.segments, self._seconds)
            for label, seconds in zip(segment.labels, spent)
            if label[0]
        ]

    def _run_segment(self, number: int) -> int | None:
        """Run a segment; the number of the one that follows."""
        segment = self._table.segments[number]
        self._relocate(segment)
        for position, command in enumerate(segment.commands.tolist()):
            if command[Command.ENTRY] == 0:
                return self._decide(self._table.controls[command[Command.ARGS]].tolist())
            entry, arguments = _PACKED(command[Command.ENTRY]), self._slots_at + 8 * command[Command.ARGS]
            start = time.perf_counter()
            entry(arguments, 0, command[Command.ITERATIONS])
            self._seconds[number][position] += time.perf_counter() - start
        return None

    def _relocate(self, segment: Segment) -> None:
        for patch in segment.patches.tolist():
            self._slots[patch[Patch.SLOT]] = self._values[patch[Patch.VALUE]] + patch[Patch.OFFSET]

    def _decide(self, control: list[int]) -> int:
        counter = control[Control.COUNTER]
        count = self._counters[counter] = self._counters[counter] + 1 if control[Control.STEP] else 0
        holds = count < control[Control.LIMIT]
        if control[Control.PREDICATE] >= 0:
            place = self._values[control[Control.PREDICATE]] + control[Control.PREDICATE_OFFSET]
            holds = holds and ctypes.c_uint8.from_address(place).value != 0
        first = control[Control.MOVES]
        for move in self._table.moves[first : first + control[Control.MOVE_COUNT]].tolist():
            source = Move.FIRST if count == 0 else Move.ODD if count % 2 else Move.EVEN
            row = count * move[Move.NUMERATOR] // move[Move.DENOMINATOR]
            place = self._values[move[source]] + move[source + 1] + row * move[Move.STRIDE]
            self._values[move[Move.TO]] = place
        return control[Control.THEN if holds else Control.ELSE]
