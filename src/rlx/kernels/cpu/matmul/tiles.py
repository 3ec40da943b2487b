"""Register tiles: the innermost loops of a product, and how scratch is filled for them.

`panel_tile` multiplies rows of A with a panel of B, where neighbouring columns lie side by side; `dot_tile` is for
a few rows of A and columns of B that each lie side by side along K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BlockShape
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import FLOATS, Buffer, Value, ValueType

# Columns of a tile of dot products.
DOT_COLUMNS = 4
# A processor does not foresee where the next of many short lines begins: of matrices that are in no cache, weights'
# gradients took up to a tenth longer without being told.
LINES_AHEAD = 8


class MatrixView(NamedTuple):
    """Elements at `buffer[start + row*row_stride + column*column_stride]`; rows after `last_row` are copies of it."""

    buffer: Buffer
    start: Value
    row_stride: Value
    column_stride: Value
    last_row: Value | None = None

    def at(self, row: Value | int, column: Value | int) -> Value:
        if self.last_row is not None:
            row = self.last_row.builder.min(self.last_row, row)
        return self.start + self.row_stride * row + self.column_stride * column

    def moved(self, row: Value | int, column: Value | int) -> MatrixView:
        last_row = None if self.last_row is None else self.last_row - row
        return self._replace(start=self.at(row, column), last_row=last_row)

    def turned(self) -> MatrixView:
        """Rows as columns."""
        return self._replace(row_stride=self.column_stride, column_stride=self.row_stride)


class SumVectors(NamedTuple):
    """Vectors of sums in scratch, which a loop takes into registers and adds to."""

    buffer: Buffer
    places: list[Value]
    lanes: int

    def known(self, k: KernelBuilder, is_new: Value, first: Callable[[], list[Value]] | None = None) -> Sequence[Value]:
        """The sums up to now; where `is_new`, zeros or what `first` gives."""

        def zeros() -> list[Value]:
            return [k.const(0, ValueType(self.buffer.dtype, self.lanes))] * len(self.places)

        def stored() -> list[Value]:
            return [k.load(self.buffer, place, lanes=self.lanes) for place in self.places]

        return k.choose(is_new, first or zeros, stored)

    def store(self, k: KernelBuilder, totals: Sequence[Value]) -> None:
        for place, total in zip(self.places, totals):
            k.store(self.buffer, place, total)


class TileStep(NamedTuple):
    """What tiles do in a step along K: sums += a[.., steps] @ panel[steps, ..], from nothing if `is_new`."""

    a: MatrixView
    panel: MatrixView
    steps: Value
    sums: MatrixView
    is_new: Value

    def from_row(self, row: Value) -> TileStep:
        return self._replace(a=self.a.moved(row, 0), sums=self.sums.moved(row, 0))

    def sum_vectors(self, count: int, shape: BlockShape) -> SumVectors:
        """The sums of the first `count` rows, row by row."""
        starts = range(0, shape.width, shape.lanes)
        return SumVectors(self.sums.buffer, [self.sums.at(r, v) for r in range(count) for v in starts], shape.lanes)


def panel_tile(k: KernelBuilder, count: int, shape: BlockShape, step: TileStep) -> None:
    """The first `count` rows of a step, by multiplications and additions."""
    a, b, sums = step.a, step.panel, step.sum_vectors(count, shape)
    acc, lanes = sums.buffer.dtype, shape.lanes
    known = sums.known(k, step.is_new)
    rows = [a.at(r, 0) for r in range(count)]
    with k.fold("p", 0, step.steps, init=known) as fold:
        b_row = b.at(fold.index, 0)
        row_of_b = [k.cast(k.load(b.buffer, b_row + v * lanes, lanes=lanes), acc) for v in range(shape.vectors)]
        totals: list[Value] = []
        for r, row in enumerate(rows):
            one = k.splat(k.cast(k.load(a.buffer, row + a.column_stride * fold.index), acc), lanes)
            totals += [multiply_add(k, one, x, fold.values[r * shape.vectors + v]) for v, x in enumerate(row_of_b)]
        fold.next(*totals)
    sums.store(k, fold.results)


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
        start, place, later = source.at(line, 0), to.at(line, 0), source.at(line + LINES_AHEAD, 0)

        def copy(j: Value, width: int, mask: Value | None) -> None:
            k.prefetch(source.buffer, later + j)
            value = k.load(source.buffer, start + j, lanes=width, mask=mask)
            k.store(to.buffer, place + j, k.cast(value, to.buffer.dtype), mask=mask)

        in_vectors(k, "j", count, lanes, has_masks, copy)


def copy_panel(
    k: KernelBuilder,
    source: MatrixView,
    to: MatrixView,
    rows: Value,
    count: Value,
    panel: tuple[int, int],
    has_masks: bool,
) -> None:
    """to[rows, lanes*vectors] = source, of which `count` columns lie side by side; `panel` is lanes and vectors.
    Columns that are not there are zeros, or copies of the last one."""
    lanes, vectors = panel
    width = lanes * vectors
    with k.when(count >= width):
        copy_lines(k, source, to, rows, k.as_index(width), lanes, has_masks)
    with k.otherwise():
        if not has_masks:
            copy_gathered(k, source, to, rows, count - 1, lanes, vectors)
            return
        with k.loop("line", 0, rows) as line, k.loop("vector", 0, width, lanes) as j:
            mask = k.lane_mask(count - j, lanes)
            value = k.load(source.buffer, source.at(line, j), lanes=lanes, mask=mask)
            k.store(to.buffer, to.at(line, j), k.cast(value, to.buffer.dtype))


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
