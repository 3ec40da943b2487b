"""The CPU kernel of a sparse Cholesky factorisation: every panel loses the products of those before it, in tiles that
stay in registers, and is then factorised itself. Threads share the matrices of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.strips import along
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.sparse import kernel_numbers as numbers
from rlx.sparse.kernel_numbers import Number, position
from rlx.sparse.ops_supernodal import PanelCholesky

# A tile: columns, and vectors of rows, which are half as many for complex numbers.
COLUMNS, VECTORS = 4, 4


@op_kernel(PanelCholesky, kind="sparse")
def panel_cholesky(site: OpSite) -> None:
    _Factorisation(site).build()


class _Panel(NamedTuple):
    """Columns of `height` rows, one after the other from `start` on."""

    start: Value
    width: Value
    height: Value

    def at(self, column: Value, row: Value) -> Value:
        return self.start + column * self.height + row


class _Factorisation:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        self.a, *plan = site.inputs
        self.starts, self.widths, self.heights, self.links, self.sources, self.relative = plan
        (self.y,) = site.outputs
        self.vectors = VECTORS // 2 if self.a.shape.dtype.is_complex else VECTORS

    def build(self) -> None:
        k, lead = self.k, self.a.dims[:-1]
        with k.parallel("matrix", total(k, lead)) as number:
            place = unflatten(number, lead)
            self.base = self.y.at(*place)
            self.copy(self.a.at(*place))
            with k.loop("supernode", 0, self.widths.dims[0]) as s:
                panel = self.panel(s)
                with k.when(self.is_sound(panel)):
                    begin, end = (position(k, self.links, s + i) for i in (0, 1))
                    limit = self.sources.dims[0]
                    with k.loop("link", k.max(begin, 0), k.min(end, limit)) as link:
                        self.follow(s, panel, link)
                    self.factorise(panel)

    def copy(self, source: Value) -> None:
        def step(i: Value, lanes: int, mask: Value | None) -> None:
            numbers.store(self.k, self.y, self.base + i, numbers.load(self.k, self.a, source + i, lanes, mask), mask)

        along(self.k, self.site.machine, [self.y.buffer.dtype], self.k.as_index(0), self.a.dims[-1], step)

    def panel(self, s: Value) -> _Panel:
        return _Panel(*(position(self.k, slab, s) for slab in (self.starts, self.widths, self.heights)))

    def is_sound(self, panel: _Panel) -> Value:
        """Whether a panel lies in what there is."""
        total = self.a.dims[-1]
        start, width, height = panel
        # Each of them alone is small enough for products not to overflow.
        are_small = (width <= total) & (height <= total) & (start <= total)
        is_inside = start + width * height <= total
        return (start >= 0) & (width >= 0) & (height >= width) & are_small & is_inside

    def follow(self, s: Value, panel: _Panel, link: Value) -> None:
        """Take the products of the rows of an earlier panel away from this one."""
        k = self.k
        number, first, last, place = (position(k, self.sources, link * 4 + i) for i in range(4))
        with k.when((number >= 0) & (number < s)):
            source = self.panel(number)
            are_rows = (first >= 0) & (first <= last) & (last <= source.height)
            are_places = (place >= 0) & (place <= self.relative.dims[0] - (source.height - first))
            with k.when(self.is_sound(source) & are_rows & are_places & (panel.width > 0)):
                whole = first + (last - first) // COLUMNS * COLUMNS
                with k.loop("column", first, whole, COLUMNS) as column:
                    self.take(panel, source, [column + i for i in range(COLUMNS)], place - first)
                with k.loop("column", whole, last) as column:
                    self.take(panel, source, [column], place - first)

    def take(self, panel: _Panel, source: _Panel, columns: Sequence[Value], offset: Value) -> None:
        k = self.k
        goals = [self.bounded(position(k, self.relative, offset + c), panel.width) * panel.height for c in columns]
        starts = [self.base + panel.start + goal for goal in goals]

        def tile(rows: Sequence[Value], lanes: int, mask: Value | None) -> None:
            zero = numbers.zero(k, self.y, lanes)
            found = self.products(source, columns, rows, lanes, mask, [zero] * (len(columns) * len(rows)), source.width)
            for v, row in enumerate(rows):
                at = self.relative.offset + offset + row
                there = self.bounded(k.load(self.relative.buffer, at, lanes=lanes, mask=mask), panel.height)
                for c, start in enumerate(starts):
                    goal = k.splat(start, lanes) + there
                    known = self.scattered(goal, lanes, mask)
                    self.scatter(goal, numbers.add(known, found[c * len(rows) + v]), mask)

        self.tiles(columns[0], source.height, tile)

    def bounded(self, x: Value, size: Value) -> Value:
        k = self.k
        return k.max(k.min(x, k.splat(size - 1, x.lanes)), k.splat(k.as_index(0), x.lanes))

    def scattered(self, goal: Value, lanes: int, mask: Value | None) -> Number:
        if lanes == 1 or not self.y.shape.dtype.is_complex:
            return numbers.load(self.k, self.y, goal, lanes, mask)
        double = goal + goal
        one = self.k.splat(self.k.as_index(1), lanes)
        return tuple(self.k.load(self.y.buffer, at, lanes=lanes, mask=mask) for at in (double, double + one))

    def scatter(self, goal: Value, number: Number, mask: Value | None) -> None:
        if goal.lanes == 1 or len(number) == 1:
            numbers.store(self.k, self.y, goal, number, mask)
            return
        double = goal + goal
        one = self.k.splat(self.k.as_index(1), goal.lanes)
        for at, part in zip((double, double + one), number):
            self.k.store(self.y.buffer, at, part, mask=mask)

    def products(
        self,
        source: _Panel,
        columns: Sequence[Value],
        rows: Sequence[Value],
        lanes: int,
        mask: Value | None,
        init: Sequence[Number],
        depth: Value,
    ) -> list[Number]:
        """init[c][r] - Σ panel[p][r]·conj(panel[p][c]) over the first columns p of a panel."""
        k, parts = self.k, len(init[0])
        with k.fold("p", 0, depth, init=[x for number in init for x in number]) as fold:
            start = self.base + source.at(fold.index, k.as_index(0))
            known = [numbers.load(k, self.y, start + r, lanes, mask) for r in rows]
            scales = [numbers.conjugate(numbers.load(k, self.y, start + c)) for c in columns]
            sums = [fold.values[i : i + parts] for i in range(0, len(fold.values), parts)]
            changed = [
                numbers.multiply_subtract(k, numbers.splat(k, scale, lanes), x, sums[c * len(rows) + r])
                for c, scale in enumerate(scales)
                for r, x in enumerate(known)
            ]
            fold.next(*(x for number in changed for x in number))
        return [fold.results[i : i + parts] for i in range(0, len(fold.results), parts)]

    def tiles(self, first: Value, end: Value, visit: Callable[[Sequence[Value], int, Value | None], None]) -> None:
        """Visit rows: many at a time, then few, then those that are left."""
        k = self.k
        lanes = self.site.machine.lanes(self.y.buffer.dtype)
        width = self.vectors * lanes
        middle = first + k.max(end - first, 0) // width * width
        with k.loop("tile", first, middle, width) as row:
            visit([row + v * lanes for v in range(self.vectors)], lanes, None)
        dtypes = [self.y.buffer.dtype, self.relative.buffer.dtype]
        along(k, self.site.machine, dtypes, middle, end, lambda i, n, mask: visit([i], n, mask))

    def factorise(self, panel: _Panel) -> None:
        """Some columns at a time: what those before take from them, and then one from the other."""
        k = self.k
        whole = panel.width // COLUMNS * COLUMNS
        with k.loop("column", 0, whole, COLUMNS) as first:
            self.columns(panel, [first + i for i in range(COLUMNS)])
        with k.loop("column", whole, panel.width) as column:
            self.columns(panel, [column])

    def columns(self, panel: _Panel, columns: Sequence[Value]) -> None:
        k = self.k

        def tile(rows: Sequence[Value], lanes: int, mask: Value | None) -> None:
            places = [self.base + panel.at(c, r) for c in columns for r in rows]
            init = [numbers.load(k, self.y, at, lanes, mask) for at in places]
            found = self.products(panel, columns, rows, lanes, mask, init, columns[0])
            for at, value in zip(places, found):
                numbers.store(k, self.y, at, value, mask)

        self.tiles(columns[0], panel.height, tile)
        for number, column in enumerate(columns):
            self.finish(panel, columns[:number], column)

    def finish(self, panel: _Panel, before: Sequence[Value], column: Value) -> None:
        """One column without what its neighbours take, divided by the root of what is left on the diagonal."""
        k = self.k
        scales = [numbers.conjugate(numbers.load(k, self.y, self.base + panel.at(p, column))) for p in before]

        def rest(row: Value, lanes: int, mask: Value | None) -> Number:
            value = numbers.load(k, self.y, self.base + panel.at(column, row), lanes, mask)
            for p, scale in zip(before, scales):
                known = numbers.load(k, self.y, self.base + panel.at(p, row), lanes, mask)
                value = numbers.multiply_subtract(k, numbers.splat(k, scale, lanes), known, value)
            return value

        root = k.sqrt(rest(column, 1, None)[0])

        def divide(row: Value, lanes: int, mask: Value | None) -> None:
            scaled = tuple(x / k.splat(root, lanes) for x in rest(row, lanes, mask))
            numbers.store(k, self.y, self.base + panel.at(column, row), scaled, mask)

        along(k, self.site.machine, [self.y.buffer.dtype], column + 1, panel.height, divide)
        numbers.store(k, self.y, self.base + panel.at(column, column), (root, *numbers.zero(k, self.y)[1:]))
