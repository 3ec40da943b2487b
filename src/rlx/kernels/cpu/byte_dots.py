"""How a machine adds up products of bytes: four at a time into 32 bits, or two at a time by way of 16.

    sums = dots.begun(totals)                      # of each total what is added up in its place
    for codes, numbers in run:                     # at most dots.run of them
        sums = [dots.added(s, codes, numbers) ...]
    totals = dots.ended(totals, sums)

`WholeDots` is one instruction, which newer CPUs have (vpdpbusd, usdot). `PairDots` is for x86 without it (pmaddubsw and
pmaddwd): two products of neighbours are one number of 16 bits, of which as many are added as 16 bits hold before they
are widened to 32. Of codes of 8 bits not even two fit: `HalfDots` multiplies their halves.
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


# What is added up in place of one total.
Sum = tuple[Value, ...]
HALF_BITS = 4


class WholeDots:
    run = 1

    def __init__(self, k: KernelBuilder) -> None:
        self.k = k

    def begun(self, totals: list[Value]) -> list[Sum]:
        return [(total,) for total in totals]

    def added(self, known: Sum, codes: Value, numbers: Value) -> Sum:
        return (self.k.dot4(known[0], codes, numbers),)

    def ended(self, totals: list[Value], sums: list[Sum]) -> list[Value]:
        return [total for (total,) in sums]


class PairDots:
    """Codes are such that `run` sums of two products fit into 16 bits."""

    def __init__(self, k: KernelBuilder, run: int) -> None:
        self.k, self.run = k, run

    def begun(self, totals: list[Value]) -> list[Sum]:
        return [(self.nothing(total),) for total in totals]

    def nothing(self, total: Value) -> Value:
        return self.k.const(0, ValueType(DType.I16, 2 * total.lanes))

    def added(self, known: Sum, codes: Value, numbers: Value) -> Sum:
        return (known[0] + self.k.byte_pairs(codes, numbers),)

    def ended(self, totals: list[Value], sums: list[Sum]) -> list[Value]:
        return [self.k.add_pairs(total, pairs) for total, (pairs,) in zip(totals, sums)]


class HalfDots(PairDots):
    """Codes of 8 bits, as 16 times their higher half and the lower one: twice the products of `PairDots`."""

    def begun(self, totals: list[Value]) -> list[Sum]:
        return [(self.nothing(total), self.nothing(total)) for total in totals]

    def added(self, known: Sum, codes: Value, numbers: Value) -> Sum:
        k, most = self.k, 2**HALF_BITS - 1
        words = k.bitcast(codes, ValueType(DType.U32, codes.lanes // 4))
        halves = [k.bitcast(x & most * 0x01010101, codes.type) for x in (words, words >> HALF_BITS)]
        low, high = (pairs + k.byte_pairs(half, numbers) for pairs, half in zip(known, halves))
        return low, high

    def ended(self, totals: list[Value], sums: list[Sum]) -> list[Value]:
        k, found = self.k, list[Value]()
        for total, (low, high) in zip(totals, sums):
            zero = k.const(0, total.type)
            found.append(k.add_pairs(total, low) + (k.add_pairs(zero, high) << HALF_BITS))
        return found


def byte_dots(k: KernelBuilder, machine: Machine, layout: PanelFormat, lanes: int) -> WholeDots | PairDots:
    """The way that is fastest for codes of a layout."""
    if lanes not in machine.pair_lanes or lanes in machine.dot4_lanes:
        return WholeDots(k)
    run = _pair_run(_largest(layout))
    return PairDots(k, run) if run else HalfDots(k, _pair_run(2**HALF_BITS - 1))


def has_fast_dots(machine: Machine, layout: PanelFormat) -> bool:
    """Whether codes of activations are multiplied with those of weights faster than floats would be."""
    if not has_byte_codes(layout):
        return False
    return bool(machine.dot4_lanes) or (bool(machine.pair_lanes) and _pair_run(_largest(layout)) > 0)


def _largest(layout: PanelFormat) -> int:
    """The largest code; entries of tables, and codes with signs, are bytes of all values."""
    return 255 if layout.table else 2 ** sum(layout.planes) - 1


def _pair_run(largest: int) -> int:
    """How many sums of two products of codes and activations fit into 16 bits."""
    return LARGEST // (2 * largest * LARGEST_DIGIT)
