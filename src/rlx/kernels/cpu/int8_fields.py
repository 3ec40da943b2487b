"""The codes and scales of GGUF weights as dot products of bytes meet them: where they lie, or taken out for many rows.

`InWords` reads the records of a panel (`rlx.quant.panels`) as they are, and takes codes out of their words each time.
`TakenOut` is the same of some records whose codes an `int8_scratch` holds as bytes, and whose scales it holds as f32.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.quant_codes import WORD, Panel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.int8_products import PairForm
from rlx.quant.panels import RECORD, PanelFormat

# How far ahead codes are asked for, in bytes: what comes from memory in the time that it takes to come. The processor's
# own prefetchers stay closer. With Q4_K and codes of 16 bits on Zen 5, against none for one row and 2304 bytes for
# more: one row reads 42 GB/s in place of 30 with a thread and 75 in place of 54 with two, four rows 30 in place of 18
# with one. A decoder of 1B on Cascade Lake, in turns: one sequence is 1.03 to 1.20 times as fast.
# Types without headers, which processors fetch better by themselves, want it closer: 3 % with one row on Zen 5.
AHEAD = 9216
AHEAD_OF_RECORDS = 7680
LINE_BYTES = 64


class InWords(NamedTuple):
    """The fields of a vector of columns in memory."""

    panel: Panel

    @property
    def run_length(self) -> int:
        """Records that share their `heads`."""
        return self.panel.codes.layout.records

    def heads(self, record: Value) -> list[Value]:
        """What multiplies the scales of the run that a record belongs to."""
        return self.panel.codes.heads(self.panel.base, self.panel.lane, record)

    def place(self, record: Value) -> Value:
        """Where a record is, as the other methods want to know it; one that comes later is asked for."""
        codes = self.panel.codes
        place = codes.place(self.panel.base, record)
        ahead = AHEAD if codes.layout.has_header else AHEAD_OF_RECORDS
        for byte in range(0, codes.layout.record_bytes, LINE_BYTES):
            codes.k.prefetch(codes.buffer, place + (ahead + byte))
        return place

    def fours(self, place: Value, group: int) -> list[Value]:
        """The codes of a group, four of each column at a time."""
        codes, lane = self.panel.codes, self.panel.lane
        words = codes.layout.planes[0] // codes.layout.groups
        numbers = range(group * words, (group + 1) * words)
        return [four for word in numbers for four in codes.fours(place, lane, codes.k.as_index(word))]

    def scales(self, place: Value, group: int, heads: list[Value]) -> tuple[Value, Value | None]:
        """Step and minimum of a group, as f32."""
        return self.panel.codes.scales(place, self.panel.lane, group, heads)


class Scratch(NamedTuple):
    """Room for the fields of `vectors` vectors of columns, side by side."""

    k: KernelBuilder
    layout: PanelFormat
    lanes: int
    vectors: int
    codes: Buffer
    scales: Buffer
    # How codes are stored for products of pairs, and what these begin with.
    pairs: PairForm | None
    starts: Buffer | None

    @property
    def numbers(self) -> int:
        """Scales of a record."""
        return self.layout.groups * (1 + self.layout.has_minimums)

    def four_at(self, record: Value, vector: int, group: int, number: int) -> Value:
        fours = RECORD // WORD
        line = record * fours + (group * (fours // self.layout.groups) + number)
        return (line * self.vectors + vector) * (WORD * self.lanes)

    def scale_at(self, record: Value, vector: int, group: int, number: int) -> Value:
        line = record * self.numbers + (number * self.layout.groups + group)
        return (line * self.vectors + vector) * self.lanes

    def start_at(self, record: Value, vector: int) -> Value:
        return (record * self.vectors + vector) * self.lanes


def int8_scratch(
    k: KernelBuilder, layout: PanelFormat, lanes: int, vectors: int, records: int, pairs: PairForm | None = None
) -> Scratch:
    """Room for some records, whose codes are there for products of pairs if there is a form of these."""
    columns = records * lanes * vectors
    codes = k.local("codes", DType.U8, columns * RECORD)
    scales = k.local("scales", DType.F32, columns * layout.groups * (1 + layout.has_minimums))
    starts = k.local("starts", DType.I32, columns) if pairs else None
    return Scratch(k, layout, lanes, vectors, codes, scales, pairs, starts)


class TakenOut(NamedTuple):
    """The fields of a vector of columns, from record `start` on, in scratch."""

    scratch: Scratch
    vector: int
    start: Value

    @property
    def run_length(self) -> int:
        return 1

    def take(self, source: InWords, stop: Value) -> None:
        """Those up to record `stop` out of memory."""
        scratch = self.scratch
        k, layout = scratch.k, scratch.layout
        with k.loop("run", self.start, stop, layout.records) as run:
            heads = source.heads(run)
            with k.loop("record", run, run + layout.records) as record:
                place, to = source.place(record), self.place(record)
                for group in range(layout.groups):
                    fours = source.fours(place, group)
                    if scratch.pairs is not None:
                        fours = self.paired(fours, to, scratch.pairs)
                    for number, four in enumerate(fours):
                        k.store(scratch.codes, scratch.four_at(to, self.vector, group, number), four)
                    for number, scale in enumerate(source.scales(place, group, heads)):
                        if scale is not None:
                            k.store(scratch.scales, scratch.scale_at(to, self.vector, group, number), scale)

    def paired(self, fours: list[Value], to: Value, pairs: PairForm) -> list[Value]:
        """The codes of a record as products of pairs want them, and what these begin with to scratch."""
        s = self.scratch
        k, found = s.k, list[Value]()
        total: Value = k.const(0, ValueType(DType.I32, s.lanes))
        for first_four, second_four in zip(fours[::2], fours[1::2]):
            first, second = first_four + -pairs.half % 256, second_four + pairs.most
            found += [first, second]
            total = k.dot4(total, second, k.bitcast(first, ValueType(DType.I8, first.lanes)))
        assert s.starts is not None
        k.store(s.starts, s.start_at(to, self.vector), total * -1)
        return found

    def pair_start(self, place: Value) -> Value:
        """What products of pairs begin with."""
        s = self.scratch
        assert s.starts is not None
        return s.k.load(s.starts, s.start_at(place, self.vector), lanes=s.lanes)

    def heads(self, record: Value) -> list[Value]:
        return []

    def place(self, record: Value) -> Value:
        return record - self.start

    def fours(self, place: Value, group: int) -> list[Value]:
        s = self.scratch
        places = [s.four_at(place, self.vector, group, n) for n in range(RECORD // WORD // s.layout.groups)]
        return [s.k.load(s.codes, place, lanes=WORD * s.lanes) for place in places]

    def scales(self, place: Value, group: int, heads: list[Value]) -> tuple[Value, Value | None]:
        s = self.scratch
        places = [s.scale_at(place, self.vector, group, n) for n in range(1 + s.layout.has_minimums)]
        step, *minimum = (s.k.load(s.scales, place, lanes=s.lanes) for place in places)
        return step, minimum[0] if minimum else None
