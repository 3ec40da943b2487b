"""`Runner`: runs one program, for any number of threads at once.

The program never changes. What a run needs besides is taken for its time from free lists: an arena for the values
between kernels, and a context, which is the command tables for the run's sizes with the addresses of this run in them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from rlx.backends.api import Array, KernelTime
from rlx.backends.cpu.context import Context, Contexts, TableRun
from rlx.backends.cpu.copies import native_copy
from rlx.backends.cpu.executor import executor
from rlx.backends.cpu.host_bodies import prepare_for_bodies
from rlx.backends.cpu.host_calls import HostValues
from rlx.backends.cpu.plan import HostCall, Plan
from rlx.backends.cpu.pool import pool
from rlx.backends.cpu.threads import thread_count
from rlx.backends.donation import Held, HeldInput
from rlx.backends.kernel_times import times
from rlx.backends.memory import address_of, aligned_empty, fit
from rlx.backends.program.arena import Arena, Arenas
from rlx.backends.program.params import CpuParams
from rlx.backends.program.program import ARENA, HostStep, Leaf, LoopStep, Program
from rlx.errors import BindingError, OutOfMemory
from rlx.ir.binding import infer_binding

# Bindings whose tables are kept; one costs a few hundred bytes for each kernel.
KEPT_PLANS = 64

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class Runner:
    """A program with its plans and free memory. `threads` is the number its runs may use, unless callers say another
    (see `threads.py`)."""

    def __init__(self, program: Program, threads: int | None = None) -> None:
        self.program = program
        self._threads = threads
        _make_ready(program)
        self._is_native = program.is_native
        self._first_stored = ARENA + 1 + len(program.inputs)
        self._last_held: tuple[tuple[int, Shapes, Shapes], Contexts] | None = None
        self._fresh = [i - len(program.inputs) for i in program.returned if i >= len(program.inputs)]
        self._kept_inputs = [(n, leaf) for n, leaf in enumerate(program.inputs) if n not in program.overwritten]
        # The cache keeps the most recently used, needs no lock of its own, and is not disturbed by a fork.
        self._contexts = lru_cache(KEPT_PLANS)(_Binder(program))
        self._arenas = Arenas()

    def run(self, inputs: Mapping[str, Array], params: CpuParams) -> list[Array]:
        arrays, addresses = [], []
        for leaf in self.program.inputs:
            array = inputs.get(leaf.name)
            # The usual case without a call: small programs take a few microseconds in all.
            if type(array) is np.ndarray and array.dtype is leaf.dtype and array.flags.c_contiguous:
                address = address_of(array)
                if address % leaf.align:
                    array, address = fit(array, leaf.align)
            else:
                array, address = self._checked(leaf, inputs)
            arrays.append(array)
            addresses.append(address)
        if self.program.overwritten:
            self._make_exclusive(arrays, addresses)
        return self._run(arrays, addresses, tuple([a.shape for a in arrays]), params)

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
            stored = self._store(contexts.plan, context)
            context.set_params(params)
            for table in context.parts:
                assert isinstance(table, TableRun)
                self._run_table(context, table)
            return [stored[i] for i in self._fresh]
        finally:
            self._arenas.give(arena)
            contexts.give(context)

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

    def _run(self, arrays: Sequence[Array], addresses: Sequence[int], shapes: Shapes, params: CpuParams) -> list[Array]:
        contexts = self._contexts(shapes, params.symbolic_shapes)
        context, arena = contexts.take(), self._arena(contexts.plan)
        try:
            return self._execute(contexts.plan, context, arena, arrays, addresses, params)
        finally:
            # No thread is inside when an exception comes by, Ctrl-C included: see Pool.run.
            self._arenas.give(arena)
            contexts.give(context)

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
        if array is None:
            raise BindingError(f"@{self.program.name}: no value for input {leaf.name!r} ({leaf.shape})")
        got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise BindingError(f"@{self.program.name}: input {leaf.name!r} is declared {leaf.shape}, got {got}")

    def _make_exclusive(self, arrays: list[Array], addresses: list[int]) -> None:
        """Copy inputs that the run writes into and must not: read-only arrays, and memory that two inputs share."""
        shared = _sharing(arrays, addresses)
        for number in self.program.overwritten:
            if number in shared or not arrays[number].flags.writeable:
                copy, address = aligned_empty(arrays[number].shape, arrays[number].dtype)
                copy[...] = arrays[number]
                arrays[number], addresses[number] = copy, address

    def _execute(
        self,
        plan: Plan,
        context: Context,
        arena: Arena,
        inputs: Sequence[Array],
        addresses: Sequence[int],
        params: CpuParams,
    ) -> list[Array]:
        values, number = context.values, ARENA
        context.held_serial = -1
        for address in (arena.address, *addresses):
            values[number] = address
            number += 1
        stored = self._store(plan, context)
        context.set_params(params)
        if self._is_native:
            for table in context.parts:
                assert isinstance(table, TableRun)
                self._run_table(context, table)
            whole = (*inputs, *stored)
            return self._returned(inputs, [whole[i] for i in self.program.returned])
        host = HostValues(plan, arena.memory, (*inputs, *stored), params.arrays, values)
        for part in context.parts:
            if isinstance(part, TableRun):
                self._run_table(context, part)
            else:
                _call(host, part)
        whole = (*inputs, *stored)
        outputs = zip(self.program.returned, self.program.outputs)
        return self._returned(inputs, [whole[i] if i >= 0 else host.output(o) for i, o in outputs])

    def _store(self, plan: Plan, context: Context) -> list[Array]:
        """Memory for the results that have some of their own."""
        values, number, stored = context.values, self._first_stored, []
        for dims, dtype in plan.stored:
            array, values[number] = aligned_empty(dims, dtype)
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
        context.reset(table)
        threads = 1
        if table.width > 1:
            threads = min(table.width, thread_count(self._threads))
        # Asked for each time: a host call may have forked, and a child has a pool of its own.
        pool(executor()).run(table.address, threads)


def _make_ready(program: Program) -> None:
    """Load and import before the first run what runs need: whatever a run does lazily under a lock, also that of a
    module being imported, a fork in another thread can leave locked for ever in the child."""
    executor()
    if any(isinstance(step, LoopStep) for step in program.steps):
        native_copy()
    if any(isinstance(step, HostStep) and step.op.bodies for step in program.steps):
        prepare_for_bodies()


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
        noted.append(KernelTime("call", call.op.mnemonic, time.perf_counter() - start))


class _Binder:
    """The contexts for the shapes of inputs and of those params that have symbolic sizes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._leaves = [*program.inputs, *(p for p in program.params if not p.shape.is_static)]

    def __call__(self, inputs: Shapes, params: Shapes) -> Contexts:
        leaves = zip(self._leaves, (*inputs, *params), strict=True)
        binding = infer_binding((leaf.name, leaf.shape, dims) for leaf, dims in leaves)
        for constraint in self._program.constraints:
            if constraint.symbols <= binding.keys():
                constraint.check(binding)
        return Contexts(Plan(self._program, binding))
