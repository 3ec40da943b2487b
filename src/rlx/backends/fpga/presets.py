"""Named choices for a circuit: speed, size, energy or precision first.

    preset = preset_named("size")
    preset.applied(program)        # the program with the multipliers of the preset; its codes are what is checked

| preset | lanes | multipliers | weights of 2 bits |
|---|---|---|---|
| precision (what is not named) | 1 | 31 bits | multipliers of the chip |
| latency | 4 | 31 bits | multipliers of the chip |
| size, bandwidth | 1 | 15 bits | additions |
| energy | 1, with 2 bits 4 for one code that is read | 15 bits | additions |

Equal multipliers of all channels are constants, zero points of 0 take no logic, memories stand still while nothing is
read, and a ReLU is part of its product with all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from rlx.errors import RlxError
from rlx.quantized import Program
from rlx.quantized.products import Product
from rlx.quantized.steps import Step
from rlx.quantized.values import Multipliers


@dataclass(frozen=True)
class Preset:
    """Lanes of products, those of 2-bit weights apart; bits of multipliers; what products of 2-bit weights are."""

    name: str
    lanes: int = 1
    ternary_lanes: int = 1
    fraction_bits: int = 31
    ternary_in_logic: bool = False

    def applied(self, program: Program) -> Program:
        """The program with multipliers of this width; those that are narrow already stay."""
        if self.fraction_bits == 31:
            return program
        steps = tuple(_narrow(step) for step in program.steps)
        return Program(program.name, program.input, program.input_axes, steps)

    def lanes_of(self, program: Program) -> Mapping[int, int]:
        return {
            n: self.ternary_lanes if step.weights.bits == 2 else self.lanes
            for n, step in enumerate(program.steps)
            if isinstance(step, Product)
        }


PRESETS = {
    p.name: p
    for p in (
        Preset("precision"),
        Preset("latency", lanes=4, ternary_lanes=4),
        Preset("size", fraction_bits=15, ternary_in_logic=True),
        Preset("energy", ternary_lanes=4, fraction_bits=15, ternary_in_logic=True),
        Preset("bandwidth", fraction_bits=15, ternary_in_logic=True),
    )
}


def preset_named(name: str) -> Preset:
    if name not in PRESETS:
        raise RlxError(f"fpga: there is no preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]


def _narrow(step: Step) -> Step:
    multipliers = getattr(step, "multipliers", None)
    if not isinstance(multipliers, Multipliers) or multipliers.fraction_bits == 15:
        return step
    # Multipliers have 24 digits, as f32 has, so that floats hold them.
    floats = multipliers.m0 / 2.0**31 * 2.0 ** -multipliers.shift.astype(float)
    return dataclasses.replace(step, multipliers=Multipliers.of(floats, 15))  # type: ignore[call-arg]
