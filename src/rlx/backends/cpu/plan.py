"""A program with its sizes: command tables, argument slots and where every address goes, for one binding.

Host calls cut the program into tables. Inside a table a command waits for the ones before it only where it must: where
it reads what they write, or writes what they read or write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.cpu.program import ARENA, HostStep, NativeStep, Operand, Place, Program
from rlx.backends.cpu.records import Command, Patch
from rlx.errors import BindingError
from rlx.ir.dims import Dim
from rlx.ir.graph import NodeId
from rlx.ir.op import Op
from rlx.ir.shape import Size

# More tickets than any machine has use for: beyond, several iterations make one ticket.
MAX_TICKETS = 1024
# Tickets that other threads could take, below which inviting them costs more than they save: kernels cut their work
# into iterations of some microseconds, and waking a thread takes about as long.
WORTH_SHARING = 4

Words = np.ndarray[Any, np.dtype[np.int64]]


class Table(NamedTuple):
    """Commands that run without the host. Arguments are given as word numbers in the slots until there is memory."""

    commands: Words
    patches: Words
    tickets: int
    width: int  # threads that can be busy at the same time; 1 where sharing does not pay


class Located(NamedTuple):
    """An array in the memory of a run."""

    value: int
    offset: int
    dims: tuple[int, ...]
    dtype: np.dtype[Any]


class HostCall(NamedTuple):
    """An op with its sizes, the node that it computes and those that it reads."""

    op: Op
    node: NodeId
    operands: tuple[NodeId, ...]


class Plan:
    """Everything that runs with the same sizes share; immutable."""

    def __init__(self, program: Program, binding: Mapping[str, int]) -> None:
        self.program = program
        self._binding = binding
        self._sizes: dict[Size, int] = {}
        self.arena_bytes = self.size(program.lir.arena_size)
        self.stored = [self._type(n) for n in program.stored]
        slots: list[int] = []
        self.parts: list[Table | HostCall] = []
        pending: list[NativeStep] = []
        for step in (*program.steps, None):
            if isinstance(step, NativeStep):
                pending.append(step)
                continue
            if pending:
                self.parts.append(_table(self, pending, slots))
                pending = []
            if isinstance(step, HostStep):
                self.parts.append(HostCall(step.node.op.bind(binding), step.node.id, tuple(step.node.inputs)))
        self.slots: Words = np.array(slots, np.int64)
        located = {i for p in self.parts if isinstance(p, HostCall) for i in (*p.operands, p.node)}
        located |= set(program.graph.outputs)
        self.arrays = {n: self._located(n) for n in located if len(program.graph.nodes[n].shapes) == 1}

    def size(self, size: Size) -> int:
        """The number that a size is here."""
        if isinstance(size, int):
            return size
        known = self._sizes.get(size)
        if known is None:
            value = size.bind(self._binding)
            if isinstance(value, Dim):
                unknown = ", ".join(value.symbols)
                raise BindingError(f"@{self.program.lir.name}: no input determines {unknown}, which the program needs")
            known = self._sizes[size] = value
        return known

    def _type(self, node: NodeId) -> tuple[tuple[int, ...], np.dtype[Any]]:
        shape = self.program.graph.shape(node)
        return tuple(self.size(d) for d in shape.dims), shape.dtype.numpy

    def _located(self, node: NodeId) -> Located:
        place = self.program.place(node)
        return Located(place.value, self.size(place.offset), *self._type(node))


def _table(plan: Plan, steps: Sequence[NativeStep], slots: list[int]) -> Table:
    """The table of `steps`; their arguments are appended to `slots`."""
    commands: list[list[int]] = []
    patches: list[tuple[int, int, int]] = []
    dependencies = _Dependencies(plan)
    ticket = after = spare = window = width = 0
    for step in steps:
        extents = [plan.size(a) for a in step.arguments if not isinstance(a, Operand)]
        iterations = step.grid(extents)
        if iterations == 0:
            continue
        operands = [a for a in step.arguments if isinstance(a, Operand)]
        if dependencies.add(operands):
            after, window = ticket, 0
        grain = -(-iterations // MAX_TICKETS)
        count = -(-iterations // grain)
        row = [0] * Command.WORDS
        row[Command.ENTRY], row[Command.ARGS] = step.code.address, len(slots)
        row[Command.FIRST], row[Command.END], row[Command.AFTER] = ticket, ticket + count, after
        row[Command.GRAIN], row[Command.ITERATIONS] = grain, iterations
        commands.append(row)
        for argument in step.arguments:
            if isinstance(argument, Operand):
                place: Place = argument.place
                patches.append((len(slots), place.value, plan.size(place.offset)))
                slots.append(0)
            else:
                slots.append(plan.size(argument))
        ticket, window = ticket + count, window + count
        spare, width = spare + count - 1, max(width, window)
    return Table(
        np.array(commands, np.int64).reshape(-1, Command.WORDS),
        np.array(patches, np.int64).reshape(-1, Patch.WORDS),
        ticket,
        width if spare >= WORTH_SHARING else 1,
    )


class _Dependencies:
    """Which commands must wait: those that touch memory that was written since the last wait, or write what was read.
    Inputs, params and constants are never written."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clear()

    def _clear(self) -> None:
        self._read: list[tuple[int, int, int]] = []
        self._written: list[tuple[int, int, int]] = []

    def add(self, operands: Sequence[Operand]) -> bool:
        """Note a command; whether it has to wait for the ones before it."""
        reads = [self._range(o) for o in operands if not o.writes]
        writes = [self._range(o) for o in operands if o.writes]
        waits = _meet(reads, self._written) or _meet(writes, self._written) or _meet(writes, self._read)
        if waits:
            self._clear()
        self._read += reads
        self._written += writes
        return waits

    def _range(self, operand: Operand) -> tuple[int, int, int]:
        """The memory of an operand: which, and from where to where in it."""
        if operand.place.value != ARENA:
            return operand.place.value, 0, 1
        start, size = (self._plan.size(s) for s in operand.slot)
        return ARENA, start, start + size


def _meet(some: Sequence[tuple[int, int, int]], others: Sequence[tuple[int, int, int]]) -> bool:
    return any(m == n and a < d and c < b for m, a, b in some for n, c, d in others)
