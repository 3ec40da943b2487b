"""A step of an integer program as an instance of a module: parameters with exact widths, tables, and its clocks.

    layer = layer_of(program, number, ranges, LayerSchedule(lanes=4))
    layer.module, layer.parameters["ACC_BITS"], layer.tables

The times of `Layer.clocks` are exact: for every element, the clock in which it is taken from the layer, when nothing
behind it ever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlx.backends.fpga.ranges import Range, index_bits, signed_bits, sums_of
from rlx.backends.fpga.requantizers import Requantizer, requantizer
from rlx.errors import RlxError
from rlx.ir.dtype import DType
from rlx.quantized import Add, Argmax, Clamp, Conv2d, Lookup, MaxPool, MeanPool, Mul, Program, Rescale, Softmax
from rlx.quantized.products import Pads, Product
from rlx.quantized.steps import Step
from rlx.quantized.values import Value

Array = np.ndarray[Any, np.dtype[Any]]
Clocks = Callable[[Sequence[Array]], Array]

MOST_WORDS_OF_LOGIC = 32
# Clocks from a tap to the first sum that the requantiser can take, and from a sum to its code, without the digits.
_TAP_TO_SUM, _SUM_TO_CODE = 4, 5
# Multipliers of chips have sums of so many bits; these begin anew in a clock of their own, which is much for few taps.
_DSP_SUM_BITS, _TAPS_OF_DSP_SUMS = 32, 32
# Clocks from the last tap of a window to its result.
_TAP_TO_RESULT = 3
# Clocks of a softmax: from the last code to a row's first quotient with two scans of the row between, and for each.
_SCANS_TO_QUOTIENT, _QUOTIENT = 4, 13


@dataclass(frozen=True)
class LayerSchedule:
    """How often a layer uses its hardware again: `lanes` sums at a time, a requantiser that takes `digits` clocks for
    each, or is `pipelined` and takes one."""

    lanes: int = 1
    digits: int = 6
    pipelined: bool = False
    dsp: bool = True
    requantize_dsp: bool = False
    spram: bool = False
    # A dense layer as an array: codes go from lane to lane, a clock each, instead of to all at once.
    systolic: bool = False
    # Room for two frames: one comes in while the other is worked on.
    doubled: bool = False


@dataclass(frozen=True)
class Table:
    """Words of memory, as non-negative numbers; those that are negative are in two's complement."""

    bits: int
    words: tuple[int, ...]

    @property
    def in_block(self) -> bool:
        """Whether it is worth a block of memory; what is smaller becomes logic."""
        return len(self.words) > MOST_WORDS_OF_LOGIC


@dataclass(frozen=True)
class Layer:
    """An instance. `inputs` are numbers of values; what `joins` has a queue of a whole frame before each."""

    name: str
    kind: str
    module: str
    parameters: dict[str, int | str]
    inputs: tuple[int, ...]
    out: Value
    out_bits: int
    clocks: Clocks
    tables: dict[str, Table] = field(default_factory=dict)
    joins: bool = False
    macs: int = 0
    lanes: int = 1
    # Of a layer with a frame: clocks from its last tap to its last code, in which the next frame may come.
    drain: int = 0


def bits_of(value: Value, known: Range) -> int:
    """The width of a stream: that of its codes, or what a label needs."""
    return index_bits(known.high + 1) if value.dtype is DType.I32 else value.dtype.size_bytes * 8


def queue_words(value: Value) -> int:
    """How many codes the queue before a joining layer holds: a whole frame."""
    return max(value.size, 2)


def frame_words(size: int, doubled: bool) -> int:
    """Words of memory for a frame, or for two, of which the second begins at a power of two."""
    return size + (2 ** index_bits(size) if doubled else 0)


def layer_of(program: Program, number: int, ranges: Sequence[Range], schedule: LayerSchedule) -> Layer:
    """The instance for step `number`; an error names what has none."""
    step, name = program.steps[number], f"s{number + 1}"
    operands, known = program.operands(step), [ranges[i] for i in step.inputs]
    match step:
        case Product():
            return _product(step, name, operands[0], known[0], schedule)
        case MaxPool() | MeanPool():
            return _pool(step, name, operands[0], known[0], schedule)
        case Add() | Mul():
            return _pairwise(step, name, operands, known)
        case Rescale():
            return _rescale(step, name, operands[0], known[0])
        case Clamp():
            bits = bits_of(step.out, known[0])
            parameters = {"BITS": bits, "LOW": step.low, "HIGH": step.high}
            return _plain(step, name, "rlx_clamp", parameters, bits, _delayed(1))
        case Lookup():
            return _lookup(step, name, ranges[number + 1])
        case Softmax():
            return _softmax(step, name, operands[0])
        case Argmax():
            bits = index_bits(operands[0].size)
            parameters = {"IN_BITS": bits_of(operands[0], known[0]), "COUNT": operands[0].size, "OUT_BITS": bits}
            return _plain(step, name, "rlx_argmax", parameters, bits, lambda times: times[0][-1:] + 1)
    raise RlxError(f"fpga: {step.name}: there is no circuit for a {type(step).__name__}, step {number + 1}")


def _plain(
    step: Step, name: str, module: str, parameters: dict[str, Any], bits: int, clocks: Clocks, **more: Any
) -> Layer:
    return Layer(name, type(step).__name__, module, parameters, step.inputs, step.out, bits, clocks, **more)


def _delayed(clocks: int) -> Clocks:
    return lambda times: times[0] + clocks


def _lookup(step: Lookup, name: str, result: Range) -> Layer:
    bits = bits_of(step.out, result)
    # Codes address the table as they are, so that negative ones lie in its upper half.
    words = Table(bits, tuple(int(c) % 2**bits for c in np.roll(step.table, 128)))
    file = f"{name}_table.hex"
    parameters = {"IN_BITS": 8, "OUT_BITS": bits, "FILE": file}
    return _plain(step, name, "rlx_lookup", parameters, bits, _delayed(1), tables={file: words})


def _softmax(step: Softmax, name: str, x: Value) -> Layer:
    count, file = x.dims[-1], f"{name}_table.hex"
    powers = Table(17, tuple(int(e) for e in step.table))
    parameters: dict[str, int | str] = {
        "COUNT": count,
        "PLACE_BITS": index_bits(count),
        "WORDS": x.size,
        "ADDRESS_BITS": index_bits(x.size),
        "TOTAL_BITS": index_bits(count * int(step.table.max()) + 1),
        "FILE": file,
    }

    def clocks(times: Sequence[Array]) -> Array:
        rows, start = [], int(times[0][-1])
        for _ in range(x.size // count):
            rows.append(start + 2 * count + _SCANS_TO_QUOTIENT - 1 + _QUOTIENT * np.arange(1, count + 1))
            start = int(rows[-1][-1])
        return np.concatenate(rows)

    return _plain(step, name, "rlx_softmax", parameters, 8, clocks, tables={file: powers})


def _rescale(step: Rescale, name: str, x: Value, known: Range) -> Layer:
    in_bits, out_bits = bits_of(x, known), bits_of(step.out, known)
    sums = Range(*(c - x.zero_point for c in known))
    made = requantizer(
        step.multipliers, sums, step.out.zero_point, Range(step.low, step.high), out_bits, sum_bits=in_bits + 2
    )
    parameters = {"IN_BITS": in_bits, "IN_ZERO_POINT": x.zero_point, **_constant(made)}
    return _plain(step, name, "rlx_rescale", parameters, out_bits, _delayed(made.digits + _SUM_TO_CODE))


def _constant(made: Requantizer) -> dict[str, int]:
    """Parameters of a layer with one multiplier, which takes a sum per clock."""
    dropped = ("PIPELINED", "SHIFT_BITS")
    return {
        **{k: v for k, v in made.parameters.items() if k not in dropped},
        "MULTIPLIER": made.multipliers[0],
        "LEFT": made.lefts[0],
    }


def _pairwise(step: Add | Mul, name: str, operands: Sequence[Value], known: Sequence[Range]) -> Layer:
    out_bits = bits_of(step.out, known[0])
    differences = [r.moved(-v.zero_point) for v, r in zip(operands, known)]
    parameters: dict[str, int | str] = {}
    clocks = 0
    for prefix, value, codes in zip("AB", operands, known):
        parameters |= {f"{prefix}_BITS": bits_of(value, codes), f"{prefix}_ZERO_POINT": value.zero_point}
    if isinstance(step, Add):
        doubled, parts = step.headroom_of(*operands), []
        for number, (prefix, value, codes) in enumerate(zip("AB", operands, differences)):
            one = step.multipliers.take(number)
            ends = one.scaled(np.array([codes.low << doubled, codes.high << doubled]))
            parts.append(Range(int(ends[0]), int(ends[1])))
            wide = bits_of(value, codes) + 2
            line = requantizer(one, codes, 0, parts[-1], parts[-1].bits, sum_bits=wide, doubled=doubled)
            clocks = line.digits + _SUM_TO_CODE
            parameters |= {
                f"{prefix}_SUM_BITS": wide,
                f"{prefix}_MULTIPLIER": line.multipliers[0],
                **{
                    f"{prefix}_{k}": line.parameters[k]
                    for k in ("DIGIT_BITS", "DIGITS", "DIGIT_COUNT_BITS", "FRACTION_BITS")
                },
                f"{prefix}_SHIFT": line.parameters["SHIFT_MIN"],
                f"{prefix}_WIDE_BITS": line.parameters["WIDE_BITS"],
            }
        part_bits = max(p.bits for p in parts)
        parameters["PART_BITS"] = part_bits
        sums, sum_bits = Range(sum(p.low for p in parts), sum(p.high for p in parts)), part_bits + 1
        last, module = step.multipliers.take(2), "rlx_add"
    else:
        products = [a * b for a in differences[0] for b in differences[1]]
        sums, sum_bits = Range(min(products), max(products)), sum(bits_of(v, r) + 1 for v, r in zip(operands, known))
        last, module = step.multipliers, "rlx_mul"
    made = requantizer(last, sums, step.out.zero_point, Range(step.low, step.high), out_bits, sum_bits=sum_bits)
    parameters |= _constant(made)
    clocks += made.digits + _SUM_TO_CODE
    return _plain(step, name, module, parameters, out_bits, _joined(clocks), joins=True)


def _joined(clocks: int) -> Clocks:
    """A pair is taken when both are there, one per clock."""

    def times(taken: Sequence[Array]) -> Array:
        both, order = np.maximum(*taken), np.arange(len(taken[0]))
        return np.maximum.accumulate(both - order) + order + clocks

    return times


@dataclass(frozen=True)
class _Windows:
    """What a product or a pool goes over: windows of an image; a row of codes is an image of one place."""

    image: Value
    out: Value
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: Pads = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @staticmethod
    def of(step: Product, x: Value) -> _Windows:
        if isinstance(step, Conv2d):
            return _Windows(x, step.out, step.kernel, step.stride, step.padding, step.dilation, step.groups)
        return _Windows(Value(x.name, (1, 1, x.size)), Value(step.name, (1, 1, step.channels)))


@dataclass(frozen=True)
class _Lanes:
    """The sums that are formed at a time: `count` of the channels of a group in each pass."""

    count: int
    channels: int
    systolic: bool

    @staticmethod
    def of(step: Product, groups: int, schedule: LayerSchedule) -> _Lanes:
        channels = step.channels // groups
        count = min(schedule.lanes, channels)
        return _Lanes(count, channels, schedule.systolic and count > 1 and not isinstance(step, Conv2d))

    @property
    def passes(self) -> int:
        return -(-self.channels // self.count)

    @property
    def last(self) -> int:
        """How many lanes have a channel in the last pass."""
        return self.channels - (self.passes - 1) * self.count

    @property
    def behind(self) -> int:
        """By how many clocks the last lane of an array begins and ends after the first."""
        return self.count - 1 if self.systolic else 0

    def windows(self, windows: _Windows) -> _Windows:
        """What is read for all lanes: that of an array reaches beyond the frame, until its last lane has ended."""
        if not self.systolic:
            return windows
        image, size = windows.image, windows.image.size
        kernel, padding = (1, size + self.behind), ((0, 0), (0, self.behind))
        return replace(windows, image=Value(image.name, (1, size, 1)), kernel=kernel, padding=padding)


def _frame(windows: _Windows, passes: int, schedule: LayerSchedule) -> dict[str, int]:
    """Parameters of rlx_frame."""
    operand, kernel, groups = windows.image, windows.kernel, windows.groups
    stride, padding, dilation = windows.stride, windows.padding, windows.dilation
    (height, width, channels), (rows, columns) = operand.dims, windows.out.dims[:2]
    (kh, kw), kc = kernel, channels // groups
    row, place = width * channels, channels
    across = dilation[1] * place
    to_window_row = dilation[0] * row - (kw - 1) * across - (kc - 1)
    to_column = stride[1] * place - (groups - 1) * kc
    to_row = stride[0] * row - (columns - 1) * stride[1] * place - (groups - 1) * kc
    address_bits = index_bits(operand.size)
    padded = any(p for pads in padding for p in pads)
    reach = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip((rows, columns), stride, kernel, dilation)]
    modulus = 2**address_bits
    return {
        "WORDS": operand.size,
        "ADDRESS_BITS": address_bits,
        "ROWS": rows,
        "COLUMNS": columns,
        "GROUPS": groups,
        "PASSES": passes,
        "KH": kh,
        "KW": kw,
        "KC": kc,
        "START": -(padding[0][0] * row + padding[1][0] * place) % modulus,
        "TO_COLUMN_OF_WINDOW": (across - (kc - 1)) % modulus,
        "TO_ROW_OF_WINDOW": to_window_row % modulus,
        "TO_COLUMN": to_column % modulus,
        "TO_ROW": to_row % modulus,
        "PADDED": int(padded),
        "HEIGHT": height,
        "WIDTH": width,
        # One bit more than the largest place, so that negative ones are larger than all.
        "EDGE_BITS": index_bits(max(height, width, *reach) + 1) + 1,
        "TOP": padding[0][0],
        "LEFT": padding[1][0],
        "DILATION_Y": dilation[0],
        "DILATION_X": dilation[1],
        "STRIDE_Y": stride[0],
        "STRIDE_X": stride[1],
        "SPRAM": int(schedule.spram),
        "DOUBLED": int(schedule.doubled and not schedule.spram),
    }


def _product(step: Product, name: str, x: Value, known: Range, schedule: LayerSchedule) -> Layer:
    whole = _Windows.of(step, x)
    lanes = _Lanes.of(step, whole.groups, schedule)
    windows = lanes.windows(whole)
    on_the_way, sums = sums_of(step, known.moved(-x.zero_point))
    in_bits, out_bits = bits_of(x, known), bits_of(step.out, known)
    difference_bits = in_bits + (x.zero_point != 0)
    acc_bits = max(on_the_way.bits, difference_bits + step.weights.bits + 1)
    bias_bits = signed_bits(int(step.bias.min()), int(step.bias.max()))
    made = requantizer(
        step.multipliers,
        sums,
        step.out.zero_point,
        Range(step.low, step.high),
        out_bits,
        digits=schedule.digits,
        pipelined=schedule.pipelined,
        dsp=schedule.requantize_dsp,
        sum_bits=max(sums.bits, acc_bits + 1, bias_bits + 1),
    )
    codes = step.weights.codes.astype(np.int64).reshape(whole.groups, lanes.channels, -1)
    taps = codes.shape[-1] + lanes.behind
    # Lanes of an array keep their codes, so that what comes in cannot be 0 where there is no tap.
    sums_in_dsp = schedule.dsp and not lanes.systolic and acc_bits <= _DSP_SUM_BITS and taps >= _TAPS_OF_DSP_SUMS
    weights = _weight_table(_skewed(codes, lanes.count) if lanes.systolic else codes, lanes.count, step.weights.bits)
    channels = _channel_table(step, made, bias_bits)
    parameters: dict[str, int | str] = {
        "IN_BITS": in_bits,
        "IN_ZERO_POINT": x.zero_point,
        "DIFFERENCE_BITS": difference_bits,
        **_frame(windows, lanes.passes, schedule),
        "LANES": lanes.count,
        "LAST_LANES": lanes.last,
        "LANE_BITS": index_bits(lanes.count + 1),
        "SYSTOLIC": int(lanes.systolic),
        "SUMS_IN_DSP": int(sums_in_dsp),
        "WEIGHT_BITS": step.weights.bits,
        "WEIGHT_WORDS": len(weights.words),
        "WEIGHT_ADDRESS_BITS": index_bits(len(weights.words)),
        "WEIGHT_BLOCK": int(weights.in_block),
        "WEIGHT_FILE": f"{name}_weights.hex",
        "ACC_BITS": acc_bits,
        "CHANNELS": step.channels,
        "CHANNEL_BITS": index_bits(len(channels.words)),
        "CHANNEL_WORDS": len(channels.words),
        "CHANNEL_BLOCK": int(channels.in_block),
        "CHANNEL_FILE": f"{name}_channels.hex",
        "BIAS_BITS": bias_bits,
        **made.parameters,
        "SHIFTS_DIFFER": int(made.shifts_differ),
        "DSP": int(schedule.dsp),
        "REQUANTIZE_DSP": int(schedule.requantize_dsp),
    }
    rows, columns = whole.out.dims[:2]
    in_passes = ([lanes.count] * (lanes.passes - 1) + [lanes.last]) * (rows * columns * whole.groups)
    return Layer(
        name,
        type(step).__name__,
        "rlx_product",
        parameters,
        step.inputs,
        step.out,
        out_bits,
        lambda times: product_clocks(int(times[0][-1]), taps, made, in_passes, gap=int(sums_in_dsp)),
        {f"{name}_weights.hex": weights, f"{name}_channels.hex": channels},
        macs=step.macs,
        lanes=lanes.count,
        drain=_TAP_TO_SUM + (lanes.last - 1) * made.interval + made.digits + _SUM_TO_CODE - int(sums_in_dsp),
    )


def _skewed(codes: Array, lanes: int) -> Array:
    """[group, channel, tap] with each lane one tap behind the one before it, and zeros where it has none."""
    groups, channels, taps = codes.shape
    found = np.zeros((groups, channels, taps + lanes - 1), np.int64)
    for channel in range(channels):
        behind = channel % lanes
        found[:, channel, behind : behind + taps] = codes[:, channel]
    return found


def _weight_table(codes: Array, lanes: int, bits: int) -> Table:
    """[group, channel of it, tap] in the order of use: group, pass, tap; the first lane in the lowest bits."""
    groups, channels, taps = codes.shape
    passes = -(-channels // lanes)
    padded = np.zeros((groups, passes * lanes, taps), np.int64)
    padded[:, :channels] = codes
    ordered = padded.reshape(groups, passes, lanes, taps).transpose(0, 1, 3, 2).reshape(-1, lanes) % 2**bits
    words = [sum(int(c) << (bits * n) for n, c in enumerate(row)) for row in ordered]
    return Table(bits * lanes, _at_least_two(words))


def _channel_table(step: Product, made: Requantizer, bias_bits: int) -> Table:
    parameters = made.parameters
    words, bits = [0] * step.channels, 0
    fields: list[tuple[Sequence[int], int]] = [
        ([int(b) % 2**bias_bits for b in step.bias], bias_bits),
        (made.multipliers, parameters["DIGITS"] * parameters["DIGIT_BITS"]),
    ]
    if parameters["LEFT_SHIFTED"]:
        fields.append((made.lefts, parameters["LEFT_BITS"]))
    if made.shifts_differ:
        fields.append((made.shifts, parameters["SHIFT_BITS"]))
    for numbers, width in fields:
        words = [w | n << bits for w, n in zip(words, numbers)]
        bits += width
    return Table(bits, _at_least_two(words))


def _at_least_two(words: Sequence[int]) -> tuple[int, ...]:
    """Memories of one word need no address, which tools do not agree about."""
    return tuple(words) if len(words) > 1 else (*words, 0)


def product_clocks(loaded: int, taps: int, made: Requantizer, sums: Sequence[int], gap: int = 0) -> Array:
    """When each code leaves, for a frame whose last code came at `loaded`; `sums` says how many each pass makes.

    The last tap of a pass waits until the requantiser has taken all sums of the pass before; `gap` is the clocks
    between the last tap of a pass and the first of the next.
    """
    interval = made.interval
    last_tap, taken, found = loaded - gap, -interval, []
    for count in sums:
        last_tap = max(last_tap + gap + taps, taken + 1)
        first = max(last_tap + _TAP_TO_SUM, taken + interval)
        taken = first + (count - 1) * interval
        found.append(first + interval * np.arange(count))
    return np.concatenate(found) + made.digits + _SUM_TO_CODE


def _pool(step: MaxPool | MeanPool, name: str, x: Value, known: Range, schedule: LayerSchedule) -> Layer:
    bits, count, mean = bits_of(x, known), step.kernel[0] * step.kernel[1], isinstance(step, MeanPool)
    # A channel is a group of its own.
    windows = _Windows(x, step.out, step.kernel, step.stride, step.padding, groups=x.dims[2])
    parameters: dict[str, int | str] = {
        "BITS": bits,
        **_frame(windows, 1, schedule),
        "MEAN": int(mean),
    }
    if mean:
        sum_bits = max(signed_bits(known.low * count, known.high * count), bits + 1)
        # n // count = n * ceil(2^s / count) >> s for all n below 2^b, with s = b + the bits of count.
        shift = sum_bits + 1 + count.bit_length()
        factor = -(-(2**shift) // count)
        parameters |= {"SUM_BITS": sum_bits, "ROUNDING": count // 2, "RECIPROCAL_SHIFT": shift}
        parameters |= {"RECIPROCAL": factor, "RECIPROCAL_BITS": factor.bit_length() + 1}
    positions, delay = step.out.size, 2 if mean else 1
    last_taps = count * np.arange(1, positions + 1)
    if count < _TAP_TO_RESULT + 1:
        last_taps = count + (_TAP_TO_RESULT + 1) * np.arange(positions)

    return _plain(
        step,
        name,
        "rlx_pool",
        parameters,
        bits,
        lambda times: times[0][-1] + last_taps + _TAP_TO_RESULT + delay,
        drain=_TAP_TO_RESULT + delay,
    )
