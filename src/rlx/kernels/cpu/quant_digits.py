"""One row of floats times GGUF codes, in whole numbers and exact: what `matmul_quant` does for a single row.

The row becomes whole numbers of 31 bits, x = scale·v for a power of two: nothing is lost of numbers within a factor of
64 of the largest, and of smaller ones what is below 2^-30 of it (or 2^-127). A number is four digits in base 256,
v = Σ 256^d·digit with -128 <= digit < 128, and the products of a digit and the codes of a group are summed by dot
products of bytes, four at a time, where floats would convert every code and multiply it on its own.

    Σ x·(s·(q - bias) + m) = scale·(s·Σ_d 256^d·(Σ digit·q - bias·Σ digit) + m·Σ x/scale)

The sums of digits are whole numbers of 32 bits; floats begin where the digits meet.
"""

from __future__ import annotations

import functools
import operator

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.tiles import MatrixView
from rlx.kernels.cpu.quant_codes import WORD, Panel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.ops.lowered.int8_products import byte_bias, has_byte_codes
from rlx.quant.panels import RECORD, PanelFormat

F32, I8, I32, U8, U32 = DType.F32, DType.I8, DType.I32, DType.U8, DType.U32
DIGITS = 4
# The largest number becomes one below 2^BITS.
BITS = 30
_ABOVE_ZERO = 0x00808080
# Of f32: the exponent of 1, that of what is no number, and where exponents begin.
_ONE, _NO_NUMBER, _EXPONENT = 127, 255, 23


def has_digits(machine: Machine, layout: PanelFormat, lanes: int) -> bool:
    """Whether rows are better multiplied as digits: codes are bytes or parts of them, and groups whole vectors."""
    if not has_byte_codes(layout) or lanes not in machine.dot4_lanes:
        return False
    return layout.group % max(lanes, _run(layout)) == 0


def _run(layout: PanelFormat) -> int:
    """Elements that have their codes in one word."""
    return 32 // layout.planes[0]


class DigitRow:
    """A row, or a part of one, in scratch: the digits of each record in the order of the codes' bytes, what the dot
    products of its groups begin with, and their sums. `words` has room for 32 words of each of `records` records.
    Vectors of columns have `lanes`, and those of the row as many, or its own number of them."""

    # Whether dot products take codes with signs, and their numbers lie in memory that the threads of a block share.
    has_signs = is_shared = False

    def __init__(
        self, k: KernelBuilder, layout: PanelFormat, words: Buffer, lanes: int, records: int, row_lanes: int = 0
    ) -> None:
        self.k, self.layout, self.words, self.lanes, self.records = k, layout, words, lanes, records
        self.row_lanes = row_lanes or lanes
        self.bias = byte_bias(layout, self.has_signs)
        self.run = _run(layout)
        # Elements that are put in order together.
        self.width = max(self.row_lanes, self.run)
        array = k.shared if self.is_shared else k.local
        if self.bias:
            self.starts = array("digit_starts", I32, records * layout.groups * DIGITS)
        if layout.has_minimums:
            self.totals = array("digit_totals", F32, records * layout.groups)

    def take(self, row: MatrixView, start: Value, stop: Value) -> Value:
        """Records `start` to `stop` of a row to scratch: gives the scale of their numbers, NaN if one is none."""
        k = self.k
        zero = k.const(0, ValueType(U32, self.row_lanes))
        with k.fold("record", start, stop, init=[zero]) as fold:
            fold.next(self.largest(self.floats(row, fold.index), fold.values[0]))
        scale, inverse = self.scales(fold.results[0])
        with k.loop("record", start, stop) as record:
            self.store(record - start, [x * k.splat(inverse, x.lanes) for x in self.floats(row, record)])
        return scale

    def take_record(self, row: MatrixView, record: Value, place: Value) -> Value:
        """One record of a row to a place in scratch: gives the scale of its numbers."""
        k = self.k
        floats = self.floats(row, record)
        scale, inverse = self.scales(self.largest(floats, k.const(0, ValueType(U32, self.row_lanes))))
        self.store(place, [x * k.splat(inverse, x.lanes) for x in floats])
        return scale

    def largest(self, floats: list[Value], known: Value) -> Value:
        """The bits of the largest of some numbers without their signs, in each lane."""
        sizes = [self.k.bitcast(x, U32) & 0x7FFFFFFF for x in floats]
        return functools.reduce(self.k.max, sizes, known)

    def scales(self, largest: Value) -> tuple[Value, Value]:
        """What makes whole numbers of floats up to the largest ones, NaN if one is none, and its inverse."""
        k = self.k
        # Scales of smaller numbers would have no inverse.
        exponent = k.max(k.reduce("max", largest) >> _EXPONENT, BITS)
        scale = k.bitcast((exponent - (BITS - 1)) << _EXPONENT, F32)
        inverse = k.bitcast((2 * _ONE + BITS - 1 - exponent) << _EXPONENT, F32)
        return k.select(exponent < _NO_NUMBER, scale, float("nan")), inverse

    def floats(self, row: MatrixView, record: Value) -> list[Value]:
        k, lanes = self.k, self.row_lanes
        places = [row.at(0, record * RECORD + j) for j in range(0, RECORD, lanes)]
        return [k.cast(k.load(row.buffer, place, lanes=lanes), F32) for place in places]

    def store(self, record: Value, parts: list[Value]) -> None:
        k, layout, width = self.k, self.layout, self.width
        raw = [self.digits(k.op("round", x)) for x in parts]
        step = width // self.row_lanes
        ordered = [self.in_order(raw[i : i + step]) for i in range(0, len(raw), step)]
        for number, part in enumerate(ordered):
            k.store(self.words, record * RECORD + number * width, k.bitcast(part, ValueType(self.words.dtype, width)))
        for group in range(layout.groups):
            place, first = record * layout.groups + group, group * layout.group
            if self.bias:
                own = ordered[first // width : (first + layout.group) // width]
                k.store(self.starts, place * DIGITS, self.digit_sums(own) * -self.bias)
            if layout.has_minimums:
                lanes = self.row_lanes
                floats = parts[first // lanes : (first + layout.group) // lanes]
                k.store(self.totals, place, k.reduce("add", functools.reduce(operator.add, floats)))

    def digits(self, x: Value) -> Value:
        """The digits of whole numbers as bytes, the lowest of each first."""
        k = self.k
        numbers = k.bitcast(k.cast(x, I32), U32)
        return k.bitcast((numbers + _ABOVE_ZERO) ^ _ABOVE_ZERO, ValueType(I8, DIGITS * self.row_lanes))

    def in_order(self, parts: list[Value]) -> Value:
        """The digits of some vectors, those that meet the bytes of one word of codes side by side."""
        k, per_byte = self.k, self.run // WORD
        while len(parts) > 1:
            parts = [k.shuffle(x, range(2 * x.lanes), y) for x, y in zip(parts[::2], parts[1::2])]
        order = [
            (first + j + per_byte * b) * DIGITS + digit
            for first in range(0, self.width, self.run)
            for j in range(per_byte)
            for digit in range(DIGITS)
            for b in range(WORD)
        ]
        return k.shuffle(parts[0], order)

    def digit_sums(self, parts: list[Value]) -> Value:
        """i32[DIGITS]: for each digit the sum over the numbers of some vectors that are in order."""
        k, size = self.k, WORD * self.row_lanes
        ones = k.const(1, ValueType(I8 if self.has_signs else U8, size))
        total: Value = k.const(0, ValueType(I32, self.row_lanes))
        for part in parts:
            for first in range(0, part.lanes, size):
                total = k.dot4(total, ones, k.shuffle(part, range(first, first + size)))
        while total.lanes > DIGITS:
            half = total.lanes // 2
            total = k.shuffle(total, range(half)) + k.shuffle(total, range(half, 2 * half))
        return total

    def product(self, panel: Panel, start: Value, stop: Value) -> Value:
        """The numbers in scratch, records `start` to `stop` of the row, times a vector of columns."""
        k, length = self.k, self.layout.records
        with k.fold("run", start, stop, length, init=[k.const(0, ValueType(F32, self.lanes))]) as runs:
            heads = panel.codes.heads(panel.base, panel.lane, runs.index)
            with k.fold("record", runs.index, runs.index + length, init=runs.values) as fold:
                fold.next(self.added(panel, fold.index, fold.index - start, heads, fold.values[0]))
            runs.next(*fold.results)
        return runs.results[0]

    def record_product(self, panel: Panel, record: Value, inside: Value) -> Value:
        """The numbers at one place in scratch, those of a record, times a vector of columns."""
        heads = panel.codes.heads(panel.base, panel.lane, record)
        return self.added(panel, record, inside, heads, self.k.const(0, ValueType(F32, self.lanes)))

    def added(self, panel: Panel, record: Value, inside: Value, heads: list[Value], total: Value) -> Value:
        """The products of a record added to what is known of a vector of columns."""
        k = self.k
        place = panel.codes.place(panel.base, record)
        for group in range(self.layout.groups):
            step, minimum = panel.codes.scales(place, panel.lane, group, heads)
            total = k.fma(step, self.dot(panel, place, inside, group), total)
            if minimum is not None:
                known = k.load(self.totals, inside * self.layout.groups + group)
                total = k.fma(k.splat(known, self.lanes), minimum, total)
        return total

    def dot(self, panel: Panel, place: Value, record: Value, group: int) -> Value:
        """Σ v·(q - bias) over a group of a record of codes, which is at `place`."""
        k, lanes = self.k, self.lanes
        dots = [self.start(record, group, digit) for digit in range(DIGITS)]
        words = self.layout.group // self.run
        for word in range(group * words, (group + 1) * words):
            for j, four in enumerate(panel.codes.fours(place, panel.lane, k.as_index(word), self.has_signs)):
                first = record * RECORD + (word * (self.run // WORD) + j) * DIGITS
                for digit in range(DIGITS):
                    bits = k.bitcast(k.load(self.words, first + digit), I32)
                    numbers = k.bitcast(k.splat(bits, lanes), ValueType(I8, WORD * lanes))
                    dots[digit] = k.dot4(dots[digit], four, numbers)
        low, high = ((dots[d + 1] << 8) + dots[d] for d in (0, 2))
        return k.fma(k.cast(high, F32), 65536.0, k.cast(low, F32))

    def start(self, record: Value, group: int, digit: int) -> Value:
        k = self.k
        if not self.bias:
            return k.const(0, ValueType(I32, self.lanes))
        place = (record * self.layout.groups + group) * DIGITS + digit
        return k.splat(k.load(self.starts, place), self.lanes)
