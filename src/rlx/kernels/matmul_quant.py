"""`quant_matmul_kernel`: products with GGUF weights straight from their panels (`rlx.ir.quant_panels`).

Codes become floats in registers. For a few rows the weight is read once, as one stream: a record's codes are multiplied
with A first and scaled afterwards, Σ a·(s·q + m) = s·Σ a·q + m·Σ a, so that a weight costs a shift, a lookup and an FMA
for each row. More rows share an expanded panel in scratch, and the tiles of `matmul` do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.quant_panels import PANEL_ROWS, RECORD, PanelFormat
from rlx.kernels.builder import KernelBuilder
from rlx.kernels.expr import compute_dtype
from rlx.kernels.extents import Extent
from rlx.kernels.loop_ir import Buffer, Kernel, Value, ValueType
from rlx.kernels.matmul import Epilogue, MatmulMaker, Matrix, MatrixOperand, ResultBlock, several
from rlx.kernels.matmul_tiles import MatrixView
from rlx.kernels.targets import Target

F32, I32 = DType.F32, DType.I32
# Bytes of weights that one parallel iteration of a product with few rows should read at least: shorter runs cost the
# memory's prefetchers more than they gain in balance (16 KiB: a fifth slower on two threads).
TICKET_BYTES = 64 << 10
# Elements of a record that code is written out for.
CHUNK = 8
# Entries of the table of powers of two, which repeats itself for vectors of up to so many lanes.
POWERS = 16


def quant_matmul_kernel(
    name: str,
    target: Target,
    layout: PanelFormat,
    *,
    m: Extent,
    n: int,
    k: int,
    a: Matrix,
    b: Matrix | Sequence[Matrix],
    c: Matrix | Sequence[Matrix],
    epilogue: Epilogue | None = None,
) -> Kernel:
    """C[m, n] = epilogue(A[m, k] @ W), where B is u8 and holds the panels of W. Parameters and several Bs are
    as in `matmul_kernel`."""
    bs, cs = several(b), several(c)
    maker = _QuantMaker(name, target, (m, n, k, 1), a, bs, cs, epilogue, False, compute_dtype(a.dtype))
    maker.start(layout, n, k)
    return maker.build()


class _QuantMaker(MatmulMaker):
    def start(self, layout: PanelFormat, n: int, k: int) -> None:
        self.layout = layout
        self.last_panel = -(-n // PANEL_ROWS) - 1
        self.panel_bytes = layout.panel_bytes(k)
        self.has_panels, self.has_dots, self.has_streams = True, False, False
        self.shape = self.shape._replace(depth=max(RECORD, self.shape.depth // RECORD * RECORD))
        lanes = min(self.shape.lanes, PANEL_ROWS)
        self.codes = [Codes(self.k, self.target, layout, b.buffer, lanes) for b in self.bs]
        self.shifts = self.codes[0].shifts
        self.records = k // RECORD
        wanted = -(-TICKET_BYTES // max(1, self.panel_bytes)) * PANEL_ROWS
        self.lanes = lanes
        self.few_columns = max(lanes, min(self.shape.columns, wanted))
        # The scratch of a block of rows, used for longer parts of few of them.
        room = self.shape.rows * (self.shape.depth + self.shape.pad) // (self.few_rows() * RECORD)
        self.few_records = min(self.records, max(1, room // layout.records * layout.records))
        if self.needs_totals:
            self.totals = self.k.local("totals", self.acc, self.few_rows() * self.few_records * layout.groups)
        if any(self.shifts):
            powers = [2.0**-shift for shift in self.shifts]
            self.powers = self.k.table("powers", F32, powers * (POWERS // CHUNK))

    @property
    def needs_totals(self) -> bool:
        return self.layout.has_minimums or self.layout.bias != 0

    def few_rows(self) -> int:
        return self.shape.tile_rows

    def block_columns(self) -> Value:
        k, few = self.k, self.few_rows()
        is_small = k.min(k.max(k.as_index(few + 1) - self.m, 0), 1)
        return is_small * self.few_columns + (1 - is_small) * self.shape.columns

    def base_of(self, number: int, column: Value) -> Value:
        """Where the panel with a column begins, moved to that column's word; columns after the last repeat it."""
        panel = self.k.min(column // PANEL_ROWS, self.last_panel)
        return self.bs[number].offset + panel * self.panel_bytes

    def block(self, block: ResultBlock) -> None:
        for codes in self.codes:
            codes.load_tables()
        super().block(block)

    # Few rows: A meets the codes, then the scales.

    def few(self, block: ResultBlock) -> None:
        k, below = self.k, 0
        for count in self.shape.row_counts:
            with k.when((block.rows > below) & (block.rows <= count)):
                self.stream(block, count)
            below = count

    def stream(self, block: ResultBlock, count: int) -> None:
        """All columns of a block with `count` rows; where there are fewer, the last one is repeated."""
        k = self.k
        with k.loop("step", 0, self.records, self.few_records) as start:
            stop = k.min(start + self.few_records, self.records)
            self.copy_scaled(block, count, start * RECORD, stop * RECORD)
            for number in range(len(self.bs)):
                with k.loop("column", 0, block.columns, self.lanes) as inside:
                    self.stream_columns(block, count, number, inside, (start, stop))

    def stream_columns(
        self, block: ResultBlock, count: int, number: int, inside: Value, records: tuple[Value, Value]
    ) -> None:
        """One vector of columns of one B, from the first of some records to the last."""
        k, lanes = self.k, self.lanes
        places = [self.sums_of(number).at(r, inside) for r in range(count)]
        zero = k.const(0, ValueType(self.acc, lanes))
        known = k.choose(
            k.eq(records[0], 0), lambda: [zero] * count, lambda: [k.load(self.sums, p, lanes=lanes) for p in places]
        )
        column = block.column + inside
        panel = _Panel(self.codes[number], self.base_of(number, column), column % PANEL_ROWS)
        length = self.layout.records
        with k.fold("run", *records, length, init=known) as runs:
            heads = panel.codes.heads(panel.base, panel.lane, runs.index)
            with k.fold("record", runs.index, runs.index + length, init=runs.values) as fold:
                fold.next(*self.record_sums(panel, heads, fold.index, records[0], fold.values))
            runs.next(*fold.results)
        for place, total in zip(places, runs.results):
            k.store(self.sums, place, total)

    def copy_scaled(self, block: ResultBlock, count: int, start: Value, stop: Value) -> None:
        """A[rows, start:stop] to scratch, each element divided by the power of two that its codes come with, and the
        sums of its groups."""
        k, layout = self.k, self.layout
        lanes = min(self.lanes, layout.group) if self.a.matrix.col_stride == 1 else 1
        origin = self.a.at(block.batch, self.zero, self.zero)
        rows = [origin.moved(k.min(block.row + r, self.m - 1), 0) for r in range(count)]
        with k.loop("group", start // layout.group, stop // layout.group) as group:
            first = group * layout.group
            for r, row in enumerate(rows):
                total: Value | None = None
                for j in range(0, layout.group, lanes):
                    part = k.cast(k.load(row.buffer, row.at(0, first + j), lanes=lanes), self.acc)
                    total = part if total is None else total + part
                    if any(self.shifts):
                        part = part * k.cast(k.load(self.powers, j % POWERS, lanes=lanes), self.acc)
                    k.store(self.rows_of_a, first - start + (r * self.few_records * RECORD + j), part)
                if self.needs_totals:
                    assert total is not None
                    place = group - start // layout.group + r * self.few_records * layout.groups
                    k.store(self.totals, place, k.reduce("add", total))

    def record_sums(
        self, panel: _Panel, heads: list[Value], number: Value, start: Value, before: Sequence[Value]
    ) -> list[Value]:
        """The sums of all rows with the record of that number added."""
        k, layout, count = self.k, self.layout, len(before)
        place = panel.codes.place(panel.base, number)
        inside = number - start
        sums = list(before)
        for group in range(layout.groups):
            totals = [self.total(inside, r, group) for r in range(count)] if self.needs_totals else []
            parts = self.group_sums(panel, place, inside, group, count, totals)
            step, minimum = (self.wide(v) for v in panel.codes.scales(place, panel.lane, group, heads))
            assert step is not None
            for r, part in enumerate(parts):
                sums[r] = k.fma(step, part, sums[r])
                if minimum is not None:
                    sums[r] = k.fma(k.splat(totals[r], minimum.lanes), minimum, sums[r])
        return sums

    def total(self, inside: Value, row: int, group: int) -> Value:
        return self.k.load(self.totals, (inside + row * self.few_records) * self.layout.groups + group)

    def group_sums(
        self, panel: _Panel, place: Value, inside: Value, group: int, count: int, totals: list[Value]
    ) -> list[Value]:
        """Σ a·value over a group, for each row; a bias is taken off before the first is added."""
        k, layout, lanes = self.k, self.layout, self.lanes
        # So many chains of FMAs that one does not wait for the one before it.
        chains = max(1, 4 // count)
        start: list[Value] = [k.const(0, ValueType(self.acc, lanes))] * (chains * count)
        if layout.bias:
            for r in range(count):
                start[r * chains] = k.splat(totals[r] * float(-layout.bias), lanes)

        def add(chunk: Value, known: Sequence[Value]) -> list[Value]:
            parts = list(known)
            first = (inside * (RECORD // CHUNK) + chunk) * CHUNK
            for j, code in enumerate(panel.codes.values(place, panel.lane, chunk)):
                value = k.cast(code, self.acc)
                for r in range(count):
                    one = k.load(self.rows_of_a, first + (r * self.few_records * RECORD + j))
                    chain = r * chains + j % chains
                    parts[chain] = k.fma(k.splat(one, lanes), value, parts[chain])
            return parts

        chunks = range(group * layout.group // CHUNK, (group + 1) * layout.group // CHUNK)
        if count == 1:
            # Written out: the loop around it would be a tenth of the work.
            for chunk in chunks:
                start = add(k.as_index(chunk), start)
            return _in_pairs(start, chains)
        with k.fold("chunk", chunks.start, chunks.stop, init=start) as fold:
            fold.next(*add(fold.index, fold.values))
        return _in_pairs(fold.results, chains)

    def wide(self, value: Value | None) -> Value | None:
        return None if value is None else self.k.cast(value, self.acc)

    # Many rows: a panel of floats in scratch.

    def panel_of(
        self,
        block: ResultBlock,
        a: MatrixView,
        b: MatrixOperand,
        start: Value,
        steps: Value,
        inside: Value,
        sums: MatrixView,
    ) -> None:
        k, shape, lanes = self.k, self.shape, self.lanes
        number = self.bs.index(b)
        codes = self.codes[number]
        assert self.panel is not None
        with k.loop("vector", 0, shape.width, lanes) as first:
            column = block.column + inside + first
            base, lane = self.base_of(number, column), column % PANEL_ROWS
            with k.loop("record", 0, steps // RECORD) as done:
                record = start // RECORD + done
                place = codes.place(base, record)
                to = done * (RECORD * shape.width) + first
                heads = codes.heads(base, lane, record)
                for group in range(self.layout.groups):
                    scale, minimum = (self.wide(v) for v in codes.unbiased_scales(place, lane, group, heads))
                    assert scale is not None
                    chunks = self.layout.group // CHUNK
                    with k.loop("chunk", group * chunks, (group + 1) * chunks) as chunk:
                        for j, code in enumerate(codes.values(place, lane, chunk)):
                            shift = self.shifts[j]
                            value = k.cast(code * 2.0**-shift if shift else code, self.acc)
                            value = value * scale if minimum is None else k.fma(value, scale, minimum)
                            k.store(self.panel, to + (chunk * CHUNK + j) * shape.width, value)
        panel = MatrixView(self.panel, self.zero, k.as_index(shape.width), k.as_index(1))
        self.tiles(block.rows, a, panel, steps, sums.moved(0, inside), k.eq(start, 0))


class _Panel(NamedTuple):
    """The panel of a vector of columns: where it begins, and which of its columns is the first."""

    codes: Codes
    base: Value
    lane: Value


class Codes:
    """The fields of records as vectors of `lanes` columns of a panel, from column `lane` of it on."""

    def __init__(self, k: KernelBuilder, target: Target, layout: PanelFormat, buffer: Buffer, lanes: int) -> None:
        self.k, self.layout, self.buffer, self.lanes = k, layout, buffer, lanes
        self.has_lookup = len(layout.table) == 16 and lanes in target.lookup_lanes and lanes in (8, 16)
        self.tables: list[Value] = []
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
        raw = self.k.load(self.buffer, place, lanes=self.lanes * dtype.size_bytes)
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
            first = place + (lane + chunk * (CHUNK * PANEL_ROWS))
            return [k.cast(self.read(first + j * PANEL_ROWS, DType.I8), F32) for j in range(CHUNK)]
        words = []
        start = 0
        for width in planes:
            words.append(self.word(place + (lane * 4 + start), width, chunk))
            start += width * 4 * PANEL_ROWS
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

    def word(self, place: Value, width: int, chunk: Value) -> Value:
        """The words of a plane with the fields of a chunk, the first of them lowest."""
        bit = chunk * (CHUNK * width)
        words = self.read(place + bit // 32 * (4 * PANEL_ROWS), DType.U32)
        return words if CHUNK * width % 32 == 0 else words >> self.k.splat(self.k.cast(bit % 32, DType.U32), self.lanes)

    def number(self, words: list[Value], j: int) -> Value:
        """The value of one code, from the planes of its bits."""
        k, code, shift = self.k, None, 0  # type: KernelBuilder, Value | None, int
        for width, word in zip(self.layout.planes, words):
            down = width * j - shift
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

    def scales(self, place: Value, lane: Value, group: int, heads: list[Value]) -> tuple[Value, Value | None]:
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

    def scale(self, place: Value, lane: Value, group: int, heads: list[Value], number: int) -> Value:
        k, layout = self.k, self.layout
        at = layout.code_bytes + number * layout.scale_bytes + group * layout.step_bytes * PANEL_ROWS
        if not heads:
            kind = DType.F32 if layout.step_bytes == 4 else DType.F16
            return k.cast(self.read(place + (lane * layout.step_bytes + at), kind), F32)
        kind = DType.I8 if layout.signed_steps and number == 0 else DType.U8
        return k.cast(self.read(place + (lane + at), kind), F32) * heads[number]


def _in_pairs(parts: Sequence[Value], chains: int) -> list[Value]:
    """The chains of each row added up, neighbours first."""
    sums = []
    for start in range(0, len(parts), chains):
        part = list(parts[start : start + chains])
        while len(part) > 1:
            part = [x + y for x, y in zip(part[::2], part[1::2])]
        sums += part
    return sums
