"""Products with GGUF panels: the vector as digits, codes against them by `mma` of bytes, steps applied to sums.

As in `rlx.backends.cuda.hopper.code_rows` a row of the operand becomes integers of two digits (signed bytes) times a
power of two for each chunk of 256 elements, 14 bits below the largest (`panel_rows.in_digits`). Sums of digits and
codes are exact, and their steps are applied in f32. Minimums, and the bias of codes, meet the sums of the
operand over groups of 16.

A stage is chunks of one panel, one for each warp. Digits take the place of the elements that they are made of:
of a chunk first the low ones, then the high ones, whose records are exchanged in pairs, so that both are in different
banks. The words of a record come in the order of `StoredFormat.order`, whatever the format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cuda.hopper.digits import as_digits, by_group, chunk_scale, digit_words, mma_bytes, rounded
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
from rlx.backends.cuda.hopper.writer import Val, Var
from rlx.backends.cuda.persistent.exchange import Block
from rlx.backends.cuda.persistent.panel_rows import CHUNK, DIGITS, SUMMED
from rlx.backends.cuda.persistent.phases import Product
from rlx.backends.cuda.persistent.plan import WARPS
from rlx.backends.cuda.persistent.ring import Fill, Read
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

# Columns of one `mma`: digits of sequences.
TILE = 8
# Bytes of a line of steps: one for every row of a panel.
LINE = 4 * PANEL_ROWS
# Chunks that a warp turns into digits together at most.
TOGETHER = 8
# Stages that are multiplied together, where a panel has as many. For two of them there are too few registers.
STAGES_AT_ONCE = 1


def forms_of(block: Block, product: Product, layer: Val | None) -> dict[str, Val]:
    """By matrix the number of its format, where there are several."""
    if len(product.schemes) < 2:
        return {}
    return {
        m: block.w.emit(f"trunc i64 {block.entry(f'{m}_form', layer).name} to i32", "i32") for m in product.matrices
    }


def in_form(block: Block, product: Product, form: Val | None, do: Callable[[StoredFormat], None]) -> None:
    """Code for the format with a number, or for the only one."""
    for number, stored in enumerate(product.formats):
        if form is None:
            do(stored)
            continue
        with block.w.when(form.equals(number)):
            do(stored)


def bring_panels(
    block: Block, product: Product, matrices: Sequence[str], layer: Val | None, low: Val, high: Val, fill: Fill
) -> None:
    """The panels of some matrices from one unit to another, in stages of a chunk for each warp."""
    w, chunks = block.w, product.depth // CHUNK
    sources, forms = [block.entry(m, layer) for m in matrices], forms_of(block, product, layer)

    def bring(stored: StoredFormat, source: Val, unit: Val) -> None:
        size = stored.chunk_bytes
        panel = source + w.wide(unit) * (chunks * size)
        with w.loop(0, w.value(chunks), block.plan.stage_chunks) as start:
            here = w.least(w.value(chunks) - start, block.plan.stage_chunks)

            def copy(to: Val, full: Val) -> None:
                with w.when(block.lane < here):
                    at = panel + w.wide((start + block.lane) * size)
                    fill.copy_weights(to + block.lane * size, at, w.value(size), full)

            fill.bring(here * size, copy)

    with w.loop(low, high) as unit:
        for matrix, source in zip(matrices, sources):
            in_form(block, product, forms.get(matrix), lambda stored: bring(stored, source, unit))  # noqa: B023


class PanelProducts:
    """For the warps that multiply."""

    def __init__(self, block: Block, read: Read) -> None:
        self.block, self.w, self.plan, self.read = block, block.w, block.plan, read
        self.pair, self.part = block.lane >> 2, block.lane & 3

    @property
    def tiles(self) -> int:
        return -(-self.plan.batch * DIGITS // TILE)

    # The operand.

    def to_digits(self, product: Product) -> None:
        """Elements of the operand, which all are there, as digits; chunks are shared by the warps."""
        w, block, chunks = self.w, self.block, product.depth // CHUNK
        every = chunks * self.plan.batch
        each = every // WARPS if every % WARPS == 0 else 1
        together = max(n for n in range(1, TOGETHER + 1) if each % n == 0)
        with w.loop(block.warp, w.value(every), WARPS * together) as first:
            places = [first + n * WARPS for n in range(together)]
            rows = [(number // chunks, number % chunks) for number in places]
            starts = [self.operand(row) + chunk * (2 * CHUNK) for row, chunk in rows]
            words = [block.load(at + (block.lane << 4), 4) for at in starts]
            block.together()
            for at, four, (row, chunk) in zip(starts, words, rows):
                values = [block.unpacked(word, i) for word in four for i in range(2)]
                self.write_digits(product, at, values, row, chunk)

    def operand(self, row: Val) -> Val:
        return self.block.shared("scratch") + row * self.plan.operand_pitch

    def write_digits(self, product: Product, at: Val, values: Sequence[Val], row: Val, chunk: Val) -> None:
        """Eight neighbours of a chunk."""
        w, block, plan = self.w, self.block, self.plan
        largest = w.call("llvm.fabs.f32", "float", values[0])
        for value in values[1:]:
            largest = w.call("llvm.maximum.f32", "float", largest, w.call("llvm.fabs.f32", "float", value))
        inverse, scale = chunk_scale(w, largest, DIGITS)
        numbers = [rounded(w, x * inverse) for x in values]
        digits = [as_digits(number, DIGITS) for number in numbers]
        if any(stored.has_offsets for stored in product.formats):
            total = numbers[0]
            for number in numbers[1:]:
                total = total + number
            # Lanes exchange floats; so many bits are exact.
            eight = self.as_number(total)
            sixteen = rounded(w, eight + block.from_lane(eight, 1))
            to = block.shared("summed") + row * plan.summed_bytes + chunk * (4 * CHUNK // SUMMED)
            with w.when((block.lane & 1).equals(0)):
                block.keep(to + (block.lane >> 1 << 2), sixteen)
        words = digit_words(w, digits, DIGITS, product.formats[0].order)
        record, inside = block.lane >> 2 << 5, (block.lane & 3) << 3
        for digit, pair in enumerate(words):
            place = at + ((record ^ (RECORD * digit)) + inside + CHUNK * digit)
            block.keep(place, *pair)
        with w.when(block.lane.equals(0)):
            block.keep(block.shared("factors") + row * plan.factor_bytes + (chunk << 2), scale)

    # Sums.

    def sums(self) -> list[list[Var]]:
        """Of two rows of a panel, for each tile of sequences."""
        return [[Var(self.w, 0.0, "float") for _ in range(2)] for _ in range(self.tiles)]

    def multiply(self, product: Product, form: Val | None, totals: Sequence[Sequence[Var]]) -> None:
        """One panel, over all of K."""
        in_form(self.block, product, form, lambda stored: self.panel(product, stored, totals))

    def panel(self, product: Product, stored: StoredFormat, totals: Sequence[Sequence[Var]]) -> None:
        w, block, chunks = self.w, self.block, product.depth // CHUNK
        at_once = self.plan.stage_chunks
        together = STAGES_AT_ONCE * WARPS
        # Others need the registers for one of them.
        is_small = stored.is_wide and len(stored.planes) == 1 and stored.header_bytes > 0
        whole = chunks // together * together if at_once == WARPS and STAGES_AT_ONCE > 1 and is_small else 0
        if whole:
            with w.loop(0, w.value(whole), together) as start:
                stages = [self.read.take() for _ in range(STAGES_AT_ONCE)]
                places = [self.read.memory(stage) + block.warp * stored.chunk_bytes for stage in stages]
                numbers = [start + block.warp + i * WARPS for i in range(STAGES_AT_ONCE)]
                self.chunks(stored, stages, places, numbers, totals)
        if whole == chunks:
            return
        with w.loop(whole, w.value(chunks), at_once) as start:
            stage = self.read.take()
            # Warps take chunks in turn, whatever a stage has.
            own = block.warp if at_once == WARPS else (block.warp - start) & (WARPS - 1)

            def multiply(stage: Val = stage, start: Val = start, own: Val = own) -> None:
                place = self.read.memory(stage) + own * stored.chunk_bytes
                self.chunks(stored, [stage], [place], [start + own], totals)

            if chunks % WARPS == 0 and at_once == WARPS:
                multiply()
            else:
                is_there = own < w.least(w.value(chunks) - start, at_once)
                w.either(is_there, multiply, lambda stage=stage: self.read.release(stage))  # type: ignore[misc]

    def chunks(
        self,
        stored: StoredFormat,
        stages: Sequence[Val],
        places: Sequence[Val],
        numbers: Sequence[Val],
        totals: Sequence[Sequence[Var]],
    ) -> None:
        """Chunks of this warp: 16 rows of codes, and the digits of all sequences. Everything is read before anything is
        multiplied."""
        codes = [self.codes(stored, place) for place in places]
        if not stored.header_bytes:
            for stage, place, four, number in zip(stages, places, codes, numbers):
                self.float_chunk(stored, stage, place, four, number, totals)
            return
        steps = [self.integer_steps(stored, place) for place in places]
        heads = [self.heads(stored, place) for place in places]
        self.read.release(*stages)
        for of_records, lines, head, number in zip(codes, steps, heads, numbers):
            self.integer_chunk(stored, of_records, lines, head, number, totals)

    def codes(self, stored: StoredFormat, place: Val) -> list[list[list[Val]]]:
        """The codes of every record: of both rows for each half, or for both halves."""
        w, reader = self.w, CodeReader(self.w, stored, self.block.lane)
        starts = [stored.header_bytes + record * stored.record_bytes for record in range(RECORDS)]
        if not stored.is_wide or len(stored.planes) > 1:
            return [reader.codes(place, start) for start in starts]
        # Lines of 64 bytes, of which neighbours but one share banks: those of the upper two take the second row first.
        is_upper = self.part > 1
        line = place + self.part * LINE + self.pair * 8
        first, second = (line + w.select(is_upper, 4, 0)), (line + w.select(is_upper, 0, 4))
        found = []
        for start in starts:
            x, y = (load_shared(w, at, 1, offset=start)[0] for at in (first, second))
            found.append([[w.select(is_upper, y, x), w.select(is_upper, x, y)]])
        return found

    def expanded(self, codes: Sequence[Sequence[Val]]) -> Sequence[Sequence[Val]]:
        """Codes of a record for each half; words that have those of both become so only now, which saves registers."""
        if len(codes) == 2:
            return codes
        return [[(word >> (4 * half)) & 0x0F0F0F0F for word in codes[0]] for half in range(2)]

    # Steps that are bytes under a header: sums stay integers up to the end of a chunk.

    def heads(self, stored: StoredFormat, place: Val) -> list[list[Val]]:
        """What multiplies the steps of this lane's two rows, and their minimums."""
        at = place + self.pair * 4
        return [
            halves(self.w, load_shared(self.w, at, 1, offset=number * 2 * PANEL_ROWS)[0])
            for number in range(1 + stored.has_minimums)
        ]

    def integer_steps(self, stored: StoredFormat, place: Val) -> list[list[Val]]:
        """For every group of a chunk the steps of this lane's two rows, as bytes of a word, and their minimums."""
        found = []
        at = place + self.pair * 2
        for line in range(RECORDS * stored.groups):
            record, group = divmod(line, stored.groups)
            start = stored.header_bytes + record * stored.record_bytes + stored.code_bytes + group * PANEL_ROWS
            starts = [start + number * stored.scale_bytes for number in range(1 + stored.has_minimums)]
            found.append([self.w.asm(f"ld.shared.u16 $0, [<a>+{s}];", results=["i32"], a=at)[0] for s in starts])
        return found

    def of_rows(self, word: Val, is_signed: bool) -> list[Val]:
        """Two bytes as numbers."""
        both = [word & 255, word >> 8]
        return [(x ^ 128) - 128 for x in both] if is_signed else both

    def integer_chunk(
        self,
        stored: StoredFormat,
        codes: Sequence[Sequence[Sequence[Val]]],
        steps: Sequence[Sequence[Val]],
        heads: Sequence[Sequence[Val]],
        chunk: Val,
        totals: Sequence[Sequence[Var]],
    ) -> None:
        """Sums of steps times sums of codes are below 2^31: codes have 6 bits, digits 7, steps 7, 256 of them 8. So
        are minimums (or the bias of codes) times sums of the operand, which have 22 bits."""
        zero = self.w.value(0)
        for tile, total in enumerate(totals):
            bases, summed = self.column(chunk, tile), self.group_sums(stored, chunk, tile)
            sums, taken = [zero] * 4, [zero] * 2
            for record in range(RECORDS):
                x = self.digits(stored, bases, record)
                for group, products in enumerate(self.products(stored, codes[record], x, zero)):
                    line = record * stored.groups + group
                    step = self.of_rows(steps[line][0], stored.signed_steps)
                    sums = [sums[i] + products[i] * step[i // 2] for i in range(4)]
                    if stored.has_offsets:
                        factors = self.of_rows(steps[line][1], False) if stored.has_minimums else step
                        taken = [taken[i] + factors[i] * summed[line] for i in range(2)]
            factor = self.factor(chunk, tile)
            for row, variable in enumerate(total):
                low, high = (self.as_number(sums[2 * row + i]) for i in range(2))
                value = (high * 256.0 + low) * heads[0][row]
                if stored.has_offsets:
                    less = self.as_number(taken[row]) * (heads[1][row] if stored.has_minimums else heads[0][row])
                    value = value - (less if stored.has_minimums else less * float(stored.bias))
                variable.set(variable.get() + value * factor)

    def as_number(self, x: Val) -> Val:
        return self.w.emit(f"sitofp i32 {x.name} to float", "float")

    def factor(self, chunk: Val, tile: int) -> Val:
        block, plan = self.block, self.plan
        at = block.shared("factors") + self.sequence(tile) * plan.factor_bytes + (chunk << 2)
        return block.load(at, 1, "float")[0]

    # Steps that are numbers: as f32 in shared memory, where each lane finds those of its rows.

    def float_chunk(
        self,
        stored: StoredFormat,
        stage: Val,
        place: Val,
        codes: Sequence[Sequence[Sequence[Val]]],
        chunk: Val,
        totals: Sequence[Sequence[Var]],
    ) -> None:
        w, block, plan = self.w, self.block, self.plan
        # All lanes have read the steps that were here before.
        block.together()
        self.keep_steps(stored, place)
        # All lanes have written theirs, and nobody of this warp reads the stage again.
        self.read.release(stage)
        steps_at = self.steps + self.pair * 8
        for tile, total in enumerate(totals):
            bases, factor = self.column(chunk, tile), self.factor(chunk, tile)
            summed = self.group_sums(stored, chunk, tile)
            found: list[Val] = []
            taken: list[Val] = []
            for record in range(RECORDS):
                x = self.digits(stored, bases, record)
                # Sums begin at the bits of a float to which they are added as to its last place.
                for group, bits in enumerate(self.products(stored, codes[record], x, w.value(MAGIC_BITS))):
                    line = record * stored.groups + group
                    steps = load_shared(w, steps_at, 2, "float", line * LINE)
                    four = [steps[i // 2] * (as_float(w, bits[i]) - MAGIC) for i in range(4)]
                    found = [a + b for a, b in zip(found, four)] if found else four
                    if stored.has_offsets:
                        offsets = load_shared(w, steps_at, 2, "float", plan.step_bytes + line * LINE)
                        both = [offset * self.as_number(summed[line]) for offset in offsets]
                        taken = [a + b for a, b in zip(taken, both)] if taken else both
            for row, variable in enumerate(total):
                low, high = found[2 * row : 2 * row + 2]
                value = high * 256.0 + low
                value = value - taken[row] if stored.has_offsets else value
                variable.set(variable.get() + value * factor)

    @property
    def steps(self) -> Val:
        return self.block.shared("steps") + self.block.warp * (2 * self.plan.step_bytes)

    def keep_steps(self, stored: StoredFormat, place: Val) -> None:
        """Steps of a chunk as f32[records * groups, 16], then what is subtracted for each."""
        w, scales = self.w, ScaleReader(self.w, stored, self.block.lane)
        heads = scales.heads(place)
        at = self.steps + scales.line * LINE + scales.four * 16
        for turn in range(stored.groups):
            steps = scales.read(place, turn, 0, heads)
            store_shared(w, at, *steps, offset=turn * RECORDS * LINE)
            if stored.has_offsets:
                offsets = [step * float(stored.bias) for step in steps]
                if stored.has_minimums:
                    offsets = scales.read(place, turn, 1, heads)
                store_shared(w, at, *offsets, offset=self.plan.step_bytes + turn * RECORDS * LINE)

    def sequence(self, tile: int) -> Val:
        """Whose sums a lane has; the last one for those that are not there."""
        return self.w.least(self.part + tile * (TILE // DIGITS), self.plan.batch - 1)

    def column(self, chunk: Val, tile: int) -> tuple[Val, Val]:
        """Where this lane's column of digits begins, for records of even and of odd numbers."""
        number = self.w.least(self.pair + tile * TILE, self.plan.batch * DIGITS - 1)
        digit = number & 1
        base = self.operand(number >> 1) + chunk * (2 * CHUNK) + digit * CHUNK
        return base + digit * RECORD, base - digit * RECORD

    def digits(self, stored: StoredFormat, bases: tuple[Val, Val], record: int) -> list[Val]:
        base = bases[record % 2]
        if stored.is_wide:
            return load_shared(self.w, base + self.part * 8, 2, offset=record * RECORD)
        at = base + self.part * 4
        return [load_shared(self.w, at, 1, offset=record * RECORD + 16 * half)[0] for half in range(2)]

    def group_sums(self, stored: StoredFormat, chunk: Val, tile: int) -> list[Val]:
        """Sums of this lane's sequence over the groups of a chunk, as integers."""
        if not stored.has_offsets:
            return []
        at = self.block.shared("summed") + self.sequence(tile) * self.plan.summed_bytes
        at = at + chunk * (4 * CHUNK // SUMMED)
        found = [x for i in range(0, CHUNK // SUMMED, 4) for x in load_shared(self.w, at, 4, offset=4 * i)]
        if stored.groups == 2:
            return found
        return [a + b for a, b in zip(found[::2], found[1::2])]

    def products(
        self, stored: StoredFormat, codes: Sequence[Sequence[Val]], x: Sequence[Val], start: Val
    ) -> list[list[Val]]:
        """The sums of each group of a record, added to `start`."""
        return [mma_bytes(self.w, *group, start) for group in by_group(self.expanded(codes), x, stored.groups)]

    def put(self, here: Val, sums: Sequence[Sequence[Sequence[Var]]]) -> None:
        """What a warp has of a panel: two neighbouring columns of a sequence in each lane."""
        block, plan = self.block, self.plan
        for tile in range(self.tiles):
            row = self.part + tile * (TILE // DIGITS)
            with self.w.when(row < plan.batch):
                for part, of_tiles in enumerate(sums):
                    at = here + (block.warp * 2 + part) * plan.unit_bytes + row * LINE + self.pair * 8
                    block.keep(at, *(variable.get() for variable in of_tiles[tile]))


def stored_element(block: Block, layout: PanelFormat, at: Val, depth: int, row: Val, place: Val) -> Val:
    """One element of panels in the memory of the GPU, as f32."""
    w, line = block.w, row % PANEL_ROWS
    record, inside = place // RECORD, place % RECORD
    panel = at + w.wide(row // PANEL_ROWS) * layout.panel_bytes(depth)
    run = panel + w.wide(record // layout.records * layout.run_bytes)
    here = run + w.wide(record % layout.records * layout.record_bytes + layout.header_bytes)

    def field(start: Val, offset: Val, width: int) -> Val:
        """So many bytes, as the lowest of a word."""
        (word,) = block.load(start + w.wide(offset & -4), space="global")
        word = word >> ((offset & 3) << 3)
        return word if width == 4 else word & (256**width - 1)

    code, start, shift = w.value(0), 0, 0
    for width in layout.planes:
        per_byte = layout.per_byte
        four = inside // (4 * per_byte) * per_byte + inside % per_byte
        byte = inside // per_byte % 4
        (word,) = block.load(here + w.wide((four // (8 // width) * PANEL_ROWS + line) * 4 + start), space="global")
        bit = byte * 8 + four % (8 // width) * width
        code = code | (((word >> bit) & (2**width - 1)) << shift)
        start, shift = start + width * 4 * PANEL_ROWS, shift + width
    if layout.table:
        value = w.value(0.0, "float")
        for number, entry in enumerate(layout.table):
            value = w.select(code.equals(number), entry, value, "float")
    elif layout.planes == (8,):
        value = w.emit(f"sitofp i32 {((code ^ 128) - 128).name} to float", "float")
    else:
        value = w.emit(f"sitofp i32 {(code - layout.bias).name} to float", "float")
    scales = []
    for number in range(1 + layout.has_minimums):
        offset = (inside // layout.group * PANEL_ROWS + line) * layout.step_bytes
        raw = field(here, offset + (layout.code_bytes + number * layout.scale_bytes), layout.step_bytes)
        if layout.step_bytes == 4:
            scale = as_float(w, raw)
        elif layout.step_bytes == 2:
            scale = halves(w, raw)[0]
        else:
            signed = (raw ^ 128) - 128 if layout.signed_steps and number == 0 else raw
            head = halves(w, field(run, line * 2 + 2 * PANEL_ROWS * number, 2))[0]
            scale = w.emit(f"sitofp i32 {signed.name} to float", "float") * head
        scales.append(scale)
    value = value * scales[0]
    if not layout.has_minimums:
        return value
    # K-quants subtract their minimums.
    return value - scales[1] if layout.has_header else value + scales[1]
