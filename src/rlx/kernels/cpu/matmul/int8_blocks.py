"""`int8_block_kernel`: products of 8- or 16-bit activations with GGUF weights, block by block in whole numbers.

Both sides have a scale for every block of 32: y = Σ s·(t·Σ a·q + m·Σ a), where the inner sums are of whole numbers.
Codes are taken out of the words of a panel four at a time, as the bytes of a dot product; words hold neighbours along K
in another order than memory, in which `Int8Blocks` has stored the activations, with their scales and sums behind them:
rows are read where they are. Codes with a sign are made unsigned, and the sums of activations take that back together
with the minimums. Activations of 16 bits are two digits, each of which is multiplied like one of 8 bits.

Few rows meet one panel after the other, as one stream that is read once; more rows meet a few records of two panels
that stay in the first cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BlockShape, BlockSizes, block_shape
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, Product, ResultBlock
from rlx.kernels.cpu.matmul.quant import few_columns
from rlx.kernels.cpu.matmul.tiles import SumVectors
from rlx.kernels.cpu.quant_codes import WORD, Codes, Panel
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.ops.lowered.int8_products import block_bytes
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

F32, I8, I32 = DType.F32, DType.I8, DType.I32
# Rows that meet a stream of panels together, and the numbers of them that there is code for.
FEW_ROWS = 8
FEW_COUNTS = (1, 2, 4, 8)
# Rows and vectors of a tile of many rows: with two digits 16 dot products and 8 sums are in registers.
TILE_ROWS = 4
TILE_VECTORS = 2
# Records that tiles go through before the next rows come: two panels of them stay in the first cache.
SOME_RECORDS = 32
# Up to so many sums the words of a record are written out; for more they are a loop, which costs less than it saves.
WRITTEN_OUT = 4


def int8_block_kernel(name: str, machine: Machine, layout: PanelFormat, product: Product, *, digits: int = 1) -> Kernel:
    """C[m, n] = epilogue(A @ W) for rows A as `Int8Blocks` stores them, with codes of so many digits, and the panels B
    of W[k, n], both bytes."""
    return _BlockMaker(name, machine, layout, product, digits).build()


def _shape(machine: Machine, product: Product) -> BlockShape:
    sizes = BlockSizes(tile_rows=TILE_ROWS, tiles=12, columns=128)
    return block_shape(machine, F32, product.n, len(product.bs), copies_a=False, sizes=sizes)


class _Tile(NamedTuple):
    """Rows of A, by where they begin, from row `row` of a block on, and vectors of columns of the B of that number,
    from column `inside` on, over records `start` to `stop`."""

    number: int
    rows: list[Value]
    row: Value
    panels: list[Panel]
    inside: Value
    start: Value
    stop: Value


class _BlockMaker(MatmulMaker):
    def __init__(self, name: str, machine: Machine, layout: PanelFormat, product: Product, digits: int) -> None:
        super().__init__(name, machine, product, True, F32, _shape(machine, product))
        k, n = product.weight_shape
        self.layout, self.digits = layout, digits
        self.last_panel = -(-n // PANEL_ROWS) - 1
        self.panel_bytes = layout.panel_bytes(k)
        self.lanes = min(self.shape.lanes, PANEL_ROWS)
        self.codes = [Codes(self.k, self.machine, layout, b.buffer, self.lanes) for b in self.bs]
        self.records = k // RECORD
        self.record_bytes = block_bytes(RECORD, digits)
        self.per_byte = layout.per_byte
        # A sign is turned into an offset.
        self.bias = layout.bias + (128 if layout.planes == (8,) else 0)
        room = self.shape._replace(tile_rows=FEW_ROWS)
        self.few_columns = few_columns(room, self.last_panel + 1, self.panel_bytes * len(self.bs))
        # Headers belong to whole runs.
        self.some = max(layout.records, SOME_RECORDS // layout.records * layout.records)

    def block_columns(self) -> Value:
        k = self.k
        is_small = k.min(k.max(k.as_index(FEW_ROWS + 1) - self.m, 0), 1)
        return is_small * self.few_columns + (1 - is_small) * self.shape.columns

    def few_rows(self) -> int:
        return FEW_ROWS

    def few(self, block: ResultBlock) -> None:
        """Panel by panel, all records of it, all rows in the smallest tile that holds them."""
        k, below = self.k, 0
        records = self.zero, k.as_index(self.records)
        for count in FEW_COUNTS:
            with k.when((block.rows > below) & (block.rows <= count)):
                for number in range(len(self.bs)):
                    with k.loop("column", 0, block.columns, self.lanes) as inside:
                        self.tile_sums(self.tile_of(block, number, inside, self.zero, (count, 1), records))
            below = count

    def panels(self, block: ResultBlock) -> None:
        """Some records at a time, every tile of every B."""
        k = self.k
        vectors = TILE_VECTORS if self.shape.columns % (TILE_VECTORS * self.lanes) == 0 else 1
        with k.loop("step", 0, self.records, self.some) as start:
            records = start, k.min(start + self.some, self.records)
            for number in range(len(self.bs)):
                columns = k.loop("column", 0, block.columns, vectors * self.lanes)
                with columns as inside, k.loop("row", 0, block.rows, TILE_ROWS) as row:
                    self.tile_sums(self.tile_of(block, number, inside, row, (TILE_ROWS, vectors), records))

    def tile_of(
        self,
        block: ResultBlock,
        number: int,
        inside: Value,
        row: Value,
        size: tuple[int, int],
        records: tuple[Value, Value],
    ) -> _Tile:
        """A tile of so many rows and vectors; where there are fewer rows the last one is repeated."""
        k, (count, vectors) = self.k, size
        lines = [k.min(row + r, block.rows - 1) if r else row for r in range(count)]
        rows = [self.a.at(block.batch, block.row + line, self.zero).at(0, 0) for line in lines]
        panels = [self.panel_at(number, block.column + inside + v * self.lanes) for v in range(vectors)]
        return _Tile(number, rows, row, panels, inside, *records)

    def panel_at(self, number: int, column: Value) -> Panel:
        """The panel of a vector of columns; those after the last one are its own."""
        panel = self.k.min(column // PANEL_ROWS, self.last_panel)
        return Panel(self.codes[number], self.bs[number].offset + panel * self.panel_bytes, column % PANEL_ROWS)

    def tile_sums(self, tile: _Tile) -> None:
        """Add the products of some rows and columns over some records to the sums."""
        k, grid, length = self.k, self.sums_of(tile.number), self.layout.records
        places = [
            grid.at(tile.row + r, tile.inside + v * self.lanes)
            for r in range(len(tile.rows))
            for v in range(len(tile.panels))
        ]
        sums = SumVectors(self.sums, places, self.lanes)
        with k.fold("run", tile.start, tile.stop, length, init=sums.known(k, k.eq(tile.start, 0))) as runs:
            heads = [p.codes.heads(p.base, p.lane, runs.index) for p in tile.panels]
            if length == 1:
                runs.next(*self.record_sums(tile, heads, runs.index, runs.values))
            else:
                with k.fold("record", runs.index, runs.index + length, init=runs.values) as fold:
                    fold.next(*self.record_sums(tile, heads, fold.index, fold.values))
                runs.next(*fold.results)
        sums.store(k, runs.results)

    def record_sums(self, tile: _Tile, heads: list[list[Value]], record: Value, before: Sequence[Value]) -> list[Value]:
        """Sums with those of one record added."""
        k, groups, vectors = self.k, self.layout.groups, len(tile.panels)
        sums = list(before)
        places = [p.codes.place(p.base, record) for p in tile.panels]
        lines = [row + record * self.record_bytes for row in tile.rows]
        words = self.layout.planes[0] // groups
        for group in range(groups):
            dots = self.group_dots(tile, places, lines, range(group * words, (group + 1) * words))
            for v, (place, panel) in enumerate(zip(places, tile.panels)):
                step, minimum = panel.codes.scales(place, panel.lane, group, heads[v])
                if self.bias:
                    shift = step * float(-self.bias)
                    minimum = shift if minimum is None else minimum + shift
                for r, line in enumerate(lines):
                    at = r * vectors + v
                    product = k.cast(functools.reduce(_lower_digit, reversed(dots[at])), F32)
                    scale = self.number(line, 0)
                    sums[at] = k.fma(scale * step, product, sums[at])
                    if minimum is not None:
                        total = self.number(line, 1 + group if groups == 2 else 3)
                        sums[at] = k.fma(total, minimum, sums[at])
        return sums

    def number(self, line: Value, which: int) -> Value:
        """One of the numbers behind the codes of a record, in all lanes."""
        k = self.k
        place = line + (self.digits * RECORD + which * F32.size_bytes)
        found = k.bitcast(k.load(self.a.buffer, place, lanes=F32.size_bytes), ValueType(F32))
        return k.splat(found, self.lanes)

    def group_dots(self, tile: _Tile, places: list[Value], lines: list[Value], words: range) -> list[tuple[Value, ...]]:
        """Dot products of rows and columns over some words of a record, of each digit of the rows."""
        k, digits = self.k, self.digits
        zero: Value = k.const(0, ValueType(I32, self.lanes))
        count = len(lines) * len(places) * digits
        if count <= WRITTEN_OUT:
            totals: Sequence[Value] = [zero] * count
            for word in words:
                totals = self.word_dots(tile, places, lines, k.as_index(word), totals)
        else:
            with k.fold("word", words.start, words.stop, init=[zero] * count) as fold:
                fold.next(*self.word_dots(tile, places, lines, fold.index, fold.values))
            totals = fold.results
        return [tuple(totals[i : i + digits]) for i in range(0, count, digits)]

    def word_dots(
        self, tile: _Tile, places: list[Value], lines: list[Value], word: Value, before: Sequence[Value]
    ) -> list[Value]:
        """Sums with the products of one word of codes added."""
        k, digits, vectors = self.k, self.digits, len(places)
        totals = list(before)
        fours = [p.codes.fours(place, p.lane, word) for place, p in zip(places, tile.panels)]
        for j in range(self.per_byte):
            for r, line in enumerate(lines):
                for digit in range(digits):
                    at = line + (word * self.per_byte + j) * WORD + digit * RECORD
                    bits = k.bitcast(k.load(self.a.buffer, at, lanes=WORD), ValueType(I32))
                    activations = k.bitcast(k.splat(bits, self.lanes), ValueType(I8, WORD * self.lanes))
                    for v, four in enumerate(fours):
                        number = (r * vectors + v) * digits + digit
                        totals[number] = k.dot4(totals[number], four[j], activations)
        return totals


def _lower_digit(high: Value, low: Value) -> Value:
    return (high << 8) + low
