"""The kernels of the gradients of attention by `mma`, on chips from sm_80 on: f16 or bf16 operands, sums in f32.

A block owns rows of one side, with what belongs to them of two operands, and goes through the tiles of the other side
that see them or are seen. Scores and their changes are computed again, with own rows as rows, and are first operands of
the sums from registers:

| own | other | scores | changes | sums |
| --- | --- | --- | --- | --- |
| q, dy | k, v | Q Kᵀ | dY Vᵀ | dQ += dS K |
| k, v | q, dy | K Qᵀ | V dYᵀ | dK += dSᵀ Q, dV += Pᵀ dY |

Nobody adds to what others have, so results are the same in every run; what that costs is that scores are computed
twice. Where heads are so wide that registers do not hold both sums of keys, dK and dV have a kernel each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.attention_shape import AttentionShape
from rlx.backends.cuda.hopper.instructions import mma, sync_block
from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.score_rows import ScoreRows
from rlx.backends.cuda.hopper.warp_tiles import WarpTile, slab_count
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

WARPS = 4
THREADS = 32 * WARPS
# Tiles of the other side that there is room for.
STAGES = 2
OPERANDS = ("q", "k", "v", "dy")
_INFINITE = 0x7F800000


class MmaGradientShape(NamedTuple):
    """`sums` are "q", "kv", "k" or "v": of which operands there are gradients. A warp owns `tall` times 16 rows, and
    sees `others` of the other side at a time. Heads are as wide as they are, multiples of 8."""

    attention: AttentionShape
    sums: str
    tall: int
    others: int

    @property
    def rows(self) -> int:
        return 16 * self.tall * WARPS

    @property
    def line_bytes(self) -> int:
        """Of a row of one operand."""
        return 128 * slab_count(self.attention.depth)

    @property
    def shared_bytes(self) -> int:
        return 128 + 2 * (self.rows + STAGES * self.others) * self.line_bytes


def mma_gradients_text(name: str, shape: MmaGradientShape, triple: str) -> str:
    """The LLVM module. Parameters (i64): for each of `OPERANDS`, and then each of the sums, an address and bytes from
    batch to batch, head to head and position to position; the same of logarithms and of the sums of dy*y, whose
    positions are those of queries; i32: tiles of own rows, queries, keys. Blocks are tiles of heads of batches."""
    return _MmaGradients(name, shape).text(triple)


class _MmaGradients(Lanes):
    def __init__(self, name: str, shape: MmaGradientShape) -> None:
        w = Writer(name, THREADS, blocks=2)
        super().__init__(w, shape.attention)
        self.shape = shape
        attention = shape.attention
        names = ("at", "batch", "head", "step")
        operands = (*OPERANDS, *(f"d{x}" for x in shape.sums), "logs", "means")
        self.operands = {x: [w.param(f"{x}_{n}", "i64") for n in names] for x in operands}
        self.tiles, self.queries, self.keys = (w.param(n, "i32") for n in ("tiles", "queries", "keys"))
        self.is_of_queries = shape.sums == "q"
        base = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        own_bytes, self.other_bytes = shape.rows * shape.line_bytes, shape.others * shape.line_bytes
        memory = (base + 127) & -128
        self.own = [WarpTile(w, memory + i * own_bytes, shape.rows) for i in range(2)]
        self.ring = memory + 2 * own_bytes
        item = w.register("ctaid.x")
        heads = attention.heads if self.is_of_queries else attention.heads // attention.group
        of_head = item // self.tiles
        self.batch, self.head = of_head // heads, of_head % heads
        # The rows that have most to do begin first: the last queries, the first keys.
        number = item % self.tiles
        self.first_row = (self.tiles - 1 - number if self.is_of_queries else number) * shape.rows
        self.offset = w.most(self.keys - self.queries, 0)
        self.find_thread()

    def find_thread(self) -> None:
        """Which thread this is, found out anew in each step: what follows from it need not stay in registers."""
        (self.thread,) = self.w.asm("mov.u32 $0, %tid.x;", results=["i32"])
        self.lane = self.thread & 31
        self.warp_row = (self.thread >> 5) * (16 * self.shape.tall)

    def start(self, operand: str, head: Val) -> Val:
        at, batch, of_head, _ = self.operands[operand]
        return at + self.w.wide(self.batch) * batch + self.w.wide(head) * of_head

    def row_of(self, tile: int) -> Val:
        """The first of the two rows of this thread in a tile of sixteen, which are eight apart."""
        return self.first_row + self.warp_row + (self.lane >> 2) + 16 * tile

    def text(self, triple: str) -> str:
        w, shape, attention = self.w, self.shape, self.attention
        own, own_count = (("q", "dy"), self.queries) if self.is_of_queries else (("k", "v"), self.keys)
        for tile, operand in zip(self.own, own):
            pitch = self.operands[operand][3]
            at = self.start(operand, self.head)
            tile.bring(self.thread, THREADS, at, pitch, self.first_row, own_count, attention.depth)
        pieces = -(-attention.depth // 16) * 2
        self.sums = {
            x: [[[Var(w, 0.0, "float") for _ in range(4)] for _ in range(pieces)] for _ in range(shape.tall)]
            for x in shape.sums
        }
        self.rows = [ScoreRows(self, shape.others, attention.softcap is not None) for _ in range(shape.tall)]
        self.statistics = self.of_own_rows() if self.is_of_queries else []
        first, end, clean_first, clean_end = self.seen()
        per_head = w.most(end - first, 0)
        count = per_head if self.is_of_queries else per_head * attention.group
        self.bring(w.value(0), count, per_head, first)
        w.asm("cp.async.commit_group;")
        with w.loop(0, count) as step:
            self.find_thread()
            w.asm("cp.async.wait_group 0;")
            # The stage is there for everybody, and everybody has read the one before it, which is filled next.
            sync_block(w)
            with w.when(step + 1 < count):
                self.bring(step + 1, count, per_head, first)
                w.asm("cp.async.commit_group;")
            number = first + step % per_head
            is_clean = (number < clean_end) & (number > clean_first - 1)
            self.step(step, step // per_head, number, is_clean)
        w.asm("cp.async.wait_group 0;")
        self.find_thread()
        for operand in shape.sums:
            self.store(operand)
        return w.module(triple)

    # Which tiles of the other side.

    def seen(self) -> tuple[Val, Val, Val, Val]:
        """The first tile and the end of those that there is something to do with, and of those of which all rows see
        all."""
        w, shape, attention, others = self.w, self.shape, self.attention, self.shape.others
        last_row = self.first_row + (shape.rows - 1)
        limit = self.keys if self.is_of_queries else self.queries
        zero, whole = w.value(0), limit // others
        first, end, clean_first, clean_end = zero, (limit + (others - 1)) // others, zero, whole
        if not attention.is_causal:
            return first, end, clean_first, clean_end
        if self.is_of_queries:
            lowest, highest = (self.offset + w.least(x, self.queries - 1) for x in (self.first_row, last_row))
            end = w.least(end, highest // others + 1)
            clean_end = w.least(clean_end, (lowest + 1) // others)
            if attention.window is not None:
                first = w.most(lowest - attention.window, 0) // others
                clean_first = (w.most(highest - attention.window, 0) + (others - 1)) // others
            return first, end, clean_first, clean_end
        # Queries see keys up to their own, and so many before it.
        first = w.most(self.first_row - self.offset, 0) // others
        clean_first = (w.most(last_row - self.offset, 0) + (others - 1)) // others
        if attention.window is not None:
            end = w.least(end, w.most(last_row + (attention.window + others) - self.offset, 0) // others)
            clean_end = w.least(clean_end, w.most(self.first_row + (attention.window + 1) - self.offset, 0) // others)
        return first, end, clean_first, clean_end

    def limits(self, tile: int) -> list[tuple[Val, Val | None]]:
        """For both rows of this thread the end of what they see of the other side, and the first of it."""
        attention = self.attention
        found: list[tuple[Val, Val | None]] = []
        for r in range(2):
            row = self.row_of(tile) + 8 * r
            if not attention.is_causal:
                found.append((self.keys if self.is_of_queries else self.queries, None))
            elif self.is_of_queries:
                position = row + self.offset
                first = None if attention.window is None else position - attention.window
                found.append((self.w.least(position + 1, self.keys), first))
            else:
                behind = None if attention.window is None else row + (attention.window + 1) - self.offset
                end = self.queries if behind is None else self.w.least(behind, self.queries)
                found.append((end, row - self.offset))
        return found

    # Memory.

    def stage(self, step: Val) -> list[WarpTile]:
        """Tiles of the other side."""
        at = self.ring + (step & 1) * (2 * self.other_bytes)
        return [WarpTile(self.w, at + i * self.other_bytes, self.shape.others) for i in range(2)]

    def bring(self, step: Val, count: Val, per_head: Val, first: Val) -> None:
        """Start the copies of what a step needs, if there is such a step."""
        w, shape, attention = self.w, self.shape, self.attention
        group = attention.group
        with w.when(step < count):
            if self.is_of_queries:
                operands, limit, head, number = ("k", "v"), self.keys, self.head // group, first + step
            else:
                head = self.head * group + step // per_head
                operands, limit, number = ("q", "dy"), self.queries, first + step % per_head
            for tile, operand in zip(self.stage(step), operands):
                at, pitch = self.start(operand, head), self.operands[operand][3]
                tile.bring(self.thread, THREADS, at, pitch, number * shape.others, limit, attention.depth)

    def of_own_rows(self) -> list[list[list[Val]]]:
        """Logarithms and means of own queries."""
        w = self.w
        found = []
        for tile in range(self.shape.tall):
            rows = [w.wide(w.least(self.row_of(tile) + 8 * r, self.queries - 1)) for r in range(2)]
            both = []
            for operand in ("logs", "means"):
                line, step = self.start(operand, self.head), self.operands[operand][3]
                text = "ld.global.nc.f32 $0, [<a>];"
                both.append([w.asm(text, results=["float"], a=line + row * step)[0] for row in rows])
            found.append(both)
        return found

    def of_other_rows(self, head: Val, number: Val) -> list[list[Val]]:
        """Those of the queries of a tile, two of every eight: what is not there weighs nothing."""
        w = self.w
        query = number * self.shape.others + (self.lane & 3) * 2
        left = self.queries - query
        found = []
        for operand, missing in (("logs", _INFINITE), ("means", 0)):
            line = self.start(operand, head) + w.wide(query) * self.operands[operand][3]
            values = []
            for column in (8 * j + e for j in range(self.shape.others // 8) for e in range(2)):
                text = f"""{{ .reg .pred p; setp.gt.s32 p, <n>, {column}; mov.b32 $0, {missing};
                    @p ld.global.nc.b32 $0, [<a>+{4 * column}]; }}"""
                values.append(w.asm(text, results=["float"], early=True, n=left, a=line)[0])
            found.append(values)
        return found

    # Arithmetic.

    def step(self, step: Val, member: Val, number: Val, is_clean: Val) -> None:
        w, shape, attention = self.w, self.shape, self.attention
        first, second = self.stage(step)
        columns: list[list[Val]] = []
        if not self.is_of_queries:
            columns = self.of_other_rows(self.head * attention.group + member, number)
        scores = self.product(self.own[0], first)
        changes = self.product(self.own[1], second) if shape.sums != "v" else []
        weights, slopes = [], []
        for tile, rows in enumerate(self.rows):
            rows.keep(scores[tile])
            with w.when(is_clean ^ 1):
                rows.hide(number * shape.others + (self.lane & 3) * 2, self.limits(tile))
            own_weights, own_slopes = [], []
            for i, variable in enumerate(rows.scores):
                log, mean = (
                    (values[i // 4 * 2 + i % 2] for values in columns)
                    if columns
                    else (values[i % 4 // 2] for values in self.statistics[tile])
                )
                score = variable.get()
                power = self.exp2(score * rows.scale - log)
                own_weights.append(power)
                if changes:
                    change = power * (changes[tile][i] - mean)
                    own_slopes.append(change if attention.softcap is None else change * self.slope(score))
            weights.append(self.packed(own_weights))
            slopes.append(self.packed(own_slopes))
        for operand, sums in self.sums.items():
            factors, other = (weights, second) if operand == "v" else (slopes, first)
            self.add(sums, factors, other)

    def slope(self, score: Val) -> Val:
        """Of a softcap, by the power of 2 that a score stands for: where the score is hidden, nothing."""
        w = self.w
        assert self.attention.softcap is not None
        ratio = score * (1 / (self.attention.softcap * math.log2(math.e)))
        found = ratio * ratio * -1.0 + 1.0
        return w.select(self.is_seen(score), found, 0.0, "float")

    def packed(self, values: Sequence[Val]) -> list[Val]:
        return [self.pair(values[i], values[i + 1]) for i in range(0, len(values), 2)]

    def product(self, own: WarpTile, other: WarpTile) -> list[list[Val]]:
        """Own rows times rows of the other side, sum by sum."""
        w, shape, lane = self.w, self.shape, self.lane
        found = [[[Var(w, 0.0, "float") for _ in range(4)] for _ in range(shape.others // 8)] for _ in self.rows]
        for column in range(0, self.attention.depth, 16):
            rows = [own.of_a(lane, self.warp_row + 16 * t, column) for t in range(shape.tall)]
            for row in range(0, shape.others, 16):
                four = other.along(lane, row, column)
                for eight, pair in enumerate((four[:2], four[2:])):
                    for total, a in zip(found, rows):
                        mma(w, self.attention.element, total[row // 8 + eight], a, pair)
        return [[v.get() for four in total for v in four] for total in found]

    def add(self, sums: Sequence[Sequence[Sequence[Var]]], factors: Sequence[Sequence[Val]], other: WarpTile) -> None:
        """Rows of the other side by their factors, added to sums."""
        for row in range(0, self.shape.others, 16):
            for column in range(0, self.attention.depth, 16):
                four = other.across(self.lane, row, column)
                for eight, pair in enumerate((four[:2], four[2:])):
                    for total, words in zip(sums, factors):
                        own = words[row // 4 : row // 4 + 4]
                        mma(self.w, self.attention.element, total[column // 8 + eight], own, pair)

    # Results.

    def store(self, operand: str) -> None:
        """Those of q in f32, of which other kernels may make something else; others in their own type."""
        w, attention = self.w, self.attention
        start, step = self.start(f"d{operand}", self.head), self.operands[f"d{operand}"][3]
        limit, scale = self.queries if operand == "q" else self.keys, 1.0 if operand == "v" else attention.scale
        size = 4 if operand == "q" else 2
        column = (self.lane & 3) * 2
        for tile, sums in enumerate(self.sums[operand]):
            for r in range(2):
                row = self.row_of(tile) + 8 * r
                line = start + w.wide(row) * step + w.wide(column) * size
                with w.when(row < limit):
                    # Whole pieces of eight, since heads are multiples of it.
                    for j in range(attention.depth // 8):
                        a, b = (sums[j][2 * r + e].get() * scale for e in range(2))
                        if operand == "q":
                            w.asm("st.global.v2.f32 [<a>], {<x>, <y>};", a=line + 8 * j * size, x=a, y=b)
                        else:
                            w.asm("st.global.b32 [<a>], <x>;", a=line + 8 * j * size, x=self.pair(a, b))
