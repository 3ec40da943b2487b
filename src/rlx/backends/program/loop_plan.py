"""Loops and branches as segments of a command table.

A body is a program with addresses of its own: its arena, its operands, its results. A control sets them at the start of
every round: rows of `xs` and `ys` move on, carries change between two places, all else stays. So the kernels of a body
read and write where the program around it has its values, and nothing is copied but what a body returns untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlx.backends.memory import ALIGNMENT
from rlx.backends.program.command_table import Address, Branch, Range, TableBuilder
from rlx.backends.program.copies import CHUNK
from rlx.backends.program.program import ARENA, LoopStep, NativeStep, Operand, Place, Program
from rlx.backends.program.table_layout import ENDLESS, Move
from rlx.compile.memory.loops import LoopNeeds, carry_count, spare_sizes, with_loops
from rlx.errors import InternalError
from rlx.ir.shape import Shape, Size
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan

if TYPE_CHECKING:
    from rlx.backends.program.plan import Plan


class Frame:
    """A program, or a body, with numbers for its addresses, which begin with that of its arena. `extent` is how much of
    the memory from there on it needs, that of its own loops included."""

    def __init__(self, plan: Plan, program: Program, base: int, arena_bytes: int) -> None:
        self.plan, self.program, self.base = plan, program, base
        self.extent = self.arena_bytes = arena_bytes

    @property
    def arena(self) -> int:
        return self.base + ARENA

    def size_of(self, shape: Shape) -> int:
        return self.plan.size(shape.byte_size)

    def address(self, place: Place) -> Address:
        return Address(self.base + place.value, self.plan.size(place.offset))

    def range(self, operand: Operand) -> Range:
        address = self.address(operand.place)
        if operand.place.value != ARENA:
            return Range(address, address.value, 0, 1, operand.writes)
        start, size = (self.plan.size(s) for s in operand.slot)
        return Range(address, address.value, start, start + size, operand.writes)

    def add(self, table: TableBuilder, step: NativeStep) -> None:
        """Append a kernel."""
        size = self.plan.size
        arguments = [self.range(a) if isinstance(a, Operand) else size(a) for a in step.arguments]
        iterations = step.grid([a for a in arguments if isinstance(a, int)])
        table.call(step.code.address, arguments, iterations, step.label)

    def inputs(self) -> list[int]:
        """The addresses of the operands, in order."""
        return [self.base + ARENA + 1 + i for i in range(len(self.program.inputs))]


def working_bytes(program: Program) -> Size:
    """What a run of a program needs between its kernels, its loops included: `Frame.extent` for all sizes."""
    loops = []
    for step in program.steps:
        if isinstance(step, LoopStep):
            body, count = step.bodies[-1], carry_count(step.op)
            sizes = tuple(body.visible[o].shape.byte_size for o in body.outputs[:count])
            stays = tuple(body.returned[number] == number for number in range(count))
            loops.append(LoopNeeds(step.op, sizes, stays, tuple(map(working_bytes, step.bodies))))
    return with_loops(program.arena_size, loops)


def plan_loop(table: TableBuilder, frame: Frame, step: LoopStep) -> None:
    """Append a loop or a branch; what comes after it goes into the newest segment."""
    loop = _Loop(table, frame, step)
    if isinstance(step.op, Scan):
        loop.scan(step.op)
    elif isinstance(step.op, While):
        loop.repeat(step.op)
    elif isinstance(step.op, If):
        loop.branch()
    else:
        raise InternalError(f"{step.op.mnemonic} is no loop")


class _Path(NamedTuple):
    """Where a value is in round i: at `first` for i = 0, then at `even` or `odd`; `stride * (i * rows // rounds)` bytes
    further on."""

    first: Address
    even: Address
    odd: Address
    stride: int = 0
    rows: int = 1
    rounds: int = 1

    def move(self, to: int) -> list[int]:
        assert Move.WORDS == 10
        return [to, *self.first, *self.even, *self.odd, self.stride, self.rows, self.rounds]


def _still(place: Address) -> _Path:
    return _Path(place, place, place)


def _after(place: Address, amount: int) -> Address:
    return Address(place.value, place.offset + amount)


def _carried(init: Address, stored: _Path) -> _Path:
    """Where a round reads what the round before it has stored, beginning with `init`."""
    return _Path(init, _after(stored.odd, -stored.stride), _after(stored.even, -stored.stride), stored.stride)


class _Copy(NamedTuple):
    source: Address
    to: Address
    size: int


class _Loop:
    """One loop under construction. Its scratch memory begins where the arena of the frame around it ends."""

    def __init__(self, table: TableBuilder, frame: Frame, step: LoopStep) -> None:
        self.table, self.frame, self.plan = table, frame, frame.plan
        self.bodies = [self.plan.frame(body) for body in step.bodies]
        self.operands = [frame.address(p) for p in step.operands]
        self.results = [frame.address(p) for p in step.results]
        self.sizes = [frame.size_of(t) for t in step.types]
        sizes = self.output_sizes(self.bodies[-1])[: carry_count(step.op)]
        stays = [self.is_in_place(self.bodies[-1], number) for number in range(len(sizes))]
        self.scratch_end = _aligned(frame.arena_bytes)
        # In the order in which they are taken.
        self.spare = iter([self.scratch(self.plan.size(s)) for s in spare_sizes(step.op, sizes, stays)])
        self.moves: list[list[int]] = []

    def scan(self, op: Scan) -> None:
        (body,) = self.bodies
        rounds = self.plan.size(op.length)
        if rounds == 0:
            if not op.save_trajectory:
                self.copy(_Copy(*c) for c in zip(self.operands[: op.num_carry], self.results, self.sizes))
            return
        inits, bcasts, xs = op.split(self.operands)
        outputs = self.output_sizes(body)
        stored = [self.carry_path(op, i, outputs[i], rounds) for i in range(op.num_carry)]
        begun = self.begin(body, stored, inits, outputs)
        ys = zip(self.results[op.num_carry :], outputs[op.num_carry :])
        rows = zip(xs, self.input_sizes(body)[op.num_carry + op.num_bcast :])
        self.give(body, [*begun, *map(_still, bcasts), *(_rows(op, *x, rounds) for x in rows)])
        finish = self.receive(body, [*stored, *(_rows(op, *y, rounds) for y in ys)])
        if op.save_trajectory and op.num_checkpoints:
            finish += self.keep(body, op, outputs, rounds)
        moves, counter = self.moved(), self.table.counter()
        enter = self.table.end()
        first = self.table.newest
        self.run(body, finish)
        again = self.table.end()
        after = self.table.newest
        self.table.decide(enter, Branch(counter, False, rounds, first, after, moves=moves))
        self.table.decide(again, Branch(counter, True, rounds, first, after, moves=moves))

    def carry_path(self, op: Scan, carry: int, size: int, rounds: int) -> _Path:
        """Where a carry is stored: in rows of its trajectory, or by turns in two places of which the last round takes
        that of the result."""
        if self.is_in_place(self.bodies[0], carry):
            return _still(self.results[carry])
        if not op.save_trajectory:
            result, other = self.results[carry], next(self.spare)
            even, odd = (result, other) if rounds % 2 else (other, result)
            return _Path(even, even, odd)
        if op.num_checkpoints:
            even, odd = next(self.spare), next(self.spare)
            return _Path(even, even, odd)
        return _rows(op, self.results[carry], size, rounds)

    def is_in_place(self, body: Frame, carry: int) -> bool:
        """Whether a body stores a carry over the one that it was given, so that one place is enough."""
        return body.program.returned[carry] == carry

    def begin(
        self, body: Frame, stored: Sequence[_Path], inits: Sequence[Address], sizes: Sequence[int]
    ) -> list[_Path]:
        """Where rounds read the carries. A place that is read and stored to begins as a copy: what the loop is given
        belongs to others."""
        found = []
        for number, (path, init, size) in enumerate(zip(stored, inits, sizes)):
            if self.is_in_place(body, number):
                self.copy([_Copy(init, path.first, size)])
            found.append(path if self.is_in_place(body, number) else _carried(init, path))
        return found

    def keep(self, body: Frame, op: Scan, sizes: Sequence[int], rounds: int) -> list[_Copy]:
        """Copies of carries to the rows of checkpoints: row k is written in all rounds after that of row k - 1, so that
        it holds in the end what its own round, the last of them, has stored."""
        copies = []
        for number, result, size in zip(range(op.num_carry), self.results, sizes):
            path = _rows(op, result, size, op.num_checkpoints)._replace(rows=op.num_checkpoints, rounds=rounds)
            row = self.plan.value()
            self.moves.append(path.move(row))
            copies.append(_Copy(Address(self.received[number], 0), Address(row, 0), size))
        return copies

    def repeat(self, op: While) -> None:
        condition, body = self.bodies
        count = len(self.results)
        stored = []
        for number, result in enumerate(self.results):
            if self.is_in_place(body, number):
                stored.append(_still(result))
                continue
            even, odd = next(self.spare), next(self.spare)
            stored.append(_Path(even, even, odd))
        begun = self.begin(body, stored, self.operands[:count], self.sizes)
        inputs = [*begun, *map(_still, self.operands[count:])]
        for frame in self.bodies:
            self.give(frame, inputs)
        holds = next(self.spare)
        is_true, finish = self.receive(condition, [_still(holds)]), self.receive(body, stored)
        moves, counter, unused = self.moved(), self.table.counter(), self.table.counter()
        limit = ENDLESS if op.max_iterations is None else op.max_iterations
        enter = self.table.end()
        first = self.table.newest
        self.run(condition, is_true)
        test = self.table.end()
        second = self.table.newest
        self.run(body, finish)
        again = self.table.end()
        after = self.table.newest
        self.table.decide(enter, Branch(counter, False, limit, first, after, moves=moves))
        self.table.decide(test, Branch(unused, False, 1, second, after, holds))
        self.table.decide(again, Branch(counter, True, limit, first, after, moves=moves))
        current = [Address(v, 0) for v in condition.inputs()[:count]]
        results = zip(current, self.results, self.sizes)
        self.copy(_Copy(*c) for i, c in enumerate(results) if not self.is_in_place(body, i))

    def branch(self) -> None:
        predicate, then, otherwise = self.bodies
        self.give(predicate, [_still(self.operands[0])])
        holds = next(self.spare)
        is_true = self.receive(predicate, [_still(holds)])
        finish = []
        for frame in (then, otherwise):
            self.give(frame, [_still(x) for x in self.operands[1:]])
            finish.append(self.receive(frame, [_still(r) for r in self.results]))
        moves, unused = self.moved(), self.table.counter()
        enter = self.table.end()
        first = self.table.newest
        self.run(predicate, is_true)
        test = self.table.end()
        second = self.table.newest
        self.run(then, finish[0])
        leave = self.table.end()
        third = self.table.newest
        self.run(otherwise, finish[1])
        end = self.table.end()
        after = self.table.newest
        self.table.decide(enter, Branch(unused, False, 1, first, first, moves=moves))
        self.table.decide(test, Branch(unused, False, 1, second, third, holds))
        for control in (leave, end):
            self.table.decide(control, Branch(unused, False, 1, after, after))

    # Memory.

    def scratch(self, size: int) -> Address:
        place = Address(self.frame.arena, self.scratch_end)
        self.scratch_end += _aligned(size)
        return place

    def input_sizes(self, body: Frame) -> list[int]:
        return [body.size_of(leaf.shape) for leaf in body.program.inputs]

    def output_sizes(self, body: Frame) -> list[int]:
        return [body.size_of(body.program.visible[o].shape) for o in body.program.outputs]

    def give(self, body: Frame, paths: Sequence[_Path]) -> None:
        """Let a body find its operands."""
        self.moves += [path.move(to) for path, to in zip(paths, body.inputs(), strict=True)]

    def receive(self, body: Frame, paths: Sequence[_Path]) -> list[_Copy]:
        """Let a body store its results; the copies of those that it does not compute itself. `received` are then the
        numbers of the addresses of the results."""
        program, copies = body.program, []
        self.received = []
        for number, node, path, size in zip(
            program.returned, program.outputs, paths, self.output_sizes(body), strict=True
        ):
            if number >= 0:
                to = body.base + ARENA + 1 + number
            else:
                to = self.plan.value()
                copies.append(_Copy(body.address(program.visible[node].place), Address(to, 0), size))
            self.moves.append(path.move(to))
            self.received.append(to)
        return copies

    def moved(self) -> tuple[int, int]:
        """All moves. Bodies run one after the other, so their arenas are one place, after all scratch memory."""
        place = _still(Address(self.frame.arena, self.scratch_end))
        return self.table.moves([*(place.move(body.arena) for body in self.bodies), *self.moves])

    # Commands.

    def run(self, body: Frame, copies: Sequence[_Copy]) -> None:
        """Append a body; what its own loops need counts for the memory of the frame around it."""
        for step in body.program.steps:
            if isinstance(step, NativeStep):
                body.add(self.table, step)
            elif isinstance(step, LoopStep):
                plan_loop(self.table, body, step)
            else:
                raise InternalError(f"@{body.program.name}: a host call inside of a native loop")
        self.copy(copies)
        self.frame.extent = max(self.frame.extent, self.scratch_end + body.extent)

    def copy(self, copies: Iterable[_Copy]) -> None:
        entry = self.plan.copy_entry()
        for source, to, size in copies:
            memory = _range(source, size, False), _range(to, size, True)
            self.table.call(entry, [*memory, size], -(-size // CHUNK), ("copy", "carried on unchanged"))


def _rows(op: Scan, start: Address, size: int, rounds: int) -> _Path:
    """The rows of an array, one in each round: from the first one up, or from the last one down."""
    first, stride = (_after(start, size * (rounds - 1)), -size) if op.reverse else (start, size)
    return _Path(first, first, first, stride)


def _range(place: Address, size: int, writes: bool) -> Range:
    """The memory of a copy. Addresses of their own (offset 0) are one piece; parts of an arena are told apart."""
    return Range(place, place.value, place.offset, place.offset + max(size, 1), writes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
