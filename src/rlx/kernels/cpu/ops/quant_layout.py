"""GGUF blocks to panels: `quant_panels` moves the bits of codes and scales where products read them.

What is moved where is what `block_bits` finds out about a type: nothing here knows any. Sizes are arguments, so that
one piece of code serves all weights of a type.
"""

from __future__ import annotations

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.cpu.block_bits import NOWHERE, Field, Term, block_bits, book_bits
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.quantized_panels import QuantPanels
from rlx.quant.codebooks import signed_entries
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat, word_order

U8 = DType.U8
WORD = 4
# Bytes of panels that one parallel iteration stores, about.
CHUNK_BYTES = 1 << 16


@op_kernel(QuantPanels, kind="layout", supports=lambda op, operands: operands[0].dtype is U8)
def quant_panels(site: OpSite) -> None:
    """A few panels in each parallel iteration; rows that fill up the last one of a matrix are 0."""
    k, op, (stored,), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, QuantPanels)
    writer = (_Writer if op.layout(op.k).book is None else _BookWriter)(k, op, stored.buffer, y.buffer)
    rows, blocks = site.argument(op.n), site.argument(op.k // (op.scheme.gguf_block_size or 1))
    per_matrix, count = k.ceildiv(rows, PANEL_ROWS), site.argument(y.shape.static_dims[0])
    panel_bytes = blocks * writer.bytes_out
    chunk = k.max(k.as_index(CHUNK_BYTES) // k.max(panel_bytes, 1), 1)
    with k.parallel("chunk", (count + chunk - 1) // chunk) as number:
        begin = number * chunk
        with k.loop("panel", begin, k.min(begin + chunk, count)) as panel:
            first = panel % per_matrix * PANEL_ROWS
            present = k.min(rows - first, PANEL_ROWS)
            source = (panel // per_matrix * rows + first) * blocks * writer.bytes_in
            with k.when(present < PANEL_ROWS), k.loop("byte", 0, panel_bytes, PANEL_ROWS) as byte:
                k.store(y.buffer, panel * panel_bytes + byte, k.const(0, ValueType(U8, PANEL_ROWS)))
            with k.loop("block", 0, blocks) as block:
                place = source + block * writer.bytes_in
                writer.blocks(place, blocks * writer.bytes_in, panel * panel_bytes + block * writer.bytes_out, present)


class _Writer:
    """Stores the fields of blocks of the rows of a panel."""

    def __init__(self, k: KernelBuilder, op: QuantPanels, source: Buffer, to: Buffer) -> None:
        self.k, self.source, self.to = k, source, to
        layout = self.layout = op.layout(op.k)
        self.bytes_in = op.scheme.gguf_block_bytes or 1
        self.records = (op.scheme.gguf_block_size or RECORD) // RECORD
        # A header belongs to one block.
        self.bytes_out = self.records // layout.records * layout.run_bytes
        self.tables: dict[tuple[int, ...], Buffer] = {}
        self.start(layout)

    def start(self, layout: PanelFormat) -> None:
        self.bits = block_bits(layout, self.bytes_in)

    def blocks(self, place: Value, stride: Value, to: Value, rows: Value) -> None:
        """One block of each row, a stride apart."""
        with self.k.loop("row", 0, rows) as row:
            self.block(place + row * stride, to, row)

    def block(self, place: Value, to: Value, row: Value) -> None:
        """One block of one row."""
        layout, bits = self.layout, self.bits
        if bits.headers is not None:
            self.scales(bits.headers, range(layout.header_bytes // (2 * PANEL_ROWS)), 2, place, to, row)
        for record in range(self.records):
            start = to + (layout.header_bytes + record * layout.record_bytes)
            self.codes(self.read(place, bits.codes, record * RECORD, RECORD), start, row)
            groups = range(record * layout.groups, (record + 1) * layout.groups)
            self.scales(bits.steps, groups, layout.step_bytes, place, start + layout.code_bytes, row)
            if bits.minimums is not None:
                behind = start + (layout.code_bytes + layout.scale_bytes)
                self.scales(bits.minimums, groups, layout.step_bytes, place, behind, row)

    def scales(self, field: Field, numbers: range, size: int, place: Value, to: Value, row: Value) -> None:
        """Numbers of `size` bytes, the same one of all rows side by side."""
        for at, number in enumerate(numbers):
            value = self.read(place, field, number * size, size)
            self.k.store(self.to, to + (row * size + at * size * PANEL_ROWS), value)

    def codes(self, codes: Value, to: Value, row: Value) -> None:
        """The planes of a record."""
        k, order, shift, start = self.k, word_order(self.layout.per_byte), 0, 0
        for width in self.layout.planes:
            fields = (codes >> shift if shift else codes) & (2**width - 1) if width < 8 else codes
            per_word = 8 // width
            packed: Value | None = None
            for above in range(per_word):
                fours = [order[(word * per_word + above) * WORD :][:WORD] for word in range(width)]
                part = k.shuffle(fields, [element for four in fours for element in four])
                part = part << (width * above) if above else part
                packed = part if packed is None else packed | part
            assert packed is not None
            for word in range(width):
                four = k.shuffle(packed, range(word * WORD, (word + 1) * WORD)) if width > 1 else packed
                k.store(self.to, to + (row * WORD + (start + word * WORD * PANEL_ROWS)), four)
            start += width * WORD * PANEL_ROWS
            shift += width

    def read(self, place: Value, field: Field, first: int, count: int) -> Value:
        """Bytes of a field of the block at a place."""
        k = self.k
        part = slice(first, first + count)
        starts = field.start[part]
        value: Value = k.const(starts[0], ValueType(U8, count))
        if any(s != starts[0] for s in starts):
            value = k.load(self.table(starts), 0, lanes=count)
        for term in field.terms:
            if any(source != NOWHERE for source in term.sources[part]):
                value = value ^ self.term(place, term, term.sources[part])
        return value

    def term(self, place: Value, term: Term, sources: tuple[int, ...]) -> Value:
        k, value = self.k, self.picked(place, sources)
        if term.table:
            return k.load(self.table(term.table), k.cast(value, DType.I64), lanes=len(sources))
        if term.shift:
            value = value >> term.shift if term.shift > 0 else value << -term.shift
        return value & term.mask if term.mask != 0xFF else value

    def picked(self, place: Value, sources: tuple[int, ...]) -> Value:
        """Bytes of a block side by side, 0 for those from nowhere."""
        k, count = self.k, len(sources)
        if sources[0] != NOWHERE and sources == tuple(range(sources[0], sources[0] + count)):
            return k.load(self.source, place + sources[0], lanes=count)
        present = [s for s in sources if s != NOWHERE]
        span = max(2, max(present) - min(present) + 1)
        size = 1 << (span - 1).bit_length()
        start = min(min(present), self.bytes_in - size)
        assert start >= 0
        window = k.load(self.source, place + start, lanes=size)
        zeros = k.const(0, window.type)
        return k.shuffle(window, [size if s == NOWHERE else s - start for s in sources], zeros)

    def table(self, values: tuple[int, ...]) -> Buffer:
        if values not in self.tables:
            self.tables[values] = self.k.table(f"bytes{len(self.tables)}", U8, values)
        return self.tables[values]


class _BookWriter(_Writer):
    """Blocks of a type with a codebook: codes are looked up by the numbers of entries, and steps are computed."""

    def start(self, layout: PanelFormat) -> None:
        k, book = self.k, layout.book
        assert book is not None
        self.book = book_bits(book, self.bytes_in)
        entries = signed_entries(book.book)
        values = np.unique(entries)
        assert tuple(values.tolist()) == layout.table[: len(values)]
        numbers = np.searchsorted(values, entries).astype(np.uint8)
        self.width = entries.shape[2]
        self.entries = [k.table(name, U8, n.ravel().tolist()) for name, n in zip(("plain", "turned"), numbers)]
        self.places = k.table("places", U8, [1 << bit for bit in range(8)])
        self.factors = k.table("factors", DType.F32, book.factors)
        self.found = k.local("found", U8, RECORD)

    def block(self, place: Value, to: Value, row: Value) -> None:
        k, layout, book = self.k, self.layout, self.book
        # Put together as a number: some versions of LLVM stop at bytes that are read as a half.
        low, high = (k.cast(self.read(place, book.d, byte, 1), DType.U16) for byte in range(2))
        d = k.cast(k.bitcast(low | high << 8, DType.F16), DType.F32)
        # So many groups of a panel share a scale of the block.
        shared = self.records * layout.groups // len(book.scales.start)
        for record in range(self.records):
            start = to + record * layout.record_bytes
            self.codes(self.looked_up(place, record), start, row)
            for group in range(layout.groups):
                number = (record * layout.groups + group) // shared
                scale = k.cast(self.read(place, book.scales, number, 1), DType.I64)
                step = k.bitcast(d * k.load(self.factors, scale), ValueType(U8, layout.step_bytes))
                at = layout.code_bytes + group * layout.step_bytes * PANEL_ROWS
                k.store(self.to, start + (row * layout.step_bytes + at), step)

    def looked_up(self, place: Value, record: int) -> Value:
        """The codes of a record, by way of scratch: entries are put side by side there."""
        k, width = self.k, self.width
        for first in range(0, RECORD, width):
            number = (record * RECORD + first) // width
            low, high = (self.read(place, f, number, 1) for f in (self.book.low, self.book.high))
            entry = (k.cast(low, DType.I64) + k.cast(high, DType.I64) * 256) * width
            signs = k.splat(self.read(place, self.book.signs, (record * RECORD + first) // 8, 1), width)
            is_turned = k.ne(signs & k.load(self.places, first % 8, lanes=width), 0)
            plain, turned = (k.load(table, entry, lanes=width) for table in self.entries)
            k.store(self.found, first, k.select(is_turned, turned, plain))
        return k.load(self.found, 0, lanes=RECORD)
