"""`Runner`: runs one program as WebAssembly, one run at a time.

The linear memory has, from its bottom: what belongs to the module, params, constants, and then whatever a run needs.
Inputs are copied in and outputs out. What does not fit is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rlx.backends.kernel_times import times
from rlx.backends.memory import Array
from rlx.backends.program.host_calls import HostCalls
from rlx.backends.program.inputs import Shapes, bound_sizes, wrong_input
from rlx.backends.program.params import CpuParams
from rlx.backends.program.plan import HostCall, Located, Plan
from rlx.backends.program.program import ARENA, Leaf, Program
from rlx.backends.wasm.code import codes_of, constants_inside, export_names, link_codes
from rlx.backends.wasm.context import COPY, Context
from rlx.backends.wasm.sandbox import Sandbox, aligned, require_room
from rlx.ir.graph import NodeId
from rlx.locks import fork_safe_lock

# Combinations of shapes whose plans are kept.
KEPT_PLANS = 64


class Runner:
    """A program with its module and the memory of that."""

    def __init__(self, program: Program) -> None:
        self.program = program
        codes = codes_of(program)
        self._names, self._linked = export_names(codes), link_codes(codes)
        self._sandbox: Sandbox | None = None
        self._plans = lru_cache(KEPT_PLANS)(self._plan)
        self._serial = -1  # of the params that are in memory
        self._params: list[int] = []
        self._constants: dict[int, int] = {}
        self._placed_end = 0
        self._lock = fork_safe_lock()

    def run(self, inputs: Mapping[str, Array], params: CpuParams) -> list[Array]:
        arrays = [self._input(leaf, inputs) for leaf in self.program.inputs]
        plan = self._plans(tuple(a.shape for a in arrays), params.symbolic_shapes)
        with self._lock:
            return self._execute(plan, arrays, params)

    def _input(self, leaf: Leaf, inputs: Mapping[str, Array]) -> Array:
        given = inputs.get(leaf.name)
        if isinstance(given, np.ndarray) and given.dtype == leaf.dtype:
            return given
        raise wrong_input(self.program, leaf, given)

    def _plan(self, inputs: Shapes, params: Shapes) -> Plan:
        return Plan(self.program, bound_sizes(self.program, inputs, params), lambda: COPY)

    def _execute(self, plan: Plan, arrays: list[Array], params: CpuParams) -> list[Array]:
        program = self.program
        stored = [_bytes(dims, dtype) for dims, dtype in plan.stored]
        require_room(
            f"@{program.name}",
            {
                "weights": sum(aligned(a.nbytes) for a in params.arrays),
                "constants": sum(aligned(a.nbytes) for _, a in plan.constants),
                "inputs": sum(aligned(a.nbytes) for a in arrays),
                "outputs": sum(map(aligned, stored)),
                "values between kernels": aligned(plan.arena_bytes),
                "code and arguments": aligned(self._linked.data_end) + aligned(plan.slots.nbytes),
            },
        )
        if self._sandbox is None:
            self._sandbox = Sandbox(self._linked, f"@{program.name}")
        memory = _Bump(self._sandbox, self._sandbox.start)
        self._place_params(memory, params)
        memory.end = self._placed_end
        slots_at = memory.take(plan.slots.nbytes)
        arena = memory.take(plan.arena_bytes)
        places = [memory.put(a) for a in arrays] + [memory.take(size) for size in stored]
        context = Context(plan, self._sandbox, self._names, slots_at)
        values = context.values
        for number, array in plan.constants:
            values[number] = self._constants[id(array)]
        values[ARENA] = arena
        values[ARENA + 1 : ARENA + 1 + len(places)] = places
        values[program.first_param : program.addresses] = self._params
        self._run_parts(plan, context, _HostCalls(context, memory))
        shapes = [(a.shape, a.dtype) for a in arrays] + plan.stored
        return [
            self._sandbox.read(places[i], *shapes[i]) if i >= 0 else read(context, plan.arrays[node])
            for i, node in zip(program.returned, program.outputs)
        ]

    def _place_params(self, memory: _Bump, params: CpuParams) -> None:
        """Copy params and constants into memory, unless they are the ones that are there."""
        if self._serial != params.serial:
            # First, so that a run that is interrupted here leaves no mixture.
            self._serial = -1
            self._params = [memory.put(a) for a in params.arrays]
            self._constants = {id(c.array): memory.put(c.array) for c in constants_inside(self.program)}
            self._placed_end = memory.end
            self._serial = params.serial

    def _run_parts(self, plan: Plan, context: Context, host: _HostCalls) -> None:
        noted = times.get()
        for part in plan.parts:
            if isinstance(part, HostCall):
                host.call(part)
            elif noted is None:
                context.run(part)
            else:
                noted += context.run_timed(part)


class _Bump:
    """Memory handed out from below."""

    def __init__(self, sandbox: Sandbox, start: int) -> None:
        self._sandbox, self.end = sandbox, start

    def take(self, size: int) -> int:
        address = self.end
        self.end += aligned(size)
        self._sandbox.reserve(self.end)
        return address

    def put(self, array: Array) -> int:
        address = self.take(array.nbytes)
        self._sandbox.write(address, array)
        return address


def _bytes(dims: Sequence[int], dtype: np.dtype[Any]) -> int:
    size = dtype.itemsize
    for dim in dims:
        size *= dim
    return size


def read(context: Context, located: Located) -> Array:
    address = int(context.values[located.value]) + located.offset
    return context.sandbox.read(address, located.dims, located.dtype)


class _HostCalls(HostCalls):
    """Ops that run on the host, on copies of what they read."""

    def __init__(self, context: Context, memory: _Bump) -> None:
        super().__init__(context.plan)
        self._context, self._memory = context, memory

    def array(self, node: NodeId) -> Array:
        return read(self._context, self._plan.arrays[node])

    def keep(self, call: HostCall, located: Located, array: Array) -> None:
        if located.value == ARENA:
            self._context.sandbox.write(int(self._context.values[ARENA]) + located.offset, array)
        else:
            self._context.values[located.value] = self._memory.put(array)
