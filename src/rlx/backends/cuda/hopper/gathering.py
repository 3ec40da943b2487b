"""Products whose rows of A lie anywhere: threads bring them to where the copy engine would have put them.

All threads of the group that fills the ring copy, 16 bytes at a time; one of them lets the copy engine bring B. Each
thread has one place in all of its rows, so that neighbours read what lies side by side.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cuda.hopper.instructions import Ring, barrier_expect, barrier_wait, show_stores
from rlx.backends.cuda.hopper.product import ProductWriter
from rlx.backends.cuda.hopper.product_shape import DEPTH_BYTES, ROWS
from rlx.backends.cuda.hopper.writer import Val

# What a thread copies at a time, and such pieces of a row in one stage.
CHUNK_BYTES = 16
CHUNKS = DEPTH_BYTES // CHUNK_BYTES


def gatherers(columns: int) -> int:
    """Threads that fill the ring for tiles of so many columns. Their addresses are long chains of instructions: where a
    stage is soon multiplied more warps hide each other's waits, wide tiles leave no registers for them."""
    return 256 if columns <= 128 else 128


class GatheringWriter(ProductWriter):
    """What gathering kernels share."""

    def declare_operands(self) -> None:
        """B by its boxes; A as it lies, from `source` on."""
        self.map_b = self.w.tensor_map("map_b")
        self.source = self.w.param("source", "i64")
        self.declare_tiles()

    @property
    def full_arrivals(self) -> int:  # type: ignore[override]
        return 1 + self.producers

    @property
    def lines(self) -> int:
        """The rows from one of a thread to its next."""
        return self.producers // CHUNKS

    def give_registers(self) -> None:
        """To those that multiply."""
        self.w.asm(f"setmaxnreg.dec.sync.aligned.u32 {56 if self.producers > 128 else 72};")

    def consume(self) -> None:
        self.consume_with(200 if self.producers > 128 else 216)

    def own_lines(self) -> tuple[Val, list[Val]]:
        """The chunk that a thread has of every row, and its rows in a tile."""
        number = self.thread // CHUNKS
        return self.thread % CHUNKS, [number + i * self.lines for i in range(ROWS // self.lines)]

    def fill(self, ring: Ring, copy_b: Callable[[Val, Val, Val], None], gather: Callable[[Val, Val], None]) -> None:
        """Fill stages with a tile, along its part of K: one thread has `copy_b` bring B to an address for a step, with
        a barrier; all of them `gather` rows of A to an address for a step."""
        w, shape = self.w, self.shape
        with w.loop(self.first_step, self.end_step) as step:
            stage = ring.stage.get()
            barrier_wait(w, self.empty(stage), ring.parity.get() ^ 1)
            a = self.memory + stage * shape.stage_bytes
            with w.when(self.thread.equals(0)):
                barrier_expect(w, self.full(stage), shape.part_bytes)
                copy_b(a + ROWS * DEPTH_BYTES, step * shape.depth, self.full(stage))
            gather(a, step)
            self.arrive_when_copied(self.full(stage))
            ring.advance()

    def put(self, stage: Val, number: int, source: Val, size: Val | None = None) -> None:
        """Copy the chunk of the row of this thread with a number to a stage; of `size` bytes, and zeros behind them.
        A swizzled row has its chunks in an order that its place decides."""
        w = self.w
        chunk, first = self.thread % CHUNKS, self.thread // CHUNKS
        to = stage + (first * DEPTH_BYTES + (chunk ^ (first & 7)) * CHUNK_BYTES) + number * self.lines * DEPTH_BYTES
        named: dict[str, Val | int] = {"to": to, "from": source}
        if size is None:
            w.asm("cp.async.cg.shared.global [<to>], [<from>], 16;", named=named)
        else:
            w.asm("cp.async.cg.shared.global [<to>], [<from>], 16, <n>;", named=named | {"n": size})

    def arrive_when_copied(self, barrier: Val) -> None:
        self.w.asm("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [<b>];", b=barrier)

    def await_full(self, stage: Val) -> None:
        super().await_full(stage)
        # Tensor cores see memory another way than the copies of threads.
        show_stores(self.w)
