"""Steps of divide and conquer for tridiagonal matrices: see `rlx.ops.lowered.tridiagonal_merge`.

Poles are merged one after the other. Roots, weights and columns of vectors are independent of each other: lanes are
some of them, and no sum goes across lanes, so that every target gets the same bits. Sizes are arguments: one piece of
code serves all levels of a division.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.strips import whole_rows
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.ops.lowered.tridiagonal_merge import NEGLIGIBLE, MergedPoles, MergeVectors, SecularRoots, SecularWeights

LANES = 8
# Columns of vectors that are made together, in vectors.
VECTORS = 4
# Rounds in which a root is found at most, and those after which every second one halves what is left: three to six
# rounds are usual.
ROUNDS, PATIENCE = 96, 12
EPS = 2.0**-53


def _zeros() -> ValueType:
    return ValueType(DType.F64, LANES)


class _Matrices:
    """Operands and results with one axis for all matrices in front."""

    def __init__(self, site: OpSite) -> None:
        self.k, dims = site.k, site.inputs[0].shape.static_dims
        self.count, self.size = site.argument(math.prod(dims[:-1])), site.argument(dims[-1])
        self._lead, self._length = len(dims) - 1, dims[-1]
        self.inputs, self.outputs = (tuple(map(self._joined, slabs)) for slabs in (site.inputs, site.outputs))

    def _joined(self, slab: Slab) -> Slab:
        inner = slab.shape.static_dims[self._lead :]
        dims = [self.count, *(self.size if n == self._length else self.k.as_index(n) for n in inner)]
        strides = [self.k.as_index(1)]
        for size in reversed(dims[1:]):
            strides.insert(0, strides[0] * size)
        return slab._replace(dims=tuple(dims), strides=tuple(strides))

    @contextmanager
    def parts(self, width: int) -> Iterator[tuple[Value, Value]]:
        """Deal out so many elements of a line at a time; gives the matrix and the first of them."""
        count = self.k.ceildiv(self.size, width)
        with self.k.parallel("part", self.count * count) as number:
            yield number // count, number % count * width


@op_kernel(MergedPoles, kind="factorize")
def merged_poles(site: OpSite) -> None:
    matrices = _Matrices(site)
    with whole_rows(site.k, matrices.count, matrices.size, strip=256) as number:
        _Merge(matrices, number).build()


class _Pole(NamedTuple):
    """One that is not settled yet: its row, or -1 for none, where it is, and its weight."""

    row: Value
    pole: Value
    weight: Value


class _Merge:
    def __init__(self, matrices: _Matrices, number: Value) -> None:
        self.k, self.number, self.size = matrices.k, number, matrices.size
        self.d, self.z, rho = matrices.inputs
        self.poles, self.weights, self.places, self.counts, self.turns = matrices.outputs
        self.rho = self.k.load(rho.buffer, rho.at(number)) * 2.0
        self.limit = self._limit()

    def weight(self, row: Value) -> Value:
        return self.k.load(self.z.buffer, self.z.at(self.number, row)) * math.sqrt(0.5)

    def _limit(self) -> Value:
        """What is as good as 0; poles that z does not touch at all have no say."""
        k = self.k
        with k.fold("i", 0, self.size, init=[k.const(0.0, DType.F64)]) as fold:
            weight = k.abs(self.weight(fold.index))
            pole = k.abs(k.load(self.d.buffer, self.d.at(self.number, fold.index)))
            here = k.max(k.select(k.ne(weight, 0.0), pole, 0.0), weight)
            fold.next(k.max(fold.values[0], here))
        return fold.results[0] * NEGLIGIBLE

    def put(self, number: Value, row: Value, value: Value, weight: Value) -> None:
        k = self.k
        k.store(self.poles.buffer, self.poles.at(self.number, number), value)
        k.store(self.weights.buffer, self.weights.at(self.number, number), weight)
        k.store(self.places.buffer, self.places.at(self.number, number), k.cast(row, DType.I32))

    def build(self) -> None:
        k, zero, nothing = self.k, self.k.as_index(0), self.k.const(0.0, DType.F64)
        half = self.size // 2
        with k.loop("i", 0, self.size * 4) as i:
            k.store(self.turns.buffer, self.turns.at(self.number) + i, nothing)
        begin = [zero, half, zero, zero, zero, k.as_index(-1), nothing, nothing]
        with k.fold("step", 0, self.size, init=begin) as fold:
            i, j, *state = fold.values
            left, right = (k.load(self.d.buffer, self.d.at(self.number, k.min(at, self.size - 1))) for at in (i, j))
            is_left = (i < half) & (~(j < self.size) | (left <= right))
            row, pole = k.select(is_left, i, j), k.select(is_left, left, right)
            after = self.settle(_Pole(row, pole, self.weight(row)), state)
            fold.next(k.select(is_left, i + 1, i), k.select(is_left, j, j + 1), *after)
        _, _, kept, _, turned, row, pole, weight = fold.results
        with k.when(~(row < 0)):
            self.put(kept, row, pole, weight)
        kept = k.select(row < 0, kept, kept + 1)
        for column, count in enumerate((kept, turned)):
            k.store(self.counts.buffer, self.counts.at(self.number, column), k.cast(count, DType.I32))

    def settle(self, new: _Pole, state: Sequence[Value]) -> list[Value]:
        """One pole more: kept and dropped ones and turns so far, and the one that waits for its neighbour."""
        k = self.k
        kept, dropped, turned, *waiting = state
        last = _Pole(*waiting)
        is_coupled = self.rho * k.abs(new.weight) > self.limit
        is_waiting = is_coupled & ~(last.row < 0)
        length = k.sqrt(last.weight * last.weight + new.weight * new.weight)
        cosine, sine = new.weight / length, -last.weight / length
        is_close = is_waiting & (k.abs((new.pole - last.pole) * cosine * sine) <= self.limit)
        is_apart = is_waiting & ~is_close
        of_new, of_last = cosine * cosine, sine * sine
        with k.when(is_close):
            at = self.turns.at(self.number, turned)
            rows = (k.cast(row, DType.F64) for row in (last.row, new.row))
            for part, value in enumerate((cosine, sine, *rows)):
                k.store(self.turns.buffer, at + part, value)
        with k.when(is_close | ~is_coupled):
            row = k.select(is_close, last.row, new.row)
            value = k.select(is_close, last.pole * of_new + new.pole * of_last, new.pole)
            self.put(self.size - 1 - dropped, row, value, k.const(0.0, DType.F64))
        with k.when(is_apart):
            self.put(kept, last.row, last.pole, last.weight)
        moved = last.pole * of_last + new.pole * of_new
        return [
            k.select(is_apart, kept + 1, kept),
            k.select(is_close | ~is_coupled, dropped + 1, dropped),
            k.select(is_close, turned + 1, turned),
            k.select(is_coupled, new.row, last.row),
            k.select(is_coupled, k.select(is_close, moved, new.pole), last.pole),
            k.select(is_coupled, k.select(is_close, length, new.weight), last.weight),
        ]


class _Lines:
    """Poles and what belongs to them, of one matrix, and how many count."""

    def __init__(self, matrices: _Matrices, number: Value, counts: Slab) -> None:
        k = self.k = matrices.k
        self.number, self.size = number, matrices.size
        known = k.cast(k.load(counts.buffer, counts.at(number, 0)), DType.I64)
        # Whatever it is, nothing outside of the lines is read.
        self.count = k.max(k.min(known, self.size), 0)

    def one(self, slab: Slab, i: Value) -> Value:
        return self.k.load(slab.buffer, slab.at(self.number, i))

    def same(self, slab: Slab, i: Value) -> Value:
        """An element for all lanes."""
        return self.k.splat(self.one(slab, i), LANES)

    def some(self, slab: Slab, index: Value) -> Value:
        """One element for each lane."""
        return self.k.load(slab.buffer, self.k.splat(slab.at(self.number), LANES) + index)

    def numbers(self, first: Value) -> Value:
        return self.k.iota(DType.I64, LANES) + self.k.splat(first, LANES)

    def put(self, slab: Slab, first: Value, value: Value) -> None:
        k = self.k
        k.store(slab.buffer, slab.at(self.number, first), value, mask=k.lane_mask(self.size - first, LANES))


@op_kernel(SecularRoots, kind="factorize")
def secular_roots(site: OpSite) -> None:
    matrices = _Matrices(site)
    with matrices.parts(LANES) as (number, first):
        _Roots(matrices, number).find(first)


class _Roots:
    def __init__(self, matrices: _Matrices, number: Value) -> None:
        k = self.k = matrices.k
        self.poles, self.weights, rho, counts = matrices.inputs
        self.bases, self.shifts, self.values = matrices.outputs
        self.lines = _Lines(matrices, number, counts)
        self.rho = k.load(rho.buffer, rho.at(number)) * 2.0

    def find(self, first: Value) -> None:
        k, lines = self.k, self.lines
        number = lines.numbers(first)
        is_there = lines.numbers(first) < k.splat(lines.count, LANES)
        own = lines.some(self.poles, k.min(number, k.splat(lines.size - 1, LANES)))
        zero = k.const(0.0, _zeros())

        def roots() -> list[Value]:
            return self.roots(k.min(number, k.splat(lines.count - 1, LANES)))

        base, shift = k.choose(first < lines.count, roots, lambda: [own, zero])
        base, shift = k.select(is_there, base, own), k.select(is_there, shift, zero)
        for slab, value in ((self.bases, base), (self.shifts, shift), (self.values, base + shift)):
            lines.put(slab, first, value)

    def sums(self, number: Value, base: Value, shift: Value) -> tuple[Value, ...]:
        """Σ w²/(p - λ) over the poles up to a root and over those above it, and the derivatives of both."""
        k, zero = self.k, self.k.const(0.0, _zeros())
        with k.fold("i", 0, self.lines.count, init=[zero] * 4) as fold:
            weight = self.lines.same(self.weights, fold.index)
            inverse = 1.0 / (self.lines.same(self.poles, fold.index) - base - shift)
            term = weight * weight * inverse
            slope = term * inverse
            is_above = number < k.splat(fold.index, LANES)
            terms = [k.select(is_above, zero, x) for x in (term, slope)] + [
                k.select(is_above, x, zero) for x in (term, slope)
            ]
            fold.next(*(s + x for s, x in zip(fold.values, terms)))
        return fold.results

    def roots(self, number: Value) -> list[Value]:
        """The pole that is nearest to each root, and the distance from it."""
        k, lines = self.k, self.lines
        zero = k.const(0.0, _zeros())
        with k.fold("i", 0, lines.count, init=[k.const(0.0, DType.F64)]) as fold:
            weight = lines.one(self.weights, fold.index)
            fold.next(fold.values[0] + weight * weight)
        reach = k.splat(self.rho * fold.results[0], LANES)
        constant = k.splat(1.0 / self.rho, LANES)
        last = k.splat(lines.count - 1, LANES)
        is_last = k.eq(number, last)
        above = k.min(number + 1, last)
        left, next_pole = lines.some(self.poles, number), lines.some(self.poles, above)
        # Above the last root is no pole: one without a weight, twice as far away as the root can be.
        gap = k.select(is_last, reach + reach, next_pole - left)
        middle = gap * 0.5
        below, _, over, _ = self.sums(number, left, middle)
        value = constant + below + over
        is_left = is_last | ~(value < 0.0)
        base = k.select(is_left, left, next_pole)
        squares = [lines.some(self.weights, at) for at in (number, above)]
        a, b = squares[0] * squares[0], k.select(is_last, zero, squares[1] * squares[1])
        low, high = k.select(is_left, zero, -middle), k.select(is_left, middle, zero)
        start = _between(self, value + (a - b) / middle, a, b, gap, is_left)
        start = self.inside(start, low, high)
        distances = k.select(is_left, zero, -gap), k.select(is_left, gap, zero)
        with k.fold("round", 0, ROUNDS, init=[start, low, high]) as fold:
            shift, low, high = fold.values
            below, below_slope, over, over_slope = self.sums(number, base, shift)
            value, slope = constant + below + over, below_slope + over_slope
            error = ((over - below) * 16.0 + constant * 2.0 + k.abs(shift) * slope) * EPS
            low, high = k.select(value < 0.0, shift, low), k.select(value < 0.0, high, shift)
            is_found = (k.abs(value) <= error) | (high - low <= k.abs(shift) * (2 * EPS))
            to_left, to_right = (d - shift for d in distances)
            change = _step(self, value, below_slope, over_slope, to_left, to_right)
            halves = k.eq(fold.index & 1, 1) & (fold.index >= PATIENCE)
            after = self.inside(k.select(k.splat(halves, LANES), high, shift + change), low, high)
            after = k.select(is_found, shift, after)
            fold.next(after, low, high, again=k.reduce("or", ~is_found))
        return [base, fold.results[0]]

    def inside(self, x: Value, low: Value, high: Value) -> Value:
        """x, or the middle between two bounds if it is not between them."""
        return self.k.select((x > low) & (x < high), x, (low + high) * 0.5)


def _between(roots: _Roots, rest: Value, a: Value, b: Value, gap: Value, is_left: Value) -> Value:
    """The root of rest + a/(0 - x) + b/(gap - x), or of rest + a/(-gap - x) + b/(0 - x): two poles as they are, and all
    others as they are in the middle."""
    k = roots.k
    turned = k.select(is_left, rest, -rest)
    linear = turned * gap + a + b
    product = k.select(is_left, a, b) * gap
    root = k.sqrt(k.abs(linear * linear - product * turned * 4.0))
    found = k.select(linear > 0.0, product * 2.0 / (linear + root), (linear - root) / (turned * 2.0))
    return k.select(is_left, found, -found)


def _step(roots: _Roots, value: Value, below: Value, over: Value, to_left: Value, to_right: Value) -> Value:
    """To the root of c + s/(left - x) + t/(right - x), where s and t give the two sums the slopes that they have."""
    k = roots.k
    both, slope = to_left * to_right, below + over
    c = value - to_left * below - to_right * over
    a, b = (to_left + to_right) * value - both * slope, both * value
    root = k.sqrt(k.abs(a * a - b * c * 4.0))
    change = k.select(a <= 0.0, (a - root) / (c * 2.0), b * 2.0 / (a + root))
    # Towards the root in any case.
    return k.select(value * change < 0.0, change, -value / slope)


@op_kernel(SecularWeights, kind="factorize")
def secular_weights(site: OpSite) -> None:
    """Π (λ - p)/(q - p) over all other poles q, each of them beside the root next to it: all factors are below 1."""
    k, matrices = site.k, _Matrices(site)
    (poles, weights, bases, shifts, counts), (result,) = matrices.inputs, matrices.outputs
    with matrices.parts(LANES) as (number, first):
        lines = _Lines(matrices, number, counts)
        i = lines.numbers(first)
        own = lines.some(poles, k.min(i, k.splat(lines.size - 1, LANES)))
        last = k.max(lines.count - 1, 0)
        with k.fold("j", 0, last, init=[k.const(1.0, _zeros())]) as fold:
            j = fold.index
            above = k.splat(lines.one(bases, j), LANES) - own + lines.same(shifts, j)
            other = k.select(i > k.splat(j, LANES), lines.same(poles, j), lines.same(poles, j + 1))
            fold.next(fold.values[0] * (above / (other - own)))
        above = lines.same(bases, last) - own + lines.same(shifts, last)
        found = k.sqrt(k.abs(fold.results[0] * above))
        sign = lines.some(weights, k.min(i, k.splat(lines.size - 1, LANES)))
        found = k.select(sign < 0.0, -found, found)
        lines.put(result, first, k.select(i < k.splat(lines.count, LANES), found, 0.0))


@op_kernel(MergeVectors, kind="factorize")
def merge_vectors(site: OpSite) -> None:
    matrices = _Matrices(site)
    with matrices.parts(VECTORS * LANES) as (number, first):
        _Vectors(matrices, number, first).build()


class _Column(NamedTuple):
    """Some neighbouring columns: which of them exist, the eigenvalues that they belong to, and the roots among these:
    where they are, and 1 over the length of their vectors."""

    first: Value
    mask: Value
    number: Value
    is_root: Value
    base: Value
    shift: Value
    inverse: Value


class _Vectors:
    def __init__(self, matrices: _Matrices, number: Value, first: Value) -> None:
        self.k, self.number, (self.result,) = matrices.k, number, matrices.outputs
        self.poles, self.weights, self.bases, self.shifts, *rest = matrices.inputs
        self.places, self.counts, self.turns, self.order = rest
        self.lines = _Lines(matrices, number, self.counts)
        self.columns = [self.column(first + v * LANES) for v in range(VECTORS)]

    def column(self, first: Value) -> _Column:
        k, lines = self.k, self.lines
        most = k.splat(lines.size - 1, LANES)
        order = k.cast(lines.some(self.order, k.min(lines.numbers(first), most)), DType.I64)
        number = k.max(k.min(order, most), k.splat(k.as_index(0), LANES))
        base, shift = (lines.some(slab, number) for slab in (self.bases, self.shifts))
        with k.fold("i", 0, lines.count, init=[k.const(0.0, _zeros())]) as fold:
            part = self.part(fold.index, base, shift)
            fold.next(fold.values[0] + part * part)
        is_root = number < k.splat(lines.count, LANES)
        mask = k.lane_mask(lines.size - first, LANES)
        return _Column(first, mask, number, is_root, base, shift, 1.0 / k.sqrt(fold.results[0]))

    def part(self, i: Value, base: Value, shift: Value) -> Value:
        """What a vector has in the direction of a pole, but for its length."""
        distance = self.lines.same(self.poles, i) - base - shift
        return self.lines.same(self.weights, i) / distance

    def build(self) -> None:
        k, lines, zero = self.k, self.lines, self.k.const(0.0, _zeros())
        with k.loop("i", 0, lines.count) as i:
            parts = (self.part(i, c.base, c.shift) * c.inverse for c in self.columns)
            self.store(self.row(i), [k.select(c.is_root, p, zero) for c, p in zip(self.columns, parts)])
        one = k.const(1.0, _zeros())
        with k.loop("i", lines.count, lines.size) as i:
            self.store(self.row(i), [k.select(k.eq(c.number, k.splat(i, LANES)), one, zero) for c in self.columns])
        known = k.cast(k.load(self.counts.buffer, self.counts.at(self.number, 1)), DType.I64)
        turned = k.max(k.min(known, lines.size), 0)
        with k.loop("back", 0, turned) as back:
            at = self.turns.at(self.number, turned - 1 - back)
            cosine, sine, *rows = (k.load(self.turns.buffer, at + part) for part in range(4))
            p, n = (self.clamped(k.cast(row, DType.I64)) for row in rows)
            x, y = self.load(p), self.load(n)
            c, s = k.splat(cosine, LANES), k.splat(sine, LANES)
            self.store(p, [c * a - s * b for a, b in zip(x, y)])
            self.store(n, [s * a + c * b for a, b in zip(x, y)])

    def row(self, i: Value) -> Value:
        return self.clamped(self.k.cast(self.lines.one(self.places, i), DType.I64))

    def clamped(self, row: Value) -> Value:
        return self.k.max(self.k.min(row, self.lines.size - 1), 0)

    def load(self, row: Value) -> list[Value]:
        start = self.result.at(self.number, row)
        return [self.k.load(self.result.buffer, start + c.first, lanes=LANES, mask=c.mask) for c in self.columns]

    def store(self, row: Value, values: Sequence[Value]) -> None:
        start = self.result.at(self.number, row)
        for c, value in zip(self.columns, values):
            self.k.store(self.result.buffer, start + c.first, value, mask=c.mask)
