"""The kernel of a product on Hopper's tensor cores: C = epilogue(A @ B, ..), f16, bf16 or f8 in, sums in f32.

One block for each multiprocessor walks the tiles of C. One thread lets the copy engine bring tiles of A and B into a
ring of stages; two groups of four warps multiply them, 64 rows each, and finish what they have summed up themselves:
each thread gives two neighbouring elements at a time to the epilogue, which is a function made from loop IR.

Where C has too few tiles to fill the GPU, as weight gradients have, the blocks of a cluster share a tile: each sums a
part of the depth, and then a part of the tile over all of them, always in the same order, from each other's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, FinishCall
from rlx.backends.cuda.hopper.instructions import (
    Ring,
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    cluster_wait,
    copy_box,
    descriptor,
)
from rlx.backends.cuda.hopper.launching import BYTE_ELEMENTS
from rlx.backends.cuda.hopper.writer import Val, Var, Writer
from rlx.errors import InternalError

# A tile of C, and the bytes of a stage along K: the widest swizzled row.
ROWS = 128
DEPTH_BYTES = 128
# That many elements of two bytes.
DEPTH = DEPTH_BYTES // 2
SLAB_BYTES = 64 * DEPTH_BYTES
# What one instruction multiplies along K.
STEP_BYTES = 32
THREADS = 384
# Pairs of elements whose operands of the epilogue are read before the first of them is stored.
READ_AHEAD = 16
# The same of blocks that share a tile, each of which has a part of every pair.
SHARE_AHEAD = 8
# Rows of tiles that are walked before the next column of them, so that the L2 cache keeps both operands.
BAND = 8


class ProductShape(NamedTuple):
    """`columns` of C in a tile, for each of `parts` products of the same A; whether B lies side by side along K, and
    whether A does not, but along its rows; `sharing` blocks have one tile together."""

    columns: int
    parts: int
    along_k: bool
    element: str  # of A: "bf16", "f16", "e4m3" or "e5m2"
    is_turned: bool = False
    sharing: int = 1
    b_element: str = ""  # where it is another one
    band: int = BAND

    @property
    def is_bytes(self) -> bool:
        return self.element in BYTE_ELEMENTS

    @property
    def depth(self) -> int:
        """Elements of a stage along K."""
        return DEPTH_BYTES // (1 if self.is_bytes else 2)

    @property
    def stage_bytes(self) -> int:
        return (ROWS + self.columns * self.parts) * DEPTH_BYTES

    @property
    def stages(self) -> int:
        return min(6, (220 << 10) // self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        """Stages begin at multiples of 1 KiB; two barriers for each."""
        return 1024 + self.stages * (self.stage_bytes + 16)

    @property
    def part_bytes(self) -> int:
        return self.columns * DEPTH_BYTES


def product_text(name: str, shape: ProductShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: tensor maps of A and of every B, tiles of rows, of columns and of depth (i32), then
    those of the epilogue."""
    check_shape(shape)
    return ProductWriter(name, shape, finish).text(triple)


def check_shape(shape: ProductShape) -> None:
    """Complain about tiles that the instructions do not have."""
    if shape.columns % 64 or shape.columns * shape.parts > 256:
        raise InternalError(f"a tile of {shape.parts} x {shape.columns} columns: only multiples of 64 up to 256 exist")
    if shape.is_bytes and (shape.is_turned or not shape.along_k):
        raise InternalError("a product of f8: both operands must lie side by side along K")
    if shape.parts > 1 and shape.sharing > 1:
        raise InternalError("blocks that share a tile have one product")


class ProductWriter:
    """Writes the kernel. Products whose rows come another way have their own operands, producer and tiles."""

    # What arrives at the barrier of a stage until it is full, besides its bytes.
    full_arrivals = 1

    def __init__(self, name: str, shape: ProductShape, finish: FinishCall) -> None:
        w = self.w = Writer(name, THREADS, cluster=shape.sharing)
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
            w.asm("fence.mbarrier_init.release.cluster;")
        self.prepare()
        w.asm("bar.sync <i>, <n>;", i=0, n=THREADS)
        self.tiles = self.tile_count()
        w.either(self.thread < 128, self.produce, self.consume)
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
        return (top + inside % rows) * ROWS, inside // rows * self.shape.columns

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
                    a = self.memory + stage * shape.stage_bytes
                    self.copy_a(a, row, step * shape.depth, self.full(stage))
                    for number, map_b in enumerate(self.maps_b):
                        b = a + (ROWS * DEPTH_BYTES + number * shape.part_bytes)
                        self.copy_b(b, map_b, column, step * shape.depth, self.full(stage))
                    ring.advance()
        if shape.sharing > 1:
            cluster_wait(w)
            cluster_wait(w)

    def copy_a(self, to: Val, row: Val, depth: Val, barrier: Val) -> None:
        if not self.shape.is_turned:
            copy_box(self.w, to, self.map_a, (depth, row), barrier)
            return
        # A slab of 64 rows for each group of warps.
        for slab in range(ROWS // 64):
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
        self.group, self.inside = (self.thread >> 7) - 1, self.thread & 127
        self.ring, self.before = Ring(w, self.shape.stages), Var(w, 0)
        with w.loop(self.first, self.tiles, self.stride) as tile:
            row, column = self.origin(tile)
            done = self.summed()
            if self.shape.sharing > 1:
                self.store_share(done, row + self.group * 64, column, self.group)
            else:
                self.store(done, [w.wide(row + self.group * 64 + r) for r in self.rows_of_thread()], column)

    def rows_of_thread(self) -> list[Val]:
        """Those of its group's rows that a thread stores: four of eight, and of the next eight."""
        first = (self.inside >> 5) * 16 + ((self.inside >> 2) & 1)
        return [first + (8 * half + 2 * i) for half in range(2) for i in range(4)]

    def release(self, stage: Val) -> None:
        with self.w.when(self.inside.equals(0)):
            barrier_arrive(self.w, self.empty(stage))

    def summed(self) -> list[Val]:
        """The sums of a group's part of a tile, through all of K."""
        w, shape, ring, before = self.w, self.shape, self.ring, self.before
        sums = [Var(w, 0.0, "float") for _ in range(shape.parts * shape.columns // 2)]
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
        """One stage of a warp group. One piece of PTX, so that nothing comes between its instructions; waiting for all
        but the newest says that the stage before has been read."""
        w, shape = self.w, self.shape
        count = shape.columns // 2
        text = "{ .reg .pred p; .reg .b64 a, b; setp.eq.u32 p, 0, 0; wgmma.fence.sync.aligned;"
        # One step further along K: 32 bytes inside a swizzled row where K lies side by side, else 16 rows of 128 bytes.
        ahead = 32 if shape.along_k else 2048
        a_ahead = 2048 if shape.is_turned else 32
        # Which operands are turned; bytes never are, and their instruction does not ask.
        turned = "" if shape.is_bytes else f", {int(shape.is_turned)}, {0 if shape.along_k else 1}"
        kinds = f"k{STEP_BYTES // (DEPTH_BYTES // shape.depth)}.f32.{shape.element}.{shape.b_element or shape.element}"
        for s in range(DEPTH_BYTES // STEP_BYTES):
            for part in range(shape.parts):
                registers = ", ".join(f"${part * count + i}" for i in range(count))
                text += f"""add.s64 a, <a>, {s * a_ahead >> 4}; add.s64 b, <b{part}>, {s * ahead >> 4};
                    wgmma.mma_async.sync.aligned.m64n{shape.columns}{kinds}
                    {{{registers}}}, a, b, p, 1, 1{turned};"""
        text += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1; }"
        first = a + ROWS * DEPTH_BYTES
        views: dict[str, Val | int] = {
            f"b{part}": descriptor(w, first + part * shape.part_bytes, 16 if shape.along_k else SLAB_BYTES, 1024)
            for part in range(shape.parts)
        }
        leading = SLAB_BYTES if shape.is_turned else 16
        new = w.asm(text, [s.get() for s in sums], a=descriptor(w, a + group * SLAB_BYTES, leading, 1024), named=views)
        for variable, value in zip(sums, new):
            variable.set(value)

    def store(self, sums: list[Val], rows: Sequence[Val], column: Val) -> None:
        """Each thread has two neighbouring columns of every eight, in two rows that are eight apart: a warp has eight
        short pieces of rows. Lanes exchange sums until it has two pieces of 32 columns, which are whole sectors of
        memory; `rows` of C are then those of `rows_of_thread`. What the epilogue reads is read for many of them before
        the first is stored: one wait instead of many."""
        shape, lane = self.shape, self.inside & 31
        column = column + ((lane & 3) * 2 + (lane >> 3) * 8)
        count = shape.columns // 2
        # By the number of 32 columns, the upper or lower eight rows, and which two of these.
        places = [(j, half, i) for j in range(shape.columns // 32) for half in range(2) for i in range(4)]
        for start in range(0, len(places), READ_AHEAD):
            some = places[start : start + READ_AHEAD]
            at = [(rows[4 * half + i], self.w.wide(column + 32 * j)) for j, half, i in some]
            read = [self.epilogue.read(*place) for place in at]
            pairs: dict[tuple[int, int, int], list[Val]] = {}
            for j, half in dict.fromkeys((j, half) for j, half, _ in some):
                firsts = [part * count + 2 * half + e for part in range(shape.parts) for e in range(2)]
                turned = [self.in_whole_rows([sums[f + 16 * j + 4 * i] for i in range(4)], lane) for f in firsts]
                for i in range(4):
                    pairs[j, half, i] = [values[i] for values in turned]
            for place, key, values in zip(at, some, read):
                self.epilogue.finish(*place, pairs[key], values)

    def in_whole_rows(self, values: list[Val], lane: Val) -> list[Val]:
        """Of four groups of eight columns that a lane has in its row, those of one group in four rows: two apart, from
        the first or second of eight on. Lanes whose numbers differ in a bit exchange two of four."""
        w = self.w
        for bit, step in ((16, 2), (8, 1)):
            is_upper = (lane & bit).equals(bit)
            for i in (i for i in range(4) if not i & step):
                low, high = values[i], values[i + step]
                given = w.select(is_upper, low, high, "float")
                found = w.call("llvm.nvvm.shfl.sync.bfly.f32", "float", w.value(-1), given, w.value(bit), w.value(31))
                values[i] = w.select(is_upper, found, low, "float")
                values[i + step] = w.select(is_upper, high, found, "float")
        return values

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
