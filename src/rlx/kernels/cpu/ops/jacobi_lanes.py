"""Jacobi's method on many small matrices: the lanes are matrices, and each pair of rows is rotated in all of them.

Elements of some matrices lie side by side in scratch. Vectors have the same number of lanes on every target, and no sum
goes across them, so that all targets give the same bits. A lane whose rows are orthogonal already turns by no angle, so
that nothing depends on what other lanes need, but for how long they are waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.cpu.ops.matrix_strips import EXPONENT, SMALLEST
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import Buffer, Const, Value, ValueType
from rlx.kernels.machines import Machine

LANES = 8
# What the matrices of all lanes take at most, and their rotations; and the most rows, for which code is small.
MOST_BYTES, MOST_ROWS = 128 << 10, 32
# Elements of a row for which code is written out.
WRITTEN_OUT = 8


def fits_lanes(machine: Machine, a: Slab) -> bool:
    """Whether matrices are so small, and so many, that lanes are better filled with them than with their elements."""
    if machine.is_gpu or machine.lanes(DType.F64) == 1 or not all(isinstance(d, Const) for d in a.dims):
        return False
    counts = [int(d.literal) for d in a.dims if isinstance(d, Const)]
    size = counts[-2] * (counts[-1] + counts[-2]) * LANES * DType.F64.size_bytes
    has_room = 0 < size <= min(MOST_BYTES, machine.scratch_bytes)
    return has_room and counts[-2] <= MOST_ROWS and math.prod(counts[:-2]) >= LANES


class LaneRotations:
    """The kernel of `OrthogonalRows` for such matrices; `limits` are its squared cosine and the least product."""

    def __init__(self, site: OpSite, most_rounds: int, limits: tuple[float, float]) -> None:
        self.site, self.k, self.most_rounds, self.limits = site, site.k, most_rounds, limits
        (self.a,) = site.inputs
        self.count, self.size = self.a.shape.static_dims[-2:]
        self.lanes = LANES
        self.type = ValueType(DType.F64, self.lanes)
        self.rows = self.k.local("rows", DType.F64, self.count * self.size * self.lanes)
        self.basis = self.k.local("basis", DType.F64, self.count * self.count * self.lanes)
        self.squares = self.k.local("squares", DType.F64, self.count * self.lanes)

    def build(self) -> None:
        k = self.k
        matrices = total(k, self.a.dims[:-2])
        with k.parallel("block", k.ceildiv(matrices, self.lanes)) as block:
            first = block * self.lanes
            # Lanes behind the last matrix rotate it once more, and store nothing.
            numbers = k.min(k.splat(first, self.lanes) + k.iota(DType.I64, self.lanes), matrices - 1)
            exist = k.lane_mask(matrices - first, self.lanes)
            unit, is_finite = self.begin(numbers)
            again = k.select(is_finite, 1.0, k.const(0.0, self.type))
            with k.fold("round", 0, self.most_rounds, init=[again]) as rounds:
                turned = k.choose(
                    k.reduce("or", k.ne(rounds.values[0], 0.0)),
                    lambda: [self.round()],
                    lambda: [k.const(0.0, self.type)],
                )
                rounds.next(*turned)
            self.finish(numbers, exist, unit, is_finite & k.eq(rounds.results[0], 0.0))

    # Vectors of elements.

    def at(self, buffer: Buffer, row: Value | int, column: Value | int, size: int) -> Value:
        return self.k.load(buffer, (self.k.as_index(row) * size + column) * self.lanes, lanes=self.lanes)

    def put(self, buffer: Buffer, row: Value | int, column: Value | int, size: int, value: Value) -> None:
        self.k.store(buffer, (self.k.as_index(row) * size + column) * self.lanes, self.k.splat(value, self.lanes))

    def each(self, size: int, visit: Callable[[Value], None]) -> None:
        """So many columns, written out where they are few."""
        if size <= WRITTEN_OUT:
            for number in range(size):
                visit(self.k.as_index(number))
            return
        with self.k.loop("c", 0, size) as column:
            visit(column)

    # The steps.

    def begin(self, numbers: Value) -> tuple[Value, Value]:
        """The elements in units of the power of two below the largest, as `unit_of` has it, and identities; the units,
        and which matrices are finite. Of others nothing is computed."""
        k, elements = self.k, self.count * self.size
        zero = k.const(0.0, self.type)
        with k.fold("e", 0, elements, init=[zero, k.const(1.0, self.type)]) as fold:
            x = k.load(self.a.buffer, self.a.offset + numbers * elements + fold.index, lanes=self.lanes)
            k.store(self.rows, fold.index * self.lanes, x)
            ordinary = k.abs(x) < math.inf
            fold.next(k.max(fold.values[0], k.select(ordinary, k.abs(x), 0.0)), k.select(ordinary, fold.values[1], 0.0))
        is_finite = k.ne(fold.results[1], 0.0)
        bits = k.bitcast(fold.results[0], DType.I64) & EXPONENT
        unit = k.max(k.bitcast(bits, DType.F64), SMALLEST)
        with k.loop("e", 0, elements) as e:
            x = k.load(self.rows, e * self.lanes, lanes=self.lanes)
            k.store(self.rows, e * self.lanes, k.select(is_finite, x / unit, 0.0))
        with k.loop("i", 0, self.count) as i, k.loop("j", 0, self.count) as j:
            self.put(self.basis, i, j, self.count, k.select(k.eq(i, j), 1.0, k.const(0.0, DType.F64)))
        return unit, is_finite

    def product(self, p: Value, q: Value) -> Value:
        """The product of two rows, in a few sums that do not wait for each other."""
        k, sums = self.k, min(4, self.size)
        starts = [k.const(0.0, self.type)] * sums

        def added(at: Value | int, values: Sequence[Value], count: int) -> list[Value]:
            found = list(values)
            for i in range(count):
                x, y = (self.at(self.rows, row, self.k.as_index(at) + i, self.size) for row in (p, q))
                found[i] = found[i] + x * y
            return found

        whole = self.size // sums * sums
        if whole <= WRITTEN_OUT:
            values: Sequence[Value] = starts
            for at in range(0, whole, sums):
                values = added(at, values, sums)
        else:
            with k.fold("c", 0, whole, sums, init=starts) as fold:
                fold.next(*added(fold.index, fold.values, sums))
            values = fold.results
        values = added(whole, values, self.size - whole)
        while len(values) > 1:
            values = [*(a + b for a, b in zip(values[::2], values[1::2])), *values[len(values) // 2 * 2 :]]
        return values[0]

    def round(self) -> Value:
        """All pairs once; 1 in the lanes in which some were rotated."""
        k = self.k
        with k.loop("i", 0, self.count) as i:
            self.put(self.squares, i, 0, 1, self.product(i, i))
        with k.fold("p", 0, self.count, init=[k.const(0.0, self.type)]) as first:
            p = first.index
            with k.fold("q", p + 1, self.count, init=[first.values[0]]) as second:
                second.next(k.max(self.pair(p, second.index), second.values[0]))
            first.next(second.results[0])
        return first.results[0]

    def pair(self, p: Value, q: Value) -> Value:
        """Rotate two rows where they need it; 1 in these lanes."""
        k = self.k
        pp, qq = (self.at(self.squares, row, 0, 1) for row in (p, q))
        pq = self.product(p, q)
        cosine, least = self.limits
        is_wanted = pq * pq > k.max(pp * qq * cosine, least)
        with k.when(k.reduce("or", is_wanted)):
            self.turn(p, q, (pp, qq, k.select(is_wanted, pq, 1.0)), is_wanted)
        return k.select(is_wanted, 1.0, k.const(0.0, self.type))

    def turn(self, p: Value, q: Value, products: tuple[Value, Value, Value], is_wanted: Value) -> None:
        """By the angle whose tangent is the smaller solution of t² + 2·z·t = 1; see `_Rotations.turn`."""
        k = self.k
        pp, qq, pq = products
        z = (qq - pp) / (pq * 2.0)
        root = k.sqrt(z * z + 1.0)
        tangent = 1.0 / k.select(z < 0.0, z - root, z + root)
        cosine = 1.0 / k.sqrt(tangent * tangent + 1.0)
        sine = k.select(is_wanted, cosine * tangent, 0.0)
        half = sine / (cosine + 1.0)
        change = k.select(is_wanted, tangent * pq, 0.0)
        self.put(self.squares, p, 0, 1, pp - change)
        self.put(self.squares, q, 0, 1, qq + change)
        for buffer, size in ((self.rows, self.size), (self.basis, self.count)):

            def rotate(column: Value, buffer: Buffer = buffer, size: int = size) -> None:
                x, y = (self.at(buffer, row, column, size) for row in (p, q))
                self.put(buffer, p, column, size, x - sine * (y + half * x))
                self.put(buffer, q, column, size, y + sine * (x - half * y))

            self.each(size, rotate)

    def finish(self, numbers: Value, exist: Value, unit: Value, is_found: Value) -> None:
        k = self.k
        rows, basis, lengths, found = self.site.outputs
        for slab, buffer, size, scale in ((rows, self.rows, self.size, unit), (basis, self.basis, self.count, None)):
            elements = self.count * size
            with k.loop("e", 0, elements) as e:
                x = k.load(buffer, e * self.lanes, lanes=self.lanes)
                x = x if scale is None else x * scale
                k.store(slab.buffer, slab.offset + numbers * elements + e, x, mask=exist)
        with k.loop("i", 0, self.count) as i:
            length = unit * k.sqrt(self.product(i, i))
            k.store(lengths.buffer, lengths.offset + numbers * self.count + i, length, mask=exist)
        k.store(found.buffer, found.offset + numbers, is_found, mask=exist)
