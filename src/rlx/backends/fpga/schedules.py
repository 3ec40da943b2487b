"""Reuse factors for a part: how many sums each layer makes at a time, and what its arithmetic is made of.

    schedules = search(program, "digits", part_named("up5k"), max_clocks=20_000)

From one lane everywhere, the layer that gains most clocks per lookup table gets more lanes, until the goal is reached
or the part is full. Without a goal, the fastest circuit is taken that fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlx.backends.fpga.circuit import Circuit, circuit_of
from rlx.backends.fpga.estimates import estimate
from rlx.backends.fpga.layers import Layer, LayerSchedule, frame_words
from rlx.backends.fpga.parts import Part, Resources, total
from rlx.errors import RlxError
from rlx.quantized import MaxPool, MeanPool, Program
from rlx.quantized.products import Product

Schedules = Mapping[int, LayerSchedule]

# Digits of at most four bits: each bit is an adder, and they stand in a row.
_DIGITS = (24, 12, 8, 6)
# Estimates of logic may be low by so much, and routing needs room.
_LUT_SHARE = 0.736
_WORDS_OF_SPRAM = 512


def digits_for(taps: int, lanes: int) -> int | None:
    """The slowest, and smallest, requantiser that keeps up with the taps of a pass; None if only a pipeline does."""
    return next((d for d in _DIGITS if max(5 + (lanes - 1) * d, lanes * d) <= taps), None)


@dataclass(frozen=True)
class Style:
    """What holds for all layers: dense ones as systolic arrays, products of 2-bit weights by additions, room for two
    frames also where that takes more memory."""

    systolic: bool = False
    ternary_in_logic: bool = False
    doubled: bool = False


PLAIN = Style()


def schedules_for(
    program: Program, lanes: Mapping[int, int], part: Part | None = None, style: Style = PLAIN
) -> dict[int, LayerSchedule]:
    """Schedules with so many lanes; multipliers and large memories go where they save most, as far as they last."""
    products = {n: s for n, s in enumerate(program.steps) if isinstance(s, Product)}
    dsps = part.has.dsps if part else None
    in_dsp: set[int] = set()
    for n in sorted(products, key=lambda n: (-products[n].weights.bits, n)):
        needed = lanes.get(n, 1)
        if style.ternary_in_logic and products[n].weights.bits == 2:
            continue
        if dsps is None or needed <= dsps:
            in_dsp.add(n)
            dsps = None if dsps is None else dsps - needed
    framed = [n for n, s in enumerate(program.steps) if isinstance(s, Product | MaxPool | MeanPool)]
    large = [n for n in framed if program.operands(program.steps[n])[0].size > _WORDS_OF_SPRAM]
    large.sort(key=lambda n: (-program.operands(program.steps[n])[0].size_bytes, n))
    in_spram = {*large[: part.has.sprams if part else 0]}
    doubled = {n for n in framed if style.doubled or (part and _is_doubled_for_nothing(program, n, part))}
    found = {n: LayerSchedule(spram=n in in_spram, doubled=n in doubled) for n in framed}
    for n, step in products.items():
        count, taps = lanes.get(n, 1), step.weights.codes[0].size
        digits = digits_for(taps, count)
        found[n] = replace(
            found[n],
            lanes=count,
            digits=digits or _DIGITS[-1],
            pipelined=digits is None,
            dsp=n in in_dsp,
            systolic=style.systolic,
        )
    return found


def _is_doubled_for_nothing(program: Program, number: int, part: Part) -> bool:
    """Whether two frames before a step take no more blocks of memory than one."""
    x = program.operands(program.steps[number])[0]
    bits = 8 * x.dtype.size_bytes
    return part.blocks(frame_words(x.size, doubled=True), bits) == part.blocks(x.size, bits)


def search(program: Program, name: str, part: Part | None, max_clocks: int | None, style: Style = PLAIN) -> Circuit:
    """The circuit that reaches the goal with least logic, or the fastest that fits."""
    lanes = {n: 1 for n, s in enumerate(program.steps) if isinstance(s, Product)}
    best = circuit_of(program, name, schedules_for(program, lanes, part, style))
    if part is not None:
        require_fit(best, part)
    while max_clocks is None or best.clocks > max_clocks:
        grown = _grown(program, name, lanes, part, style, best)
        if grown is None:
            break
        lanes, best = grown
    if max_clocks is not None and best.clocks > max_clocks:
        slowest, clocks = max(layer_clocks(best).items(), key=lambda item: item[1])
        on = f" that fits {part.name}" if part else ""
        where = next(a for a in best.layers if a.name == slowest)
        raise RlxError(
            f"fpga: {program.name} takes {best.clocks} clocks in the fastest circuit{on}, and {max_clocks} are allowed;"
            f" {where.out.name} takes {clocks} of them"
        )
    return best


def _grown(
    program: Program, name: str, lanes: Mapping[int, int], part: Part | None, style: Style, now: Circuit
) -> tuple[dict[int, int], Circuit] | None:
    """More lanes for the layer that gains most clocks per lookup table; None if nothing gains or fits."""
    found: tuple[float, dict[int, int], Circuit] | None = None
    area = _area(now, part)
    for n, count in lanes.items():
        step = program.steps[n]
        assert isinstance(step, Product)
        for more in _next_lanes(step.channels // getattr(step, "groups", 1), count):
            tried = {**lanes, n: more}
            circuit = circuit_of(program, name, schedules_for(program, tried, part, style))
            gained = now.clocks - circuit.clocks
            if gained <= 0 or (part is not None and _misfit(circuit, part)):
                continue
            worth = gained / max(_area(circuit, part) - area, 1)
            if found is None or worth > found[0]:
                found = worth, tried, circuit
    return None if found is None else found[1:]


def _next_lanes(channels: int, lanes: int) -> list[int]:
    """The next numbers of lanes that need fewer passes, and twice as many, since shapes of memories jump."""
    fewer = [m for m in range(lanes + 1, channels + 1) if -(-channels // m) < -(-channels // (m - 1))]
    return sorted({*fewer[:1], *[m for m in fewer if m >= 2 * lanes][:1]})


def _area(circuit: Circuit, part: Part | None) -> int:
    if part is None:
        return sum(layer.lanes for layer in circuit.layers)
    return total(list(estimate(circuit, part).values())).luts


def layer_clocks(circuit: Circuit) -> dict[str, int]:
    """Layer -> the clocks from its last code in to its last code out."""
    return {
        layer.name: int(circuit.times[circuit.number_of(layer)][-1] - max(circuit.times[i][-1] for i in layer.inputs))
        for layer in circuit.layers
    }


def _misfit(circuit: Circuit, part: Part) -> tuple[str, int, int] | None:
    """What is too much: its name, how much is needed, how much there is."""
    needed = total(list(estimate(circuit, part).values()))
    room = part.has._replace(luts=int(part.has.luts * _LUT_SHARE))
    for what, wanted, there in zip(Resources._fields, needed, room):
        if wanted > there:
            return what, wanted, there
    return None


def require_fit(circuit: Circuit, part: Part) -> None:
    """Raise if a circuit does not fit, naming the layer that takes most of what is missing."""
    missing = _misfit(circuit, part)
    if missing is None:
        return
    what, needed, there = missing
    shares = estimate(circuit, part)
    largest = max(circuit.layers, key=lambda layer: getattr(shares[layer.name], what))
    share = getattr(shares[largest.name], what)
    raise RlxError(
        f"fpga: {circuit.program.name} needs about {needed} {RESOURCE_WORDS[what]} and {part.name} has room for"
        f" {there}; {largest.out.name} takes {share}"
    )


RESOURCE_WORDS = {
    "luts": "lookup tables",
    "dsps": "multipliers",
    "brams": "blocks of memory",
    "sprams": "large memories",
}


def reuse_of(layer: Layer) -> int:
    """How often each multiplier of a layer is used for one frame."""
    return layer.macs // layer.lanes if layer.macs else 0
