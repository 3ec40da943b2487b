"""The memory of one run: addresses, argument slots, command tables. Used by one run at a time and kept for the next."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from rlx.backends.cpu.params import CpuParams
from rlx.backends.cpu.plan import HostCall, Plan, Table
from rlx.backends.cpu.records import WORD, Command, Job
from rlx.backends.memory import aligned_words


class TableRun(NamedTuple):
    """A table in the memory of a context."""

    address: int  # of the job
    at: int  # the job's first word
    width: int


class Context:
    """A plan made concrete: its tables with real addresses in them.

    `values` are the addresses of the run, numbered by the program; who runs a table writes the ones it needs first.
    """

    def __init__(self, plan: Plan) -> None:
        program = plan.program
        tables = [p for p in plan.parts if isinstance(p, Table)]
        sizes = [Job.WORDS + t.commands.size for t in tables]
        # Jobs first: each is a whole number of lines, so that their counters are lines apart.
        slots_at = sum(sizes)
        values_at = slots_at + len(plan.slots)
        self._memory, self._start = aligned_words(values_at + 1 + len(program.values))
        self._memory[slots_at:values_at] = plan.slots
        self._words = self._memory.data
        self.values = self._words[values_at:]
        for number, constant in program.constants:
            self.values[number] = constant.ctypes.data
        self._params_at = values_at + program.first_param
        self._params_serial = -1
        runs: list[TableRun] = []
        at = 0
        for table, words in zip(tables, sizes):
            self._write_job(table, at, slots_at, values_at)
            runs.append(TableRun(self._address(at), at, table.width))
            at += words
        following = iter(runs)
        self.parts: list[TableRun | HostCall] = [p if isinstance(p, HostCall) else next(following) for p in plan.parts]

    def _address(self, word: int) -> int:
        return self._start + WORD * word

    def _write_job(self, table: Table, at: int, slots_at: int, values_at: int) -> None:
        commands_at = at + Job.WORDS
        commands = self._memory[commands_at : commands_at + table.commands.size].reshape(-1, Command.WORDS)
        commands[...] = table.commands
        commands[:, Command.ARGS] = self._address(slots_at) + WORD * table.commands[:, Command.ARGS]
        job = self._memory[at:commands_at]
        job[Job.COMMANDS], job[Job.TICKETS] = self._address(commands_at), table.tickets
        job[Job.PATCHES], job[Job.PATCH_COUNT] = table.patches.ctypes.data, len(table.patches)
        job[Job.SLOTS], job[Job.VALUES] = self._address(slots_at), self._address(values_at)

    def reset(self, table: TableRun) -> None:
        """Let the table begin with its first ticket."""
        self._words[table.at + Job.NEXT] = 0
        self._words[table.at + Job.COMPLETED] = 0

    def set_params(self, params: CpuParams) -> None:
        """Write the addresses of the params, unless they are there already."""
        if self._params_serial != params.serial:
            self._memory[self._params_at : self._params_at + len(params.addresses)] = params.addresses
            self._params_serial = params.serial


class Contexts:
    """The contexts of one plan that no run uses at the moment."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Atomic without a lock, as in Arenas.
        self._free: deque[Context] = deque()

    def take(self) -> Context:
        try:
            return self._free.pop()
        except IndexError:
            return Context(self.plan)

    def give(self, context: Context) -> None:
        self._free.append(context)
