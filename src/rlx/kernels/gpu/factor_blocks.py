"""Factorisations of batches of matrices on GPUs: the threads of a block have a matrix in shared memory, or some small
ones, and factorise it column by column.

Threads that are neighbours have neighbouring columns; of large matrices several threads share a column, each with every
so many rows. Nothing is exchanged but by shared memory, so that all GPUs can do it. The arithmetic is that of the CPU's
kernels (`rlx.kernels.cpu.ops.factorize`), in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.kernels.machines import Machine
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.lowered.factor_steps import (
    MOST_SHARED,
    CholeskyFactor,
    SmallCholesky,
    SmallSolve,
    right_sides,
    shared_matrix,
    shared_stride,
)

# Threads that a matrix has at most.
MOST_THREADS = 256
# A thread that shares a column with others has so many rows at least.
LEAST_ROWS = 32
# Elements that a thread loads at once, and rows that it subtracts from at once.
AHEAD, ROWS = 8, 4
# Columns of a Cholesky factor that are made at once: what they read is read once for all of them.
PANEL = 4
# Up to so many rows every thread looks for a pivot by itself; of more, some threads look through a part each.
FEW_ROWS = 8


def is_block_factor(machine: Machine, site: OpSite) -> bool:
    """Whether matrices have a known size that fits into shared memory."""
    if not isinstance(site.op, CholeskyFactor | SmallCholesky | Lu | SmallSolve) or not machine.has_f64:
        return False
    if site.inputs[0].shape.dtype.is_complex:
        return False
    rows, columns = site.inputs[0].shape.dims[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int) or not rows or not columns:
        return False
    sides = right_sides(*(x.shape for x in site.inputs)) if isinstance(site.op, SmallSolve) else 0
    return columns + sides <= MOST_SHARED and shared_matrix(rows, columns + sides) <= machine.shared_bytes


def factor_blocks_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_block_factor` holds."""
    maker = {Lu: _LuBlocks, SmallSolve: _SolveBlocks}.get(type(site.op), _CholeskyBlocks)
    maker(site).write()
    return site.k.build()


class MatrixBlocks:
    """A block with some matrices in shared memory, which its threads divide among each other. Behind each matrix there
    is room for what its maker keeps."""

    def __init__(self, site: OpSite, sides: int = 0, *, shares_columns: bool = True) -> None:
        self.site, self.k = site, site.k
        rows, columns = self.rows, self.columns = tuple(int(d) for d in site.inputs[0].shape.dims[-2:])
        # Right sides are columns behind those of the matrix.
        self.sides, self.stride = sides, shared_stride(columns + sides)
        self.a = site.inputs[0]
        self.lead = self.a.dims[:-2]
        self.count = total(self.k, self.lead)
        wave = site.machine.wave
        self.lanes = _power(columns) if columns <= wave else -(-columns // LEAST_ROWS) * LEAST_ROWS
        self.slices = max(1, min(rows // LEAST_ROWS, MOST_THREADS // self.lanes)) if shares_columns else 1
        # Threads of one matrix; small ones fill up a wave.
        self.team = self.lanes * self.slices
        self.together = max(
            1, min(wave // self.team, site.machine.shared_bytes // shared_matrix(rows, columns + sides))
        )
        self.matrix = self.shared("matrix", DType.F64, rows * self.stride)

    def shared(self, name: str, dtype: DType, each: int) -> Buffer:
        """Room for so many numbers of each matrix."""
        return self.k.shared(name, dtype, each * self.together)

    @contextmanager
    def block(self) -> Iterator[None]:
        k = self.k
        groups = k.ceildiv(self.count, self.together)
        with k.parallel("group", groups) as group, k.threads("thread", self.team * self.together) as thread:
            self.of_block = thread // self.team
            self.member = thread % self.team
            self.lane, self.slice = self.member % self.lanes, self.member // self.lanes
            number = group * self.together + self.of_block
            # Where there is no matrix left, the last one is factorised again, and nothing of it is stored.
            self.exists = number < self.count
            self.place = unflatten(k.min(number, self.count - 1), self.lead)
            self.is_first = k.eq(self.member, 0) & self.exists
            yield

    def at(self, i: Value, j: Value) -> Value:
        """Where an element of a thread's matrix is in shared memory."""
        return self.of_block * (self.rows * self.stride) + i * self.stride + j

    def get(self, i: Value, j: Value) -> Value:
        return self.k.load(self.matrix, self.at(i, j))

    def put(self, i: Value, j: Value, value: Value) -> None:
        self.k.store(self.matrix, self.at(i, j), value)

    def several(self, start: Value, stop: int, step: int, ahead: int, visit: Callable[[Sequence[Value]], None]) -> None:
        """Visit every so many numbers, some at a time, so that what is loaded for them is under way together; then one
        by one those that are left."""
        k = self.k
        count = k.max(stop + (step - 1) - start, 0) // step
        middle = start + count // ahead * (ahead * step)
        with k.loop("some", start, middle, ahead * step) as i:
            visit([i + n * step for n in range(ahead)])
        with k.loop("rest", middle, stop, step) as i:
            visit([i])

    def load_matrix(self) -> None:
        """Bring A to shared memory."""
        self.load_elements(self.a, self.columns, 0, self.look_at)

    def load_elements(self, slab: Slab, columns: int, first: int, look_at: Callable[[Value], None] | None) -> None:
        """Bring the elements of a matrix to shared memory, where its columns begin with that of number `first`."""
        k = self.k

        def visit(numbers: Sequence[Value]) -> None:
            places = [(e // columns, e % columns) for e in numbers]
            loaded = [k.load(slab.buffer, self.place_in(slab, *place)) for place in places]
            for (i, j), number in zip(places, loaded):
                value = k.cast(number, DType.F64)
                self.put(i, j + first, value)
                if look_at is not None:
                    look_at(value)

        self.several(self.member, self.rows * columns, self.team, AHEAD, visit)

    # What is done with the numbers of A when they are loaded.
    look_at: Callable[[Value], None] | None = None

    def store_matrix(self, slab: Slab, element: Callable[[Value, Value], Value]) -> None:
        def visit(numbers: Sequence[Value]) -> None:
            places = [(e // self.columns, e % self.columns) for e in numbers]
            for place, value in zip(places, [element(*place) for place in places]):
                self.store(slab, place, value)

        self.several(self.member, self.rows * self.columns, self.team, AHEAD, visit)

    def place_in(self, slab: Slab, *index: Value) -> Value:
        """Where an element of this matrix is; of vectors, which have no second axis, that is left away."""
        return slab.at(*self.place, *index[: len(slab.dims) - len(self.lead)])

    def store(self, slab: Slab, index: Sequence[Value], value: Value) -> None:
        """A result of this matrix, in the type that it has; not where there is no matrix."""
        with self.k.when(self.exists):
            self.k.store(slab.buffer, self.place_in(slab, *index), self.k.cast(value, slab.buffer.dtype))


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


class _LuBlocks(MatrixBlocks):
    """Elimination with the largest element of each column as pivot. Rows are exchanged while nobody reads them: between
    the search, which reads the column of the pivot only, and the step itself."""

    def __init__(self, site: OpSite, sides: int = 0) -> None:
        super().__init__(site, sides)
        self.steps = min(self.rows, self.columns)
        self.factors = self.shared("factors", DType.F64, self.rows)
        # Threads that look for a pivot, each in rows side by side.
        self.parts = 0 if self.rows <= FEW_ROWS else min(self.team, 4 if self.rows <= LEAST_ROWS else 8)
        if self.parts:
            self.sizes = self.shared("sizes", DType.F64, self.parts)
            self.wheres = self.shared("wheres", DType.I32, self.parts)

    def write(self) -> None:
        k, (packed, self.pivots, permutation) = self.k, self.site.outputs
        self.order = self.shared("order", DType.I32, self.rows)
        with self.block():
            self.load_matrix()
            with k.loop("i", self.member, self.rows, self.team) as i:
                k.store(self.order, self.of_block * self.rows + i, k.cast(i, DType.I32))
            self.eliminate()
            k.barrier()
            self.store_matrix(packed, self.get)
            with k.loop("i", self.member, self.rows, self.team) as i:
                self.store(permutation, (i,), k.load(self.order, self.of_block * self.rows + i))

    def eliminate(self) -> None:
        k = self.k
        with k.loop("p", 0, self.steps) as p:
            k.barrier()
            if self.parts:
                self.search_parts(p)
                k.barrier()
            pivot = self.joined_parts(p) if self.parts else self.largest(p, p, self.rows)[1]
            head = self.get(pivot, p)
            has_pivot = k.ne(head, 0.0)
            self.note(p, pivot, head)
            self.exchange(p, pivot)
            self.divide(p, pivot, head, has_pivot)
            k.barrier()
            self.subtract(p, head, has_pivot)

    def largest(self, p: Value, start: Value, stop: Value | int) -> Sequence[Value]:
        """The first element of largest modulus in column p from row `start` on, and its row; NaN is larger than any."""
        k = self.k
        with k.fold("i", start, stop, init=[k.const(-1.0, DType.F64), p]) as fold:
            best, where = fold.values
            fold.next(*self.better(best, where, k.abs(self.get(fold.index, p)), fold.index))
        return fold.results

    def better(self, best: Value, where: Value, size: Value, i: Value) -> tuple[Value, Value]:
        k = self.k
        is_better = ~(size <= best) & k.eq(best, best)
        return k.select(is_better, size, best), k.select(is_better, i, where)

    def search_parts(self, p: Value) -> None:
        k = self.k
        length = (self.rows - p + (self.parts - 1)) // self.parts
        with k.when(self.member < self.parts):
            start = p + self.member * length
            size, where = self.largest(p, start, k.min(start + length, self.rows))
            k.store(self.sizes, self.of_block * self.parts + self.member, size)
            k.store(self.wheres, self.of_block * self.parts + self.member, k.cast(where, DType.I32))

    def joined_parts(self, p: Value) -> Value:
        k = self.k
        best: Value = k.const(-1.0, DType.F64)
        where = p
        for part in range(self.parts):
            at = self.of_block * self.parts + part
            found = k.cast(k.load(self.wheres, at), DType.I64)
            best, where = self.better(best, where, k.load(self.sizes, at), found)
        return where

    def note(self, p: Value, pivot: Value, head: Value) -> None:
        """What is told of a step."""
        k = self.k
        with k.when(self.is_first):
            self.store(self.pivots, (p,), pivot)
        with k.when(k.eq(self.member, 0)):
            places = [self.of_block * self.rows + i for i in (p, pivot)]
            values = [k.load(self.order, at) for at in places]
            for at, value in zip(places, reversed(values)):
                k.store(self.order, at, value)

    def exchange(self, p: Value, pivot: Value) -> None:
        """Rows p and that of the pivot, but for column p, which others read."""
        k = self.k
        with k.when(k.eq(self.slice, 0) & (self.lane < self.columns) & k.ne(self.lane, p)):
            self.exchange_in(self.lane, p, pivot)

    def exchange_in(self, column: Value, p: Value, pivot: Value) -> None:
        upper, lower = self.get(p, column), self.get(pivot, column)
        self.put(p, column, lower)
        self.put(pivot, column, upper)

    def divide(self, p: Value, pivot: Value, head: Value, has_pivot: Value) -> None:
        """How often row p is taken from those below, in the order that they have after the exchange."""
        k = self.k
        with k.loop("i", p + 1 + self.member, self.rows, self.team) as i:
            value = self.get(k.select(k.eq(i, pivot), p, i), p)
            # A column without a pivot is left alone.
            k.store(self.factors, self.of_block * self.rows + i, k.select(has_pivot, value / head, value))

    def subtract(self, p: Value, head: Value, has_pivot: Value) -> None:
        k, lane = self.k, self.lane
        first = p + 1 + self.slice
        with k.when((lane < self.columns) & (lane > p) & has_pivot):
            upper = self.get(p, lane)
            self.several(first, self.rows, self.slices, ROWS, lambda rows: self.take(rows, lane, upper))
        with k.when(k.eq(lane, p)):
            with k.when(k.eq(self.slice, 0)):
                self.put(p, p, head)
            with k.loop("i", first, self.rows, self.slices) as i:
                self.put(i, p, k.load(self.factors, self.of_block * self.rows + i))

    def take(self, rows: Sequence[Value], column: Value, upper: Value) -> None:
        """What rows lose in a column of the one above them."""
        k = self.k
        factors = [k.load(self.factors, self.of_block * self.rows + i) for i in rows]
        before = [self.get(i, column) for i in rows]
        for i, factor, value in zip(rows, factors, before):
            self.put(i, column, k.fma(-factor, upper, value))


class _SolveBlocks(_LuBlocks):
    """Right sides go through the elimination as well, but all threads share them, as they may be few; then come rows
    from the last one up."""

    def __init__(self, site: OpSite) -> None:
        super().__init__(site, right_sides(*(x.shape for x in site.inputs)))

    def write(self) -> None:
        k, (_, b), (x, self.found) = self.k, self.site.inputs, self.site.outputs
        self.spoiled = self.shared("spoiled", DType.I32, self.team)
        with self.block():
            k.store(self.spoiled, self.own_flag, k.const(0, DType.I32))
            self.load_matrix()
            if self.sides:
                self.load_elements(b, self.sides, self.rows, None)
            k.barrier()
            self.is_finite = self.found_finite()
            self.eliminate()
            if self.sides:
                self.substitute(x)

    @property
    def own_flag(self) -> Value:
        """Where a thread says that it has seen a number that is not finite."""
        return self.of_block * self.team + self.member

    def look_at(self, value: Value) -> None:
        k = self.k
        with k.when(~(k.abs(value) < math.inf)):
            k.store(self.spoiled, self.own_flag, k.const(1, DType.I32))

    def found_finite(self) -> Value:
        k = self.k
        with k.fold("flag", 0, self.team, init=[k.const(0, DType.I32)]) as fold:
            fold.next(fold.values[0] + k.load(self.spoiled, self.of_block * self.team + fold.index))
        return k.eq(fold.results[0], 0)

    def note(self, p: Value, pivot: Value, head: Value) -> None:
        k = self.k
        with k.when(self.is_first):
            self.k.store(self.found.buffer, self.found.at(*self.place, p), k.ne(head, 0.0) | ~self.is_finite)

    def exchange(self, p: Value, pivot: Value) -> None:
        super().exchange(p, pivot)
        with self.k.loop("side", self.member + self.rows, self.rows + self.sides, self.team) as side:
            self.exchange_in(side, p, pivot)

    def subtract(self, p: Value, head: Value, has_pivot: Value) -> None:
        super().subtract(p, head, has_pivot)
        k, sides = self.k, self.sides
        if not sides:
            return
        with k.when(has_pivot), k.loop("e", (p + 1) * sides + self.member, self.rows * sides, self.team) as e:
            self.take([e // sides], e % sides + self.rows, self.get(p, e % sides + self.rows))

    def substitute(self, x: Slab) -> None:
        """x[i] = b[i] / U[i, i], and what row i has to do with those above taken from them."""
        k = self.k
        width = min(self.sides, self.team)
        together = self.team // width
        first = self.member // width
        with k.loop("step", 0, self.rows) as step:
            k.barrier()
            i = self.rows - 1 - step
            with (
                k.when(first < together),
                k.loop("side", self.member % width + self.rows, self.rows + self.sides, width) as side,
            ):
                found = self.get(i, side) / self.get(i, i)
                with k.when(k.eq(first, 0)):
                    result = k.select(self.is_finite, found, math.nan)
                    self.store(x, (i, side - self.rows), result)
                with k.loop("row", first, i, together) as row:
                    self.put(row, side, k.fma(-self.get(row, i), found, self.get(row, side)))


class _CholeskyBlocks(MatrixBlocks):
    """L by a thread for each row, some columns at a time: what the columns before take from them, then the block on the
    diagonal, which every thread factorises for itself, and what it makes of the thread's own row."""

    def __init__(self, site: OpSite) -> None:
        super().__init__(site, shares_columns=False)
        self.corner = self.shared("corner", DType.F64, PANEL * PANEL)

    def write(self) -> None:
        k, size = self.k, self.rows
        factor, *self.found = self.site.outputs
        with self.block():
            self.load_matrix()
            whole = size // PANEL * PANEL
            with k.loop("panel", 0, whole, PANEL) as first:
                self.panel(first, PANEL)
            if whole < size:
                self.panel(k.as_index(whole), size - whole)
            k.barrier()
            self.store_matrix(factor, lambda i, j: k.select(j > i, 0.0, self.get(i, j)))

    def panel(self, first: Value, width: int) -> None:
        k, row = self.k, self.lane
        columns = range(width)
        k.barrier()
        # Threads whose rows lie above have nothing to do; those without a row look at the last one.
        own = k.min(row, self.rows - 1)
        stop = k.select((row >= first) & (row < self.rows), first, 0)
        with k.fold("p", 0, stop, init=[self.get(own, first + c) for c in columns]) as fold:
            left = self.get(own, fold.index)
            fold.next(*(k.fma(-left, self.get(first + c, fold.index), x) for c, x in zip(columns, fold.values)))
        values = fold.results
        in_corner = row - first
        with k.when((in_corner >= 0) & (in_corner < width)):
            for c, value in zip(columns, values):
                k.store(self.corner, self.of_block * (PANEL * PANEL) + in_corner * PANEL + c, value)
        k.barrier()
        factors, roots, inverses = self.factorized_corner(first, width)
        results: list[Value] = []
        for c in columns:
            value = values[c]
            for p in range(c):
                value = k.fma(-results[p], factors[c][p], value)
            results.append(k.select(k.eq(in_corner, c), roots[c], value * inverses[c]))
        with k.when((in_corner >= 0) & (row < self.rows)):
            for c, value in zip(columns, results):
                self.put(row, first + c, value)

    def factorized_corner(self, first: Value, width: int) -> tuple[list[list[Value]], list[Value], list[Value]]:
        """The factor of the block on the diagonal below it, its diagonal, and the inverses of that: a root is too large
        for its inverse to overflow."""
        k = self.k
        factors: list[list[Value]] = []
        roots: list[Value] = []
        inverses: list[Value] = []
        for i in range(width):
            at = self.of_block * (PANEL * PANEL) + i * PANEL
            line: list[Value] = []
            for j in range(i + 1):
                value = k.load(self.corner, at + j)
                other = line if i == j else factors[j]
                for p in range(j):
                    value = k.fma(-line[p], other[p], value)
                if j < i:
                    line.append(value * inverses[j])
            for found in self.found:
                with k.when(self.is_first):
                    k.store(found.buffer, found.at(*self.place, first + i), ~(value <= 0.0))
            roots.append(k.sqrt(k.select(value <= 0.0, 0.0, value)))
            inverses.append(1.0 / roots[-1])
            factors.append(line)
        return factors, roots, inverses
