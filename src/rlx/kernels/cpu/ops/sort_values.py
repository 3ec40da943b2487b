"""`sorted_values`: rows of numbers in order, where nobody asks where they came from.

Numbers become words without sign that compare as they do. Several rows are sorted side by side (`sort_network`) unless
they are very long. Of single rows short ones are ranked by comparing all pairs; long ones are dealt out digit by digit,
the last one first, to and fro between the result and a second row. What all words have in common is left alone: small
integers take a part of the passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.sort_keys import is_nan
from rlx.kernels.cpu.ops.sort_network import RowNetwork, deal_out_rows
from rlx.kernels.cpu.ops.strips import along
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.sort_order import VALUE_TYPES, SortedValues

# Rows up to these lengths are ranked, the second where there are so many lanes.
SHORT, SHORT_IN_LANES, ENOUGH_LANES = 64, 96, 16
# Values of a digit, and bits of two of them.
DIGIT, TWO_DIGITS = 256, 16


def _supports(op: Op, operands: Sequence[Shape]) -> bool:
    return operands[0].dtype in VALUE_TYPES


@op_kernel(SortedValues, kind="sort", supports=_supports, runs_on=lambda machine: not machine.is_gpu)
def sorted_values(site: OpSite) -> None:
    _Values(site).build()


class _Values:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, SortedValues)
        self.site, self.k, self.descending = site, site.k, site.op.descending
        (self.x,), (y, other) = site.inputs, site.outputs
        self.y, self.other = y.buffer, other.buffer
        self.dtype = self.x.shape.dtype
        self.bits = 8 * self.dtype.size_bytes
        self.word = DType.of(f"u{self.bits}")
        # Words of 16 bits are sorted side by side as such of 32.
        self.wide = DType.of(f"u{max(32, self.bits)}")
        self.counts = self.k.local("counts", DType.I32, self.bits // 8 * DIGIT)
        self.lanes = min(site.machine.lanes(self.word), site.machine.lanes(DType.I32))

    def build(self) -> None:
        *lead, length = self.x.dims
        deal_out_rows(
            self.k,
            self.site.machine,
            self.wide,
            total(self.k, lead),
            self.x.shape.dims[-1],
            length,
            lambda network, first, count: self.side_by_side(network, first, count, length),
            lambda row: self.row(row * length, length),
        )

    def side_by_side(self, network: RowNetwork, first: Value, count: Value, length: Value) -> None:
        """Rows from the first one on; lanes behind them sort the last one once more."""
        k, lanes = self.k, network.lanes

        def load(r: int, i: Value, mask: Value) -> Value:
            base = (first + k.min(count - 1, r)) * length
            word = self.word_of(k.load(self.x.buffer, base + i, lanes=lanes, mask=mask))
            return k.cast(word, self.wide)

        def store(r: int, i: Value, words: Value, mask: Value) -> None:
            place = (first + r) * length + i
            exists = k.lane_mask(k.select(count > r, length - i, 0), lanes)
            k.store(self.y, place, self.number_of(k.cast(words, self.word)), mask=exists)

        network.sort(length, load, store)
        start = first * length
        along(k, self.site.machine, [self.dtype], start, start + count * length, lambda *at: self.clear(*at))

    def row(self, base: Value, length: Value) -> None:
        k = self.k
        with k.when(length <= (SHORT_IN_LANES if self.lanes >= ENOUGH_LANES else SHORT)):
            self.rank(base, length)
        with k.otherwise():
            self.by_digits(base, length)
        # What was moved through it is no result.
        along(k, self.site.machine, [self.dtype], base, base + length, lambda *at: self.clear(*at))

    def clear(self, i: Value, lanes: int, mask: Value | None) -> None:
        self.k.store(self.other, i, self.k.const(0, ValueType(self.dtype, lanes)), mask=mask)

    # Numbers and words.

    def word_of(self, x: Value) -> Value:
        """The word of a number: the smallest comes first, and NaN last either way."""
        k = self.k
        bits = k.bitcast(x, ValueType(self.word, x.lanes))
        top = k.const(1 << (self.bits - 1), bits.type)
        if self.dtype.is_float:
            # Negative numbers are in reverse order.
            key = k.select(k.ne(bits & top, 0), ~bits, bits ^ top)
        else:
            key = bits ^ top if self.dtype.is_signed else bits
        key = ~key if self.descending else key
        nan = is_nan(k, x)
        return key if nan is None else k.select(nan, (1 << self.bits) - 1, key)

    def number_of(self, word: Value) -> Value:
        k = self.k
        key = ~word if self.descending else word
        top = k.const(1 << (self.bits - 1), word.type)
        if not self.dtype.is_float:
            return k.bitcast(key ^ top if self.dtype.is_signed else key, ValueType(self.dtype, word.lanes))
        bits = k.select(k.ne(key & top, 0), key ^ top, ~key)
        quiet = k.const((1 << (self.bits - 1)) - 1, word.type)
        bits = k.select(k.eq(word, (1 << self.bits) - 1), quiet, bits)
        return k.bitcast(bits, ValueType(self.dtype, word.lanes))

    def stored(self, buffer: Buffer, place: Value, lanes: int = 1, mask: Value | None = None) -> Value:
        """Words lie in memory as numbers of the same bits."""
        loaded = self.k.load(buffer, place, lanes=lanes, mask=mask)
        return self.k.bitcast(loaded, ValueType(self.word, lanes))

    def store(self, buffer: Buffer, place: Value, word: Value, mask: Value | None = None) -> None:
        self.k.store(buffer, place, self.k.bitcast(word, ValueType(self.dtype, word.lanes)), mask=mask)

    # Short rows.

    def rank(self, base: Value, length: Value) -> None:
        """The place of a number is how many come before it."""
        k, lanes = self.k, self.lanes
        with k.loop("i", 0, length, lanes) as i:
            exists = k.lane_mask(length - i, lanes)
            numbers = k.load(self.x.buffer, base + i, lanes=lanes, mask=exists)
            mine = self.word_of(numbers)
            own = k.splat(k.cast(i, DType.I32), lanes) + k.iota(DType.I32, lanes)
            with k.fold("j", 0, length, init=[k.const(0, own.type)]) as fold:
                other = k.splat(self.word_of(k.load(self.x.buffer, base + fold.index)), lanes)
                earlier = k.splat(k.cast(fold.index, DType.I32), lanes) < own
                fold.next(fold.values[0] + k.cast((other < mine) | (k.eq(other, mine) & earlier), DType.I32))
            places = k.cast(fold.results[0], DType.I64) + k.splat(base, lanes)
            k.store(self.y, places, numbers, mask=exists)

    # Long rows.

    def by_digits(self, base: Value, length: Value) -> None:
        k = self.k

        def to_words(i: Value, lanes: int, mask: Value | None) -> None:
            number = k.load(self.x.buffer, base + i, lanes=lanes, mask=mask)
            self.store(self.y, base + i, self.word_of(number), mask)

        def to_numbers(i: Value, lanes: int, mask: Value | None) -> None:
            k.store(self.y, base + i, self.number_of(self.stored(self.y, base + i, lanes, mask)), mask=mask)

        start = k.as_index(0)
        along(k, self.site.machine, [self.dtype], start, length, to_words)
        self.count(base, length)
        first = self.stored(self.y, base)
        for shift in range(0, self.bits, TWO_DIGITS):
            is_common = [self.is_common(first, s, length) for s in (shift, shift + 8)]
            with k.when(~(is_common[0] & is_common[1])):
                self.deal(base, length, shift, self.y, self.other)
                self.deal(base, length, shift + 8, self.other, self.y)
        along(k, self.site.machine, [self.dtype], start, length, to_numbers)

    def digit(self, word: Value, shift: int) -> Value:
        """Eight bits of a word, as a place in the counts of those bits."""
        k = self.k
        shifted = k.op("shr", word, k.const(shift, word.type)) if shift else word
        return k.cast(shifted & (DIGIT - 1), DType.I64) + shift // 8 * DIGIT

    def count(self, base: Value, length: Value) -> None:
        """How often each value of each digit comes."""
        k = self.k
        with k.loop("d", 0, self.bits // 8 * DIGIT) as d:
            k.store(self.counts, d, 0)
        with k.loop("i", 0, length) as i:
            word = self.stored(self.y, base + i)
            for shift in range(0, self.bits, 8):
                place = self.digit(word, shift)
                k.store(self.counts, place, k.load(self.counts, place) + 1)

    def is_common(self, first: Value, shift: int, length: Value) -> Value:
        """Whether all words have this digit in common."""
        return self.k.eq(self.k.cast(self.k.load(self.counts, self.digit(first, shift)), DType.I64), length)

    def deal(self, base: Value, length: Value, shift: int, source: Buffer, goal: Buffer) -> None:
        """By one digit, equals in the order they have."""
        k = self.k
        start = shift // 8 * DIGIT
        with k.fold("d", start, start + DIGIT, init=[k.const(0, DType.I32)]) as fold:
            count = k.load(self.counts, fold.index)
            k.store(self.counts, fold.index, fold.values[0])
            fold.next(fold.values[0] + count)
        with k.loop("i", 0, length) as i:
            word = self.stored(source, base + i)
            place = self.digit(word, shift)
            to = k.load(self.counts, place)
            k.store(self.counts, place, to + 1)
            self.store(goal, base + k.cast(to, DType.I64), word)
