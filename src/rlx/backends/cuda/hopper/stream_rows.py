"""The kernel of a product of up to eight rows with a weight [n, k], f16 or bf16, for chips with a copy engine.

Every multiprocessor has one block, which goes through its columns of C eight at a time. One warp brings the weights of
all of them through a ring of stages in shared memory, and never waits for a product: so memory is busy from the first
stage to the last. Where weights are not computed by a kernel in front, the first stages are on their way before that
has ended. Eight warps share K: the weight is the second operand of `mma`, and the few rows of A are
read from memory as they are needed. K may be summed up in any order, so a lane's 16 bytes side by side are what the
instruction calls its elements. The sums of the warps meet in shared memory in an order that does not change.

Rows of A that are f32 are cut into three bf16 numbers each, whose sum they are: nothing is rounded but the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, FinishCall
from rlx.backends.cuda.hopper.instructions import (
    Ring,
    barrier_arrive,
    barrier_init,
    barrier_wait,
    barriers_made,
    copy_line,
    mma,
    sync_threads,
    sync_warp,
)
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

WARPS = 8
CONSUMERS = 32 * WARPS
THREADS = CONSUMERS + 32
# Columns of C that are computed together, and rows of A at most: those of one `mma`.
UNIT, ROWS = 8, 8
# Elements of K of a stage, those of one warp, and those that its four lanes of a row read at a time.
DEPTH = 1024
SHARE, STEP = DEPTH // WARPS, 32
# Half a line of memory more for each row of a stage, so that neighbouring rows begin at other banks.
PITCH = 2 * DEPTH + 64
STAGE_BYTES = UNIT * PITCH
# Stages at most. What is on its way before the kernel in front has ended is time won, byte for byte; but a block that
# needs few of them leaves room for that of the next product beside it.
MOST_STAGES = 8
# Barriers of a stage: it is full, it is empty.
BARRIER_BYTES = MOST_STAGES * 16


class StreamShape(NamedTuple):
    """`parts` products of the same A."""

    parts: int
    element: str  # "bf16" or "f16", the type of the weights
    is_wide: bool = False  # A is f32

    @property
    def sums_bytes(self) -> int:
        """What the warps of a block find for a unit."""
        return WARPS * self.parts * ROWS * UNIT * 4

    @property
    def ring_at(self) -> int:
        """Where the stages begin: behind barriers, and sums of two units, so that those of one are read while the next
        are written."""
        return -(-(BARRIER_BYTES + 2 * self.sums_bytes) // 128) * 128

    def shared_bytes(self, stages: int) -> int:
        return self.ring_at + stages * STAGE_BYTES

    def most_stages(self, room: int) -> int:
        """Of a block that may have so many bytes."""
        return min(MOST_STAGES, (room - self.ring_at) // STAGE_BYTES)

    def stages(self, units: int, depth: int, room: int) -> int:
        """For a block that has so many units: no more than it fills."""
        return min(self.most_stages(room), units * self.parts * -(-depth // DEPTH))


def stream_rows_text(name: str, shape: StreamShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: the address of A and its pitch in bytes, the same of every weight (i64), then
    rows, columns, depth, stages, and whether weights are there before kernels in front have ended (i32), then those of
    the epilogue. The depth is a multiple of 8."""
    return _StreamRows(name, shape, finish).text(triple)


class _StreamRows:
    def __init__(self, name: str, shape: StreamShape, finish: FinishCall) -> None:
        # Registers for two blocks: that of the next product comes while this one ends.
        w = self.w = Writer(name, THREADS, 2)
        self.shape = shape
        self.a, self.a_pitch = w.param("a_at", "i64"), w.param("a_pitch", "i64")
        self.bs = [(w.param(f"b{i}_at", "i64"), w.param(f"b{i}_pitch", "i64")) for i in range(shape.parts)]
        self.rows, self.columns, self.depth = (w.param(n, "i32") for n in ("rows", "columns", "depth"))
        self.stages, self.is_fixed = (w.param(n, "i32") for n in ("stages", "is_fixed"))
        self.epilogue = EpilogueWriter(w, finish)
        self.memory = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.sums = self.memory + BARRIER_BYTES
        self.ring = self.memory + shape.ring_at
        self.thread = w.register("tid.x")
        self.lane, self.warp = self.thread & 31, self.thread >> 5
        self.first, self.stride = w.register("ctaid.x"), w.register("nctaid.x")
        self.units = (self.columns + (UNIT - 1)) // UNIT

    def full(self, stage: Val) -> Val:
        return self.memory + stage * 16

    def empty(self, stage: Val) -> Val:
        return self.memory + stage * 16 + 8

    def text(self, triple: str) -> str:
        w = self.w
        w.let_next_begin()
        with w.when(self.thread < self.stages):
            barrier_init(w, self.full(self.thread), 1)
            barrier_init(w, self.empty(self.thread), WARPS)
            barriers_made(w)
        sync_threads(w, 0, THREADS)
        w.either(self.thread < CONSUMERS, self.consume, self.produce)
        return w.module(triple, self.epilogue.call.text)

    def line(self, start: Val, pitch: Val, number: Val, count: Val) -> Val:
        """The address of a row; behind the last one is the last one."""
        return start + self.w.wide(self.w.least(number, count - 1)) * pitch

    # The warp that brings weights: a lane for each row of a unit.

    def produce(self) -> None:
        w = self.w
        with w.when(self.lane < UNIT):
            with w.when(self.is_fixed.equals(0)):
                w.wait_for_others()
            ring = Ring(w, self.stages)
            with w.loop(self.first, self.units, self.stride) as unit:
                for at, pitch in self.bs:
                    row = self.line(at, pitch, unit * UNIT + self.lane, self.columns)
                    with w.loop(0, self.depth, DEPTH) as start:
                        self.bring(row, start, ring)

    def bring(self, row: Val, start: Val, ring: Ring) -> None:
        w, stage = self.w, ring.stage.get()
        barrier_wait(w, self.empty(stage), ring.parity.get() ^ 1)
        size = w.least(self.depth - start, DEPTH) << 1
        full = self.full(stage)
        with w.when(self.lane.equals(0)):
            w.asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [<b>], <n>;", b=full, n=size * UNIT)
        w.asm(f"bar.warp.sync {(1 << UNIT) - 1};")
        copy_line(w, self.ring + stage * STAGE_BYTES + self.lane * PITCH, row + (w.wide(start) << 1), size, full)
        ring.advance()

    # The warps that multiply.

    def consume(self) -> None:
        w, shape = self.w, self.shape
        w.wait_for_others()
        ring, turn = Ring(w, self.stages), Var(w, 0)
        own = self.lane >> 2
        has_row = own < self.rows
        line = self.line(self.a, self.a_pitch, own, self.rows)
        with w.loop(self.first, self.units, self.stride) as unit:
            # A thread for each pair of columns of a row will finish it; what that reads is there by then.
            place = w.wide(self.thread >> 2), w.wide(unit * UNIT + (self.thread & 3) * 2)
            read = self.epilogue.read(*place)
            sums = [[Var(w, 0.0, "float") for _ in range(4)] for _ in range(shape.parts)]
            for total in sums:
                with w.loop(0, self.depth, DEPTH) as start:
                    self.multiply(line, has_row, start, total, ring)
            here = self.sums + turn.get() * shape.sums_bytes
            with w.when(has_row):
                self.put(here, own, sums)
            sync_threads(w, 1, CONSUMERS)
            with w.when(self.thread < self.rows * (UNIT // 2)):
                self.epilogue.finish(*place, self.joined(here), read)
            turn.set(turn.get() ^ 1)

    def multiply(self, line: Val, has_row: Val, start: Val, total: Sequence[Var], ring: Ring) -> None:
        """One stage: this warp's share of its elements of K."""
        w, zero = self.w, self.w.value(0)
        places = [start + self.warp * SHARE + (self.lane & 3) * 8 + i * STEP for i in range(SHARE // STEP)]
        there = [place < self.depth for place in places]
        rows = [self.row(line, place, has_row & is_there) for place, is_there in zip(places, there)]
        stage = ring.stage.get()
        barrier_wait(w, self.full(stage), ring.parity.get())
        at = self.ring + stage * STAGE_BYTES + (self.lane >> 2) * PITCH + self.warp * (2 * SHARE)
        at = at + (self.lane & 3) * 16
        weights = [
            w.asm("ld.shared.v4.b32 {$0, $1, $2, $3}, [<a>];", results=["i32"] * 4, a=at + i * 2 * STEP)
            for i in range(len(places))
        ]
        sync_warp(w)
        with w.when(self.lane.equals(0)):
            barrier_arrive(w, self.empty(stage))
        ring.advance()
        for x, weight, is_there in zip(rows, weights, there):
            # Behind the end of K is what the stage had before.
            kept = [w.select(is_there, word, 0) for word in weight]
            parts = self.cut(x) if self.shape.is_wide else [x]
            for i in (0, 2):
                # Of 16 rows that an instruction multiplies the upper eight may be further parts of the lower ones.
                for n in range(0, len(parts), 2):
                    low, high = parts[n], parts[n + 1] if n + 1 < len(parts) else [zero] * 4
                    a = (low[i], high[i], low[i + 1], high[i + 1])
                    mma(w, self.shape.element, total, a, (kept[i], kept[i + 1]))

    def row(self, line: Val, place: Val, is_there: Val) -> list[Val]:
        """Eight elements of a row of A as they lie in memory, or zeros."""
        w = self.w
        if not self.shape.is_wide:
            return self.words(line + (w.wide(place) << 1), is_there)
        start = line + (w.wide(place) << 2)
        return [*self.words(start, is_there), *self.words(start + 16, is_there)]

    def cut(self, words: Sequence[Val]) -> list[list[Val]]:
        """Eight elements of f32 as words of two bf16: their first, second and third 8 bits."""
        w, parts = self.w, []
        for _ in range(3):
            parts.append([w.call("llvm.nvvm.prmt", "i32", *words[i : i + 2], w.value(0x7632)) for i in (0, 2, 4, 6)])
            words = [self.rest(word) for word in words]
        return parts

    def rest(self, word: Val) -> Val:
        """What is left of a float without its upper half, exactly; nothing of an infinite one."""
        w = self.w
        upper = word & -65536
        both = [w.emit(f"bitcast i32 {x.name} to float", "float") for x in (word, upper)]
        left = w.emit(f"bitcast float {(both[0] - both[1]).name} to i32", "i32")
        return w.select(word.equals(upper), 0, left)

    def words(self, address: Val, is_there: Val) -> list[Val]:
        """16 bytes, or zeros."""
        w = self.w
        zeros = "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;"
        load = "@p ld.global.v4.b32 {$0, $1, $2, $3}, [<a>];"
        text = f"{{ .reg .pred p; setp.ne.u32 p, <k>, 0; {zeros} {load} }}"
        return w.asm(text, results=["i32"] * 4, early=True, a=address, k=w.select(is_there, 1, 0))

    def put(self, here: Val, row: Val, sums: Sequence[Sequence[Var]]) -> None:
        """What a warp has of its row: two neighbouring columns in each lane."""
        for part, total in enumerate(sums):
            number = (self.warp * self.shape.parts + part) * ROWS + row
            at = here + number * (UNIT * 4) + (self.lane & 3) * 8
            found = [t.get() for t in total]
            # The upper rows are parts of the lower ones, or zero.
            both = [found[i] + found[i + 2] for i in range(2)] if self.shape.is_wide else found[:2]
            self.w.asm("st.shared.v2.b32 [<a>], {<x>, <y>};", a=at, x=both[0], y=both[1])

    def joined(self, here: Val) -> list[Val]:
        """The sums of all warps for the two columns of this thread, of each part."""
        w, parts = self.w, self.shape.parts
        totals: list[Val] = []
        for part in range(parts):
            both: list[Val] = []
            for warp in range(WARPS):
                at = here + (self.thread << 3) + (warp * parts + part) * (ROWS * UNIT * 4)
                found = w.asm("ld.shared.v2.b32 {$0, $1}, [<a>];", results=["float"] * 2, a=at)
                both = [x + y for x, y in zip(both, found)] if both else found
            totals += both
        return totals
