"""Register tiles of convolutions: rows of one operand, read where they are, times the lines of a panel in scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
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


class ConvTiles:
    """Sums of one block of the result, and how steps add to them."""

    def __init__(self, k: KernelBuilder, shape: BlockShape, acc: DType, panel: Panel) -> None:
        self.k, self.shape, self.acc, self.panel = k, shape, acc, panel
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
        k, shape = self.k, self.shape
        with k.loop("inside", 0, step.columns, shape.width) as inside:
            left, below = step.columns - inside, 0
            for vectors in self._vector_counts:
                is_most = vectors == shape.vectors
                with k.when(left > below if is_most else (left > below) & (left <= vectors * shape.lanes)):
                    self._rows(step, vectors, inside)
                below = vectors * shape.lanes

    def _rows(self, step: Step, vectors: int, inside: Value) -> None:
        k, size = self.k, self.shape.tile_rows
        whole = step.rows // size * size
        with k.loop("row", 0, whole, size) as row:
            self._tile(step, [row + r for r in range(size)], vectors, inside)
        left, below = step.rows - whole, 0
        for count in self.shape.row_counts:
            with k.when((left > below) & (left <= count)):
                # What is over is computed and not used.
                rows = [whole, *(k.min(whole + r, step.rows - 1) for r in range(1, count))]
                self._tile(step, rows, vectors, inside)
            below = count

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
