"""The kernel of a product on Hopper's tensor cores: C = epilogue(A @ B, ..), f16, bf16 or f8 in, sums in f32.

One block for each multiprocessor walks the tiles of C. One thread lets the copy engine bring tiles of A and B into a
ring of stages; two groups of four warps multiply them, 64 rows each, and finish what they have summed up themselves:
each thread gives two neighbouring elements at a time to the epilogue, which is a function made from loop IR.

Where C has too few tiles to fill the GPU, as weight gradients have, the blocks of a cluster share a tile: each sums a
part of the depth, and then a part of the tile over all of them, always in the same order, from each other's memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, FinishCall
from rlx.backends.cuda.hopper.instructions import (
    Ring,
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    barriers_made,
    cluster_wait,
    copy_box,
    sync_threads,
)
from rlx.backends.cuda.hopper.product_shape import (
    CONSUMERS,
    DEPTH_BYTES,
    ROWS,
    SLAB_BYTES,
    ProductShape,
    check_shape,
)
from rlx.backends.cuda.hopper.warp_groups import (
    rows_of_thread,
    start_products,
    store_pairs,
    view_of_a,
    view_of_b,
)
from rlx.backends.cuda.hopper.writer import Val, Var, Writer
from rlx.kernels.gpu.matmul_groups import SplitSteps

# The same of blocks that share a tile, each of which has a part of every pair.
SHARE_AHEAD = 8


def product_text(name: str, shape: ProductShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: tensor maps of A and of every B, tiles of rows, of columns and of depth (i32), then
    those of the epilogue."""
    check_shape(shape)
    return ProductWriter(name, shape, finish).text(triple)


class ProductWriter:
    """Writes the kernel. Products whose rows come another way have their own operands, producer and tiles."""

    # Threads that fill the ring, and what arrives at the barrier of a stage until it is full, besides its bytes.
    producers = 128
    full_arrivals = 1

    def __init__(self, name: str, shape: ProductShape, finish: FinishCall) -> None:
        self.threads = self.producers + CONSUMERS
        w = self.w = Writer(name, self.threads, cluster=shape.sharing)
        self.shape = shape
        self.declare_operands()
        self.epilogue = EpilogueWriter(w, finish)
        # Swizzled rows begin at multiples of 1 KiB.
        base = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.memory = (base + 1023) & -1024
        self.barriers = self.memory + shape.stages * shape.stage_bytes
        self.thread = w.register("tid.x")
        self.first, self.stride = w.register("ctaid.x"), w.register("nctaid.x")
        self.first_step, self.end_step = w.value(0), self.steps
        if shape.sharing > 1:
            self.rank = self.first % shape.sharing
            self.first, self.stride = self.first // shape.sharing, self.stride // shape.sharing
            each = (self.steps + (shape.sharing - 1)) // shape.sharing
            self.first_step = self.rank * each
            self.end_step = w.least(self.first_step + each, self.steps)

    def declare_operands(self) -> None:
        w = self.w
        self.map_a = w.tensor_map("map_a")
        self.maps_b = [w.tensor_map(f"map_b{i}") for i in range(self.shape.parts)]
        self.declare_tiles()

    def declare_tiles(self) -> None:
        w = self.w
        self.row_tiles, self.column_tiles, self.steps = (w.param(n, "i32") for n in ("rows", "columns", "steps"))

    def full(self, stage: Val) -> Val:
        return self.barriers + stage * 8

    def empty(self, stage: Val) -> Val:
        return self.barriers + (stage + self.shape.stages) * 8

    def text(self, triple: str) -> str:
        w = self.w
        w.let_next_begin()
        w.wait_for_others()
        # Without it a way around all wgmma would join those that run, and the assembler would serialize them.
        w.assume(self.end_step > self.first_step)
        with w.when(self.thread.equals(0)):
            for stage in range(self.shape.stages):
                barrier_init(w, self.full(w.value(stage)), self.full_arrivals)
                barrier_init(w, self.empty(w.value(stage)), 2)
            barriers_made(w)
        self.prepare()
        sync_threads(w, 0, self.threads)
        self.tiles = self.tile_count()
        w.either(self.thread < self.producers, self.produce, self.consume)
        return w.module(triple, self.epilogue.call.text)

    def prepare(self) -> None:
        """What all threads do together before the first tile."""

    def tile_count(self) -> Val:
        return self.row_tiles * self.column_tiles

    def origin(self, tile: Val) -> tuple[Val, Val]:
        """The first row and column of a tile."""
        w = self.w
        band = self.column_tiles * self.shape.band
        top = tile // band * self.shape.band
        left = self.row_tiles - top
        rows = w.select(left < self.shape.band, left, self.shape.band)
        inside = tile % band
        return (top + inside % rows) * self.shape.rows, inside // rows * self.shape.columns

    def produce(self) -> None:
        """One thread keeps the ring full."""
        w, shape = self.w, self.shape
        w.asm("setmaxnreg.dec.sync.aligned.u32 40;")
        with w.when(self.thread.equals(0)):
            ring = Ring(w, shape.stages)
            with w.loop(self.first, self.tiles, self.stride) as tile:
                row, column = self.origin(tile)
                with w.loop(self.first_step, self.end_step) as step:
                    stage = ring.stage.get()
                    barrier_wait(w, self.empty(stage), ring.parity.get() ^ 1)
                    barrier_expect(w, self.full(stage), shape.stage_bytes)
                    self.copy_step(stage, step, row, column)
                    ring.advance()
        if shape.sharing > 1:
            cluster_wait(w)
            cluster_wait(w)

    def copy_step(self, stage: Val, step: Val, row: Val, column: Val) -> None:
        """What the copy engine brings to a stage: one step along K of the rows and columns that begin there."""
        shape = self.shape
        a = self.memory + stage * shape.stage_bytes
        of_a, of_b = self.places(step)
        self.copy_a(a, row, of_a * shape.depth, self.full(stage))
        for number, map_b in enumerate(self.maps_b):
            b = a + (shape.rows * DEPTH_BYTES + number * shape.part_bytes)
            self.copy_b(b, map_b, column, of_b * shape.depth, self.full(stage))

    def places(self, step: Val) -> tuple[Val, Val]:
        """Of a step along K in A and in B."""
        if not self.shape.split:
            return step, step
        split = SplitSteps(self.shape.split)
        return split.places(step, self.steps // split.terms, self.w.select)

    def copy_a(self, to: Val, row: Val, depth: Val, barrier: Val) -> None:
        if not self.shape.is_turned:
            copy_box(self.w, to, self.map_a, (depth, row), barrier)
            return
        # A slab of 64 rows for each group of warps.
        for slab in range(self.shape.rows // 64):
            copy_box(self.w, to + slab * SLAB_BYTES, self.map_a, (row + slab * 64, depth), barrier)

    def copy_b(self, to: Val, map_b: Val, column: Val, depth: Val, barrier: Val) -> None:
        if self.shape.along_k:
            copy_box(self.w, to, map_b, (depth, column), barrier)
            return
        # A swizzled row is 128 bytes: slabs of 64 columns.
        for slab in range(self.shape.columns // 64):
            copy_box(self.w, to + slab * SLAB_BYTES, map_b, (column + slab * 64, depth), barrier)

    def consume(self) -> None:
        self.consume_with(232)

    def consume_with(self, registers: int) -> None:
        """Threads that multiply, with so many registers each."""
        w = self.w
        w.asm(f"setmaxnreg.inc.sync.aligned.u32 {registers};")
        self.group, self.inside = (self.thread >> 7) - self.producers // 128, self.thread & 127
        self.ring, self.before = Ring(w, self.shape.stages), Var(w, 0)
        with w.loop(self.first, self.tiles, self.stride) as tile:
            row, column = self.origin(tile)
            done = self.summed()
            if self.shape.sharing > 1:
                self.store_share(done, row + self.group * 64, column, self.group)
            else:
                has_own_rows, inside = self.shape.rows == ROWS, rows_of_thread(self.inside)
                rows = [w.wide(self.stored_row(row + self.group * 64 + r if has_own_rows else row + r)) for r in inside]
                if not has_own_rows:
                    column = column + self.group * self.shape.group_columns
                self.store(done, rows, column)

    def stored_row(self, row: Val) -> Val:
        """The row of C that a row of the tiles is."""
        return row

    def release(self, stage: Val) -> None:
        with self.w.when(self.inside.equals(0)):
            barrier_arrive(self.w, self.empty(stage))

    def summed(self) -> list[Val]:
        """The sums of a group's part of a tile, through all of K."""
        w, shape, ring, before = self.w, self.shape, self.ring, self.before
        sums = [Var(w, 0.0, "float") for _ in range(shape.parts * shape.group_columns // 2)]
        with w.loop(self.first_step, self.end_step) as step:
            stage = ring.stage.get()
            self.await_full(stage)
            a = self.memory + stage * shape.stage_bytes
            self.multiply(sums, a, self.group)
            with w.when(step > self.first_step):
                self.release(before.get())
            before.set(stage)
            ring.advance()
        # Sums must pass through the wait: before it they are not there yet.
        done = w.asm("wgmma.wait_group.sync.aligned 0;", tied=[s.get() for s in sums])
        self.release(before.get())
        return done

    def await_full(self, stage: Val) -> None:
        barrier_wait(self.w, self.full(stage), self.ring.parity.get())

    def multiply(self, sums: list[Var], a: Val, group: Val) -> None:
        """One stage of a warp group."""
        w, shape = self.w, self.shape
        first = a + shape.rows * DEPTH_BYTES
        has_own_rows = shape.rows == ROWS
        if not has_own_rows:
            # Columns lie in slabs of 64, or one after the other: a half begins at the same place.
            first = first + group * (shape.group_columns * DEPTH_BYTES)
            shape = shape._replace(columns=shape.group_columns)
        bs = [view_of_b(w, shape, first + part * shape.part_bytes) for part in range(shape.parts)]
        rows = a + group * SLAB_BYTES if has_own_rows else a
        start_products(w, shape, sums, view_of_a(w, shape, rows), bs, running=1)

    def store(self, sums: list[Val], rows: Sequence[Val], column: Val) -> None:
        """`rows` are those of `rows_of_thread`, in C."""
        shape = self.shape._replace(columns=self.shape.group_columns)
        store_pairs(self.epilogue, shape, self.inside, sums, rows, column)

    def store_share(self, sums: list[Val], row: Val, column: Val, group: Val) -> None:
        """The sums of all blocks of the cluster, of those pairs that are this block's. Every block has one tile, so
        memory of stages is free once both groups have read it."""
        w, sharing, pairs = self.w, self.shape.sharing, len(sums) // 2
        inside = self.thread & 127
        lane = inside & 31
        row = row + ((inside >> 5) * 16 + (lane >> 2))
        column = column + (lane & 3) * 2
        # A pair of all threads lies side by side.
        pitch = 2 * 128 * 8
        own = self.memory + (group * 128 + inside) * 8
        w.asm("bar.sync 1, 256;")
        for p in range(pairs):
            named: dict[str, Val | int] = {"x": sums[2 * p], "y": sums[2 * p + 1]}
            w.asm("st.shared.v2.f32 [<a>], {<x>, <y>};", a=own + p * pitch, named=named)
        cluster_wait(w)
        each = -(-pairs // sharing)
        first = self.rank * each
        blocks = [
            w.asm("mapa.shared::cluster.u32 $0, <a>, <r>;", results=["i32"], a=own + first * pitch, r=r)[0]
            for r in range(sharing)
        ]
        for start in range(0, each, SHARE_AHEAD):
            some = range(start, min(start + SHARE_AHEAD, each))
            places = [(w.wide(row + ((first + t) & 1) * 8), w.wide(column + ((first + t) >> 1) * 8)) for t in some]
            read = [self.epilogue.read(*place) for place in places]
            found = [[self.remote_pair(block + t * pitch) for block in blocks] for t in some]
            for t, place, parts, values in zip(some, places, found, read):
                total = parts[0]
                for part in parts[1:]:
                    total = [a + b for a, b in zip(total, part)]
                with w.when(first + t < pairs):
                    self.epilogue.finish(*place, total, values)
        # Memory of a block that has ended may be another's.
        cluster_wait(w)

    def remote_pair(self, address: Val) -> list[Val]:
        return self.w.asm("ld.shared::cluster.v2.f32 {$0, $1}, [<a>];", results=["float"] * 2, a=address)
