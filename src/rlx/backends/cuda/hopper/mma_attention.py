"""The kernel of forward attention by `mma`, on chips from sm_80 on: f16 or bf16 in and out, sums in f32.

A block has a tile of queries of one head, of which each warp has 16 or 32, and walks from the last tile of keys to the
first. Keys and values have one place each: values come while scores are computed, and the next keys during the softmax
and the product with the values, whose first operand are the scores, rounded, as they lie in registers. Masks, biases
and sinks are read straight from memory, which Hopper's own kernel cannot, so it is for those there, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.attention_shape import AttentionShape
from rlx.backends.cuda.hopper.instructions import mma, sync_block, sync_warp
from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.score_rows import ScoreRows
from rlx.backends.cuda.hopper.seen_keys import SeenKeys
from rlx.backends.cuda.hopper.warp_tiles import WarpTile, slab_count
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

# Operands as the kernel sees them: an address, and bytes from batch to batch, head to head, and position to position.
OPERANDS = ("q", "k", "v", "o")
# What an element of a mask may be: how it is loaded, and its bytes.
MASK_LOADS = {"bool": ("u8", 1), "f16": ("u16", 2), "bf16": ("u16", 2), "f32": ("b32", 4)}


class Mask(NamedTuple):
    """An operand that hides keys, or is added to scores; `step` is from key to key in elements, None: not known."""

    is_bias: bool
    type: str
    step: int | None


class MmaAttentionShape(NamedTuple):
    """Heads of the attention are as wide as they are, multiples of 8. A warp has `tall` times 16 queries."""

    attention: AttentionShape
    warps: int
    tall: int
    keys: int
    mask: Mask | None = None
    has_sinks: bool = False
    begins_early: bool = False

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.tall * self.warps

    @property
    def q_bytes(self) -> int:
        """Results go through the place of the queries."""
        return self.rows * 128 * slab_count(max(self.attention.depth, self.attention.width))

    @property
    def k_bytes(self) -> int:
        return self.keys * 128 * slab_count(self.attention.depth)

    @property
    def v_bytes(self) -> int:
        return self.keys * 128 * slab_count(self.attention.width)

    @property
    def shared_bytes(self) -> int:
        return 128 + self.q_bytes + self.k_bytes + self.v_bytes


def mma_attention_text(name: str, shape: MmaAttentionShape, triple: str) -> str:
    """The LLVM module. Parameters: for each of `OPERANDS` four i64; tiles of queries, queries, keys (i32); those of
    `SeenKeys`; of a mask its address, and bytes from batch to batch, head to head, query to query and key to key (i64);
    of sinks the address, and bytes from head to head (i64); the address of logarithms (i64). Blocks are tiles of heads
    of batches."""
    return _MmaAttention(name, shape).text(triple)


class _MmaAttention(Lanes):
    def __init__(self, name: str, shape: MmaAttentionShape) -> None:
        w = Writer(name, shape.threads, blocks=256 // shape.threads)
        super().__init__(w, shape.attention)
        self.shape = shape
        attention = shape.attention
        names = ("at", "batch", "head", "step")
        self.operands = {x: [w.param(f"{x}_{n}", "i64") for n in names] for x in OPERANDS}
        self.tiles, self.queries, self.key_limit = (w.param(n, "i32") for n in ("tiles", "queries", "keys"))
        self.seen = SeenKeys(w, attention, self.queries, self.key_limit)
        self.mask_at = [w.param(f"mask_{n}", "i64") for n in (*names, "key")] if shape.mask is not None else []
        self.sinks_at = [w.param(f"sinks_{n}", "i64") for n in ("at", "head")] if shape.has_sinks else []
        self.logs = w.param("logs", "i64") if attention.has_logs else None
        base = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        memory = (base + 127) & -128
        self.q_tile = WarpTile(w, memory, shape.rows)
        self.k_tile = WarpTile(w, memory + shape.q_bytes, shape.keys)
        self.v_tile = WarpTile(w, memory + (shape.q_bytes + shape.k_bytes), shape.keys)
        self.find_thread()
        item = w.register("ctaid.x")
        head = item // self.tiles
        # The last queries of causal attention see the most keys: they begin first.
        number = self.tiles - 1 - item % self.tiles
        self.batch, self.head = head // attention.heads, head % attention.heads
        self.first_row = number * shape.rows

    def find_thread(self) -> None:
        """Which thread this is. It is found out anew in each step: places that follow from it would stay in registers
        over all steps, beside the sums."""
        (self.thread,) = self.w.asm("mov.u32 $0, %tid.x;", results=["i32"])
        self.lane = self.thread & 31
        self.warp_row = (self.thread >> 5) * (16 * self.shape.tall)

    def start(self, operand: str) -> Val:
        """Where the first row of this block's head is."""
        at, batch, of_head, _ = self.operands[operand]
        head = self.head // self.attention.group if operand in "kv" else self.head
        return at + self.w.wide(self.batch) * batch + self.w.wide(head) * of_head

    def row_of(self, tile: int) -> Val:
        """The first of the two queries of this thread in a tile of sixteen, which are eight apart."""
        return self.first_row + self.warp_row + (self.lane >> 2) + 16 * tile

    def text(self, triple: str) -> str:
        w, shape, attention = self.w, self.shape, self.attention
        if shape.begins_early:
            w.let_next_begin()
            w.wait_for_others()
        is_finished = attention.softcap is not None or shape.mask is not None
        self.rows = [ScoreRows(self, shape.keys, is_finished) for _ in range(shape.tall)]
        self.sums = [
            [Var(w, 0.0, "float") for _ in range(4)] for _ in range(shape.tall * -(-attention.width // 16) * 2)
        ]
        noted = self.seen.tiles(self.batch, self.first_row, shape.rows, shape.keys, self.lane)
        self.count = noted.keys
        limits = [
            self.seen.existing(self.seen.limits(self.batch, self.row_of(tile)), self.count)
            for tile in range(shape.tall)
        ]
        self.bring(self.q_tile, "q", self.first_row, self.queries, attention.depth)
        self.bring(self.k_tile, "k", noted.last * shape.keys, self.count, attention.depth)
        self.masks = [self.mask_rows(tile) for tile in range(shape.tall)]
        first, last = noted.last + 1 - noted.tiles, noted.last
        # From the last one to the first: those that some rows do not see in full, those that all do, and again others.
        start = w.least(w.most(last - noted.clean_end + 1, 0), noted.tiles)
        stop = noted.tiles
        if shape.mask is not None:
            start = stop
        with w.loop(0, start) as j:
            self.step(last - j, first, limits)
        if shape.mask is None:
            if attention.window is not None:
                stop = w.most(w.least(noted.tiles, last + 1 - noted.clean_first), start)
            with w.loop(start, stop) as j:
                self.step(last - j, first, None)
            if attention.window is not None:
                with w.loop(stop, noted.tiles) as j:
                    self.step(last - j, first, limits)
        self.find_thread()
        for tile in range(shape.tall):
            self.finish(tile)
        self.store()
        return w.module(triple)

    def bring(self, tile: WarpTile, operand: str, first: Val, count: Val, width: int) -> None:
        at, pitch = self.start(operand), self.operands[operand][3]
        tile.bring(self.thread, self.shape.threads, at, pitch, first, count, width)
        self.w.asm("cp.async.commit_group;")

    def step(self, number: Val, first: Val, limits: Sequence[Sequence[tuple[Val, Val | None]]] | None) -> None:
        w, shape, attention = self.w, self.shape, self.attention
        self.find_thread()
        w.asm("cp.async.wait_group 0;")
        # Keys are there for everybody, and everybody has multiplied the values before.
        sync_block(w)
        self.bring(self.v_tile, "v", number * shape.keys, self.count, attention.width)
        scores = self.multiply_keys()
        w.asm("cp.async.wait_group 0;")
        # Values are there, and everybody has multiplied the keys.
        sync_block(w)
        with w.when(number > first):
            self.bring(self.k_tile, "k", (number - 1) * shape.keys, self.count, attention.depth)
        weights = []
        for tile, rows in enumerate(self.rows):
            rows.keep([v.get() for four in scores[tile] for v in four])
            if shape.mask is not None:
                self.add_mask(tile, number)
            if limits is not None:
                rows.hide(number * shape.keys + (self.lane & 3) * 2, limits[tile])
            powers, factors = rows.softmax(is_clean=limits is None)
            weights.append([self.pair(powers[i], powers[i + 1]) for i in range(0, len(powers), 2)])
            for four in self.of_tile(tile):
                for i, variable in enumerate(four):
                    variable.set(variable.get() * factors[i // 2])
        self.multiply_values(weights)

    def of_tile(self, tile: int) -> list[list[Var]]:
        """The sums of sixteen queries."""
        count = len(self.sums) // self.shape.tall
        return self.sums[tile * count : (tile + 1) * count]

    # Products.

    def multiply_keys(self) -> list[list[list[Var]]]:
        w, shape, lane = self.w, self.shape, self.lane
        scores = [[[Var(w, 0.0, "float") for _ in range(4)] for _ in range(shape.keys // 8)] for _ in self.rows]
        for column in range(0, self.attention.depth, 16):
            queries = [self.q_tile.of_a(lane, self.warp_row + 16 * t, column) for t in range(shape.tall)]
            for key in range(0, shape.keys, 16):
                four = self.k_tile.along(lane, key, column)
                for eight, pair in enumerate((four[:2], four[2:])):
                    for total, query in zip(scores, queries):
                        mma(w, self.attention.element, total[key // 8 + eight], query, pair)
        return scores

    def multiply_values(self, weights: Sequence[Sequence[Val]]) -> None:
        for key in range(0, self.shape.keys, 16):
            for column in range(0, self.attention.width, 16):
                four = self.v_tile.across(self.lane, key, column)
                for eight, pair in enumerate((four[:2], four[2:])):
                    for tile, words in enumerate(weights):
                        own = words[key // 4 : key // 4 + 4]
                        mma(self.w, self.attention.element, self.of_tile(tile)[column // 8 + eight], own, pair)

    # Masks.

    def mask_rows(self, tile: int) -> list[Val]:
        """Where the masks of both rows of this thread begin."""
        if not self.mask_at:
            return []
        w = self.w
        at, batch, head, query, _ = self.mask_at
        start = at + w.wide(self.batch) * batch + w.wide(self.head) * head
        first = self.row_of(tile)
        return [start + w.wide(w.least(first + 8 * r, self.queries - 1)) * query for r in range(2)]

    def add_mask(self, tile: int, number: Val) -> None:
        w, mask, rows = self.w, self.shape.mask, self.rows[tile]
        assert mask is not None
        key = number * self.shape.keys + (self.lane & 3) * 2
        left = self.count - key
        step = self.mask_at[4]
        lines = [line + w.wide(key) * step for line in self.masks[tile]]
        for i, variable in enumerate(rows.scores):
            column, r = i // 4 * 8 + i % 2, i % 4 // 2
            found = self.mask_element(mask, lines[r], step, column, left)
            score = variable.get()
            if self.attention.softcap is None:
                score = score * (self.attention.scale * math.log2(math.e))
            if mask.is_bias:
                variable.set(self.number(mask, found) * math.log2(math.e) + score)
            else:
                variable.set(w.select(self.shows(mask, found), score, -math.inf, "float"))

    def mask_element(self, mask: Mask, line: Val, step: Val, column: int, left: Val) -> Val:
        """The bits of one, 0 behind the last key."""
        load, size = MASK_LOADS[mask.type]
        offset = 0
        if mask.step is None:
            line = line + step * column
        else:
            offset = mask.step * size * column
        text = f"""{{ .reg .pred p; setp.gt.s32 p, <n>, {column}; mov.b32 $0, 0;
            @p ld.global.nc.{load} $0, [<a>+{offset}]; }}"""
        return self.w.asm(text, results=["i32"], early=True, n=left, a=line)[0]

    def number(self, mask: Mask, bits: Val) -> Val:
        w = self.w
        if mask.type == "f16":
            both = w.emit(f"bitcast i32 {bits.name} to <2 x half>", "<2 x half>")
            one = w.emit(f"extractelement <2 x half> {both.name}, i32 0", "half")
            return w.emit(f"fpext half {one.name} to float", "float")
        bits = bits << 16 if mask.type == "bf16" else bits
        return w.emit(f"bitcast i32 {bits.name} to float", "float")

    def shows(self, mask: Mask, bits: Val) -> Val:
        if mask.type == "bool":
            return bits > 0
        w = self.w
        return w.emit(f"fcmp oge float {self.number(mask, bits).name}, {w.value(0.5, 'float').name}", "i1")

    # Results.

    def finish(self, tile: int) -> None:
        """What sums of values are over the sums of their weights; those of other rows are zero."""
        w, rows = self.w, self.rows[tile]
        totals = rows.totals()
        if self.logs is not None:
            head = w.wide(self.batch * self.attention.heads + self.head) * w.wide(self.queries)
            start = self.logs + head * 4
            rows.store_logs(lambda row: start + w.wide(row) * 4, self.row_of(tile), self.queries, totals)
        shares = (
            [self.with_sink(rows, r, total) for r, total in enumerate(totals)]
            if self.sinks_at
            else [self.share(total) for total in totals]
        )
        for four in self.of_tile(tile):
            for i, variable in enumerate(four):
                variable.set(variable.get() * shares[i // 2])

    def with_sink(self, rows: ScoreRows, r: int, total: Val) -> Val:
        """What the sums of a row are multiplied by, where a score without a value is among them."""
        w = self.w
        at, step = self.sinks_at
        (sink,) = w.asm("ld.global.nc.f32 $0, [<a>];", results=["float"], a=at + w.wide(self.head) * step)
        sink, highest = sink * math.log2(math.e), rows.highest[r].get() * rows.scale
        base = self.larger(highest, sink)
        base = w.select(self.is_seen(base), base, 0.0, "float")
        factor = self.exp2(highest - base)
        return factor * self.share(total * factor + self.exp2(sink - base))

    def store(self) -> None:
        """A warp writes its rows over its queries, and reads them as whole vectors."""
        w, shape, lane = self.w, self.shape, self.lane
        width = self.attention.width
        sync_warp(w)
        place = (lane & 3) * 4
        for tile in range(shape.tall):
            for j, four in enumerate(self.of_tile(tile)):
                for r in range(2):
                    row = self.warp_row + (lane >> 2) + (16 * tile + 8 * r)
                    at = self.q_tile.piece(row, w.value(j % 8)) + place
                    word = self.pair(four[2 * r].get(), four[2 * r + 1].get())
                    w.asm("st.shared.b32 [<a>], <x>;", a=at + j // 8 * shape.rows * 128, x=word)
        sync_warp(w)
        start, step = self.start("o"), self.operands["o"][3]
        piece = lane & 7
        for line in range(0, 16 * shape.tall, 4):
            row = self.warp_row + (lane >> 3) + line
            query = self.first_row + row
            for slab in range(slab_count(width)):
                with w.when((query < self.queries) & (piece * 8 + slab * 64 < width)):
                    at = self.q_tile.piece(row, piece) + slab * shape.rows * 128
                    words = w.asm("ld.shared.v4.b32 {$0, $1, $2, $3}, [<a>];", results=["i32"] * 4, a=at)
                    to = start + w.wide(query) * step + w.wide(piece * 16 + slab * 128)
                    named = {f"x{i}": word for i, word in enumerate(words)}
                    w.asm("st.global.v4.b32 [<a>], {<x0>, <x1>, <x2>, <x3>};", a=to, named=named)
