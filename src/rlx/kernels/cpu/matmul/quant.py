"""`quant_matmul_kernel`: products with GGUF weights straight from their panels (`rlx.quant.panels`).

Codes become floats in registers. For a few rows the weight is read once, as one stream: a record's codes are multiplied
with A first and scaled afterwards, Σ a·(s·q + m) = s·Σ a·q + m·Σ a, so that a weight costs a shift, a lookup and an FMA
for each row; a single row is multiplied as whole numbers where the machine has dot products of bytes (`quant_digits`).
More rows share an expanded panel in scratch, and the tiles of `matmul` do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BlockShape, block_shape
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, PanelPart, Product, ResultBlock
from rlx.kernels.cpu.matmul.tiles import MatrixView, SumVectors
from rlx.kernels.cpu.quant_codes import CHUNK, Codes, Panel
from rlx.kernels.cpu.quant_digits import DigitRow, has_digits
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import compute_dtype
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

F32, I32 = DType.F32, DType.I32
# Bytes of weights that one parallel iteration of a product with few rows should read: shorter runs cost the memory's
# prefetchers more than they gain in balance (16 KiB: a fifth slower on two threads). Each iteration prepares its rows
# anew, which costs about as much as a panel; but there are some iterations, where there are columns enough.
TICKET_BYTES = 80 << 10
LEAST_PANELS = 8
LEAST_TICKETS = 4
# Entries of the table of powers of two, which repeats itself for vectors of up to so many lanes.
POWERS = 16


def few_columns(shape: BlockShape, panels: int, panel_bytes: int) -> int:
    """Columns of one parallel iteration of a product with few rows, where a panel of every weight together has so many
    bytes: an even number of equal parts, as far as that goes and the scratch for sums has room."""
    parts = min(panels * panel_bytes // TICKET_BYTES, panels // LEAST_PANELS) // 2 * 2
    wanted = -(-panels // max(parts, LEAST_TICKETS)) * PANEL_ROWS
    return min(wanted, shape.rows // shape.tile_rows * shape.columns)


def quant_matmul_kernel(name: str, machine: Machine, layout: PanelFormat, product: Product) -> Kernel:
    """C[m, n] = epilogue(A[m, k] @ W), where B is u8 and holds the panels of W[k, n]."""
    return QuantMaker(name, machine, layout, product).build()


def higher(machine: Machine, shape: BlockShape, products: int, acc: DType) -> BlockShape:
    """A block of twice the rows, where the machine has room for it. On Zen 4, 256 rows of Q4_1 reach 83 % of the FMA
    peak where they reached 76 % (N = K = 576), 512 rows of Q4_K 93 % and 89 %."""
    rows = 2 * shape.rows
    elements = products * rows * shape.columns + rows * (shape.depth + shape.pad) + shape.depth * shape.width
    return shape._replace(rows=rows) if elements * acc.size_bytes <= machine.copies_bytes else shape


class QuantMaker(MatmulMaker):
    def __init__(self, name: str, machine: Machine, layout: PanelFormat, product: Product) -> None:
        acc = compute_dtype(product.a.dtype)
        # Few rows are multiplied as a block of usual height is; of many, more share the numbers that codes become.
        shape = block_shape(machine, acc, product.n, len(product.bs), copies_b=True)
        self.few_shape = shape = shape._replace(depth=max(RECORD, shape.depth // RECORD * RECORD))
        super().__init__(name, machine, product, False, acc, higher(machine, shape, len(product.bs), acc))
        self.layout = layout
        k, n = product.weight_shape
        self.last_panel = -(-n // PANEL_ROWS) - 1
        self.panel_bytes = layout.panel_bytes(k)
        self.has_panels, self.has_dots, self.has_streams = True, False, False
        lanes = min(self.shape.lanes, PANEL_ROWS)
        self.codes = [Codes(self.k, self.machine, layout, b.buffer, lanes) for b in self.bs]
        self.shifts = self.codes[0].shifts
        self.records = k // RECORD
        self.lanes = lanes
        self.few_columns = few_columns(self.few_shape, self.last_panel + 1, self.panel_bytes * len(self.bs))
        self.few_records = self.room_of(self.few_rows())
        if self.needs_totals:
            self.totals = self.k.local("totals", self.acc, self.few_rows() * self.few_records * layout.groups)
        if any(self.shifts):
            powers = [2.0**-shift for shift in self.shifts]
            self.powers = self.k.table("powers", F32, powers * (POWERS // CHUNK))
        self.digits: DigitRow | None = None
        if self.acc is F32 and self.a.matrix.col_stride == 1 and has_digits(self.machine, layout, lanes):
            self.digits = DigitRow(self.k, layout, self.rows_of_a, lanes, self.room_of(1))

    def room_of(self, rows: int) -> int:
        """The records of so many rows that the scratch of a block of rows has room for."""
        room = self.few_shape.rows * (self.few_shape.depth + self.few_shape.pad) // (rows * RECORD)
        return min(self.records, max(1, room // self.layout.records * self.layout.records))

    @property
    def needs_totals(self) -> bool:
        return self.layout.has_minimums or self.layout.bias != 0

    def few_rows(self) -> int:
        return self.shape.tile_rows

    @property
    def least_rows(self) -> int:
        return self.few_shape.rows

    def step_length(self) -> Value:
        return self.k.as_index(self.shape.depth)

    def block_columns(self) -> Value:
        k, few = self.k, self.few_rows()
        is_small = k.min(k.max(k.as_index(few + 1) - self.m, 0), 1)
        return is_small * self.few_columns + (1 - is_small) * self.shape.columns

    def panel_at(self, number: int, block: ResultBlock, inside: Value) -> Panel:
        """The panel of the columns from `inside` of a block on."""
        column = block.column + inside
        return Panel(self.codes[number], self.base_of(number, block.batch, column), column % PANEL_ROWS)

    def base_of(self, number: int, batch: Value, column: Value) -> Value:
        """Where the panel with a column begins, moved to that column's word; columns after the last repeat it."""
        b, panel = self.bs[number], self.k.min(column // PANEL_ROWS, self.last_panel)
        return b.offset + batch * b.strides[0] + panel * self.panel_bytes

    def block(self, block: ResultBlock) -> None:
        for codes in self.codes:
            codes.load_tables()
        super().block(block)

    # Few rows: A meets the codes, then the scales.

    def few(self, block: ResultBlock) -> None:
        k, below = self.k, 0
        for count in self.shape.row_counts:
            if self.may_have(below, count):
                with k.when((block.rows > below) & (block.rows <= count)):
                    if count == 1 and self.digits is not None:
                        self.stream_digits(block, self.digits)
                    else:
                        self.stream(block, count)
            below = count

    def stream_digits(self, block: ResultBlock, digits: DigitRow) -> None:
        """All columns of a block with one row."""
        k, lanes = self.k, self.lanes
        row = self.a.at(block.batch, self.zero, self.zero).moved(self.row_of(block.row), 0)
        with k.loop("step", 0, self.records, digits.records) as start:
            stop = k.min(start + digits.records, self.records)
            scale = k.splat(digits.take(row, start, stop), lanes)
            for number in range(len(self.bs)):
                with k.loop("column", 0, block.columns, lanes) as inside:
                    panel = self.panel_at(number, block, inside)
                    self.add_to_sums(number, inside, k.eq(start, 0), digits.product(panel, start, stop) * scale)

    def add_to_sums(self, number: int, inside: Value, is_new: Value, part: Value) -> None:
        """Add a vector to the sums of the first row; there are none yet where `is_new`."""
        sums = SumVectors(self.sums, [self.sums_of(number).at(0, inside)], part.lanes)
        (known,) = sums.known(self.k, is_new)
        sums.store(self.k, [known + part])

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
        k = self.k
        sums = SumVectors(self.sums, [self.sums_of(number).at(r, inside) for r in range(count)], self.lanes)
        known = sums.known(k, k.eq(records[0], 0))
        panel = self.panel_at(number, block, inside)
        length = self.layout.records
        with k.fold("run", *records, length, init=known) as runs:
            heads = panel.codes.heads(panel.base, panel.lane, runs.index)
            with k.fold("record", runs.index, runs.index + length, init=runs.values) as fold:
                fold.next(*self.record_sums(panel, heads, fold.index, records[0], fold.values))
            runs.next(*fold.results)
        sums.store(k, runs.results)

    def copy_scaled(self, block: ResultBlock, count: int, start: Value, stop: Value) -> None:
        """A[rows, start:stop] to scratch, each element divided by the power of two that its codes come with, and the
        sums of its groups."""
        k, layout = self.k, self.layout
        lanes = min(self.lanes, layout.group) if self.a.matrix.col_stride == 1 else 1
        origin = self.a.at(block.batch, self.zero, self.zero)
        rows = [origin.moved(self.row_of(k.min(block.row + r, self.m - 1)), 0) for r in range(count)]
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
        self, panel: Panel, heads: list[Value], number: Value, start: Value, before: Sequence[Value]
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
        self, panel: Panel, place: Value, inside: Value, group: int, count: int, totals: list[Value]
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

    def panel_of(self, part: PanelPart) -> MatrixView:
        k, shape, lanes = self.k, self.shape, self.lanes
        number = self.bs.index(part.b)
        codes, panel = self.codes[number], self.panel_in_scratch()
        with k.loop("vector", 0, shape.width, lanes) as first:
            column = part.column + first
            base, lane = self.base_of(number, part.block.batch, column), column % PANEL_ROWS
            with k.loop("record", 0, part.steps // RECORD) as done:
                record = part.start // RECORD + done
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
                            k.store(panel.buffer, to + (chunk * CHUNK + j) * shape.width, value)
        return panel


def _in_pairs(parts: Sequence[Value], chains: int) -> list[Value]:
    """The chains of each row added up, neighbours first."""
    sums = []
    for start in range(0, len(parts), chains):
        part = list(parts[start : start + chains])
        while len(part) > 1:
            part = [x + y for x, y in zip(part[::2], part[1::2])]
        sums += part
    return sums
