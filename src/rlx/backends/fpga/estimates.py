"""What layers will take of a chip, before any tool has seen them.

Memories and multipliers follow from widths and depths. Lookup tables are counted bit by bit: an adder takes one per
bit, a choice of two one per bit, and so on; weights of the count were fitted to what Yosys makes of random layers.
"""

from __future__ import annotations

from rlx.backends.fpga.circuit import Circuit
from rlx.backends.fpga.layers import Layer, Table, queue_words
from rlx.backends.fpga.parts import Part, Resources, total
from rlx.backends.fpga.ranges import index_bits

# Lookup tables per word of 16 and bit of a table in logic.
_TABLE = 1.1


def estimate(circuit: Circuit, part: Part) -> dict[str, Resources]:
    """Layer -> what it takes, with its queues and tables."""
    found = {layer.name: layer_resources(circuit, layer, part) for layer in circuit.layers}
    return {name: r._replace(luts=round(r.luts * part.lut_factor)) for name, r in found.items()}


def estimated_total(circuit: Circuit, part: Part) -> Resources:
    return total(list(estimate(circuit, part).values()))


def layer_resources(circuit: Circuit, layer: Layer, part: Part) -> Resources:
    """As counted, before the factor of the part."""
    found = Resources()
    for table in layer.tables.values():
        found = found.plus(_table(table, part))
    if layer.joins:
        for i in layer.inputs:
            words = queue_words(circuit.program.values[i])
            found = found.plus(Resources(6 * index_bits(words), 0, part.blocks(words, circuit.bits_of(i))))
    numbers = {k: v for k, v in layer.parameters.items() if isinstance(v, int)}
    match layer.module:
        case "rlx_product":
            found = found.plus(_product(numbers, part))
        case "rlx_pool":
            found = found.plus(_pool(numbers, part))
        case "rlx_add":
            lines = [
                {"DSP": numbers["DSP"], **{k[2:]: v for k, v in numbers.items() if k.startswith(prefix)}}
                for prefix in ("A_", "B_")
            ]
            found = found.plus(total([_constant(_line(n), part) for n in lines]))
            found = found.plus(_constant(numbers, part)).plus(Resources(numbers["SUM_BITS"]))
        case "rlx_mul" | "rlx_rescale":
            found = found.plus(_constant(numbers, part))
            if layer.module == "rlx_mul":
                found = found.plus(_multiply(numbers["A_BITS"] + 1, numbers["B_BITS"] + 1, numbers["DSP"], part))
        case "rlx_clamp":
            found = found.plus(Resources(2 * numbers["BITS"]))
        case "rlx_softmax":
            rest = numbers["TOTAL_BITS"] + 9
            counters = 4 * numbers["ADDRESS_BITS"] + 3 * numbers["PLACE_BITS"]
            luts = 3 * rest + numbers["TOTAL_BITS"] + counters + 60
            found = found.plus(Resources(luts, 0, part.blocks(numbers["WORDS"], 8)))
        case "rlx_argmax":
            found = found.plus(Resources(2 * numbers["IN_BITS"] + 3 * numbers["OUT_BITS"]))
        case _:
            found = found.plus(Resources(4))
    return found


def _table(table: Table, part: Part) -> Resources:
    words = len(table.words)
    if table.in_block:
        blocks = part.blocks(words, table.bits)
        # Words of several blocks are chosen by logic.
        deep = -(-words // max(w for w, b in part.block_shapes if b * blocks >= table.bits))
        return Resources(table.bits * (deep - 1) // 2, 0, blocks)
    return Resources(int(table.bits * _TABLE * max(words / 16, 0.5)))


def _frame(n: dict[str, int], bits: int, part: Part) -> Resources:
    counters = sum(index_bits(n[k]) for k in ("KC", "KW", "KH", "PASSES", "GROUPS", "COLUMNS", "ROWS") if n[k] > 1)
    edges = 12 * n["EDGE_BITS"] if n["PADDED"] else 0
    single = n["ROWS"] == n["COLUMNS"] == n["GROUPS"] == n["KH"] == n["KW"] == 1
    luts = int(1.6 * counters + (2.5 if single else 6) * n["ADDRESS_BITS"] + edges + 6)
    if n["SPRAM"]:
        return Resources(luts, 0, 0, 1)
    return Resources(luts, 0, part.blocks(n["WORDS"], bits))


def _product(n: dict[str, int], part: Part) -> Resources:
    lane = _multiply(n["DIFFERENCE_BITS"], n["WEIGHT_BITS"], n["DSP"], part)
    lane = lane.plus(Resources(int(2.1 * n["ACC_BITS"])))
    lanes = Resources(*(n["LANES"] * x for x in lane))
    masks = n["DIFFERENCE_BITS"] * (int(n["PADDED"]) + int(n["IN_ZERO_POINT"] != 0))
    control = masks + 2 * n["WEIGHT_ADDRESS_BITS"] + 3 * n["CHANNEL_BITS"] + 3 * n["LANE_BITS"] + 12
    drain = Resources(n["SUM_BITS"] + control)
    return lanes.plus(drain).plus(_frame(n, n["IN_BITS"], part)).plus(_requantize(n, n["REQUANTIZE_DSP"], part))


def _pool(n: dict[str, int], part: Part) -> Resources:
    frame = _frame(n, n["BITS"], part)
    if not n["MEAN"]:
        return frame.plus(Resources(3 * n["BITS"] + 8))
    ones = bin(n["RECIPROCAL"]).count("1")
    return frame.plus(Resources((ones + 4) * (n["SUM_BITS"] + 1) + 2 * n["BITS"]))


def _line(n: dict[str, int]) -> dict[str, int]:
    """One of the two operands of a sum: it is neither clamped nor moved."""
    return {
        **n,
        "GROWN_BITS": n["SUM_BITS"],
        "SHIFT_MIN": n["SHIFT"],
        "OUT_BITS": 0,
        "ZERO_POINT": 0,
        "LEFT_SHIFTED": 0,
    }


def _constant(n: dict[str, int], part: Part) -> Resources:
    """A requantiser with one multiplier that is known: additions of the bits that it has."""
    ones = bin(n["MULTIPLIER"]).count("1")
    adders = ones * (n["GROWN_BITS"] + 2)
    whole = {**n, "PIPELINED": 0, "DIGITS": 1, "DIGIT_BITS": 0, "SHIFT_BITS": 1, "SHIFTS_DIFFER": 0}
    return _requantize(whole, 0, part).plus(Resources(adders + n["SUM_BITS"]))


def _requantize(n: dict[str, int], dsp: int, part: Part) -> Resources:
    grown, digit, digits = n["GROWN_BITS"], n["DIGIT_BITS"], n["DIGITS"]
    product = grown + digit * digits + 1
    rounded = n["WIDE_BITS"]
    differ = n.get("SHIFTS_DIFFER", 0)
    luts = rounded * (2 + (2 * n["SHIFT_BITS"] if differ else 0))
    luts += (rounded if n["ZERO_POINT"] else 0) + rounded // 2 + n["OUT_BITS"]
    units = digits if n["PIPELINED"] else 1
    if n["PIPELINED"]:
        luts += digits * (grown + digit * digits // 2)
    elif digits > 1:
        luts += 2 * product + digit * digits
    if n["LEFT_SHIFTED"]:
        luts += grown * 4
    found = Resources(luts + 10)
    unit = _multiply(grown, digit + 1, dsp, part) if digit else Resources()
    return found.plus(Resources(*(units * x for x in unit)))


def _multiply(a_bits: int, b_bits: int, dsp: int, part: Part) -> Resources:
    if dsp:
        return Resources(0, part.multipliers(a_bits, b_bits))
    return Resources(int(1.7 * a_bits * (b_bits - 1)) + a_bits)
