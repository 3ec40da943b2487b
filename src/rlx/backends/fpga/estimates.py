"""What layers will take of a chip, before any tool has seen them.

Memories and multipliers follow from widths and depths. Lookup tables are counted bit by bit, as the modules are
written: an adder takes one per bit, a choice of two one per bit, and so on.
"""

from __future__ import annotations

from rlx.backends.fpga.circuit import Circuit
from rlx.backends.fpga.layers import Layer, Table, frame_words, queue_words
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
    loops = [n[k] for k in ("KC", "KW", "KH", "PASSES", "GROUPS", "COLUMNS", "ROWS") if n[k] > 1]
    counters = sum(index_bits(count) + 3 for count in loops)
    address = n["ADDRESS_BITS"]
    # Windows that do not move need neither the place where they began nor steps but by one.
    single = n["ROWS"] == n["COLUMNS"] == n["GROUPS"] == n["KH"] == n["KW"] == 1
    luts = counters + (2 if single else 5) * address + 6
    if n["PADDED"]:
        # Two places with two choices each, of the tap and of the window, and two comparisons.
        luts += 12 * n["EDGE_BITS"]
    if n["SPRAM"]:
        return Resources(luts + address, 0, 0, 1)
    words = frame_words(n["WORDS"], bool(n["DOUBLED"]))
    # A counter of its own for what comes in; otherwise the address is that of both.
    return Resources(luts + address + 6 * n["DOUBLED"], 0, part.blocks(words, bits))


def _product(n: dict[str, int], part: Part) -> Resources:
    lane = _multiply(n["DIFFERENCE_BITS"], n["WEIGHT_BITS"], n["DSP"], part)
    # An adder, and a choice of what is handed on; sums that begin with their first product have a choice more.
    per_bit = 2 - int(part.has_sums) if n["SUMS_IN_DSP"] else 2.1
    lane = lane.plus(Resources(int(per_bit * n["ACC_BITS"])))
    lanes = Resources(*(n["LANES"] * x for x in lane))
    masks = n["DIFFERENCE_BITS"] * (int(n["PADDED"] or n["SUMS_IN_DSP"]) + int(n["IN_ZERO_POINT"] != 0))
    control = masks + 2 * n["WEIGHT_ADDRESS_BITS"] + 3 * n["CHANNEL_BITS"] + 3 * n["LANE_BITS"] + 12
    drain = Resources(n["SUM_BITS"] + control)
    return lanes.plus(drain).plus(_frame(n, n["IN_BITS"], part)).plus(_requantize(n, n["REQUANTIZE_DSP"], part))


def _pool(n: dict[str, int], part: Part) -> Resources:
    frame = _frame(n, n["BITS"], part)
    if not n["MEAN"]:
        return frame.plus(Resources(3 * n["BITS"] + 8))
    # The sum, its magnitude, half of the count, and the sign of the quotient beside the product.
    luts = 3 * n["SUM_BITS"] + 2 * n["BITS"] + 8
    return frame.plus(Resources(luts + _product_of_constant(n["SUM_BITS"] + 1, n["RECIPROCAL"])))


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


def _product_of_constant(bits: int, factor: int) -> int:
    """A shifted number is added for every further bit of the factor that is 1; what lies below it stays as it is."""
    ones = bin(factor).count("1")
    return (ones - 1) * (bits + 1)


def _constant(n: dict[str, int], part: Part) -> Resources:
    """A requantiser with one multiplier that is known: additions of the bits that it has."""
    adders = _product_of_constant(n["GROWN_BITS"], n["MULTIPLIER"])
    whole = {**n, "PIPELINED": 0, "DIGITS": 1, "DIGIT_BITS": 0, "SHIFT_BITS": 1, "SHIFTS_DIFFER": 0}
    return _requantize(whole, 0, part).plus(Resources(adders + n["SUM_BITS"]))


def _requantize(n: dict[str, int], dsp: int, part: Part) -> Resources:
    grown, digit, digits = n["GROWN_BITS"], n["DIGIT_BITS"], n["DIGITS"]
    wide, differ = n["WIDE_BITS"], n.get("SHIFTS_DIFFER", 0)
    code = min(max(wide - n["SHIFT_MIN"], n["OUT_BITS"] + 2), wide)
    # Two roundings, the second by a number that follows from the shift; the shift, the zero point, the limits.
    luts = 2 * wide + (differ * (2 ** (n["SHIFT_BITS"] + 1) + code * n["SHIFT_BITS"]))
    luts += (code if n["ZERO_POINT"] else 0) + 3 * code // 2
    units = digits if n["PIPELINED"] else 1
    if n["PIPELINED"]:
        # The first digit is added to nothing, and what is below a digit stays as it is.
        luts += (digits - 1) * grown + digit * digits * (digits - 1) // 2
    elif digits > 1:
        luts += (grown + digit + 1) + digit * digits + grown
    if n["LEFT_SHIFTED"]:
        luts += grown * 4
    found = Resources(luts + 10)
    unit = _digit_multiply(grown, digit, dsp, part)
    return found.plus(Resources(*(units * x for x in unit)))


def _multiply(a_bits: int, b_bits: int, dsp: int, part: Part) -> Resources:
    """In logic, the highest bit of b takes the number from 0, or does not."""
    if dsp:
        return Resources(0, part.multipliers(a_bits, b_bits))
    return _digit_multiply(a_bits, b_bits - 1, dsp, part).plus(Resources(2 * a_bits))


def _digit_multiply(bits: int, digit: int, dsp: int, part: Part) -> Resources:
    """By a digit that is not negative: in logic, an addition for each further bit of it, or none."""
    if dsp:
        return Resources(0, part.multipliers(bits, digit + 1))
    per_bit = 1 if part.adders_choose else 2
    return Resources((bits + 1) * (1 + per_bit * (digit - 1)) if digit else 0)
