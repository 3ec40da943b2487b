"""Products of a few columns and steps: points times a 3x3 matrix, a batch of 3x3 matrices times another one.

    c[row, j] = epilogue(sum over p of a[row, p] * b[p, j]),  all j and p written out

Panels of so few columns would be mostly empty. Here lanes are rows that share their B, or, where products have a few
rows each, lanes are products. Sums are formed in the order of the steps, as tiles of panels form them, and no lane
depends on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import MatrixOperand
from rlx.kernels.cpu.matmul.tiles import multiply_add
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent, Extents
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import lower_expr
from rlx.kernels.specs.products import Matrix, ProductSpec

# Elements of a B that rows share, and how many of them lie along one side: longer lines fill vectors by themselves.
MOST_ELEMENTS, LONGEST_SIDE = 16, 8
# Elements of each matrix of a lane that is a product: moving them to their lanes takes a shuffle for each pair of them,
# and those of 4x4 matrices took four times as long to compile as panels, to run a fifth faster.
MOST_MOVED = 9
# Vectors of lanes of one parallel iteration.
VECTORS = 32


def is_narrow(machine: Machine, spec: ProductSpec) -> bool:
    """Whether a product is computed here: plain floats in the type of their sums, on a processor with vectors."""
    p, acc = spec.product, spec.accumulator
    is_plain = not (spec.packed or spec.has_pairs or spec.layout or spec.code_digits or spec.experts)
    if not is_plain or machine.is_gpu or acc not in (DType.F32, DType.F64) or machine.lanes(acc) == 1:
        return False
    if any(x.dtype is not acc for x in (p.a, *p.bs)) or (p.epilogue is None and p.cs[0].dtype is not acc):
        return False
    if not isinstance(p.n, int) or not isinstance(p.k, int) or not 0 < p.k * p.n * len(p.bs) <= MOST_ELEMENTS:
        return False
    if max(p.k, p.n) > LONGEST_SIDE:
        return False
    return _has_many_rows(machine, spec) or _has_many_products(machine, spec)


def _has_many_rows(machine: Machine, spec: ProductSpec) -> bool:
    return not isinstance(spec.product.m, int) or spec.product.m >= 4 * machine.lanes(spec.accumulator)


def _has_many_products(machine: Machine, spec: ProductSpec) -> bool:
    p = spec.product
    m, k, n = p.m, int(p.k), int(p.n)
    if not isinstance(m, int) or max(m * k, k * n, m * n) > MOST_MOVED:
        return False
    return not isinstance(p.batch, int) or p.batch >= 4 * machine.lanes(spec.accumulator)


def narrow_kernel(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    return _NarrowMaker(name, machine, spec, _has_many_rows(machine, spec)).build()


class Place(NamedTuple):
    """Some lanes: the first of them is product `batch`, row `row`; the others follow along one of the two."""

    batch: Value
    row: Value
    lanes: int


class _NarrowMaker:
    def __init__(self, name: str, machine: Machine, spec: ProductSpec, lanes_are_rows: bool) -> None:
        k, p = KernelBuilder(name), spec.product
        self.k, self.acc, self.epilogue, self.lanes_are_rows = k, spec.accumulator, p.epilogue, lanes_are_rows
        self.lanes = machine.lanes(self.acc)
        self.steps, self.columns = int(p.k), int(p.n)
        self.rows = 1 if lanes_are_rows else int(p.m)
        self.a = MatrixOperand(k, p.a)
        self.bs = [MatrixOperand(k, b) for b in p.bs]
        # An operand of the epilogue may be C itself: each element is read before it is written.
        self.cs = [MatrixOperand(k, c, write=True, noalias=False) for c in p.cs]
        self.extra = [MatrixOperand(k, x, noalias=False) for x in (p.epilogue.operands if p.epilogue else ())]
        self.extents = Extents(k)
        self.m, _, _, self.batches = (self.extents(size) for size in (p.m, p.n, p.k, p.batch))
        for operand in (self.a, *self.bs, *self.cs, *self.extra):
            operand.declare_strides(self.extents)

    def build(self) -> Kernel:
        k, width = self.k, VECTORS * self.lanes
        count = self.m if self.lanes_are_rows else self.batches
        parts = k.ceildiv(count, width)
        others = self.batches if self.lanes_are_rows else k.as_index(1)
        with k.parallel("part", parts * others) as number:
            start, other = number % parts * width, number // parts
            end = k.min(start + width, count)
            whole = start + (end - start) // self.lanes * self.lanes
            shared = [self.elements(b, Place(other, k.as_index(0), 1), self.steps) for b in self.bs]
            for name, first, last, lanes in (("lanes", start, whole, self.lanes), ("one", whole, end, 1)):
                with k.loop(name, first, last, lanes) as at:
                    if self.lanes_are_rows:
                        self.products(Place(other, at, lanes), shared)
                    else:
                        place = Place(at, k.as_index(0), lanes)
                        self.products(place, [self.elements(b, place, self.steps) for b in self.bs])
        return k.build()

    def products(self, place: Place, bs: Sequence[list[list[Value]]]) -> None:
        """All elements of the results of some lanes: all are computed before one is stored, for C may be read."""
        k, zero = self.k, self.k.const(0, ValueType(self.acc, place.lanes))
        a = self.elements(self.a, place, self.rows)
        results: list[list[list[Value]]] = [[] for _ in self.cs]
        extra = [self.elements(x, place, self.rows, self.columns) for x in self.extra]
        for i in range(self.rows):
            for found in results:
                found.append([])
            for j in range(self.columns):
                sums: list[Value] = [zero] * len(bs)
                for p in range(self.steps):
                    sums = [multiply_add(k, a[i][p], b[p][j], total) for b, total in zip(bs, sums)]
                for found, value in zip(results, self.finished(place, i, j, [*sums, *(x[i][j] for x in extra)])):
                    found[i].append(value)
        for c, found in zip(self.cs, results):
            self.store(c, place, found)

    def finished(self, place: Place, i: int, j: int, values: list[Value]) -> list[Value]:
        if self.epilogue is None:
            return values
        k = self.k
        along = k.iota(DType.I64, place.lanes)
        if self.lanes_are_rows:
            indices = (place.batch, along + place.row, k.as_index(j))
        else:
            indices = (along + place.batch, k.as_index(i), k.as_index(j))
        return lower_expr(k, self.epilogue.exprs, values, place.lanes, indices, self.extents)

    # Memory.

    def lane_stride(self, matrix: Matrix) -> Extent:
        return matrix.row_stride if self.lanes_are_rows else matrix.batch_stride

    def elements(self, x: MatrixOperand, place: Place, rows: int, columns: int = 0) -> list[list[Value]]:
        """Elements [row][column] of some lanes."""
        k, columns = self.k, columns or (self.steps if x is self.a else self.columns)
        view = x.at(place.batch, place.row, k.as_index(0))
        if self.is_moved(x, place, rows, columns):
            count = rows * columns
            vectors = [k.load(x.buffer, view.start + v * place.lanes, lanes=place.lanes) for v in range(count)]
            lanes = range(place.lanes)
            parts = [_picked(k, vectors, [lane * count + e for lane in lanes]) for e in range(count)]
            return [parts[i * columns : (i + 1) * columns] for i in range(rows)]
        stride = self.extents(self.lane_stride(x.matrix))
        return [
            [k.load(x.buffer, view.at(i, j), lanes=place.lanes, stride=stride) for j in range(columns)]
            for i in range(rows)
        ]

    def store(self, c: MatrixOperand, place: Place, values: Sequence[Sequence[Value]]) -> None:
        k, rows, columns = self.k, len(values), self.columns
        view = c.at(place.batch, place.row, k.as_index(0))
        data = [[k.cast(x, c.buffer.dtype) for x in row] for row in values]
        if self.is_moved(c, place, rows, columns):
            count, lanes = rows * columns, place.lanes
            flat = [x for row in data for x in row]
            for v in range(count):
                places = [v * lanes + lane for lane in range(lanes)]
                value = _picked(k, flat, [at % count * lanes + at // count for at in places])
                k.store(c.buffer, view.start + v * lanes, value)
            return
        stride = self.extents(self.lane_stride(c.matrix))
        for i, row in enumerate(data):
            for j, value in enumerate(row):
                k.store(c.buffer, view.at(i, j), value, stride=stride)

    def is_moved(self, x: MatrixOperand, place: Place, rows: int, columns: int) -> bool:
        """Whether the elements of neighbouring lanes lie side by side: vectors of them are read, and moved to their
        lanes, in a fraction of the time of reading every element by its address."""
        m, count = x.matrix, rows * columns
        if place.lanes == 1 or self.lane_stride(m) != count:
            return False
        return (columns == 1 or m.col_stride == 1) and (rows == 1 or m.row_stride == columns)


def _picked(k: KernelBuilder, vectors: Sequence[Value], places: Sequence[int]) -> Value:
    """A vector of the elements at these places of some vectors one behind the other."""
    lanes = vectors[0].lanes
    needed = sorted({place // lanes for place in places})
    found = k.shuffle(vectors[needed[0]], [place % lanes if place // lanes == needed[0] else 0 for place in places])
    for number in needed[1:]:
        chosen = [lanes + p % lanes if p // lanes == number else lane for lane, p in enumerate(places)]
        found = k.shuffle(found, chosen, vectors[number])
    return found
