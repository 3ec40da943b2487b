"""The kernel of the gradients of attention on Hopper's tensor cores: f16 or bf16 operands, sums in f32.

A block owns 128 keys of a head, two groups of four warps 64 each, and goes through the tiles of queries that see them.
Scores are computed again with keys as rows: Sᵀ = K·Qᵀ and dPᵀ = V·dyᵀ. Weights P and changes dS then are register
operands of dV += Pᵀ·dy and dK += dSᵀ·Q. For dQ = dS·K the groups exchange dS through shared memory; the product of a
tile is added to dQ in memory by the copy engine.

Sums of floats depend on their order, so blocks add in turns: those of later keys first, each after the one behind it,
which counters in memory tell. The first one stores instead, so nobody has to clear dQ, and the last one sets the
counter back. Blocks of later keys have lower numbers and so are never behind those that wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rlx.backends.cuda.hopper.gradient_shape import KEYS, STAGES, GradientShape
from rlx.backends.cuda.hopper.instructions import (
    Ring,
    add_box,
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    barriers_made,
    copy_box,
    counter_wait,
    descriptor,
    show_stores,
    store_box,
    sync_threads,
)
from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

THREADS = 384
FAR = 1 << 29


def gradients_text(name: str, shape: GradientShape, triple: str) -> str:
    """The LLVM module. Parameters: tensor maps of q, k, v, dy, dq, dk and dv, each as [batch, head, position, element];
    i64: the addresses of logs, of sums of dy*y and of counters; strides (batch, head, query) of logs and of the sums in
    elements; i32: tiles of queries and of keys, queries, keys, heads of k of all batches, how many take turns."""
    return _Gradients(name, shape).text(triple)


class _Queries(NamedTuple):
    """Tiles of queries: the first that sees a block of keys, the first and the end of those of which all queries see
    all keys, and the end."""

    first: Val
    clean_first: Val
    clean_end: Val
    end: Val


class _Rows(NamedTuple):
    """Tiles of queries or of dy, and the numbers that belong to their rows: where they lie and go, and what says so."""

    start: Val
    tensor: Val
    full: Callable[[Val], Val]
    empty: Callable[[Val], Val]
    numbers: Val
    steps: Sequence[Val]
    to: Val
    missing: float


class _Gradients(Lanes):
    def __init__(self, name: str, shape: GradientShape) -> None:
        w = Writer(name, THREADS)
        super().__init__(w, shape.attention)
        self.shape = shape
        self.is_tight = shape.rows == 128 and (shape.attention.group > 1 or shape.attention.softcap is not None)
        self.map_q, self.map_k, self.map_v, self.map_dy, self.map_dq, self.map_dk, self.map_dv = (
            w.tensor_map(f"map_{x}") for x in ("q", "k", "v", "dy", "dq", "dk", "dv")
        )
        self.logs, self.means, self.counters = (w.param(n, "i64") for n in ("logs", "means", "counters"))
        self.log_steps, self.mean_steps = (
            [w.param(f"{n}_{axis}", "i64") for axis in ("batch", "head", "query")] for n in ("log", "mean")
        )
        self.query_tiles, self.key_tiles, self.queries, self.keys, self.kv_heads, self.span = (
            w.param(n, "i32") for n in ("query_tiles", "key_tiles", "queries", "keys", "kv_heads", "span")
        )
        base = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.k_at = (base + 1023) & -1024
        self.v_at = self.k_at + shape.key_bytes
        self.q_at = self.v_at + shape.key_bytes
        self.dy_at = self.q_at + STAGES * shape.row_bytes
        self.ds_at = self.dy_at + STAGES * shape.row_bytes
        self.dq_at = self.ds_at + STAGES * shape.change_bytes
        self.logs_at = self.dq_at + shape.query_gradient_bytes
        self.means_at = self.logs_at + STAGES * shape.rows * 4
        barriers = self.means_at + STAGES * shape.rows * 4
        self.kv_full, self.dq_full, self.dq_empty = (barriers + 8 * i for i in range(3))
        self.q_full, self.q_empty, self.dy_full, self.dy_empty = (
            self.of_stages(barriers + (24 + 8 * STAGES * i)) for i in range(4)
        )
        self.thread = w.register("tid.x")
        self.inside, self.lane = self.thread & 127, self.thread & 31
        self.group = (self.thread >> 7) - 1
        self.find_place()

    def find_place(self) -> None:
        """Batch, head of k and tile of keys of this block: the last keys first. Computed again where it is needed: that
        costs less than registers that hold it through all steps."""
        w, attention = self.w, self.attention
        (item,) = w.asm("mov.u32 $0, %ctaid.x;", results=["i32"])
        per_span = self.span * self.key_tiles
        first = item // per_span * self.span
        together, rest = w.least(self.span, self.kv_heads - first), item % per_span
        number, heads = first + rest % together, attention.heads // attention.group
        self.batch, self.kv_head = number // heads, number % heads
        self.tile = self.key_tiles - 1 - rest // together
        self.first_key = self.tile * KEYS
        # Where the first query stands among the keys.
        (keys,) = w.asm("mov.u32 $0, <n>;", results=["i32"], n=self.keys)
        self.offset = w.most(keys - self.queries, 0)

    def lanes_again(self) -> tuple[Val, Val]:
        """The number of a thread in its group and in its warp. Where tiles are as wide as they get and loops as deep,
        it and what follows from it are computed again, too."""
        if not self.is_tight:
            return self.inside, self.lane
        (thread,) = self.w.asm("mov.u32 $0, %tid.x;", results=["i32"])
        return thread & 127, thread & 31

    def of_stages(self, first: Val) -> Callable[[Val], Val]:
        """The barriers of stages, which lie side by side."""
        return lambda stage: first + stage * 8

    def text(self, triple: str) -> str:
        w = self.w
        w.wait_for_others()
        with w.when(self.thread.equals(0)):
            barrier_init(w, self.kv_full, 1)
            barrier_init(w, self.dq_full, 256)
            barrier_init(w, self.dq_empty, 1)
            for stage in map(w.value, range(STAGES)):
                # A warp brings the numbers of queries, and one of its threads lets tiles be brought.
                for barrier, arrivals in ((self.q_full, 33), (self.q_empty, 2), (self.dy_full, 33), (self.dy_empty, 2)):
                    barrier_init(w, barrier(stage), arrivals)
            barriers_made(w)
        sync_threads(w, 0, THREADS)
        w.either(self.thread < 128, self.produce, self.consume)
        return w.module(triple)

    # Which queries.

    def seeing(self) -> _Queries:
        w, rows, attention = self.w, self.shape.rows, self.attention
        first, clean_first, end = w.value(0), w.value(0), self.query_tiles
        last_key = self.first_key + (KEYS - 1)
        if attention.is_causal:
            first = w.most(self.first_key - self.offset, 0) // rows
            clean_first = (w.most(last_key - self.offset, 0) + (rows - 1)) // rows
        clean_end = end
        if attention.window is not None:
            last = w.most(last_key + attention.window - self.offset, 0) // rows
            end = w.least(end, last + 1)
            clean_end = w.most(self.first_key + (attention.window + 1) - self.offset, 0) // rows
        is_whole = last_key < self.keys
        clean_first = w.least(w.most(w.select(is_whole, clean_first, end), first), end)
        return _Queries(first, clean_first, w.least(w.most(clean_end, clean_first), end), end)

    def seeing_again(self) -> _Queries:
        self.find_place()
        return self.seeing()

    @contextmanager
    def each_head(self) -> Iterator[Val]:
        """The heads of q that read the keys."""
        group = self.attention.group
        if group == 1:
            yield self.kv_head
            return
        with self.w.loop(0, self.w.value(group)) as member:
            yield self.kv_head * group + member

    @contextmanager
    def each_turn(self) -> Iterator[_Queries]:
        """As many turns as heads, without a number for them: how many steps there have been says which one it is."""
        w, group = self.w, self.attention.group
        if group == 1:
            yield self.seeing_again()
            return
        seen: list[_Queries] = []

        def goes_on() -> Val:
            seen.append(self.seeing_again())
            return self.count.get() < (seen[0].end - seen[0].first) * group

        with w.loop_while(goes_on):
            yield seen[0]

    # The warps that bring tiles, and add to dq.

    def produce(self) -> None:
        w = self.w
        w.asm("setmaxnreg.dec.sync.aligned.u32 40;")
        with w.when(self.thread.equals(0)):
            self.add_queries()
        # Queries that do not exist weigh nothing.
        of_queries = _Rows(
            self.q_at, self.map_q, self.q_full, self.q_empty, self.logs, self.log_steps, self.logs_at, math.inf
        )
        of_changes = _Rows(
            self.dy_at, self.map_dy, self.dy_full, self.dy_empty, self.means, self.mean_steps, self.means_at, 0.0
        )
        warp = self.thread >> 5
        with w.when(warp.equals(1)):
            with w.when(self.lane.equals(0)):
                self.bring_keys()
            self.bring(of_queries)
        with w.when(warp.equals(2)):
            self.bring(of_changes)

    def bring_keys(self) -> None:
        w, shape = self.w, self.shape
        barrier_expect(w, self.kv_full, 2 * shape.key_bytes)
        for start, tensor in ((self.k_at, self.map_k), (self.v_at, self.map_v)):
            for slab in range(shape.depth // 64):
                place = (w.value(slab * 64), self.first_key, self.kv_head, self.batch)
                copy_box(w, start + slab * KEYS * 128, tensor, place, self.kv_full)

    def bring(self, rows: _Rows) -> None:
        """Tiles of rows, by one lane, and the numbers that belong to them, by all."""
        w, shape = self.w, self.shape
        ring, tiles = Ring(w, STAGES), self.seeing()
        with self.each_head() as head, w.loop(tiles.first, tiles.end) as tile:
            stage = ring.stage.get()
            barrier_wait(w, rows.empty(stage), ring.parity.get() ^ 1)
            with w.when(self.lane.equals(0)):
                barrier_expect(w, rows.full(stage), shape.row_bytes)
                for slab in range(shape.depth // 64):
                    place = (w.value(slab * 64), tile * shape.rows, head, self.batch)
                    at = rows.start + stage * shape.row_bytes + slab * shape.rows * 128
                    copy_box(w, at, rows.tensor, place, rows.full(stage))
            first = rows.numbers + (w.wide(self.batch) * rows.steps[0] + w.wide(head) * rows.steps[1]) * 4
            with w.loop(self.lane, w.value(shape.rows), 32) as inside:
                query = tile * shape.rows + inside
                exists = query < self.queries
                address = first + w.wide(w.select(exists, query, 0)) * rows.steps[2] * 4
                (found,) = w.asm("ld.global.nc.f32 $0, [<a>];", results=["float"], a=address)
                at = rows.to + (stage * shape.rows + inside) * 4
                w.asm("st.shared.f32 [<a>], <x>;", a=at, x=w.select(exists, found, rows.missing, "float"))
            barrier_arrive(w, rows.full(stage))
            ring.advance()

    def add_queries(self) -> None:
        w, shape, rows = self.w, self.shape, self.shape.rows
        parity, tiles = Var(w, 0), self.seeing()
        with self.each_head() as head, w.loop(tiles.first, tiles.end) as tile:
            last, first = self.key_tiles - 1, w.value(0)
            if self.attention.is_causal:
                position = self.offset + w.least(tile * rows + (rows - 1), self.queries - 1)
                last = w.least(last, position // KEYS)
            if self.attention.window is not None:
                first = w.most(self.offset + tile * rows - self.attention.window, 0) // KEYS
            turn = last - self.tile
            number = (self.batch * self.attention.heads + head) * self.query_tiles + tile
            counter = self.counters + w.wide(number) * 4
            counter_wait(w, counter, turn)
            barrier_wait(w, self.dq_full, parity.get())
            boxes = [
                (self.dq_at + slab * rows * 128, (w.value(slab * 32), tile * rows, head, self.batch))
                for slab in range(shape.depth // 32)
            ]

            def store(boxes: Sequence[tuple[Val, tuple[Val, ...]]] = boxes) -> None:
                for source, place in boxes:
                    store_box(w, self.map_dq, place, source)

            def add(boxes: Sequence[tuple[Val, tuple[Val, ...]]] = boxes) -> None:
                for source, place in boxes:
                    add_box(w, self.map_dq, place, source)

            w.either(turn.equals(0), store, add)
            w.asm("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;")
            barrier_arrive(w, self.dq_empty)
            w.asm("cp.async.bulk.wait_group 0; fence.acq_rel.gpu;")
            following = w.select(self.tile.equals(first), 0, turn + 1)
            w.asm("st.release.gpu.global.b32 [<a>], <x>;", a=counter, x=following)
            parity.set(parity.get() ^ 1)

    # The warps that multiply.

    def arrive(self, barrier: Val) -> None:
        with self.w.when(self.inside.equals(0)):
            barrier_arrive(self.w, barrier)

    def consume(self) -> None:
        w, shape = self.w, self.shape
        w.asm("setmaxnreg.inc.sync.aligned.u32 232;")
        # Of all steps: what they wait for follows from their number, which takes fewer registers than a ring.
        self.count = Var(w, 0)
        self.dk, self.dv = ([Var(w, 0.0, "float") for _ in range(shape.depth // 2)] for _ in range(2))
        self.k_rows = descriptor(w, self.k_at + self.group * 8192, 16, 1024)
        self.v_rows = self.k_rows + (shape.key_bytes >> 4)
        barrier_wait(w, self.kv_full, w.value(0))
        with self.each_turn() as tiles:
            with w.loop(tiles.first, tiles.clean_first) as tile:
                self.step(tile)
            with w.loop(tiles.clean_first, tiles.clean_end):
                self.step(None)
            if self.attention.window is not None:
                tiles = self.seeing_again()
                with w.loop(tiles.clean_end, tiles.end) as tile:
                    self.step(tile)
        # Keys and values are not read any more.
        w.asm("bar.sync 3, 256;")
        self.find_place()
        self.store(self.v_at, self.map_dv, [x.get() for x in self.dv])
        self.store(self.k_at, self.map_dk, [x.get() * self.attention.scale for x in self.dk])
        with w.when(self.inside.equals(0)):
            w.asm("cp.async.bulk.wait_group 0;")

    def step(self, tile: Val | None) -> None:
        """One tile of queries; with its number where some do not see all keys."""
        w, shape, rows = self.w, self.shape, self.shape.rows
        count = self.count.get()
        stage, parity = count % STAGES, count // STAGES & 1
        q_tile, dy_tile = (at + stage * shape.row_bytes for at in (self.q_at, self.dy_at))
        barrier_wait(w, self.q_full(stage), parity)
        scores = self.multiply_rows(self.k_rows, q_tile)
        barrier_wait(w, self.dy_full(stage), parity)
        products = self.multiply_rows(self.v_rows, dy_tile)
        scores = w.asm("wgmma.wait_group.sync.aligned 1;", scores)
        inside, lane = self.lanes_again()
        column = (lane & 3) * 8
        sees = None if tile is None else self.sees(tile, inside, lane)
        weights, factors = self.weigh(scores, self.logs_at + stage * (rows * 4) + column, sees)
        self.add_product(self.dv, weights, dy_tile)
        products = w.asm("wgmma.wait_group.sync.aligned 1;", products)
        means = self.by_column(self.means_at + stage * (rows * 4) + column)
        words = self.packed([factors(i) * (products[i] - mean) for i, mean in means])
        ds_tile = self.ds_at + stage * shape.change_bytes
        self.exchange(ds_tile, words)
        dq = self.multiply_changes(ds_tile)
        self.finish(self.dv, 1)
        self.arrive(self.dy_empty(stage))
        self.add_product(self.dk, words, q_tile)
        dq = w.asm("wgmma.wait_group.sync.aligned 1;", dq)
        self.hand_over(dq, count)
        self.finish(self.dk, 0)
        self.arrive(self.q_empty(stage))
        self.count.set(count + 1)

    def finish(self, sums: Sequence[Var], running: int) -> None:
        text = f"wgmma.wait_group.sync.aligned {running};"
        for variable, value in zip(sums, self.w.asm(text, [x.get() for x in sums])):
            variable.set(value)

    def by_column(self, address: Val) -> Iterator[tuple[int, Val]]:
        """The numbers of the results of this thread, with what belongs to their columns: of four, 4j.., the first and
        third are of column 8j + 2 (lane % 4), the others of the next one. Loaded where they are used: all of them would
        not fit into the registers."""
        for j in range(self.shape.rows // 8):
            pair = self.w.asm("ld.shared.v2.f32 {$0, $1}, [<a>];", results=["float"] * 2, a=address + 32 * j)
            yield from ((4 * j + i, pair[i % 2]) for i in range(4))

    def weigh(
        self, scores: Sequence[Val], logs_at: Val, sees: Callable[[int], Val] | None
    ) -> tuple[list[Val], Callable[[int], Val]]:
        """Weights as words, and what dP - D is multiplied by: the weight, with a softcap times its slope."""
        w, attention, cap = self.w, self.attention, self.attention.softcap
        powers: list[Val] = []
        factors: list[Val] = []
        for i, log in self.by_column(logs_at):
            score = scores[i] if cap is None else self.capped(scores[i], cap)
            scale = attention.scale * math.log2(math.e) if cap is None else 1.0
            power = self.exp2(score * scale - log)
            powers.append(power if sees is None else w.select(sees(i), power, 0.0, "float"))
            if cap is not None:
                part = score * (1 / (cap * math.log2(math.e)))
                factors.append(powers[i] - powers[i] * part * part)
        # Registers do not hold the numbers beside the words, which are what they are rounded to anyway.
        words = self.packed(powers)
        kept = words if cap is None else self.packed(factors)
        return words, lambda i: self.unpacked(kept[i // 2], i % 2)

    def sees(self, tile: Val, inside: Val, lane: Val) -> Callable[[int], Val]:
        """Whether the query of a result sees its key; this thread has two keys, eight apart."""
        w, attention = self.w, self.attention
        # The first column that sees a key; none where there is no key.
        firsts: list[Val] = []
        start = tile * self.shape.rows + self.offset + (lane & 3) * 2
        for r in range(2):
            key = self.first_key + self.group * 64 + (inside >> 5) * 16 + (lane >> 2) + 8 * r
            from_key = key if attention.is_causal else w.value(-FAR)
            first = w.select(key < self.keys, from_key, FAR) - start
            firsts.append(first)

        def seen(i: int) -> Val:
            column, first = i // 4 * 8 + i % 2, firsts[i % 4 // 2]
            found = first < column + 1
            return found if attention.window is None else found & (first > column - attention.window - 1)

        return seen

    def packed(self, numbers: Sequence[Val]) -> list[Val]:
        return [self.pair(numbers[i], numbers[i + 1]) for i in range(0, len(numbers), 2)]

    # Products.

    def multiply_rows(self, rows: Val, tile: Val) -> list[Val]:
        """64 rows of keys or values times a tile of queries or dy, begun; elements of a head lie side by side."""
        shape, columns = self.shape, self.shape.rows
        steps = [
            ((s // 4 * KEYS * 128 + s % 4 * 32), (s // 4 * columns * 128 + s % 4 * 32))
            for s in range(shape.depth // 16)
        ]
        return self.wgmma(columns, steps, rows, descriptor(self.w, tile, 16, 1024), "0, 0")

    def multiply_changes(self, tile: Val) -> list[Val]:
        """The part of dQ of this group: 64 queries, or 64 columns of all of them; begun. Both operands lie across."""
        w, shape = self.w, self.shape
        own_rows = self.group * (KEYS * 128) if shape.rows == 128 else w.value(0)
        own_columns = w.value(0) if shape.rows == 128 else self.group * (KEYS * 128)
        a = descriptor(w, tile + own_rows, KEYS * 128, 1024)
        b = descriptor(w, self.k_at + own_columns, KEYS * 128, 1024)
        return self.wgmma(64, [(s * 2048, s * 2048) for s in range(KEYS // 16)], a, b, "1, 1")

    def wgmma(self, columns: int, steps: Sequence[tuple[int, int]], a: Val, b: Val, turned: str) -> list[Val]:
        w, element = self.w, self.attention.element
        registers = ", ".join(f"${i}" for i in range(columns // 2))
        text = "{ .reg .pred p, q; .reg .b64 a, b; setp.ne.u32 p, 0, 0; setp.eq.u32 q, 0, 0; wgmma.fence.sync.aligned;"
        for s, (of_a, of_b) in enumerate(steps):
            text += f"""add.s64 a, <a>, {of_a >> 4}; add.s64 b, <b>, {of_b >> 4};
                wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element}
                {{{registers}}}, a, b, {"q" if s else "p"}, 1, 1, {turned};"""
        text += "wgmma.commit_group.sync.aligned; }"
        return w.asm(text, results=["float"] * (columns // 2), a=a, b=b)

    def add_product(self, sums: Sequence[Var], words: Sequence[Val], tile: Val) -> None:
        """Weights or changes, which lie in registers, times a tile of dy or queries, added to sums; begun."""
        w, shape, element = self.w, self.shape, self.attention.element
        registers = ", ".join(f"${i}" for i in range(shape.depth // 2))
        text = "{ .reg .pred q; .reg .b64 b; setp.eq.u32 q, 0, 0; wgmma.fence.sync.aligned;"
        for s in range(shape.rows // 16):
            a = ", ".join(f"<p{4 * s + i}>" for i in range(4))
            text += f"""add.s64 b, <t>, {s * 2048 >> 4};
                wgmma.mma_async.sync.aligned.m64n{shape.depth}k16.f32.{element}.{element}
                {{{registers}}}, {{{a}}}, b, q, 1, 1, 1;"""
        text += "wgmma.commit_group.sync.aligned; }"
        given: dict[str, Val | int] = {f"p{i}": word for i, word in enumerate(words)}
        view = descriptor(w, tile, shape.rows * 128, 1024)
        for variable, value in zip(sums, w.asm(text, [x.get() for x in sums], named=given, t=view)):
            variable.set(value)

    # Through shared memory.

    def write(self, start: Val, pitch: int, words: Sequence[Val]) -> None:
        """64 rows of a group from `start` on, swizzled as the copy engine and the tensor cores read them; slabs of 64
        columns are `pitch` bytes apart."""
        w = self.w
        inside, lane = self.lanes_again()
        row = (inside >> 5) * 16 + (lane & 15)
        at, odd = start + row * 128, lane >> 4
        # 16 columns at a time.
        for j in range(0, len(words) // 2, 2):
            chunk = ((odd + j % 8) ^ (row & 7)) * 16
            w.asm(
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [<a>], {<r0>, <r1>, <r2>, <r3>};",
                a=at + chunk + j // 8 * pitch,
                named={f"r{i}": words[2 * j + i] for i in range(4)},
            )

    def exchange(self, tile: Val, words: Sequence[Val]) -> None:
        w = self.w
        self.write(tile + self.group * 8192, KEYS * 128, words)
        show_stores(w)
        w.asm("bar.sync 3, 256;")

    def hand_over(self, sums: Sequence[Val], count: Val) -> None:
        """What the step of a number adds to dq, in slabs of 32 columns, for the thread that adds it."""
        w, rows = self.w, self.shape.rows
        barrier_wait(w, self.dq_empty, (count & 1) ^ 1)
        at = self.dq_at + (self.group * 8192 if rows == 128 else self.group * (2 * rows * 128))
        inside, lane = self.lanes_again()
        row = (inside >> 5) * 16 + (lane >> 2)
        start, half = at + row * 128 + (lane & 1) * 8, (lane & 3) >> 1
        for j in range(len(sums) // 4):
            chunk = ((half + j % 4 * 2) ^ (row & 7)) * 16
            for r in range(2):
                named: dict[str, Val | int] = {
                    f"x{e}": sums[4 * j + 2 * r + e] * self.attention.scale for e in range(2)
                }
                to = start + chunk + (j // 4 * rows * 128 + r * 1024)
                w.asm("st.shared.v2.f32 [<a>], {<x0>, <x1>};", a=to, named=named)
        show_stores(w)
        barrier_arrive(w, self.dq_full)

    def store(self, start: Val, tensor: Val, sums: Sequence[Val]) -> None:
        """A group writes its rows over the keys or values that it had, and the copy engine stores them."""
        w = self.w
        own = start + self.group * 8192
        self.write(own, KEYS * 128, self.packed(sums))
        show_stores(w)
        w.asm("bar.sync <i>, 128;", i=self.group + 1)
        with w.when(self.inside.equals(0)):
            for slab in range(self.shape.depth // 64):
                place = (w.value(slab * 64), self.first_key + self.group * 64, self.kv_head, self.batch)
                store_box(w, tensor, place, own + slab * KEYS * 128)
            w.asm("cp.async.bulk.commit_group;")
