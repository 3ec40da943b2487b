"""`int8_block_kernel`: products of 8- or 16-bit activations with GGUF weights, block by block in whole numbers.

Both sides have a scale for every block of 32: y = Σ s·(t·Σ a·q + m·Σ a), where the inner sums are of whole numbers.
Codes are taken out of the words of a panel four at a time, as the bytes of a dot product; words hold neighbours along K
in another order than memory, so activations are copied to scratch in theirs. Codes with a sign are made unsigned, and
the sums of activations take that back together with the minimums. Activations of 16 bits are two digits, each of which
is multiplied like one of 8 bits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, Product, ResultBlock
from rlx.kernels.cpu.matmul.quant import few_columns
from rlx.kernels.cpu.matmul.tiles import SumVectors
from rlx.kernels.cpu.quant_codes import WORD, Codes
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

F32, I8, I32, U8, U32 = DType.F32, DType.I8, DType.I32, DType.U8, DType.U32
# Words of the activations of a record.
WORDS = RECORD // WORD


def int8_block_kernel(name: str, machine: Machine, layout: PanelFormat, product: Product, *, digits: int = 1) -> Kernel:
    """C[m, n] = epilogue(A @ W) for rows A as `Int8Blocks` stores them, with codes of so many digits, and the panels B
    of W[k, n], both bytes."""
    return _BlockMaker(name, machine, layout, product, digits).build()


class _Strip(NamedTuple):
    """So many vectors of columns of the B of that number, from column `inside` of a block on, over some records."""

    block: ResultBlock
    number: int
    vectors: int
    inside: Value
    start: Value
    stop: Value


class _Columns(NamedTuple):
    """A vector of columns: where their panel begins, and which of its columns is the first."""

    base: Value
    first: Value


class _BlockMaker(MatmulMaker):
    def __init__(self, name: str, machine: Machine, layout: PanelFormat, product: Product, digits: int) -> None:
        super().__init__(name, machine, product, True, F32)
        k, n = product.weight_shape
        self.layout, self.inner, self.digits = layout, k, digits
        self.last_panel = -(-n // PANEL_ROWS) - 1
        self.panel_bytes = layout.panel_bytes(k)
        self.lanes = min(self.shape.lanes, PANEL_ROWS)
        self.codes = [Codes(self.k, self.machine, layout, b.buffer, self.lanes) for b in self.bs]
        self.records = k // RECORD
        # Elements of a word of the panel, and how many of them are in one of its bytes.
        self.width = layout.planes[0]
        self.run, self.per_byte = 32 // self.width, 8 // self.width
        # A sign is turned into an offset.
        self.bias = layout.bias + (128 if self.width == 8 else 0)
        self.few_columns = few_columns(self.shape, self.last_panel + 1, self.panel_bytes * len(self.bs))
        # Rows of A are words here, in the scratch that products of floats have for floats.
        shape, groups = self.shape, layout.groups
        taken = shape.rows * (shape.depth + shape.pad + len(self.bs) * shape.columns) * F32.size_bytes
        room = (self.machine.scratch_bytes - taken) // (shape.rows * F32.size_bytes * (1 + groups))
        self.some = max(1, min(self.records, shape.depth // (WORDS * digits), room))
        self.scales = self.k.local("scales", F32, shape.rows * self.some)
        self.totals = self.k.local("totals", F32, shape.rows * self.some * groups)

    def block_columns(self) -> Value:
        k, few = self.k, self.shape.tile_rows
        is_small = k.min(k.max(k.as_index(few + 1) - self.m, 0), 1)
        return is_small * self.few_columns + (1 - is_small) * self.shape.columns

    def few_rows(self) -> int:
        return 0

    def panels(self, block: ResultBlock) -> None:
        """Some records at a time: rows of A to scratch, then every tile of every B."""
        k, few = self.k, self.shape.tile_rows
        # Tiles of few rows read one panel after the other, as one stream; more rows share what is taken out of two.
        many_vectors = 2 if self.shape.columns % (2 * self.lanes) == 0 else 1
        with k.loop("step", 0, self.records, self.some) as start:
            stop = k.min(start + self.some, self.records)
            self.copy_rows(block, start, stop)
            for number in range(len(self.bs)):
                with k.when(block.rows <= few), k.loop("column", 0, block.columns, self.lanes) as inside:
                    self.last_tiles(_Strip(block, number, 1, inside, start, stop), self.zero)
                wide = many_vectors * self.lanes
                with k.when(block.rows > few), k.loop("column", 0, block.columns, wide) as inside:
                    strip = _Strip(block, number, many_vectors, inside, start, stop)
                    whole = block.rows // few * few
                    with k.loop("row", 0, whole, few) as row:
                        self.tile_sums(strip, few, row)
                    self.last_tiles(strip, whole)

    def last_tiles(self, strip: _Strip, row: Value) -> None:
        """The rows from `row` on, at most as many as a whole tile has; one may be computed twice."""
        k, left, below = self.k, strip.block.rows - row, 0
        for count in self.shape.row_counts:
            with k.when((left > below) & (left <= count)):
                self.tile_sums(strip, count, row)
            below = count

    # A in scratch: codes in the order of the panel's words, scales, and sums of groups.

    def copy_rows(self, block: ResultBlock, start: Value, stop: Value) -> None:
        """Records of the rows of a block; with an odd number of rows the last one twice."""
        k = self.k
        # Element j + per_byte*b of a run goes to byte b of word j.
        order = [
            first + j + self.per_byte * b
            for first in range(0, RECORD, self.run)
            for j in range(self.per_byte)
            for b in range(WORD)
        ]
        padded = k.max((block.rows + 1) // 2 * 2 * k.min(block.rows - 1, 1), k.min(block.rows, 1))
        ones = k.const(1, ValueType(U8, RECORD))
        zeros = k.const(0, ValueType(I32, WORDS))
        with k.loop("line", 0, padded) as line, k.loop("record", start, stop) as record:
            row = self.a.at(block.batch, block.row + k.min(line, block.rows - 1), self.zero)
            scale_bytes = k.load(row.buffer, row.at(0, record * WORD + self.digits * self.inner), lanes=WORD)
            scale = k.bitcast(scale_bytes, ValueType(F32))
            place = line * self.some + (record - start)
            k.store(self.scales, place, scale)
            # Fours of neighbours, of which a group has a whole number.
            fours: Value = zeros
            for digit in reversed(range(self.digits)):
                codes = k.bitcast(k.load(row.buffer, row.at(0, record * RECORD + digit * self.inner), lanes=RECORD), I8)
                words = k.bitcast(k.shuffle(codes, order), ValueType(F32, WORDS))
                k.store(self.rows_of_a, (place * self.digits + digit) * WORDS, words)
                fours = k.dot4(fours << 8, ones, codes)
            per_group = WORDS // self.layout.groups
            for group in range(self.layout.groups):
                part = k.shuffle(fours, range(group * per_group, (group + 1) * per_group))
                total = k.cast(k.reduce("add", part), F32) * scale
                k.store(self.totals, place * self.layout.groups + group, total)

    # Tiles.

    def tile_sums(self, strip: _Strip, count: int, row: Value) -> None:
        """Add the products of `count` rows and a strip of columns over some records to the sums."""
        k, lanes, vectors, start = self.k, self.lanes, range(strip.vectors), strip.start
        grid = self.sums_of(strip.number)
        places = [grid.at(row + r, strip.inside + v * lanes) for r in range(count) for v in vectors]
        sums = SumVectors(self.sums, places, lanes)
        known = sums.known(k, k.eq(start, 0))
        columns = [self.columns(strip.number, strip.block.column + strip.inside + v * lanes) for v in vectors]
        with k.fold("record", start, strip.stop, init=known) as fold:
            lines = [(row + r) * self.some + (fold.index - start) for r in range(count)]
            fold.next(*self.record_sums(self.codes[strip.number], columns, fold.index, lines, fold.values))
        sums.store(k, fold.results)

    def columns(self, number: int, column: Value) -> _Columns:
        """The columns from `column` on; those after the last panel are its own."""
        panel = self.k.min(column // PANEL_ROWS, self.last_panel)
        return _Columns(self.bs[number].offset + panel * self.panel_bytes, column % PANEL_ROWS)

    def record_sums(
        self, codes: Codes, columns: list[_Columns], record: Value, lines: list[Value], before: Sequence[Value]
    ) -> list[Value]:
        """Sums with those of one record added; `lines` are the places of the rows in scratch."""
        k, groups = self.k, self.layout.groups
        sums = list(before)
        places = [codes.place(c.base, record) for c in columns]
        heads = [codes.heads(c.base, c.first, record) for c in columns]
        scales = [k.load(self.scales, line) for line in lines]
        words = RECORD // self.run // groups
        for group in range(groups):
            dots = self.record_dots(codes, columns, places, lines, range(group * words, (group + 1) * words))
            for v, (place, c) in enumerate(zip(places, columns)):
                step, minimum = codes.scales(place, c.first, group, heads[v])
                if self.bias:
                    shift = step * float(-self.bias)
                    minimum = shift if minimum is None else minimum + shift
                for r, line in enumerate(lines):
                    at = r * len(columns) + v
                    product = k.cast(functools.reduce(_lower_digit, reversed(dots[at])), F32)
                    sums[at] = k.fma(k.splat(scales[r], step.lanes) * step, product, sums[at])
                    if minimum is not None:
                        total = k.load(self.totals, line * groups + group)
                        sums[at] = k.fma(k.splat(total, minimum.lanes), minimum, sums[at])
        return sums

    def record_dots(
        self, codes: Codes, columns: list[_Columns], places: list[Value], lines: list[Value], words: range
    ) -> list[tuple[Value, ...]]:
        """Dot products of rows and columns over some words of a record, of each digit of the rows; `places` are where
        the record begins."""
        k, lanes, digits = self.k, self.lanes, self.digits
        zero = k.const(0, ValueType(I32, lanes))
        with k.fold("word", words.start, words.stop, init=[zero] * (len(lines) * len(columns) * digits)) as fold:
            totals = list(fold.values)
            fours = [codes.fours(place, c.first, fold.index) for place, c in zip(places, columns)]
            for r, line in enumerate(lines):
                for digit, j in itertools.product(range(digits), range(self.per_byte)):
                    at = (line * digits + digit) * WORDS + (fold.index * self.per_byte + j)
                    splat = k.splat(k.bitcast(k.load(self.rows_of_a, at), I32), lanes)
                    activations = k.bitcast(splat, ValueType(I8, WORD * lanes))
                    for v, four in enumerate(fours):
                        number = (r * len(columns) + v) * digits + digit
                        totals[number] = k.dot4(totals[number], four[j], activations)
            fold.next(*totals)
        return [fold.results[i : i + digits] for i in range(0, len(fold.results), digits)]


def _lower_digit(high: Value, low: Value) -> Value:
    return (high << 8) + low
