"""LU with partial pivoting, and Cholesky: each matrix in place of its result, by one thread."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.tiles import transposed
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import VECTORS, Strip, are_doubles, copy_matrix, each_matrix, strips_of
from rlx.kernels.cpu.ops.small_matrices import small_cholesky
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.lowered.factor_steps import CholeskyFactor

# Columns that are eliminated before all others are looked at: what these read stays in the nearest cache.
PANEL = 32
# Rows of a Cholesky factor that are made together.
TOGETHER = 4
# Up to this size matrices are factorised many at a time.
SMALL = 6


@op_kernel(Lu, kind="factorize", supports=are_doubles)
def lu(site: OpSite) -> None:
    """Panel by panel: its columns one after the other, then U = L⁻¹ A and A -= L U for the columns behind it."""
    _Lu(site).build()


class _Lu:
    def __init__(self, site: OpSite) -> None:
        self.site, self.k = site, site.k
        (self.a,) = site.inputs
        self.lu, self.pivots, self.permutation = site.outputs
        self.rows, self.columns = self.a.dims[-2:]
        self.steps = self.pivots.dims[-1]
        self.panel = self.k.local("panel", DType.F64, PANEL * VECTORS * site.machine.lanes(DType.F64))

    def build(self) -> None:
        k = self.k
        with each_matrix(self.site, self.a) as place:
            copy_matrix(self.site, place, self.a, self.lu)
            with k.loop("i", 0, self.rows) as i:
                k.store(self.permutation.buffer, self.permutation.at(*place, i), k.cast(i, DType.I32))
            with k.loop("panel", 0, self.steps, PANEL) as first:
                end = k.min(first + PANEL, self.steps)
                with k.loop("step", first, end) as step:
                    self.eliminate(place, step, end)
                strips_of(self.site, end, self.columns, lambda strip: self.follow(place, first, end, strip))

    def eliminate(self, place: Sequence[Value], step: Value, end: Value) -> None:
        """One column of a panel: find the pivot, move it up, and take multiples of its row away from those below."""
        k = self.k
        pivot = self.find_pivot(place, step)
        k.store(self.pivots.buffer, self.pivots.at(*place, step), k.cast(pivot, DType.I32))
        with k.when(k.ne(pivot, step)):
            self.exchange(place, step, pivot)
        head = self.element(place, step, step)
        # A column without a pivot is left alone.
        with k.when(k.ne(head, 0.0)), k.loop("i", step + 1, self.rows) as i:
            factor = self.element(place, i, step) / head
            k.store(self.lu.buffer, self.lu.at(*place, i, step), factor)
            strips_of(self.site, step + 1, end, lambda strip: self.subtract(place, i, factor, step, strip))

    def find_pivot(self, place: Sequence[Value], step: Value) -> Value:
        """The row of the first element of largest modulus, from the diagonal down; NaN is larger than any."""
        k = self.k
        with k.fold("i", step, self.rows, init=[k.const(-1.0, DType.F64), step]) as fold:
            best, where = fold.values
            size = k.abs(self.element(place, fold.index, step))
            is_better = ~(size <= best) & k.eq(best, best)
            fold.next(k.select(is_better, size, best), k.select(is_better, fold.index, where))
        return fold.results[1]

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

    def subtract(self, place: Sequence[Value], i: Value, factor: Value, row: Value, strip: Strip) -> None:
        """Row i without a multiple of another one."""
        pairs = zip(strip.load(self.lu, *place, i), strip.load(self.lu, *place, row))
        strip.store(self.lu, [*place, i], [x - strip.same(factor) * y for x, y in pairs])

    def follow(self, place: Sequence[Value], first: Value, end: Value, strip: Strip) -> None:
        """What the steps first .. end - 1 do to columns behind them: row by row, as rows above are finished by then.
        Those of the panel, which all others read, are kept side by side as well."""
        k, vectors = self.k, range(len(strip.firsts))

        def kept(row: Value, vector: int) -> Value:
            return ((row - first) * len(vectors) + vector) * strip.lanes

        with k.loop("i", first, self.rows) as i:
            with k.fold("p", first, k.min(i, end), init=strip.load(self.lu, *place, i)) as fold:
                factor = strip.same(self.element(place, i, fold.index))
                known = [k.load(self.panel, kept(fold.index, v), lanes=strip.lanes) for v in vectors]
                fold.next(*(x - factor * y for x, y in zip(fold.values, known)))
            strip.store(self.lu, [*place, i], fold.results)
            with k.when(i < end):
                for v in vectors:
                    k.store(self.panel, kept(i, v), fold.results[v])

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
