"""Ops that run on the host in the middle of a program, and the arrays through which they see its memory.

What such a call does is the same on every device that runs these plans; how values are read and kept is the device's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from rlx.backends.memory import Array, fit
from rlx.backends.program.host_bodies import run_compiled
from rlx.backends.program.plan import HostCall, Located, Plan
from rlx.backends.program.program import ARENA
from rlx.errors import InternalError
from rlx.ir.graph import NodeId
from rlx.ops.control.bodies import bodies_run_by


class HostCalls(ABC):
    """The calls of one run. Reports name them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Of ops with several results or none; the results are numbered when they have been taken apart.
        self._several: dict[NodeId, tuple[Array, ...]] = {}

    @abstractmethod
    def array(self, node: NodeId) -> Array:
        """A value with one result."""

    @abstractmethod
    def keep(self, call: HostCall, located: Located, array: Array) -> None:
        """Let the kernels that follow find the result of a call."""

    def call(self, call: HostCall) -> None:
        operands = [a for node in call.operands for a in self._arrays(node)]
        with bodies_run_by(run_compiled) if call.op.bodies else nullcontext():
            result: Any = call.op.eval(*operands)
        if call.node not in self._plan.arrays:
            self._several[call.node] = tuple(_own(r, operands) for r in result)
            return
        located = self._plan.arrays[call.node]
        array = _own(result[0] if isinstance(result, tuple) else result, operands)
        if array.shape != located.dims or array.dtype != located.dtype:
            wanted = f"{located.dtype}{list(located.dims)}"
            raise InternalError(f"{call.op.mnemonic} returned {array.dtype}{list(array.shape)} instead of {wanted}")
        self.keep(call, located, array)

    def _arrays(self, node: NodeId) -> tuple[Array, ...]:
        return self._several[node] if node in self._several else (self.array(node),)


class HostValues(HostCalls):
    """The values of one run as arrays. `addresses` are where the kernels of the run find them."""

    def __init__(
        self,
        plan: Plan,
        arena: Array,
        inputs_and_stored: Sequence[Array],
        params: Sequence[Array],
        addresses: memoryview,
    ) -> None:
        super().__init__(plan)
        self._addresses = addresses
        # By the program's numbers.
        waiting = [None] * plan.program.host_results
        constants = [array for _, array in plan.program.constants]
        self._memory: list[Array | None] = [arena, *inputs_and_stored, *waiting, *constants, *params]
        # Results that no kernel writes over.
        self._computed: set[NodeId] = set()

    def array(self, node: NodeId) -> Array:
        """A value with one result, where it lies."""
        located = self._plan.arrays[node]
        memory = self._memory[located.value]
        assert memory is not None, "read before it was computed"
        return _view(memory, located)

    def output(self, node: NodeId) -> Array:
        """A value for the caller to keep: what the host has computed as it is, anything else as a copy."""
        array = self.array(node)
        if node not in self._computed:
            return array.copy()
        # Once: an output that is named twice is two arrays.
        self._computed.discard(node)
        return array

    def keep(self, call: HostCall, located: Located, array: Array) -> None:
        if located.value == ARENA:
            self.array(call.node)[...] = array
            return
        array, address = fit(array, call.align)
        self._memory[located.value], self._addresses[located.value] = array, address
        self._computed.add(call.node)


def _own(result: Any, operands: Sequence[Array]) -> Array:
    """A result that no kernel will write over: one that lies in the memory of an operand is copied."""
    array = np.asarray(result)
    return array.copy() if any(np.may_share_memory(array, x) for x in operands) else array


def _view(memory: Array, located: Located) -> Array:
    if memory.shape == located.dims and memory.dtype == located.dtype:
        return memory
    size = located.dtype.itemsize * int(np.prod(located.dims))
    part = memory.reshape(-1).view(np.uint8)[located.offset : located.offset + size]
    return part.view(located.dtype).reshape(located.dims)
