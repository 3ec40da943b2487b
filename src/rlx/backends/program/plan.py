"""A program with its sizes: command tables, argument slots and where every address goes, for one binding.

Host calls cut the program into tables; loops and branches cut tables into segments (`loop_plan`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.memory import Array
from rlx.backends.program.command_table import Table, TableBuilder, Words
from rlx.backends.program.copies import native_copy
from rlx.backends.program.loop_plan import Frame, plan_loop
from rlx.backends.program.program import HostStep, LoopStep, NativeStep, Program, Value
from rlx.errors import BindingError
from rlx.ir.dims import LARGEST_SIZE, Dim
from rlx.ir.graph import NodeId
from rlx.ir.op import Op
from rlx.ir.shape import Shape, Size


class Located(NamedTuple):
    """An array in the memory of a run."""

    value: int
    offset: int
    dims: tuple[int, ...]
    dtype: np.dtype[Any]


class HostCall(NamedTuple):
    """An op with its sizes, the node that it computes and those that it reads."""

    op: Op
    node: NodeId
    operands: tuple[NodeId, ...]
    align: int


class Plan:
    """Everything that runs with the same sizes share; immutable.

    `values` is how many addresses a run has: those of the program, then those of the bodies of its loops. `constants`
    are the ones among them that never change. `copy_entry` gives the code that copies bytes.
    """

    def __init__(
        self,
        program: Program,
        binding: Mapping[str, int],
        copy_entry: Callable[[], int] = lambda: native_copy().address,
    ) -> None:
        self.program, self.copy_entry = program, copy_entry
        self._binding = binding
        self._sizes: dict[Size, int] = {}
        self.stored = [self._type(shape) for shape in program.stored]
        self.stored_sizes = [(dims, dtype, math.prod(dims) * dtype.itemsize) for dims, dtype in self.stored]
        slots: list[int] = []
        self.parts: list[Table | HostCall] = []
        self.values = 0
        self.constants: list[tuple[int, Array]] = []
        frame = self.frame(program)
        pending: list[NativeStep | LoopStep] = []
        for step in (*program.steps, None):
            if isinstance(step, NativeStep | LoopStep):
                pending.append(step)
                continue
            if pending:
                table = TableBuilder(slots)
                for native in pending:
                    frame.add(table, native) if isinstance(native, NativeStep) else plan_loop(table, frame, native)
                try:
                    self.parts.append(table.build())
                except OverflowError:
                    raise self._too_large("of a loop") from None
                pending = []
            if isinstance(step, HostStep):
                self.parts.append(HostCall(step.op.bind(binding), step.node, step.operands, step.align))
        self.arena_bytes = frame.extent
        self.slots: Words = np.array(slots, np.int64)
        self.arrays = {n: self._located(value) for n, value in program.visible.items()}
        # Where the flags of each check begin and end in its memory.
        flags = [self.arrays[step.operands[0]] for step in program.checks]
        self.flags = [(x.offset, x.offset + math.prod(x.dims)) for x in flags]

    def frame(self, program: Program) -> Frame:
        """Numbers for the addresses of a program; those of `self.program` are its own."""
        base = self.values
        self.values += program.addresses
        self.constants += [(base + number, array) for number, array in program.constants]
        return Frame(self, program, base, self.size(program.arena_size))

    def value(self) -> int:
        """The number of one more address."""
        self.values += 1
        return self.values - 1

    def size(self, size: Size) -> int:
        """The number that a size is here."""
        if isinstance(size, int):
            return size
        known = self._sizes.get(size)
        if known is None:
            value = size.bind(self._binding)
            if isinstance(value, Dim):
                unknown = ", ".join(value.symbols)
                raise BindingError(f"@{self.program.name}: no input determines {unknown}, which the program needs")
            if not -LARGEST_SIZE <= value <= LARGEST_SIZE:
                raise self._too_large(size)
            known = self._sizes[size] = value
        return known

    def _too_large(self, what: object) -> BindingError:
        sizes = ", ".join(f"{name}={size}" for name, size in self._binding.items())
        return BindingError(f"@{self.program.name}: with {sizes} the size {what} would pass 2**63; use smaller inputs")

    def _type(self, shape: Shape) -> tuple[tuple[int, ...], np.dtype[Any]]:
        dims = tuple([self.size(d) for d in shape.dims])
        if any(d < 0 for d in dims):
            sizes = ", ".join(f"{name}={size}" for name, size in self._binding.items())
            raise BindingError(f"@{self.program.name}: with {sizes} a value {shape} would have a negative size, {dims}")
        if math.prod(dims) * shape.dtype.numpy.itemsize > LARGEST_SIZE:
            raise self._too_large(f"in bytes of a value {shape}")
        return dims, shape.dtype.numpy

    def _located(self, value: Value) -> Located:
        return Located(value.place.value, self.size(value.place.offset), *self._type(value.shape))
