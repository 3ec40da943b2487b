"""The memory of one run: addresses, argument slots, command tables. Used by one run at a time and kept for the next."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.api import KernelTime
from rlx.backends.cpu.executor_layout import LINE, Job
from rlx.backends.cpu.timing import TimedTable
from rlx.backends.donation import Held
from rlx.backends.memory import aligned_words
from rlx.backends.program.arena import Arena
from rlx.backends.program.command_table import Segment as PlannedSegment
from rlx.backends.program.command_table import Table
from rlx.backends.program.inputs import Shapes
from rlx.backends.program.params import CpuParams
from rlx.backends.program.plan import HostCall, Plan
from rlx.backends.program.program import ARENA
from rlx.backends.program.table_layout import ENDLESS, WORD, Command, Control, Move, Segment


class TableRun(NamedTuple):
    """A table in the memory of a context."""

    address: int  # of the job
    next_at: int  # the words that say how far it is
    completed_at: int
    table: Table
    width: int  # threads that can be busy at the same time
    argument: ctypes.c_void_p  # the address as native code takes it: made once, not at every run


class Context:
    """A plan made concrete: its tables with real addresses in them.

    `values` are the addresses of the run, numbered by the plan; who runs a table writes the ones it needs first, and
    sets how far the table is, in `words`, to 0.
    """

    def __init__(self, plan: Plan) -> None:
        program = plan.program
        tables = [p for p in plan.parts if isinstance(p, Table)]
        sizes = [_words(t) for t in tables]
        # Jobs first: each is a whole number of lines, so that their counters are lines apart.
        slots_at = sum(sizes)
        values_at = slots_at + len(plan.slots)
        self._memory, self._start = aligned_words(values_at + plan.values)
        self._memory[slots_at:values_at] = plan.slots
        self.words = self._memory.data
        self.values = self.words[values_at:]
        for number, constant in plan.constants:
            self.values[number] = constant.ctypes.data
        self._slots_at = slots_at
        self._values_at = values_at
        self._params_at = values_at + program.first_param
        self.params_serial = -1  # of the params whose addresses are in place
        self.held_serial = -1  # of the held inputs whose addresses are in place
        runs: list[TableRun] = []
        at = 0
        for table, words in zip(tables, sizes):
            self._write_job(table, at, slots_at, values_at)
            job = self._address(at)
            runs.append(TableRun(job, at + Job.NEXT, at + Job.COMPLETED, table, table.width, ctypes.c_void_p(job)))
            at += words
        following = iter(runs)
        self.tables = runs
        self.parts: list[TableRun | HostCall] = [p if isinstance(p, HostCall) else next(following) for p in plan.parts]

    def _address(self, word: Any) -> Any:
        return self._start + WORD * word

    def place_of(self, value: int) -> int:
        """Where the address of that number lies itself."""
        return int(self._address(self._values_at + value))

    def _write_job(self, table: Table, at: int, slots_at: int, values_at: int) -> None:
        """The job, its segments, controls, counters, and the commands of all segments, one after the other."""
        segments_at = at + Job.WORDS
        controls_at = segments_at + len(table.segments) * Segment.WORDS
        counters_at = controls_at + table.controls.size
        commands_at = counters_at + table.counters
        for number, segment in enumerate(table.segments):
            self._write_segment(segment, segments_at + number * Segment.WORDS, commands_at, slots_at, controls_at)
            commands_at += segment.commands.size
        controls = self._memory[controls_at:counters_at].reshape(-1, Control.WORDS)
        controls[...] = table.controls
        controls[:, Control.COUNTER] = self._address(counters_at + table.controls[:, Control.COUNTER])
        moves = table.moves.ctypes.data + WORD * Move.WORDS * table.controls[:, Control.MOVES]
        controls[:, Control.MOVES] = moves
        for field in (Control.THEN, Control.ELSE):
            controls[:, field] = self._address(segments_at + Segment.WORDS * table.controls[:, field])
        job = self._memory[at:segments_at]
        job[Job.START] = self._address(segments_at)
        job[Job.SLOTS], job[Job.VALUES] = self._address(slots_at), self._address(values_at)

    def _write_segment(
        self, segment: PlannedSegment, at: int, commands_at: int, slots_at: int, controls_at: int
    ) -> None:
        commands = self._memory[commands_at : commands_at + segment.commands.size].reshape(-1, Command.WORDS)
        commands[...] = segment.commands
        arguments = segment.commands[:, Command.ARGS]
        is_kernel = segment.commands[:, Command.ENTRY] != 0
        at_slots, at_controls = slots_at + arguments, controls_at + Control.WORDS * arguments
        commands[:, Command.ARGS] = self._address(np.where(is_kernel, at_slots, at_controls))
        record = self._memory[at : at + Segment.WORDS]
        record[Segment.COMMANDS], record[Segment.TICKETS] = self._address(commands_at), segment.tickets
        record[Segment.PATCHES], record[Segment.PATCH_COUNT] = segment.patches.ctypes.data, len(segment.patches)
        record[Segment.IS_LAST], record[Segment.IS_NARROW] = segment.is_last, segment.is_narrow

    def timed(self, run: TableRun) -> list[KernelTime]:
        """Run a table command by command; how long each kernel took."""
        return TimedTable(run.table, self.words[self._slots_at :], self._address(self._slots_at), self.values).run()

    def set(self, arena: Arena | None, inputs: Sequence[int]) -> None:
        """Write the addresses of the arena, if there is one, and of all inputs."""
        self.held_serial = -1
        values, number = self.values, ARENA + 1
        if arena is not None:
            values[ARENA] = arena.address
        for address in inputs:
            values[number] = address
            number += 1

    def set_held(self, held: Held) -> None:
        """Write the addresses of inputs that are held, unless they are there already."""
        if self.held_serial != held.serial:
            # First, so that a run that is interrupted here leaves no mixture.
            self.held_serial = -1
            for number, address, _ in held.inputs:
                self.values[ARENA + 1 + number] = address
            self.held_serial = held.serial

    def set_params(self, params: CpuParams) -> None:
        """Write the addresses of the params."""
        self._memory[self._params_at : self._params_at + len(params.addresses)] = params.addresses
        self.params_serial = params.serial


def _words(table: Table) -> int:
    """Of a job with everything that belongs to it, a whole number of lines."""
    records = len(table.segments) * Segment.WORDS + table.controls.size + table.counters
    commands = sum(s.commands.size for s in table.segments)
    return -(-(Job.WORDS + records + commands) // LINE) * LINE


class Contexts:
    """The contexts of one plan that no run uses at the moment. `fastest_ns` is what the kernels of the quickest plain
    run took, where somebody wants to know."""

    def __init__(self, plan: Plan, inputs: Shapes, params: Shapes) -> None:
        """`inputs` and `params` are the shapes that the plan is for."""
        self.plan, self.inputs, self.params = plan, inputs, params
        self.fastest_ns = ENDLESS
        # Atomic without a lock, as in Arenas.
        self.free: deque[Context] = deque()

    def take(self) -> Context:
        try:
            return self.free.pop()
        except IndexError:
            return Context(self.plan)
