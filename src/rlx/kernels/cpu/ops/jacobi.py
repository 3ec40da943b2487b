"""Jacobi's method on the rows of a matrix: pairs of them are rotated until all are orthogonal to each other.

One thread rotates one matrix. Vectors have the same number of lanes on every target, so that sums across them have the
same bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.jacobi_lanes import LaneRotations, fits_lanes
from rlx.kernels.cpu.ops.matrix_strips import are_doubles, each_matrix, unit_of
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.ops.lowered.factor_steps import OrthogonalRows

LANES = 8
# So often all pairs are visited; ten times or so are usual.
MAX_ROUNDS = 40
# Rows count as orthogonal when the cosine of their angle is √N times this, or their product this small in units of the
# largest element: then it belongs to a singular value below the last digit of the largest one.
COSINE, NOTHING = 2.0**-52, 1e-34


@op_kernel(OrthogonalRows, kind="factorize", supports=are_doubles)
def orthogonal_rows(site: OpSite) -> None:
    """All elements are divided by the power of two below the largest, so that no square overflows or gets lost."""
    if fits_lanes(site.machine, site.inputs[0]):
        LaneRotations(site, MAX_ROUNDS, (site.inputs[0].shape.static_dims[-1] * COSINE**2, NOTHING**2)).build()
    else:
        _Rotations(site).build()


class _Rotations:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        (self.a,) = site.inputs
        self.rows, self.basis, self.lengths, self.is_found = site.outputs
        self.count, self.size = self.a.dims[-2:]

    def build(self) -> None:
        k = self.k
        with each_matrix(self.site, self.a) as place:
            unit = unit_of(self.site, place, self.a)
            with k.loop("i", 0, self.count) as i:
                self.begin(place, i, unit)
            is_finite = unit < math.inf
            with k.fold("round", 0, MAX_ROUNDS, init=[is_finite]) as rounds:
                again = k.choose(rounds.values[0], lambda: [self.round(place)], lambda: [k.const(0, DType.BOOL)])
                rounds.next(*again)
            k.store(self.is_found.buffer, self.is_found.at(*place), is_finite & ~rounds.results[0])
            with k.loop("i", 0, self.count) as i:
                self.finish(place, i, unit)

    def begin(self, place: Sequence[Value], i: Value, unit: Value) -> None:
        """The row as it is, in units; a row of the identity for its part of the rotation."""
        k = self.k

        def scaled(at: Value, mask: Value | None) -> None:
            x = k.load(self.a.buffer, self.a.at(*place, i) + at, lanes=LANES, mask=mask)
            k.store(self.rows.buffer, self.rows.at(*place, i) + at, x / k.splat(unit, LANES), mask=mask)

        def identity(at: Value, mask: Value | None) -> None:
            column = k.splat(at, LANES) + k.iota(DType.I64, LANES)
            one = k.const(1.0, ValueType(DType.F64, LANES))
            x = k.select(k.eq(column, k.splat(i, LANES)), one, 0.0)
            k.store(self.basis.buffer, self.basis.at(*place, i) + at, x, mask=mask)

        self.along(self.size, scaled)
        self.along(self.count, identity)

    def along(self, size: Value, visit: Callable[[Value, Value | None], None]) -> None:
        k = self.k
        whole = size // LANES * LANES
        with k.loop("c", 0, whole, LANES) as at:
            visit(at, None)
        with k.when(whole < size):
            visit(whole, k.lane_mask(size - whole, LANES))

    def round(self, place: Sequence[Value]) -> Value:
        """All pairs once; whether any was rotated."""
        k = self.k
        with k.fold("p", 0, self.count, init=[k.const(0, DType.BOOL)]) as first:
            p = first.index
            with k.fold("q", p + 1, self.count, init=[first.values[0]]) as second:
                second.next(self.pair(place, p, second.index) | second.values[0])
            first.next(second.results[0])
        return first.results[0]

    def pair(self, place: Sequence[Value], p: Value, q: Value) -> Value:
        """Rotate two rows, if they need it; whether they did."""
        k = self.k
        pp, qq, pq = self.products(place, p, q)
        cosine = k.sqrt(k.cast(self.size, DType.F64)) * COSINE
        limit = k.max(cosine * (k.sqrt(pp) * k.sqrt(qq)), NOTHING)
        is_wanted = ~(k.abs(pq) <= limit)
        with k.when(is_wanted):
            # t is the smaller solution of t² + 2·z·t = 1, the tangent of the angle.
            z = (qq - pp) / (pq * 2.0)
            root = k.sqrt(z * z + 1.0)
            tangent = 1.0 / k.select(z < 0.0, z - root, z + root)
            cosine = 1.0 / k.sqrt(tangent * tangent + 1.0)
            sine = cosine * tangent
            for matrix, size in ((self.rows, self.size), (self.basis, self.count)):
                self.turn(matrix, [matrix.at(*place, i) for i in (p, q)], size, sine, sine / (cosine + 1.0))
        return is_wanted

    def products(self, place: Sequence[Value], p: Value, q: Value) -> list[Value]:
        """p·p, q·q and p·q of two rows."""
        k = self.k
        whole = self.size // LANES * LANES
        zero = k.const(0.0, ValueType(DType.F64, LANES))

        def added(sums: Sequence[Value], at: Value, mask: Value | None) -> list[Value]:
            x, y = (k.load(self.rows.buffer, self.rows.at(*place, i) + at, lanes=LANES, mask=mask) for i in (p, q))
            return [s + a * b for s, (a, b) in zip(sums, ((x, x), (y, y), (x, y)))]

        with k.fold("c", 0, whole, LANES, init=[zero] * 3) as fold:
            fold.next(*added(fold.values, fold.index, None))
        sums = added(fold.results, whole, k.lane_mask(self.size - whole, LANES))
        return [k.reduce("add", s) for s in sums]

    def turn(self, matrix: Slab, starts: Sequence[Value], size: Value, sine: Value, half: Value) -> None:
        """cosine·p - sine·q and sine·p + cosine·q in place of two rows, where the cosine is 1 - sine·half: written as
        changes, which are small in the end and then cost no digits. `half` is the tangent of half the angle."""
        k = self.k
        s, h = (k.splat(x, LANES) for x in (sine, half))

        def rotate(at: Value, mask: Value | None) -> None:
            x, y = (k.load(matrix.buffer, start + at, lanes=LANES, mask=mask) for start in starts)
            k.store(matrix.buffer, starts[0] + at, x - s * (y + h * x), mask=mask)
            k.store(matrix.buffer, starts[1] + at, y + s * (x - h * y), mask=mask)

        self.along(size, rotate)

    def finish(self, place: Sequence[Value], i: Value, unit: Value) -> None:
        """The length of a row; both in their own units again."""
        k = self.k
        square, _, _ = self.products(place, i, i)
        k.store(self.lengths.buffer, self.lengths.at(*place, i), unit * k.sqrt(square))

        def scaled(at: Value, mask: Value | None) -> None:
            start = self.rows.at(*place, i) + at
            x = k.load(self.rows.buffer, start, lanes=LANES, mask=mask)
            k.store(self.rows.buffer, start, x * k.splat(unit, LANES), mask=mask)

        self.along(self.size, scaled)
