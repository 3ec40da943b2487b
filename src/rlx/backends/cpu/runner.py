"""`Runner`: runs one program, for any number of threads at once.

The program never changes. What a run needs besides is taken for its time from free lists: an arena for the values
between kernels, and a context, which is the command tables for the run's sizes with the addresses of this run in them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rlx.backends.api import Array, Guards, KernelTime, ShortCall
from rlx.backends.cpu.context import Context, Contexts, TableRun
from rlx.backends.cpu.executor import Executor, executor
from rlx.backends.cpu.pool import pool
from rlx.backends.cpu.short_calls import has_short_calls, short_call
from rlx.backends.cpu.threads import changes, thread_count
from rlx.backends.donation import Held, HeldInput
from rlx.backends.kernel_times import times
from rlx.backends.memory import address_of, aligned_empty, fit, result_empty
from rlx.backends.program.arena import Arena, Arenas
from rlx.backends.program.copies import native_copy
from rlx.backends.program.host_bodies import prepare_for_bodies
from rlx.backends.program.host_calls import HostValues
from rlx.backends.program.inputs import Shapes, bound_sizes, wrong_input
from rlx.backends.program.params import CpuParams
from rlx.backends.program.plan import HostCall, Plan
from rlx.backends.program.program import ARENA, HostStep, Leaf, LoopStep, Program
from rlx.errors import OutOfMemory
from rlx.ir.kernel_kind import CALL

# Bindings whose tables are kept; one costs a few hundred bytes for each kernel.
KEPT_PLANS = 64

# One thread, as native code takes it.
_ALONE = ctypes.c_int64(1)


class Runner:
    """A program with its plans and free memory. `threads` is the number its runs may use, unless callers say another
    (see `threads.py`)."""

    def __init__(self, program: Program, threads: int | None = None) -> None:
        self.program = program
        self._threads = threads
        self._executor = _make_ready(program)
        self._leaves = [(leaf.dtype, leaf.align) for leaf in program.inputs]
        self._native_run = self._executor.run
        self._is_native = program.is_native
        self._is_plain = program.is_native_but_for_checks and not program.overwritten
        self._first_stored = ARENA + 1 + len(program.inputs)
        self.has_short_calls = has_short_calls(program)
        self._last_plain: Contexts | None = None
        self._last_held: tuple[tuple[int, Shapes, Shapes], Contexts] | None = None
        self._fresh = [i - len(program.inputs) for i in program.returned if i >= len(program.inputs)]
        self._returns_stored = self._fresh == list(range(len(program.stored)))
        self._kept_inputs = [(n, leaf) for n, leaf in enumerate(program.inputs) if n not in program.overwritten]
        # The cache keeps the most recently used, needs no lock of its own, and is not disturbed by a fork.
        self._contexts = lru_cache(KEPT_PLANS)(_Binder(program))
        self._arenas = Arenas()

    def run(self, inputs: Mapping[str, Array], params: CpuParams) -> list[Array]:
        """The results for inputs by name."""
        program = self.program
        found = [self._checked(leaf, inputs) for leaf in program.inputs]
        arrays, addresses = [array for array, _ in found], [address for _, address in found]
        if program.overwritten:
            self._make_exclusive(arrays, addresses)
        contexts = self._contexts(tuple([a.shape for a in arrays]), params.symbolic_shapes)
        plan, context = contexts.plan, contexts.take()
        arena = self._arena(plan)
        try:
            context.set(arena, addresses)
            whole = [*arrays, *self._store(plan, context.values)]
            if context.params_serial != params.serial:
                context.set_params(params)
            if not self._is_native:
                return self._run_with_host(plan, context, arena, arrays, whole, params)
            for table in context.tables:
                self._run_table(context, table)
            return self._returned(arrays, [whole[i] for i in program.returned])
        finally:
            # No thread is inside when an exception comes by, Ctrl-C included: see Pool.run.
            self._arenas.give(arena)
            contexts.free.append(context)

    def run_plain(self, arrays: Sequence[Any], params: CpuParams) -> list[Array] | None:
        """`run` for arrays in order that need no second look; None if one does, if the program does more than run
        kernels, or if a check has failed, for which `run` has the error. Written without calls where that can be: a
        small program takes a few microseconds in all, of which a call is a fiftieth."""
        if not self._is_plain or len(arrays) != len(self._leaves):
            return None
        addresses, shapes = [], []
        for array, (dtype, align) in zip(arrays, self._leaves):
            if not isinstance(array, np.ndarray) or array.dtype is not dtype or not array.flags.c_contiguous:
                return None
            address = address_of(array)
            if address % align:
                return None
            addresses.append(address)
            shapes.append(array.shape)
        contexts = self._contexts(tuple(shapes), params.symbolic_shapes)
        plan, free = contexts.plan, contexts.free
        try:
            context = free.pop()
        except IndexError:
            context = contexts.take()
        # Small programs have nothing between kernels.
        arena = self._arena(plan) if plan.arena_bytes else None
        try:
            context.held_serial = -1
            values, number = context.values, ARENA + 1
            if arena is not None:
                values[ARENA] = arena.address
            for address in addresses:
                values[number] = address
                number += 1
            stored = self._store(plan, values)
            if context.params_serial != params.serial:
                context.set_params(params)
            began = time.perf_counter_ns()
            for table in context.tables:
                self._run_table(context, table)
            contexts.fastest_ns = min(contexts.fastest_ns, time.perf_counter_ns() - began)
            self._last_plain = contexts
            if arena is not None:
                for start, stop in plan.flags:
                    if 0 in arena.memory[start:stop].tobytes():
                        return None
            return stored if self._returns_stored else [stored[i] for i in self._fresh]
        finally:
            if arena is not None:
                self._arenas.give(arena)
            free.append(context)

    def short_call(self, params: CpuParams, result_class: type, guards: Guards) -> ShortCall | None:
        """A faster `run_plain` for arrays of the types and shapes of the last ones; None where there is none."""
        contexts = self._last_plain
        if not self.has_short_calls or contexts is None or contexts.params != params.symbolic_shapes:
            return None
        key = (contexts.inputs, result_class, guards, changes())
        known = params.short_calls.get(key)
        if known is None:
            known = short_call(self._executor, contexts, params, result_class, guards, self._threads)
            if known is not None:
                if len(params.short_calls) >= KEPT_PLANS:
                    params.short_calls.clear()
                params.short_calls[key] = known
        return known

    def hold(self, results: Sequence[Array], homes: Mapping[str, int]) -> Held | None:
        """Look at the results of a run that lie where inputs were, for `run_held`: `homes` has their numbers by the
        names of the inputs. None if not all inputs that a run overwrites are among them, or if they cannot be written
        where they are."""
        program, inputs, arrays, addresses = self.program, [], [], []
        if not self._is_native or len(homes) != len(program.overwritten):
            return None
        for number in program.overwritten:
            leaf = program.inputs[number]
            output = homes.get(leaf.name)
            if output is None or program.returned[output] != number:
                return None
            array, address = fit(results[output], leaf.align)
            if array is not results[output] or array.dtype != leaf.dtype or not array.flags.writeable:
                return None
            inputs.append(HeldInput(number, address, array.shape))
            arrays.append(array)
            addresses.append(address)
        return Held(inputs, [a.nbytes for a in arrays]) if not _sharing(arrays, addresses) else None

    def run_held(self, held: Held, inputs: Mapping[str, Array], params: CpuParams) -> list[Array] | None:
        """`run` with the inputs that `hold` has looked at, and all others by name: the results that lie elsewhere, in
        order. None, and nothing is done, if one of the others lies in memory that the run would write to."""
        others, shapes = [], []
        for number, leaf in self._kept_inputs:
            array, address = self._checked(leaf, inputs)
            if held.meets(address, array.nbytes):
                return None
            others.append((number, address, array))
            shapes.append(array.shape)
        contexts = self._contexts_held(held, tuple(shapes), params.symbolic_shapes)
        context, arena = contexts.take(), self._arena(contexts.plan)
        try:
            values = context.values
            values[ARENA] = arena.address
            context.set_held(held)
            for number, address, _ in others:
                values[ARENA + 1 + number] = address
            stored = self._store(contexts.plan, values)
            if context.params_serial != params.serial:
                context.set_params(params)
            for table in context.tables:
                self._run_table(context, table)
            return [stored[i] for i in self._fresh]
        finally:
            self._arenas.give(arena)
            contexts.free.append(context)

    def _contexts_held(self, held: Held, others: Shapes, params: Shapes) -> Contexts:
        """The contexts for inputs that are held and others of these shapes. The last ones are remembered: finding them
        by the shapes of a hundred inputs takes longer than all else."""
        key = (held.serial, others, params)
        known = self._last_held
        if known is not None and known[0] == key:
            return known[1]
        shapes = dict(zip([number for number, _ in self._kept_inputs], others))
        shapes.update((i.number, i.shape) for i in held.inputs)
        contexts = self._contexts(tuple([shapes[number] for number in range(len(shapes))]), params)
        self._last_held = (key, contexts)
        return contexts

    def _arena(self, plan: Plan) -> Arena:
        try:
            return self._arenas.take(plan.arena_bytes)
        except MemoryError:
            raise OutOfMemory(
                f"@{self.program.name}: there is no memory for values between kernels, {plan.arena_bytes} bytes "
                "for these sizes; run it on smaller inputs, or on parts of them"
            ) from None

    def _checked(self, leaf: Leaf, inputs: Mapping[str, Array]) -> tuple[Array, int]:
        array = inputs.get(leaf.name)
        if isinstance(array, np.ndarray) and array.dtype == leaf.dtype:
            return fit(array, leaf.align)
        raise wrong_input(self.program, leaf, array)

    def _make_exclusive(self, arrays: list[Array], addresses: list[int]) -> None:
        """Copy inputs that the run writes into and must not: read-only arrays, and memory that two inputs share."""
        shared = _sharing(arrays, addresses)
        for number in self.program.overwritten:
            if number in shared or not arrays[number].flags.writeable:
                copy, address = aligned_empty(arrays[number].shape, arrays[number].dtype)
                copy[...] = arrays[number]
                arrays[number], addresses[number] = copy, address

    def _run_with_host(
        self,
        plan: Plan,
        context: Context,
        arena: Arena,
        inputs: Sequence[Array],
        whole: Sequence[Array],
        params: CpuParams,
    ) -> list[Array]:
        """Run the parts of a program, of which some are calls of the host. `whole` are its inputs and results."""
        host = HostValues(plan, arena.memory, whole, params.arrays, context.values)
        for part in context.parts:
            if isinstance(part, TableRun):
                self._run_table(context, part)
            else:
                _call(host, part)
        outputs = zip(self.program.returned, self.program.outputs)
        return self._returned(inputs, [whole[i] if i >= 0 else host.output(o) for i, o in outputs])

    def _store(self, plan: Plan, values: memoryview) -> list[Array]:
        """Memory for the results that have some of their own."""
        number, stored = self._first_stored, []
        for dims, dtype, size in plan.stored_sizes:
            array, values[number] = result_empty(dims, dtype, size)
            stored.append(array)
            number += 1
        return stored

    def _returned(self, inputs: Sequence[Array], results: list[Array]) -> list[Array]:
        """The results, those that belong into an input but were computed elsewhere copied into it."""
        for output, number in self.program.moved:
            inputs[number][...] = results[output]
            results[output] = inputs[number]
        return results

    def _run_table(self, context: Context, table: TableRun) -> None:
        noted = times.get()
        if noted is not None:
            noted += context.timed(table)
            return
        # It begins with its first ticket.
        words = context.words
        words[table.next_at] = words[table.completed_at] = 0
        # Asked for each time: the process may have forked, and a child has a pool of its own.
        workers = pool(self._executor)
        if table.width > 1:
            workers.run(table.address, min(table.width, thread_count(self._threads)))
        else:
            while self._native_run(workers.argument, table.argument, _ALONE):
                pass


def _make_ready(program: Program) -> Executor:
    """Load and import before the first run what runs need: whatever a run does lazily under a lock, also that of a
    module being imported, a fork in another thread can leave locked for ever in the child."""
    if any(isinstance(step, LoopStep) for step in program.steps):
        native_copy()
    if any(isinstance(step, HostStep) and step.op.bodies for step in program.steps):
        prepare_for_bodies()
    return executor()


def _sharing(arrays: Sequence[Array], addresses: Sequence[int]) -> set[int]:
    """The arrays, by number, that have memory in common with another one."""
    found: set[int] = set()
    furthest, holder = 0, 0
    for start, number in sorted(zip(addresses, range(len(arrays)))):
        if start < furthest:
            found.update((number, holder))
        if start + arrays[number].nbytes > furthest:
            furthest, holder = start + arrays[number].nbytes, number
    return found


def _call(host: HostValues, call: HostCall) -> None:
    noted = times.get()
    start = time.perf_counter()
    host.call(call)
    if noted is not None:
        noted.append(KernelTime(CALL, call.op.mnemonic, time.perf_counter() - start))


class _Binder:
    """The contexts for the shapes of inputs and of those params that have symbolic sizes."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __call__(self, inputs: Shapes, params: Shapes) -> Contexts:
        return Contexts(Plan(self._program, bound_sizes(self._program, inputs, params)), inputs, params)
