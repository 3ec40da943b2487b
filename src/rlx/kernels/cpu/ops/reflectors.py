"""Householder's QR: reflections that clear a matrix below its diagonal, and the basis that they make.

Reflections are found one by one in a few neighbouring columns, and then act on all others together: what they act on is
read and written once for all of them. With G = Vᵀ V and S = Vᵀ X their common effect is X - V Y, where the rows of Y
are found one after the other: y = scale·(s - Σ g·y), over those that act before.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import VECTORS, Strip, are_doubles, copy_matrix, each_matrix, strips_of
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.factor_steps import ReflectedBasis, Reflectors

# Reflections that act together: as many sums for each vector of columns as registers hold.
TOGETHER = 4


@op_kernel(Reflectors, kind="factorize", supports=are_doubles)
def reflectors(site: OpSite) -> None:
    """Some columns at a time: their reflections, one after the other, and then the effect on all columns behind."""
    k, (a,), (packed, scales) = site.k, site.inputs, site.outputs
    rows, columns = a.dims[-2:]
    steps = scales.dims[-1]

    def reduce(place: Sequence[Value], step: Value, end: Value) -> None:
        """The reflection of a column, and its effect on those up to `end`."""
        scale = _reflection(site, place, step)
        k.store(scales.buffer, scales.at(*place, step), scale)
        strips_of(site, step + 1, end, lambda strip: _reflect(place, packed, rows, step, scale, packed, strip))

    with each_matrix(site, a) as place:
        copy_matrix(site, place, a, packed)
        groups = steps // TOGETHER * TOGETHER
        with k.loop("group", 0, groups, TOGETHER) as first:
            for number in range(TOGETHER):
                reduce(place, first + number, first + TOGETHER)
            group = _Group(site, place, packed, scales, first)
            strips_of(site, first + TOGETHER, columns, lambda strip: group.act(packed, strip, backwards=False))
        with k.loop("step", groups, steps) as step:
            reduce(place, step, columns)


class _Group:
    """Some reflections that follow each other; the first begins in row `first`."""

    def __init__(self, site: OpSite, place: Sequence[Value], packed: Slab, scales: Slab, first: Value) -> None:
        self.k, self.place, self.packed, self.first = site.k, place, packed, first
        self.rows = packed.dims[-2]
        self.numbers = range(TOGETHER)
        self.scales = [self.k.load(scales.buffer, scales.at(*place, first + n)) for n in self.numbers]
        self.products = self.products_of_directions()

    def direction(self, row: Value, number: int) -> Value:
        return self.k.load(self.packed.buffer, self.packed.at(*self.place, row, self.first + number))

    def heads(self, row: int) -> list[Value]:
        """What the directions that have begun have in one of the first rows: 1 in the last of them."""
        return [*(self.direction(self.first + row, n) for n in range(row)), self.k.const(1.0, DType.F64)]

    def products_of_directions(self) -> dict[tuple[int, int], Value]:
        """vᵀ v of every two of them, in the order of the rows."""
        k = self.k
        pairs = [(i, j) for j in self.numbers for i in range(j)]
        begin: list[Value] = [k.const(0.0, DType.F64)] * len(pairs)
        for row in self.numbers:
            heads = self.heads(row)
            begin = [s + heads[i] * heads[j] if j <= row else s for s, (i, j) in zip(begin, pairs)]
        with k.fold("i", self.first + TOGETHER, self.rows, init=begin) as fold:
            parts = [self.direction(fold.index, n) for n in self.numbers]
            fold.next(*(s + parts[i] * parts[j] for s, (i, j) in zip(fold.values, pairs)))
        return dict(zip(pairs, fold.results))

    def act(self, matrix: Slab, strip: Strip, backwards: bool) -> None:
        """Let all of them act on some columns: the first one first, or the last one."""
        k = self.k
        width = len(strip.firsts)
        heads = [self.heads(row) for row in self.numbers]
        tops = [strip.load(matrix, *self.place, self.first + row) for row in self.numbers]
        sums: list[list[Value]] = []
        for n in self.numbers:
            total = tops[n]
            for row in self.numbers[n + 1 :]:
                total = [s + strip.same(heads[row][n]) * x for s, x in zip(total, tops[row])]
            sums.append(total)
        with k.fold("i", self.first + TOGETHER, self.rows, init=[s for one in sums for s in one]) as fold:
            known = strip.load(matrix, *self.place, fold.index)
            parts = [strip.same(self.direction(fold.index, n)) for n in self.numbers]
            fold.next(*(s + parts[n // width] * known[n % width] for n, s in enumerate(fold.values)))
        shares = self.shares([list(fold.results[n * width :][:width]) for n in self.numbers], strip, backwards)
        for row in self.numbers:
            values = tops[row]
            for n, head in enumerate(heads[row]):
                values = [x - strip.same(head) * y for x, y in zip(values, shares[n])]
            strip.store(matrix, [*self.place, self.first + row], values)
        with k.loop("i", self.first + TOGETHER, self.rows) as i:
            values = strip.load(matrix, *self.place, i)
            for n in self.numbers:
                v = strip.same(self.direction(i, n))
                values = [x - v * y for x, y in zip(values, shares[n])]
            strip.store(matrix, [*self.place, i], values)

    def shares(self, sums: list[list[Value]], strip: Strip, backwards: bool) -> list[list[Value]]:
        """How much of each direction the columns lose."""
        found: dict[int, list[Value]] = {}
        for n in reversed(self.numbers) if backwards else self.numbers:
            values = sums[n]
            for other, known in found.items():
                product = strip.same(self.products[min(n, other), max(n, other)])
                values = [s - product * y for s, y in zip(values, known)]
            found[n] = [s * strip.same(self.scales[n]) for s in values]
        return [found[n] for n in self.numbers]


def _reflection(site: OpSite, place: Sequence[Value], step: Value) -> Value:
    """Leaves v below the diagonal of a column, the length of what was there on it, and gives the scale; 0 if there is
    nothing to clear. All is done in units of the largest element, so that no square overflows or gets lost."""
    k, packed = site.k, site.outputs[0]
    rows = packed.dims[-2]
    zero = k.const(0.0, DType.F64)

    def at(row: Value) -> Value:
        return packed.at(*place, row, step)

    head = k.load(packed.buffer, at(step))
    with k.fold("i", step + 1, rows, init=[zero]) as highest:
        highest.next(k.max(highest.values[0], k.abs(k.load(packed.buffer, at(highest.index)))))

    def clear() -> list[Value]:
        unit = k.max(highest.results[0], k.abs(head))
        start = head / unit
        with k.fold("i", step + 1, rows, init=[start * start]) as squares:
            part = k.load(packed.buffer, at(squares.index)) / unit
            squares.next(squares.values[0] + part * part)
        length = k.sqrt(squares.results[0])
        # The other sign than the head has: their difference is then exact enough to divide by.
        turned = k.select(k.bitcast(head, DType.I64) < 0, length, -length)
        with k.loop("i", step + 1, rows) as i:
            k.store(packed.buffer, at(i), k.load(packed.buffer, at(i)) / unit / (start - turned))
        k.store(packed.buffer, at(step), unit * turned)
        return [(turned - start) / turned]

    (scale,) = k.choose(k.ne(highest.results[0], 0.0), clear, lambda: [zero])
    return scale


def _reflect(
    place: Sequence[Value], packed: Slab, rows: Value, step: Value, scale: Value, matrix: Slab, strip: Strip
) -> None:
    """Columns of `matrix` without scale·v·(vᵀ·column), where v is the reflection of a step."""
    k = strip.k

    def direction(i: Value) -> Value:
        return strip.same(k.load(packed.buffer, packed.at(*place, i, step)))

    top = strip.load(matrix, *place, step)
    with k.fold("i", step + 1, rows, init=top) as fold:
        v = direction(fold.index)
        known = strip.load(matrix, *place, fold.index)
        fold.next(*(s + v * x for s, x in zip(fold.values, known)))
    shares = [s * strip.same(scale) for s in fold.results]
    strip.store(matrix, [*place, step], [x - s for x, s in zip(top, shares)])
    with k.loop("i", step + 1, rows) as i:
        v = direction(i)
        known = strip.load(matrix, *place, i)
        strip.store(matrix, [*place, i], [x - v * s for x, s in zip(known, shares)])


@op_kernel(ReflectedBasis, kind="factorize", supports=are_doubles)
def reflected_basis(site: OpSite) -> None:
    """Columns of the identity, reflected by the last reflection first. Those of a block go their own way; reflections
    that begin below all of them leave them as they are."""
    k, (packed, scales), (basis,) = site.k, site.inputs, site.outputs
    lead, (rows, columns) = basis.dims[:-2], basis.dims[-2:]
    width = VECTORS * site.machine.lanes(DType.F64)
    blocks = k.ceildiv(columns, width)
    with k.parallel("block", total(k, lead) * blocks) as block:
        place = unflatten(block // blocks, lead)
        first = block % blocks * width
        end = k.min(first + width, columns)
        count = k.min(scales.dims[-1], end)
        groups = count // TOGETHER * TOGETHER

        def build(strip: Strip) -> None:
            with k.loop("i", 0, rows) as i:
                unit = [_is_at(strip, c, i) for c in strip.firsts]
                strip.store(basis, [*place, i], unit)
            with k.loop("back", 0, count - groups) as back:
                step = count - 1 - back
                scale = k.load(scales.buffer, scales.at(*place, step))
                _reflect(place, packed, rows, step, scale, basis, strip)
            with k.loop("back", 0, groups, TOGETHER) as back:
                group = _Group(site, place, packed, scales, groups - TOGETHER - back)
                group.act(basis, strip, backwards=True)

        strips_of(site, first, end, build)


def _is_at(strip: Strip, column: Value, i: Value) -> Value:
    """1 in the lane that is column i, else 0."""
    k = strip.k
    lane = strip.same(column) + k.iota(DType.I64, strip.lanes)
    one = k.const(1.0, DType.F64)
    return k.select(k.eq(lane, strip.same(i)), strip.same(one), 0.0)
