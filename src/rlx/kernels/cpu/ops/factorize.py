"""LU with partial pivoting, and Cholesky: each matrix in place of its result, by one thread. Larger ones have the steps
of `lu_steps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.tiles import transposed
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import EXPONENT, Strip, are_doubles, copy_matrix, each_matrix, strips_of
from rlx.kernels.cpu.ops.small_matrices import small_cholesky, small_lu
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.lowered.factor_steps import CholeskyFactor

# Columns that are eliminated before all others are looked at: what these read stays in the nearest cache.
PANEL = 8
# Rows that are made together: enough sums at once, and what they read is read once for all.
TOGETHER = 4
# Up to this size matrices are factorised many at a time.
SMALL = 6


@op_kernel(Lu, kind="factorize", supports=are_doubles)
def lu(site: OpSite) -> None:
    """Panel by panel: its columns one after the other, then U = L⁻¹ A and A -= L U for the columns behind it."""
    rows, columns = site.inputs[0].shape.dims[-2:]
    if rows == columns and isinstance(rows, int) and rows <= SMALL:
        small_lu(site)
    else:
        (a,) = site.inputs
        factors, pivots, permutation = site.outputs
        whole = PanelLu(site, factors, pivots, permutation, *a.dims[-2:])
        with each_matrix(site, a) as place:
            copy_matrix(site, place, a, whole.lu)
            whole.factorize(place)


class PanelLu:
    """The LU of matrices that lie in place of their results; numbers of rows and columns may be values."""

    def __init__(self, site: OpSite, lu: Slab, pivots: Slab, permutation: Slab, rows: Value, columns: Value) -> None:
        self.site, self.k = site, site.k
        self.lu, self.pivots, self.permutation = lu, pivots, permutation
        self.rows, self.columns = rows, columns
        self.lanes = site.machine.lanes(DType.F64)
        self.panel = self.k.local("panel", DType.F64, PANEL * max(PANEL, self.lanes))

    def factorize(self, place: Sequence[Value]) -> None:
        """One matrix: its columns panel by panel, the identity as the first permutation."""
        k = self.k
        steps = k.min(self.rows, self.columns)
        with k.loop("i", 0, self.rows) as i:
            k.store(self.permutation.buffer, self.permutation.at(*place, i), k.cast(i, DType.I32))
        with k.loop("panel", 0, steps, PANEL) as first:
            end = k.min(first + PANEL, steps)
            pivot = self.find_pivot(place, first)
            with k.fold("step", first, end, init=[pivot]) as fold:
                fold.next(self.eliminate(place, fold.index, first, end, fold.values[0]))
            vectors = max(1, PANEL // self.lanes)
            strips_of(self.site, end, self.columns, lambda strip: self.follow(place, first, end, strip), vectors)

    def eliminate(self, place: Sequence[Value], step: Value, first: Value, end: Value, pivot: Value) -> Value:
        """One column of a panel: move the pivot up, and take multiples of its row away from those below. Gives the
        pivot of the next column, which is looked for on the way."""
        k = self.k
        k.store(self.pivots.buffer, self.pivots.at(*place, step), k.cast(pivot, DType.I32))
        with k.when(k.ne(pivot, step)):
            self.exchange(place, step, pivot)
        head = self.element(place, step, step)
        following = k.min(step + 1, end - 1)

        def divide(subtract: Callable[[Value, Value], None]) -> Sequence[Value]:
            with k.fold("i", step + 1, self.rows, init=[k.const(-1, DType.I64), following]) as fold:
                i = fold.index
                subtract(i, self.element(place, i, step) / head)
                fold.next(*self.larger(place, i, following, *fold.values))
            return fold.results

        def whole() -> Sequence[Value]:
            """Rows of a panel that has all its columns."""
            starts = [first + v for v in range(0, PANEL, self.lanes)]
            lane = k.iota(DType.I64, self.lanes)
            columns = [lane + start for start in starts]
            here = k.splat(step, self.lanes)
            top = self.lu.at(*place, step)
            above = [k.load(self.lu.buffer, top + start, lanes=self.lanes) for start in starts]

            def subtract(i: Value, factor: Value) -> None:
                scale, row = k.splat(factor, self.lanes), self.lu.at(*place, i)
                for start, column, y in zip(starts, columns, above):
                    x = k.load(self.lu.buffer, row + start, lanes=self.lanes)
                    changed = k.select(column > here, x - scale * y, x)
                    k.store(self.lu.buffer, row + start, k.select(k.eq(column, here), scale, changed))

            return divide(subtract)

        def part() -> Sequence[Value]:
            def subtract(i: Value, factor: Value) -> None:
                k.store(self.lu.buffer, self.lu.at(*place, i, step), factor)
                with k.loop("j", step + 1, end) as j:
                    changed = self.element(place, i, j) - factor * self.element(place, step, j)
                    k.store(self.lu.buffer, self.lu.at(*place, i, j), changed)

            return divide(subtract)

        # A column without a pivot is left alone.
        has_pivot = k.ne(head, 0.0)
        is_whole = k.eq(end - first, PANEL)
        return k.choose(
            has_pivot,
            lambda: k.choose(is_whole, whole, part)[1:],
            lambda: [self.find_pivot(place, following)],
        )[0]

    def find_pivot(self, place: Sequence[Value], step: Value) -> Value:
        """The row of the first element of largest modulus, from the diagonal down; NaN is larger than any."""
        k = self.k
        with k.fold("i", step, self.rows, init=[k.const(-1, DType.I64), step]) as fold:
            fold.next(*self.larger(place, fold.index, step, *fold.values))
        return fold.results[1]

    def larger(self, place: Sequence[Value], i: Value, column: Value, best: Value, where: Value) -> Sequence[Value]:
        """The larger of the best of a column and element i, as the bits of its modulus, which ascend as numbers do;
        and its row. All NaN are one."""
        k = self.k
        bits = k.bitcast(k.abs(self.element(place, i, column)), DType.I64)
        size = k.min(bits, EXPONENT + 1)
        is_better = size > best
        return k.select(is_better, size, best), k.select(is_better, i, where)

    def exchange(self, place: Sequence[Value], i: Value, j: Value) -> None:
        k = self.k

        def swap(strip: Strip) -> None:
            one, other = (strip.load(self.lu, *place, row) for row in (i, j))
            strip.store(self.lu, [*place, i], other)
            strip.store(self.lu, [*place, j], one)

        strips_of(self.site, k.as_index(0), self.columns, swap)
        ids = [self.permutation.at(*place, row) for row in (i, j)]
        for to, value in zip(ids, [k.load(self.permutation.buffer, at) for at in reversed(ids)]):
            k.store(self.permutation.buffer, to, value)

    def follow(self, place: Sequence[Value], first: Value, end: Value, strip: Strip) -> None:
        """What the steps first .. end - 1 do to columns behind them: row by row, as rows above are finished by then.
        Those of the panel, which all others read, are kept side by side as well."""
        k, vectors = self.k, range(len(strip.firsts))

        def kept(row: Value, vector: int) -> Value:
            return ((row - first) * len(vectors) + vector) * strip.lanes

        def without(rows: Sequence[Value], stop: Value) -> Sequence[Value]:
            """Some rows without what the steps up to `stop` take from them, stored."""
            start = [x for i in rows for x in strip.load(self.lu, *place, i)]
            with k.fold("p", first, stop, init=start) as fold:
                factors = [strip.same(self.element(place, i, fold.index)) for i in rows]
                known = [k.load(self.panel, kept(fold.index, v), lanes=strip.lanes) for v in vectors]
                pairs = ((factor, y) for factor in factors for y in known)
                fold.next(*(x - factor * y for x, (factor, y) in zip(fold.values, pairs)))
            for r, i in enumerate(rows):
                strip.store(self.lu, [*place, i], fold.results[r * len(vectors) : (r + 1) * len(vectors)])
            return fold.results

        with k.loop("i", first, end) as i:
            for v, value in zip(vectors, without([i], i)):
                k.store(self.panel, kept(i, v), value)
        groups = end + (self.rows - end) // TOGETHER * TOGETHER
        with k.loop("group", end, groups, TOGETHER) as i:
            without([i + r for r in range(TOGETHER)], end)
        with k.loop("rest", groups, self.rows) as i:
            without([i], end)

    def element(self, place: Sequence[Value], i: Value, j: Value) -> Value:
        return self.k.load(self.lu.buffer, self.lu.at(*place, i, j))


@op_kernel(CholeskyFactor, kind="factorize", supports=are_doubles)
def cholesky(site: OpSite) -> None:
    """U = Lᵀ row by row above the diagonal: U[i, i:] = (A[i:, i] - Σ U[p, i]·U[p, i:]) / U[i, i]; turned at the end."""
    size = site.inputs[0].shape.dims[-1]
    if isinstance(size, int) and size <= SMALL:
        small_cholesky(site)
    else:
        _Cholesky(site).build()


class _Cholesky:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        (self.a,), (self.factor,) = site.inputs, site.outputs
        self.size = self.a.dims[-1]

    def build(self) -> None:
        k = self.k
        with each_matrix(self.site, self.a) as place:
            self.place = place
            self.turn_over()
            groups = self.size // TOGETHER * TOGETHER
            with k.loop("group", 0, groups, TOGETHER) as first:
                self.rows([first + r for r in range(TOGETHER)])
            with k.loop("row", groups, self.size) as row:
                self.rows([row])
            self.turn_back()

    def turn_over(self) -> None:
        """The lower triangle of A as the upper one of U; blocks on the diagonal take over both."""
        k, a, u = self.k, self.a, self.factor
        lanes = self.site.machine.lanes(DType.F64)
        whole = self.size // lanes * lanes
        with k.loop("I", 0, whole, lanes) as i, k.loop("J", 0, i + 1, lanes) as j:
            rows = [k.load(a.buffer, a.at(*self.place, i + r, j), lanes=lanes) for r in range(lanes)]
            for c, column in enumerate(transposed(k, rows)):
                k.store(u.buffer, u.at(*self.place, j + c, i), column)
        with k.loop("i", whole, self.size) as i, k.loop("j", 0, i + 1) as j:
            k.store(u.buffer, u.at(*self.place, j, i), k.load(a.buffer, a.at(*self.place, i, j)))

    def turn_back(self) -> None:
        """L in place of U, and zeros above its diagonal."""
        k, u = self.k, self.factor
        lanes = self.site.machine.lanes(DType.F64)
        whole = self.size // lanes * lanes
        zero = k.const(0.0, ValueType(DType.F64, lanes))
        lane = k.iota(DType.I64, lanes)

        def block(i: Value, j: Value) -> list[Value]:
            rows = [k.load(u.buffer, u.at(*self.place, j + r, i), lanes=lanes) for r in range(lanes)]
            return transposed(k, rows)

        with k.loop("I", 0, whole, lanes) as i:
            with k.loop("J", 0, i, lanes) as j:
                for r, row in enumerate(block(i, j)):
                    k.store(u.buffer, u.at(*self.place, i + r, j), row)
                    k.store(u.buffer, u.at(*self.place, j + r, i), zero)
            for r, row in enumerate(block(i, i)):
                lower = row if lanes == 1 else k.select(lane > k.splat(k.as_index(r), lanes), 0.0, row)
                k.store(u.buffer, u.at(*self.place, i + r, i), lower)
        with k.loop("i", whole, self.size) as i, k.loop("j", 0, i) as j:
            k.store(u.buffer, u.at(*self.place, i, j), k.load(u.buffer, u.at(*self.place, j, i)))
            k.store(u.buffer, u.at(*self.place, j, i), 0.0)

    def rows(self, rows: list[Value]) -> None:
        """Some rows of U: what those above take from them, which are read once for all; then one from the other."""
        k = self.k

        def subtract(strip: Strip) -> None:
            width = len(strip.firsts)
            start = [x for i in rows for x in strip.load(self.factor, *self.place, i)]
            with k.fold("p", 0, rows[0], init=start) as fold:
                known = strip.load(self.factor, *self.place, fold.index)
                scales = [strip.same(self.element(fold.index, i)) for i in rows]
                fold.next(*(x - scales[n // width] * known[n % width] for n, x in enumerate(fold.values)))
            for r, i in enumerate(rows):
                strip.store(self.factor, [*self.place, i], fold.results[r * width : (r + 1) * width])

        # Below the diagonal, in the first columns, nothing of this is read.
        strips_of(self.site, rows[0], self.size, subtract)
        for r, i in enumerate(rows):
            self.finish(i)
            for below in rows[r + 1 :]:
                self.take(i, below)

    def finish(self, i: Value) -> None:
        """The root of what is left on the diagonal, and the row divided by it."""
        k, corner = self.k, self.factor.at(*self.place, i, i)
        rest = k.load(self.factor.buffer, corner)
        root = k.sqrt(k.select(rest <= 0.0, 0.0, rest))
        k.store(self.factor.buffer, corner, root)

        def divide(strip: Strip) -> None:
            scaled = [x / strip.same(root) for x in strip.load(self.factor, *self.place, i)]
            strip.store(self.factor, [*self.place, i], scaled)

        strips_of(self.site, i + 1, self.size, divide)

    def take(self, i: Value, below: Value) -> None:
        """The multiple of row i that a row below it has to lose."""
        factor = self.element(i, below)

        def subtract(strip: Strip) -> None:
            pairs = zip(*(strip.load(self.factor, *self.place, row) for row in (below, i)))
            strip.store(self.factor, [*self.place, below], [x - strip.same(factor) * y for x, y in pairs])

        strips_of(self.site, below, self.size, subtract)

    def element(self, i: Value, j: Value) -> Value:
        return self.k.load(self.factor.buffer, self.factor.at(*self.place, i, j))
