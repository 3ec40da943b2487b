"""An integer program as a circuit: instances, the streams between them, memory files, and exact clocks.

    circuit = circuit_of(program, "digits", {0: LayerSchedule(lanes=4)})
    circuit.clocks, circuit.layers[0].parameters["ACC_BITS"]

Streams are {valid, ready, data}, one code per clock in the order of memory. A value with several readers is given to
all at once; what two streams join goes through queues of a whole frame, so that no reader can block another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlx.backends.fpga.layers import Layer, LayerSchedule, Table, bits_of, layer_of
from rlx.backends.fpga.ranges import ranges_of
from rlx.quantized import Program

Array = np.ndarray[Any, np.dtype[Any]]

# Clocks from the first code in the queue to the first one out.
_QUEUE = 2


@dataclass(frozen=True)
class Circuit:
    """`layers` in order, without steps that no result depends on."""

    name: str
    program: Program
    layers: tuple[Layer, ...]
    in_bits: int

    @property
    def out_bits(self) -> int:
        return self.layers[-1].out_bits

    @property
    def tables(self) -> dict[str, Table]:
        return {name: table for layer in self.layers for name, table in layer.tables.items()}

    @cached_property
    def times(self) -> dict[int, Array]:
        """Value -> the clock in which each of its codes is taken, for one frame into an idle circuit."""
        found: dict[int, Array] = {0: np.arange(self.program.input.size)}
        for layer in self.layers:
            taken = [found[i] + (_QUEUE if layer.joins else 0) for i in layer.inputs]
            found[self.number_of(layer)] = layer.clocks(taken)
        return found

    @property
    def clocks(self) -> int:
        """From the first code in to the last one out."""
        return int(self.times[self.number_of(self.layers[-1])][-1]) + 1

    @property
    def interval(self) -> int:
        """About how many clocks are between frames in a row: those in which the busiest layer takes no other frame."""
        return max(self._busy(layer) for layer in self.layers)

    def _busy(self, layer: Layer) -> int:
        taken = [self.times[i] for i in layer.inputs]
        last = max(int(t[-1]) for t in taken)
        loading = last - min(int(t[0]) for t in taken) + 1
        if "WORDS" not in layer.parameters:
            return loading
        working = int(self.times[self.number_of(layer)][-1]) - last - layer.drain
        return max(loading, working) if layer.parameters.get("DOUBLED") else loading + working

    def bits_of(self, number: int) -> int:
        """The width of the stream of a value."""
        return self.in_bits if number == 0 else next(a.out_bits for a in self.layers if self.number_of(a) == number)

    def number_of(self, layer: Layer) -> int:
        """The value that a layer makes."""
        return int(layer.name[1:])


def circuit_of(program: Program, name: str, schedules: Mapping[int, LayerSchedule]) -> Circuit:
    """Steps without a schedule get the smallest one."""
    ranges = ranges_of(program)
    layers = [layer_of(program, n, ranges, schedules.get(n, LayerSchedule())) for n in _needed(program)]
    return Circuit(name, program, tuple(layers), bits_of(program.input, ranges[0]))


def _needed(program: Program) -> list[int]:
    """The steps on which the result depends."""
    needed = {len(program.steps)}
    for number in range(len(program.steps), 0, -1):
        if number in needed:
            needed |= {*program.steps[number - 1].inputs}
    return [n - 1 for n in sorted(needed) if n]


def hex_file(table: Table) -> str:
    """One word per line; the last line ends too, since Verilator 5.006 drops the last word otherwise."""
    digits = -(-table.bits // 4)
    return "".join(f"{word:0{digits}x}\n" for word in table.words)
