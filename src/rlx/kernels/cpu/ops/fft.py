"""Fourier transforms whose factors were planned (`FftLines`): what the lanes are, and where values come from.

Columns, where neighbours in memory belong to different transforms, are loaded as they are, and so are the columns of
one long line that is transformed in two steps. Rows are turned, vectors of them at a time.

A line of up to some thousand points stays with one thread from the first to the last pass, between the two steps in
its scratch; longer ones are two kernels, so that all threads take part.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.matmul.tiles import MatrixView, copy_gathered, copy_transposed, transposed
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.fft_passes import Pair, Passes, Scratch, times
from rlx.kernels.cpu.ops.strips import strips
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.fourier_lines import FftHalves, FftLines, FftRealLines, FftStep, Part

# Points that one parallel iteration has at least, where there are so many.
TOGETHER = 4096


def _supports(op: Op, operands: Sequence[Shape]) -> bool:
    return operands[0].dtype.real in (DType.F32, DType.F64)


@op_kernel(FftLines, kind="fft", supports=_supports)
def fft_lines(site: OpSite) -> None:
    lines = _Lines(site)
    if lines.op.axis != -1 or lines.op.step is FftStep.Columns:
        lines.columns()
    elif lines.op.step is FftStep.Rows:
        lines.turned_rows()
    elif lines.op.first == 1:
        lines.rows()
    else:
        lines.two_steps()


class _Lines:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, FftLines)
        self.k, self.op = site.k, site.op
        (self.x, factors), (self.y,) = site.inputs, site.outputs
        self.factors = factors.buffer
        self.dtype, self.is_complex = self.x.buffer.dtype, (self.op.real or self.x.shape.dtype.is_complex)
        self.lanes = site.machine.lanes(self.dtype)
        self.zero = self.k.as_index(0)
        # Complex numbers per line, of the operand and of the result.
        self.read_points, self.points = self.op.before or self.op.points, self.op.result_points
        self.lines = total(self.k, self.x.dims[: self.op.axis])
        self.inner = total(self.k, self.x.dims[self.op.axis :][1:])

    def scratch(self, name: str, points: int) -> Scratch:
        return Scratch(self.k, self.k.local(name, self.dtype, points * 2 * self.lanes), self.lanes)

    def two_places(self, points: int) -> list[Scratch]:
        return [self.scratch(name, points) for name in ("here", "there")]

    def passes(self, points: int, part: Part) -> Passes:
        return Passes(self.k, points, self.lanes, self.factors, self.k.as_index(part.start))

    def count(self, size: Value, start: Value) -> Value | None:
        """How many lanes of a vector that starts here exist; None for all, wherever it starts."""
        literal = getattr(size, "literal", None)
        return None if literal is not None and literal % self.lanes == 0 else size - start

    # Memory, where the lanes are side by side.

    def load(self, line: Value, e: Value, count: Value | None) -> Pair:
        """Values e, e + 1, .. of a line, multiplied by what they have to be; those that are not there are 0."""
        k, lanes = self.k, self.lanes
        if self.op.before and self.op.before < self.op.points:
            left = self.k.as_index(self.op.before) - e
            count = left if count is None else k.min(left, count)
        start = line * (self.read_points * self.inner)
        if self.is_complex:
            mask = None if count is None else k.lane_mask(count * 2, 2 * lanes)
            wide = k.load(self.x.buffer, (start + e) * 2, lanes=2 * lanes, mask=mask)
            z = k.shuffle(wide, range(0, 2 * lanes, 2)), k.shuffle(wide, range(1, 2 * lanes, 2))
        else:
            mask = None if count is None else k.lane_mask(count, lanes)
            places = (start * 2 + e, start * 2 + e + self.read_points)
            re, im = (k.load(self.x.buffer, place, lanes=lanes, mask=mask) for place in places)
            z = re, im
        if self.op.before:
            z = times(k, z, self.planned(self.op.table.before, e, count))
        return self.swapped(z)

    def store(self, line: Value, e: Value, z: Pair, count: Value | None) -> None:
        """Results e, e + 1, .. of a line, as far as they are kept."""
        k, lanes = self.k, self.lanes
        if self.op.kept:
            left = self.k.as_index(self.op.kept) - e
            count = left if count is None else k.min(left, count)
        re, im = self.scaled(self.swapped(z))
        if self.op.behind:
            re, im = times(k, (re, im), self.planned(self.op.table.behind, e, count))
        start = line * (self.points * self.inner)
        if self.is_complex:
            mask = None if count is None else k.lane_mask(count * 2, 2 * lanes)
            order = [lane + part * lanes for lane in range(lanes) for part in (0, 1)]
            k.store(self.y.buffer, (start + e) * 2, k.shuffle(re, order, im), mask=mask)
            return
        mask = None if count is None else k.lane_mask(count, lanes)
        k.store(self.y.buffer, start * 2 + e, re, mask=mask)
        k.store(self.y.buffer, start * 2 + e + self.points, im, mask=mask)

    def planned(self, part: Part, e: Value, count: Value | None) -> Pair:
        """Factors e, e + 1, .. of a part that has all real parts first."""
        k, lanes = self.k, self.lanes
        mask = None if count is None else k.lane_mask(count, lanes)
        places = (part.start, part.start + part.size // 2)
        re, im = (k.load(self.factors, e + place, lanes=lanes, mask=mask) for place in places)
        return re, im

    def swapped(self, z: Pair) -> Pair:
        """A transform with the parts exchanged in front and behind is the inverse one."""
        return (z[1], z[0]) if self.op.inverse else z

    def scaled(self, z: Pair) -> Pair:
        return z if self.op.scale == 1.0 else (z[0] * self.op.scale, z[1] * self.op.scale)

    # Columns.

    def columns(self) -> None:
        """Lines across `inner` neighbours; the first step of a long line has its second factor as neighbours."""
        k, op = self.k, self.op
        is_step = op.step is FftStep.Columns
        points, inner = (op.first, k.as_index(op.second)) if is_step else (op.points, self.inner)
        part = op.table.first if is_step else op.table.second
        places, groups = self.two_places(points), k.ceildiv(inner, self.lanes)
        with k.parallel("group", self.lines * groups) as number:
            line, start = number // groups, number % groups * self.lanes
            count = self.count(inner, start)

            def write(e: Value, z: Pair) -> None:
                place = e * inner + start
                if is_step:
                    z = times(k, z, self.planned(op.table.between, place, count))
                self.store(line, place, z, count)

            self.passes(points, part).run(lambda e: self.load(line, e * inner + start, count), write, places)

    # Rows.

    def rows(self) -> None:
        """Every lane has a row; vectors of rows are turned on the way in and on the way out."""
        k, points = self.k, self.op.points
        places = self.two_places(points)
        together = max(1, TOGETHER // (points * self.lanes))
        groups = k.ceildiv(self.lines, self.lanes)
        with k.parallel("groups", k.ceildiv(groups, together)) as number:
            first = number * together
            with k.loop("group", first, k.min(first + together, groups)) as group:
                row = group * self.lanes
                count = k.min(self.lines - row, self.lanes)
                read = self.turn_in(row, points, count, places[1])
                passes = self.passes(points, self.op.table.second)
                passes.run(read, self.write_scaled(places[len(passes.passes) % 2 ^ 1]), places)
                self.turn_out(row, count, places[len(passes.passes) % 2 ^ 1])

    def turn_in(self, row: Value, points: int, count: Value, to: Scratch) -> _Turned:
        """Rows of so many points, one after the other in memory from `row` on, in the lanes of scratch."""
        k = self.k
        source = MatrixView(self.x.buffer, row * (2 * points), k.as_index(1), k.as_index(2 * points))
        target = MatrixView(to.buffer, self.zero, k.as_index(self.lanes), k.as_index(1))
        copy = copy_transposed if self.lanes > 1 else copy_gathered
        copy(k, source, target, k.as_index(2 * points), count - 1, self.lanes, 1)
        return _Turned(self, to, points)

    def write_scaled(self, to: Scratch) -> _Scaled:
        return _Scaled(self, to)

    def turn_out(self, row: Value, count: Value, source: Scratch) -> None:
        k, lanes, numbers = self.k, self.lanes, 2 * self.op.points
        start = row * numbers

        def place(number: Value) -> Value:
            """Where in the scratch a number of a row is: results in blocks have all real parts first."""
            if self.is_complex:
                return number * lanes
            return (number % self.op.points * 2 + number // self.op.points) * lanes

        whole = numbers // lanes * lanes
        with k.loop("number", 0, whole, lanes) as first:
            vectors = [k.load(source.buffer, place(first + i), lanes=lanes) for i in range(lanes)]
            for i, vector in enumerate(transposed(k, vectors) if lanes > 1 else vectors):
                with k.when(count > i):
                    k.store(self.y.buffer, start + i * numbers + first, vector)
        with k.loop("number", whole, numbers) as number, k.loop("lane", 0, count) as lane:
            value = k.load(source.buffer, place(number) + lane)
            k.store(self.y.buffer, start + lane * numbers + number, value)

    def turned_rows(self) -> None:
        """The second step of long lines: rows of them become columns."""
        k, op = self.k, self.op
        places, groups = self.two_places(op.second), k.ceildiv(op.first, self.lanes)
        with k.parallel("group", self.lines * groups) as number:
            line, start = number // groups, number % groups * self.lanes
            left = self.count(k.as_index(op.first), start)
            count = k.as_index(self.lanes) if left is None else k.min(left, self.lanes)
            read = self.turn_in(line * op.first + start, op.second, count, places[1])

            def write(e: Value, z: Pair) -> None:
                self.store(line, e * op.first + start, z, left)

            self.passes(op.second, op.table.second).run(read, write, places)

    # Both steps, with what is between them in scratch.

    def two_steps(self) -> None:
        k, op, lanes = self.k, self.op, self.lanes
        n1, n2 = op.first, op.second
        height, width = -(-n1 // lanes) * lanes, -(-n2 // lanes) * lanes
        places, tile = self.two_places(max(n1, n2)), self.scratch("tile", height)
        # Value (m2, k1) has its parts `height` apart.
        middle = k.local("middle", self.dtype, width * 2 * height)
        nothing = k.splat(k.const(0.0, self.dtype), lanes)
        with k.parallel("line", self.lines) as line:
            with k.loop("fill", n1, height) as e:
                tile.write(e, (nothing, nothing))
            with k.loop("column", 0, n2, lanes) as column:
                count = self.count(k.as_index(n2), column)

                def turn(e: Value, z: Pair) -> None:
                    tile.write(e, times(k, z, self.planned(op.table.between, e * n2 + column, count)))

                first = self.passes(n1, op.table.first)
                first.run(lambda e: self.load(line, e * n2 + column, count), turn, places)
                with k.loop("e", 0, height, lanes) as e, k.loop("part", 0, 2) as part:
                    vectors = [k.load(tile.buffer, ((e + i) * 2 + part) * lanes, lanes=lanes) for i in range(lanes)]
                    for i, vector in enumerate(transposed(k, vectors) if lanes > 1 else vectors):
                        k.store(middle, ((column + i) * 2 + part) * height + e, vector)
            with k.loop("row", 0, n1, lanes) as row:
                left = self.count(k.as_index(n1), row)

                def read(m: Value) -> Pair:
                    re, im = (k.load(middle, (m * 2 + part) * height + row, lanes=lanes) for part in (0, 1))
                    return re, im

                second = self.passes(n2, op.table.second)
                second.run(read, lambda e, z: self.store(line, e * n1 + row, z, left), places)


class _Turned:
    """Rows that lie in scratch as they lay in memory: reads one complex number of each."""

    def __init__(self, lines: _Lines, source: Scratch, points: int) -> None:
        self.lines, self.source, self.points = lines, source, points

    def __call__(self, e: Value) -> Pair:
        if self.lines.is_complex:
            return self.lines.swapped(self.source.read(e))
        k, lanes = self.lines.k, self.lines.lanes
        re, im = (k.load(self.source.buffer, (e + part * self.points) * lanes, lanes=lanes) for part in (0, 1))
        return self.lines.swapped((re, im))


class _Scaled:
    """Writes results to scratch."""

    def __init__(self, lines: _Lines, to: Scratch) -> None:
        self.lines, self.to = lines, to

    def __call__(self, e: Value, z: Pair) -> None:
        self.to.write(e, self.lines.scaled(self.lines.swapped(z)))


@op_kernel(FftHalves, kind="fft", supports=_supports)
def fft_halves(site: OpSite) -> None:
    """Vectors of values from the front of a line, with those at the same distance from its end in opposite order."""
    assert isinstance(site.op, FftHalves)
    k, op, ((z, factors), (y,)) = site.k, site.op, (site.inputs, site.outputs)
    half, scale = op.points // 2, op.scale
    lanes = site.machine.lanes(z.buffer.dtype)
    with strips(k, total(k, z.dims[:-1]), k.as_index(half)) as (row, start, stop):
        source, to = row * (2 * op.bins[0]), row * (2 * op.bins[1])
        with k.when(k.eq(start, 0)):
            first = k.load(z.buffer, source)
            last = k.load(z.buffer, source + (2 * half if op.inverse else 1))
            both = scale if op.inverse else 2 * scale
            ends = (first + last) * both, (first - last) * both
            if op.inverse:
                for part in (0, 1):
                    k.store(y.buffer, to + part, ends[part])
            else:
                for place, end in zip((0, 2 * half), ends):
                    k.store(y.buffer, to + place, end)
                    k.store(y.buffer, to + place + 1, 0.0)
        with k.loop("e", k.max(start, 1), stop, lanes) as e:
            left = stop - e
            mask, wide_mask = k.lane_mask(left, lanes), k.lane_mask(left * 2, 2 * lanes)
            ahead = k.load(z.buffer, source + e * 2, lanes=2 * lanes, mask=wide_mask)
            back_at = source + (k.as_index(half - lanes + 1) - e) * 2
            # Of the vector that ends at the mirrored place the lanes at its end.
            mirrored = ~k.lane_mask((k.as_index(lanes) - left) * 2, 2 * lanes)
            back = k.load(z.buffer, back_at, lanes=2 * lanes, mask=mirrored)
            a = k.shuffle(ahead, range(0, 2 * lanes, 2)), k.shuffle(ahead, range(1, 2 * lanes, 2))
            b = k.shuffle(back, range(2 * lanes - 2, -1, -2)), -k.shuffle(back, range(2 * lanes - 1, -1, -2))
            places = (e, e + half)
            f = tuple(k.load(factors.buffer, place, lanes=lanes, mask=mask) for place in places)
            turned = times(k, (a[0] - b[0], a[1] - b[1]), (f[0], f[1]))
            re, im = (k.fma(p + q, scale, t) for p, q, t in zip(a, b, turned))
            order = [lane + part * lanes for lane in range(lanes) for part in (0, 1)]
            k.store(y.buffer, to + e * 2, k.shuffle(re, order, im), mask=wide_mask)


@op_kernel(FftRealLines, kind="fft", supports=_supports, runs_on=lambda machine: machine.shares_lines)
def fft_real_lines(site: OpSite) -> None:
    raise InternalError("fft_real_lines has a schedule of its own")
