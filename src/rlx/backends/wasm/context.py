"""One run of a program: the addresses of its values in the linear memory, and the walk over its command tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlx.backends.api import KernelTime
from rlx.backends.cpu.command_table import Segment, Table
from rlx.backends.cpu.plan import Plan
from rlx.backends.cpu.table_layout import Command, Control, Move
from rlx.backends.wasm.sandbox import Sandbox
from rlx.errors import InternalError

# The entry that stands for a copy of bytes, which needs no kernel.
COPY = -1

Words = np.ndarray[Any, np.dtype[np.int64]]


class Context:
    """The values of a run, by the numbers of its plan. Argument slots lie at `slots_at` of the linear memory."""

    def __init__(self, plan: Plan, sandbox: Sandbox, names: Mapping[int, str], slots_at: int) -> None:
        self.plan, self.sandbox, self._names, self._slots_at = plan, sandbox, names, slots_at
        self.values: Words = np.zeros(max(1, plan.values), np.int64)
        sandbox.write(slots_at, plan.slots)

    def run(self, table: Table) -> None:
        self._walk(table, lambda number, command: self._call(command))

    def run_timed(self, table: Table) -> list[KernelTime]:
        """How long each command took, over all rounds of loops."""
        labels = [label for segment in table.segments for label in segment.labels]
        starts = np.cumsum([0, *(len(segment.commands) for segment in table.segments)])
        seconds = [0.0] * len(labels)

        def measured(place: tuple[int, int], command: list[int]) -> None:
            start = time.perf_counter()
            self._call(command)
            seconds[int(starts[place[0]]) + place[1]] += time.perf_counter() - start

        self._walk(table, measured)
        return [KernelTime(*label, s) for label, s in zip(labels, seconds) if label != ("", "")]

    def _walk(self, table: Table, call: Callable[[tuple[int, int], list[int]], None]) -> None:
        counters = [0] * table.counters
        number = 0
        while True:
            segment = table.segments[number]
            self._patch(segment)
            control = -1
            for position, command in enumerate(segment.commands.tolist()):
                if command[Command.ENTRY] == 0:
                    control = command[Command.ARGS]
                else:
                    call((number, position), command)
            if control < 0:
                return
            number = self._decide(table, table.controls[control].tolist(), counters)

    def _patch(self, segment: Segment) -> None:
        """Addresses into argument slots."""
        if len(segment.patches):
            where, which, offsets = segment.patches.T
            words = self.sandbox.bytes[self._slots_at : self._slots_at + self.plan.slots.nbytes].view(np.int64)
            words[where] = self.values[which] + offsets

    def _call(self, command: list[int]) -> None:
        entry, arguments = command[Command.ENTRY], self._slots_at + 8 * command[Command.ARGS]
        if entry == COPY:
            source, to, size = self.sandbox.bytes[arguments : arguments + 24].view(np.int64).tolist()
            self.sandbox.copy(source, to, size)
            return
        if entry not in self._names:
            raise InternalError(f"@{self.plan.program.name}: code {entry} is not in its module")
        self.sandbox.call(self._names[entry], arguments, command[Command.ITERATIONS])

    def _decide(self, table: Table, control: list[int], counters: list[int]) -> int:
        counter = control[Control.COUNTER]
        count = counters[counter] = counters[counter] + 1 if control[Control.STEP] else 0
        holds = count < control[Control.LIMIT]
        if holds and control[Control.PREDICATE] >= 0:
            address = int(self.values[control[Control.PREDICATE]]) + control[Control.PREDICATE_OFFSET]
            holds = bool(self.sandbox.bytes[address])
        first = control[Control.MOVES]
        for move in table.moves[first : first + control[Control.MOVE_COUNT]].tolist():
            source = Move.FIRST if count == 0 else Move.ODD if count % 2 else Move.EVEN
            row = count * move[Move.NUMERATOR] // move[Move.DENOMINATOR]
            self.values[move[Move.TO]] = self.values[move[source]] + move[source + 1] + row * move[Move.STRIDE]
        return int(control[Control.THEN if holds else Control.ELSE])
