"""Schur's form of a Hessenberg matrix by shifted QR steps, and the eigenvectors of triangular matrices.

Rows lie side by side in memory, and Z is held transposed, so that all that a step does to Z and from the left to T is
done to rows, many columns at a time. Definitions are those of `rlx.ops.linalg.schur`; one thread takes a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, numbers, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import are_doubles, each_matrix
from rlx.kernels.cpu.ops.numbers import Number
from rlx.kernels.cpu.ops.pair_matrices import VECTORS, Parts, grouped
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.linalg.schur import EPS, EXCEPTIONAL, MAX_STEPS
from rlx.ops.lowered.pair_steps import LARGE, SchurSteps, SplitPairs, TriangularVectors

# A rotation of two rows: [[a, b], [c, d]].
Rotation = tuple[Number, Number, Number, Number]


@op_kernel(SchurSteps, kind="factorize", supports=are_doubles)
def schur_steps(site: OpSite) -> None:
    half = len(site.inputs) // 2
    size = site.inputs[0].dims[-1]
    with each_matrix(site, site.inputs[0]) as place:
        t, z = (Parts(site, s, place) for s in (site.outputs[:half], site.outputs[half : 2 * half]))
        t.copy(Parts(site, site.inputs[:half], place), size, size)
        z.copy(Parts(site, site.inputs[half:], place), size, size)
        kind = _Real if half == 1 else _Complex
        found = kind(site.k, t, z, size).run()
        site.k.store(site.outputs[-1].buffer, site.outputs[-1].at(*place), found)


class _Steps:
    """QR steps on blocks from the last row up."""

    def __init__(self, k: KernelBuilder, t: Parts, z: Parts, size: Value) -> None:
        self.k, self.t, self.z, self.size = k, t, z, size

    def run(self) -> Value:
        """Gives whether all eigenvalues were found."""
        k = self.k
        whole = self.largest()
        is_finite = whole < float("inf")
        most = (self.size + 1) * (MAX_STEPS + 1)
        zero = k.as_index(0)
        begin = [k.select(is_finite, self.size - 1, k.as_index(-1)), zero, is_finite]
        with k.fold("step", 0, most, init=begin) as fold:
            end, steps, found = fold.values
            start = self.deflate(k.max(end, 0), whole)
            # What is left at the end of all rows needs no step.
            is_done = self.is_finished(start, end)
            steps = k.select(is_done, zero, steps + 1)
            goes_on = ~is_done & (steps <= MAX_STEPS) & (end >= 0)
            with k.when(goes_on):
                self.step(start, end, k.eq(steps % EXCEPTIONAL, 0))
            with k.when(is_done & (end > start) & (end >= 0)):
                self.finish(start)
            left = k.select(is_done, start - 1, end)
            found = found & (steps <= MAX_STEPS)
            fold.next(left, steps, found, again=(left >= 0) & found)
        return fold.results[2]

    def largest(self) -> Value:
        """The largest part of an element of T, infinity if one is not finite."""
        k = self.k
        with k.fold("i", 0, self.size, init=[k.const(0.0, DType.F64)]) as rows:
            with k.fold("j", 0, self.size, init=[rows.values[0]]) as row:
                highest = row.values[0]
                for x in self.t.at(rows.index, row.index):
                    size = k.abs(x)
                    highest = k.select(size < float("inf"), k.max(highest, size), k.const(float("inf"), DType.F64))
                row.next(highest)
            rows.next(row.results[0])
        return rows.results[0]

    def deflate(self, end: Value, whole: Value) -> Value:
        """Where the block that ends with row `end` begins; what is negligible below the diagonal becomes 0."""
        k = self.k
        with k.fold("back", 0, end, init=[end]) as fold:
            row = end - fold.index
            size = numbers.modulus(k, self.t.at(row, row)) + numbers.modulus(k, self.t.at(row - 1, row - 1))
            below = numbers.modulus(k, self.t.at(row, row - 1))
            is_last = below <= k.select(size > 0.0, size, whole) * EPS
            with k.when(is_last):
                self.t.put((row, row - 1), self.t.number(0.0))
            fold.next(k.select(is_last, row, row - 1), again=~is_last)
        return fold.results[0]

    def is_finished(self, start: Value, end: Value) -> Value:
        raise NotImplementedError

    def step(self, start: Value, end: Value, is_exceptional: Value) -> None:
        raise NotImplementedError

    def finish(self, start: Value) -> None:
        """Bring a block of several rows that needs no more steps into its form."""

    def turn(self, row: Value, rotation: Rotation, first: Value, last: Value) -> None:
        turn(self.t, self.z, self.size, row, rotation, first, last)


def turn(t: Parts, z: Parts, size: Value, row: Value, rotation: Rotation, first: Value, last: Value) -> None:
    """The similarity of a unitary 2x2 matrix in the rows and columns `row`, `row + 1` of T, whose rows are 0 before
    column `first`, and whose columns are 0 behind row `last`."""
    k = t.k

    def combined(x: Number, y: Number, p: Number, q: Number, lanes: int) -> Number:
        p, q = (numbers.splat(k, n, lanes) for n in (p, q))
        return numbers.multiply_add(k, p, x, numbers.multiply(k, q, y))

    def rows(matrix: Parts, factors: Sequence[Number], start: Value | int) -> None:
        def change(j: Value, lanes: int, mask: Value | None) -> None:
            x, y = (matrix.at(r, j, lanes=lanes, mask=mask) for r in (row, row + 1))
            for r, (p, q) in ((row, factors[:2]), (row + 1, factors[2:])):
                matrix.put((r, j), combined(x, y, p, q, lanes), mask)

        matrix.each(start, size, change)

    conjugates = [numbers.conjugate(n) for n in rotation]
    rows(t, rotation, first)
    rows(z, conjugates, 0)
    with k.loop("i", 0, k.min(last + 1, size)) as i:
        x, y = t.at(i, row), t.at(i, row + 1)
        t.put((i, row), combined(x, y, conjugates[0], conjugates[1], 1))
        t.put((i, row + 1), combined(x, y, conjugates[2], conjugates[3], 1))


class _Complex(_Steps):
    def is_finished(self, start: Value, end: Value) -> Value:
        return start >= end

    def step(self, start: Value, end: Value, is_exceptional: Value) -> None:
        """One step with the eigenvalue of the last 2x2 block that is nearer to the last element."""
        k, t = self.k, self.t
        a, b, c, d = (t.at(i, j) for i in (end - 1, end) for j in (end - 1, end))
        half = numbers.scale(numbers.subtract(a, d), k.const(0.5, DType.F64))
        product = numbers.multiply(k, b, c)
        root = numbers.root(k, numbers.multiply_add(k, half, half, product))
        along = half[0] * root[0] + half[1] * root[1]
        lower = numbers.add(half, numbers.choose(k, along >= 0.0, root, tuple(-x for x in root)))
        is_any = k.ne(lower[0], 0.0) | k.ne(lower[1], 0.0)
        one = self.t.number(1.0)
        nearer = numbers.divide(k, product, numbers.choose(k, is_any, lower, one))
        shift = numbers.subtract(d, numbers.choose(k, is_any, nearer, self.t.number(0.0)))
        far = (d[0] + numbers.modulus(k, c), d[1])
        shift = numbers.choose(k, is_exceptional, far, shift)
        first = numbers.subtract(t.at(start, start), shift)
        with k.fold("row", start, end, init=[*first, *t.at(start + 1, start)]) as fold:
            row = fold.index
            x, y = grouped(fold.values, 2)
            length = k.sqrt(numbers.square(x) + numbers.square(y))
            is_some = length > 0.0
            safe = k.select(is_some, length, 1.0)
            cosine, sine = (tuple(p / safe for p in n) for n in (x, y))
            cosine = numbers.choose(k, is_some, cosine, one)
            minus = tuple(-p for p in sine)
            rotation = (numbers.conjugate(cosine), numbers.conjugate(sine), minus, cosine)
            before = k.max(row - 1, start)
            self.turn(row, rotation, before, k.min(row + 2, end))
            with k.when(row > start):
                t.put((row + 1, row - 1), t.number(0.0))
            near = k.min(row + 2, end)
            fold.next(*t.at(k.min(row + 1, end), row), *t.at(near, row))


class _Real(_Steps):
    def is_finished(self, start: Value, end: Value) -> Value:
        return start >= end - 1

    def step(self, start: Value, end: Value, is_exceptional: Value) -> None:
        """One step with both eigenvalues of the last 2x2 block, in real arithmetic."""
        k, t = self.k, self.t

        def at(i: Value, j: Value) -> Value:
            return t.at(i, j)[0]

        a, b, c, d = (at(i, j) for i in (end - 1, end) for j in (end - 1, end))
        size = k.abs(c) + k.abs(at(end - 1, end - 2))
        trace = k.select(is_exceptional, size * 1.5, a + d)
        det = k.select(is_exceptional, size * size, a * d - b * c)
        head, below = at(start, start), at(start + 1, start)
        x = [
            (head * head - trace * head + det) / below + at(start, start + 1),
            head + at(start + 1, start + 1) - trace,
            at(start + 2, start + 1),
        ]
        with k.fold("row", start, end - 1, init=x) as fold:
            row = fold.index
            self.reflect(row, list(fold.values), start, end)
            with k.when(row > start):
                for r in (1, 2):
                    t.put((row + r, row - 1), t.number(0.0))
            fold.next(at(row + 1, row), at(row + 2, row), at(k.min(row + 3, end), row))
        self.reflect(end - 1, list(fold.results[:2]), start, end)
        t.put((end, end - 2), t.number(0.0))

    def reflect(self, row: Value, x: list[Value], start: Value, end: Value) -> None:
        """The similarity of the reflection that clears x behind its first element."""
        k, t, z = self.k, self.t, self.z
        count = len(x)
        unit = k.abs(x[0])
        for value in x[1:]:
            unit = k.max(unit, k.abs(value))
        rest = k.abs(x[1]) if count == 2 else k.max(k.abs(x[1]), k.abs(x[2]))
        with k.when(rest > 0.0):
            v = [value / unit for value in x]
            squares = v[0] * v[0]
            for value in v[1:]:
                squares = squares + value * value
            length = k.sqrt(squares)
            v[0] = k.select(v[0] < 0.0, v[0] - length, v[0] + length)
            squares = v[0] * v[0]
            for value in v[1:]:
                squares = squares + value * value
            scale = 2.0 / squares
            scaled = [value * scale for value in v]

            def rows(matrix: Parts, first: Value | int) -> None:
                def change(j: Value, lanes: int, mask: Value | None) -> None:
                    known = [matrix.at(row + r, j, lanes=lanes, mask=mask)[0] for r in range(count)]
                    share = known[0] * k.splat(scaled[0], lanes)
                    for r in range(1, count):
                        share = share + known[r] * k.splat(scaled[r], lanes)
                    for r in range(count):
                        matrix.put((row + r, j), (known[r] - share * k.splat(v[r], lanes),), mask)

                matrix.each(first, self.size, change)

            rows(t, k.max(row - 1, start))
            rows(z, 0)
            with k.loop("i", 0, k.min(row + 4, end + 1)) as i:
                known = [t.at(i, row + r)[0] for r in range(count)]
                share = known[0] * scaled[0]
                for r in range(1, count):
                    share = share + known[r] * scaled[r]
                for r in range(count):
                    t.put((i, row + r), (known[r] - share * v[r],))

    def finish(self, start: Value) -> None:
        """A block of two rows: two real eigenvalues, or a pair with equal elements on the diagonal."""
        k, t = self.k, self.t
        zero, one = (k.const(x, DType.F64) for x in (0.0, 1.0))
        for _ in range(2):
            a, b, c, d = (t.at(i, j)[0] for i in (start, start + 1) for j in (start, start + 1))
            half = (a - d) * 0.5
            under = half * half + b * c
            are_real = under >= 0.0
            with k.when(k.ne(c, 0.0)):
                root = k.sqrt(k.max(under, 0.0))
                toward = half + k.select(half < 0.0, -root, root)
                both = b + c
                length = k.sqrt(both * both + (a - d) * (a - d))
                safe = k.select(length > 0.0, length, one)
                x = k.sqrt((k.abs(both) / safe + 1.0) * 0.5)
                y = k.select(both < 0.0, half, -half) / (safe * k.select(x > 0.0, x, one))
                x, y = k.select(are_real, toward, x), k.select(are_real, c, y)
                length = k.sqrt(x * x + y * y)
                cosine, sine = x / length, y / length
                self.turn(start, ((cosine,), (sine,), (-sine,), (cosine,)), start, start + 1)
                with k.when(are_real):
                    t.put((start + 1, start), (zero,))
                with k.otherwise():
                    for i in (start, start + 1):
                        t.put((i, i), ((a + d) * 0.5,))


@op_kernel(SplitPairs, kind="factorize", supports=are_doubles)
def split_pairs(site: OpSite) -> None:
    """The first row of every block of two turns towards an eigenvector."""
    k, inputs, outputs = site.k, site.inputs, site.outputs
    size = inputs[0].dims[-1]
    zero = k.const(0.0, DType.F64)
    with each_matrix(site, inputs[0]) as place:
        t, z = (Parts(site, outputs[i : i + 2], place) for i in (0, 2))
        for source, goal in ((inputs[0], t), (inputs[1], z)):
            real = Parts(site, (source,), place)
            with k.loop("i", 0, size) as i:
                _copy_real(real, goal, i, size)
        with k.loop("row", 0, size - 1) as row:
            below = t.at(row + 1, row)[0]
            with k.when(k.ne(below, 0.0)):
                p, b = (t.at(row, row + i)[0] for i in (0, 1))
                root = k.sqrt(k.abs(b)) * k.sqrt(k.abs(below))
                length = numbers.modulus(k, (root, below))
                turned, c = (zero, root / length), (below / length, zero)
                rotation = (numbers.conjugate(turned), c, tuple(-x for x in c), turned)
                turn(t, z, size, row, rotation, row, row + 1)
                t.put((row + 1, row), t.number(0.0))
                t.put((row, row), (p, root))
                t.put((row + 1, row + 1), (p, -root))


def _copy_real(source: Parts, goal: Parts, row: Value, size: Value) -> None:
    def copy(j: Value, lanes: int, mask: Value | None) -> None:
        (value,) = source.at(row, j, lanes=lanes, mask=mask)
        goal.put((row, j), (value, goal.number(0.0, lanes)[1]), mask)

    goal.each(0, size, copy)


@op_kernel(TriangularVectors, kind="factorize", supports=are_doubles)
def triangular_vectors(site: OpSite) -> None:
    """Substitution from the last row up, for some columns at a time; those that begin further up are 0 so far."""
    k, inputs, outputs = site.k, site.inputs, site.outputs
    lead, size = inputs[0].dims[:-2], inputs[0].dims[-1]
    width = VECTORS * site.machine.lanes(DType.F64)
    blocks = k.ceildiv(size, width)
    with k.parallel("block", total(k, lead) * blocks) as block:
        place = unflatten(block // blocks, lead)
        first = block % blocks * width
        t, x = (Parts(site, s, place) for s in (inputs, outputs))
        least = _least(t, size)
        x.each(first, k.min(first + width, size), lambda j, lanes, mask: _solve(t, x, size, least, j, lanes, mask))


def _least(t: Parts, size: Value) -> Value:
    """The distance that eigenvalues are kept apart."""
    k = t.k
    with k.fold("i", 0, size, init=[k.const(0.0, DType.F64)]) as rows:
        with k.fold("j", rows.index, size, init=[rows.values[0]]) as row:
            re, im = t.at(rows.index, row.index)
            row.next(k.max(row.values[0], k.max(k.abs(re), k.abs(im))))
        rows.next(row.results[0])
    return k.max(rows.results[0] * EPS, 2.0**-1000)


def _solve(t: Parts, x: Parts, size: Value, least: Value, j: Value, lanes: int, mask: Value | None) -> None:
    k = t.k
    one, zero = (x.number(value, lanes) for value in (1.0, 0.0))
    columns = k.splat(j, lanes) + k.iota(DType.I64, lanes) if lanes > 1 else j
    end = k.min(j + lanes, size)
    with k.loop("i", 0, size) as i:
        x.put((i, j), zero, mask)
    own = _own_values(t, j, lanes, mask)
    with k.loop("back", 0, end) as back:
        i = end - 1 - back
        with k.fold("m", i + 1, end, init=list(zero)) as fold:
            factor = numbers.splat(k, t.at(i, fold.index), lanes)
            fold.next(*numbers.multiply_subtract(k, factor, x.at(fold.index, j, lanes=lanes, mask=mask), fold.values))
        gap = numbers.subtract(numbers.splat(k, t.at(i, i), lanes), own)
        near = numbers.modulus(k, gap) > k.splat(least, lanes)
        gap = numbers.choose(k, near, gap, (k.splat(least, lanes), zero[1]))
        found = numbers.divide(k, fold.results, gap)
        row = k.splat(i, lanes)
        found = numbers.choose(k, k.eq(columns, row), one, numbers.choose(k, columns > row, found, zero))
        x.put((i, j), found, mask)
        length = numbers.modulus(k, found)
        is_large = length > LARGE
        with k.when(k.reduce("or", is_large) if lanes > 1 else is_large):
            shorter = 1.0 / k.select(is_large, length, 1.0)
            with k.loop("m", i, end) as m:
                x.put((m, j), numbers.scale(x.at(m, j, lanes=lanes, mask=mask), shorter), mask)


def _own_values(t: Parts, j: Value, lanes: int, mask: Value | None) -> Number:
    """The elements on the diagonal in some columns."""
    if lanes == 1:
        return t.at(j, j)
    k = t.k
    lane = k.splat(j, lanes) + k.iota(DType.I64, lanes)
    found = []
    for s in t.slabs:
        start = k.splat(s.at(*t.place), lanes)
        step = k.splat(s.strides[-2] + s.strides[-1], lanes)
        found.append(k.load(s.buffer, start + lane * step, lanes=lanes, mask=mask))
    return tuple(found)
