"""Command tables under construction: segments of commands, and the controls that lead from one to another.

Inside a segment a command waits for the ones before it only where it must: where it reads what they write, or writes
what they read or write. A new segment begins when everything before it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlx.backends.program.table_layout import Command, Control, Move, Patch

# More tickets than any machine has use for: beyond, several iterations make one ticket.
MAX_TICKETS = 1024
# A ticket should touch this many bytes, a few microseconds of reading, as long as there are enough of them to share:
# fetching the next one costs tens of nanoseconds, and what is read for it is not asked for before.
TICKET_BYTES, ENOUGH_TICKETS = 1 << 17, 128
# Tickets that other threads could take, below which inviting them costs more than they save: kernels cut their work
# into iterations of some microseconds, and waking a thread takes about as long.
WORTH_SHARING = 4
# Bytes of an iteration from which it takes longer than waking a thread: a few blocks of a product or convolution.
LONG_ITERATION = 1 << 17
# A segment that one thread runs in one go must end soon, for Ctrl-C.
MAX_NARROW = 64

Words = np.ndarray[Any, np.dtype[np.int64]]


# The kind of a kernel and the ops in it, for people.
Label: TypeAlias = tuple[str, str]


class Segment(NamedTuple):
    """Commands in order. Arguments are word numbers in the slots, controls are numbers, until there is memory."""

    commands: Words
    patches: Words
    tickets: int
    is_last: bool
    is_narrow: bool
    labels: tuple[Label, ...]  # of the commands


class Table(NamedTuple):
    """Segments that run without the host, beginning with the first. Controls name counters, moves and segments by
    number."""

    segments: tuple[Segment, ...]
    controls: Words
    moves: Words
    counters: int
    width: int  # threads that can be busy at the same time; 1 where sharing does not pay


class Address(NamedTuple):
    """So many bytes after one of the addresses of a run."""

    value: int
    offset: int


class Range(NamedTuple):
    """An argument that is memory: where it begins, and the bytes that belong to it, for dependencies: those from
    `start` to `stop` after `memory`."""

    address: Address
    memory: int
    start: int
    stop: int
    writes: bool


class Branch(NamedTuple):
    """A control; see `table_layout.Control`. `counter` is its number."""

    counter: int
    steps: bool
    limit: int
    then: int
    otherwise: int
    predicate: Address = Address(-1, 0)
    moves: tuple[int, int] = (0, 0)  # the first one and how many


def _grain(iterations: int, touched: int) -> int:
    """How many iterations of a kernel that touches so many bytes make one ticket."""
    by_bytes = min(TICKET_BYTES * iterations // max(touched, 1), iterations // ENOUGH_TICKETS)
    return max(1, by_bytes, -(-iterations // MAX_TICKETS))


class _Open:
    """A segment that is not finished."""

    def __init__(self) -> None:
        self.commands: list[list[int]] = []
        self.patches: list[tuple[int, int, int]] = []
        self.dependencies = _Dependencies()
        self.ticket = self.after = self.spare = self.window = self.width = 0
        self.has_control = False
        self.labels: list[Label] = []

    def close(self) -> Segment:
        return Segment(
            np.array(self.commands, np.int64).reshape(-1, Command.WORDS),
            np.array(self.patches, np.int64).reshape(-1, Patch.WORDS),
            self.ticket,
            not self.has_control,
            self.spare < WORTH_SHARING and len(self.commands) <= MAX_NARROW,
            tuple(self.labels),
        )


class TableBuilder:
    """Appends to the newest segment; argument slots are appended to `slots`, which several tables share."""

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots
        self._segments = [_Open()]
        self._controls: list[list[int]] = []
        self._moves: list[list[int]] = []
        self._counters = 0

    def call(self, entry: int, arguments: Sequence[Range | int], iterations: int, label: Label) -> None:
        """A kernel: its entry, memory and sizes in parameter order, and how many iterations it has."""
        if iterations == 0:
            return
        segment = self._segments[-1]
        if segment.dependencies.add([a for a in arguments if isinstance(a, Range)]):
            segment.after, segment.window = segment.ticket, 0
        touched = sum(a.stop - a.start for a in arguments if isinstance(a, Range))
        grain = _grain(iterations, touched)
        count = -(-iterations // grain)
        self._append(entry, len(self._slots), count, segment.after, grain, iterations)
        segment.labels.append(label)
        for argument in arguments:
            if isinstance(argument, Range):
                segment.patches.append((len(self._slots), *argument.address))
                self._slots.append(0)
            else:
                self._slots.append(argument)
        segment.window += count
        segment.spare += (count - 1) * (WORTH_SHARING if touched >= count * LONG_ITERATION else 1)
        segment.width = max(segment.width, segment.window)

    def _append(self, entry: int, arguments: int, count: int, after: int, grain: int, iterations: int) -> None:
        segment = self._segments[-1]
        row = [0] * Command.WORDS
        row[Command.ENTRY], row[Command.ARGS] = entry, arguments
        row[Command.FIRST], row[Command.END], row[Command.AFTER] = segment.ticket, segment.ticket + count, after
        row[Command.GRAIN], row[Command.ITERATIONS] = grain, iterations
        segment.commands.append(row)
        segment.ticket += count

    def counter(self) -> int:
        """A word that controls count in."""
        self._counters += 1
        return self._counters - 1

    def moves(self, moves: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Addresses that controls set, as `Branch.moves` names them."""
        start = len(self._moves)
        self._moves += [list(m) for m in moves]
        return start, len(moves)

    def end(self) -> int:
        """End the segment with a control, to be given to `decide` when its targets are known, and begin another."""
        segment = self._segments[-1]
        segment.has_control = True
        self._controls.append([])
        self._append(0, len(self._controls) - 1, 1, segment.ticket, 1, 1)
        segment.labels.append(("", ""))
        self._segments.append(_Open())
        return len(self._controls) - 1

    @property
    def newest(self) -> int:
        """The number of the segment that is appended to."""
        return len(self._segments) - 1

    def decide(self, control: int, branch: Branch) -> None:
        row = [0] * Control.WORDS
        row[Control.COUNTER], row[Control.STEP], row[Control.LIMIT] = branch.counter, int(branch.steps), branch.limit
        row[Control.PREDICATE], row[Control.PREDICATE_OFFSET] = branch.predicate
        row[Control.MOVES], row[Control.MOVE_COUNT] = branch.moves
        row[Control.THEN], row[Control.ELSE] = branch.then, branch.otherwise
        self._controls[control] = row

    def build(self) -> Table:
        width = max(s.width if s.spare >= WORTH_SHARING else 1 for s in self._segments)
        return Table(
            tuple(s.close() for s in self._segments),
            np.array(self._controls, np.int64).reshape(-1, Control.WORDS),
            np.array(self._moves, np.int64).reshape(-1, Move.WORDS),
            self._counters,
            max(width, 1),
        )


class _Dependencies:
    """Which commands must wait: those that touch memory that was written since the last wait, or write what was read.
    Inputs, params and constants are never written."""

    def __init__(self) -> None:
        self._read: list[Range] = []
        self._written: list[Range] = []

    def add(self, operands: Sequence[Range]) -> bool:
        """Note a command; whether it has to wait for the ones before it."""
        reads = [o for o in operands if not o.writes]
        writes = [o for o in operands if o.writes]
        waits = _meet(reads, self._written) or _meet(writes, self._written) or _meet(writes, self._read)
        if waits:
            self._read, self._written = [], []
        self._read += reads
        self._written += writes
        return waits


def _meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a.memory == b.memory and a.start < b.stop and b.start < a.stop for a in some for b in others)
