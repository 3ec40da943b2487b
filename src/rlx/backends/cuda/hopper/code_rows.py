"""The kernel of a product with GGUF panels: stored blocks go through the chip once, and meet A as integers.

There is one block for each multiprocessor, with its share of the panels (16 columns of C each) and some rows of A. Its
warps share K in chunks of 256; each walks the panels with its own chunks, which it brings into a ring of its own by
asynchronous copies, so that the stream never stops and no warp waits for another one before sums meet.

Of each chunk a row of A becomes integers of two or three digits (signed bytes) times a power of two: 22 bits below the
largest number of the chunk for f32, 14 for f16 and bf16, which is what is lost. Codes are bytes as well, so `mma`
multiplies and adds exactly; steps are applied to the sums of each group, in f32. Minimums, and the bias of codes, need
only the sums of A in each group. A chunk of A with an infinity or a NaN makes its row of C NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.digits import as_digits, by_group, chunk_scale, digit_words, mma_bytes, rounded
from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, FinishCall
from rlx.backends.cuda.hopper.instructions import sync_block, sync_warp
from rlx.backends.cuda.hopper.stored_codes import (
    MAGIC,
    MAGIC_BITS,
    RECORDS,
    CodeReader,
    ScaleReader,
    StoredFormat,
    as_float,
    halves,
    load_shared,
    store_shared,
)
from rlx.backends.cuda.hopper.writer import Val, Var, Writer
from rlx.errors import InternalError
from rlx.quant.panels import PANEL_ROWS, RECORD

# Elements of K in a chunk: eight for each lane.
CHUNK = RECORDS * RECORD
# Columns of one `mma`: digits of rows of A.
TILE = 8
# Bytes from a column of digits to the next one: a chunk, and eight banks further.
PITCH = CHUNK + 32
# Bytes of the sums of a column of C for the 16 rows of a panel.
LINE = PANEL_ROWS * 4
# Chunks that a warp has on their way. More are slower on an H200: what waits in front of a chunk makes it late.
STAGES = 2
# Warps of a block, if there is room for what they have on their way.
WARPS = 16
# Rows of A whose elements are on their way at the same time.
ROWS_AT_ONCE = 4

# Digits of an element of A, and bytes of it.
DIGITS = {"f32": 3, "bf16": 2, "f16": 2}
BYTES = {"f32": 4, "bf16": 2, "f16": 2}


class CodeShape(NamedTuple):
    """`parts` products of the same A, `rows` rows of it in a block, K = `depth`. Chunks are shared by `slots` warps,
    each of which is there `phases` times for different panels, and has `stages` chunks on their way; sums meet after
    `batch` panels."""

    stored: StoredFormat
    parts: int
    rows: int
    depth: int
    element: str
    slots: int = 1
    phases: int = 1
    stages: int = STAGES
    batch: int = 0

    def for_panels(self, count: int, room: int) -> CodeShape:
        """With as many warps and stages as there is room for in so many bytes, where a block has so many panels."""
        chunks = self.chunks

        def idle(slots: int) -> tuple[float, int]:
            """How much of the time slots have no chunk; then more slots are better."""
            return -(-chunks // slots) * slots / chunks, -slots

        # Many sums need the registers of many warps.
        largest = WARPS if self.tiles * self.stored.groups * self.parts <= 2 else WARPS // 2
        for most in (largest, largest // 2, largest // 4):
            slots = min(range(max(1, most // 2), min(most, chunks) + 1) or [chunks], key=idle)
            made = self._replace(slots=slots, phases=max(1, most // slots))
            batch = (room - made.shared_bytes) // made.panel_sums
            # Few panels whose sums meet at a time mean that warps wait for each other often.
            if batch >= min(count, 2) or (batch == 1 and most == largest // 4):
                return made._replace(batch=min(batch, count))
        raise InternalError(f"{self}: one panel needs more than {room} bytes")

    @property
    def warps(self) -> int:
        return self.slots * self.phases

    @property
    def digits(self) -> int:
        return DIGITS[self.element]

    @property
    def columns(self) -> int:
        """Digits of all rows."""
        return self.rows * self.digits

    @property
    def tiles(self) -> int:
        return -(-self.columns // TILE)

    @property
    def chunks(self) -> int:
        return -(-self.depth // CHUNK)

    @property
    def is_resident(self) -> bool:
        """Whether a warp has one chunk of K for all panels."""
        return self.slots == self.chunks

    @property
    def stage_bytes(self) -> int:
        return self.parts * self.stored.chunk_bytes

    @property
    def step_bytes(self) -> int:
        """Steps of a chunk as f32."""
        return RECORDS * self.stored.groups * LINE

    @property
    def warp_bytes(self) -> int:
        """Ring, digits, what they are multiplied by, steps."""
        digits = self.columns * PITCH + self.tiles * TILE * 4
        return self.stages * self.stage_bytes + digits + self.parts * self.step_bytes

    @property
    def kept_columns(self) -> int:
        """Sums of a warp: pairs of digits."""
        return -(-self.columns // 2) * 2

    @property
    def sums_bytes(self) -> int:
        """Of a chunk of one panel: sums of digits, then what is taken off each row."""
        return (self.kept_columns + self.rows * self.stored.has_offsets) * LINE

    @property
    def panel_sums(self) -> int:
        """All sums of a panel of every part."""
        return self.slots * self.parts * self.sums_bytes

    @property
    def shared_bytes(self) -> int:
        return self.warps * self.warp_bytes + self.batch * self.panel_sums


def code_rows_text(name: str, shape: CodeShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: the address of A and its pitch in bytes, the address of every weight (i64), then
    rows, blocks of rows, panels and shares of panels (i32), then those of the epilogue."""
    return _CodeRows(name, shape, finish).text(triple)


class _CodeRows:
    def __init__(self, name: str, shape: CodeShape, finish: FinishCall) -> None:
        w = self.w = Writer(name, 32 * shape.warps)
        self.shape, self.stored = shape, shape.stored
        self.a, self.a_pitch = w.param("a_at", "i64"), w.param("a_pitch", "i64")
        self.weights = [w.param(f"b{i}_at", "i64") for i in range(shape.parts)]
        self.rows, row_blocks, panels, shares = (w.param(n, "i32") for n in ("rows", "row_blocks", "panels", "shares"))
        self.epilogue = EpilogueWriter(w, finish)
        self.memory = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.thread = w.register("tid.x")
        self.lane, self.warp = self.thread & 31, self.thread >> 5
        self.slot, self.phase = self.warp % shape.slots, self.warp // shape.slots
        block = w.register("ctaid.x")
        share, self.first_row = block // row_blocks, block % row_blocks * shape.rows
        self.first, self.last = share * panels // shares, (share + 1) * panels // shares
        self.panel_bytes = shape.depth // RECORD * self.stored.record_bytes
        if self.stored.header_bytes:
            self.panel_bytes = shape.depth // CHUNK * self.stored.chunk_bytes
        self.ring = self.memory + self.warp * shape.warp_bytes
        self.digits = self.ring + shape.stages * shape.stage_bytes
        self.factors = self.digits + shape.columns * PITCH
        self.steps = self.factors + shape.tiles * TILE * 4
        self.sums = self.memory + shape.warps * shape.warp_bytes
        self.reader = CodeReader(w, self.stored, self.lane)
        self.scales = ScaleReader(w, self.stored, self.lane)
        # What is brought next: panels from here on, one for each phase, of this batch and chunk.
        self.next_panel, self.next_batch, self.next_chunk = Var(w, self.first), Var(w, self.first), Var(w, self.slot)

    def text(self, triple: str) -> str:
        w, shape = self.w, self.shape
        for number in range(shape.stages):
            self.bring(self.ring + number * shape.stage_bytes)
        totals = self.digits_of_rows(self.slot) if shape.is_resident else []
        stage = Var(w, 0)
        with w.loop(self.first, self.last, shape.batch) as batch:
            end = w.least(batch + shape.batch, self.last)
            with w.loop(self.slot, w.value(shape.chunks), shape.slots) as chunk:
                if not shape.is_resident:
                    totals = self.digits_of_rows(chunk)
                with w.loop(batch, end, shape.phases) as panel:
                    place = self.ring + stage.get() * shape.stage_bytes
                    w.asm(f"cp.async.wait_group {shape.stages - 1};")
                    sync_warp(w)
                    taken = [self.read_scales(part, place, totals) for part in range(shape.parts)]
                    sync_warp(w)
                    sums = self.multiply(place)
                    inside = panel + self.phase - batch
                    with w.when(inside < end - batch):
                        self.put(inside, sums, taken, chunk)
                    # Everybody has read the stage before it is filled again.
                    sync_warp(w)
                    self.bring(place)
                    following = stage.get() + 1
                    stage.set(w.select(following.equals(shape.stages), 0, following))
            sync_block(w)
            self.join(batch, end)
            sync_block(w)
        w.asm("cp.async.wait_all;")
        return w.module(triple, self.epilogue.call.text)

    # Copies.

    def bring(self, to: Val) -> None:
        """Start the copies of what comes next of every part, if anything does."""
        w, shape, size = self.w, self.shape, self.stored.chunk_bytes
        chunk, own, whole = self.next_chunk.get(), self.lane * 16, shape.depth // CHUNK
        # A phase that has no panel left reads the last one, and keeps nothing of it.
        panel = w.wide(w.least(self.next_panel.get() + self.phase, self.last - 1)) * self.panel_bytes
        starts = [at + panel for at in self.weights]
        with w.when(self.next_batch.get() < self.last):
            with w.when(chunk < whole):
                for part, at in enumerate(starts):
                    source, target = at + w.wide(chunk * size + own), to + own + part * size
                    for offset in range(0, size, 512):
                        text = f"cp.async.cg.shared.global.L2::128B [<to>+{offset}], [<from>+{offset}], 16;"
                        named: dict[str, Val | int] = {"from": source, "to": target}
                        if offset + 512 <= size:
                            w.asm(text, named=named)
                            continue
                        with w.when(own < size - offset):
                            w.asm(text, named=named)
            if whole < shape.chunks:
                with w.when(chunk.equals(whole)):
                    self.bring_last(starts, to, whole * size)
        w.asm("cp.async.commit_group;")
        self.advance()

    def advance(self) -> None:
        """Panels of a batch first, then the next chunk of them, then the next batch."""
        w, shape = self.w, self.shape
        panel, batch, chunk = self.next_panel.get() + shape.phases, self.next_batch.get(), self.next_chunk.get()
        stays = panel < w.least(batch + shape.batch, self.last)
        following = chunk + shape.slots
        same_batch = w.select(following < shape.chunks, batch, batch + shape.batch)
        batch = w.select(stays, batch, same_batch)
        self.next_chunk.set(w.select(stays, chunk, w.select(following < shape.chunks, following, self.slot)))
        self.next_panel.set(w.select(stays, panel, batch))
        self.next_batch.set(batch)

    def bring_last(self, starts: Sequence[Val], to: Val, start: int) -> None:
        """A chunk that is not whole: what lies behind the end of a panel is zeros."""
        w, size = self.w, self.stored.chunk_bytes
        own = self.lane * 16
        for part, at in enumerate(starts):
            for offset in range(0, size, 512):
                here = own + offset
                inside = here < self.panel_bytes - start
                text = "cp.async.cg.shared.global.L2::128B [<to>], [<from>], 16, <n>;"
                with w.when(here < size):
                    named: dict[str, Val | int] = {
                        "from": at + w.wide(w.select(inside, here, 0) + start),
                        "to": to + here + part * size,
                        "n": w.select(inside, 16, 0),
                    }
                    w.asm(text, named=named)

    def read_scales(self, part: int, place: Val, totals: Sequence[Val]) -> list[Val]:
        """Steps of a chunk, f32[records * groups, 16]. What is taken off each row of A, whose sums `totals` are: of one
        row of the panel for a lane, of four for each number of lanes modulo 4."""
        w, stored, shape = self.w, self.stored, self.shape
        chunk = place + part * stored.chunk_bytes
        heads = self.scales.heads(chunk)
        at = self.steps + self.scales.line * LINE + self.scales.four * 16
        taken: list[list[Val]] = [[] for _ in totals]
        for turn in range(stored.groups):
            steps = self.scales.read(chunk, turn, 0, heads)
            store_shared(w, at, *steps, offset=part * shape.step_bytes + turn * RECORDS * LINE)
            if not stored.has_offsets:
                continue
            factors = [step * float(stored.bias) for step in steps]
            if stored.has_minimums:
                factors = self.scales.read(chunk, turn, 1, heads)
            for row, total in enumerate(totals):
                if stored.groups == 2:
                    # Sums belong to pairs of lanes.
                    total = self.from_lane(total, (self.scales.line << 1) + turn * 16, "idx")
                products = [factor * total for factor in factors]
                taken[row] = [x + y for x, y in zip(taken[row], products)] if turn else products
        return [self.over_records(four) for four in taken if four]

    def over_records(self, four: Sequence[Val]) -> Val:
        """Four values of every lane, added up over lanes with the same number modulo 4. Each lane gets one of the
        sums: the number of it has bits 4 and 3 of the lane's."""
        w = self.w
        upper = (self.lane & 16).equals(0)
        kept = [w.select(upper, four[i], four[i + 2], "float") for i in range(2)]
        sent = [w.select(upper, four[i + 2], four[i], "float") for i in range(2)]
        two = [x + self.from_lane(y, 16) for x, y in zip(kept, sent)]
        upper = (self.lane & 8).equals(0)
        one = w.select(upper, two[0], two[1], "float") + self.from_lane(w.select(upper, two[1], two[0], "float"), 8)
        return one + self.from_lane(one, 4)

    def from_lane(self, x: Val, lane: Val | int, how: str = "bfly") -> Val:
        w = self.w
        return w.call(f"llvm.nvvm.shfl.sync.{how}.f32", "float", w.value(-1), x, w.value(lane), w.value(31))

    # A.

    def digits_of_rows(self, chunk: Val) -> list[Val]:
        """All rows of a chunk as digits. The sums of each row: of the group of 32 that a lane has a part of, or of the
        group of 16."""
        shape = self.shape
        place = chunk * CHUNK + self.lane * 8
        totals = []
        for start in range(0, shape.rows, ROWS_AT_ONCE):
            rows = range(start, min(start + ROWS_AT_ONCE, shape.rows))
            read = [self.read_row(row, place) for row in rows]
            for row, values in zip(rows, read):
                self.write_digits(row, values)
                if self.stored.has_offsets:
                    totals.append(self.total(values))
        return totals

    def total(self, values: Sequence[Val]) -> Val:
        total = values[0]
        for value in values[1:]:
            total = total + value
        for distance in (1, 2)[: 2 if self.stored.groups == 1 else 1]:
            total = total + self.from_lane(total, distance)
        return total

    def read_row(self, row: int, place: Val) -> list[Val]:
        """Eight neighbours of a row, zeros behind the end of K."""
        w, shape = self.w, self.shape
        size = BYTES[shape.element]
        number = w.least(self.first_row + row, self.rows - 1)
        at = self.a + w.wide(number) * self.a_pitch + w.wide(place * size)
        found: list[Val] = []
        for offset in range(0, 8 * size, 16):
            load = f"ld.global.v4.b32 {{$0, $1, $2, $3}}, [<a>+{offset}];"
            if shape.depth % CHUNK == 0:
                found += w.asm(load, results=["i32"] * 4, a=at)
                continue
            zeros = "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;"
            text = f"{{ .reg .pred p; setp.lt.s32 p, <k>, {shape.depth}; {zeros} @p {load} }}"
            found += w.asm(text, results=["i32"] * 4, early=True, a=at, k=place)
        if size == 4:
            return [as_float(w, word) for word in found]
        return [x for word in found for x in halves(w, word, shape.element)]

    def write_digits(self, row: int, values: Sequence[Val]) -> None:
        w, shape = self.w, self.shape
        sizes = [w.call("llvm.fabs.f32", "float", x) for x in values]
        largest = sizes[0]
        for other in sizes[1:]:
            largest = w.call("llvm.maximum.f32", "float", largest, other)
        inverse, scale = chunk_scale(w, largest, shape.digits)
        digits = [as_digits(rounded(w, x * inverse), shape.digits) for x in values]
        for digit, (first, second) in enumerate(digit_words(w, digits, shape.digits, self.stored.order)):
            self.keep_digits(first, second, (row * shape.digits + digit) * PITCH)
        with w.when(self.lane.equals(0)):
            for digit in range(shape.digits):
                store_shared(w, self.factors, scale * float(256**digit), offset=(row * shape.digits + digit) * 4)

    def keep_digits(self, first: Val, second: Val, offset: int) -> None:
        """Two words of digits to the lanes that will read them, each of which has eight bytes of a record."""
        w, lane = self.w, self.lane
        record, high, half = self.digits + (lane >> 2) * 32, lane & 1, (lane >> 1) & 1
        if self.stored.is_wide:
            store_shared(w, record + (lane & 3) * 8, first, second, offset=offset)
        else:
            at = record + high * 16 + half * 4
            store_shared(w, at, first, offset=offset)
            store_shared(w, at, second, offset=offset + 8)

    # Products.

    def multiply(self, place: Val) -> list[list[Val]]:
        """The sums of a chunk: four for each part and tile."""
        w, shape, stored = self.w, self.shape, self.stored
        pair, part_of_lane = self.reader.pair, self.reader.part
        columns = [
            self.digits + w.least(pair + tile * TILE, shape.columns - 1) * PITCH + part_of_lane * 8
            for tile in range(shape.tiles)
        ]
        sums: list[list[Val]] = [[] for _ in range(shape.parts * shape.tiles)]
        for record in range(RECORDS):
            others = [load_shared(w, column, 2, offset=record * 32) for column in columns]
            for part in range(shape.parts):
                start = part * stored.chunk_bytes + stored.header_bytes + record * stored.record_bytes
                codes = self.reader.codes(place, start)
                found = [self.products(codes, x) for x in others]
                for group in range(stored.groups):
                    offset = part * shape.step_bytes + (record * stored.groups + group) * LINE
                    steps = load_shared(w, self.steps + pair * 8, 2, "float", offset)
                    for tile in range(shape.tiles):
                        number = part * shape.tiles + tile
                        products = [steps[i // 2] * found[tile][group][i] for i in range(4)]
                        sums[number] = [x + y for x, y in zip(sums[number], products)] if sums[number] else products
        for number, four in enumerate(sums):
            factors = load_shared(w, self.factors + part_of_lane * 8, 2, "float", number % shape.tiles * TILE * 4)
            sums[number] = [value * factors[i % 2] for i, value in enumerate(four)]
        return sums

    def products(self, codes: Sequence[Sequence[Val]], x: Sequence[Val]) -> list[list[Val]]:
        """The sums of each group of a record, as f32."""
        w = self.w
        # Sums begin at the bits of a float to which they are added as to its last place.
        start = w.value(MAGIC_BITS)
        return [
            [as_float(w, bits) - MAGIC for bits in mma_bytes(w, *group, start)]
            for group in by_group(codes, x, self.stored.groups)
        ]

    # Results.

    def put(self, panel: Val, sums: Sequence[Sequence[Val]], taken: Sequence[Sequence[Val]], chunk: Val) -> None:
        """What a warp has of a panel: for each part [digit, column of C], then what is taken off [row of A, column]."""
        w, shape = self.w, self.shape
        start = self.sums + (panel * shape.slots + self.slot) * (shape.parts * shape.sums_bytes)
        is_first = chunk.equals(self.slot)

        def keep(at: Val, offset: int, *values: Val) -> None:
            if not shape.is_resident:
                old = load_shared(w, at, len(values), "float", offset)
                values = tuple(v + w.select(is_first, 0.0, o, "float") for v, o in zip(values, old))
            store_shared(w, at, *values, offset=offset)

        at = start + self.reader.part * (2 * LINE) + self.reader.pair * 8
        for number, four in enumerate(sums):
            part, tile = divmod(number, shape.tiles)
            with w.when(self.reader.part * 2 < shape.kept_columns - tile * TILE):
                for i in range(2):
                    keep(at, part * shape.sums_bytes + (tile * TILE + i) * LINE, four[i], four[i + 2])
        # Two lanes have the same.
        row_of_panel = self.scales.four * 4 + ((self.lane >> 4) << 1) + ((self.lane >> 3) & 1)
        with w.when((self.lane & 4).equals(0)):
            for part, values in enumerate(taken):
                for row, value in enumerate(values):
                    offset = part * shape.sums_bytes + (shape.kept_columns + row) * LINE
                    keep(start + row_of_panel * 4, offset, value)

    def join(self, batch: Val, end: Val) -> None:
        """A thread for each pair of columns of a row adds up what the warps have, in their order."""
        w, shape = self.w, self.shape
        pairs = PANEL_ROWS // 2
        each = shape.rows * pairs
        for start in range(0, each * shape.batch, 32 * shape.warps):
            number = self.thread + start
            panel, inside = number // each, number % each
            with w.when(panel < end - batch):
                row, pair = inside // pairs, inside % pairs
                totals = [x for part in range(shape.parts) for x in self.joined(part, panel, row, pair)]
                place = w.wide(self.first_row + row), w.wide((batch + panel) * PANEL_ROWS + pair * 2)
                self.epilogue.finish(*place, totals, self.epilogue.read(*place))

    def joined(self, part: int, panel: Val, row: Val, pair: Val) -> list[Val]:
        w, shape = self.w, self.shape
        base = self.sums + panel * shape.panel_sums + pair * 8
        digits, taken = base + row * (shape.digits * LINE), base + row * LINE
        both: list[Val] = []
        for slot in range(shape.slots):
            start = (slot * shape.parts + part) * shape.sums_bytes
            for digit in range(shape.digits):
                found = load_shared(w, digits, 2, "float", start + digit * LINE)
                both = [x + y for x, y in zip(both, found)] if both else found
            if self.stored.has_offsets:
                found = load_shared(w, taken, 2, "float", start + shape.kept_columns * LINE)
                both = [x - y for x, y in zip(both, found)]
        return both
