"""`Context`: what one run of a program at a time has: arguments of its launches, addresses, and memory between kernels.

It walks the command tables of a plan, as the CPU's executor does, with launches for calls: a launch copies its
arguments, so the next round of a loop may change them at once.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.api import Guards, KernelTime, ShortCall
from rlx.backends.cuda.code import GpuCode
from rlx.backends.cuda.driver_types import LaunchConfig
from rlx.backends.cuda.errors import CudaError
from rlx.backends.cuda.hopper.launching import Surroundings
from rlx.backends.cuda.memory import DeviceBuffer
from rlx.backends.cuda.modules import Function, Launch, launch
from rlx.backends.cuda.streams import Event, GraphExec, Stream
from rlx.backends.program.command_table import Segment, Table
from rlx.backends.program.device_programs import DeviceParams
from rlx.backends.program.inputs import Shapes
from rlx.backends.program.plan import Plan
from rlx.backends.program.program import ARENA, LoopStep, NativeStep, Program
from rlx.backends.program.table_layout import Command, Control, Patch
from rlx.backends.program.table_walk import Words, decide
from rlx.errors import InternalError
from rlx.kernels.machines import machine_named

# Launches from which on one graph costs less than each by itself, and graphs that a context keeps.
GRAPH_FROM = 3
KEPT_GRAPHS = 4

# The entry that stands for a copy of bytes: the driver copies them itself.
COPY = -1


def codes_of(program: Program) -> dict[int, GpuCode]:
    """All code of a program and of the bodies of its loops, by its number."""
    found: dict[int, GpuCode] = {}
    for step in program.steps:
        if isinstance(step, NativeStep):
            if not isinstance(step.code, GpuCode):
                raise InternalError(f"@{program.name}: {step.label} was not compiled for a GPU")
            found[step.code.address] = step.code
        elif isinstance(step, LoopStep):
            for body in step.bodies:
                found |= codes_of(body)
    return found


class _Call(NamedTuple):
    """A launch that is ready but for the values of its arguments."""

    code: GpuCode | None  # None: a copy
    function: Function | None  # None: a copy, or to be found when it is needed
    blocks: int
    arguments: int  # the number of the first one
    label: tuple[str, str]
    prepared: tuple[Any, ...] = ()  # what the driver is given before the stream and the arguments
    fixed: frozenset[int] = frozenset()  # arguments, by number, that point to what no kernel writes


class _SegmentCalls(NamedTuple):
    """`patches` are slots, the values that go there, and offsets; `aligned` the slots whose addresses must be multiples
    of numbers of bytes, and of which, less one."""

    patches: tuple[Words, Words, Words]
    calls: tuple[_Call, ...]
    aligned: tuple[Words, Words]
    control: int


class _Placed:
    """Launches whose arguments lie where the driver reads them. Addresses go there at each run, since memory comes and
    goes; then each launch is one call, with nothing else to look at."""

    def __init__(self, segment: _SegmentCalls, slots: Words, stream: Stream) -> None:
        self._launch = stream.gpu.driver.raw("cuLaunchKernelEx")
        # Kept, since the driver has their addresses; `words` are the same memory for single numbers.
        self._slots: Words = slots.copy()
        self._words = self._slots.data
        self._pointers: Words = self._slots.ctypes.data + 8 * np.arange(len(slots), dtype=np.int64)
        masks = dict(zip(segment.aligned[0].tolist(), segment.aligned[1].tolist(), strict=True))
        # Where an address goes, the number of its value, how far behind it, and which of its bits must be 0.
        self._moves = [(slot, *rest, masks.get(slot, 0)) for slot, *rest in zip(*(p.tolist() for p in segment.patches))]
        launched = [(call, call.code) for call in segment.calls if call.code is not None]
        self._configs = [LaunchConfig(c.blocks, 1, 1, k.threads, 1, 1, 0, stream.handle, None, 0) for c, k in launched]
        self._functions = [call.function or code.function(stream.gpu) for call, code in launched]
        arguments = [ctypes.c_void_p(self._pointers.ctypes.data + 8 * call.arguments) for call, _ in launched]
        handles = [function.handle for function in self._functions]
        self._calls = list(zip(map(ctypes.byref, self._configs), handles, arguments, strict=True))

    def launch(self, values: memoryview) -> bool:
        """Launch with the addresses of now; False, and nothing is done, where one is not aligned as code asks."""
        words = self._words
        for slot, value, offset, mask in self._moves:
            address = values[value] + offset
            if address & mask:
                return False
            words[slot] = address
        for config, function, arguments in self._calls:
            code = self._launch(config, function, arguments, None)
            if code:
                raise CudaError(code, "cuLaunchKernelEx")
        return True


class Context:
    """The launches of a plan on one stream. Only one run at a time may use it."""

    def __init__(self, plan: Plan, codes: Mapping[int, GpuCode], constants: Mapping[int, int], stream: Stream) -> None:
        """`constants` are the addresses of the values of the plan that never change."""
        self.plan, self.stream, self._driver = plan, stream, stream.gpu.driver
        self._begins_early = machine_named(stream.gpu.info.arch).has_early_launch
        self._codes = codes
        # One more than the plan has: memory that forms of kernels use while they run.
        self.values: Words = np.zeros(plan.values + 1, np.int64)
        # The same memory, for single words, without NumPy's conversions.
        self.words = self.values.data
        for number, address in constants.items():
            self.words[number] = address
        # Those whose addresses are in place; an idle context must not keep the weights of a model.
        self._params: weakref.ref[DeviceParams[Any]] | None = None
        self._slots: Words = np.concatenate([plan.slots, np.zeros(1, np.int64)])
        self._slots_at = self._slots.ctypes.data
        self._pointers: Words = self._slots_at + 8 * np.arange(len(self._slots), dtype=np.int64)
        self._pointers_at = self._pointers.ctypes.data
        tables = [p for p in plan.parts if isinstance(p, Table)]
        self._tables = {id(t): self._prepared(t) for t in tables}
        self._replayable = {id(t): self._is_replayable(t) for t in tables}
        self._short = {id(t): self._short_launches(t) for t in tables}
        self._arena: DeviceBuffer | None = None
        self.scratch_bytes = max(map(self._needed_scratch, self._tables.values()), default=0)
        # By table, the addresses that its arguments have now, and whether they are multiples of what its kernels ask.
        self._placed: dict[int, tuple[bytes, bool]] = {}
        # By table and addresses; and those of the last runs, which are recorded when they come again.
        self._graphs: dict[tuple[int, bytes], GraphExec] = {}
        self._seen: deque[tuple[int, bytes]] = deque(maxlen=2 * KEPT_GRAPHS)
        # While a graph is recorded: whether the next kernel follows another one, and may begin before it ends.
        self._follows_kernel = False

    def take_arena(self) -> None:
        """Memory for values between kernels; it stays with the context, so that its addresses do not change."""
        if self._arena is None and self.plan.arena_bytes:
            what = f"values between kernels of @{self.plan.program.name}"
            self._arena = self.stream.gpu.pool.allocate(self.plan.arena_bytes, self.stream, what)
            self.words[ARENA] = self._arena.address

    def place_scratch(self, scratch: DeviceBuffer | None) -> None:
        """Memory that kernels use one after the other; whoever gives it holds it until all are on the stream."""
        self.words[self.plan.values] = 0 if scratch is None else scratch.address

    def _needed_scratch(self, segments: Sequence[_SegmentCalls]) -> int:
        """The most that a call needs."""
        most = 0
        for code, first in ((c.code, c.arguments) for s in segments for c in s.calls if c.code is not None):
            for form in code.forms:
                words = self._slots[first : first + form.argument_count].tolist()
                most = max(most, form.scratch_bytes(words, self.stream.gpu))
        return most

    def place_params(self, params: DeviceParams[Any]) -> None:
        """Params stay where they are until others come."""
        if self._params is None or self._params() is not params:
            program = self.plan.program
            self.values[program.first_param : program.addresses] = params.addresses
            self._params = weakref.ref(params)

    def _prepared(self, table: Table) -> list[_SegmentCalls]:
        return [self._segment(s) for s in table.segments]

    def _segment(self, segment: Segment) -> _SegmentCalls:
        calls, control = [], -1
        values = dict(segment.patches[:, [Patch.SLOT, Patch.VALUE]].tolist())
        for command, label in zip(segment.commands.tolist(), segment.labels):
            entry = command[Command.ENTRY]
            if entry == 0:
                control = command[Command.ARGS]
                continue
            code = None if entry == COPY else self._codes[entry]
            # Code that has other ways is loaded when none of them can be taken.
            function = None if code is None or code.forms else code.function(self.stream.gpu)
            blocks, first = command[Command.ITERATIONS], command[Command.ARGS]
            prepared = () if code is None or function is None else _before_stream(function, blocks, code.threads)
            fixed = self._fixed_arguments(code, first, values) if code is not None else frozenset[int]()
            calls.append(_Call(code, function, blocks, first, label, prepared, fixed))
        aligned = [(c.arguments + n, size - 1) for c in calls if c.code is not None for n, size in c.code.aligned]
        slots, masks = np.ascontiguousarray(np.array(aligned, np.int64).reshape(-1, 2).T)
        where, which, offsets = np.ascontiguousarray(segment.patches[:, [Patch.SLOT, Patch.VALUE, Patch.OFFSET]].T)
        return _SegmentCalls((where, which, offsets), tuple(calls), (slots, masks), control)

    def _fixed_arguments(self, code: GpuCode, first: int, values: Mapping[int, int]) -> frozenset[int]:
        """Of a call whose arguments begin at slot `first`; `values` are those whose addresses go into slots."""
        program = self.plan.program
        count = code.forms[0].argument_count if code.forms else 0
        params = range(program.first_param, program.addresses)
        return frozenset(n for n in range(count) if values.get(first + n) in params)

    def run(self, table: Table) -> None:
        """Enqueue a table; where a branch depends on a value, wait for it. A table that is run again with the same
        addresses becomes a graph, which is one call for all its launches."""
        if self.stream.is_capturing:
            # A graph in a graph could not hold launches that begin early.
            self._walk(table, self._launch)
            self._follows_kernel = False
            return
        short = self._short[id(table)]
        if short is not None and short.launch(self.words):
            return
        if not self._replayable[id(table)]:
            self._walk(table, self._launch)
            return
        key = (id(table), self.values.tobytes())
        graph = self._graphs.get(key)
        if graph is not None:
            graph.launch(self.stream)
        elif key in self._seen:
            self._record(table, key)
        else:
            # Memory comes back in turns: the same addresses may come again after others.
            self._seen.append(key)
            self._walk(table, self._launch)

    def _is_replayable(self, table: Table) -> bool:
        """Whether the host is not needed in between, and launches are so many that a graph pays."""
        calls = sum(len(segment.calls) for segment in self._tables[id(table)])
        return calls >= GRAPH_FROM and not (table.controls[:, Control.PREDICATE] >= 0).any()

    def _record(self, table: Table, key: tuple[int, bytes]) -> None:
        """Record a table on a stream of its own: others may be putting work on that of the device."""
        stream = self.stream
        self.stream = Stream(stream.gpu)
        try:
            with self.stream.capture() as graph:
                self._walk(table, self._launch)
        finally:
            self.stream, self._follows_kernel = stream, False
        while len(self._graphs) >= KEPT_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        ready = self._graphs[key] = graph.instantiate()
        ready.launch(stream)

    def _short_launches(self, table: Table) -> _Placed | None:
        """Those of a table that is too short for a graph, if they are nothing but plain launches."""
        segments = self._tables[id(table)]
        if self._replayable[id(table)] or len(segments) > 1 or segments[0].control >= 0:
            return None
        is_plain = all(call.code is not None and not call.code.forms for call in segments[0].calls)
        can_launch = is_plain and self._driver.bound("cuLaunchKernelEx") is not None
        return _Placed(segments[0], self._slots, self.stream) if can_launch else None

    def run_timed(self, table: Table) -> list[KernelTime]:
        """The same kernel by kernel: how long each took, all rounds of a loop together."""
        seconds: dict[int, float] = {}
        start, stop = (Event(self.stream.gpu, timed=True) for _ in range(2))

        def measured(call: _Call) -> None:
            self.stream.record(start)
            self._launch(call)
            self.stream.record(stop)
            stop.synchronize()
            # Calls of one table differ by their arguments.
            seconds[call.arguments] = seconds.get(call.arguments, 0.0) + stop.seconds_since(start)

        self._walk(table, measured)
        calls = [call for segment in self._tables[id(table)] for call in segment.calls]
        return [KernelTime(*call.label, seconds.get(call.arguments, 0.0)) for call in calls]

    def _walk(self, table: Table, launch: Callable[[_Call], None]) -> None:
        segments = self._tables[id(table)]
        if len(segments) == 1 and segments[0].control < 0:
            # Memory comes back: where all lies where it lay before, arguments are right as they are.
            addresses = self.values.tobytes()
            placed = self._placed.get(id(table))
            if placed is None or placed[0] != addresses:
                self._relocate(segments[0].patches)
                placed = self._placed[id(table)] = addresses, self._is_aligned(segments[0])
            for call in segments[0].calls:
                launch(call if placed[1] else self._anywhere(call))
            return
        counters, number = [0] * table.counters, 0
        while True:
            segment = segments[number]
            self._relocate(segment.patches)
            everywhere = not self._is_aligned(segment)
            for call in segment.calls:
                launch(self._anywhere(call) if everywhere else call)
            if segment.control < 0:
                return
            number = decide(table, table.controls[segment.control].tolist(), counters, self.values, self._byte_at)

    def _is_aligned(self, segment: _SegmentCalls) -> bool:
        slots, masks = segment.aligned
        return not len(slots) or not bool((self._slots[slots] & masks).any())

    def _relocate(self, patches: tuple[Words, Words, Words]) -> None:
        where, which, offsets = patches
        if len(where):
            self._slots[where] = self.values[which] + offsets

    def _anywhere(self, call: _Call) -> _Call:
        """The call with code for the addresses that its arguments have now."""
        code = call.code
        if code is None or not any(int(self._slots[call.arguments + n]) % size for n, size in code.aligned):
            return call
        function = code.anywhere().function(self.stream.gpu)
        return call._replace(function=function, prepared=_before_stream(function, call.blocks, code.threads))

    def _launch(self, call: _Call) -> None:
        stream = self.stream.handle
        if call.code is None:
            source, to, size = (int(x) for x in self._slots[call.arguments : call.arguments + 3])
            self._driver.cuMemcpyDtoDAsync_v2(to, source, size, stream)
            self._follows_kernel = False
            return
        early, self._follows_kernel = self._follows_kernel, self.stream.is_capturing and self._begins_early
        if call.code.forms:
            words = self._slots[call.arguments : call.arguments + call.code.forms[0].argument_count].tolist()
            around = Surroundings(early, call.fixed, self.words[self.plan.values])
            if any(form.launch(words, self.stream, around) for form in call.code.forms):
                return
        arguments = self._pointers_at + 8 * call.arguments
        if early:
            function = call.function or call.code.function(self.stream.gpu)
            launch(function, Launch(call.blocks, call.code.threads, dependent=True), arguments, self.stream)
            return
        prepared = call.prepared
        if not prepared:
            prepared = _before_stream(call.code.function(self.stream.gpu), call.blocks, call.code.threads)
        self._driver.cuLaunchKernel(*prepared, stream, arguments, None)

    def _byte_at(self, address: int) -> bool:
        byte = ctypes.c_uint8()
        self._driver.cuMemcpyDtoHAsync_v2(ctypes.addressof(byte), address, 1, self.stream.handle)
        self.stream.synchronize()
        return byte.value != 0


_ONE, _NONE = ctypes.c_uint(1), ctypes.c_uint(0)


def _before_stream(function: Function, blocks: int, threads: int) -> tuple[Any, ...]:
    """The first arguments of a launch in the types of the driver, which need no conversion at each call."""
    return function.handle, ctypes.c_uint(blocks), _ONE, _ONE, ctypes.c_uint(threads), _ONE, _ONE, _NONE


class Contexts:
    """Contexts of one plan, for the shapes of inputs and params, that nobody uses at the moment."""

    def __init__(self, plan: Plan, make: Callable[[Plan], Context], inputs: Shapes, params: Shapes) -> None:
        self.plan, self._make, self.inputs, self.params = plan, make, inputs, params
        # Dims, type and bytes of the outputs that have memory of their own.
        self.stored = [(dims, dtype, math.prod(dims) * dtype.itemsize) for dims, dtype in plan.stored]
        # The last call that was made for them, and for which params, class and guards.
        self.short: tuple[weakref.ref[DeviceParams[Any]], type, Guards, ShortCall] | None = None
        # Atomic without a lock.
        self._free: deque[Context] = deque()

    def take(self) -> Context:
        try:
            return self._free.pop()
        except IndexError:
            return self._make(self.plan)

    def give(self, context: Context) -> None:
        self._free.append(context)
