"""`int8_block_kernel`: products of 8- or 16-bit activations with GGUF weights, block by block in whole numbers.

Both sides have a scale for every block of 32: y = Σ s·(t·Σ a·q + m·Σ a), where the inner sums are of whole numbers.
Codes are taken out of the words of a panel four at a time, as the bytes of a dot product; words hold neighbours along K
in another order than memory, in which `Int8Blocks` has stored the activations, with their scales and sums behind them:
rows are read where they are. Codes with a sign are made unsigned, and the sums of activations take that back together
with the minimums. Activations of 16 bits are two digits, each of which is multiplied like one of 8 bits.

Up to a tile of rows meet one panel after the other, as one stream that is read once; more rows meet some records of
a panel that stay in the first cache. A tile takes the codes of a record out of their words once, for all of its rows
and digits, and asks for those that come after it: with several rows too little is read at a time for the memory's own
prefetchers (8 rows of Q4_K: 1.2 times as fast with two digits, 1.5 times with one, on Zen 4).
"""

from __future__ import annotations

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
from rlx.ops.lowered.int8_products import block_bytes, byte_bias
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

F32, I8, I32 = DType.F32, DType.I8, DType.I32
# Rows of a tile: those of 8 rows keep their sums, their dot products and the codes of a record in 32 registers.
TILE_ROWS = 8
FEWER_ROWS = 4
# Records of a panel that all tiles go through before the next ones come: they stay in the first cache.
SOME_RECORDS = 32
# Rows from which on a tile asks for codes ahead of time, and how far ahead, in bytes.
AHEAD_ROWS = 4
AHEAD = 2304
LINE_BYTES = 64
# Rows from which on there are dot products enough at a time for the second digit to wait for the first.
JOINED_ROWS = 4


def int8_block_kernel(name: str, machine: Machine, layout: PanelFormat, product: Product, *, digits: int = 1) -> Kernel:
    """C[m, n] = epilogue(A @ W) for rows A as `Int8Blocks` stores them, with codes of so many digits, and the panels B
    of W[k, n], both bytes."""
    return _BlockMaker(name, machine, layout, product, digits).build()


def _shape(machine: Machine, product: Product) -> BlockShape:
    shape = block_shape(machine, F32, product.n, len(product.bs), copies_a=False, sizes=BlockSizes(columns=128))
    return shape._replace(tile_rows=TILE_ROWS if machine.vector_registers >= 32 else FEWER_ROWS, rows=48)


class _Tile(NamedTuple):
    """Rows of A, by where they begin, from row `row` of a block on, and a vector of columns of the B of that number,
    from column `inside` on, over records `start` to `stop`."""

    number: int
    rows: list[Value]
    row: Value
    panel: Panel
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
        self.bias = byte_bias(layout)
        self.few_columns = few_columns(self.shape, self.last_panel + 1, self.panel_bytes * len(self.bs))
        # Headers belong to whole runs.
        self.some = max(layout.records, SOME_RECORDS // layout.records * layout.records)

    def block_columns(self) -> Value:
        is_few = self.is_few(self.m)
        return is_few * self.few_columns + (1 - is_few) * self.shape.columns

    def is_few(self, rows: Value) -> Value:
        """1 where rows are one tile, else 0."""
        k = self.k
        return k.min(k.max(k.as_index(self.shape.tile_rows + 1) - rows, 0), 1)

    def panels(self, block: ResultBlock) -> None:
        """Some records at a time, for one tile of rows all of them, every tile of every B; what is left of the rows is
        the smallest tile that holds it."""
        k, size = self.k, self.shape.tile_rows
        some = k.max(self.is_few(block.rows) * self.records, self.some)
        with k.loop("step", 0, self.records, some) as start:
            records = start, k.min(start + some, self.records)
            for number in range(len(self.bs)):
                columns = k.loop("column", 0, block.columns, self.lanes)
                with columns as inside, k.loop("row", 0, block.rows, size) as row:
                    left, below = block.rows - row, 0
                    while below < size:
                        count = max(1, 2 * below)
                        is_this = left > below if count == size else (left > below) & (left <= count)
                        with k.when(is_this):
                            self.tile_sums(self.tile_of(block, number, inside, row, count, records))
                        below = count

    def tile_of(
        self, block: ResultBlock, number: int, inside: Value, row: Value, count: int, records: tuple[Value, Value]
    ) -> _Tile:
        """A tile of so many rows; where there are fewer the last one is repeated."""
        k = self.k
        lines = [k.min(row + r, block.rows - 1) if r else row for r in range(count)]
        rows = [self.a.at(block.batch, block.row + line, self.zero).at(0, 0) for line in lines]
        return _Tile(number, rows, row, self.panel_at(number, block.column + inside), inside, *records)

    def panel_at(self, number: int, column: Value) -> Panel:
        """The panel of a vector of columns; those after the last one are its own."""
        panel = self.k.min(column // PANEL_ROWS, self.last_panel)
        return Panel(self.codes[number], self.bs[number].offset + panel * self.panel_bytes, column % PANEL_ROWS)

    def tile_sums(self, tile: _Tile) -> None:
        """Add the products of some rows and columns over some records to the sums."""
        k, panel, grid, length = self.k, tile.panel, self.sums_of(tile.number), self.layout.records
        sums = SumVectors(self.sums, [grid.at(tile.row + r, tile.inside) for r in range(len(tile.rows))], self.lanes)
        with k.fold("run", tile.start, tile.stop, length, init=sums.known(k, k.eq(tile.start, 0))) as runs:
            heads = panel.codes.heads(panel.base, panel.lane, runs.index)
            if length == 1:
                runs.next(*self.record_sums(tile, heads, runs.index, runs.values))
            else:
                with k.fold("record", runs.index, runs.index + length, init=runs.values) as fold:
                    fold.next(*self.record_sums(tile, heads, fold.index, fold.values))
                runs.next(*fold.results)
        sums.store(k, runs.results)

    def record_sums(self, tile: _Tile, heads: list[Value], record: Value, before: Sequence[Value]) -> list[Value]:
        """Sums with those of one record added."""
        k, groups, panel = self.k, self.layout.groups, tile.panel
        sums = list(before)
        lines = [row + record * self.record_bytes for row in tile.rows]
        place = panel.codes.place(panel.base, record)
        if len(lines) >= AHEAD_ROWS:
            for byte in range(0, self.layout.record_bytes, LINE_BYTES):
                k.prefetch(panel.codes.buffer, place + (AHEAD + byte))
        words = self.layout.planes[0] // groups
        for group in range(groups):
            dots = self.group_dots(panel, place, lines, range(group * words, (group + 1) * words))
            step, minimum = panel.codes.scales(place, panel.lane, group, heads)
            if self.bias:
                shift = step * float(-self.bias)
                minimum = shift if minimum is None else minimum + shift
            for r, line in enumerate(lines):
                sums[r] = k.fma(self.number(line, 0) * step, k.cast(dots[r], F32), sums[r])
                if minimum is not None:
                    total = self.number(line, 1 + group if groups == 2 else 3)
                    sums[r] = k.fma(total, minimum, sums[r])
        return sums

    def number(self, line: Value, which: int) -> Value:
        """One of the numbers behind the codes of a record, in all lanes."""
        k = self.k
        place = line + (self.digits * RECORD + which * F32.size_bytes)
        found = k.bitcast(k.load(self.a.buffer, place, lanes=F32.size_bytes), ValueType(F32))
        return k.splat(found, self.lanes)

    def group_dots(self, panel: Panel, place: Value, lines: list[Value], words: range) -> list[Value]:
        """Dot products of rows and a vector of columns over some words of a record. What a higher digit adds up to is
        moved up before the next one is added to it, or to its sum where rows are few."""
        k = self.k
        fours = [four for word in words for four in panel.codes.fours(place, panel.lane, k.as_index(word))]
        zeros: list[Value] = [k.const(0, ValueType(I32, self.lanes))] * len(lines)
        totals: list[Value] | None = None
        for digit in reversed(range(self.digits)):
            higher = [total << 8 for total in totals] if totals is not None else zeros
            is_joined = len(lines) >= JOINED_ROWS
            found = higher if is_joined else zeros
            for number, four in enumerate(fours, words.start * self.per_byte):
                at = number * WORD + digit * RECORD
                found = [k.dot4(total, four, self.activations(line + at)) for total, line in zip(found, lines)]
            totals = found if is_joined else [high + low for high, low in zip(higher, found)]
        assert totals is not None
        return totals

    def activations(self, place: Value) -> Value:
        """Four codes of a row in all lanes."""
        k = self.k
        bits = k.bitcast(k.load(self.a.buffer, place, lanes=WORD), ValueType(I32))
        return k.bitcast(k.splat(bits, self.lanes), ValueType(I8, WORD * self.lanes))
