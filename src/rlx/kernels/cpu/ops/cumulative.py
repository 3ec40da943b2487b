"""Running sums, products, extremes and log Σ e^x.

Along the last axis the lanes of a vector are joined in log2(lanes) steps, each with what lies 1, 2, 4, .. before it;
along others the lanes are neighbouring columns. Half floats are joined in f32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.op import Op
from rlx.ir.shape import Shape, normalize_axis
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.strips import are_native, around, columns, is_one, whole_rows
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.lowered.running_from import RunningFrom
from rlx.ops.reduction.cumulative import Cumulative, CumulativeOp
from rlx.ops.reduction.reductions import ReduceOp, identity_of


def _supports(op: Op, operands: Sequence[Shape]) -> bool:
    return are_native(*operands)


@op_kernel(Cumulative, RunningFrom, kind="running", supports=_supports)
def cumulative(site: OpSite) -> None:
    running = Running(site)
    if is_one(running.sizes[2]):
        running.along_rows()
    else:
        running.along_columns()


class Running:
    """What one op joins, and how it is loaded and stored."""

    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, Cumulative | RunningFrom)
        self.site, self.k, self.op = site, site.k, site.op
        (self.x, *self.before), (self.y,) = site.inputs, site.outputs
        self.sizes = around(self.k, self.x, normalize_axis(site.op.axis, len(self.x.dims), site.op.mnemonic))
        if isinstance(site.op, RunningFrom):
            rows, length, inner = self.sizes
            self.sizes = rows * (length // site.op.part), self.k.as_index(site.op.part), inner
        self.dtype = self.x.shape.dtype
        self.wide = compute_dtype(self.dtype)

    def identity(self, lanes: int) -> Value:
        kind = self.op.kind
        value = -math.inf if kind is CumulativeOp.LogSumExp else identity_of(ReduceOp(kind.value), self.wide)
        return self.k.const(value if isinstance(value, int | float) else value.item(), ValueType(self.wide, lanes))

    def start(self, place: Value, lanes: int, mask: Value | None = None) -> Value:
        """What the sequence of a place among the other axes begins with."""
        if not self.before:
            return self.identity(lanes)
        (before,) = self.before
        return self.k.load(before.buffer, before.offset + place, lanes=lanes, mask=mask)

    def join(self, a: Value, b: Value) -> Value:
        match self.op.kind:
            case CumulativeOp.Sum:
                return a + b
            case CumulativeOp.Prod:
                return a * b
            case CumulativeOp.LogSumExp:
                return _log_add_exp(self.k, a, b)
        return self.k.op(self.op.kind.value, a, b)

    def load(self, offset: Value, lanes: int, mask: Value | None = None) -> Value:
        return self.k.cast(self.k.load(self.x.buffer, offset, lanes=lanes, mask=mask), self.wide)

    def store(self, offset: Value, value: Value, mask: Value | None = None) -> None:
        self.k.store(self.y.buffer, offset, self.k.cast(value, self.dtype), mask=mask)

    def step(self, so_far: Value, offset: Value, lanes: int, mask: Value | None = None) -> Value:
        """One element of each lane's own sequence: store what belongs there, give what comes next."""
        joined = self.join(so_far, self.load(offset, lanes, mask))
        self.store(offset, so_far if self.op.exclusive else joined, mask)
        return joined

    def along_columns(self) -> None:
        k = self.k
        _, length, inner = self.sizes

        def column(outer: Value, i: Value, lanes: int, mask: Value | None) -> None:
            base = outer * length * inner + i
            with k.fold("j", 0, length, init=[self.start(outer * inner + i, lanes, mask)]) as f:
                place = length - 1 - f.index if self.op.reverse else f.index
                f.next(self.step(f.values[0], base + place * inner, lanes, mask))

        columns(k, self.site.machine, [self.dtype, self.wide], self.sizes, column)

    def along_rows(self) -> None:
        k = self.k
        rows, length, _ = self.sizes
        lanes = self.site.machine.lanes(self.wide)
        with whole_rows(k, rows, length) as row:
            base, so_far = row * length, self.start(row, 1)
            if lanes > 1:
                so_far = self.whole_vectors(base, length, lanes, so_far)
            with k.fold("j", length // lanes * lanes, length, init=[so_far]) as f:
                place = length - 1 - f.index if self.op.reverse else f.index
                f.next(self.step(f.values[0], base + place, 1))

    def whole_vectors(self, base: Value, length: Value, lanes: int, so_far: Value) -> Value:
        k, reverse = self.k, self.op.reverse
        turned = range(lanes - 1, -1, -1) if reverse else range(lanes)
        with k.fold("v", 0, length // lanes * lanes, lanes, init=[so_far]) as f:
            offset = base + (length - lanes - f.index if reverse else f.index)
            inside = self.load(offset, lanes)
            inside = self.scan(k.shuffle(inside, turned) if reverse else inside)
            joined = self.join(k.splat(f.values[0], lanes), inside)
            if self.op.exclusive:
                stored = k.shuffle(k.splat(f.values[0], lanes), (0, *range(lanes, 2 * lanes - 1)), joined)
            else:
                stored = joined
            self.store(offset, k.shuffle(stored, turned) if reverse else stored)
            f.next(k.extract(joined, lanes - 1))
        return f.results[0]

    def scan(self, vector: Value) -> Value:
        """Every lane joined with all lanes before it."""
        lanes, step = vector.lanes, 1
        while step < lanes:
            before = self.k.shuffle(self.identity(lanes), (*range(step), *range(lanes, 2 * lanes - step)), vector)
            vector = self.join(before, vector)
            step *= 2
        return vector


def _log_add_exp(k: KernelBuilder, a: Value, b: Value) -> Value:
    """log(e^a + e^b) = max + log1p(e^-|a - b|); equal infinities have no difference."""
    larger = k.max(a, b)
    apart = larger + k.op("log1p", k.op("exp", -k.abs(a - b)))
    return k.select(k.eq(a, b), larger + math.log(2.0), apart)
