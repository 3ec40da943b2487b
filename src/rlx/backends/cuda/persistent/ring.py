"""`Stages`: the ring of a block as its warps see it. One warp fills stages, in the order in which they will be read."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cuda.hopper.instructions import Ring, barrier_arrive, barrier_wait, copy_line
from rlx.backends.cuda.hopper.writer import Val, Var
from rlx.backends.cuda.persistent.exchange import Block

# Stages on their way at a time: bytes in flight queue up before everybody's words, and so many keep memory busy.
FLIGHT = 3
# Lanes that bring stages: one for each row of a unit.
BRINGING = 8


class Stages:
    """A position in the ring; those who fill it and those who read it each have their own."""

    def __init__(self, block: Block) -> None:
        self.block, self.w = block, block.w
        self.ring = Ring(block.w, block.plan.stages)

    def full(self, stage: Val) -> Val:
        return self.block.shared("barriers") + stage * 16

    def empty(self, stage: Val) -> Val:
        return self.block.shared("barriers") + stage * 16 + 8

    def memory(self, stage: Val) -> Val:
        return self.block.shared("ring") + stage * self.block.plan.stage_bytes


class Read(Stages):
    """For warps that multiply: all of them read every stage."""

    def take(self) -> Val:
        """The next stage, when it is full."""
        stage = self.ring.stage.get()
        barrier_wait(self.w, self.full(stage), self.ring.parity.get())
        self.ring.advance()
        return stage

    def release(self, *stages: Val) -> None:
        """This warp has read them."""
        self.block.together()
        with self.w.when(self.block.lane.equals(0)):
            for stage in stages:
                barrier_arrive(self.w, self.empty(stage))


class Fill(Stages):
    """For the lanes that bring stages; all go through the same instructions."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.landed, self.issued = Ring(block.w, block.plan.stages), Var(block.w, 0)
        create = "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;"
        (self.read_once,) = self.w.asm(create, results=["i64"])

    def bring(self, size: Val, copy: Callable[[Val, Val], None]) -> None:
        """Fill the next stage with `size` bytes; `copy` gets its address and its barrier."""
        w = self.w
        with w.when(self.issued.get() > FLIGHT - 1):
            barrier_wait(w, self.full(self.landed.stage.get()), self.landed.parity.get())
            self.landed.advance()
        self.issued.set(self.issued.get() + 1)
        stage = self.ring.stage.get()
        barrier_wait(w, self.empty(stage), self.ring.parity.get() ^ 1)
        full = self.full(stage)
        with w.when(self.block.lane.equals(0)):
            w.asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [<b>], <n>;", b=full, n=size)
        w.asm(f"bar.warp.sync {(1 << BRINGING) - 1};")
        copy(self.memory(stage), full)
        self.ring.advance()

    def copy_weights(self, to: Val, source: Val, size: Val, barrier: Val) -> None:
        """Bytes that are read once in a step, and so leave the cache first."""
        self.w.asm(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
            " [<to>], [<from>], <n>, [<b>], <p>;",
            named={"to": to, "from": source, "n": size, "b": barrier, "p": self.read_once},
        )

    def copy_shared(self, to: Val, source: Val, size: Val, barrier: Val) -> None:
        """Bytes that many blocks or many steps read."""
        copy_line(self.w, to, source, size, barrier)
