"""The kernel of a product on the tensor cores of sm_80 and later: C = epilogue(A @ B, ..), f16 or bf16 in, sums in f32.

A block computes a tile of C. All its threads bring tiles of A and B into a ring of stages by asynchronous copies
(`cp.async`), two stages ahead at least; eight warps read fragments of them (`ldmatrix`), those of the next 16 along K
while the tensor cores multiply (`mma`), and finish what they have summed up themselves. Rows of a tile in shared memory
are 128 bytes whose pieces of 16 change places with the row, so that no two lanes meet in a bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, FinishCall
from rlx.backends.cuda.hopper.instructions import mma, sync_block
from rlx.backends.cuda.hopper.warp_tiles import copy_piece
from rlx.backends.cuda.hopper.writer import Val, Var, Writer
from rlx.errors import InternalError

WARPS = 8
THREADS = 32 * WARPS
# Warps along the rows and along the columns of a tile.
ROW_WARPS, COLUMN_WARPS = 2, 4
# Elements along K of a stage: a row of 128 bytes.
DEPTH = 64
# Rows of tiles that are walked before the next column of them, so that the L2 cache keeps both operands.
BAND = 8
# Pairs of elements whose operands of the epilogue are read before the first of them is stored.
READ_AHEAD = 16
# Rows that all threads bring at a time, eight pieces of 16 bytes each.
LINES = THREADS // 8


class MmaShape(NamedTuple):
    """A tile of `rows` by `columns` of C for each of `parts` products of the same A, with so many `stages`; whether B
    lies side by side along K. With a `split`, numbers are sums: lines of A are [rests | rounded], those of B [rounded]
    or, if it is 2, [rounded | rests], each as long as the depth, a multiple of 64 (`rlx.kernels.gpu.expand_codes`)."""

    rows: int
    columns: int
    parts: int
    stages: int
    along_k: bool
    element: str  # "bf16" or "f16"
    split: int = 0
    is_turned: bool = False  # A lies side by side along its rows
    has_matrices: bool = False  # there are several of them

    @property
    def a_bytes(self) -> int:
        return self.rows * DEPTH * 2

    @property
    def part_bytes(self) -> int:
        return self.columns * DEPTH * 2

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.parts * self.part_bytes

    @property
    def shared_bytes(self) -> int:
        return 128 + self.stages * self.stage_bytes

    @property
    def height(self) -> int:
        """Rows of a warp."""
        return self.rows // ROW_WARPS

    @property
    def width(self) -> int:
        """Columns of a warp, of each part."""
        return self.columns // COLUMN_WARPS


def mma_product_text(name: str, shape: MmaShape, finish: FinishCall, triple: str) -> str:
    """The LLVM module. Parameters: the address of A and its pitch in bytes, the same of every B, with several matrices
    bytes from one to the next of A and of B (i64), then rows, columns and depth (i32), then those of the epilogue. What
    lies side by side is a multiple of 8 elements."""
    if shape.rows % 64 or shape.columns % 64 or shape.stages < 2:
        raise InternalError(f"tiles of {shape.rows} x {shape.columns}, {shape.stages} stages")
    return _MmaProduct(name, shape, finish).text(triple)


class _MmaProduct:
    def __init__(self, name: str, shape: MmaShape, finish: FinishCall) -> None:
        w = self.w = Writer(name, THREADS)
        self.shape = shape
        self.a = w.param("a_at", "i64"), w.param("a_pitch", "i64")
        self.bs = [(w.param(f"b{i}_at", "i64"), w.param(f"b{i}_pitch", "i64")) for i in range(shape.parts)]
        apart = [w.param(f"{x}_matrix", "i64") for x in "ab"] if shape.has_matrices else []
        self.m, self.n, self.k = (w.param(name, "i32") for name in ("rows", "columns", "depth"))
        self.epilogue = EpilogueWriter(w, finish)
        base = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.memory = (base + 127) & -128
        self.thread = w.register("tid.x")
        self.lane, warp = self.thread & 31, self.thread >> 5
        self.warp_row, self.warp_column = warp // COLUMN_WARPS, warp % COLUMN_WARPS
        self.row, self.column = self.origin(w.register("ctaid.x"), apart)
        self.steps = (self.k + (DEPTH - 1)) // DEPTH * (shape.split + 1)

    def origin(self, tile: Val, apart: Sequence[Val]) -> tuple[Val, Val]:
        """The first row and column of a tile: bands of rows, column by column, and matrix by matrix."""
        w, shape = self.w, self.shape
        row_tiles = (self.m + (shape.rows - 1)) // shape.rows
        column_tiles = (self.n + (shape.columns - 1)) // shape.columns
        if apart:
            matrix = w.wide(tile // (row_tiles * column_tiles))
            tile = tile % (row_tiles * column_tiles)
            self.epilogue.matrix = matrix
            self.a, *self.bs = [(at + matrix * step, pitch) for (at, pitch), step in zip((self.a, *self.bs), apart)]
        band = column_tiles * BAND
        top = tile // band * BAND
        rows = w.least(row_tiles - top, BAND)
        inside = tile % band
        return (top + inside % rows) * shape.rows, inside // rows * shape.columns

    def text(self, triple: str) -> str:
        w, shape = self.w, self.shape
        for stage in range(shape.stages - 1):
            self.bring(w.value(stage), w.value(stage))
        count = shape.parts * (shape.height // 16) * (shape.width // 8)
        sums = [[Var(w, 0.0, "float") for _ in range(4)] for _ in range(count)]
        here, ahead = Var(w, 0), Var(w, shape.stages - 1)
        with w.loop(0, self.steps) as step:
            w.asm(f"cp.async.wait_group {shape.stages - 2};")
            # The stage is there for everybody, and everybody has read the one before it, which is filled next.
            sync_block(w)
            self.bring(step + (shape.stages - 1), ahead.get())
            self.multiply(sums, self.memory + here.get() * shape.stage_bytes)
            for variable in (here, ahead):
                following = variable.get() + 1
                variable.set(w.select(following.equals(shape.stages), 0, following))
        w.asm("cp.async.wait_all;")
        self.store([[v.get() for v in four] for four in sums])
        return w.module(triple, self.epilogue.call.text)

    # Copies.

    def bring(self, step: Val, stage: Val) -> None:
        """Start the copies of a stage; there may be nothing left to copy."""
        w, shape = self.w, self.shape
        with w.when(step < self.steps):
            to, k = self.memory + stage * shape.stage_bytes, step * DEPTH
            of_a, of_b = self.places(step) if shape.split else ((k, self.k), (k, self.k))
            if shape.is_turned:
                self.bring_slabs(to, *self.a, k, self.row, self.m, shape.rows)
            else:
                self.bring_lines(to, *self.a, self.row, self.m, *of_a, shape.rows)
            for part, (at, pitch) in enumerate(self.bs):
                target = to + (shape.a_bytes + part * shape.part_bytes)
                if shape.along_k:
                    self.bring_lines(target, at, pitch, self.column, self.n, *of_b, shape.columns)
                else:
                    self.bring_slabs(target, at, pitch, k, self.column, self.n, shape.columns)
        w.asm("cp.async.commit_group;")

    def places(self, step: Val) -> tuple[tuple[Val, Val], tuple[Val, Val]]:
        """Where a step begins in lines of A and of B, and where those end, if lines have several parts."""
        w, k = self.w, self.k
        per_part = k // DEPTH
        part, inside = step // per_part, step % per_part * DEPTH
        of_a, of_b = inside + w.select(part > 0, k, 0), inside
        if self.shape.split == 2:
            of_b = of_b + w.select(part.equals(1), k, 0)
        return (of_a, k * 2), (of_b, k * self.shape.split)

    def bring_lines(self, to: Val, at: Val, pitch: Val, first: Val, count: Val, k: Val, end: Val, lines: int) -> None:
        """Lines that lie side by side along K; behind the last one is the last one, behind the end of K zeros."""
        w = self.w
        piece, line = self.thread & 7, self.thread >> 3
        place = k + piece * 8
        target = to + line * 128 + ((piece ^ (line & 7)) << 4)
        for start in range(0, lines, LINES):
            number = w.least(first + line + start, count - 1)
            copy_piece(w, target + start * 128, at + w.wide(number) * pitch, place, end)

    def bring_slabs(self, to: Val, at: Val, pitch: Val, k: Val, first: Val, count: Val, columns: int) -> None:
        """Lines across K, slab by slab of 64 columns; zeros behind the end of K and behind the last column."""
        w = self.w
        piece, line = self.thread & 7, self.thread >> 3
        target = to + line * 128 + ((piece ^ (line & 7)) << 4)
        for start in range(0, DEPTH, LINES):
            number = k + line + start
            source = at + w.wide(w.least(number, self.k - 1)) * pitch
            # A line that is not there has no columns.
            limit = w.select(number < self.k, count, 0)
            for slab in range(columns // 64):
                place = first + piece * 8 + slab * 64
                copy_piece(w, target + (slab * DEPTH * 128 + start * 128), source, place, limit)

    # Products.

    def multiply(self, sums: list[list[Var]], stage: Val) -> None:
        """One stage: fragments of the next 16 along K are read before those that are there are multiplied."""
        shape = self.shape
        tall, wide = shape.height // 16, shape.width // 8
        following = self.fragments(stage, 0)
        for step in range(DEPTH // 16):
            (rows, parts), following = (
                following,
                self.fragments(stage, step + 1) if step < DEPTH // 16 - 1 else following,
            )
            for part, columns in enumerate(parts):
                for i, a in enumerate(rows):
                    for j, b in enumerate(columns):
                        mma(self.w, shape.element, sums[(part * tall + i) * wide + j], a, b)

    def fragments(self, stage: Val, step: int) -> tuple[list[list[Val]], list[list[list[Val]]]]:
        """Sixteen rows of A each, and eight columns of every B each, 16 deep."""
        shape, lane = self.shape, self.lane
        if shape.is_turned:
            rows = [self.rows_across(stage, step, i) for i in range(shape.height // 16)]
        else:
            line = stage + (self.warp_row * shape.height + (lane & 15)) * 128
            place = line + ((((lane >> 4) ^ (lane & 7)) << 4) ^ (step * 32))
            rows = [self.read(place, i * 16 * 128) for i in range(shape.height // 16)]
        parts = []
        for part in range(shape.parts):
            start = stage + (shape.a_bytes + part * shape.part_bytes)
            columns: list[list[Val]] = []
            for j in range(shape.width // 16):
                four = self.columns_along_k(start, step, j) if shape.along_k else self.columns_across(start, step, j)
                columns += [four[:2], four[2:]]
            parts.append(columns)
        return rows, parts

    def columns_along_k(self, start: Val, step: int, number: int) -> list[Val]:
        lane, width = self.lane, self.shape.width
        line = start + (self.warp_column * width + (lane & 7) + ((lane >> 4) << 3)) * 128
        piece = ((((lane >> 3) & 1) ^ (lane & 7)) << 4) ^ (step * 32)
        return self.read(line + piece, number * 16 * 128)

    def columns_across(self, start: Val, step: int, number: int) -> list[Val]:
        lane = self.lane
        column = self.warp_column * self.shape.width + number * 16
        return self.across(start, step, lane & 15, column, lane >> 4)

    def rows_across(self, start: Val, step: int, number: int) -> list[Val]:
        lane = self.lane
        row = self.warp_row * self.shape.height + number * 16
        return self.across(start, step, (lane & 7) + ((lane >> 4) << 3), row, (lane >> 3) & 1)

    def across(self, start: Val, step: int, line: Val, column: Val, piece: Val) -> list[Val]:
        """Lines are those of K here, turned while they are read."""
        slab, inside = column >> 6, ((column & 63) >> 3) + piece
        place = start + slab * (DEPTH * 128) + line * 128 + ((inside ^ (line & 7)) << 4)
        return self.read(place, step * 16 * 128, ".trans")

    def read(self, place: Val, offset: int, turned: str = "") -> list[Val]:
        text = f"ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 {{$0, $1, $2, $3}}, [<a>+{offset}];"
        return self.w.asm(text, results=["i32"] * 4, a=place)

    # Results.

    def store(self, sums: list[list[Val]]) -> None:
        """Each lane has two neighbouring columns of every eight, in two rows that are eight apart. What the epilogue
        reads is read for many of them before the first is stored."""
        w, shape = self.w, self.shape
        tall, wide = shape.height // 16, shape.width // 8
        row = self.row + self.warp_row * shape.height + (self.lane >> 2)
        column = self.column + self.warp_column * shape.width + (self.lane & 3) * 2
        places = [(i, j, half) for i in range(tall) for j in range(wide) for half in range(2)]
        for start in range(0, len(places), READ_AHEAD):
            some = places[start : start + READ_AHEAD]
            at = [(w.wide(row + (16 * i + 8 * half)), w.wide(column + 8 * j)) for i, j, half in some]
            read = [self.epilogue.read(*place) for place in at]
            for (i, j, half), place, values in zip(some, at, read):
                fours = [sums[(part * tall + i) * wide + j] for part in range(shape.parts)]
                self.epilogue.finish(*place, [x for four in fours for x in four[2 * half : 2 * half + 2]], values)
