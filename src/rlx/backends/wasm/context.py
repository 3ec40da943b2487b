"""One run of a program: the addresses of its values in the linear memory, and the walk over its command tables."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from rlx.backends.api import KernelTime
from rlx.backends.program.command_table import Segment, Table
from rlx.backends.program.plan import Plan
from rlx.backends.program.table_layout import Command
from rlx.backends.program.table_walk import Call, Times, Words, walk
from rlx.backends.wasm.sandbox import Sandbox
from rlx.errors import InternalError

# The entry that stands for a copy of bytes, which needs no kernel.
COPY = -1


class Context:
    """The values of a run, by the numbers of its plan. Argument slots lie at `slots_at` of the linear memory."""

    def __init__(self, plan: Plan, sandbox: Sandbox, names: Mapping[int, str], slots_at: int) -> None:
        self.plan, self.sandbox, self._names, self._slots_at = plan, sandbox, names, slots_at
        self.values: Words = np.zeros(max(1, plan.values), np.int64)
        sandbox.write(slots_at, plan.slots)

    def run(self, table: Table) -> None:
        self._walk(table, lambda place, command: self._call(command))

    def run_timed(self, table: Table) -> list[KernelTime]:
        """How long each command took, over all rounds of loops."""
        taken = Times(table)

        def measured(place: tuple[int, int], command: list[int]) -> None:
            start = time.perf_counter()
            self._call(command)
            taken.add(place, time.perf_counter() - start)

        self._walk(table, measured)
        return taken.found()

    def _walk(self, table: Table, call: Call) -> None:
        walk(table, self.values, self._patch, call, lambda address: bool(self.sandbox.bytes[address]))

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
