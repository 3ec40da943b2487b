"""Tridiagonal matrices made diagonal by sweeps of plane rotations, and these applied to the rows of a matrix.

One thread finds the rotations, in a time that grows with N²; all share the columns to which they are applied, which is
where the work is. Columns go through all sweeps a few vectors at a time, so that they stay in the nearest caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.strips import along, whole_rows
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.tridiagonal_steps import EPS, NEGLIGIBLE, RotatedRows, TridiagonalRotations

# Vectors of columns that go through the sweeps together: enough independent products to fill the pipelines.
VECTORS = 4


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
            self.first, self.beside_first = (s.at(*self.place) for s in (self.d, self.e))
            with k.fold("i", 0, self.size, init=[k.const(1, DType.BOOL)]) as copied:
                x = k.load(self.diagonal.buffer, self.diagonal.at(*self.place, copied.index))
                y = k.load(self.beside.buffer, self.beside.at(*self.place, copied.index))
                k.store(self.d.buffer, self.first + copied.index, x)
                k.store(self.e.buffer, self.beside_first + copied.index, y)
                copied.next(copied.values[0] & (k.abs(x) < math.inf) & (k.abs(y) < math.inf))
            zero = k.as_index(0)
            rounds = k.select(copied.results[0], self.sweeps.dims[-2] + self.size, 0)
            with k.fold("round", 0, rounds, init=[zero, zero, zero]) as fold:
                after = self.round(*fold.values)
                fold.next(*after, again=after[0] < self.size)
            low, _, count = fold.results
            k.store(self.count.buffer, self.count.at(*self.place), k.cast(count, DType.I32))
            k.store(self.is_found.buffer, self.is_found.at(*self.place), copied.results[0] & ~(low < self.size))

    def round(self, low: Value, used: Value, count: Value) -> tuple[Value, ...]:
        """One more eigenvalue known, or one more sweep of the block that begins with row `low`."""
        k = self.k
        last = self.size - 1
        with k.fold("m", low, last, init=[last]) as search:
            m = search.index
            size = k.abs(self.load_d(m)) + k.abs(self.load_d(m + 1))
            is_small = k.abs(self.load_e(m)) <= k.max(size * EPS, NEGLIGIBLE)
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
        k = self.k
        for column, value in enumerate((low, end - 1, used)):
            k.store(self.sweeps.buffer, self.sweeps.at(*self.place, count, column), k.cast(value, DType.I32))
        first, beside = self.load_d(low), self.load_e(low)
        g = (self.load_d(low + 1) - first) / (beside * 2.0)
        root = k.sqrt(g * g + 1.0)
        start = self.load_d(end) - first + beside / k.select(g < 0.0, g - root, g + root)
        one, zero = k.const(1.0, DType.F64), k.const(0.0, DType.F64)
        steps = end - low
        with k.fold("step", 0, steps, init=[one, one, zero, start]) as fold:
            sine, cosine, p, g = fold.values
            i = end - 1 - fold.index
            e = self.load_e(i)
            f, b = sine * e, cosine * e
            r = k.sqrt(f * f + g * g)
            is_turn = r > 0.0
            inverse = 1.0 / r
            cosine, sine = k.select(is_turn, g * inverse, 1.0), k.select(is_turn, f * inverse, 0.0)
            k.store(self.e.buffer, self.beside_first + i + 1, r)
            above = self.load_d(i + 1) - p
            r = (self.load_d(i) - above) * sine + cosine * b * 2.0
            p = sine * r
            k.store(self.d.buffer, self.first + i + 1, above + p)
            at = self.rotations.at(*self.place, used + fold.index)
            k.store(self.rotations.buffer, at, cosine)
            k.store(self.rotations.buffer, at + 1, sine)
            fold.next(sine, cosine, p, cosine * r - b)
        _, _, p, g = fold.results
        k.store(self.d.buffer, self.first + low, self.load_d(low) - p)
        k.store(self.e.buffer, self.beside_first + low, g)
        k.store(self.e.buffer, self.beside_first + end, 0.0)
        return [low, used + steps, count + 1]

    def load_d(self, i: Value) -> Value:
        return self.k.load(self.d.buffer, self.first + i)

    def load_e(self, i: Value) -> Value:
        return self.k.load(self.e.buffer, self.beside_first + i)


@op_kernel(RotatedRows, kind="factorize")
def rotated_rows(site: OpSite) -> None:
    k, rows, result = site.k, site.inputs[0], site.outputs[0]
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
    """Some columns through all sweeps. Of the two rows that a rotation changes, the upper one is one of the next two."""
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
        with k.when((steps > 0) & ~(used < 0)):
            with k.fold("step", 0, steps, init=load(high + 1)) as fold:
                upper = load(high - fold.index)
                at = rotations.at(*place, used + fold.index)
                c, s = (k.splat(k.load(rotations.buffer, at + part), lanes) for part in range(2))
                store(high + 1 - fold.index, [k.fma(s, x, c * y) for x, y in zip(upper, fold.values)])
                fold.next(*(k.fma(-s, y, c * x) for x, y in zip(upper, fold.values)))
            store(high + 1 - steps, fold.results)
