"""`StoredFormat`, `CodeReader`, `ScaleReader`: GGUF panels (`rlx.quant.panels`) in shared memory for `mma` of bytes.

A record has 32 codes of each of the 16 rows of a panel. Lane 4g + t takes rows 2g and 2g + 1, and of both halves h of
what `mma` sees four codes each, as the bytes of one word. Which places along K they have is a matter of the layout:

    words of four bits and one step for a record (`is_wide`)    8t + h + 2i            i = 0..3
    numbers of a table, codes of a byte                         16h + 4t + i
    others                                                      16h + 8(t // 2) + t % 2 + 2i

so that a shift and a mask give four codes. Whoever makes the other operand of `mma` follows `order` and `is_wide`.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cuda.hopper.writer import Val, Writer
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

# Records that are brought together: those under one header.
RECORDS = 8
# The float 1.5 * 2^23 as bits: as long as sums stay below 2^22, its bits plus a sum are the bits of it plus the sum.
MAGIC_BITS, MAGIC = 0x4B400000, 12582912.0


class StoredFormat(NamedTuple):
    """What decides the code for a panel format. A table holds integers, `unit` times which is what codes stand for."""

    planes: tuple[int, ...]
    group: int
    bias: int
    table: tuple[int, ...]
    unit: float
    has_minimums: bool
    step_bytes: int
    signed_steps: bool
    header_bytes: int
    code_bytes: int
    scale_bytes: int
    record_bytes: int

    @staticmethod
    def of(layout: PanelFormat) -> StoredFormat | None:
        """None for formats whose values are no bytes: a table with finer steps, or more bits than a byte has."""
        unit = 1.0
        while any(value / unit % 1 for value in layout.table) and unit > 1 / 128:
            unit /= 2
        table = tuple(int(value / unit) for value in layout.table)
        is_exact = all(abs(t) <= 127 and t * unit == value for t, value in zip(table, layout.table))
        if not is_exact or len(table) not in (0, 16):
            return None
        is_known = layout.planes in ((8,), (4,), (2,), (4, 2), (4, 1), (2, 1))
        if not is_known or layout.group not in (16, 32) or (table and layout.planes != (4,)):
            return None
        return StoredFormat(
            layout.planes,
            layout.group,
            layout.bias,
            table,
            unit,
            layout.has_minimums,
            layout.step_bytes,
            layout.signed_steps,
            layout.header_bytes,
            layout.code_bytes,
            layout.scale_bytes,
            layout.record_bytes,
        )

    @property
    def groups(self) -> int:
        """Of a record."""
        return RECORD // self.group

    @property
    def is_wide(self) -> bool:
        """Whether a lane has the eight codes of one word of four bits: only where a record has one step."""
        return self.planes[0] == 4 and self.group == 32 and not self.table

    @property
    def order(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Eight neighbours along K as the bytes of two words."""
        if self.table or self.planes == (8,):
            return (0, 1, 2, 3), (4, 5, 6, 7)
        return (0, 2, 4, 6), (1, 3, 5, 7)

    @property
    def has_offsets(self) -> bool:
        """Whether a multiple of the sum of A is taken off: minimums, or the bias of codes."""
        return self.has_minimums or self.bias > 0

    @property
    def chunk_bytes(self) -> int:
        """Records that are brought together, and their header."""
        return self.header_bytes + RECORDS * self.record_bytes


def load_shared(w: Writer, at: Val, count: int, type: str = "i32", offset: int = 0) -> list[Val]:
    """Neighbouring words of shared memory."""
    if count == 1:
        return w.asm(f"ld.shared.b32 $0, [<a>+{offset}];", results=[type], a=at)
    names = ", ".join(f"${i}" for i in range(count))
    return w.asm(f"ld.shared.v{count}.b32 {{{names}}}, [<a>+{offset}];", results=[type] * count, a=at)


def store_shared(w: Writer, at: Val, *values: Val, offset: int = 0) -> None:
    names = ", ".join(f"<x{i}>" for i in range(len(values)))
    named: dict[str, Val | int] = {f"x{i}": v for i, v in enumerate(values)}
    if len(values) == 1:
        w.asm(f"st.shared.b32 [<at>+{offset}], <x0>;", named=named, at=at)
    else:
        w.asm(f"st.shared.v{len(values)}.b32 [<at>+{offset}], {{{names}}};", named=named, at=at)


def permuted(w: Writer, a: Val | int, b: Val | int, selector: Val | int) -> Val:
    """Bytes of two words, picked by the four lowest nibbles of the selector."""
    return w.call("llvm.nvvm.prmt", "i32", w.value(a), w.value(b), w.value(selector))


def as_float(w: Writer, bits: Val) -> Val:
    return w.emit(f"bitcast i32 {bits.name} to float", "float")


def halves(w: Writer, word: Val, element: str = "f16") -> list[Val]:
    """Two numbers of 16 bits in a word, as f32."""
    if element == "bf16":
        return [as_float(w, word << 16), as_float(w, word & -65536)]
    pair = w.emit(f"bitcast i32 {word.name} to <2 x half>", "<2 x half>")
    found = [w.emit(f"extractelement <2 x half> {pair.name}, i32 {i}", "half") for i in range(2)]
    return [w.emit(f"fpext half {x.name} to float", "float") for x in found]


class CodeReader:
    """Reads records of one format for the lanes of a warp."""

    def __init__(self, w: Writer, stored: StoredFormat, lane: Val) -> None:
        self.w, self.stored, self.lane = w, stored, lane
        self.pair, self.part = lane >> 2, lane & 3
        self.high, self.odd = self.part >> 1, self.part & 1

    def codes(self, record: Val, offset: int) -> list[list[Val]]:
        """For each half of the record at a place words with four codes of the first and of the second row."""
        stored, plane = self.stored, self.pair * 8 + record
        planes: list[list[list[Val]]] = []
        shift = 0
        for width in stored.planes:
            planes.append(self._plane(plane, width, offset, shift))
            offset += width * 4 * PANEL_ROWS
            shift += width
        codes = planes[0]
        for others in planes[1:]:
            codes = [[x | y for x, y in zip(*both)] for both in zip(codes, others)]
        return codes

    def _plane(self, plane: Val, width: int, offset: int, shift: int) -> list[list[Val]]:
        """The fields of one plane, `shift` bits further up, for each half and row."""
        line = 4 * PANEL_ROWS
        if width == 8:
            return [load_shared(self.w, plane + self.part * line, 2, offset=offset + 4 * h * line) for h in range(2)]
        if shift:
            return self._upper_plane(plane, width, offset, shift)
        if width == 2:
            return [
                [self._pairs(word) for word in load_shared(self.w, plane, 2, offset=offset + half * line)]
                for half in range(2)
            ]
        if self.stored.is_wide:
            words = load_shared(self.w, plane + self.part * line, 2, offset=offset)
            return [[(word >> (4 * half)) & 0x0F0F0F0F for word in words] for half in range(2)]
        found = []
        for half in range(2):
            words = load_shared(self.w, plane + self.high * line, 2, offset=offset + 2 * half * line)
            if self.stored.table:
                found.append([self._looked_up(word >> (self.odd * 16)) for word in words])
            else:
                found.append([(word >> (self.odd * 4)) & 0x0F0F0F0F for word in words])
        return found

    def _upper_plane(self, plane: Val, width: int, offset: int, shift: int) -> list[list[Val]]:
        """The upper bits of codes: of the four that a lane takes each byte of a word has one, or two have two each."""
        mask = (2**width - 1) * 0x01010101
        found = []
        for half in range(2):
            # The number of the four among all of the record.
            number = self.part * 2 + half if self.stored.is_wide else self.part + 4 * half
            per_word = 8 // width
            if self.stored.planes[0] == 2:
                words = load_shared(self.w, plane, 2, offset=offset)
                moved = [self._apart(word) >> (self.odd + 4 * half) for word in words]
                found.append([((word | (word << 6)) & mask) << shift for word in moved])
                continue
            words = load_shared(self.w, plane + (number // per_word) * (4 * PANEL_ROWS), 2, offset=offset)
            up = (number % per_word) * width
            found.append([((word >> up) & mask) << shift for word in words])
        return found

    def _pairs(self, word: Val) -> Val:
        """Fields of two bits: of two bytes with four of them each every other one counts."""
        apart = self._apart(word) >> (self.odd * 2)
        return (apart | (apart << 4)) & 0x03030303

    def _apart(self, word: Val) -> Val:
        """The two bytes with the lane's fields, as bytes 0 and 2."""
        w = self.w
        return permuted(w, word, 0, w.select(self.high.equals(0), 0x4140, 0x4342))

    def _looked_up(self, selector: Val) -> Val:
        """Four nibbles as what the table has for them: of eight entries each, then one of both by the highest bit."""
        w, table = self.w, self.stored.table
        words = [sum((table[4 * i + b] & 255) << (8 * b) for b in range(4)) for i in range(4)]
        signed = [word - (1 << 32) if word >> 31 else word for word in words]
        low, high = (permuted(w, signed[i], signed[i + 1], selector & 0x7777) for i in (0, 2))
        mask = permuted(w, 0xFF00, 0, (selector >> 3) & 0x1111)
        return low ^ ((low ^ high) & mask)


class ScaleReader:
    """Steps and minimums of a chunk as f32: a lane has four rows of a group at a time, eight groups in a turn."""

    def __init__(self, w: Writer, stored: StoredFormat, lane: Val) -> None:
        self.w, self.stored = w, stored
        self.line, self.four = lane >> 2, lane & 3

    def heads(self, chunk: Val) -> list[list[Val]]:
        """What multiplies the steps of the lane's rows, and their minimums."""
        w, stored = self.w, self.stored
        if stored.step_bytes != 1:
            return [[], []]
        return [
            [
                x
                for word in load_shared(w, chunk + self.four * 8, 2, offset=number * 2 * PANEL_ROWS)
                for x in halves(w, word)
            ]
            for number in range(1 + stored.has_minimums)
        ]

    def read(self, chunk: Val, turn: int, number: int, heads: list[list[Val]]) -> list[Val]:
        """Steps (`number` 0), or what is subtracted (1), of four rows."""
        w, stored = self.w, self.stored
        line = self.line + turn * RECORDS
        record, group = (line, w.value(0)) if stored.groups == 1 else (line >> 1, line & 1)
        at = chunk + record * stored.record_bytes + group * (stored.step_bytes * PANEL_ROWS)
        at = at + self.four * (4 * stored.step_bytes)
        offset = stored.header_bytes + stored.code_bytes + number * stored.scale_bytes
        if stored.step_bytes == 4:
            values = load_shared(w, at, 4, "float", offset)
        elif stored.step_bytes == 2:
            values = [x for word in load_shared(w, at, 2, offset=offset) for x in halves(w, word)]
        else:
            (word,) = load_shared(w, at, 1, offset=offset)
            values = self._bytes(word, stored.signed_steps and number == 0)
            values = [value * head for value, head in zip(values, heads[number])]
        if number == 0:
            return [value * stored.unit for value in values] if stored.unit != 1 else values
        # Only K-quants subtract their minimums.
        return values if stored.header_bytes else [value * -1.0 for value in values]

    def _bytes(self, word: Val, is_signed: bool) -> list[Val]:
        """A byte below the exponent of 2^23 is 2^23 plus the byte."""
        w = self.w
        if is_signed:
            word = word ^ -0x7F7F7F80
        floats = [as_float(w, permuted(w, word, 0x4B000000, 0x7540 + i)) for i in range(4)]
        return [x - (8388736.0 if is_signed else 8388608.0) for x in floats]
