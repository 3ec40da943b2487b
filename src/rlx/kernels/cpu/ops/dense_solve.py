"""Triangular systems by substitution; `factorize` has what makes other systems triangular."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.windows import lane_count
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, Value
from rlx.ops.linalg.solve import TriangularSolve

# What a register tile has: rows of the matrix, and vectors of right sides.
ROWS, VECTORS = 4, 4


def _are_real(op: Op, operands: Sequence[Shape]) -> bool:
    return all(t.dtype in FLOATS for t in operands)


@op_kernel(TriangularSolve, kind="solve", supports=_are_real)
def triangular_solve(site: OpSite) -> None:
    """x[i] = (b[i] - Σ A[i, j]·x[j]) / A[i, i], over the j that are known already; from the last row up if only those
    below are. The lanes are right sides; one iteration solves for some vectors of them. Sums are formed in f64."""
    _Substitution(site).build()


class _Substitution:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, TriangularSolve)
        self.k, self.op = site.k, site.op
        (self.a, self.b), (self.x,) = site.inputs, site.outputs
        self.size, self.columns = self.b.dims[-2:]
        self.lanes = lane_count(site.machine.lanes(DType.F64), self.b.shape.dims[-1])
        # Row i of the matrix that is solved for reads x above the diagonal, or below it.
        self.is_forward = site.op.lower != site.op.transpose

    def build(self) -> None:
        """Blocks of several vectors, and for the last columns of single ones."""
        k = self.k
        lead = self.b.dims[:-2]
        width = VECTORS * self.lanes if self.lanes > 1 else 1
        blocks = k.ceildiv(self.columns, width)
        with k.parallel("block", total(k, lead) * blocks) as block:
            self.place = unflatten(block // blocks, lead)
            first = block % blocks * width
            if self.lanes == 1:
                self.solve([first], None)
                return
            with k.when(first + width <= self.columns):
                self.solve([first + v * self.lanes for v in range(VECTORS)], None)
            with k.otherwise(), k.loop("vector", first, self.columns, self.lanes) as at:
                self.solve([at], k.lane_mask(self.columns - at, self.lanes))

    def solve(self, firsts: Sequence[Value], mask: Value | None) -> None:
        """Some rows at a time, so that what is known is read once for all of them; then those that are left."""
        k = self.k
        groups = self.size // ROWS
        with k.loop("group", 0, groups) as group:
            start = group * ROWS if self.is_forward else self.size - (group + 1) * ROWS
            self.rows([start + r for r in range(ROWS)], firsts, mask)
        with k.loop("rest", groups * ROWS, self.size) as rest:
            self.rows([rest if self.is_forward else self.size - 1 - rest], firsts, mask)

    def rows(self, rows: list[Value], firsts: Sequence[Value], mask: Value | None) -> None:
        k = self.k
        start, stop = (k.as_index(0), rows[0]) if self.is_forward else (rows[-1] + 1, self.size)
        sums = [x for i in rows for x in self.load(self.b, i, firsts, mask)]
        width = len(firsts)
        with k.fold("j", start, stop, init=sums) as fold:
            known = self.load(self.x, fold.index, firsts, mask)
            after = []
            for r, i in enumerate(rows):
                factor = self.factor(i, fold.index)
                after += [s - factor * x for s, x in zip(fold.values[r * width : (r + 1) * width], known)]
            fold.next(*after)
        found: dict[int, list[Value]] = {}
        order = range(len(rows)) if self.is_forward else reversed(range(len(rows)))
        for r in order:
            values = list(fold.results[r * width : (r + 1) * width])
            for other, xs in found.items():
                factor = self.factor(rows[r], rows[other])
                values = [value - factor * x for value, x in zip(values, xs)]
            if not self.op.unit_diagonal:
                head = self.factor(rows[r], rows[r])
                values = [value / head for value in values]
            found[r] = values
            place = self.x.at(*self.place, rows[r])
            for c, value in zip(firsts, values):
                k.store(self.x.buffer, place + c, k.cast(value, self.x.shape.dtype), mask=mask)

    def factor(self, i: Value, j: Value) -> Value:
        """A[i, j] of the matrix that is solved for, in all lanes."""
        index = (j, i) if self.op.transpose else (i, j)
        value = self.k.load(self.a.buffer, self.a.at(*self.place, *index))
        return self.k.splat(self.k.cast(value, DType.F64), self.lanes)

    def load(self, slab: Slab, row: Value, firsts: Sequence[Value], mask: Value | None) -> list[Value]:
        place = slab.at(*self.place, row)
        values = [self.k.load(slab.buffer, place + c, lanes=self.lanes, mask=mask) for c in firsts]
        return [self.k.cast(value, DType.F64) for value in values]
