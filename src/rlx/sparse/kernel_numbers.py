"""Numbers in the kernels of rlx.sparse: one value, or the two parts of a complex one, and how they lie in memory.

In memory a complex number is its real part, then its imaginary part; kernels see a buffer of these parts.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import Slab
from rlx.kernels.cpu.ops.numbers import Number as Number
from rlx.kernels.cpu.ops.numbers import add as add
from rlx.kernels.cpu.ops.numbers import choose as choose
from rlx.kernels.cpu.ops.numbers import conjugate as conjugate
from rlx.kernels.cpu.ops.numbers import divide as divide
from rlx.kernels.cpu.ops.numbers import multiply_add as multiply_add
from rlx.kernels.cpu.ops.numbers import multiply_subtract as multiply_subtract
from rlx.kernels.cpu.ops.numbers import splat as splat
from rlx.kernels.cpu.ops.numbers import square as square
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Const, Value


def zero(k: KernelBuilder, slab: Slab, lanes: int = 1) -> Number:
    """A zero of the type of what lies in a slab."""
    parts = 2 if slab.shape.dtype.is_complex else 1
    return (k.splat(k.const(0.0, slab.buffer.dtype), lanes),) * parts


def load(k: KernelBuilder, slab: Slab, place: Value, lanes: int = 1, mask: Value | None = None) -> Number:
    """The number at an element offset, or `lanes` neighbours from there on."""
    if not slab.shape.dtype.is_complex:
        return (k.load(slab.buffer, place, lanes=lanes, mask=mask),)
    first = place * 2
    return tuple(k.load(slab.buffer, first + part, lanes=lanes, stride=2, mask=mask) for part in (0, 1))


def store(k: KernelBuilder, slab: Slab, place: Value, number: Number, mask: Value | None = None) -> None:
    if len(number) == 1:
        k.store(slab.buffer, place, number[0], mask=mask)
        return
    for part, value in enumerate(number):
        k.store(slab.buffer, place * 2 + part, value, stride=2, mask=mask)


def position(k: KernelBuilder, slab: Slab, place: Value) -> Value:
    """An index that lies in memory, as an i64."""
    return k.cast(k.load(slab.buffer, slab.offset + place), DType.I64)


class Pattern:
    """The rows of a matrix in compressed rows, as a kernel reads them: bounds are cut to the entries there are."""

    def __init__(self, k: KernelBuilder, indices: Slab, indptr: Slab) -> None:
        self.k, self.indices, self.indptr = k, indices, indptr
        self.count = indices.dims[0]
        self.rows = indptr.dims[0] - 1

    def span(self, row: Value) -> tuple[Value, Value]:
        """Where the entries of a row begin and end, which is not before they begin."""
        start = self.bound(row)
        return start, self.k.max(start, self.bound(row + 1))

    def bound(self, row: Value) -> Value:
        k = self.k
        return k.max(0, k.min(position(k, self.indptr, row), self.count))

    def column(self, entry: Value) -> Value:
        """The column of an entry, which may be anything."""
        return position(self.k, self.indices, entry)

    def selects_from(self, size: Value) -> Callable[[Value], Value]:
        """The column of an entry, as a function that finds a place on an axis of `size` > 0: the last one, where it is
        out of range. Of numbers without sign the negative ones are the largest, so one comparison is enough."""
        k = self.k
        most = 2**32 - 1 if self.unsigned_dtype is DType.U32 else 2**63 - 1
        last = k.cast(k.min(size - 1, most), self.unsigned_dtype)
        return lambda entry: k.cast(k.min(self.unsigned(entry), last), DType.I64)

    def unsigned(self, entry: Value) -> Value:
        """The column of an entry as a number without sign, of the width that it has in memory."""
        return self.k.bitcast(self.k.load(self.indices.buffer, self.indices.offset + entry), self.unsigned_dtype)

    @property
    def unsigned_dtype(self) -> DType:
        return DType.U32 if self.indices.buffer.dtype is DType.I32 else DType.U64

    def readable(self, row: Value, size: Value) -> tuple[Value, Value]:
        """The entries of a row; none, where there is nothing that a column could select."""
        start, stop = self.span(row)
        return start, self.up_to(start, stop, size)

    def up_to(self, start: Value, stop: Value, size: Value) -> Value:
        """The end of a row, which is its start where there is nothing that a column could select."""
        return stop if isinstance(size, Const) and size.literal > 0 else self.k.select(size > 0, stop, start)

    def first_row(self, work: Value) -> Value:
        """The first row before which there is that much work, a row being one more than its entries.

        So a chunk of work is a run of whole rows: its place depends on the matrix alone, and a row with many entries
        is not followed by others.
        """
        k = self.k
        steps = int(self.rows.literal).bit_length() + 1 if isinstance(self.rows, Const) else 40
        with k.fold("probe", 0, steps, init=[k.as_index(0), self.rows]) as fold:
            low, length = fold.values
            half = length // 2
            middle = low + half
            is_before = (length > 0) & (position(k, self.indptr, middle) + middle < work)
            fold.next(k.select(is_before, middle + 1, low), k.select(is_before, length - half - 1, k.min(half, length)))
        return fold.results[0]


def merged(
    k: KernelBuilder,
    patterns: tuple[Pattern, Pattern],
    spans: tuple[tuple[Value, Value], tuple[Value, Value]],
    init: Number,
    meet: Callable[[Value, Value, Number], Number],
) -> Number:
    """Walk through two runs of entries by column, each step in the one that is behind; `meet` gets two entries with one
    column and the number that is carried along, and gives what this becomes."""
    (first, first_end), (second, second_end) = spans
    steps = k.max(0, first_end - first) + k.max(0, second_end - second)
    with k.fold("step", 0, steps, init=[first, second, *init]) as fold:
        i, j, carried = fold.values[0], fold.values[1], fold.values[2:]
        both = (i < first_end) & (j < second_end)
        nowhere = k.as_index(0)
        here, there = k.choose(both, lambda: (patterns[0].column(i), patterns[1].column(j)), lambda: (nowhere, nowhere))
        moved = k.choose(both & k.eq(here, there), lambda: meet(i, j, carried), lambda: carried)
        fold.next(k.select(both & (here <= there), i + 1, i), k.select(both & (there <= here), j + 1, j), *moved)
    return fold.results[2:]
