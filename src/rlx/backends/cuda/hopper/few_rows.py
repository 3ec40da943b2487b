"""The kernel of a product of few rows with a weight [n, k], f16 or bf16, which is read once, at the memory's speed.

Sixteen rows of the weight belong to a block, whose warps share K. The weight is the first operand of `mma`, straight
from memory: K may be summed up in any order, so a lane's 16 bytes side by side are what the instruction calls its
elements, as long as the rows of A, the second operand, are read in the same way. The sums of the warps meet in shared
memory in an order that does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, FinishCall
from rlx.backends.cuda.hopper.instructions import mma, sync_block
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

WARPS = 8
THREADS = 32 * WARPS
# Rows of the weight that belong to a block: columns of C.
COLUMNS = 16
# Rows of A that one `mma` multiplies.
ROWS = 8
# Elements of K that the four lanes of a row read at a time, and how often before the first is used.
STEP, AHEAD = 32, 4
CHUNK = STEP * AHEAD
# Bytes of the weights of a block that are brought to the L2 cache while the kernel in front still runs.
EARLY_BYTES = 32 << 10


class FewShape(NamedTuple):
    """`parts` products of the same A, of which there are at most `tiles` times 8 rows."""

    parts: int
    tiles: int
    element: str  # "bf16" or "f16"
    begins_early: bool = False

    @property
    def sums(self) -> int:
        """Of a warp, for each part."""
        return COLUMNS * ROWS * self.tiles

    @property
    def shared_bytes(self) -> int:
        return WARPS * self.parts * self.sums * 4

    @property
    def blocks_per_multiprocessor(self) -> int:
        return 3 if self.parts * self.tiles == 1 else 2


def few_rows_text(name: str, shape: FewShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: the address of A and its pitch in bytes, the same of every weight (i64), then
    rows, columns and depth (i32), then those of the epilogue. The depth is a multiple of 8."""
    return _FewRows(name, shape, finish).text(triple)


class _FewRows:
    def __init__(self, name: str, shape: FewShape, finish: FinishCall) -> None:
        w = self.w = Writer(name, THREADS, shape.blocks_per_multiprocessor)
        self.shape = shape
        self.a, self.a_pitch = w.param("a_at", "i64"), w.param("a_pitch", "i64")
        self.bs = [(w.param(f"b{i}_at", "i64"), w.param(f"b{i}_pitch", "i64")) for i in range(shape.parts)]
        self.rows, self.columns, self.depth = (w.param(n, "i32") for n in ("rows", "columns", "depth"))
        self.epilogue = EpilogueWriter(w, finish)
        self.memory = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.thread = w.register("tid.x")
        self.lane, self.warp = self.thread & 31, self.thread >> 5
        self.first = w.register("ctaid.x") * COLUMNS

    def text(self, triple: str) -> str:
        w, shape = self.w, self.shape
        if shape.begins_early:
            self.begin_early()
        inside = (self.lane & 3) * 8
        own = self.lane >> 2
        rows = [self.line(self.a, self.a_pitch, own + t * ROWS, self.rows) for t in range(shape.tiles)]
        lines = [
            [self.line(at, pitch, self.first + own + half * 8, self.columns) for half in range(2)]
            for at, pitch in self.bs
        ]
        sums = [[Var(w, 0.0, "float") for _ in range(4)] for _ in range(shape.parts * shape.tiles)]
        whole = self.depth // CHUNK * CHUNK
        with w.loop(self.warp * CHUNK, whole, WARPS * CHUNK) as start:
            self.multiply(rows, lines, sums, [start + inside + i * STEP for i in range(AHEAD)])
        # What is left is shared step by step; lanes behind the end have zeros.
        with w.loop(whole + self.warp * STEP, self.depth, WARPS * STEP) as start:
            self.multiply(rows, lines, sums, [start + inside], is_last=True)
        self.put(sums)
        sync_block(w)
        self.join()
        return w.module(triple, self.epilogue.call.text)

    def begin_early(self) -> None:
        """Ask for the first weights before what the kernel in front stores is there: a row by each thread."""
        w, parts = self.w, self.shape.parts
        w.let_next_begin()
        size = w.least(self.depth << 1, EARLY_BYTES // (parts * COLUMNS)) & -16
        for number, (at, pitch) in enumerate(self.bs):
            own = self.thread - number * COLUMNS
            with w.when((own > -1) & (own < COLUMNS)):
                address = self.line(at, pitch, self.first + own, self.columns)
                w.asm("cp.async.bulk.prefetch.L2.global [<a>], <n>;", a=address, n=size)
        w.wait_for_others()

    def line(self, start: Val, pitch: Val, number: Val, count: Val) -> Val:
        """The address of a row; behind the last one is the last one."""
        return start + self.w.wide(self.w.least(number, count - 1)) * pitch

    def multiply(
        self,
        rows: Sequence[Val],
        lines: Sequence[Sequence[Val]],
        sums: Sequence[Sequence[Var]],
        places: Sequence[Val],
        is_last: bool = False,
    ) -> None:
        """A lane's elements of all rows at some places of K: all reads come before the first product."""
        shape = self.shape
        weights = [[[self.read(x, p, is_last, True) for x in both] for both in lines] for p in places]
        others = [[self.read(row, p, is_last, False) for row in rows] for p in places]
        for weight, other in zip(weights, others):
            for part, (low, high) in enumerate(weight):
                for tile, x in enumerate(other):
                    total = sums[part * shape.tiles + tile]
                    for i in (0, 2):
                        mma(self.w, shape.element, total, (low[i], high[i], low[i + 1], high[i + 1]), (x[i], x[i + 1]))

    def read(self, line: Val, place: Val, is_last: bool, is_weight: bool) -> list[Val]:
        """16 bytes. Weights are read once and do not stay in the first cache."""
        w = self.w
        kind = ".L1::no_allocate.L2::256B" if is_weight else ""
        load = f"ld.global.nc{kind}.v4.b32 {{$0, $1, $2, $3}}, [<a>];"
        address = line + (w.wide(place) << 1)
        if not is_last:
            return w.asm(load, results=["i32"] * 4, a=address)
        zeros = "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;"
        text = f"{{ .reg .pred p; setp.lt.s32 p, <k>, <n>; {zeros} @p {load} }}"
        # Results must not share registers with what is still to be read.
        return w.asm(text, results=["i32"] * 4, early=True, a=address, k=place, n=self.depth)

    def put(self, sums: Sequence[Sequence[Var]]) -> None:
        """What a warp has: for each part and tile [row of A, column], so that pairs of columns lie side by side."""
        w = self.w
        start = self.memory + self.warp * (self.shape.parts * self.shape.sums * 4)
        column, row = self.lane >> 2, (self.lane & 3) * 2
        for number, four in enumerate(sums):
            for i, variable in enumerate(four):
                place = (row + i % 2) * COLUMNS + column + i // 2 * 8
                at = start + (place << 2) + number * COLUMNS * ROWS * 4
                w.asm("st.shared.b32 [<a>], <x>;", a=at, x=variable.get())

    def join(self) -> None:
        """A thread for each pair of columns of a row adds up what the warps have, in their order."""
        w, shape = self.w, self.shape
        pairs = COLUMNS // 2
        with w.when(self.thread < ROWS * shape.tiles * pairs):
            row, pair = self.thread // pairs, self.thread % pairs
            totals: list[Val] = []
            for part in range(shape.parts):
                both: list[Val] = []
                for warp in range(WARPS):
                    offset = (warp * shape.parts + part) * shape.sums * 4
                    at = self.memory + (self.thread << 3) + offset
                    found = w.asm("ld.shared.v2.b32 {$0, $1}, [<a>];", results=["float"] * 2, a=at)
                    both = [x + y for x, y in zip(both, found)] if both else found
                totals += both
            place = w.wide(row), w.wide(self.first + pair * 2)
            self.epilogue.finish(*place, totals, self.epilogue.read(*place))
