"""The kernel of forward attention on Hopper's tensor cores: f16 or bf16 in and out, sums in f32.

One block for each multiprocessor walks the tiles of 128 queries of a head. One thread lets the copy engine bring the
queries, and tiles of keys and values into two rings; two groups of four warps own 64 queries each. Scores stay in
registers and, rounded, are the register operand of the product with the values. While that product of one tile runs,
the softmax of the next one is computed, and the groups take turns at the tensor cores: one multiplies while the other
computes exponentials. Tiles of keys that no query of a tile sees are not read, and only those that some queries do not
see in full are compared with positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rlx.backends.cuda.hopper.attention_shape import ROWS, STAGES, AttentionShape
from rlx.backends.cuda.hopper.instructions import (
    Ring,
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    barriers_made,
    copy_box,
    descriptor,
    show_stores,
    store_box,
    sync_threads,
)
from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.score_rows import ScoreRows
from rlx.backends.cuda.hopper.seen_keys import KeyTiles, SeenKeys
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

THREADS = 384
# Words of `KeyTiles`, which one thread finds out for all.
_NOTED = len(KeyTiles._fields)


def attention_text(name: str, shape: AttentionShape, triple: str) -> str:
    """The LLVM module. Parameters: tensor maps of q, k, v and the result, each as [batch, head, position, element];
    i32: tiles of queries, items of work, queries, keys; then those of `SeenKeys`, and the address of logarithms."""
    return GroupAttention(name, shape).text(triple)


class QueryTile(NamedTuple):
    """A tile of queries of one head."""

    batch: Val
    head: Val
    number: Val


class GroupAttention(Lanes):
    def __init__(self, name: str, shape: AttentionShape) -> None:
        w = Writer(name, THREADS)
        super().__init__(w, shape)
        self.shape = shape
        self.declare_operands()
        self.tiles, self.work, self.queries, self.key_limit = (
            w.param(n, "i32") for n in ("tiles", "work", "queries", "keys")
        )
        self.seen = SeenKeys(w, shape, self.queries, self.key_limit)
        self.logs = w.param("logs", "i64") if shape.has_logs else None
        base = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.q_at = (base + 1023) & -1024
        self.k_at = self.q_at + shape.q_bytes
        self.v_at = self.k_at + STAGES * shape.k_bytes
        behind = self.v_at + STAGES * shape.v_bytes
        self.o_at = self.q_at if shape.shares_memory else behind
        self.notes = behind + (0 if shape.shares_memory else shape.o_bytes)
        self.q_full, self.q_empty = self.notes + 64, self.notes + 72
        self.thread = w.register("tid.x")
        self.inside = self.thread & 127
        self.lane = self.thread & 31
        self.group = (self.thread >> 7) - 1

    def declare_operands(self) -> None:
        """The first parameters."""
        self.map_q, self.map_k, self.map_v, self.map_o = (self.w.tensor_map(f"map_{x}") for x in "qkvo")

    def ring_barrier(self, which: int) -> Callable[[Val], Val]:
        return lambda stage: self.notes + (80 + which * STAGES * 8) + stage * 8

    @property
    def k_full(self) -> Callable[[Val], Val]:
        return self.ring_barrier(0)

    @property
    def k_empty(self) -> Callable[[Val], Val]:
        return self.ring_barrier(1)

    @property
    def v_full(self) -> Callable[[Val], Val]:
        return self.ring_barrier(2)

    @property
    def v_empty(self) -> Callable[[Val], Val]:
        return self.ring_barrier(3)

    def text(self, triple: str) -> str:
        w = self.w
        w.let_next_begin()
        w.wait_for_others()
        with w.when(self.thread.equals(0)):
            barrier_init(w, self.q_full, 1)
            barrier_init(w, self.q_empty, 2)
            for stage in map(w.value, range(STAGES)):
                for barrier, arrivals in ((self.k_full, 1), (self.k_empty, 2), (self.v_full, 1), (self.v_empty, 2)):
                    barrier_init(w, barrier(stage), arrivals)
            barriers_made(w)
        sync_threads(w, 0, THREADS)
        w.either(self.thread < 128, self.produce, self.consume)
        return w.module(triple)

    @contextmanager
    def each_tile(self) -> Iterator[QueryTile]:
        """The tiles of queries of this block. Consecutive blocks share a head, so that the L2 cache keeps its keys."""
        w, heads = self.w, self.shape.heads
        is_paired = self.shape.is_paired
        per_head = (self.tiles + 1) >> 1 if is_paired else self.tiles
        with w.loop(w.register("ctaid.x"), self.work, w.register("nctaid.x")) as item:
            head, i = item // per_head, item % per_head
            if not is_paired:
                yield QueryTile(head // heads, head % heads, i)
                return
            last = self.tiles - 1 - i
            with w.loop(0, w.select(last.equals(i), 1, 2)) as half:
                yield QueryTile(head // heads, head % heads, w.select(half.equals(0), last, i))

    # The thread that brings tiles.

    def produce(self) -> None:
        w = self.w
        w.asm("setmaxnreg.dec.sync.aligned.u32 40;")
        # Positions are looked through by a whole warp.
        workers = 32 if self.shape.positions is not None else 1
        with w.when(self.thread < workers):
            parity, k_ring, v_ring = Var(w, 0), Ring(w, STAGES), Ring(w, STAGES)
            with self.each_tile() as tile:
                noted = self.seen.tiles(tile.batch, tile.number * ROWS, ROWS, self.shape.keys, self.lane)
                with w.when(self.thread.equals(0)):
                    self.bring(tile, noted, parity, k_ring, v_ring)

    def bring(self, tile: QueryTile, noted: KeyTiles, parity: Var, k_ring: Ring, v_ring: Ring) -> None:
        w, shape = self.w, self.shape
        last, count = noted.last, noted.tiles
        barrier_wait(w, self.q_empty, parity.get() ^ 1)
        for number, word in enumerate(noted):
            w.asm("st.shared.b32 [<a>], <x>;", a=self.notes + 4 * number, x=word)
        self.bring_queries(tile)
        parity.set(parity.get() ^ 1)
        head = tile.head // shape.group

        def keys(j: Val) -> None:
            place = (last - j) * shape.keys
            self.bring_next(k_ring, self.k_at, self.map_k, shape.depth, (place, head, tile.batch), 0)

        def values(j: Val) -> None:
            place = (last - j) * shape.keys
            self.bring_next(v_ring, self.v_at, self.map_v, shape.width, (place, head, tile.batch), 2)

        # Keys are a tile ahead of values, as those who use them are.
        keys(w.value(0))
        with w.loop(0, count) as j:
            with w.when(j + 1 < count):
                keys(j + 1)
            values(j)

    def bring_queries(self, tile: QueryTile) -> None:
        w = self.w
        barrier_expect(w, self.q_full, self.shape.q_bytes)
        for slab in range(self.shape.depth // 64):
            at = (w.value(slab * 64), tile.number * ROWS, tile.head, tile.batch)
            copy_box(w, self.q_at + slab * ROWS * 128, self.map_q, at, self.q_full)

    def bring_next(self, ring: Ring, start: Val, tensor: Val, width: int, at: tuple[Val, ...], barrier: int) -> None:
        w, keys = self.w, self.shape.keys
        full, empty = self.ring_barrier(barrier), self.ring_barrier(barrier + 1)
        stage = ring.stage.get()
        barrier_wait(w, empty(stage), ring.parity.get() ^ 1)
        barrier_expect(w, full(stage), keys * width * 2)
        to = start + stage * (keys * width * 2)
        for slab in range(width // 64):
            copy_box(w, to + slab * keys * 128, tensor, (slab * 64, *at), full(stage))
        ring.advance()

    # The warps that multiply.

    def arrive(self, barrier: Val) -> None:
        with self.w.when(self.inside.equals(0)):
            barrier_arrive(self.w, barrier)

    def consume(self) -> None:
        w, shape = self.w, self.shape
        w.asm("setmaxnreg.inc.sync.aligned.u32 232;")
        self.q_parity, self.k_ring, self.v_ring = Var(w, 0), Ring(w, STAGES), Ring(w, STAGES)
        self.rows = ScoreRows(self, shape.keys, shape.softcap is not None)
        self.sums = [Var(w, 0.0, "float") for _ in range(shape.width // 2)]
        self.weights = [Var(w, 0) for _ in range(shape.keys // 4 * shape.weight_parts)]
        # The first group may begin.
        with w.when(self.group.equals(1)):
            w.asm("bar.arrive 3, 256;")
        self.q_view = descriptor(w, self.q_at + self.group * 8192, 16, 1024)
        with self.each_tile() as tile:
            self.attend(tile)
        with w.when(self.inside.equals(0)):
            w.asm("cp.async.bulk.wait_group 0;")

    def attend(self, tile: QueryTile) -> None:
        w, shape = self.w, self.shape
        limits_of_rows = self.seen.limits(tile.batch, self.first_row(tile))
        barrier_wait(w, self.q_full, self.q_parity.get())
        last, tiles, clean_first, clean_end, count = (
            w.asm("ld.shared.b32 $0, [<a>];", results=["i32"], a=self.notes + 4 * i)[0] for i in range(_NOTED)
        )
        limits = self.seen.existing(limits_of_rows, count)
        self.take_queries(tile)

        barrier_wait(w, self.k_full(self.k_ring.stage.get()), self.k_ring.parity.get())
        scores = w.asm("wgmma.wait_group.sync.aligned 0;", self.multiply_keys())
        self.arrive(self.k_empty(self.k_ring.stage.get()))
        self.k_ring.advance()
        self.rows.keep(scores)
        is_clean = last < clean_end
        if shape.window is not None:
            is_clean = is_clean & (last > clean_first - 1)
        with w.when(is_clean ^ 1):
            self.hide(last, limits)
        if shape.lengths is not None:
            self.clear_values(last, count)
        self.weigh(self.rows.softmax(is_first=True, is_clean=False)[0])
        for variable in self.sums:
            variable.set(0.0)
        # Loops of their own for tiles that all rows see in full: a branch between the products would keep the assembler
        # from computing anything while the second one runs.
        start, stop = w.value(1), tiles
        if shape.is_causal:
            start = w.least(w.most(last - clean_end + 1, 1), tiles)
            with w.loop(1, start) as j:
                self.step(lambda: self.hide(last - j, limits))
        if shape.window is not None:
            stop = w.most(w.least(tiles, last + 1 - clean_first), start)
        with w.loop(start, stop):
            self.step()
        if shape.window is not None:
            with w.loop(stop, tiles) as j:
                self.step(lambda: self.hide(last - j, limits))
        if not shape.shares_memory:
            self.arrive(self.q_empty)
        self.q_parity.set(self.q_parity.get() ^ 1)
        v_stage = self.v_ring.stage.get()
        barrier_wait(w, self.v_full(v_stage), self.v_ring.parity.get())
        self.multiply_values()
        totals = self.rows.totals()
        shares = [self.share(total) for total in totals]
        if self.logs is not None:
            head = w.wide(tile.batch * shape.heads + tile.head) * w.wide(self.queries)
            start = self.logs + head * 4
            self.rows.store_logs(lambda row: start + w.wide(row) * 4, self.first_row(tile), self.queries, totals)
        done = w.asm("wgmma.wait_group.sync.aligned 0;", [s.get() for s in self.sums])
        self.arrive(self.v_empty(v_stage))
        self.v_ring.advance()
        self.store([x * shares[i % 4 // 2] for i, x in enumerate(done)], tile)

    def take_queries(self, tile: QueryTile) -> None:
        """What is left to do before the queries of a tile can be multiplied."""

    def step(self, hide: Callable[[], None] | None = None) -> None:
        """The scores of a tile, beside the product of the weights and values of the one before."""
        w = self.w
        k_stage, v_stage = self.k_ring.stage.get(), self.v_ring.stage.get()
        barrier_wait(w, self.k_full(k_stage), self.k_ring.parity.get())
        w.asm("bar.sync <i>, 256;", i=self.group + 3)
        running = self.multiply_keys()
        barrier_wait(w, self.v_full(v_stage), self.v_ring.parity.get())
        self.multiply_values()
        w.asm("bar.arrive <i>, 256;", i=w.value(4) - self.group)
        self.rows.keep(w.asm("wgmma.wait_group.sync.aligned 1;", running))
        self.arrive(self.k_empty(k_stage))
        self.k_ring.advance()
        if hide is not None:
            hide()
        powers, factors = self.rows.softmax(is_clean=hide is None)
        # Weights may change when the running product has read them: passing through the wait keeps that order.
        done = w.asm("wgmma.wait_group.sync.aligned 0;", [*(s.get() for s in self.sums), *powers])
        self.arrive(self.v_empty(v_stage))
        self.v_ring.advance()
        self.weigh(done[len(self.sums) :])
        for i, variable in enumerate(self.sums):
            variable.set(done[i] * factors[i % 4 // 2])

    def first_row(self, tile: QueryTile) -> Val:
        """The first of the two queries of this thread, which are eight apart."""
        return tile.number * ROWS + self.group * 64 + (self.inside >> 5) * 16 + (self.lane >> 2)

    def hide(self, number: Val, limits: Sequence[tuple[Val, Val | None]]) -> None:
        self.rows.hide(number * self.shape.keys + (self.lane & 3) * 2, limits)

    def clear_values(self, number: Val, count: Val) -> None:
        """Rows of values behind the last key may be anything, and zero times anything must be zero."""
        w, shape = self.w, self.shape
        start, chunks = number * shape.keys, shape.width // 8
        with w.when(count < start + shape.keys):
            stage = self.v_ring.stage.get()
            barrier_wait(w, self.v_full(stage), self.v_ring.parity.get())
            at = self.v_at + stage * shape.v_bytes
            # Swizzling stays inside of a row.
            with w.loop((count - start) * chunks + self.inside, w.value(shape.keys * chunks), 128) as i:
                row, chunk = i // chunks, i % chunks
                place = at + (chunk >> 3) * (shape.keys * 128) + row * 128 + (chunk & 7) * 16
                w.asm("st.shared.v4.b32 [<a>], {<z>, <z>, <z>, <z>};", a=place, z=0)
            show_stores(w)
            w.asm("bar.sync <i>, 128;", i=self.group + 1)

    def weigh(self, powers: Sequence[Val]) -> None:
        for variable, i in zip(self.weights, range(0, len(powers), 2)):
            variable.set(self.pair(powers[i], powers[i + 1]))

    def multiply_keys(self) -> list[Val]:
        """Scores of 64 rows, begun: both operands have the elements of a head side by side."""
        w, shape = self.w, self.shape
        registers = ", ".join(f"${i}" for i in range(shape.keys // 2))
        text = "{ .reg .pred p, q; .reg .b64 a, b; setp.ne.u32 p, 0, 0; setp.eq.u32 q, 0, 0; wgmma.fence.sync.aligned;"
        for part, s in itertools.product(range(shape.query_parts), range(shape.depth // 16)):
            slab, inside = s // 4, s % 4 * 32
            text += f"""add.s64 a, <q>, {(part * shape.part_bytes + slab * ROWS * 128 + inside) >> 4};
                add.s64 b, <k>, {(slab * shape.keys * 128 + inside) >> 4};
                wgmma.mma_async.sync.aligned.m64n{shape.keys}k16.f32.{shape.element}.{shape.element}
                {{{registers}}}, a, b, {"q" if part or s else "p"}, 1, 1, 0, 0;"""
        view = descriptor(w, self.k_at + self.k_ring.stage.get() * shape.k_bytes, 16, 1024)
        text += "wgmma.commit_group.sync.aligned; }"
        return w.asm(text, results=["float"] * (shape.keys // 2), q=self.q_view, k=view)

    def multiply_values(self) -> None:
        """Weights times values added to the sums, begun: weights lie in registers as scores do."""
        w, shape = self.w, self.shape
        registers = ", ".join(f"${i}" for i in range(shape.width // 2))
        text = "{ .reg .pred q; .reg .b64 b; setp.eq.u32 q, 0, 0; wgmma.fence.sync.aligned;"
        steps = shape.keys // 16
        for part, s in itertools.product(range(shape.weight_parts), range(steps)):
            a = ", ".join(f"<p{4 * (part * steps + s) + i}>" for i in range(4))
            text += f"""add.s64 b, <v>, {s * 2048 >> 4};
                wgmma.mma_async.sync.aligned.m64n{shape.width}k16.f32.{shape.element}.{shape.element}
                {{{registers}}}, {{{a}}}, b, q, 1, 1, 1;"""
        view = descriptor(w, self.v_at + self.v_ring.stage.get() * shape.v_bytes, shape.keys * 128, 1024)
        given: dict[str, Val | int] = {f"p{i}": variable.get() for i, variable in enumerate(self.weights)}
        text += "wgmma.commit_group.sync.aligned; }"
        for variable, value in zip(self.sums, w.asm(text, [s.get() for s in self.sums], named=given, v=view)):
            variable.set(value)

    def store(self, sums: Sequence[Val], tile: QueryTile) -> None:
        """A group writes its rows to shared memory, swizzled as the copy engine reads it, which stores them."""
        w, shape = self.w, self.shape
        at = self.o_at + self.group * 8192
        with w.when(self.inside.equals(0)):
            w.asm("cp.async.bulk.wait_group.read 0;")
        w.asm("bar.sync <i>, 128;", i=self.group + 1)
        row = (self.inside >> 5) * 16 + (self.lane & 15)
        start, odd = at + row * 128, self.lane >> 4
        # 16 columns at a time.
        for j in range(0, shape.width // 8, 2):
            words = [self.pair(sums[4 * j + 2 * q], sums[4 * j + 2 * q + 1]) for q in range(4)]
            chunk = ((odd + j % 8) ^ (row & 7)) * 16
            w.asm(
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [<a>], {<r0>, <r1>, <r2>, <r3>};",
                a=start + chunk + j // 8 * ROWS * 128,
                named={f"r{q}": word for q, word in enumerate(words)},
            )
        show_stores(w)
        w.asm("bar.sync <i>, 128;", i=self.group + 1)
        with w.when(self.inside.equals(0)):
            for slab in range(shape.width // 64):
                place = (w.value(slab * 64), tile.number * ROWS + self.group * 64, tile.head, tile.batch)
                store_box(w, self.map_o, place, at + slab * ROWS * 128)
            w.asm("cp.async.bulk.commit_group;")
            if shape.shares_memory:
                # The queries of the next tile come to the same place.
                w.asm("cp.async.bulk.wait_group.read 0;")
                barrier_arrive(w, self.q_empty)
