"""Symmetric matrices made tridiagonal by reflections, from the last row up.

Rows lie side by side in memory, so a reflection is found in a row and kept there. The change that it makes to the rows
above, A - v·wᵀ - w·vᵀ, waits for the next reflection: one pass over the lower triangle then makes it and multiplies
with the next v. Vectors have the same number of lanes on every target, so that sums have the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import are_doubles, each_matrix, unit_of
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.ops.lowered.tridiagonal_steps import TINY, Tridiagonalized

LANES = 8
# Rows that pass together, so that vectors are loaded once for all of them.
GROUP = 4
# The lines of the space to work in: the change that waits is v·wᵀ + w·vᵀ with LAST and CHANGE.
CHANGE, PRODUCT, NEXT, LAST = range(4)


def zeros() -> ValueType:
    return ValueType(DType.F64, LANES)


@op_kernel(Tridiagonalized, kind="factorize", supports=are_doubles)
def tridiagonalized(site: OpSite) -> None:
    _Reduction(site).build()


class _Reduction:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        (self.a,) = site.inputs
        self.packed, self.scales, self.diagonal, self.beside, self.unit, self.space = site.outputs
        self.size = self.a.dims[-1]

    def build(self) -> None:
        k = self.k
        with each_matrix(self.site, self.a) as place:
            self.place = place
            unit = unit_of(self.site, place, self.a)
            k.store(self.unit.buffer, self.unit.at(*place), unit)
            with k.loop("i", 0, self.size) as i:
                self.along(self.size, lambda at, mask: self.begin(i, at, mask, unit))
            for line in range(4):
                self.along(self.size, lambda at, mask: self.put(line, at, k.const(0.0, zeros()), mask))  # noqa: B023
            with k.loop("back", 1, self.size) as back:
                self.reflect(self.size - back)
            with k.when(self.size > 0):
                self.change_row(k.as_index(0), k.as_index(1))
                self.set(self.diagonal, k.as_index(0), self.get(self.packed, k.as_index(0), k.as_index(0)))
                self.set(self.scales, k.as_index(0), k.const(0.0, DType.F64))
                self.set(self.beside, self.size - 1, k.const(0.0, DType.F64))

    def begin(self, i: Value, at: Value, mask: Value | None, unit: Value) -> None:
        k = self.k
        x = k.load(self.a.buffer, self.a.at(*self.place, i) + at, lanes=LANES, mask=mask)
        k.store(self.packed.buffer, self.packed.at(*self.place, i) + at, x / k.splat(unit, LANES), mask=mask)

    def reflect(self, i: Value) -> None:
        """Row i: its last change, the reflection that clears it but for the element beside the diagonal, and A·v."""
        k, row = self.k, self.packed.at(*self.place, i)
        self.change_row(i, i + 1)
        self.set(self.diagonal, i, k.load(self.packed.buffer, row + i))
        scale = self.direction(i)
        self.set(self.scales, i, scale)
        groups = i // GROUP * GROUP
        with k.loop("group", 0, groups, GROUP) as first:
            self.rows(first, GROUP, i)
        with k.loop("r", groups, i) as r:
            self.rows(r, 1, i)
        half = self.dot(i) * scale * scale * -0.5

        def finish(at: Value, mask: Value | None) -> None:
            p, v = self.line(PRODUCT, at, mask), self.line(NEXT, at, mask)
            self.put(CHANGE, at, p * k.splat(scale, LANES) + v * k.splat(half, LANES), mask)
            self.put(LAST, at, v, mask)
            self.put(PRODUCT, at, k.const(0.0, zeros()), mask)

        self.along(i, finish)

    def change_row(self, i: Value, count: Value) -> None:
        """The change that waits, in the first elements of a row."""
        k, row = self.k, self.packed.at(*self.place, i)
        v, w = (k.splat(self.element(line, i), LANES) for line in (LAST, CHANGE))

        def change(at: Value, mask: Value | None) -> None:
            x = k.load(self.packed.buffer, row + at, lanes=LANES, mask=mask)
            x = x - v * self.line(CHANGE, at, mask) - w * self.line(LAST, at, mask)
            k.store(self.packed.buffer, row + at, x, mask=mask)

        self.along(count, change)

    def direction(self, i: Value) -> Value:
        """v in place of the row and as the line NEXT, 0 behind its end; gives the scale."""
        k, row = self.k, self.packed.at(*self.place, i)
        pivot = i - 1
        head = k.load(self.packed.buffer, row + pivot)
        with k.fold("j", 0, pivot, init=[k.const(0.0, DType.F64)]) as sums:
            x = k.load(self.packed.buffer, row + sums.index)
            sums.next(k.max(sums.values[0], k.abs(x)))
        is_needed = sums.results[0] > TINY
        vectors = pivot // LANES * LANES

        def add(total: Value, at: Value, mask: Value | None) -> Value:
            x = k.load(self.packed.buffer, row + at, lanes=LANES, mask=mask)
            return total + x * x

        with k.fold("c", 0, vectors, LANES, init=[k.const(0.0, zeros())]) as fold:
            fold.next(add(fold.values[0], fold.index, None))
        squares = k.reduce("add", add(fold.results[0], vectors, k.lane_mask(pivot - vectors, LANES)))
        length = k.sqrt(squares + head * head)
        turned = k.select(k.bitcast(head, DType.I64) < 0, length, -length)
        inverse = k.select(is_needed, 1.0 / (head - turned), 0.0)
        self.set(self.beside, pivot, k.select(is_needed, turned, head))
        # One more vector than there are elements: what is behind the end must not count.
        end = k.min(k.ceildiv(i + LANES, LANES) * LANES, self.size)

        def write(at: Value, mask: Value | None) -> None:
            column = k.splat(at, LANES) + k.iota(DType.I64, LANES)
            x = k.load(self.packed.buffer, row + at, lanes=LANES, mask=mask) * k.splat(inverse, LANES)
            x = k.select(column < k.splat(pivot, LANES), x, 0.0)
            x = k.select(k.eq(column, k.splat(pivot, LANES)), k.const(1.0, zeros()), x)
            self.put(NEXT, at, x, mask)
            k.store(self.packed.buffer, row + at, x, mask=mask)

        self.along(end, write)
        return k.select(is_needed, (turned - head) / turned, 0.0)

    def rows(self, first: Value, count: int, i: Value) -> None:
        """Some rows of the lower triangle, and of the blocks on the diagonal all: changed, and multiplied with v."""
        k = self.k
        starts = [self.packed.at(*self.place, first + r) for r in range(count)]
        v, w, u = (
            [k.splat(self.element(line, first + r), LANES) for r in range(count)] for line in (LAST, CHANGE, NEXT)
        )

        def step(at: Value, mask: Value | None, sums: Sequence[Value]) -> tuple[list[Value], Value]:
            ws, vs, us = (self.line(line, at, mask) for line in (CHANGE, LAST, NEXT))
            along, found = self.line(PRODUCT, at, mask), []
            for r in range(count):
                x = k.load(self.packed.buffer, starts[r] + at, lanes=LANES, mask=mask)
                x = k.fma(-v[r], ws, k.fma(-w[r], vs, x))
                k.store(self.packed.buffer, starts[r] + at, x, mask=mask)
                found.append(k.fma(x, us, sums[r]))
                along = k.fma(x, u[r], along)
            return found, along

        block = first // LANES * LANES
        with k.fold("c", 0, block, LANES, init=[k.const(0.0, zeros())] * count) as fold:
            sums, along = step(fold.index, None, fold.values)
            self.put(PRODUCT, fold.index, along, None)
            fold.next(*sums)
        # A block on the diagonal has both of its triangles, so that it is multiplied from one side only.
        sums, _ = step(block, k.lane_mask(self.size - block, LANES), fold.results)
        for r in range(count):
            at = self.space.at(*self.place, PRODUCT, first + r)
            k.store(self.space.buffer, at, k.load(self.space.buffer, at) + k.reduce("add", sums[r]))

    def dot(self, i: Value) -> Value:
        """A·v times v."""
        k = self.k
        vectors = i // LANES * LANES

        def add(total: Value, at: Value, mask: Value | None) -> Value:
            return k.fma(self.line(PRODUCT, at, mask), self.line(NEXT, at, mask), total)

        with k.fold("c", 0, vectors, LANES, init=[k.const(0.0, zeros())]) as fold:
            fold.next(add(fold.values[0], fold.index, None))
        return k.reduce("add", add(fold.results[0], vectors, k.lane_mask(i - vectors, LANES)))

    def line(self, line: int, at: Value, mask: Value | None) -> Value:
        return self.k.load(self.space.buffer, self.space.at(*self.place, line) + at, lanes=LANES, mask=mask)

    def element(self, line: int, i: Value) -> Value:
        return self.k.load(self.space.buffer, self.space.at(*self.place, line, i))

    def put(self, line: int, at: Value, value: Value, mask: Value | None) -> None:
        self.k.store(self.space.buffer, self.space.at(*self.place, line) + at, value, mask=mask)

    def get(self, slab: Slab, *index: Value) -> Value:
        return self.k.load(slab.buffer, slab.at(*self.place, *index))

    def set(self, slab: Slab, i: Value, value: Value) -> None:
        self.k.store(slab.buffer, slab.at(*self.place, i), value)

    def along(self, size: Value, visit: Callable[[Value, Value | None], None]) -> None:
        in_lanes(self.site, size, visit)


def in_lanes(site: OpSite, size: Value, visit: Callable[[Value, Value | None], None]) -> None:
    """Visit 0 .. size - 1 in vectors, the last one under a mask."""
    k = site.k
    whole = size // LANES * LANES
    with k.loop("c", 0, whole, LANES) as at:
        visit(at, None)
    with k.when(whole < size):
        visit(whole, k.lane_mask(size - whole, LANES))
