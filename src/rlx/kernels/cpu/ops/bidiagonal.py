"""Matrices made bidiagonal by reflections from both sides.

The change that a pair of reflections makes, A - u·yᵀ - x·vᵀ, waits for the next pair: one pass over the rows makes it
and gives Aᵀ·u for the next u, a second one gives A·v. Reflections are kept as rows, so that all passes read rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import are_doubles, each_matrix, unit_of
from rlx.kernels.cpu.ops.tridiagonal import GROUP, LANES, in_lanes, zeros
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.bidiagonal_steps import Bidiagonalized
from rlx.ops.lowered.tridiagonal_steps import TINY

# The lines of the space to work in: the change that waits, the next two directions, and Aᵀ·u.
LAST_U, LAST_Y, LAST_X, LAST_V, NEXT_U, NEXT_V, NEXT_Y = range(7)


@op_kernel(Bidiagonalized, kind="factorize", supports=are_doubles)
def bidiagonalized(site: OpSite) -> None:
    _Reduction(site).build()


class _Reduction:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        (self.a,) = site.inputs
        self.left, self.left_scales, self.right, self.right_scales = site.outputs[:4]
        self.diagonal, self.beside, self.unit, self.work, self.space = site.outputs[4:]
        self.height, self.width = self.a.dims[-2:]

    def build(self) -> None:
        k = self.k
        with each_matrix(self.site, self.a) as place:
            self.place = place
            unit = unit_of(self.site, place, self.a)
            k.store(self.unit.buffer, self.unit.at(*place), unit)
            with k.loop("i", 0, self.height) as i:
                in_lanes(self.site, self.width, lambda at, mask: self.begin(i, at, mask, unit))
            for line in range(7):
                in_lanes(self.site, self.height, lambda at, mask: self.put(line, at, k.const(0.0, zeros()), mask))  # noqa: B023
            with k.loop("step", 0, self.width) as step:
                self.reduce(step)

    def begin(self, i: Value, at: Value, mask: Value | None, unit: Value) -> None:
        k = self.k
        x = k.load(self.a.buffer, self.a.at(*self.place, i) + at, lanes=LANES, mask=mask)
        k.store(self.work.buffer, self.work.at(*self.place, i) + at, x / k.splat(unit, LANES), mask=mask)

    def reduce(self, step: Value) -> None:
        """One column and one row."""
        k = self.k
        y, v = self.element(LAST_Y, step), self.element(LAST_V, step)
        with k.loop("r", step, self.height) as r:
            x = k.load(self.work.buffer, self.work.at(*self.place, r, step))
            x = x - self.element(LAST_U, r) * y - self.element(LAST_X, r) * v
            k.store(self.space.buffer, self.space.at(*self.place, NEXT_U, r), x)
        scale, head = self.direction(NEXT_U, step, self.height, self.left)
        self.set(self.left_scales, step, scale)
        self.set(self.diagonal, step, head)
        start = (step + 1) // LANES * LANES
        self.clear(NEXT_Y, start)
        self.in_groups(step, lambda first, count: self.change(first, count, start))
        corner = self.work.at(*self.place, step)

        def row(at: Value, mask: Value | None) -> None:
            y = self.line(NEXT_Y, at, mask) * k.splat(scale, LANES)
            self.put(NEXT_Y, at, y, mask)
            x = k.load(self.work.buffer, corner + at, lanes=LANES, mask=mask)
            self.put(NEXT_V, at, x - y, mask)

        self.columns(start, row)
        scale, head = self.direction(NEXT_V, step + 1, self.width, self.right)
        self.set(self.right_scales, step, scale)
        self.set(self.beside, step, head)
        (across,) = self.dots(
            start, lambda at, mask: [self.line(NEXT_Y, at, mask)], lambda at, mask: self.line(NEXT_V, at, mask), 1
        )
        self.in_groups(step + 1, lambda first, count: self.multiply(first, count, start, scale, across))

        def keep(at: Value, mask: Value | None) -> None:
            self.put(LAST_Y, at, self.line(NEXT_Y, at, mask), mask)
            self.put(LAST_V, at, self.line(NEXT_V, at, mask), mask)

        self.columns(start, keep)
        in_lanes(self.site, self.height, lambda at, mask: self.put(LAST_U, at, self.line(NEXT_U, at, mask), mask))

    def direction(self, line: int, pivot: Value, size: Value, kept: Slab) -> tuple[Value, Value]:
        """The direction that clears a line behind an element, in its place and kept as a row, 0 before that element;
        gives its scale, and what stands there afterwards."""
        k = self.k
        step = pivot if line == NEXT_U else pivot - 1
        row, start = kept.at(*self.place, step), self.space.at(*self.place, line)
        exists = pivot < size
        head = k.select(exists, k.load(self.space.buffer, start + k.min(pivot, size - 1)), 0.0)
        with k.fold("j", pivot + 1, size, init=[k.const(0.0, DType.F64)] * 2) as fold:
            x = k.load(self.space.buffer, start + fold.index)
            fold.next(k.max(fold.values[0], k.abs(x)), k.fma(x, x, fold.values[1]))
        is_needed = fold.results[0] > TINY
        length = k.sqrt(fold.results[1] + head * head)
        turned = k.select(k.bitcast(head, DType.I64) < 0, length, -length)
        inverse = k.select(is_needed, 1.0 / (head - turned), 0.0)

        def write(at: Value, mask: Value | None) -> None:
            column = k.splat(at, LANES) + k.iota(DType.I64, LANES)
            x = self.line(line, at, mask) * k.splat(inverse, LANES)
            x = k.select(column > k.splat(pivot, LANES), x, 0.0)
            x = k.select(k.eq(column, k.splat(pivot, LANES)), k.const(1.0, zeros()), x)
            self.put(line, at, x, mask)
            k.store(kept.buffer, row + at, x, mask=mask)

        in_lanes(self.site, size, write)
        scale = k.select(is_needed, (turned - head) / turned, 0.0)
        return scale, k.select(is_needed, turned, head)

    def change(self, first: Value, count: int, start: Value) -> None:
        """The change that waits, in some rows, which are then added up by the next u."""
        k = self.k
        rows = [self.work.at(*self.place, first + r) for r in range(count)]
        u, x, next_u = (
            [k.splat(self.element(line, first + r), LANES) for r in range(count)] for line in (LAST_U, LAST_X, NEXT_U)
        )

        def step(at: Value, mask: Value | None) -> None:
            y, v, sums = (self.line(line, at, mask) for line in (LAST_Y, LAST_V, NEXT_Y))
            for r in range(count):
                value = k.load(self.work.buffer, rows[r] + at, lanes=LANES, mask=mask)
                value = k.fma(-u[r], y, k.fma(-x[r], v, value))
                k.store(self.work.buffer, rows[r] + at, value, mask=mask)
                sums = k.fma(next_u[r], value, sums)
            self.put(NEXT_Y, at, sums, mask)

        self.columns(start, step)

    def multiply(self, first: Value, count: int, start: Value, scale: Value, across: Value) -> None:
        """x = scale·(A·v - u·(y·v)) for some rows."""
        k = self.k
        rows = [self.work.at(*self.place, first + r) for r in range(count)]
        found = self.dots(
            start,
            lambda at, mask: [k.load(self.work.buffer, row + at, lanes=LANES, mask=mask) for row in rows],
            lambda at, mask: self.line(NEXT_V, at, mask),
            count,
        )
        for r, product in enumerate(found):
            x = scale * (product - self.element(NEXT_U, first + r) * across)
            k.store(self.space.buffer, self.space.at(*self.place, LAST_X, first + r), x)

    def dots(
        self,
        start: Value,
        xs: Callable[[Value, Value | None], list[Value]],
        y: Callable[[Value, Value | None], Value],
        count: int,
    ) -> list[Value]:
        """The products of some lines with another one, from `start` on."""
        k = self.k
        whole = self.width // LANES * LANES

        def add(sums: Sequence[Value], at: Value, mask: Value | None) -> list[Value]:
            other = y(at, mask)
            return [k.fma(x, other, s) for x, s in zip(xs(at, mask), sums)]

        with k.fold("c", start, whole, LANES, init=[k.const(0.0, zeros())] * count) as fold:
            fold.next(*add(fold.values, fold.index, None))
        last = k.max(start, whole)
        return [k.reduce("add", s) for s in add(fold.results, last, k.lane_mask(self.width - last, LANES))]

    def in_groups(self, first: Value, visit: Callable[[Value, int], None]) -> None:
        """Some rows at a time, from `first` on."""
        k = self.k
        whole = first + k.max(self.height - first, 0) // GROUP * GROUP
        with k.loop("group", first, whole, GROUP) as group:
            visit(group, GROUP)
        with k.loop("r", whole, self.height) as r:
            visit(r, 1)

    def columns(self, start: Value, visit: Callable[[Value, Value | None], None]) -> None:
        """The columns from `start` on, which is a multiple of the lanes."""
        k = self.k
        whole = self.width // LANES * LANES
        with k.loop("c", start, whole, LANES) as at:
            visit(at, None)
        last = k.max(start, whole)
        with k.when(last < self.width):
            visit(last, k.lane_mask(self.width - last, LANES))

    def clear(self, line: int, start: Value) -> None:
        self.columns(start, lambda at, mask: self.put(line, at, self.k.const(0.0, zeros()), mask))

    def line(self, line: int, at: Value, mask: Value | None) -> Value:
        return self.k.load(self.space.buffer, self.space.at(*self.place, line) + at, lanes=LANES, mask=mask)

    def element(self, line: int, i: Value) -> Value:
        return self.k.load(self.space.buffer, self.space.at(*self.place, line, i))

    def put(self, line: int, at: Value, value: Value, mask: Value | None) -> None:
        self.k.store(self.space.buffer, self.space.at(*self.place, line) + at, value, mask=mask)

    def set(self, slab: Slab, i: Value, value: Value) -> None:
        self.k.store(slab.buffer, slab.at(*self.place, i), value)
