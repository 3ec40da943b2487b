"""`Runner`: runs one program on a GPU. Runs of all threads follow each other; their results may still be being computed
when a run returns, and whoever reads them waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from rlx.backends.api import KernelTime
from rlx.backends.kernel_times import times
from rlx.backends.program.command_table import Segment, Table
from rlx.backends.program.device_programs import DeviceParams
from rlx.backends.program.host_calls import HostCalls
from rlx.backends.program.inputs import Shapes, bound_sizes, wrong_input
from rlx.backends.program.plan import HostCall, Located, Plan
from rlx.backends.program.program import ARENA, Leaf, Program
from rlx.backends.program.table_layout import Command
from rlx.backends.program.table_walk import Call, Times, Words, walk
from rlx.backends.text_gpu.arrays import DeviceArray
from rlx.backends.text_gpu.code import codes_of
from rlx.backends.text_gpu.device import TextGpu
from rlx.backends.text_gpu.memory import Array, DeviceBuffer
from rlx.errors import InternalError
from rlx.ir.graph import NodeId

# Combinations of shapes whose plans are kept.
KEPT_PLANS = 64
# The entry that stands for a copy of bytes, which needs no kernel where all of them are words.
COPY = -1


class Runner:
    """A program on a GPU with its plans."""

    def __init__(self, program: Program, gpu: TextGpu) -> None:
        self.program, self.gpu = program, gpu
        self.codes = codes_of(program)
        self._is_loaded = False
        self._constants: dict[int, DeviceArray] = {}
        self._plans = lru_cache(KEPT_PLANS)(self._plan)

    def run(self, inputs: Mapping[str, Array | DeviceArray], params: DeviceParams[DeviceArray]) -> list[DeviceArray]:
        arrays = [self._input(leaf, inputs) for leaf in self.program.inputs]
        plan = self._plans(tuple(a.shape for a in arrays), params.symbolic_shapes)
        with self.gpu.lock:
            if not self._is_loaded:
                self.gpu.load(self.codes.values())
                self._is_loaded = True
            self._make_exclusive(arrays)
            return _Run(self, plan, arrays, params).results()

    def _input(self, leaf: Leaf, inputs: Mapping[str, Array | DeviceArray]) -> DeviceArray:
        given = inputs.get(leaf.name)
        if isinstance(given, DeviceArray) and given.dtype == leaf.dtype and given.gpu is self.gpu:
            return given
        if isinstance(given, np.ndarray) and given.dtype == leaf.dtype:
            return DeviceArray.of(self.gpu, given, f"the input {leaf.name!r}")
        raise wrong_input(self.program, leaf, given)

    def _make_exclusive(self, arrays: list[DeviceArray]) -> None:
        """Copy inputs that the run writes into where another input lies in the same memory."""
        for number in self.program.overwritten:
            others = (a for i, a in enumerate(arrays) if i != number)
            if any(a.buffer is arrays[number].buffer for a in others):
                arrays[number] = arrays[number].space.copy(arrays[number])

    def _plan(self, inputs: Shapes, params: Shapes) -> Plan:
        return Plan(self.program, bound_sizes(self.program, inputs, params), lambda: COPY)

    def constant(self, array: Array) -> int:
        """The address of a constant, which stays on the GPU."""
        if id(array) not in self._constants:
            self._constants[id(array)] = DeviceArray.of(self.gpu, array, "a constant")
        return self._constants[id(array)].address


class _Run:
    """One run: the addresses of its values, and its memory until all is on its way to the GPU."""

    def __init__(
        self, runner: Runner, plan: Plan, inputs: list[DeviceArray], params: DeviceParams[DeviceArray]
    ) -> None:
        self.runner, self.plan, self.gpu, self.program = runner, plan, runner.gpu, runner.program
        self.commands = self.gpu.commands
        stored = [DeviceArray.empty(self.gpu, dims, dtype, "an output") for dims, dtype in plan.stored]
        self.inputs, self.whole = inputs, [*inputs, *stored]
        self._arena = self.gpu.allocate(plan.arena_bytes, f"values between kernels of @{self.program.name}")
        self.slots = plan.slots.copy()
        self.values: Words = np.zeros(max(1, plan.values), np.int64)
        for number, array in plan.constants:
            self.values[number] = runner.constant(array)
        self.values[ARENA] = self._arena.address
        self.values[ARENA + 1 : ARENA + 1 + len(self.whole)] = [a.address for a in self.whole]
        self.values[self.program.first_param : self.program.addresses] = params.addresses

    def results(self) -> list[DeviceArray]:
        host, noted, program = _HostCalls(self), times.get(), self.program
        for part in self.plan.parts:
            if isinstance(part, HostCall):
                self.commands.flush()
                host.call(part)
            elif noted is None:
                self._walk(part, lambda place, command: self._call(command))
            else:
                noted += self._timed(part)
        results = [self.whole[i] if i >= 0 else host.output(n) for i, n in zip(program.returned, program.outputs)]
        for output, number in program.moved:
            self.copy_bytes(results[output].address, self.inputs[number].address, results[output].nbytes)
            results[output] = self.inputs[number]
        self.commands.flush()
        return results

    def _timed(self, table: Table) -> list[KernelTime]:
        taken = Times(table)

        def measured(place: tuple[int, int], command: list[int]) -> None:
            self.gpu.wait()
            start = time.perf_counter()
            self._call(command)
            self.commands.flush()
            self.gpu.wait()
            taken.add(place, time.perf_counter() - start)

        self._walk(table, measured)
        return taken.found()

    def _walk(self, table: Table, call: Call) -> None:
        walk(table, self.values, self._patch, call, self._byte_at)

    def _patch(self, segment: Segment) -> None:
        if len(segment.patches):
            where, which, offsets = segment.patches.T
            self.slots[where] = self.values[which] + offsets

    def _byte_at(self, address: int) -> bool:
        self.commands.flush()
        return bool(self.gpu.read(address, (1,), np.dtype(np.uint8))[0])

    def _call(self, command: list[int]) -> None:
        entry, first = command[Command.ENTRY], command[Command.ARGS]
        if entry == COPY:
            self.copy_bytes(*self.slots[first : first + 3].tolist())
            return
        code = self.runner.codes.get(entry)
        if code is None:
            raise InternalError(f"@{self.program.name}: code {entry} is not in its program")
        words = self.slots[first : first + len(code.sizes)].tolist()
        self.commands.call(code, words, command[Command.ITERATIONS], f"@{self.program.name}")

    def copy_bytes(self, source: int, to: int, size: int) -> None:
        if not (source % 4 or to % 4 or size % 4):
            self.commands.copy(source, to, size)
        elif size:
            from rlx.backends.program.copies import CHUNK, copy_kernel

            code = self.gpu.loader.load(copy_kernel()).code
            chunks = -(-size // CHUNK)
            blocks = -(-chunks // code.threads)
            self.commands.call(code, [source, to, size], blocks, "a copy")


class _HostCalls(HostCalls):
    """Ops that run on the host, on copies of the values that they read."""

    def __init__(self, run: _Run) -> None:
        super().__init__(run.plan)
        self._run = run
        self._kept: list[DeviceBuffer] = []

    def _address(self, node: NodeId) -> int:
        located = self._plan.arrays[node]
        return int(self._run.values[located.value]) + located.offset

    def array(self, node: NodeId) -> Array:
        located = self._plan.arrays[node]
        return self._run.gpu.read(self._address(node), located.dims, located.dtype)

    def keep(self, call: HostCall, located: Located, array: Array) -> None:
        if located.value != ARENA:
            buffer = self._run.gpu.allocate(array.nbytes, f"the result of {call.op.mnemonic}")
            self._kept.append(buffer)
            self._run.values[located.value] = buffer.address
        self._run.gpu.write(self._address(call.node), array)

    def output(self, node: NodeId) -> DeviceArray:
        """A copy of a value, for the caller to keep."""
        located = self._plan.arrays[node]
        array = DeviceArray.empty(self._run.gpu, located.dims, located.dtype, "an output")
        self._run.copy_bytes(self._address(node), array.address, array.nbytes)
        return array
