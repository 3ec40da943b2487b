"""How a machine adds up products of bytes: four at a time into 32 bits, or two at a time by way of 16.

    sums = dots.begun(totals)
    for codes, numbers in run:                     # at most dots.run of them
        sums = [dots.added(s, codes, numbers) ...]
    totals = dots.ended(totals, sums)

`WholeDots` is one instruction, which newer CPUs have (vpdpbusd, usdot). `PairDots` is for x86 without it (pmaddubsw and
pmaddwd): two products of neighbours are one number of 16 bits, of which as many are added as 16 bits hold before they
are widened to 32.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.kernels.machines import Machine
from rlx.ops.lowered.int8_products import has_byte_codes
from rlx.quant.panels import PanelFormat

# The largest number of 16 bits, and the digit of activations that is largest without its sign.
LARGEST, LARGEST_DIGIT = 2**15 - 1, 128


class WholeDots:
    run = 1

    def __init__(self, k: KernelBuilder) -> None:
        self.k = k

    def begun(self, totals: list[Value]) -> list[Value]:
        return totals

    def added(self, total: Value, codes: Value, numbers: Value) -> Value:
        return self.k.dot4(total, codes, numbers)

    def ended(self, totals: list[Value], sums: list[Value]) -> list[Value]:
        return sums


class PairDots:
    """Codes are such that `run` sums of two products fit into 16 bits."""

    def __init__(self, k: KernelBuilder, run: int) -> None:
        self.k, self.run = k, run

    def begun(self, totals: list[Value]) -> list[Value]:
        return [self.k.const(0, ValueType(DType.I16, 2 * total.lanes)) for total in totals]

    def added(self, total: Value, codes: Value, numbers: Value) -> Value:
        return total + self.k.byte_pairs(codes, numbers)

    def ended(self, totals: list[Value], sums: list[Value]) -> list[Value]:
        return [self.k.add_pairs(total, pairs) for total, pairs in zip(totals, sums)]


def byte_dots(k: KernelBuilder, machine: Machine, layout: PanelFormat, lanes: int) -> WholeDots | PairDots:
    """The way that is fastest for codes of a layout."""
    run = _pair_run(layout)
    if run and lanes in machine.pair_lanes and lanes not in machine.dot4_lanes:
        return PairDots(k, run)
    return WholeDots(k)


def has_fast_dots(machine: Machine, layout: PanelFormat) -> bool:
    """Whether codes of activations are multiplied with those of weights faster than floats would be."""
    if not has_byte_codes(layout):
        return False
    return bool(machine.dot4_lanes) or (bool(machine.pair_lanes) and _pair_run(layout) > 0)


def _pair_run(layout: PanelFormat) -> int:
    """How many sums of two products of codes and activations fit into 16 bits."""
    # Entries of tables, and codes with signs, are bytes of all values.
    largest = 255 if layout.table else 2 ** sum(layout.planes) - 1
    return LARGEST // (2 * largest * LARGEST_DIGIT)
