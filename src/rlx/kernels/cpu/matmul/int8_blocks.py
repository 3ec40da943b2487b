"""`int8_block_kernel`: products of 8- or 16-bit activations with GGUF weights, block by block in whole numbers.

Weights have a scale for every block of 32 or 16, activations one for every block or span of them (`SPANS`):

    y = Σ s·Σ (t·Σ a·q + m·Σ a)

where the inner sums are of whole numbers. Codes are the bytes of dot products; words hold neighbours along K in another
order than memory, in which `Int8Blocks` has stored the activations, with their scales and sums behind them: rows are
read where they are. Codes with a sign are made unsigned, and dot products begin with what takes that back. Activations
of 16 bits are two digits, each of which is multiplied like one of 8 bits.

Up to a tile of rows meet one panel after the other, as one stream that is read once. A tile takes the codes of a record
out of their words once, for all of its rows and digits, and asks for those that come after it. More rows meet some
records of two vectors of columns, whose codes are taken out once for all rows and stay in the caches, with their scales
as f32. Each row is added up in the same order either way.

Many rows are limited by the multipliers, which make dot products as well as anything else that multiplies: of 256
elements of a row and a vector of columns 128 dot products for two digits, 8 products with steps, 2 with scales, and 8
with minimums if there are some. Where a machine adds vectors beside its multiplications, a dot product and two
additions take the place of two dot products (`PairForm`). On Zen 5, as a share of the most dot products that the
machine makes, 256 rows of Q4_K then reach 92 % with two digits and 75 % with one, in place of 83 % and 67 %. With two
digits only the higher one is multiplied so: all work on vectors together is limited too, to 3.3 instructions a cycle or
so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.byte_dots import Sum, byte_dots
from rlx.kernels.cpu.int8_fields import InWords, TakenOut, int8_scratch
from rlx.kernels.cpu.matmul.blocks import BlockShape, block_shape
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, Product, ResultBlock
from rlx.kernels.cpu.matmul.quant import few_columns
from rlx.kernels.cpu.matmul.tiles import SumVectors
from rlx.kernels.cpu.quant_codes import WORD, Codes, Panel
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.ops.lowered.int8_products import SPANS, PairForm, block_bytes, byte_bias, pair_form
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

F32, I8, I32 = DType.F32, DType.I8, DType.I32
# Rows of a tile: those of 8 rows keep their sums, their dot products and the codes of a record in 32 registers.
TILE_ROWS = 8
FEWER_ROWS = 4
# Rows of the tiles that there is code for, besides whole ones: what is over is computed and not used. Three rows would
# save a sixth of the time of four, and cost a tenth more of that of compiling.
TILE_COUNTS = (1, 2, 4, 6)
# Spans that the code of one row has behind each other where all records are alike. In one loop each load would go
# through memory in equal steps, by which processors fetch ahead themselves, less far and in the way of what is asked
# for here. Headers break the steps.
TOGETHER = 4
# Rows and vectors of columns of a tile whose codes were taken out before, by digits: activations are read once for all
# of its columns. Two digits have dot products of their own. The second are for 16 registers, the last for pairs.
WIDE_TILES = {1: (6, 2), 2: (4, 2)}
FEWER_WIDE_TILES = {1: (4, 2), 2: (2, 2)}
PAIR_TILES = {1: (4, 2), 2: (2, 4)}
# Rows of a block, which share the codes that are taken out of their words, and columns, which share the rows.
ROWS = 256
COLUMNS = 128
# Records of a panel, and bytes of their codes, that all tiles go through before the next ones come: they stay in the
# first cache.
SOME_RECORDS = 32
SOME_BYTES = 16 << 10


def int8_block_kernel(name: str, machine: Machine, layout: PanelFormat, product: Product, *, digits: int = 1) -> Kernel:
    """C[m, n] = epilogue(A @ W) for rows A as `Int8Blocks` stores them, with codes of so many digits, and the panels B
    of W[k, n], both bytes."""
    return BlockCodesMaker(name, machine, layout, product, digits).build()


def _pairs(machine: Machine, layout: PanelFormat, digits: int) -> PairForm | None:
    """How codes are multiplied in pairs, where that is faster."""
    return pair_form(layout, digits) if machine.adds_beside_dots else None


def _wide_tile(machine: Machine, layout: PanelFormat, digits: int) -> tuple[int, int]:
    """Rows and vectors of columns of a tile whose codes were taken out before."""
    if _pairs(machine, layout, digits):
        return PAIR_TILES[digits]
    return (WIDE_TILES if machine.vector_registers >= 32 else FEWER_WIDE_TILES)[digits]


def _shape(machine: Machine, product: Product, vectors: int) -> BlockShape:
    count = len(product.bs)
    shape = block_shape(machine, F32, product.n, count, copies_a=False)
    tile_rows = TILE_ROWS if machine.vector_registers >= 32 else FEWER_ROWS
    panels = max(1, COLUMNS // count // (vectors * shape.lanes))
    shape = shape._replace(vectors=vectors, tile_rows=tile_rows, panels=panels)
    # Half of the scratch is for sums.
    room = machine.copies_bytes // 2 // (count * shape.columns * F32.size_bytes)
    return shape._replace(rows=max(tile_rows, min(ROWS, room) // tile_rows * tile_rows))


class _Tile(NamedTuple):
    """Rows of A, by where they begin, from row `row` of a block on, and the fields of some vectors of columns of the B
    of that number, from column `inside` on, over records `start` to `stop`."""

    number: int
    rows: list[Value]
    row: Value
    fields: Sequence[InWords | TakenOut]
    inside: Value
    start: Value
    stop: Value


class BlockCodesMaker(MatmulMaker):
    def __init__(self, name: str, machine: Machine, layout: PanelFormat, product: Product, digits: int) -> None:
        self.wide_rows, vectors = _wide_tile(machine, layout, digits)
        # Rows of a tile that has registers for the sums of all digits.
        self.rows_of_digits = (WIDE_TILES if machine.vector_registers >= 32 else FEWER_WIDE_TILES)[digits][0]
        super().__init__(name, machine, product, True, F32, _shape(machine, product, vectors))
        k, n = product.weight_shape
        self.layout, self.digits = layout, digits
        self.last_panel = -(-n // PANEL_ROWS) - 1
        self.panel_bytes = layout.panel_bytes(k)
        self.lanes = min(self.shape.lanes, PANEL_ROWS)
        self.codes = [Codes(self.k, self.machine, layout, b.buffer, self.lanes) for b in self.bs]
        self.records = k // RECORD
        self.record_bytes = block_bytes(layout, RECORD, digits)
        self.bias = byte_bias(layout)
        self.byte_dots = byte_dots(self.k, machine, layout, self.lanes)
        self.few_columns = few_columns(self.shape, self.last_panel + 1, self.panel_bytes * len(self.bs))
        self.some = min(self.records, SOME_RECORDS, SOME_BYTES // (RECORD * self.lanes * vectors))
        pairs = _pairs(machine, layout, digits)
        self.has_pairs = pairs is not None
        self.scratch = int8_scratch(self.k, layout, self.lanes, vectors, self.some, pairs)

    def block_columns(self) -> Value:
        k = self.k
        is_few = k.min(k.max(k.as_index(self.shape.tile_rows + 1) - self.m, 0), 1)
        return is_few * self.few_columns + (1 - is_few) * self.shape.columns

    def panels(self, block: ResultBlock) -> None:
        k = self.k
        with k.when(self.is_one_tile(block)):
            self.one_tile(block)
        with k.otherwise(), k.loop("step", 0, self.records, self.some) as start:
            self.many_tiles(block, start, k.min(start + self.some, self.records))

    def is_one_tile(self, block: ResultBlock) -> Value:
        """Whether a block has so few rows that its codes are read as they lie: of all blocks, or of none."""
        return self.m <= self.shape.tile_rows

    def one_tile(self, block: ResultBlock) -> None:
        """Rows that are one tile, and all records of one vector of columns after the other."""
        k, stop = self.k, self.k.as_index(self.records)
        for number in range(len(self.bs)):
            with k.loop("column", 0, block.columns, self.lanes) as inside:
                panel = self.panel_at(number, block, inside)
                for count in self.counts(block.rows, self.shape.tile_rows):
                    fields = [InWords(panel)]
                    rows = self.rows_from(block, self.zero, count)
                    self.tile_sums(_Tile(number, rows, self.zero, fields, inside, self.zero, stop))

    def many_tiles(self, block: ResultBlock, start: Value, stop: Value) -> None:
        """All rows and columns over some records."""
        k, size = self.k, self.wide_rows
        fields = [TakenOut(self.scratch, vector, start) for vector in range(self.shape.vectors)]
        for number in range(len(self.bs)):
            with k.loop("column", 0, block.columns, self.shape.vectors * self.lanes) as inside:
                for vector, taken in enumerate(fields):
                    panel = self.panel_at(number, block, inside + vector * self.lanes)
                    taken.take(InWords(panel), stop)
                with k.loop("row", 0, block.rows, size) as row:
                    for count in self.counts(block.rows - row, size):
                        rows = self.rows_from(block, row, count)
                        self.tile_sums(_Tile(number, rows, row, fields, inside, start, stop))

    def counts(self, left: Value, size: int) -> Iterator[int]:
        """Where so many rows are left: those of the smallest tile that holds them, up to `size`."""
        below = 0
        for count in sorted({size, *(c for c in TILE_COUNTS if c < size)}):
            with self.k.when(left > below if count == size else (left > below) & (left <= count)):
                yield count
            below = count

    def rows_from(self, block: ResultBlock, row: Value, count: int) -> list[Value]:
        """So many rows of A; where there are fewer the last one is repeated."""
        lines = [self.k.min(row + r, block.rows - 1) if r else row for r in range(count)]
        return [self.a.at(block.batch, self.row_of(block.row + line), self.zero).at(0, 0) for line in lines]

    def panel_at(self, number: int, block: ResultBlock, inside: Value) -> Panel:
        """The panel of a vector of columns; those after the last one are its own."""
        b, column = self.bs[number], block.column + inside
        first = b.offset + block.batch * b.strides[0]
        panel = self.k.min(column // PANEL_ROWS, self.last_panel)
        return Panel(self.codes[number], first + panel * self.panel_bytes, column % PANEL_ROWS)

    def tile_sums(self, tile: _Tile) -> None:
        """Add the products of some rows and columns over some records to the sums."""
        k, grid, rows, vectors = self.k, self.sums_of(tile.number), range(len(tile.rows)), range(len(tile.fields))
        places = [grid.at(tile.row + r, tile.inside + v * self.lanes) for v in vectors for r in rows]
        sums = SumVectors(self.sums, places, self.lanes)
        span = SPANS[self.digits]
        step = span * self.together(tile)
        length = max(tile.fields[0].run_length, step)
        with k.fold("run", tile.start, tile.stop, length, init=sums.known(k, k.eq(tile.start, 0))) as runs:
            heads = [fields.heads(runs.index) for fields in tile.fields]
            totals: Sequence[Value] = runs.values
            if length == step:
                for done in range(0, step, span):
                    totals = self.span_sums(tile, heads, runs.index + done if done else runs.index, totals)
            else:
                with k.fold("span", runs.index, runs.index + length, span, init=totals) as spans:
                    spans.next(*self.span_sums(tile, heads, spans.index, spans.values))
                totals = spans.results
            runs.next(*totals)
        sums.store(k, runs.results)

    def together(self, tile: _Tile) -> int:
        """How many spans the code of a tile has behind each other."""
        is_stream = len(tile.rows) == 1 and isinstance(tile.fields[0], InWords) and tile.fields[0].run_length == 1
        return TOGETHER if is_stream and self.records % (TOGETHER * SPANS[self.digits]) == 0 else 1

    def span_sums(self, tile: _Tile, heads: list[list[Value]], start: Value, before: Sequence[Value]) -> list[Value]:
        """Sums with those of the records that share a scale of activations added."""
        k, span = self.k, SPANS[self.digits]
        found: Sequence[Value] = [k.const(0, ValueType(F32, self.lanes))] * len(before)
        if span == 1:
            found = self.record_sums(tile, heads, start, found)
        else:
            with k.fold("record", start, k.min(start + span, tile.stop), init=found) as fold:
                fold.next(*self.record_sums(tile, heads, fold.index, fold.values))
            found = fold.results
        scales = [self.number(row + start * self.record_bytes, 0, F32) for row in tile.rows] * len(tile.fields)
        return [k.fma(*each) for each in zip(scales, found, before)]

    def record_sums(self, tile: _Tile, heads: list[list[Value]], record: Value, before: Sequence[Value]) -> list[Value]:
        """Sums with those of one record added, without the scales of activations."""
        k, groups, sums = self.k, self.layout.groups, list(before)
        lines = [row + record * self.record_bytes for row in tile.rows]
        places = [fields.place(record) for fields in tile.fields]
        for group in range(groups):
            fours = [fields.fours(place, group) for fields, place in zip(tile.fields, places)]
            taken = [(f, place) for f, place in zip(tile.fields, places) if isinstance(f, TakenOut)]
            if self.has_pairs and taken:
                dots = self.pair_dots(fours, lines, [f.pair_start(place) for f, place in taken])
            else:
                dots = self.group_dots(fours, lines, group)
            scales = [f.scales(place, group, h) for f, place, h in zip(tile.fields, places, heads)]
            for number, dot in enumerate(dots):
                (step, minimum), line = scales[number // len(lines)], lines[number % len(lines)]
                sums[number] = k.fma(step, k.cast(dot, F32), sums[number])
                if minimum is not None:
                    sums[number] = k.fma(self.number(line, 1 + group, F32), minimum, sums[number])
        return sums

    def number(self, line: Value, which: int, dtype: DType) -> Value:
        """One of the numbers behind the codes of a record, in all lanes."""
        k = self.k
        place = line + (self.digits * RECORD + which * WORD)
        return k.splat(k.bitcast(k.load(self.a.buffer, place, lanes=WORD), ValueType(dtype)), self.lanes)

    def pair_dots(self, fours: list[list[Value]], lines: list[Value], columns: list[Value]) -> list[Value]:
        """Dot products over a record, those of the highest digit two in one multiplication."""
        top = self.digits - 1
        rows = [self.number(line, 2, I32) for line in lines]
        dots = [[row for _ in columns for row in rows], [column for column in columns for _ in rows]]
        if not top:
            dots = [[row + column for row, column in zip(*dots)]]
        for number in range(0, len(fours[0]), 2):
            for digit in range(self.digits):
                at = number * WORD + digit * RECORD
                both = [(self.activations(line + at), self.activations(line + (at + WORD))) for line in lines]
                met = [(*codes[number : number + 2], *row) for codes in fours for row in both]
                added = self.pair_added if digit == top else self.two_added
                dots[digit] = [added(known, *each) for known, each in zip(dots[digit], met)]
        *lower, found = dots
        for sums in lower:
            found = [(high << 8) + low for high, low in zip(found, sums)]
        return found

    def pair_added(self, known: Value, first_code: Value, second_code: Value, first: Value, second: Value) -> Value:
        k = self.k
        return k.dot4(
            known, k.bitcast(first, second_code.type) + second_code, second + k.bitcast(first_code, first.type)
        )

    def two_added(self, known: Value, first_code: Value, second_code: Value, first: Value, second: Value) -> Value:
        return self.k.dot4(self.k.dot4(known, first_code, first), second_code, second)

    def group_dots(self, fours: list[list[Value]], lines: list[Value], group: int) -> list[Value]:
        """Dot products of vectors of columns and rows over a group of a record."""
        k, count = self.k, len(fours) * len(lines)
        zeros: list[Value] = [k.const(0, ValueType(I32, self.lanes))] * count
        starts = [self.number(line, 1 + group, I32) for line in lines] * len(fours) if self.bias else zeros
        first = group * len(fours[0])

        def added(sums: list[Sum], number: int, digit: int) -> list[Sum]:
            at = (first + number) * WORD + digit * RECORD
            rows = [self.activations(line + at) for line in lines]
            pairs = [(columns[number], row) for columns in fours for row in rows]
            return [self.byte_dots.added(known, *pair) for known, pair in zip(sums, pairs)]

        def run_added(totals: list[list[Value]], run: range, digits: Sequence[int]) -> list[list[Value]]:
            sums = [self.byte_dots.begun(each) for each in totals]
            for number in run:
                sums = [added(each, number, digit) for each, digit in zip(sums, digits)]
            return [self.byte_dots.ended(*each) for each in zip(totals, sums)]

        numbers = range(len(fours[0]))
        runs = [numbers[i : i + self.byte_dots.run] for i in range(0, len(numbers), self.byte_dots.run)]
        totals = [starts] + [zeros] * (self.digits - 1)
        if len(lines) > self.rows_of_digits:
            # There are no registers for the sums of another digit: what one adds up to is moved up to the next one.
            found = totals[-1]
            for digit in reversed(range(self.digits)):
                if digit < self.digits - 1:
                    found = [(high << 8) + start for high, start in zip(found, totals[digit])]
                for run in runs:
                    (found,) = run_added([found], run, [digit])
            return found
        for run in runs:
            totals = run_added(totals, run, range(self.digits))
        *lower, found = totals
        for sums in reversed(lower):
            found = [(high << 8) + low for high, low in zip(found, sums)]
        return found

    def activations(self, place: Value) -> Value:
        """Four codes of a row in all lanes."""
        k = self.k
        bits = k.bitcast(k.load(self.a.buffer, place, lanes=WORD), ValueType(I32))
        return k.bitcast(k.splat(bits, self.lanes), ValueType(I8, WORD * self.lanes))
