"""The kernel of attention of few rows to many keys: keys and values are read once, at the memory's speed.

f16 or bf16, or rows of f32 to keys of bf16: each such row is cut into numbers of bf16 that add up to it, and so are the
weights of values. The queries of all heads that share one of k are rows of one tile. Blocks share the keys of such a
tile, and so do the warps of a block, 16 keys at a time. Keys are the second operand of `mma` and values, turned, the
first one, both straight from memory: sums may be taken in any order, so what lies side by side in a lane is what the
instruction calls its elements. Each warp has a softmax of its own; they are joined in shared memory, and those of the
blocks in memory by the block that is the last to be done, always in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.attention_shape import AttentionShape
from rlx.backends.cuda.hopper.instructions import mma, sync_block
from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.seen_keys import SeenKeys
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

WARPS = 8
THREADS = 32 * WARPS
# Keys that a warp looks at together.
KEYS = 16
# Blocks whose parts are read at the same time.
JOINED = 8


class DecodeShape(NamedTuple):
    """`tiles` times 8 rows of one head of k: its heads of q, query by query. With `reads_ahead` warps ask for the next
    keys and values before they multiply those that they have, which takes twice the registers for them."""

    attention: AttentionShape
    tiles: int
    begins_early: bool = False
    reads_ahead: bool = False

    @property
    def rows(self) -> int:
        return 8 * self.tiles

    @property
    def floats(self) -> int:
        """What a warp or a block finds: for each row the highest score, the sum of powers, and sums of values."""
        return self.rows * (self.attention.width + 2)

    @property
    def shared_bytes(self) -> int:
        return WARPS * self.floats * 4 + 16


# Operands as the kernel sees them: an address, and bytes from batch to batch, head to head, and position to position.
OPERANDS = ("q", "k", "v", "o")


def decode_text(name: str, shape: DecodeShape, triple: str) -> str:
    """The LLVM module. Parameters: for each of `OPERANDS` four i64; memory for what blocks find, [tile, split, floats],
    and a counter for each tile, which is 0 (i64); queries, keys, tiles of a head, splits (i32); then those of
    `SeenKeys`. Blocks are tiles of heads of batches times splits."""
    return _Decode(name, shape).text(triple)


class _Decode(Lanes):
    def __init__(self, name: str, shape: DecodeShape) -> None:
        w = Writer(name, THREADS)
        super().__init__(w, shape.attention)
        self.shape = shape
        names = ("at", "batch", "head", "step")
        self.operands = {x: [w.param(f"{x}_{n}", "i64") for n in names] for x in OPERANDS}
        self.found, self.counters = w.param("found", "i64"), w.param("counters", "i64")
        self.queries, self.key_limit, self.row_tiles, self.splits = (
            w.param(n, "i32") for n in ("queries", "keys", "row_tiles", "splits")
        )
        self.seen = SeenKeys(w, self.attention, self.queries, self.key_limit)
        self.memory = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.thread = w.register("tid.x")
        self.lane, self.warp = self.thread & 31, self.thread >> 5
        self.row, self.place = self.lane >> 2, self.lane & 3
        block = w.register("ctaid.x")
        self.split, self.item = block % self.splits, block // self.splits
        head = self.item // self.row_tiles
        kv_heads = self.attention.heads // self.attention.group
        self.first_row = self.item % self.row_tiles * shape.rows
        self.batch, self.head = head // kv_heads, head % kv_heads

    def start(self, operand: str, head: Val) -> Val:
        at, batch, of_head, _ = self.operands[operand]
        return at + self.w.wide(self.batch) * batch + self.w.wide(head) * of_head

    def query_and_head(self, row: Val) -> tuple[Val, Val]:
        """Of a row; behind the last one is the last one."""
        group = self.attention.group
        row = self.w.least(row, self.queries * group - 1)
        return row // group, self.head * group + row % group

    def text(self, triple: str) -> str:
        w = self.w
        if self.shape.begins_early:
            w.let_next_begin()
            self.ask_for_keys()
            w.wait_for_others()
        self.attend()
        sync_block(w)
        self.join_warps()
        return w.module(triple)

    def ask_for_keys(self) -> None:
        """Bring the first keys and values of a warp to the L2 cache while kernels in front still run. A length that
        one of those writes may be read here as it was before: then other keys are brought than are needed."""
        w, attention = self.w, self.attention
        if attention.window is not None:
            return
        count = self.seen.key_count(self.seen.given_length(self.batch))
        key = (self.split * WARPS + self.warp) * KEYS + self.lane % KEYS
        with w.when(key < count):
            for operand, half, size in (
                ("k", self.lane < KEYS, attention.depth),
                ("v", self.lane > KEYS - 1, attention.width),
            ):
                with w.when(half):
                    line = self.start(operand, self.head) + w.wide(key) * self.operands[operand][3]
                    w.asm("cp.async.bulk.prefetch.L2.global [<a>], <n>;", a=line, n=2 * size)

    # One warp.

    def attend(self) -> None:
        w, shape, attention = self.w, self.shape, self.attention
        tiles = range(shape.tiles)
        length = self.seen.given_length(self.batch)
        count = self.seen.key_count(length)
        queries, limits = [], []
        for tile in tiles:
            query, head = self.query_and_head(self.first_row + self.row + 8 * tile)
            line = self.start("q", head) + w.wide(query) * self.operands["q"][3]
            queries.append(self.query_parts(line))
            limits.append(self.limits(query, length, count))
        self.queries_at = queries
        self.limits_of_rows = limits
        self.highest = [Var(w, -math.inf, "float") for _ in tiles]
        self.total = [Var(w, 0.0, "float") for _ in tiles]
        self.sums = [[[Var(w, 0.0, "float") for _ in range(4)] for _ in range(attention.width // 16)] for _ in tiles]
        first, end = self.span(limits)
        step = self.splits * WARPS
        first, end = first // KEYS + self.split * WARPS + self.warp, (end + (KEYS - 1)) // KEYS
        if shape.reads_ahead:
            # Where there are none, the first one in memory is read, and nobody looks at it.
            last = w.most(count - 1, 0)
            variables = [Var(w, word) for word in self.read_chunk(first, last)]
            with w.loop(first, end, step) as chunk:
                words = [variable.get() for variable in variables]
                for variable, word in zip(variables, self.read_chunk(chunk + step, last), strict=True):
                    variable.set(word)
                self.look_at(chunk * KEYS, words)
        else:
            with w.loop(first, end, step) as chunk:
                self.look_at(chunk * KEYS, self.read_chunk(chunk, count - 1))
        self.put()

    def query_parts(self, line: Val) -> list[list[list[Val]]]:
        """A lane's quarter of every 32 elements of a query as words of two; of f32 the parts that add up to it."""
        w, attention = self.w, self.attention
        depths = range(0, attention.depth, 32)
        if not attention.is_split:
            return [[self.read(line + w.wide(self.place) * 16 + 2 * d) for d in depths]]
        parts: list[list[list[Val]]] = [[] for _ in range(attention.query_parts)]
        for d in depths:
            at = line + w.wide(self.place) * 32 + 4 * d
            words = [*self.read(at), *self.read(at + 16)]
            elements = [w.emit(f"bitcast i32 {word.name} to float", "float") for word in words]
            for part, found in zip(parts, self.parts(elements, attention.query_parts)):
                part.append(found)
        return parts

    def limits(self, query: Val, length: Val, count: Val) -> tuple[Val, Val]:
        """The first key that a row sees, and the end of them."""
        w, attention = self.w, self.attention
        if not attention.is_causal:
            return w.value(0), count
        position = self.seen.position(self.batch, query, length)
        first = w.value(0) if attention.window is None else w.most(position - attention.window, 0)
        return first, w.least(position + 1, count)

    def span(self, limits: Sequence[tuple[Val, Val]]) -> tuple[Val, Val]:
        """The keys that any row of the tile sees."""
        w = self.w
        first, end = limits[0]
        for other_first, other_end in limits[1:]:
            first, end = w.least(first, other_first), w.most(end, other_end)
        (first,) = w.asm("redux.sync.min.s32 $0, <x>, 0xffffffff;", results=["i32"], x=first)
        (end,) = w.asm("redux.sync.max.s32 $0, <x>, 0xffffffff;", results=["i32"], x=end)
        return first, end

    def read(self, address: Val) -> list[Val]:
        return self.w.asm("ld.global.nc.v4.b32 {$0, $1, $2, $3}, [<a>];", results=["i32"] * 4, a=address)

    def read_once(self, address: Val) -> list[Val]:
        text = "ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {$0, $1, $2, $3}, [<a>];"
        return self.w.asm(text, results=["i32"] * 4, a=address)

    def read_chunk(self, chunk: Val, last: Val) -> list[Val]:
        """The words of this lane of 16 keys and their values, key by key. Behind the last key is the last."""
        w, attention, start = self.w, self.attention, chunk * KEYS
        keys, values = (self.start(x, self.head) for x in "kv")
        key_step, value_step = self.operands["k"][3], self.operands["v"][3]
        found: list[Val] = []
        # Eight keys at a time: a row of lanes has one, of which each lane reads a quarter of 32 elements.
        for j in range(2):
            key = w.least(start + self.row + 8 * j, last)
            line = keys + w.wide(key) * key_step + w.wide(self.place) * 16
            for d in range(0, attention.depth, 32):
                found += self.read_once(line + 2 * d)
        # A lane has four keys of the values, and of them eight elements of every 64.
        for other in (0, 1, 8, 9):
            key = w.least(start + self.place * 2 + other, last)
            line = values + w.wide(key) * value_step + w.wide(self.row) * 16
            for d in range(0, attention.width, 64):
                found += self.read_once(line + 2 * d)
        return found

    def look_at(self, start: Val, words: Sequence[Val]) -> None:
        """16 keys: scores, what they change of the highest ones, and their values."""
        attention = self.attention
        vectors = [words[i : i + 4] for i in range(0, len(words), 4)]
        of_key, of_value = attention.depth // 32, attention.width // 64
        of_keys, of_values = vectors[: 2 * of_key], vectors[2 * of_key :]
        read_keys = [of_keys[j * of_key : (j + 1) * of_key] for j in range(2)]
        read_values = [of_values[j * of_value : (j + 1) * of_value] for j in range(4)]
        scores = [self.scores(read) for read in read_keys]
        weights = [self.weights(tile, scores, start) for tile in range(self.shape.tiles)]
        for number in range(attention.width // 16):
            turned = self.turned(read_values, number)
            for tile, parts in enumerate(weights):
                for weight in parts:
                    mma(self.w, self.attention.element, self.sums[tile][number], turned, weight)

    def scores(self, keys: Sequence[Sequence[Val]]) -> list[Val]:
        """Of eight keys: for the row of this lane and the one eight below two neighbouring keys each."""
        w, zero = self.w, self.w.value(0)
        total = [Var(w, 0.0, "float") for _ in range(4)]
        nothing = [[zero] * 4] * len(keys)
        # What sixteen rows of the instruction are: eight and eight more, or eight and another part of them.
        if self.shape.tiles > 1:
            pairs = list(zip(*self.queries_at, strict=True))
        else:
            (parts,) = self.queries_at
            pairs = [(a, b) for a, b in itertools.zip_longest(parts[::2], parts[1::2], fillvalue=nothing)]
        for (first, second), (d, key) in itertools.product(pairs, enumerate(keys)):
            above, below = first[d], second[d]
            for i in (0, 2):
                rows = (above[i], below[i], above[i + 1], below[i + 1])
                mma(self.w, self.attention.element, total, rows, (key[i], key[i + 1]))
        found = [t.get() for t in total]
        is_of_parts = self.attention.is_split and self.shape.tiles == 1
        return [found[0] + found[2], found[1] + found[3]] if is_of_parts else found

    def weights(self, tile: int, scores: Sequence[Sequence[Val]], start: Val) -> list[list[Val]]:
        """The powers of one row and four keys as second operands of the next products."""
        w = self.w
        first, end = self.limits_of_rows[tile]
        found: list[Val] = []
        for j in range(2):
            for e in range(2):
                key = start + self.place * 2 + (8 * j + e)
                seen = key < end
                if self.attention.window is not None:
                    seen = seen & (first < key + 1)
                found.append(w.select(seen, self.finished(scores[j][2 * tile + e]), -math.inf, "float"))
        highest = found[0]
        for score in found[1:]:
            highest = self.larger(highest, score)
        before = self.highest[tile].get()
        highest = self.larger(before, highest)
        highest = self.larger(highest, self.from_lane(highest, 1))
        highest = self.larger(highest, self.from_lane(highest, 2))
        is_higher = w.emit(f"fcmp ogt float {highest.name}, {before.name}", "i1")
        (changed,) = w.asm(
            "{ .reg .pred p, q; setp.ne.u32 p, <x>, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 $0, 1, 0, q; }",
            results=["i32"],
            x=w.select(is_higher, 1, 0),
        )
        # Sums change seldom: only when a warp has met a score above all before.
        with w.when(changed.equals(1)):
            factor = self.exp2(before - self.base(highest))
            self.total[tile].set(self.total[tile].get() * factor)
            # Sums are those of two neighbouring rows.
            both = [self.of_row(factor, self.place * 2 + e) for e in range(2)]
            for four in self.sums[tile]:
                for i, variable in enumerate(four):
                    variable.set(variable.get() * both[i % 2])
            self.highest[tile].set(highest)
        base = self.base(highest)
        powers = [self.exp2(score - base) for score in found]
        total = (powers[0] + powers[1]) + (powers[2] + powers[3])
        self.total[tile].set(self.total[tile].get() + total)
        return self.parts(powers, self.attention.weight_parts)

    def turned(self, values: Sequence[Sequence[Sequence[Val]]], number: int) -> list[Val]:
        """Two elements of this lane's four keys, keys side by side, as the first operand."""
        found = []
        for keys in ((0, 1), (2, 3)):
            for element in (2 * number, 2 * number + 1):
                block, inside = element // 8, element % 8
                words = [values[key][block][inside // 2] for key in keys]
                found.append(self.picked(words[0], words[1], inside % 2))
        # Elements first, then keys, as the instruction counts.
        return found

    def picked(self, a: Val, b: Val, which: int) -> Val:
        """The lower or the higher halves of two words as one word."""
        w = self.w
        selector = w.value(0x7632 if which else 0x5410)
        return w.call("llvm.nvvm.prmt", "i32", a, b, selector)

    def finished(self, score: Val) -> Val:
        """A product of query and key as the power of 2 that it stands for."""
        attention = self.attention
        if attention.softcap is None:
            return score * (attention.scale * math.log2(math.e))
        return self.capped(score, attention.softcap)

    def base(self, highest: Val) -> Val:
        """What is subtracted from scores; rows that have seen nothing have no highest one."""
        return self.w.select(self.is_seen(highest), highest, 0.0, "float")

    def of_row(self, x: Val, row: Val) -> Val:
        w = self.w
        return w.call("llvm.nvvm.shfl.sync.idx.f32", "float", w.value(-1), x, row << 2, w.value(31))

    # What warps and blocks find: highest scores of all rows, sums of powers, then the sums of values row by row.

    def put(self) -> None:
        w, rows, width = self.w, self.shape.rows, self.attention.width
        start = self.memory + self.warp * (self.shape.floats * 4)
        for tile in range(self.shape.tiles):
            total = self.total[tile].get()
            total = total + self.from_lane(total, 1)
            total = total + self.from_lane(total, 2)
            with w.when(self.place.equals(0)):
                at = start + (self.row << 2) + 32 * tile
                self.store_shared(at, self.highest[tile].get())
                self.store_shared(at + 4 * rows, total)
            for number, four in enumerate(self.sums[tile]):
                for i, variable in enumerate(four):
                    element = 2 * number + i // 2
                    row = self.place * 2 + (8 * tile + i % 2)
                    place = row * width + (self.row << 3) + (element // 8 * 64 + element % 8 + 2 * rows)
                    self.store_shared(start + (place << 2), variable.get())

    def store_shared(self, at: Val, x: Val) -> None:
        self.w.asm("st.shared.b32 [<a>], <x>;", a=at, x=x)

    def load_shared(self, at: Val) -> Val:
        return self.w.asm("ld.shared.b32 $0, [<a>];", results=["float"], a=at)[0]

    def join_warps(self) -> None:
        """Two neighbouring elements of a row at a time: the sums of all warps, and of all blocks."""
        w, shape, width = self.w, self.shape, self.attention.width
        bytes_of_one = shape.floats * 4
        pairs = shape.rows * width // 2
        single = self.splits.equals(1)
        mine = self.found + w.wide(self.item * self.splits + self.split) * bytes_of_one
        with w.loop(self.thread, w.value(pairs), THREADS) as i:
            row, element = i // (width // 2), i % (width // 2) * 2
            place = (row * width + element + 2 * shape.rows) << 2
            starts = [self.memory + n * bytes_of_one for n in range(WARPS)]
            peaks = [self.load_shared(s + (row << 2)) for s in starts]
            totals = [self.load_shared(s + (row << 2) + 4 * shape.rows) for s in starts]
            sums = [[self.load_shared(s + place + 4 * e) for s in starts] for e in range(2)]
            highest = peaks[0]
            for peak in peaks[1:]:
                highest = self.larger(highest, peak)
            base = self.base(highest)
            factors = [self.exp2(peak - base) for peak in peaks]
            total, *both = (self.weighed(factors, values) for values in (totals, *sums))

            def store_result(
                row: Val = row, element: Val = element, total: Val = total, both: list[Val] = both
            ) -> None:
                self.store(row, element, total, both)

            def keep(place: Val = place, row: Val = row, element: Val = element) -> None:
                for e in range(2):
                    self.store_global(mine + w.wide(place + 4 * e), both[e])
                with w.when(element.equals(0)):
                    self.store_global(mine + w.wide(row << 2), highest)
                    self.store_global(mine + w.wide((row << 2) + 4 * shape.rows), total)

            w.either(single, store_result, keep)
        with w.when(self.splits > 1):
            self.join_blocks(pairs, bytes_of_one)

    def weighed(self, factors: Sequence[Val], values: Sequence[Val]) -> Val:
        total = factors[0] * values[0]
        for factor, value in zip(factors[1:], values[1:]):
            total = factor * value + total
        return total

    def store_global(self, at: Val, x: Val) -> None:
        self.w.asm("st.global.b32 [<a>], <x>;", a=at, x=x)

    def load_global(self, at: Val) -> Val:
        return self.w.asm("ld.relaxed.gpu.global.b32 $0, [<a>];", results=["float"], a=at)[0]

    def join_blocks(self, pairs: int, bytes_of_one: int) -> None:
        """The last block of a tile to be done has all that the others found."""
        w, shape, width = self.w, self.shape, self.attention.width
        flag = self.memory + WARPS * bytes_of_one
        counter = self.counters + w.wide(self.item << 2)
        w.asm("fence.acq_rel.gpu;")
        sync_block(w)
        with w.when(self.thread.equals(0)):
            (before,) = w.asm("atom.add.acq_rel.gpu.global.u32 $0, [<a>], 1;", results=["i32"], a=counter)
            w.asm("st.shared.b32 [<a>], <x>;", a=flag, x=before)
        sync_block(w)
        (before,) = w.asm("ld.shared.b32 $0, [<a>];", results=["i32"], a=flag)
        with w.when(before.equals(self.splits - 1)):
            w.asm("fence.acq_rel.gpu;")
            tile = self.found + w.wide(self.item * self.splits) * bytes_of_one
            with w.loop(self.thread, w.value(pairs), THREADS) as i:
                row, element = i // (width // 2), i % (width // 2) * 2
                place = (row * width + element + 2 * shape.rows) << 2
                highest = Var(w, -math.inf, "float")
                total, *both = (Var(w, 0.0, "float") for _ in range(3))
                offsets = [w.wide(row << 2) + 4 * shape.rows, w.wide(place), w.wide(place + 4)]
                with w.loop(0, self.splits, JOINED) as first:
                    # All reads of some blocks before the first is used: one wait instead of many.
                    starts = [tile + w.wide(w.least(first + n, self.splits - 1)) * bytes_of_one for n in range(JOINED)]
                    peaks = [self.load_global(start + w.wide(row << 2)) for start in starts]
                    values = [[self.load_global(start + offset) for start in starts] for offset in offsets]
                    there = [first + n < self.splits for n in range(JOINED)]
                    before, above = highest.get(), highest.get()
                    for peak in peaks:
                        above = self.larger(above, peak)
                    base = self.base(above)
                    factors = [w.select(t, self.exp2(p - base), 0.0, "float") for t, p in zip(there, peaks)]
                    for variable, parts in zip((total, *both), values):
                        variable.set(self.weighed([self.exp2(before - base), *factors], [variable.get(), *parts]))
                    highest.set(above)
                self.store(row, element, total.get(), [v.get() for v in both])
            with w.when(self.thread.equals(0)):
                # For the next launch.
                w.asm("st.global.b32 [<a>], <x>;", a=counter, x=0)

    def store(self, row: Val, element: Val, total: Val, both: Sequence[Val]) -> None:
        """Two elements of the result; rows that see nothing are zero."""
        w = self.w
        own = self.first_row + row
        with w.when(own < self.queries * self.attention.group):
            share = self.share(total)
            query, head = self.query_and_head(own)
            line = self.start("o", head) + w.wide(query) * self.operands["o"][3]
            first, second = (x * share for x in both)
            if self.attention.is_split:
                w.asm("st.global.v2.f32 [<a>], {<x>, <y>};", a=line + w.wide(element << 2), x=first, y=second)
            else:
                w.asm("st.global.b32 [<a>], <x>;", a=line + w.wide(element << 1), x=self.pair(first, second))
