"""`Runner`: runs one program, for any number of threads at once.

The program never changes. What a run needs besides is taken for its time from free lists: an arena for the values
between kernels, and a context, which is the command tables for the run's sizes with the addresses of this run in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from rlx.backends.api import Array
from rlx.backends.cpu.arena import Arena, Arenas
from rlx.backends.cpu.context import Context, Contexts, TableRun
from rlx.backends.cpu.host_calls import HostValues
from rlx.backends.cpu.params import CpuParams
from rlx.backends.cpu.plan import Plan
from rlx.backends.cpu.pool import pool
from rlx.backends.cpu.program import ARENA, Leaf, Program
from rlx.backends.cpu.threads import thread_count
from rlx.backends.memory import aligned_empty, fit
from rlx.errors import BindingError
from rlx.ir.binding import infer_binding
from rlx.ir.dims import Dim, DimConstraint

# Bindings whose tables are kept; one costs a few hundred bytes for each kernel.
KEPT_PLANS = 64

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class Runner:
    """A program with its plans and free memory. `threads` is the number its runs may use, unless callers say another
    (see `threads.py`)."""

    def __init__(self, program: Program, threads: int | None = None) -> None:
        self.program = program
        self._threads = threads
        # The cache keeps the most recently used, needs no lock of its own, and is not disturbed by a fork.
        self._contexts = lru_cache(KEPT_PLANS)(_Binder(program))
        self._arenas = Arenas()

    def run(self, inputs: Mapping[str, Array], params: CpuParams) -> list[Array]:
        arrays, addresses = [], []
        for leaf in self.program.inputs:
            array, address = self._checked(leaf, inputs)
            arrays.append(array)
            addresses.append(address)
        contexts = self._contexts(tuple([a.shape for a in arrays]), params.symbolic_shapes)
        context, arena = contexts.take(), self._arenas.take(contexts.plan.arena_bytes)
        try:
            return self._execute(contexts.plan, context, arena, arrays, addresses, params)
        finally:
            # No thread is inside when an exception comes by, Ctrl-C included: see Pool.run.
            self._arenas.give(arena)
            contexts.give(context)

    def _checked(self, leaf: Leaf, inputs: Mapping[str, Array]) -> tuple[Array, int]:
        array = inputs.get(leaf.name)
        if isinstance(array, np.ndarray) and array.dtype == leaf.dtype:
            return fit(array, leaf.align)
        if array is None:
            raise BindingError(f"@{self.program.lir.name}: no value for input {leaf.name!r} ({leaf.shape})")
        got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise BindingError(f"@{self.program.lir.name}: input {leaf.name!r} is declared {leaf.shape}, got {got}")

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
        for address in (arena.address, *addresses):
            values[number] = address
            number += 1
        stored = []
        for dims, dtype in plan.stored:
            array, values[number] = aligned_empty(dims, dtype)
            stored.append(array)
            number += 1
        context.set_params(params)
        if self.program.is_native:
            for table in context.parts:
                assert isinstance(table, TableRun)
                self._run_table(context, table)
            return [stored[i] for i in self.program.returned]
        host = HostValues(plan, arena.memory, (*inputs, *stored), params.arrays, values)
        for part in context.parts:
            if isinstance(part, TableRun):
                self._run_table(context, part)
            else:
                host.call(part)
        outputs = zip(self.program.returned, self.program.graph.outputs)
        return [stored[i] if i >= 0 else host.array(o).copy() for i, o in outputs]

    def _run_table(self, context: Context, table: TableRun) -> None:
        context.reset(table)
        threads = min(table.width, thread_count(self._threads)) if table.width > 1 else 1
        # Asked for each time: a host call may have forked, and a child has a pool of its own.
        pool(self.program.native).run(table.address, threads)


class _Binder:
    """The contexts for the shapes of inputs and of those params that have symbolic sizes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._leaves = [*program.inputs, *(p for p in program.params if not p.shape.is_static)]

    def __call__(self, inputs: Shapes, params: Shapes) -> Contexts:
        leaves = zip(self._leaves, (*inputs, *params), strict=True)
        binding = infer_binding((leaf.name, leaf.shape, dims) for leaf, dims in leaves)
        for constraint in self._program.graph.constraints:
            if _symbols(constraint) <= binding.keys():
                constraint.check(binding)
        return Contexts(Plan(self._program, binding))


def _symbols(constraint: DimConstraint) -> set[str]:
    return {s for d in (constraint.left, constraint.right) if isinstance(d, Dim) for s in d.symbols}
