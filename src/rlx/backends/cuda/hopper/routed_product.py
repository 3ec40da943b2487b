"""The kernel of products with experts on Hopper's tensor cores: row i of C is row i of A by the matrix of its expert.

Tiles are those of `product`, of the rows of one expert each: which these are says the route
(`rlx.ops.lowered.expert_products`), which lies in the memory of the GPU, so that nothing waits for the host. Rows of an
expert lie anywhere in A: all threads that fill the ring gather them, 16 bytes at a time, into the places where the copy
engine would have put them, while one of them lets it bring the tile of the matrix. A group of warps whose rows would
all be beyond those of the expert multiplies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cuda.hopper.epilogue import FinishCall
from rlx.backends.cuda.hopper.gathering import CHUNK_BYTES, GatheringWriter
from rlx.backends.cuda.hopper.instructions import Ring, barrier_wait, copy_box, sync_threads
from rlx.backends.cuda.hopper.product_shape import (
    DEPTH_BYTES,
    ROWS,
    SLAB_BYTES,
    THREADS,
    ProductShape,
    check_shape,
)
from rlx.backends.cuda.hopper.warp_groups import rows_of_thread
from rlx.backends.cuda.hopper.writer import Val, Var


def routed_product_text(
    name: str, shape: ProductShape, experts: int, depth: int, finish: FinishCall, triple: str
) -> str:
    """The LLVM module, for rows of `depth` elements. Parameters: the tensor map of all matrices (depth, column, expert
    or column, depth, expert), the address of A, its bytes from row to row, the address of the route (i64), the rows,
    tiles of columns and of depth (i32), then those of the epilogue."""
    check_shape(shape)
    return _Routed(name, shape, experts, depth, finish).text(triple)


def routed_shared_bytes(shape: ProductShape, experts: int) -> int:
    """Behind the barriers are the ends of all experts' rows."""
    return shape.shared_bytes + 4 * experts


@dataclass
class _Place:
    """Where a walk along the tiles is: the chosen expert by its place in the route, the tiles before it, and its
    rows."""

    slot: Var
    before: Var
    begin: Var
    end: Var


class _Routed(GatheringWriter):
    def __init__(self, name: str, shape: ProductShape, experts: int, depth: int, finish: FinishCall) -> None:
        self.experts, self.row_bytes = experts, depth * DEPTH_BYTES // shape.depth
        super().__init__(name, shape, finish)
        self.ends = self.barriers + 16 * shape.stages

    def declare_operands(self) -> None:
        w = self.w
        self.map_b = w.tensor_map("map_b")
        self.source, self.pitch, self.route = (w.param(n, "i64") for n in ("source", "pitch", "route_list"))
        self.rows, self.column_tiles, self.steps = (w.param(n, "i32") for n in ("all_rows", "columns", "steps"))

    # The route.

    def listed(self, place: Val) -> Val:
        """A number of the route."""
        address = self.route + self.w.wide(place) * 4
        return self.w.asm("ld.global.b32 $0, [<a>];", results=["i32"], a=address)[0]

    def row_at(self, place: Val) -> Val:
        """The row at a place among those of all experts; a false route leads to none that is not there."""
        found = self.listed(self.w.least(place, self.rows - 1) + 2 * self.experts)
        return self.w.most(self.w.least(found, self.rows - 1), 0)

    def end_of(self, slot: Val, begin: Val) -> Val:
        """Where the rows of a chosen expert end that begin at a place."""
        found = self.w.asm("ld.shared.b32 $0, [<a>];", results=["i32"], a=self.ends + slot * 4)[0]
        return self.w.most(self.w.least(found, self.rows), begin)

    def prepare(self) -> None:
        w = self.w
        with w.loop(self.thread, w.value(self.experts), THREADS) as slot:
            end = self.listed(slot + self.experts)
            w.asm("st.shared.b32 [<a>], <v>;", a=self.ends + slot * 4, v=end)

    def tiles_of(self, begin: Val, end: Val) -> Val:
        return ((end - begin + (ROWS - 1)) >> 7) * self.column_tiles

    def tile_count(self) -> Val:
        w = self.w
        total, begin = Var(w, 0), Var(w, 0)
        with w.loop(0, w.value(self.experts)) as slot:
            end = self.end_of(slot, begin.get())
            total.set(total.get() + self.tiles_of(begin.get(), end))
            begin.set(end)
        return total.get()

    def start(self) -> _Place:
        w = self.w
        zero = w.value(0)
        return _Place(Var(w, 0), Var(w, 0), Var(w, 0), Var(w, self.end_of(zero, zero)))

    def move_to(self, place: _Place, tile: Val) -> tuple[Val, Val, Val]:
        """Go on to the expert of a tile: its first row and column, and the row at which its expert ends. Tiles
        ascend."""
        w = self.w

        def is_behind() -> Val:
            here = place.before.get() + self.tiles_of(place.begin.get(), place.end.get())
            return (tile < here) ^ Val(w, "true", "i1")

        with w.loop_while(is_behind):
            place.before.set(place.before.get() + self.tiles_of(place.begin.get(), place.end.get()))
            place.slot.set(place.slot.get() + 1)
            place.begin.set(place.end.get())
            place.end.set(self.end_of(place.slot.get(), place.begin.get()))
        inside = tile - place.before.get()
        row_tiles = (place.end.get() - place.begin.get() + (ROWS - 1)) >> 7
        # Tiles of one part of the matrix follow each other, so that it is read once.
        return place.begin.get() + inside % row_tiles * ROWS, inside // row_tiles * self.shape.columns, place.end.get()

    # Threads that fill the ring.

    def produce(self) -> None:
        w, shape = self.w, self.shape
        w.asm("setmaxnreg.dec.sync.aligned.u32 56;")
        chunk, own = self.own_lines()
        ring, place = Ring(w, shape.stages), self.start()
        with w.loop(self.first, self.tiles, self.stride) as tile:
            row, column, end = self.move_to(place, tile)
            expert = w.most(w.least(self.listed(place.slot.get()), self.experts - 1), 0)
            lines = [
                self.source
                + w.wide(self.row_at(w.least(row + number, end - 1))) * self.pitch
                + w.wide(chunk * CHUNK_BYTES)
                for number in own
            ]
            self.fill(
                ring,
                lambda to, depth, barrier: self.copy_matrix(to, column, depth, expert, barrier),
                lambda stage, step: self.gather(stage, lines, step, chunk),
            )

    def copy_matrix(self, to: Val, column: Val, depth: Val, expert: Val, barrier: Val) -> None:
        if self.shape.along_k:
            copy_box(self.w, to, self.map_b, (depth, column, expert), barrier)
            return
        for slab in range(self.shape.columns // 64):
            copy_box(self.w, to + slab * SLAB_BYTES, self.map_b, (column + slab * 64, depth, expert), barrier)

    def gather(self, stage: Val, lines: list[Val], step: Val, chunk: Val) -> None:
        """A chunk of each line of this thread; what lies behind the end of a row is zeros."""
        w = self.w
        ahead = w.wide(step * DEPTH_BYTES)
        for i, line in enumerate(lines):
            if self.row_bytes % DEPTH_BYTES == 0:
                self.put(stage, i, line + ahead)
                continue
            left = w.value(self.row_bytes) - (step * DEPTH_BYTES + chunk * CHUNK_BYTES)
            size = w.most(w.least(left, CHUNK_BYTES), 0)
            # Nothing is read of a chunk that is not there, but its address must be one.
            source = w.emit(f"select i1 {(size > 0).name}, i64 {(line + ahead).name}, i64 {line.name}", "i64")
            self.put(stage, i, source, size)

    # Threads that multiply.

    def consume(self) -> None:
        w = self.w
        w.asm("setmaxnreg.inc.sync.aligned.u32 224;")
        self.group, self.inside = (self.thread >> 7) - 1, self.thread & 127
        self.ring, self.before = Ring(w, self.shape.stages), Var(w, 0)
        place = self.start()
        with w.loop(self.first, self.tiles, self.stride) as tile:
            row, column, end = self.move_to(place, tile)
            first = row + self.group * 64

            def multiplied(first: Val = first, column: Val = column, end: Val = end) -> None:
                done = self.summed()
                places = [first + r for r in rows_of_thread(self.inside)]
                # Rows behind the end of C are not stored.
                rows = [w.select(p < end, self.row_at(p), self.rows) for p in places]
                self.store(done, [w.wide(r) for r in rows], column)

            w.either(first < end, multiplied, self.skip)

    def skip(self) -> None:
        """Let the stages of a tile go by. Warps that multiply wait for each other, others have to: one that is late
        would find its stage filled twice."""
        w = self.w
        with w.loop(0, self.steps):
            stage = self.ring.stage.get()
            barrier_wait(w, self.full(stage), self.ring.parity.get())
            sync_threads(w, self.group + 1, 128)
            self.release(stage)
            self.ring.advance()
