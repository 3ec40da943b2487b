"""The kernel of a product with GGUF panels: stored blocks go through the chip once, and meet A as integers.

A block takes the 16 columns of C that a panel is, and some rows of A. Its warps share K in chunks of 256: each brings
its chunks into a ring of its own in shared memory by asynchronous copies, so that no warp waits for another one before
the end. Of each chunk a row of A becomes integers of two or three digits (signed bytes) times a power of two, which
loses nothing that the sums would keep: 22 bits below the largest number of the chunk for f32, 14 for f16 and bf16. Codes
are bytes as well, so `mma` multiplies and adds exactly; steps are applied to the sums of each group. Minimums, and the
bias of codes, need only the sums of A in each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, FinishCall
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
    permuted,
    store_shared,
)
from rlx.backends.cuda.hopper.writer import Val, Var, Writer
from rlx.quant.panels import PANEL_ROWS, RECORD

# Elements of K in a chunk: eight for each lane.
CHUNK = RECORDS * RECORD
# Columns of one `mma`: digits of rows of A.
TILE = 8
# Bytes from a column of digits to the next one: a chunk, and eight banks further.
PITCH = CHUNK + 32
# Bytes of the sums of a column of C for the 16 rows of a panel.
LINE = PANEL_ROWS * 4
# Chunks that a warp has on their way.
MOST_STAGES = 4
# What blocks of a multiprocessor may share, and warps that it shall have.
SHARED_BYTES = 220 << 10
MOST_WARPS = 28
# Rows of A whose elements are on their way at the same time.
ROWS_AT_ONCE = 4

# Digits of an element of A, and bytes of it.
DIGITS = {"f32": 3, "bf16": 2, "f16": 2}
BYTES = {"f32": 4, "bf16": 2, "f16": 2}


class CodeShape(NamedTuple):
    """`parts` products of the same A, `rows` rows of it and `panels` panels in a block, K = `depth`. `warps`
    of a block have `stages` chunks each on their way."""

    stored: StoredFormat
    parts: int
    panels: int
    rows: int
    depth: int
    element: str
    warps: int = 8
    stages: int = 2

    def for_blocks(self, count: int) -> CodeShape:
        """With as many warps and stages as leave room for so many blocks on a multiprocessor at the same time: blocks
        of a second wave would begin with nothing on its way."""
        for warps in (16, 8, 4, 2):
            most = min(MOST_STAGES, max(2, -(-self.chunks // warps)))
            for stages in range(most, 1, -1):
                made = self._replace(warps=warps, stages=stages)
                has_room = count * made.shared_bytes <= SHARED_BYTES and count * warps <= MOST_WARPS
                if has_room and (warps <= self.chunks or warps == 2):
                    return made
        return self._replace(warps=4 if self.chunks > 2 else 2, stages=2)

    @property
    def streams(self) -> int:
        """Panels of all parts."""
        return self.parts * self.panels

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
    def stage_bytes(self) -> int:
        return self.streams * self.stored.chunk_bytes

    @property
    def step_bytes(self) -> int:
        """Steps of a chunk as f32."""
        return RECORDS * self.stored.groups * LINE

    @property
    def warp_bytes(self) -> int:
        """Ring, digits, what they are multiplied by, steps."""
        steps = self.streams * self.step_bytes
        return self.stages * self.stage_bytes + self.columns * PITCH + self.tiles * TILE * 4 + steps

    @property
    def sums_bytes(self) -> int:
        """Of a warp, for each stream: sums of digits, then what is taken off each row."""
        return (self.tiles * TILE + self.rows) * LINE

    @property
    def shared_bytes(self) -> int:
        return self.warps * max(self.warp_bytes, self.streams * self.sums_bytes)

    @property
    def blocks_per_multiprocessor(self) -> int:
        """What registers shall leave room for: many blocks of one row, as many as there may be of others."""
        if self.rows > 1 or self.streams > 1:
            return 1
        # Two steps in a record need more registers.
        return max(1, (MOST_WARPS if self.stored.groups == 1 else 20) // self.warps)


def code_rows_text(name: str, shape: CodeShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: the address of A and its pitch in bytes, the address of every weight (i64), then
    rows, blocks of rows and panels (i32), then those of the epilogue."""
    return _CodeRows(name, shape, finish).text(triple)


class _CodeRows:
    def __init__(self, name: str, shape: CodeShape, finish: FinishCall) -> None:
        w = self.w = Writer(name, 32 * shape.warps, shape.blocks_per_multiprocessor)
        self.shape, self.stored = shape, shape.stored
        self.a, self.a_pitch = w.param("a_at", "i64"), w.param("a_pitch", "i64")
        weights = [w.param(f"b{i}_at", "i64") for i in range(shape.parts)]
        self.rows, self.row_blocks, self.panels = (w.param(n, "i32") for n in ("rows", "row_blocks", "panels"))
        self.epilogue = EpilogueWriter(w, finish)
        self.memory = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.thread = w.register("tid.x")
        self.lane, self.warp = self.thread & 31, self.thread >> 5
        block = w.register("ctaid.x")
        # Blocks with the same panels follow each other: they stay in the cache.
        self.first_panel = block // self.row_blocks * shape.panels
        self.first_row = block % self.row_blocks * shape.rows
        self.panel_bytes = shape.depth // RECORD * self.stored.record_bytes
        if self.stored.header_bytes:
            self.panel_bytes = shape.depth // CHUNK * self.stored.chunk_bytes
        # Behind the last panel is the last one, whose results nobody stores.
        numbers = [w.least(self.first_panel + i, self.panels - 1) for i in range(shape.panels)]
        self.weights = [at + w.wide(number) * self.panel_bytes for at in weights for number in numbers]
        self.ring = self.memory + self.warp * shape.warp_bytes
        self.digits = self.ring + shape.stages * shape.stage_bytes
        self.factors = self.digits + shape.columns * PITCH
        self.steps = self.factors + shape.tiles * TILE * 4
        self.reader = CodeReader(w, self.stored, self.lane)
        self.scales = ScaleReader(w, self.stored, self.lane)
        # What is taken off: for each stream and row of A, of four rows of the panel, those groups that the lane sees.
        count = shape.streams * shape.rows if self.stored.has_offsets else 0
        self.offsets = [[Var(w, 0.0, "float") for _ in range(4)] for _ in range(count)]

    def text(self, triple: str) -> str:
        w, shape = self.w, self.shape
        first = [self.warp + stage * shape.warps for stage in range(shape.stages)]
        for stage, chunk in enumerate(first):
            self.bring(chunk, self.ring + stage * shape.stage_bytes)
        sums = self.zeros()
        stage = Var(w, 0)
        with w.loop(self.warp, w.value(shape.chunks), shape.warps) as chunk:
            place = self.ring + stage.get() * shape.stage_bytes
            totals = self.digits_of_rows(chunk)
            w.asm(f"cp.async.wait_group {shape.stages - 1};")
            w.asm("bar.warp.sync -1;")
            for stream in range(shape.streams):
                self.read_scales(stream, place + stream * self.stored.chunk_bytes, totals)
            w.asm("bar.warp.sync -1;")
            self.multiply(place, sums)
            # Everybody has read the stage before it is filled again.
            w.asm("bar.warp.sync -1;")
            self.bring(chunk + shape.stages * shape.warps, place)
            following = stage.get() + 1
            stage.set(w.select(following.equals(shape.stages), 0, following))
        w.asm("cp.async.wait_all;")
        w.asm("bar.sync 0;")
        self.put(sums)
        w.asm("bar.sync 0;")
        self.join()
        return w.module(triple, self.epilogue.call.text)

    def zeros(self) -> list[list[Var]]:
        """Four sums for each stream and tile."""
        return [[Var(self.w, 0.0, "float") for _ in range(4)] for _ in range(self.shape.streams * self.shape.tiles)]

    # Copies.

    def bring(self, chunk: Val, to: Val) -> None:
        """Start the copies of a chunk of every stream."""
        w, shape, size = self.w, self.shape, self.stored.chunk_bytes
        own = self.lane * 16
        whole = shape.depth // CHUNK
        with w.when(chunk < whole):
            for stream, at in enumerate(self.weights):
                source, target = at + w.wide(chunk * size + own), to + own + stream * size
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
                self.bring_last(to, whole * size)
        w.asm("cp.async.commit_group;")

    def bring_last(self, to: Val, start: int) -> None:
        """A chunk that is not whole: what lies behind the end of a panel is zeros."""
        w, size = self.w, self.stored.chunk_bytes
        own = self.lane * 16
        for stream, at in enumerate(self.weights):
            for offset in range(0, size, 512):
                here = own + offset
                there = w.select(here < self.panel_bytes - start, here, 0)
                text = "cp.async.cg.shared.global.L2::128B [<to>], [<from>], 16, <n>;"
                with w.when(here < size):
                    named: dict[str, Val | int] = {
                        "from": at + w.wide(there + start),
                        "to": to + here + stream * size,
                        "n": w.select(here < self.panel_bytes - start, 16, 0),
                    }
                    w.asm(text, named=named)

    def read_scales(self, stream: int, chunk: Val, totals: Sequence[Val]) -> None:
        """Steps of a chunk, f32[records * groups, 16], and what is taken off each row of A: `totals` are its sums."""
        w, stored, shape = self.w, self.stored, self.shape
        heads = self.scales.heads(chunk)
        at = self.steps + self.scales.line * LINE + self.scales.four * 16
        for turn in range(stored.groups):
            steps = self.scales.read(chunk, turn, 0, heads)
            store_shared(w, at, *steps, offset=stream * shape.step_bytes + turn * RECORDS * LINE)
            if not stored.has_offsets:
                continue
            taken = [step * float(stored.bias) for step in steps]
            if stored.has_minimums:
                taken = self.scales.read(chunk, turn, 1, heads)
            for row, total in enumerate(totals):
                if stored.groups == 2:
                    # Sums belong to pairs of lanes.
                    total = self.from_lane(total, (self.scales.line << 1) + turn * 16, "idx")
                for variable, value in zip(self.offsets[stream * shape.rows + row], taken):
                    variable.set(variable.get() + value * total)

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
        """The digits of eight neighbours: q = x / 2^e is their sum, each times a power of 256."""
        w, shape = self.w, self.shape
        top = 8 * shape.digits - 3
        sizes = [w.call("llvm.fabs.f32", "float", x) for x in values]
        largest = sizes[0]
        for other in sizes[1:]:
            largest = w.call("llvm.maximum.f32", "float", largest, other)
        bits = w.emit(f"bitcast float {largest.name} to i32", "i32")
        (bits,) = w.asm("redux.sync.max.s32 $0, <x>, -1;", results=["i32"], x=bits)
        exponent = w.most(bits >> 23, top + 1)
        inverse = as_float(w, (w.value(254 + top) - exponent) << 23)
        # A chunk with an infinity or a NaN is NaN.
        scale = as_float(w, w.select(exponent.equals(255), 0x7FC00000, (exponent - top) << 23))
        ones = sum(0x80 << (8 * d) for d in range(shape.digits))
        digits = []
        for x in values:
            (number,) = w.asm("cvt.rni.s32.f32 $0, <x>;", results=["i32"], x=x * inverse)
            digits.append((number + ones) ^ ones)
        words = [self.bytes_of([digits[i] for i in four]) for four in self.stored.order]
        part = (self.lane & 3) * 8
        if not self.stored.is_wide:
            # Which of two pairs of lanes will read it, and its half of the record.
            part = (self.lane & 1) * 16 + ((self.lane >> 1) & 1) * 4
        at = self.digits + (self.lane >> 2) * 32 + part
        for digit in range(shape.digits):
            offset = (row * shape.digits + digit) * PITCH
            both = words[0][digit], words[1][digit]
            if self.stored.is_wide:
                store_shared(w, at, *both, offset=offset)
            else:
                store_shared(w, at, both[0], offset=offset)
                store_shared(w, at, both[1], offset=offset + 8)
        with w.when(self.lane.equals(0)):
            for digit in range(shape.digits):
                store_shared(w, self.factors, scale * float(256**digit), offset=(row * shape.digits + digit) * 4)

    def bytes_of(self, four: Sequence[Val]) -> list[Val]:
        """The lowest bytes of four numbers, then the next ones, .."""
        w = self.w
        pairs = [permuted(w, four[i], four[i + 1], 0x5140) for i in (0, 2)]
        words = [permuted(w, *pairs, selector) for selector in (0x5410, 0x7632)]
        if self.shape.digits == 3:
            words.append(permuted(w, *(permuted(w, four[i], four[i + 1], 0x0062) for i in (0, 2)), 0x5410))
        return words

    # Products.

    def multiply(self, place: Val, sums: Sequence[Sequence[Var]]) -> None:
        """One chunk of all streams."""
        w, shape, stored = self.w, self.shape, self.stored
        pair, part = self.reader.pair, self.reader.part
        columns = [
            self.digits + w.least(pair + tile * TILE, shape.columns - 1) * PITCH + part * 8
            for tile in range(shape.tiles)
        ]
        inner = self.zeros()
        for record in range(RECORDS):
            others = [load_shared(w, column, 2, offset=record * 32) for column in columns]
            for stream in range(shape.streams):
                start = stream * stored.chunk_bytes + stored.header_bytes + record * stored.record_bytes
                codes = self.reader.codes(place, start)
                found = [self.products(codes, x) for x in others]
                for group in range(stored.groups):
                    offset = stream * shape.step_bytes + (record * stored.groups + group) * LINE
                    steps = load_shared(w, self.steps + pair * 8, 2, "float", offset)
                    for tile in range(shape.tiles):
                        for i, variable in enumerate(inner[stream * shape.tiles + tile]):
                            variable.set(variable.get() + steps[i // 2] * found[tile][group][i])
        for number, (four, totals) in enumerate(zip(inner, sums)):
            factors = load_shared(w, self.factors + part * 8, 2, "float", number % shape.tiles * TILE * 4)
            for i, (one, total) in enumerate(zip(four, totals)):
                total.set(total.get() + one.get() * factors[i % 2])

    def products(self, codes: Sequence[Sequence[Val]], x: Sequence[Val]) -> list[list[Val]]:
        """The sums of each group of a record, as f32; codes are those of both rows for each half."""
        if self.stored.groups == 1:
            return [self.mma([*codes[0], *codes[1]], x)]
        return [self.mma(codes[half], [x[half]]) for half in range(2)]

    def mma(self, codes: Sequence[Val], x: Sequence[Val]) -> list[Val]:
        w = self.w
        named: dict[str, Val | int] = {f"a{i}": v for i, v in enumerate(codes)}
        named |= {f"b{i}": v for i, v in enumerate(x)}
        a, b = (", ".join(f"<{letter}{i}>" for i in range(len(v))) for letter, v in (("a", codes), ("b", x)))
        # Sums begin at the bits of a float to which they are added as to its last place.
        found = w.asm(
            f"mma.sync.aligned.m16n8k{8 * len(codes)}.row.col.s32.s8.s8.s32 {{$0, $1, $2, $3}},"
            f" {{{a}}}, {{{b}}}, {{<c>, <c>, <c>, <c>}};",
            results=["i32"] * 4,
            named=named,
            c=w.value(MAGIC_BITS),
        )
        return [as_float(w, bits) - MAGIC for bits in found]

    # Results.

    def put(self, sums: Sequence[Sequence[Var]]) -> None:
        """What a warp has: for each stream [digit, column of C], then what is taken off [row of A, column of C]."""
        w, shape = self.w, self.shape
        start = self.memory + self.warp * (shape.streams * shape.sums_bytes)
        at = start + self.reader.part * (2 * LINE) + self.reader.pair * 8
        for number, four in enumerate(sums):
            stream, tile = divmod(number, shape.tiles)
            for i in range(2):
                offset = stream * shape.sums_bytes + (tile * TILE + i) * LINE
                store_shared(w, at, four[i].get(), four[i + 2].get(), offset=offset)
        for number, variables in enumerate(self.offsets):
            stream, row = divmod(number, shape.rows)
            values = [v.get() for v in variables]
            for distance in (4, 8, 16):
                values = [value + self.from_lane(value, distance) for value in values]
            with w.when(self.lane < 4):
                offset = stream * shape.sums_bytes + (shape.tiles * TILE + row) * LINE
                store_shared(w, start + self.lane * 16, *values, offset=offset)

    def join(self) -> None:
        """A thread for each pair of columns of a row adds up what the warps have, in their order."""
        w, shape = self.w, self.shape
        pairs = PANEL_ROWS // 2
        each = shape.rows * pairs
        threads = 32 * shape.warps
        for start in range(0, each * shape.panels, threads):
            number = self.thread + start
            with w.when(number < each * shape.panels):
                panel, inside = number // each, number % each
                row, pair = inside // pairs, inside % pairs
                totals = [x for part in range(shape.parts) for x in self.joined(part, panel, row, pair)]
                column = (self.first_panel + panel) * PANEL_ROWS + pair * 2
                place = w.wide(self.first_row + row), w.wide(column)
                self.epilogue.finish(*place, totals, self.epilogue.read(*place))

    def joined(self, part: int, panel: Val, row: Val, pair: Val) -> list[Val]:
        w, shape = self.w, self.shape
        base = self.memory + (panel + part * shape.panels) * shape.sums_bytes + pair * 8
        digits, taken = base + row * (shape.digits * LINE), base + row * LINE
        both: list[Val] = []
        for warp in range(shape.warps):
            start = warp * shape.streams * shape.sums_bytes
            for digit in range(shape.digits):
                found = load_shared(w, digits, 2, "float", start + digit * LINE)
                both = [x + y for x, y in zip(both, found)] if both else found
            if self.stored.has_offsets:
                found = load_shared(w, taken, 2, "float", start + shape.tiles * TILE * LINE)
                both = [x - y for x, y in zip(both, found)]
        return both
