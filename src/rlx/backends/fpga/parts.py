"""The chips that circuits are made for: what they have, and how the open tools are told of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlx.errors import RlxError


class Resources(NamedTuple):
    """Lookup tables of four inputs, multipliers, blocks of memory, large memories."""

    luts: int = 0
    dsps: int = 0
    brams: int = 0
    sprams: int = 0

    def plus(self, other: Resources) -> Resources:
        return Resources(*(a + b for a, b in zip(self, other)))


@dataclass(frozen=True)
class Part:
    """A chip. `block_shapes` are (words, bits) that a block of memory can be."""

    name: str
    about: str
    has: Resources
    block_shapes: tuple[tuple[int, int], ...]
    dsp_bits: tuple[int, int]
    # Whether multipliers have sums of their own that Yosys knows of.
    has_sums: bool
    # Whether a lookup table of an adder has an input left, by which it gives one of its operands instead.
    adders_choose: bool
    # What Yosys made of whole circuits for it, per lookup table that was counted.
    lut_factor: float
    synthesis: str
    placement: str
    packing: str

    def blocks(self, words: int, bits: int) -> int:
        """How many blocks of memory hold so many words: the fewest that any shape gives."""
        return min(math.ceil(words / w) * math.ceil(bits / b) for w, b in self.block_shapes)

    def multipliers(self, a_bits: int, b_bits: int) -> int:
        """How many multipliers make one of this width."""
        return math.ceil(a_bits / self.dsp_bits[0]) * math.ceil(b_bits / self.dsp_bits[1])


PARTS = {
    p.name: p
    for p in (
        Part(
            "up5k",
            "Lattice iCE40 UltraPlus 5K",
            Resources(5280, 8, 30, 4),
            ((256, 16), (512, 8), (1024, 4), (2048, 2)),
            (16, 16),
            True,
            True,
            1.0,
            "synth_ice40 -dsp -spram -top {top} -json {top}.json",
            "nextpnr-ice40 --up5k --package sg48 --json {top}.json --asc {top}.asc --pcf-allow-unconstrained",
            "icepack {top}.asc {top}.bin",
        ),
        Part(
            "ecp5-25k",
            "Lattice ECP5 LFE5U-25F",
            Resources(24288, 28, 56, 0),
            ((512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1)),
            (18, 18),
            False,
            False,
            1.1,
            "synth_ecp5 -top {top} -json {top}.json",
            "nextpnr-ecp5 --25k --package CABGA381 --json {top}.json --textcfg {top}.config --lpf-allow-unconstrained",
            "ecppack {top}.config {top}.bit",
        ),
    )
}


def part_named(name: str) -> Part:
    if name not in PARTS:
        raise RlxError(f"fpga: there is no part {name!r}; known: {', '.join(PARTS)}")
    return PARTS[name]


def total(parts: Sequence[Resources]) -> Resources:
    """The sum of the resources of layers."""
    return Resources(*(sum(column) for column in zip(*parts))) if parts else Resources()
