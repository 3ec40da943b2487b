"""Tridiagonal and bidiagonal matrices made diagonal by sweeps of plane rotations, and these applied to rows.

One thread finds the rotations, in a time that grows with N²; all share the columns to which they are applied, which is
where the work is. Columns go through all sweeps a few vectors at a time, so that they stay in the nearest caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.strips import along, whole_rows
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Buffer, Value
from rlx.ops.lowered.bidiagonal_steps import BidiagonalRotations
from rlx.ops.lowered.tridiagonal_steps import EPS, NEGLIGIBLE, RotatedRows, TridiagonalRotations

# Vectors of columns that go through the sweeps together: enough independent products to fill the pipelines.
VECTORS = 4


class Lines(NamedTuple):
    """The elements on the diagonal, d, and beside it, e, of one matrix."""

    k: KernelBuilder
    d_buffer: Buffer
    d_start: Value
    e_buffer: Buffer
    e_start: Value

    def d(self, i: Value) -> Value:
        return self.k.load(self.d_buffer, self.d_start + i)

    def e(self, i: Value) -> Value:
        return self.k.load(self.e_buffer, self.e_start + i)

    def put_d(self, i: Value, value: Value) -> None:
        self.k.store(self.d_buffer, self.d_start + i, value)

    def put_e(self, i: Value, value: Value) -> None:
        self.k.store(self.e_buffer, self.e_start + i, value)

    def copy(self, diagonal: Slab, beside: Slab, place: Sequence[Value], size: Value) -> Value:
        """Take over operands; gives whether all of them are finite."""
        k = self.k
        with k.fold("i", 0, size, init=[k.const(1, DType.BOOL)]) as fold:
            x, y = (k.load(s.buffer, s.at(*place, fold.index)) for s in (diagonal, beside))
            self.put_d(fold.index, x)
            self.put_e(fold.index, y)
            fold.next(fold.values[0] & (k.abs(x) < math.inf) & (k.abs(y) < math.inf))
        return fold.results[0]

    def is_negligible(self, i: Value) -> Value:
        """Whether the element beside d[i] and d[i + 1] is as good as 0."""
        k = self.k
        size = k.abs(self.d(i)) + k.abs(self.d(i + 1))
        return k.abs(self.e(i)) <= k.max(size * EPS, NEGLIGIBLE)


@op_kernel(TridiagonalRotations, kind="factorize")
def tridiagonal_rotations(site: OpSite) -> None:
    """Implicit QL steps with Wilkinson's shift."""
    _Sweeps(site).build()


class _Sweeps:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        self.diagonal, self.beside = site.inputs
        self.d, self.rotations, self.sweeps, self.count, self.is_found, self.e = site.outputs
        self.size = self.d.dims[-1]

    def build(self) -> None:
        k = self.k
        lead = self.d.dims[:-1]
        with whole_rows(k, total(k, lead), self.size * self.size, strip=1024) as number:
            self.place = unflatten(number, lead)
            self.lines = Lines(k, self.d.buffer, self.d.at(*self.place), self.e.buffer, self.e.at(*self.place))
            is_finite = self.lines.copy(self.diagonal, self.beside, self.place, self.size)
            zero = k.as_index(0)
            rounds = k.select(is_finite, self.sweeps.dims[-2] + self.size, 0)
            with k.fold("round", 0, rounds, init=[zero, zero, zero]) as fold:
                after = self.round(*fold.values)
                fold.next(*after, again=after[0] < self.size)
            low, _, count = fold.results
            k.store(self.count.buffer, self.count.at(*self.place), k.cast(count, DType.I32))
            k.store(self.is_found.buffer, self.is_found.at(*self.place), is_finite & ~(low < self.size))

    def round(self, low: Value, used: Value, count: Value) -> tuple[Value, ...]:
        """One more eigenvalue known, or one more sweep of the block that begins with row `low`."""
        k = self.k
        last = self.size - 1
        with k.fold("m", low, last, init=[last]) as search:
            m = search.index
            is_small = self.lines.is_negligible(m)
            search.next(k.select(is_small, m, last), again=~is_small)
        end = search.results[0]
        has_room = (count < self.sweeps.dims[-2]) & ~(self.rotations.dims[-2] < used + end - low)
        is_sweep = low < end

        def known() -> list[Value]:
            return [low + 1, used, count]

        def more() -> list[Value]:
            return list(k.choose(has_room, lambda: self.sweep(low, end, used, count), lambda: [low, used, count]))

        return k.choose(is_sweep, more, known)

    def sweep(self, low: Value, end: Value, used: Value, count: Value) -> list[Value]:
        k, lines = self.k, self.lines
        for column, value in enumerate((low, end - 1, used)):
            k.store(self.sweeps.buffer, self.sweeps.at(*self.place, count, column), k.cast(value, DType.I32))
        first, beside = lines.d(low), lines.e(low)
        g = (lines.d(low + 1) - first) / (beside * 2.0)
        root = k.sqrt(g * g + 1.0)
        start = lines.d(end) - first + beside / k.select(g < 0.0, g - root, g + root)
        one, zero = k.const(1.0, DType.F64), k.const(0.0, DType.F64)
        steps = end - low
        with k.fold("step", 0, steps, init=[one, one, zero, start]) as fold:
            sine, cosine, p, g = fold.values
            i = end - 1 - fold.index
            e = lines.e(i)
            f, b = sine * e, cosine * e
            r = k.sqrt(f * f + g * g)
            is_turn = r > 0.0
            inverse = 1.0 / r
            cosine, sine = k.select(is_turn, g * inverse, 1.0), k.select(is_turn, f * inverse, 0.0)
            lines.put_e(i + 1, r)
            above = lines.d(i + 1) - p
            r = (lines.d(i) - above) * sine + cosine * b * 2.0
            p = sine * r
            lines.put_d(i + 1, above + p)
            at = self.rotations.at(*self.place, used + fold.index)
            k.store(self.rotations.buffer, at, cosine)
            k.store(self.rotations.buffer, at + 1, sine)
            fold.next(sine, cosine, p, cosine * r - b)
        _, _, p, g = fold.results
        lines.put_d(low, lines.d(low) - p)
        lines.put_e(low, g)
        lines.put_e(end, k.const(0.0, DType.F64))
        return [low, used + steps, count + 1]


@op_kernel(BidiagonalRotations, kind="factorize")
def bidiagonal_rotations(site: OpSite) -> None:
    """Implicit QR steps on the square of the matrix, which is never formed."""
    _BidiagonalSweeps(site).build()


class _BidiagonalSweeps:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        self.diagonal, self.beside = site.inputs
        self.d, self.of_rows, self.of_columns, self.sweeps, self.count, self.is_found, self.e = site.outputs
        self.size = self.d.dims[-1]

    def build(self) -> None:
        k = self.k
        lead = self.d.dims[:-1]
        with whole_rows(k, total(k, lead), self.size * self.size, strip=1024) as number:
            self.place = unflatten(number, lead)
            self.lines = Lines(k, self.d.buffer, self.d.at(*self.place), self.e.buffer, self.e.at(*self.place))
            is_finite = self.lines.copy(self.diagonal, self.beside, self.place, self.size)
            zero = k.as_index(0)
            rounds = k.select(is_finite, self.sweeps.dims[-2] + self.size, 0)
            with k.fold("round", 0, rounds, init=[self.size - 1, zero, zero]) as fold:
                after = self.round(*fold.values)
                fold.next(*after, again=~(after[0] < 0))
            high, _, count = fold.results
            k.store(self.count.buffer, self.count.at(*self.place), k.cast(count, DType.I32))
            k.store(self.is_found.buffer, self.is_found.at(*self.place), is_finite & (high < 0))

    def round(self, high: Value, used: Value, count: Value) -> tuple[Value, ...]:
        """One more singular value known, or one more sweep of the block that ends with row `high`."""
        k, lines = self.k, self.lines
        with k.fold("back", 0, high, init=[k.as_index(0)]) as search:
            m = high - 1 - search.index
            is_small = lines.is_negligible(m)
            search.next(k.select(is_small, m + 1, 0), again=~is_small)
        low = search.results[0]
        has_room = (count < self.sweeps.dims[-2]) & ~(self.of_rows.dims[-2] < used + high - low)

        def more() -> list[Value]:
            return list(k.choose(has_room, lambda: self.sweep(low, high, used, count), lambda: [high, used, count]))

        return k.choose(low < high, more, lambda: [high - 1, used, count])

    def shifted(self, low: Value, high: Value) -> Value:
        """See `first_turn` of the definition."""
        k, lines = self.k, self.lines
        with k.fold("i", low, high + 1, init=[k.const(math.inf, DType.F64)]) as fold:
            fold.next(k.min(fold.values[0], k.abs(lines.d(fold.index))))
        start = lines.d(low)

        def from_square() -> list[Value]:
            before = k.select(low < high - 1, lines.e(k.max(high - 2, 0)), 0.0)
            d, e = lines.d(high - 1), lines.e(high - 1)
            first, across = d * d + before * before, d * e
            bottom = lines.d(high)
            last = bottom * bottom + e * e
            half = (first - last) * 0.5
            root = k.sqrt(half * half + across * across)
            divisor = half + k.select(half < 0.0, -root, root)
            shift = last - k.select(k.ne(divisor, 0.0), across * across / divisor, 0.0)
            return [start - shift / start]

        return k.choose(fold.results[0] <= NEGLIGIBLE, lambda: [start], from_square)[0]

    def sweep(self, low: Value, high: Value, used: Value, count: Value) -> list[Value]:
        k, lines = self.k, self.lines
        for column, value in enumerate((low, high - 1, used)):
            k.store(self.sweeps.buffer, self.sweeps.at(*self.place, count, column), k.cast(value, DType.I32))
        begin = [self.shifted(low, high), lines.e(low), lines.d(low), lines.e(low)]
        with k.fold("i", low, high, init=begin) as fold:
            i = fold.index
            f, g, d, e = fold.values
            number = used + i - low
            cosine, sine, length = self.rotation(f, g, self.of_columns, number)
            with k.when(low < i):
                lines.put_e(i - 1, length)
            below = lines.d(i + 1)
            f, e = cosine * d + sine * e, cosine * e - sine * d
            g, below = sine * below, cosine * below
            cosine, sine, length = self.rotation(f, g, self.of_rows, number)
            lines.put_d(i, length)
            f, below = cosine * e + sine * below, cosine * below - sine * e
            # Behind the block nothing is coupled: what is read there is not used.
            beside = lines.e(k.min(i + 1, high - 1))
            fold.next(f, sine * beside, below, cosine * beside)
        f, _, last, _ = fold.results
        lines.put_d(high, last)
        lines.put_e(high - 1, f)
        return [high, used + high - low, count + 1]

    def rotation(self, f: Value, g: Value, rotations: Slab, number: Value) -> tuple[Value, Value, Value]:
        """Cosine, sine and length with cosine·f + sine·g = length; kept as `RotatedRows` wants them."""
        k = self.k
        length = k.sqrt(f * f + g * g)
        inverse = 1.0 / length
        is_turn = length > 0.0
        cosine, sine = k.select(is_turn, f * inverse, 1.0), k.select(is_turn, g * inverse, 0.0)
        at = rotations.at(*self.place, number)
        k.store(rotations.buffer, at, cosine)
        k.store(rotations.buffer, at + 1, -sine)
        return cosine, sine, length


@op_kernel(RotatedRows, kind="factorize")
def rotated_rows(site: OpSite) -> None:
    k, rows = site.k, site.inputs[0]
    lanes = site.machine.lanes(DType.F64)
    lead, columns = rows.dims[:-2], rows.dims[-1]
    width = VECTORS * lanes
    blocks = k.ceildiv(columns, width)
    with k.parallel("block", total(k, lead) * blocks) as number:
        place = unflatten(number // blocks, lead)
        first = number % blocks * width
        with k.when(first + width <= columns):
            _rotate_columns(site, place, [first + v * lanes for v in range(VECTORS)], lanes, None)
        with k.otherwise():
            along(
                k,
                site.machine,
                (DType.F64,),
                first,
                columns,
                lambda at, n, mask: _rotate_columns(site, place, [at], n, mask),
            )


def _rotate_columns(
    site: OpSite, place: Sequence[Value], firsts: Sequence[Value], lanes: int, mask: Value | None
) -> None:
    """Some columns through all sweeps."""
    op = site.op
    assert isinstance(op, RotatedRows)
    k, (rows, rotations, sweeps, count), (result,) = site.k, site.inputs, site.outputs
    height, room = rows.dims[-2], rotations.dims[-2]

    def load(row: Value) -> list[Value]:
        start = result.at(*place, row)
        return [k.load(result.buffer, start + c, lanes=lanes, mask=mask) for c in firsts]

    def store(row: Value, values: Sequence[Value]) -> None:
        start = result.at(*place, row)
        for c, value in zip(firsts, values):
            k.store(result.buffer, start + c, value, mask=mask)

    with k.loop("row", 0, height) as row:
        start = rows.at(*place, row)
        store(row, [k.load(rows.buffer, start + c, lanes=lanes, mask=mask) for c in firsts])
    known = k.cast(k.load(count.buffer, count.at(*place)), DType.I64)
    with k.loop("sweep", 0, k.min(known, sweeps.dims[-2])) as sweep:
        low, high, used = (
            k.cast(k.load(sweeps.buffer, sweeps.at(*place, sweep, column)), DType.I64) for column in range(3)
        )
        # Whatever the numbers are, no row outside of the matrix is touched.
        low, high = k.max(low, 0), k.min(high, height - 2)
        steps = k.min(high - low + 1, room - used)
        # The row that two rotations share stays in registers; it is the first or the second of the next two.
        begin, last, step = (low, low + steps, 1) if op.downwards else (high + 1, high + 1 - steps, -1)
        with k.when((steps > 0) & ~(used < 0)):
            with k.fold("step", 0, steps, init=load(begin)) as fold:
                here = begin + fold.index * step
                other = load(here + step)
                at = rotations.at(*place, used + fold.index)
                c, s = (k.splat(k.load(rotations.buffer, at + part), lanes) for part in range(2))
                # x is the row above, y the one below.
                pairs = list(zip(fold.values, other) if op.downwards else zip(other, fold.values))
                above = [k.fma(-s, y, c * x) for x, y in pairs]
                below = [k.fma(s, x, c * y) for x, y in pairs]
                done, carried = (above, below) if op.downwards else (below, above)
                store(here, done)
                fold.next(*carried)
            store(last, fold.results)
