"""Register tiles of convolutions: rows of one operand, read where they are, times the lines of a panel in scratch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.shape import Size
from rlx.kernels.cpu.matmul.blocks import BlockShape
from rlx.kernels.cpu.matmul.tiles import SumVectors, multiply_add
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value


class RowOperand(NamedTuple):
    """Rows that begin at `start + row*distance`, or at `start + begins[row]`; the element for line p is at p, or at
    `places[p]`."""

    buffer: Buffer
    start: Value
    distance: Value
    places: Buffer | None = None
    begins: Buffer | None = None


class Panel(NamedTuple):
    """Lines in scratch, `pitch` elements apart."""

    buffer: Buffer
    pitch: int


class Step(NamedTuple):
    """What tiles add: rows[rows, lines] @ panel[lines, columns]; from nothing if `is_new`."""

    operand: RowOperand
    rows: Value
    columns: Value
    lines: Value
    is_new: Value


def part_sizes(whole: Size, part: int) -> frozenset[int] | None:
    """What is cut into parts of so many gives these sizes: whole parts, and what is left; None if nobody knows yet."""
    if not isinstance(whole, int):
        return None
    return frozenset(size for size in (min(part, whole), whole % part) if size)


class BlockParts(NamedTuple):
    """The numbers of rows and of columns that blocks have; None where they are known when the kernel runs. There is
    code for tiles that are met: a convolution of known sizes needs few of fifteen."""

    rows: Collection[int] | None
    columns: Collection[int] | None


class ConvTiles:
    """Sums of one block of the result, and how steps add to them."""

    def __init__(self, k: KernelBuilder, shape: BlockShape, acc: DType, panel: Panel, parts: BlockParts) -> None:
        self.k, self.shape, self.acc, self.panel, self.parts = k, shape, acc, panel, parts
        self.sums = k.local("sums", acc, shape.rows * shape.columns)

    def columns_read(self, columns: Value) -> Value:
        """How many columns of a panel tiles read for so many: the last one may have fewer vectors, but whole ones."""
        k, shape = self.k, self.shape
        whole = columns // shape.width * shape.width
        left = columns - whole
        read: Value = k.as_index(shape.width)
        for vectors in self._vector_counts[-2::-1]:
            read = k.select(left <= vectors * shape.lanes, k.as_index(vectors * shape.lanes), read)
        return whole + k.select(left > 0, read, 0)

    @property
    def _vector_counts(self) -> list[int]:
        return sorted({1, min(2, self.shape.vectors), self.shape.vectors})

    def add(self, step: Step) -> None:
        """All rows times all columns, with as many vectors at a time as there are columns left."""
        k, shape, parts = self.k, self.shape, self.parts
        ends = [vectors * shape.lanes for vectors in self._vector_counts]
        met = None if parts.columns is None else {min(c, shape.width) for c in parts.columns}
        if met is not None and parts.columns is not None:
            met |= {c % shape.width for c in parts.columns}
        with k.loop("inside", 0, step.columns, shape.width) as inside:
            left = step.columns - inside
            for below, end in _met(ends, met):
                with k.when(left > below if end == shape.width else (left > below) & (left <= end)):
                    self._rows(step, end // shape.lanes, inside)

    def _rows(self, step: Step, vectors: int, inside: Value) -> None:
        k, size, known = self.k, self.shape.tile_rows, self.parts.rows
        whole = step.rows // size * size
        if known is None or max(known, default=0) >= size:
            with k.loop("row", 0, whole, size) as row:
                self._tile(step, [row + r for r in range(size)], vectors, inside)
        left = step.rows - whole
        for below, count in _met(self.shape.row_counts, None if known is None else {rows % size for rows in known}):
            with k.when((left > below) & (left <= count)):
                # What is over is computed and not used.
                rows = [whole, *(k.min(whole + r, step.rows - 1) for r in range(1, count))]
                self._tile(step, rows, vectors, inside)

    def _tile(self, step: Step, rows: Sequence[Value], vectors: int, inside: Value) -> None:
        k, lanes, width, operand = self.k, self.shape.lanes, self.shape.columns, step.operand
        start = rows[0] * width + inside
        places = [start + (r * width + v * lanes) for r in range(len(rows)) for v in range(vectors)]
        sums = SumVectors(self.sums, places, lanes)
        starts = [
            operand.start + (row * operand.distance if operand.begins is None else k.load(operand.begins, row))
            for row in rows
        ]
        with k.fold("p", 0, step.lines, init=sums.known(k, step.is_new)) as fold:
            place = fold.index if operand.places is None else k.load(operand.places, fold.index)
            line = fold.index * self.panel.pitch + inside
            seen = [k.load(self.panel.buffer, line + v * lanes, lanes=lanes) for v in range(vectors)]
            totals: list[Value] = []
            for r, begin in enumerate(starts):
                one = k.splat(k.cast(k.load(operand.buffer, begin + place), self.acc), lanes)
                totals += [multiply_add(k, one, x, fold.values[r * vectors + v]) for v, x in enumerate(seen)]
            fold.next(*totals)
        sums.store(k, fold.results)


def _met(ends: Sequence[int], sizes: Collection[int] | None) -> Iterator[tuple[int, int]]:
    """Ranges, each from the end of the one before on, that some of the sizes lie in; all of them if none is known."""
    for below, end in pairwise((0, *ends)):
        if sizes is None or any(below < size <= end for size in sizes):
            yield below, end
