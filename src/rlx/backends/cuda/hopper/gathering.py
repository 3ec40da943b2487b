"""Products whose rows of A lie anywhere: threads bring them to where the copy engine would have put them.

All threads of the group that fills the ring copy, 16 bytes at a time; one of them lets the copy engine bring B. Each
thread has one place in all of its rows, so that neighbours read what lies side by side.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cuda.hopper.instructions import Ring, barrier_expect, barrier_wait
from rlx.backends.cuda.hopper.product import ProductWriter
from rlx.backends.cuda.hopper.product_shape import DEPTH_BYTES, ROWS
from rlx.backends.cuda.hopper.writer import Val

# Threads that fill the ring, and what each of them copies at a time.
PRODUCERS = 128
CHUNK_BYTES = 16
# Such pieces of a row in one stage, and the rows from one of a thread to its next.
CHUNKS = DEPTH_BYTES // CHUNK_BYTES
LINES = PRODUCERS // CHUNKS


class GatheringWriter(ProductWriter):
    """What gathering kernels share."""

    full_arrivals = 1 + PRODUCERS

    def own_lines(self) -> tuple[Val, list[Val]]:
        """The chunk that a thread has of every row, and its rows in a tile."""
        number = self.thread // CHUNKS
        return self.thread % CHUNKS, [number + i * LINES for i in range(ROWS // LINES)]

    def fill(self, ring: Ring, copy_b: Callable[[Val, Val, Val], None], gather: Callable[[Val, Val], None]) -> None:
        """Fill stages with a tile, along all of K: one thread has `copy_b` bring B to an address for a step, with a
        barrier; all of them `gather` rows of A to an address for a step."""
        w, shape = self.w, self.shape
        with w.loop(0, self.steps) as step:
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
        to = stage + (first * DEPTH_BYTES + (chunk ^ (first & 7)) * CHUNK_BYTES) + number * LINES * DEPTH_BYTES
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
        self.w.asm("fence.proxy.async.shared::cta;")
