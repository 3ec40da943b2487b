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


def _are_real(op: Op, operands: Sequence[Shape]) -> bool:
    return all(t.dtype in FLOATS for t in operands)


@op_kernel(TriangularSolve, kind="solve", supports=_are_real)
def triangular_solve(site: OpSite) -> None:
    """x[i] = (b[i] - Σ A[i, j]·x[j]) / A[i, i], over the j that are known already; from the last row up if only those
    below are. The lanes are right sides; one iteration solves for a vector of them. Sums are formed in f64."""
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
        k = self.k
        lead = self.b.dims[:-2]
        blocks = k.ceildiv(self.columns, self.lanes)
        with k.parallel("block", total(k, lead) * blocks) as block:
            place = unflatten(block // blocks, lead)
            first = block % blocks * self.lanes
            mask = k.lane_mask(self.columns - first, self.lanes) if self.lanes > 1 else None
            with k.loop("step", 0, self.size) as step:
                row = step if self.is_forward else self.size - 1 - step
                self.row(place, row, first, mask)

    def row(self, place: Sequence[Value], i: Value, first: Value, mask: Value | None) -> None:
        k = self.k
        start, stop = (k.as_index(0), i) if self.is_forward else (i + 1, self.size)
        with k.fold("j", start, stop, init=[self.load(self.b, [*place, i, first], mask)]) as fold:
            j = fold.index
            known = self.load(self.x, [*place, j, first], mask)
            fold.next(fold.values[0] - self.factor(place, i, j) * known)
        value = fold.results[0]
        if not self.op.unit_diagonal:
            value = value / self.factor(place, i, i)
        k.store(self.x.buffer, self.x.at(*place, i, first), k.cast(value, self.x.shape.dtype), mask=mask)

    def factor(self, place: Sequence[Value], i: Value, j: Value) -> Value:
        """A[i, j] of the matrix that is solved for, in all lanes."""
        index = (j, i) if self.op.transpose else (i, j)
        value = self.k.load(self.a.buffer, self.a.at(*place, *index))
        return self.k.splat(self.k.cast(value, DType.F64), self.lanes)

    def load(self, slab: Slab, index: Sequence[Value], mask: Value | None) -> Value:
        value = self.k.load(slab.buffer, slab.at(*index), lanes=self.lanes, mask=mask)
        return self.k.cast(value, DType.F64)
