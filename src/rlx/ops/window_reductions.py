"""Reductions over sliding windows: the primitive behind pooling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import Op, op_family
from rlx.ir.shape import Shape, Size
from rlx.ops.operands import dims_of
from rlx.ops.reductions import JOIN, ReduceOp, identity_of, require_reducible, widened
from rlx.ops.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.widening import accumulators, rounded, rounded_tensor

__all__ = ["ReduceWindow", "reduce_window"]

Array = np.ndarray[Any, np.dtype[Any]]


@op_family(ReduceOp, prefix="reduce_window_")
class ReduceWindow(Op):
    """y[i] = the join of x[i·stride + j·dilation - low] over 0 <= j < window, on every axis at once.

    Positions outside x (`low` before and `high` after it) hold the identity of the join, so Max ignores them. Mean is
    the sum divided by the number of window elements, outside positions included. One entry per axis in each attribute.
    """

    kind: ReduceOp
    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def is_primitive(self) -> bool:
        return self.kind is not ReduceOp.Mean

    def check(self) -> None:
        lengths = {len(v) for v in (self.window, self.stride, self.low, self.high, self.dilation)}
        if len(lengths) != 1:
            raise self.fail(f"window, stride, low, high and dilation need one length, got {sorted(lengths)}")
        if min((*self.window, *self.stride, *self.dilation), default=1) < 1:
            raise self.fail(
                f"windows, strides and dilations are at least 1, got {self.window}, {self.stride}, {self.dilation}"
            )
        if min((*self.low, *self.high), default=0) < 0:
            raise self.fail(f"padding cannot be negative, got low={self.low} and high={self.high}; slice x instead")

    def infer(self, x: Shape) -> Shape:
        if x.rank != len(self.window):
            raise self.fail(f"the window has {len(self.window)} axes, but x is {x}; use 1 where nothing is joined")
        require_reducible(self, self.kind, x)
        return x.with_dims(self._positions(x, axis) for axis in range(x.rank))

    def _positions(self, x: Shape, axis: int) -> Size:
        span = (self.window[axis] - 1) * self.dilation[axis] + 1
        room = x.dims[axis] + self.low[axis] + self.high[axis] - span
        if isinstance(room, int) and room < 0:
            if x.dims[axis] == 0:
                return 0
            raise self.fail(f"a window that spans {span} does not fit into axis {axis} of {x} with its padding")
        return room // self.stride[axis] + 1

    @np.errstate(all="ignore")
    def eval(self, x: Array) -> Array:
        kind = ReduceOp.Sum if self.kind is ReduceOp.Mean else self.kind
        dims = self.infer(Shape(x.shape, DType.of(x.dtype))).static_dims
        wide = widened(x)
        identity = np.asarray(identity_of(kind, DType.of(x.dtype))).astype(wide.dtype)
        padded = np.pad(wide, list(zip(self.low, self.high)), constant_values=identity) if x.ndim else wide
        result = np.full(dims, identity)
        for offset in np.ndindex(*self.window):
            # The elements that all windows hold at this offset.
            starts = [o * d for o, d in zip(offset, self.dilation)]
            stops = [a + max(n - 1, 0) * s + min(n, 1) for a, n, s in zip(starts, dims, self.stride)]
            taken = padded[tuple(map(slice, starts, stops, self.stride))]
            result = JOIN[kind](result, taken)
        if self.kind is ReduceOp.Mean:
            result = result / math.prod(self.window)
        return rounded(result, x.dtype)

    def decompose(self, x: Any) -> Any:
        """The mean from a sum in the accumulator type."""
        (wide,) = accumulators(x)
        total = self.replace(kind=ReduceOp.Sum)(wide)
        return rounded_tensor(total * (1.0 / math.prod(self.window)), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in ReduceOp:
            dtypes = ("bool",) if kind in (ReduceOp.Any, ReduceOp.All) else FLOATS
            distinct = kind in (ReduceOp.Max, ReduceOp.Min)
            yield sample(cls(kind, (3,), (1,), (0,), (0,), (1,)), spec(6, distinct=distinct), dtypes=dtypes)
            yield sample(
                cls(kind, (1, 2, 3), (1, 2, 1), (0, 1, 0), (0, 0, 2), (1, 1, 2)),
                spec(2, 4, 5, distinct=distinct),
                dtypes=dtypes,
            )
            yield sample(cls(kind, (1, 2), (1, 2), (0, 0), (0, 0), (1, 1)), spec("B", 6), dtypes=dtypes, B=2)
        for kind in (ReduceOp.Sum, ReduceOp.Max, ReduceOp.Min, ReduceOp.Prod):
            yield sample(cls(kind, (2, 2), (1, 1), (1, 0), (0, 1), (1, 1)), spec(3, 3), dtypes=INTS)
        yield sample(cls("max", (2,), (2,), (0,), (1,), (1,)), spec("S"), S=5)
        yield sample(cls("sum", (1, 2), (1, 1), (0, 0), (0, 0), (1, 1)), spec(0, 3))
        yield sample(cls("max", (3,), (2,), (0,), (0,), (1,)), spec(0))
        yield sample(cls("sum", (), (), (), (), ()), spec())
        yield sample(cls("sum", (3,), (1,), (2,), (2,), (1,)), spec(4), dtypes=("c64",))


def reduce_window(
    x: Any,
    kind: ReduceOp | str,
    window: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[tuple[int, int]] | None = None,
    dilation: Sequence[int] | None = None,
) -> Any:
    """Sliding windows of x joined by `kind`; one entry per axis of x, padding as (low, high) pairs.

    >>> print(reduce_window(np.array([1, 5, 2, 4]), "max", (2,), stride=(2,)))
    [5 4]
    """
    rank = len(dims_of(x))
    low, high = zip(*padding) if padding else ((0,) * rank, (0,) * rank)
    ones = (1,) * rank
    return ReduceWindow(ReduceOp(kind), tuple(window), stride or ones, low, high, dilation or ones)(x)
