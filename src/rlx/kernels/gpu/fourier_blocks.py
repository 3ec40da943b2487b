"""Fourier transforms whose twiddle factors were planned (`FftLines`), by blocks of a GPU.

A block has a few transforms from the first to the last pass: rows that follow each other, or columns that lie side by
side, so that threads which run together read and write neighbours. In every pass a thread takes as many values as the
radix says, transforms them in registers, and puts them into shared memory where the next pass looks for them
(Stockham); the first pass takes them from where they are, and the last one puts them where they belong. The passes and
their factors are those of the CPU's kernels.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.fft_passes import Pair, butterfly, times
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.ops.lowered.fourier_lines import LINES_OF_BLOCK, FftLines, FftRealLines, FftStep, Part, block_points, passes

THREADS = 256
# What a block has of shared memory without asking for more. Behind as many numbers as there are banks one is left out,
# so that numbers a power of two apart, as those of the first passes are, do not meet in one bank; so is one of a line.
BANKS = 32
LINE_BYTES = (48 << 10) * BANKS // (BANKS + 1)
# Points of a block at least, where there are as many; and columns side by side that fill what memory is read by.
LEAST_POINTS = 1024
LEAST_COLUMNS = LINES_OF_BLOCK


def is_block_fourier(site: OpSite) -> bool:
    """Whether there is one sum to form, of lines that fit, and nothing is left away of lines across others."""
    op = site.op
    if isinstance(op, FftRealLines):
        return op.points // 2 <= block_points(LINE_BYTES, site.inputs[0].buffer.dtype)
    if not isinstance(op, FftLines) or (op.first > 1 and op.step is FftStep.Whole):
        return False
    is_plain = op.axis == -1 or not (op.before or op.kept or op.behind)
    return is_plain and _Places.of(op).points <= block_points(LINE_BYTES, site.inputs[0].buffer.dtype)


class _Places(NamedTuple):
    """Transforms of `points`: value e of the one numbered c in its line is read at `e·read[0] + c·read[1]`, and written
    at `e·written[0] + c·written[1]`; None is the number of neighbours, which only the operand knows. `by_columns` says
    whether neighbours in memory belong to different transforms when they are read."""

    points: int
    per_line: int | None
    read: tuple[int | None, int]
    written: tuple[int | None, int]
    factors: Part
    by_columns: bool

    @classmethod
    def of(cls, op: FftLines) -> _Places:
        table = op.table
        if op.step is FftStep.Columns:
            across = (op.second, 1)
            return cls(op.first, op.second, across, across, table.first, True)
        if op.step is FftStep.Rows:
            return cls(op.second, op.first, (1, op.second), (op.first, 1), table.second, False)
        if op.axis != -1:
            return cls(op.points, None, (None, 1), (None, 1), table.second, True)
        return cls(op.points, 1, (1, 0), (1, 0), table.second, False)


def fourier_blocks_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_block_fourier` holds."""
    if isinstance(site.op, FftRealLines):
        _RealBlocks(site, site.op).write()
    else:
        assert isinstance(site.op, FftLines)
        _Blocks(site, site.op).write()
    return site.k.build()


class _Blocks:
    # Whether the results of the last pass stay in shared memory.
    keeps = False

    def __init__(self, site: OpSite, op: FftLines) -> None:
        k, self.op = site.k, op
        self.k = k
        (self.x, factors), (self.y,) = site.inputs, site.outputs
        self.factors = factors.buffer
        self.dtype, self.is_complex = self.x.buffer.dtype, op.real or self.x.shape.dtype.is_complex
        self.places = _Places.of(op)
        inner = total(k, self.x.dims[op.axis :][1:])
        self.neighbours = inner if self.places.per_line is None else k.as_index(1)
        self.per_line = inner if self.places.per_line is None else k.as_index(self.places.per_line)
        self.count = total(k, self.x.dims[: op.axis]) * self.per_line
        points = self.places.points
        wanted = max(1, LEAST_POINTS // points)
        if self.places.by_columns or self.places.written[0] != 1:
            wanted = max(wanted, LEAST_COLUMNS)
        self.together = max(1, min(wanted, block_points(LINE_BYTES, self.dtype) // points))
        if self.places.by_columns or self.places.written[0] != 1:
            # Groups that begin where what memory is read by begins, too.
            self.together = 1 << (self.together.bit_length() - 1)
        # Real and imaginary parts apart, so that neighbours lie in different banks.
        self.line = (points + points // BANKS) | 1
        size = self.together * points * (BANKS + 1) // BANKS if self.places.by_columns else self.together * self.line
        self.shared = [k.shared(part, self.dtype, size) for part in ("real", "imaginary")]
        self.threads = max(32, min(THREADS, -(-self.together * points // 8 // 32) * 32))

    def write(self) -> None:
        k, points = self.k, self.places.points
        groups = k.ceildiv(self.count, self.together)
        with k.parallel("group", groups) as group, k.threads("thread", self.threads) as thread:
            first = group * self.together
            planned = [*passes(points)] or [(1, 1, 1)]
            start = self.places.factors.start
            for number, (radix, rows, columns) in enumerate(planned):
                is_last = number == len(planned) - 1 and not self.keeps
                self.one_pass(first, thread, (radix, rows, columns), start, not number, is_last)
                start += 2 * rows * (radix - 1) if rows > 1 else 0
            self.finish(first, thread)

    def one_pass(
        self, first: Value, thread: Value, form: tuple[int, int, int], start: int, is_first: bool, is_last: bool
    ) -> None:
        k, points, (radix, rows, columns) = self.k, self.places.points, form
        count = self.together * points // radix
        # The results of rows of a long line lie across.
        by_columns = self.places.written[0] != 1 if is_last else self.places.by_columns
        work = []
        for turn in range(-(-count // self.threads)):
            i = thread + turn * self.threads
            exists = None if (turn + 1) * self.threads <= count else i < count
            number, r = self.split(i if exists is None else k.min(i, count - 1), points // radix, by_columns)
            p, q = r // columns, r % columns
            places = [q + (p + rows * t) * columns for t in range(radix)]
            found = [self.load(first + number, e) if is_first else self.get(number, e) for e in places]
            work.append((exists, number, p, q, found))
        if not is_first and not is_last:
            k.barrier()
        for exists, number, p, q, found in work:
            with k.when(exists) if exists is not None else nullcontext():
                results = butterfly(k, found) if radix > 1 else found
                for u, value in enumerate(results):
                    if u and rows > 1:
                        value = times(k, value, self.factor((p * (radix - 1) + (u - 1)) * 2 + start))
                    e = q + (p * radix + u) * columns
                    if not is_last:
                        self.put(number, e, value)
                        continue
                    with k.when(first + number < self.count):
                        self.store(first + number, e, value)
        if not is_last:
            k.barrier()

    def finish(self, first: Value, thread: Value) -> None:
        """What follows where the last pass has left its results in shared memory."""

    def split(self, i: Value, each: int, by_columns: bool) -> tuple[Value, Value]:
        """Of consecutive numbers the transform and what it does: neighbours are transforms or their values."""
        return (i % self.together, i // self.together) if by_columns else (i // each, i % each)

    # Shared memory.

    def slot(self, number: Value, e: Value) -> Value:
        if not self.places.by_columns:
            return number * self.line + e + e // BANKS
        place = e * self.together + number
        return place + place // BANKS

    def put(self, number: Value, e: Value, z: Pair) -> None:
        for buffer, part in zip(self.shared, z):
            self.k.store(buffer, self.slot(number, e), part)

    def get(self, number: Value, e: Value) -> Pair:
        re, im = (self.k.load(buffer, self.slot(number, e)) for buffer in self.shared)
        return re, im

    # Memory.

    def factor(self, place: Value) -> Pair:
        """A factor of a pass."""
        if self.begins_pairs(self.factors):
            return self.pair(self.k.load(self.factors, place, lanes=2, align=2 * self.dtype.size_bytes))
        re, im = (self.k.load(self.factors, place + part) for part in (0, 1))
        return re, im

    def pair(self, vector: Value) -> Pair:
        return self.k.extract(vector, 0), self.k.extract(vector, 1)

    def begins_pairs(self, buffer: Buffer) -> bool:
        """Whether two neighbours are one access."""
        return buffer.align >= 2 * self.dtype.size_bytes

    def planned(self, part: Part, index: Value, mask: Value | None = None) -> Pair:
        """A factor of a part that has all real parts first."""
        starts = (part.start, part.start + part.size // 2)
        re, im = (self.k.load(self.factors, index + start, mask=mask) for start in starts)
        return re, im

    def index(self, e: Value, c: Value, steps: tuple[int | None, int]) -> Value:
        return e * (self.neighbours if steps[0] is None else steps[0]) + c * steps[1]

    def at(self, line: Value, index: Value, length: int) -> tuple[Value, Value]:
        """Where the parts of a value are in a line of so many points, and as many neighbours of each."""
        start = line * (self.neighbours * length)
        if self.is_complex:
            return (start + index) * 2, (start + index) * 2 + 1
        return start * 2 + index, start * 2 + index + length

    def load(self, transform: Value, e: Value) -> Pair:
        """A value, multiplied by what it has to be; what is not there is 0."""
        k, op = self.k, self.op
        index = self.index(e, transform % self.per_line, self.places.read)
        is_there = transform < self.count
        if op.before:
            is_there = is_there & (index < op.before)
        places = self.at(transform // self.per_line, index, op.before or op.points)
        z = self.load_pair(places, is_there)
        if op.before:
            z = times(k, z, self.planned(op.table.before, index, is_there))
        return self.swapped(z)

    def load_pair(self, places: tuple[Value, Value], is_there: Value) -> Pair:
        k = self.k
        if not (self.is_complex and self.begins_pairs(self.x.buffer)):
            re, im = (k.load(self.x.buffer, place, mask=is_there) for place in places)
            return re, im
        zero = k.const(0, self.dtype)

        def load() -> tuple[Value, Value]:
            return self.pair(k.load(self.x.buffer, places[0], lanes=2, align=2 * self.dtype.size_bytes))

        re, im = k.choose(is_there, load, lambda: (zero, zero))
        return re, im

    def store(self, transform: Value, e: Value, z: Pair) -> None:
        k, op = self.k, self.op
        index = self.index(e, transform % self.per_line, self.places.written)
        if op.step is FftStep.Columns:
            z = times(k, z, self.planned(op.table.between, index))
        is_kept = index < op.result_points if op.kept else None
        re, im = self.swapped(z)
        z = (re, im) if op.scale == 1.0 else (re * op.scale, im * op.scale)
        if op.behind:
            z = times(k, z, self.planned(op.table.behind, index, is_kept))
        self.store_pair(self.at(transform // self.per_line, index, op.result_points), z, is_kept)

    def store_pair(self, places: tuple[Value, Value], z: Pair, is_kept: Value | None = None) -> None:
        k = self.k
        if self.is_complex and self.begins_pairs(self.y.buffer) and is_kept is None:
            joined = k.select(k.lane_mask(1, 2), k.splat(z[0], 2), k.splat(z[1], 2))
            k.store(self.y.buffer, places[0], joined, align=2 * self.dtype.size_bytes)
            return
        for place, part in zip(places, z):
            k.store(self.y.buffer, place, part, mask=is_kept)

    def swapped(self, z: Pair) -> Pair:
        """A transform with the parts exchanged in front and behind is the inverse one."""
        return (z[1], z[0]) if self.op.inverse else z


class _RealBlocks(_Blocks):
    """Transforms of real numbers, two of which are taken for a complex one: what makes one half of a spectrum of them,
    or them of it, is done between the passes and memory."""

    def __init__(self, site: OpSite, op: FftRealLines) -> None:
        super().__init__(site, op.lines)
        self.real, self.half = op, op.points // 2
        self.half_factors = Part(op.lines.table.size, op.points)
        self.keeps = not op.inverse

    def joined(self, e: Value, a: Pair, mirrored: Pair) -> Pair:
        """scale·(a + b) + f·(a - b) with b the conjugate of what lies as far from the end."""
        k, b = self.k, (mirrored[0], -mirrored[1])
        turned = times(k, (a[0] - b[0], a[1] - b[1]), self.planned(self.half_factors, e))
        re, im = (k.fma(p + q, self.real.scale, t) for p, q, t in zip(a, b, turned))
        return re, im

    def load(self, transform: Value, e: Value) -> Pair:
        if not self.real.inverse:
            return super().load(transform, e)
        k = self.k
        line = k.min(transform, self.count - 1)
        a, mirrored = (self.load_pair(self.at(line, i, self.half + 1), k.eq(line, line)) for i in (e, self.half - e))
        z = self.joined(e, a, mirrored)
        is_end, scale = k.eq(e, 0), self.real.scale
        ends = (a[0] + mirrored[0]) * scale, (a[0] - mirrored[0]) * scale
        re, im = (k.select(is_end, end, part) for end, part in zip(ends, z))
        return self.swapped((re, im))

    def finish(self, first: Value, thread: Value) -> None:
        if not self.keeps:
            return
        k, half, bins = self.k, self.half, self.half + 1
        with k.loop("i", thread, self.together * bins, self.threads) as i:
            number, e = i // bins, i % bins
            with k.when(first + number < self.count):
                a, mirrored = self.get(number, e % half), self.get(number, (half - e) % half)
                z = self.joined(e % half, a, mirrored)
                # Both ends are real: the sum and the difference of the parts of the first.
                both = 2 * self.real.scale
                end = k.select(k.eq(e, 0), a[0] + a[1], a[0] - a[1]) * both
                is_end = k.eq(e % half, 0)
                re, im = k.select(is_end, end, z[0]), k.select(is_end, 0.0, z[1])
                self.store_pair(self.at(first + number, e, bins), (re, im))
