"""How factorisations walk through a matrix: the lanes are columns, some vectors of them at a time.

Sums are formed lane by lane and in the order of the rows, never across lanes, so that every target gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.cpu.ops.strips import along, whole_rows
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value

# Vectors side by side: enough sums at once to hide that each waits for its last term.
VECTORS = 4
# Of a double: the bits of the exponent, and the smallest that has all digits.
EXPONENT, SMALLEST = 0x7FF0000000000000, 2.0**-1022


def are_doubles(op: Op, operands: Sequence[Shape]) -> bool:
    """Whether these are matrices that kernels factorise; others are converted first."""
    return all(t.dtype is DType.F64 for t in operands)


class Strip:
    """Some neighbouring columns of matrices in double precision: `firsts` are where its vectors begin."""

    def __init__(self, site: OpSite, firsts: Sequence[Value], lanes: int, mask: Value | None) -> None:
        self.k, self.firsts, self.lanes, self.mask = site.k, firsts, lanes, mask

    def load(self, slab: Slab, *row: Value) -> list[Value]:
        """What a row has in these columns."""
        start = slab.at(*row)
        return [self.k.load(slab.buffer, start + c, lanes=self.lanes, mask=self.mask) for c in self.firsts]

    def store(self, slab: Slab, row: Sequence[Value], values: Sequence[Value]) -> None:
        start = slab.at(*row)
        for c, value in zip(self.firsts, values):
            self.k.store(slab.buffer, start + c, value, mask=self.mask)

    def same(self, x: Value) -> Value:
        """A number for all columns."""
        return self.k.splat(x, self.lanes)


def strips_of(site: OpSite, start: Value, stop: Value, visit: Callable[[Strip], None], vectors: int = VECTORS) -> None:
    """Visit the columns from `start` up to `stop`: many at a time, then few, then those that are left."""
    k = site.k
    lanes = site.machine.lanes(DType.F64)
    width = vectors * lanes
    middle = start + k.max(stop - start, 0) // width * width
    with k.loop("strip", start, middle, width) as first:
        visit(Strip(site, [first + i * lanes for i in range(vectors)], lanes, None))
    along(k, site.machine, (DType.F64,), middle, stop, lambda i, n, mask: visit(Strip(site, [i], n, mask)))


@contextmanager
def each_matrix(site: OpSite, slab: Slab) -> Iterator[list[Value]]:
    """Deal out the matrices of an operand, small ones together; gives where each stands."""
    lead, (rows, columns) = slab.dims[:-2], slab.dims[-2:]
    with whole_rows(site.k, total(site.k, lead), rows * columns, strip=1024) as number:
        yield unflatten(number, lead)


def copy_matrix(site: OpSite, place: Sequence[Value], source: Slab, to: Slab) -> None:
    """All elements of one matrix, which lie side by side."""
    start, end = source.at(*place), to.at(*place)
    size = source.dims[-2] * source.dims[-1]

    def copy(i: Value, lanes: int, mask: Value | None) -> None:
        value = site.k.load(source.buffer, start + i, lanes=lanes, mask=mask)
        site.k.store(to.buffer, end + i, value, mask=mask)

    along(site.k, site.machine, (DType.F64,), site.k.as_index(0), size, copy)


def unit_of(site: OpSite, place: Sequence[Value], slab: Slab) -> Value:
    """The power of two below the largest element of a matrix, but a normal number; inf if there is inf or NaN."""
    k = site.k
    zero = k.const(0.0, DType.F64)
    with k.fold("i", 0, slab.dims[-2], init=[zero]) as rows:
        with k.fold("j", 0, slab.dims[-1], init=[rows.values[0]]) as row:
            x = k.load(slab.buffer, slab.at(*place, rows.index, row.index))
            row.next(k.max(row.values[0], k.abs(x)))
        rows.next(row.results[0])
    bits = k.bitcast(rows.results[0], DType.I64) & EXPONENT
    return k.max(k.bitcast(bits, DType.F64), SMALLEST)
