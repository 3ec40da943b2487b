"""How factorisations of complex matrices walk through these: real and imaginary parts lie in buffers of their own, so
that lanes are neighbouring columns. Real matrices have one part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, numbers
from rlx.kernels.cpu.ops.numbers import Number
from rlx.kernels.cpu.ops.strips import along
from rlx.kernels.ir.loop_ir import Value

# Vectors side by side, half as many as of real matrices.
VECTORS = 2


class Parts:
    """The parts of one matrix, or of one line, at its place in a batch."""

    def __init__(self, site: OpSite, slabs: Sequence[Slab], place: Sequence[Value]) -> None:
        self.site, self.k, self.slabs, self.place = site, site.k, slabs, place

    def at(self, *index: Value, lanes: int = 1, mask: Value | None = None) -> Number:
        """The number at a position, or some neighbours from there on."""
        return tuple(self.k.load(s.buffer, s.at(*self.place, *index), lanes=lanes, mask=mask) for s in self.slabs)

    def put(self, index: Sequence[Value], number: Number, mask: Value | None = None) -> None:
        for s, part in zip(self.slabs, number):
            self.k.store(s.buffer, s.at(*self.place, *index), part, mask=mask)

    def number(self, value: float, lanes: int = 1) -> Number:
        """A real constant."""
        k = self.k
        return tuple(k.splat(k.const(x, DType.F64), lanes) for x in (value, 0.0)[: len(self.slabs)])

    def copy(self, source: Parts, rows: Value, columns: Value) -> None:
        with self.k.loop("i", 0, rows) as i:
            self.each(
                0, columns, lambda j, lanes, mask: self.put((i, j), source.at(i, j, lanes=lanes, mask=mask), mask)
            )

    def each(self, start: Value | int, stop: Value, visit: Callable[[Value, int, Value | None], None]) -> None:
        """Visit the columns from `start` up to `stop` in vectors."""
        along(self.k, self.site.machine, (DType.F64,), self.k.as_index(start), stop, visit)

    def strips(self, start: Value, stop: Value, visit: Callable[[list[Value], int, Value | None], None]) -> None:
        """Visit the columns from `start` up to `stop`: some vectors at a time, then one, then what is left."""
        k = self.k
        lanes = self.site.machine.lanes(DType.F64)
        width = VECTORS * lanes
        middle = start + k.max(stop - start, 0) // width * width
        with k.loop("strip", start, middle, width) as first:
            visit([first + v * lanes for v in range(VECTORS)], lanes, None)
        self.each(middle, stop, lambda j, n, mask: visit([j], n, mask))


def flat(values: Sequence[Number]) -> list[Value]:
    return [x for number in values for x in number]


def grouped(values: Sequence[Value], parts: int) -> list[Number]:
    """What `flat` has taken apart."""
    return [tuple(values[i : i + parts]) for i in range(0, len(values), parts)]


def reflection(
    line: Parts, index: Callable[[Value], Sequence[Value]], start: Value, stop: Value, conj: bool
) -> tuple[Number, Value]:
    """The reflection 1 - scale·v·vᴴ whose adjoint clears a line behind its first element, or the conjugate of the line:
    leaves v in it, whose first element is 1 and is not stored, and gives the scale and what the first element becomes,
    which is not stored either. All is done in units of the largest element, so that no square overflows."""
    k = line.k
    zero = k.const(0.0, DType.F64)

    def at(i: Value) -> Number:
        found = line.at(*index(i))
        return numbers.conjugate(found) if conj else found

    def largest(number: Number) -> Value:
        found = k.abs(number[0])
        return found if len(number) == 1 else k.max(found, k.abs(number[1]))

    head = at(start)
    with k.fold("i", start + 1, stop, init=[zero]) as highest:
        highest.next(k.max(highest.values[0], largest(at(highest.index))))
    behind = highest.results[0]
    is_needed = k.ne(behind, 0.0) if len(head) == 1 else k.ne(behind, 0.0) | k.ne(head[1], 0.0)

    def clear() -> list[Value]:
        unit = k.max(behind, largest(head))
        first = tuple(x / unit for x in head)
        with k.fold("i", start + 1, stop, init=[numbers.square(first)]) as squares:
            part = tuple(x / unit for x in at(squares.index))
            squares.next(squares.values[0] + numbers.square(part))
        length = k.sqrt(squares.results[0])
        beta = k.select(k.bitcast(head[0], DType.I64) < 0, length, -length)
        away = (first[0] - beta, *first[1:])
        with k.loop("i", start + 1, stop) as i:
            line.put(index(i), numbers.divide(k, tuple(x / unit for x in at(i)), away))
        return [*(-x / beta for x in away), beta * unit]

    *scale, beta = k.choose(is_needed, clear, lambda: [*line.number(0.0), head[0]])
    return tuple(scale), beta


def reflect_columns(
    matrix: Parts,
    direction: Callable[[Value], Number],
    factor: Number,
    rows: tuple[Value, Value],
    strip: tuple[list[Value], int, Value | None],
) -> None:
    """Some columns without factor·v·(vᴴ·column); v is 1 in the first of the rows."""
    k = matrix.k
    first, stop = rows
    columns, lanes, mask = strip
    parts = len(matrix.slabs)
    top = [matrix.at(first, j, lanes=lanes, mask=mask) for j in columns]
    with k.fold("i", first + 1, stop, init=flat(top)) as fold:
        v = numbers.splat(k, numbers.conjugate(direction(fold.index)), lanes)
        known = [matrix.at(fold.index, j, lanes=lanes, mask=mask) for j in columns]
        sums = grouped(fold.values, parts)
        fold.next(*flat([numbers.multiply_add(k, v, x, s) for x, s in zip(known, sums)]))
    shares = [numbers.multiply(k, numbers.splat(k, factor, lanes), s) for s in grouped(fold.results, parts)]
    for j, x, s in zip(columns, top, shares):
        matrix.put((first, j), numbers.subtract(x, s), mask)
    with k.loop("i", first + 1, stop) as i:
        v = numbers.splat(k, direction(i), lanes)
        for j, s in zip(columns, shares):
            x = matrix.at(i, j, lanes=lanes, mask=mask)
            matrix.put((i, j), numbers.multiply_subtract(k, v, s, x), mask)


def reflect_rows(
    matrix: Parts, line: Parts, factor: Number, rows: tuple[Value, Value], columns: tuple[Value, Value]
) -> None:
    """Rows without factor·(row·v)·vᴴ; v lies in a line, its first element too."""
    k = matrix.k
    lanes = matrix.site.machine.lanes(DType.F64)
    first, stop = columns
    whole = first + k.max(stop - first, 0) // lanes * lanes
    with k.loop("r", *rows) as r:
        with k.fold("c", first, whole, lanes, init=list(matrix.number(0.0, lanes))) as fold:
            x, v = (m.at(*at, lanes=lanes) for m, at in ((matrix, (r, fold.index)), (line, (fold.index,))))
            fold.next(*numbers.multiply_add(k, x, v, fold.values))
        begin = [k.reduce("add", s) for s in fold.results] if lanes > 1 else list(fold.results)
        with k.fold("c", whole, stop, init=begin) as rest:
            rest.next(*numbers.multiply_add(k, matrix.at(r, rest.index), line.at(rest.index), rest.values))
        share = numbers.multiply(k, factor, rest.results)

        def change(j: Value, n: int, mask: Value | None) -> None:
            v = numbers.conjugate(line.at(j, lanes=n, mask=mask))
            x = matrix.at(r, j, lanes=n, mask=mask)
            matrix.put((r, j), numbers.multiply_subtract(k, numbers.splat(k, share, n), v, x), mask)

        matrix.each(first, stop, change)
