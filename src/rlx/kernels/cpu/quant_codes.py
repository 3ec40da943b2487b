"""`Codes`: the fields of GGUF weights in panels (`rlx.quant.panels`) as vectors, for kernels that multiply them."""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.quant.panels import PANEL_ROWS, PanelFormat

F32, I32 = DType.F32, DType.I32
# Elements of a record that code is written out for.
CHUNK = 8
# Bytes of a word, and of the words of all columns of a panel.
WORD = 4
LINE = WORD * PANEL_ROWS


class Codes:
    """The fields of records as vectors of `lanes` columns of a panel, from column `lane` of it on. With `is_aligned`
    panels begin at multiples of 16 bytes, and every field so at a multiple of its own size."""

    def __init__(
        self,
        k: KernelBuilder,
        machine: Machine,
        layout: PanelFormat,
        buffer: Buffer,
        lanes: int,
        is_aligned: bool = False,
    ) -> None:
        self.k, self.layout, self.buffer, self.lanes = k, layout, buffer, lanes
        self.is_aligned = is_aligned
        self.has_lookup = len(layout.table) == 16 and lanes in machine.lookup_lanes and lanes in (8, 16)
        self.tables: list[Value] = []
        self.bits: dict[tuple[int, ...], Buffer] = {}
        if layout.table:
            self.table = k.table("values", F32, layout.table)

    def load_tables(self) -> None:
        """Once per block, before values are asked for."""
        if self.has_lookup:
            self.tables = [self.k.load(self.table, first, lanes=self.lanes) for first in range(0, 16, self.lanes)]

    def place(self, base: Value, record: Value) -> Value:
        """Where a record begins."""
        layout = self.layout
        if layout.records == 1:
            return base + record * layout.record_bytes
        run, inside = record // layout.records, record % layout.records
        return base + run * layout.run_bytes + (inside * layout.record_bytes + layout.header_bytes)

    def read(self, place: Value, dtype: DType) -> Value:
        """A vector of some type from bytes."""
        align = dtype.size_bytes if self.is_aligned else 0
        raw = self.k.load(self.buffer, place, lanes=self.lanes * dtype.size_bytes, align=align)
        return self.k.bitcast(raw, ValueType(dtype, self.lanes))

    @property
    def shifts(self) -> tuple[int, ...]:
        """For each element of a chunk the power of two with which `values` multiplies it: the fields of one plane are
        masked and not moved, which saves an instruction."""
        planes = self.layout.planes
        if self.layout.table or len(planes) > 1 or planes == (8,):
            return (0,) * CHUNK
        # The highest field is moved: where it stands it would be a sign.
        return tuple(planes[0] * j if planes[0] * (j + 1) < 32 else 0 for j in range(CHUNK))

    def values(self, place: Value, lane: Value, chunk: Value) -> list[Value]:
        """What the codes of the elements of a chunk stand for, without `bias` and times 2^`shifts`: f32."""
        k, planes = self.k, self.layout.planes
        if planes == (8,):
            words = [self.read(place + (lane * WORD + (chunk * 2 + i) * LINE), DType.U32) for i in range(2)]
            # The byte with its sign, from the top of the word.
            tops = [word << up if up else word for word in words for up in (24, 16, 8, 0)]
            return [k.cast(k.bitcast(top, I32) >> 24, F32) for top in tops]
        words = [self.word(place + lane * WORD, plane, chunk) for plane in range(len(planes))]
        if self.has_lookup:
            return [self.looked_up(k.bitcast(words[0] >> (planes[0] * j), I32)) for j in range(CHUNK)]
        if any(self.shifts):
            mask = 2 ** planes[0] - 1
            fields = [
                words[0] & (mask << s) if s or j == 0 else words[0] >> (planes[0] * j)
                for j, s in enumerate(self.shifts)
            ]
            return [k.cast(k.bitcast(field, I32), F32) for field in fields]
        return [self.number(words, j) for j in range(CHUNK)]

    def word(self, place: Value, plane: int, chunk: Value) -> Value:
        """The words of a plane with the fields of a chunk, moved down so that they lie like those of the first one."""
        places = [self.layout.field_place(plane, CHUNK * c) for c in range(3)]
        # Chunks 0 and 1, and 2 and 3, are pairs.
        word, bit = (chunk % 2 * second + chunk // 2 * third for _, second, third in zip(*places))
        words = self.read(place + (word * LINE + self.plane_start(plane)), DType.U32)
        moves = any(b for _, b in places)
        return words >> self.k.splat(self.k.cast(bit, DType.U32), self.lanes) if moves else words

    def run(self, place: Value, lane: Value, first: int) -> Value:
        """What the codes of as many elements as there are lanes stand for, all of one column: those of a record from
        `first` on, without `bias`: f32."""
        k, planes, shift = self.k, self.layout.planes, 0
        code: Value | None = None
        for plane, width in enumerate(planes):
            places = [self.layout.field_place(plane, first + j) for j in range(self.lanes)]
            words = self.spread(place + (lane * WORD + self.plane_start(plane)), [word for word, _ in places])
            if planes == (8,):
                # The byte with its sign, from the top of the word.
                return k.cast(k.bitcast(words << self.moves([24 - bit for _, bit in places]), I32) >> 24, F32)
            field = (words >> self.moves([bit for _, bit in places])) & (2**width - 1)
            code = field if code is None else code | field << shift
            shift += width
        assert code is not None
        if self.has_lookup:
            return self.looked_up(k.bitcast(code, I32))
        if self.layout.table:
            return k.load(self.table, k.cast(code, DType.I64), lanes=self.lanes)
        return k.cast(k.bitcast(code, I32), F32)

    def spread(self, place: Value, numbers: list[int]) -> Value:
        """For each lane the word of that number of one column."""
        k = self.k
        words: Value | None = None
        for number in sorted(set(numbers)):
            raw = k.load(self.buffer, place + number * LINE, lanes=WORD)
            word = k.splat(k.bitcast(raw, ValueType(DType.U32)), self.lanes)
            lanes = [self.lanes * (n == number) + j for j, n in enumerate(numbers)]
            words = word if words is None else k.shuffle(words, lanes, word)
        assert words is not None
        return words

    def moves(self, bits: list[int]) -> Value:
        """By how many bits each lane is moved."""
        known = self.bits.get(tuple(bits))
        table = self.bits[tuple(bits)] = known or self.k.table(f"bits{len(self.bits)}", DType.U32, bits)
        return self.k.load(table, 0, lanes=self.lanes)

    def plane_start(self, plane: int) -> int:
        return sum(self.layout.planes[:plane]) * LINE

    def fours(self, place: Value, lane: Value, word: Value, has_signs: bool = False) -> list[Value]:
        """The codes in a word of each column, four at a time: bytes, with or without signs as dot products want them.

        They come in the order of `word_order`; where codes have a sign, or are entries of a table, and bytes have none,
        128 is added."""
        k, lanes, (width, *others) = self.k, self.lanes, self.layout.planes
        kind, count = ValueType(DType.I8 if has_signs else DType.U8, WORD * lanes), self.layout.per_byte
        words = self.read(place + (lane * WORD + word * LINE), DType.U32)
        if width == 8:
            return [k.bitcast(words, kind) if has_signs else k.bitcast(words, kind) ^ 128]
        fields = [(words >> (width * j) if j else words) & _in_bytes(2**width - 1) for j in range(count)]
        shift = width
        for plane, more in enumerate(others, 1):
            # So many words of the first plane have their other bits in one word of this one.
            shared = 8 // more // count
            start = lane * WORD + self.plane_start(plane)
            bits = self.read(place + (start + word // shared * LINE), DType.U32)
            bits = bits >> k.splat(k.cast(word % shared * (more * count), DType.U32), lanes)
            for j in range(count):
                up = shift - more * j
                moved = bits << up if up > 0 else bits >> -up if up else bits
                fields[j] = fields[j] | moved & _in_bytes((2**more - 1) << shift)
            shift += more
        if not self.layout.table:
            return [k.bitcast(field, kind) for field in fields]
        entries = [int(value) % 256 if has_signs else int(value) + 128 for value in self.layout.table]
        fours = [k.bitcast(field, kind.with_dtype(DType.U8)) for field in fields]
        return [k.bitcast(k.byte_lookup(entries, four), kind) for four in fours]

    def number(self, words: list[Value], j: int) -> Value:
        """The value of one code, from the planes of its bits."""
        k, code, shift = self.k, None, 0  # type: KernelBuilder, Value | None, int
        for plane, (width, word) in enumerate(zip(self.layout.planes, words)):
            down = self.layout.field_place(plane, j)[1] - shift
            field = (word >> down if down >= 0 else word << -down) & ((2**width - 1) << shift)
            code = field if code is None else code | field
            shift += width
        assert code is not None
        if self.layout.table:
            return k.load(self.table, k.cast(code, DType.I64), lanes=self.lanes)
        return k.cast(k.bitcast(code, I32), F32)

    def looked_up(self, index: Value) -> Value:
        k = self.k
        if len(self.tables) == 1:
            return k.lookup(self.tables[0], index)
        low, high = (k.lookup(table, index) for table in self.tables)
        return k.select(k.ne(index & 8, 0), high, low)

    def heads(self, base: Value, lane: Value, record: Value) -> list[Value]:
        """What multiplies the steps, and the minimums, of the run that a record belongs to; nothing if nothing does."""
        k, layout = self.k, self.layout
        if not layout.has_header:
            return []
        run = base + record // layout.records * layout.run_bytes
        places = [run + (lane * 2 + number * 2 * PANEL_ROWS) for number in range(1 + layout.has_minimums)]
        step, *minimum = (k.cast(self.read(place, DType.F16), F32) for place in places)
        # K-quants subtract their minimums.
        return [step, *(-m for m in minimum)]

    def scales(self, place: Value, lane: Value, group: int | Value, heads: list[Value]) -> tuple[Value, Value | None]:
        """Step and minimum of a group, as f32."""
        step = self.scale(place, lane, group, heads, 0)
        return step, self.scale(place, lane, group, heads, 1) if self.layout.has_minimums else None

    def unbiased_scales(self, place: Value, lane: Value, group: int, heads: list[Value]) -> tuple[Value, Value | None]:
        """Step and minimum of a group, as f32; a bias is part of the minimum."""
        step, minimum = self.scales(place, lane, group, heads)
        if self.layout.bias:
            shift = step * float(-self.layout.bias)
            minimum = shift if minimum is None else minimum + shift
        return step, minimum

    def scale(self, place: Value, lane: Value, group: int | Value, heads: list[Value], number: int) -> Value:
        k, layout = self.k, self.layout
        at = group * (layout.step_bytes * PANEL_ROWS) + (layout.code_bytes + number * layout.scale_bytes)
        if not heads:
            kind = DType.F32 if layout.step_bytes == 4 else DType.F16
            return k.cast(self.read(place + (lane * layout.step_bytes + at), kind), F32)
        kind = DType.I8 if layout.signed_steps and number == 0 else DType.U8
        return k.cast(self.read(place + (lane + at), kind), F32) * heads[number]


def _in_bytes(mask: int) -> int:
    """A mask in every byte of a word."""
    return mask * 0x01010101


class Panel(NamedTuple):
    """The panel of a vector of columns: where it begins, and which of its columns is the first."""

    codes: Codes
    base: Value
    lane: Value
