"""Register tiles: the innermost loops of a product, and how scratch is filled for them.

`panel_tile` multiplies rows of A with a panel of B, where neighbouring columns lie side by side; `dot_tile` is for
a few rows of A and columns of B that each lie side by side along K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.builder import KernelBuilder
from rlx.kernels.loop_ir import FLOATS, Buffer, Value, ValueType

# Columns of a tile of dot products.
DOT_COLUMNS = 4


class MatrixView(NamedTuple):
    """Elements at `buffer[start + row*row_stride + column*column_stride]`."""

    buffer: Buffer
    start: Value
    row_stride: Value
    column_stride: Value

    def at(self, row: Value | int, column: Value | int) -> Value:
        return self.start + self.row_stride * row + self.column_stride * column

    def moved(self, row: Value | int, column: Value | int) -> MatrixView:
        return self._replace(start=self.at(row, column))


def panel_tile(
    k: KernelBuilder,
    count: int,
    vectors: int,
    lanes: int,
    a: MatrixView,
    b: MatrixView,
    steps: Value,
    sums: MatrixView,
    is_new: Value,
) -> None:
    """sums[count, vectors*lanes] += a[count, steps] @ b[steps, vectors*lanes], from zero if `is_new`."""
    acc = sums.buffer.dtype
    places = [sums.at(r, v * lanes) for r in range(count) for v in range(vectors)]
    zero = k.const(0, ValueType(acc, lanes))
    started = k.choose(
        is_new, lambda: [zero] * len(places), lambda: [k.load(sums.buffer, p, lanes=lanes) for p in places]
    )
    with k.fold("p", 0, steps, init=started) as fold:
        b_row = b.at(fold.index, 0)
        row_of_b = [k.cast(k.load(b.buffer, b_row + v * lanes, lanes=lanes), acc) for v in range(vectors)]
        totals: list[Value] = []
        for r in range(count):
            one = k.splat(k.cast(k.load(a.buffer, a.at(r, fold.index)), acc), lanes)
            totals += [multiply_add(k, one, x, fold.values[r * vectors + v]) for v, x in enumerate(row_of_b)]
        fold.next(*totals)
    for place, total in zip(places, fold.results):
        k.store(sums.buffer, place, total)


def dot_tile(
    k: KernelBuilder, count: int, columns: int, lanes: int, a: MatrixView, b: MatrixView, depth: Value, sums: MatrixView
) -> None:
    """sums[count, columns] = a[count, depth] @ b[depth, columns]; rows of A and columns of B are contiguous."""
    acc = sums.buffer.dtype
    whole = depth // lanes * lanes

    def products(p: Value, width: int, before: tuple[Value, ...]) -> list[Value]:
        rows = [k.cast(k.load(a.buffer, a.at(r, p), lanes=width), acc) for r in range(count)]
        lines = [k.cast(k.load(b.buffer, b.at(p, c), lanes=width), acc) for c in range(columns)]
        return [multiply_add(k, x, y, before[r * columns + c]) for r, x in enumerate(rows) for c, y in enumerate(lines)]

    with k.fold("p", 0, whole, lanes, init=[k.const(0, ValueType(acc, lanes))] * (count * columns)) as fold:
        fold.next(*products(fold.index, lanes, fold.values))
    with k.fold("q", whole, depth, init=[k.reduce("add", total) for total in fold.results]) as rest:
        rest.next(*products(rest.index, 1, rest.values))
    for position, total in enumerate(rest.results):
        k.store(sums.buffer, sums.at(*divmod(position, columns)), total)


def add_rows(
    k: KernelBuilder,
    a: list[MatrixView],
    b: MatrixView,
    first: Value,
    count: int,
    columns: Value,
    sums: MatrixView,
    vector: VectorLoop,
) -> None:
    """sums[len(a), columns] += a[:, first : first+count] @ b[first : first+count, columns]: a few rows of B, each of
    which lies side by side, pass by once."""
    acc, lanes = sums.buffer.dtype, vector.lanes
    factors = [[k.cast(k.load(x.buffer, x.at(0, first + p)), acc) for p in range(count)] for x in a]
    lines = [b.at(first + p, 0) for p in range(count)]

    def add(j: Value, width: int, mask: Value | None) -> None:
        row_of_b = [k.cast(k.load(b.buffer, line + j, lanes=width, mask=mask), acc) for line in lines]
        for r, ones in enumerate(factors):
            total = k.load(sums.buffer, sums.at(r, j), lanes=width)
            for one, x in zip(ones, row_of_b):
                total = multiply_add(k, k.splat(one, width), x, total)
            # What lies after the last column is never used.
            k.store(sums.buffer, sums.at(r, j), total)

    in_vectors(k, "j", columns, lanes, vector.has_masks, add)


def multiply_add(k: KernelBuilder, a: Value, b: Value, c: Value) -> Value:
    return k.fma(a, b, c) if c.dtype in FLOATS else a * b + c


class VectorLoop(NamedTuple):
    """How a row is gone through: vectors of so many lanes, the last one under a mask if there are masks."""

    lanes: int
    has_masks: bool


def in_vectors(
    k: KernelBuilder,
    name: str,
    count: Value,
    lanes: int,
    has_masks: bool,
    body: Callable[[Value, int, Value | None], None],
) -> None:
    """`body(start, lanes, mask)` over 0..count-1: whole vectors, then the rest under a mask or one by one."""
    whole = count // lanes * lanes
    with k.loop(name, 0, whole, lanes) as start:
        body(start, lanes, None)
    if lanes == 1:
        return
    if not has_masks:
        with k.loop(name, whole, count) as start:
            body(start, 1, None)
        return
    with k.when(whole < count):
        body(whole, lanes, k.lane_mask(count - whole, lanes))


def copy_lines(
    k: KernelBuilder, source: MatrixView, to: MatrixView, rows: Value, count: Value, lanes: int, has_masks: bool
) -> None:
    """to[rows, count] = source; columns of both lie side by side."""
    with k.loop("line", 0, rows) as line:
        start, place = source.at(line, 0), to.at(line, 0)

        def copy(j: Value, width: int, mask: Value | None) -> None:
            value = k.load(source.buffer, start + j, lanes=width, mask=mask)
            k.store(to.buffer, place + j, k.cast(value, to.buffer.dtype), mask=mask)

        in_vectors(k, "j", count, lanes, has_masks, copy)


def copy_elements(k: KernelBuilder, source: MatrixView, to: MatrixView, rows: Value, count: Value) -> None:
    """to[rows, count] = source, for any strides."""
    with k.loop("line", 0, rows) as line, k.loop("j", 0, count) as j:
        value = k.load(source.buffer, source.at(line, j))
        k.store(to.buffer, to.at(line, j), k.cast(value, to.buffer.dtype))


def transposed(k: KernelBuilder, rows: list[Value]) -> list[Value]:
    """Vectors of lanes as the columns of what they are the rows of; as many as lanes, a power of two.

    Step by step blocks of 1, 2, 4 .. lanes change places between vectors as far apart.
    """
    lanes = len(rows)
    step = 1
    while step < lanes:
        low = [i if not i & step else i - step + lanes for i in range(lanes)]
        high = [i + step if not i & step else i + lanes for i in range(lanes)]
        pairs = {i: (rows[i], rows[i + step]) for i in range(lanes) if not i & step}
        for i, (first, second) in pairs.items():
            rows[i] = k.shuffle(first, low, second)
            rows[i + step] = k.shuffle(first, high, second)
        step *= 2
    return rows


def copy_transposed(
    k: KernelBuilder, source: MatrixView, to: MatrixView, rows: Value, last: Value, lanes: int, vectors: int
) -> None:
    """to[rows, vectors*lanes] = source, whose rows lie side by side; columns after `last` are copies of it."""
    whole = rows // lanes * lanes
    with k.loop("vector", 0, vectors) as vector:
        first = vector * lanes
        with k.loop("line", 0, whole, lanes) as line:
            columns = [
                k.cast(k.load(source.buffer, source.at(line, k.min(first + c, last)), lanes=lanes), to.buffer.dtype)
                for c in range(lanes)
            ]
            for i, row in enumerate(transposed(k, columns)):
                k.store(to.buffer, to.at(line + i, first), row)
        with k.loop("line", whole, rows) as line, k.loop("j", 0, lanes) as j:
            value = k.load(source.buffer, source.at(line, k.min(first + j, last)))
            k.store(to.buffer, to.at(line, first + j), k.cast(value, to.buffer.dtype))


def copy_gathered(
    k: KernelBuilder, source: MatrixView, to: MatrixView, rows: Value, last: Value, lanes: int, vectors: int
) -> None:
    """to[rows, vectors*lanes] = source, for any strides; columns after `last` are copies of it."""
    with k.loop("line", 0, rows) as line, k.loop("vector", 0, vectors) as vector:
        column = k.min(k.iota(DType.I64, lanes) + vector * lanes, k.splat(last, lanes))
        places = column * source.column_stride + source.at(line, 0)
        value = k.load(source.buffer, places, lanes=lanes)
        k.store(to.buffer, to.at(line, vector * lanes), k.cast(value, to.buffer.dtype))
