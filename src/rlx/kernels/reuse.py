"""The loop kernels of one graph, made once for every form: 24 equal layers are one layer with other buffers."""

from __future__ import annotations

from functools import partial
from typing import Any

from rlx.compile.fuse.signature import FormKeys
from rlx.ir.graph import Graph
from rlx.ir.lir import LirKernel
from rlx.ir.shape import Size
from rlx.kernels.from_lir import MadeKernel, is_passed, make_kernel, number_bits
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine
from rlx.kernels.schedules import ScheduleTable


class KernelMaker:
    """`make_kernel` for the kernels of a graph. Kernels are named by their kind alone, so that equal ones of different
    layers and programs are one piece of code."""

    def __init__(self, graph: Graph, machine: Machine, schedules: ScheduleTable | None = None) -> None:
        """`schedules` are those of the machine's kind unless they are given."""
        self._graph, self.machine, self._schedules = graph, machine, schedules
        self._keys = FormKeys(graph, partial(is_passed, machine))
        # A kernel; which of the values of its form are its buffers; its sizes; which of them are which values' bits.
        self._made: dict[Any, tuple[Kernel, tuple[int, ...], tuple[Size, ...], tuple[tuple[int, int], ...]]] = {}

    def make(self, kernel: LirKernel) -> MadeKernel:
        covered = sorted(kernel.nodes)
        form = self._keys.form(covered, (kernel.nodes[0], *kernel.outputs))
        values = (*covered, *form.operands)
        key = (kernel.kind, form.key)
        if key not in self._made:
            made = make_kernel(kernel.kind, self._graph, kernel, self.machine, self._schedules)
            number = {node: i for i, node in enumerate(values)}
            places = tuple((i, number[node]) for i, node in made.numbers)
            self._made[key] = (made.kernel, tuple(number[b] for b in made.buffers), made.extents, places)
        code, buffers, extents, places = self._made[key]
        passed = {i: values[place] for i, place in places}
        given = tuple(
            number_bits(self._graph.nodes[passed[i]]) if i in passed else extent for i, extent in enumerate(extents)
        )
        return MadeKernel(code, tuple(values[i] for i in buffers), given, tuple(passed.items()))
