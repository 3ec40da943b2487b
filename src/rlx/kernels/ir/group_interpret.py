"""The interpreter of groups: roles as coroutines that switch where they wait, in an order that a seed decides.

Asynchronous operations happen at some moment after they were started. Whether anything ever waited for them does not
depend on that moment: `races` knows who has awaited whom, so that a missing wait, a stage used again too early and
two writers of one word are faults under every seed. A wait that a barrier's parity would not tell apart, arrivals
and bytes that do not add up, operations nobody awaits, and groups that wait for each other are faults as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.kernels.ir.group_state import GroupFrame, Operation, Phases, Wait, as_group
from rlx.kernels.ir.groups import (
    OWN_WIDTH,
    Arrive,
    Assume,
    AwaitPhases,
    AwaitToken,
    Copy,
    Exchange,
    Fill,
    Mma,
    Peers,
    Roles,
    RowReduce,
    Signal,
    SubgroupPlace,
    WaveMma,
    WaveStatement,
)
from rlx.kernels.ir.interpret import Frame, Interpreter, KernelFault, Lanes, apply
from rlx.kernels.ir.loop_ir import (
    Buffer,
    For,
    GroupStatement,
    Kernel,
    Load,
    LoopKind,
    Space,
    Statement,
    Store,
    Value,
    ValueType,
)
from rlx.kernels.ir.pair_calls import PairCall
from rlx.kernels.ir.races import Agent, Clock, Race, Races, join
from rlx.kernels.ir.regions import OUTSIDE, Box, Region
from rlx.kernels.ir.wave_interpret import by_wave, wave_product


class GroupInterpreter(Interpreter):
    def __init__(
        self,
        kernel: Kernel,
        args: Mapping[str, Lanes | int | float],
        seed: int = 0,
        word_bytes: int = 1,
        subgroup_width: int = 32,
    ) -> None:
        super().__init__(kernel, args)
        self.subgroup_width = subgroup_width
        self.random = random.Random(seed)
        self.races = Races(word_bytes)
        self.operations: list[Operation] = []
        self.barriers: dict[Buffer, list[Phases]] = {}
        self.block_number, self.block_count = 0, 1

    def run(self, first: int, last: int | None) -> None:
        frame = self.framed(self.top(first, last), self.races.agent("the kernel"))
        if self.kernel.parallel_loop is None:
            self.run_block(self.kernel.body.statements, frame)
            return
        for _ in self.block(self.kernel.body, frame):
            raise KernelFault(f"kernel {self.kernel.name}: a wait outside the parallel loop")

    def framed(self, frame: Frame, agent: Agent) -> GroupFrame:
        made = GroupFrame(frame.values, frame.memory, frame.written, frame.run)
        made.agent, made.tokens, made.locals = agent, {}, {}
        return made

    # Blocks, groups and threads.

    def parallel(self, loop: For, frame: Frame) -> None:
        first, last = frame.run
        self.block_count = frame.number(loop.stop)
        chosen = range(max(first, 0), self.block_count if last is None else min(last, self.block_count))
        for number in self.random.sample(chosen, len(chosen)):
            inner = self.framed(self.top(first, last), self.races.agent(f"block {number}"))
            inner.values.update(frame.values)
            inner.values[loop.index] = np.full(1, number, np.int64)
            self.block_number = number
            self.run_block(loop.body.statements, inner)

    def run_block(self, statements: Sequence[Statement], frame: GroupFrame) -> None:
        """One block from its start to its end, where everything must have been awaited."""
        self.threads = {}
        self.operations = []
        for array in self.kernel.arrays:
            if array.space is Space.SHARED:
                self.array(array, frame)
            elif array.space is Space.PHASES:
                arrivals = int(array.data[0])
                self.barriers[array] = [Phases(arrivals, arrivals) for _ in range(array.size or 0)]
        body = type(self.kernel.body)()
        body.statements = list(statements)
        self.together({frame.agent.name: self.block(body, frame)})
        unknown = [o.agent.name for o in self.operations if o.agent.number not in frame.agent.clock]
        if unknown:
            raise KernelFault(f"kernel {self.kernel.name}: {frame.agent.name} ends and never awaited {unknown[0]}")
        for barrier, states in self.barriers.items():
            for number, state in enumerate(states):
                if state.pending != state.arrivals or state.bytes:
                    raise KernelFault(
                        f"kernel {self.kernel.name}: {frame.agent.name} ends in the middle of a phase of "
                        f"{barrier.name}[{number}]: {state}"
                    )

    def together(self, running: dict[str, Iterator[object]]) -> None:
        """Run coroutines and asynchronous operations, one step of any of them at a time, until the coroutines end."""
        waits: dict[str, Wait | None] = dict.fromkeys(running)
        while running:
            able: list[str | Operation] = [n for n, wait in waits.items() if wait is None or wait.is_over()]
            able += [o for o in self.operations if o.is_ready]
            if not able:
                stuck = "; ".join(f"{name} waits for {wait.what()}" for name, wait in waits.items() if wait)
                raise KernelFault(f"kernel {self.kernel.name}: deadlock: {stuck}")
            chosen = self.random.choice(able)
            if isinstance(chosen, Operation):
                chosen.act()
                chosen.is_done = True
                continue
            try:
                step = next(running[chosen])
            except StopIteration:
                del running[chosen], waits[chosen]
                continue
            if not isinstance(step, Wait):
                raise KernelFault(f"kernel {self.kernel.name}: a barrier outside a thread loop")
            waits[chosen] = step

    def roles(self, roles: Roles, frame: GroupFrame) -> None:
        groups: dict[str, Iterator[object]] = {}
        agents = []
        for role in roles.roles:
            for copy in range(role.copies):
                name = role.name if role.copies == 1 else f"{role.name} {copy}"
                inner = Frame(dict(frame.values), dict(frame.memory), dict(frame.written), frame.run)
                group = self.framed(inner, self.races.agent(f"{name} of {frame.agent.name}", frame.agent))
                group.values[role.index] = np.full(1, copy, np.int64)
                agents.append(group.agent)
                groups[name] = self.block(role.body, group)
        self.together(groups)
        for agent in agents:
            join(frame.agent.clock, agent.clock)

    def lockstep(self, loop: For, frame: Frame) -> None:
        """The threads of a group, each an agent of its own between barriers."""
        group = as_group(frame)
        self.threads = group.locals
        threads = []
        for t in range(frame.number(loop.stop)):
            made = self.framed(
                self.thread(loop, frame, t), self.races.agent(f"thread {t} of {group.agent.name}", group.agent)
            )
            made.thread = t
            threads.append(made)
        running = {t.thread or 0: self.block(loop.body, t) for t in threads}
        waiting: dict[int, object] = {}
        while running:
            for number in self.random.sample(sorted(set(running) - set(waiting)), len(running) - len(waiting)):
                step = next(running[number], self)
                if step is self:
                    del running[number]
                else:
                    waiting[number] = step
            if not self.exchanged(loop, threads, waiting) and running:
                if len(running) < len(threads) or any(step is not None for step in waiting.values()):
                    raise self.fault(
                        loop, f"{len(waiting)} of {len(threads)} threads wait at a barrier or exchange, the rest do not"
                    )
                self.meet([t.agent for t in threads])
                waiting = {}
        for thread in threads:
            join(group.agent.clock, thread.agent.clock)

    def meet(self, agents: Sequence[Agent]) -> None:
        """A barrier: all know what each knew."""
        known: Clock = {}
        for agent in agents:
            join(known, agent.clock)
        for agent in agents:
            join(agent.clock, known)
            agent.tick()

    def exchanged(self, loop: For, threads: Sequence[GroupFrame], waiting: dict[int, object]) -> bool:
        """Let the subgroups go on of which all threads have come to the same exchange or product."""
        progress = False
        for statement in {s for s in waiting.values() if isinstance(s, Exchange | Peers | WaveStatement)}:
            width = self.subgroup_width if statement.width == OWN_WIDTH else statement.width
            for start in range(0, len(threads), width):
                members = range(start, min(start + width, len(threads)))
                if any(waiting.get(t) is not statement for t in members):
                    continue
                if isinstance(statement, WaveMma):
                    wave_product(self, statement, [threads[t] for t in members])
                elif isinstance(statement, WaveStatement):
                    by_wave(self, statement, [threads[t] for t in members])
                elif isinstance(statement, Peers):
                    self.meet([threads[t].agent for t in members])
                    numbers = [int(threads[t].read(statement.value)[0]) for t in members]
                    for place, t in enumerate(members):
                        own = numbers[place]
                        found = numbers[:place].count(own), numbers.count(own), numbers.index(own)
                        for result, number in zip(statement.results(), found):
                            threads[t].values[result] = np.full(1, number, result.dtype.numpy)
                else:
                    values = [threads[t].read(statement.value) for t in members]
                    for place, t in enumerate(members):
                        threads[t].values[statement.result] = self.exchange(statement, values, place, threads[t])
                for t in members:
                    del waiting[t]
                progress = True
        return progress

    def exchange(self, statement: Exchange, values: list[Lanes], place: int, thread: GroupFrame) -> Lanes:
        if statement.how not in ("lane", "xor"):
            kind = statement.value.type
            return apply(f"reduce_{statement.how}", [np.concatenate(values)], None, kind)
        lane = thread.number(statement.lane)
        source = lane if statement.how == "lane" else place ^ lane
        if not 0 <= source < len(values):
            raise self.fault(statement, f"thread {place} asks for thread {source} of a subgroup of {len(values)}")
        return values[source]

    def iterations(self, loop: For, frame: Frame) -> Sequence[int]:
        if loop.kind is LoopKind.WALK:
            return range(self.block_number, frame.number(loop.stop), self.block_count)
        if loop.kind is LoopKind.ELEMENTS:
            count = frame.number(loop.stop)
            return self.random.sample(range(count), count)
        return super().iterations(loop, frame)

    # Statements of groups.

    def group(self, statement: GroupStatement, frame: Frame) -> Iterator[object]:
        group = as_group(frame)
        match statement:
            case Roles():
                self.roles(statement, group)
            case Copy():
                self.copy(statement, group)
            case Mma():
                self.product(statement, group)
            case RowReduce(op, target, source):
                self.check(statement, source, True, group, group.agent)
                self.check(statement, target, False, group, group.agent)
                kind = ValueType(source.dtype)
                rows = [apply(f"reduce_{op}", [row], None, kind) for row in self.taken(statement, source, group)]
                self.given(target, np.array(rows), group)
            case Arrive(barrier, count):
                self.arrive(statement, self.state(statement, barrier, group), count, group)
            case AwaitPhases(barrier, count):
                yield from self.await_phases(statement, barrier, group.number(count), group)
            case AwaitToken(token, running):
                started = group.tokens.get(token, [])
                ended, group.tokens[token] = started[: len(started) - running], started[-running:] if running else []
                yield Wait(lambda: all(o.is_done for o in ended), lambda: token.name)
                for operation in ended:
                    join(group.agent.clock, operation.agent.clock)
            case Fill(fragment, literal):
                self.check(statement, fragment, False, group, group.agent)
                self.given(fragment, np.full((fragment.rows, fragment.cols), literal), group)
            case Assume(condition):
                if not group.read(condition)[0]:
                    raise self.fault(statement, "what is assumed does not hold")
            case PairCall():
                yield from self.call_pairs(statement, group)
            case Exchange() | Peers() | WaveStatement():
                yield statement
            case SubgroupPlace():
                number, lane = divmod(group.thread or 0, self.subgroup_width)
                count = -(-self.kernel.thread_count // self.subgroup_width)
                for value, found in zip(statement.results(), (lane, self.subgroup_width, number, count)):
                    group.values[value] = np.full(1, found, np.int64)
        if not isinstance(statement, Exchange | Peers | SubgroupPlace | WaveStatement | Roles):
            yield Wait(lambda: True, lambda: "its turn")

    def state(self, statement: Statement, barrier: Signal, group: GroupFrame) -> Phases:
        states, number = self.barriers[barrier.buffer], group.number(barrier.index)
        if not 0 <= number < len(states):
            raise self.fault(statement, f"{barrier.buffer.name}[{number}] is outside its {len(states)} barriers")
        return states[number]

    def arrive(self, statement: Statement, state: Phases, count: int, group: GroupFrame) -> None:
        if state.pending == 0:
            raise self.fault(statement, f"{group.agent.name} arrives once too often in a phase: {state}")
        join(state.gathered, group.agent.clock)
        group.agent.tick()
        state.pending -= 1
        state.bytes += count
        state.settle()

    def await_phases(self, statement: Statement, barrier: Signal, count: int, group: GroupFrame) -> Iterator[object]:
        state, number = self.state(statement, barrier, group), group.number(barrier.index)
        while state.completed != count:
            if state.completed != count - 1:
                raise self.fault(
                    statement,
                    f"wrong phase: {group.agent.name} awaits {count} phases while {state.completed} are complete; "
                    "the barrier can only tell one from the next",
                )
            yield Wait(
                lambda: state.completed != count - 1,
                lambda: f"{count} phases of {barrier.buffer.name}[{number}] ({state})",
            )
        join(group.agent.clock, state.known)

    def copy(self, copy: Copy, group: GroupFrame) -> None:
        if copy.signal is None:
            self.check(copy, copy.source, True, group, group.agent)
            self.check(copy, copy.target, False, group, group.agent)
            self.given(copy.target, self.taken(copy, copy.source, group), group)
            return
        signal = copy.signal
        state = self.state(copy, signal, group) if signal.buffer.space is Space.PHASES else None
        size = copy.target.rows * copy.target.cols * copy.target.buffer.dtype.size_bytes
        frame = self.snapshot(group)
        agent = self.races.agent(f"the copy to {copy.target.buffer.name}", group.agent, is_asynchronous=True)
        self.check(copy, copy.source, True, group, agent)
        self.check(copy, copy.target, False, group, agent)

        def act() -> None:
            self.given(copy.target, self.taken(copy, copy.source, frame), frame)
            if state is not None:
                join(state.gathered, agent.clock)
                state.bytes -= size
                state.settle()

        operation = Operation(agent, act, None)
        self.operations.append(operation)
        if state is None:
            group.tokens.setdefault(signal.buffer, []).append(operation)

    def product(self, mma: Mma, group: GroupFrame) -> None:
        total = mma.total
        keeps = bool(group.read(mma.keeps)[0])
        frame = self.snapshot(group)

        def act() -> None:
            a, b = (self.taken(mma, tile, frame).astype(mma.total.dtype.numpy) for tile in (mma.a, mma.b))
            product = (a.T if mma.a_transposed else a) @ (b.T if mma.b_transposed else b)
            self.given(total, self.taken(mma, total, frame) + product if keeps else product, frame)

        agent = group.agent
        if mma.signal is not None:
            agent = self.races.agent(f"the product {mma.total.name}", group.agent, is_asynchronous=True)
            if group.products is not None:
                join(agent.clock, group.products.agent.clock)
        tiles: list[Region | Buffer] = [mma.a, mma.b]
        for tile in [*tiles, total] if keeps else tiles:
            self.check(mma, tile, True, group, agent)
        self.check(mma, total, False, group, agent)
        if mma.signal is None:
            act()
            return
        group.products = Operation(agent, act, group.products)
        self.operations.append(group.products)
        group.tokens.setdefault(mma.signal.buffer, []).append(group.products)

    def call_pairs(self, call: PairCall, group: GroupFrame) -> Iterator[object]:
        """The function for every pair, in any order: its values and memory are those of the group, and its own."""
        for fragment in call.fragments:
            self.check(call, fragment, True, group, group.agent)
        sums = [self.taken(call, fragment, group) for fragment in call.fragments]
        outer: dict[str, Buffer | Value] = {p.name: p for p in self.kernel.params}
        scalars = {p.name: p for p in call.function.params if isinstance(p, Value)}
        memory = {
            p: group.memory[_buffer(outer[p.name])] for p in call.function.params if isinstance(p, Buffer)
        } | group.memory
        frame = self.framed(Frame({}, memory, {}, group.run), group.agent)
        for param in call.outer_params():
            if isinstance(param, Value):
                frame.values[param] = group.read(_value(outer[param.name]))
        top, left, height, width = (group.number(v) for v in (call.row, call.col, call.height, call.width))
        rows, cols = sums[0].shape
        for place in self.random.sample(range(rows * cols // 2), rows * cols // 2):
            row, col = divmod(2 * place, cols)
            given: dict[str, Any] = {"at_row": top + row, "at_column": left + col}
            given |= {f"sum{f}_{i}": values[row, col + i] for f, values in enumerate(sums) for i in range(2)}
            for e, read in enumerate(call.reads):
                start, down, along = (group.number(v) for v in read.operands())
                for i in range(2):
                    at = start + min(top + row, height - 1) * down + min(left + col + i, width - 1) * along
                    self.ordered(call, read.buffer, np.array([at]), True, group, group.agent)
                    given[f"read{e}_{i}"] = group.memory[read.buffer][at]
            frame.values.update({scalars[n]: np.full(1, x, scalars[n].dtype.numpy) for n, x in given.items()})
            yield from self.block(call.function.body, frame)

    # Memory.

    def snapshot(self, group: GroupFrame) -> Frame:
        """The group's memory with its values of now: loops give them others before an operation happens."""
        return Frame(dict(group.values), group.memory, group.written, group.run)

    def places(self, tile: Region | Buffer, frame: Frame) -> Lanes:
        """The elements of a tile, row by row."""
        if isinstance(tile, Buffer):
            return np.arange(tile.size or 0).reshape(tile.rows, tile.cols)
        if tile.is_fragment:
            return self.places(tile.buffer, frame)
        return tile.places(frame.number)

    def taken(self, statement: Statement, tile: Region | Buffer, frame: Frame) -> Lanes:
        buffer = tile if isinstance(tile, Buffer) else tile.buffer
        places = self.places(tile, frame)
        if buffer in frame.written and not frame.written[buffer][places].all():
            raise self.fault(statement, f"{buffer.name} is read before it is written")
        zero = np.zeros((), buffer.dtype.numpy)
        return np.where(places == OUTSIDE, zero, frame.memory[buffer][np.maximum(places, 0)])

    def given(self, tile: Region | Buffer, data: Lanes, frame: Frame) -> None:
        buffer = tile if isinstance(tile, Buffer) else tile.buffer
        places = self.places(tile, frame)
        frame.memory[buffer][places] = data
        self.mark(buffer, places, frame)

    def check(self, statement: Statement, tile: Region | Buffer, reads: bool, group: GroupFrame, agent: Agent) -> None:
        """A tile that is about to be read or written: inside its memory, and in order with all earlier accesses."""
        buffer = tile if isinstance(tile, Buffer) else tile.buffer
        places = self.places(tile, group).reshape(-1)
        places = places[places != OUTSIDE] if isinstance(tile, Box) else places
        size = len(self.array(buffer, group))
        wrong = places[(places < 0) | (places >= size)]
        if len(wrong):
            raise self.fault(statement, f"{buffer.name}[{wrong[0]}] is outside its {size} elements")
        self.ordered(statement, buffer, places, reads, group, agent)

    def ordered(
        self, statement: Statement, buffer: Buffer, places: Lanes, reads: bool, group: GroupFrame, agent: Agent
    ) -> None:
        if buffer.space in (Space.LOCAL, Space.TABLE):
            return
        access = self.races.read if reads else self.races.write
        race = access(group.memory[buffer], places, agent)
        if race is not None:
            raise self.fault(statement, _told(race, buffer, reads, agent))

    def load(self, load: Load, frame: Frame) -> None:
        group = as_group(frame)
        offsets, active = self.lanes(load, load.result.type, load.mask, load.align, frame)
        self.ordered(load, load.buffer, offsets[active], True, group, group.agent)
        super().load(load, frame)

    def store(self, store: Store, frame: Frame) -> None:
        group = as_group(frame)
        offsets, active = self.lanes(store, store.value.type, store.mask, store.align, frame)
        self.ordered(store, store.buffer, offsets[active], False, group, group.agent)
        super().store(store, frame)


def _buffer(param: Buffer | Value) -> Buffer:
    assert isinstance(param, Buffer)
    return param


def _value(param: Buffer | Value) -> Value:
    assert isinstance(param, Value)
    return param


def _told(race: Race, buffer: Buffer, reads: bool, agent: Agent) -> str:
    """What is wrong, in the words of whoever has to mend it."""
    place, earlier = f"{buffer.name}[{race.element}]", race.earlier
    did = "writes" if race.earlier_wrote else "reads"
    if earlier.is_asynchronous:
        return f"{agent.name} {'reads' if reads else 'writes'} {place} without awaiting {earlier.name}, which {did} it"
    if agent.is_asynchronous:
        doing = "reads" if reads else "overwrites"
        return f"{agent.name} {doing} {place}, which {earlier.name} {did}, and nothing was awaited in between"
    return f"a race: {earlier.name} {did} {place}, {agent.name} {'reads' if reads else 'writes'} it, in no order"
