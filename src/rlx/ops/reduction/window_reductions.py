"""Reductions over sliding windows: the primitive behind pooling."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import dim_max, require_at_most
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op_family
from rlx.ir.shape import Dims, Shape, Size
from rlx.ops.define.operands import dims_of
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.define.widening import accumulators, rounded, rounded_tensor
from rlx.ops.pointwise.arithmetic import and_, eq, or_
from rlx.ops.pointwise.bits import not_
from rlx.ops.pointwise.complex_numbers import conjugate
from rlx.ops.pointwise.conversion import cast
from rlx.ops.reduction.reductions import JOIN, ReduceOp, identity_of, require_reducible, widened
from rlx.ops.shape.creation import ones_like
from rlx.ops.shape.movement import pad, slice_

__all__ = ["ReduceWindow", "reduce_window"]

Array = np.ndarray[Any, np.dtype[Any]]


@op_family(ReduceOp, prefix="reduce_window_")
class ReduceWindow(Op):
    """y[i] = the join of x[i·stride + j·dilation - low] over 0 <= j < window, on every axis at once.

    Positions outside x (`low` before and `high` after it) hold the identity of the join, so Max ignores them. Mean is
    the sum divided by the number of window elements, outside positions included. One entry per axis in each attribute.
    """

    precision_class = "reduction"

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
        around = self.low[axis] + self.high[axis]
        if x.dims[axis] == 0:
            return max(around - span, -1) // self.stride[axis] + 1
        # Where one element and its padding are room enough, the formula below is right for an empty axis too.
        if span > 1 + around and not require_at_most(span, x.dims[axis] + around, self.mnemonic):
            raise self.fail(f"a window that spans {span} does not fit into axis {axis} of {x} with its padding")
        return (x.dims[axis] + around - span) // self.stride[axis] + 1

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

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        (x,), (t,) = primals, tangents
        if self.kind in (ReduceOp.Sum, ReduceOp.Mean):
            return self(t)
        if 0 in y.shape:
            return None
        wide, pushed = accumulators(x, t)
        for step in self._axis_by_axis():
            joined = step(wide)
            wide, pushed = joined, step._push(wide, pushed, joined)
        return rounded_tensor(pushed, x.dtype)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        if 0 in y.shape:
            return (None,)
        wide, pulled = accumulators(x, ct)
        if self.kind in (ReduceOp.Sum, ReduceOp.Mean):
            share = pulled if self.kind is ReduceOp.Sum else pulled * (1.0 / math.prod(self.window))
            return (rounded_tensor(self._add_back(share, x), x.dtype),)
        steps = self._axis_by_axis()
        values = [wide]
        for step in steps:
            values.append(step(values[-1]))
        for i in reversed(range(len(steps))):
            pulled = steps[i]._pull(values[i], pulled, values[i + 1])
        return (rounded_tensor(pulled, x.dtype),)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        window, stride, dilation = ((1, *v) for v in (self.window, self.stride, self.dilation))
        return ReduceWindow(self.kind, window, stride, (0, *self.low), (0, *self.high), dilation)(*operands)

    def _add_back(self, ct: Any, x: Any) -> Any:
        """The transpose of window sums: every element collects the windows that hold it, by window sums of ct."""
        reach = [(n - 1) * d for n, d in zip(self.window, self.dilation)]
        low = [r - before for r, before in zip(reach, self.low)]
        spread = self._placed(ct, low, [n + r for n, r in zip(x.shape, reach)])
        return reduce_window(spread, ReduceOp.Sum, self.window, dilation=self.dilation)

    def _axis_by_axis(self) -> list[ReduceWindow]:
        """The same join, of Max, Min or Prod, as a chain of joins along one axis each, the last axis first.

        So the derivative tells apart as many taps as the sum of the window's sizes, not as their product; and of
        equals the first in row-major order wins.
        """
        chain = []
        for axis in reversed(range(len(self.window))):
            here = [i == axis for i in range(len(self.window))]
            window, stride, dilation = (
                tuple(n if on else 1 for n, on in zip(sizes, here))
                for sizes in (self.window, self.stride, self.dilation)
            )
            low, high = (tuple(n if on else 0 for n, on in zip(sizes, here)) for sizes in (self.low, self.high))
            if any(n != 1 for n in (*window, *stride)) or any((*low, *high)):
                chain.append(ReduceWindow(self.kind, window, stride, low, high, dilation))
        return chain

    def _push(self, x: Any, t: Any, y: Any) -> Any:
        """The tangent of y, for windows along one axis."""
        terms = [slope * seen for slope, seen in zip(self._slopes(x, y), self._seen_by_taps(t, 0, y.shape))]
        return functools.reduce(operator.add, terms)

    def _pull(self, x: Any, ct: Any, y: Any) -> Any:
        """The cotangent of x, for windows along one axis."""
        terms = []
        for start, slope in zip(self._taps(), self._slopes(x, y)):
            low = [a - before for a, before in zip(start, self.low)]
            terms.append(self._placed(ct * conjugate(slope), low, x.shape))
        return functools.reduce(operator.add, terms)

    def _slopes(self, x: Any, y: Any) -> list[Any]:
        """The derivative of y by what each tap sees."""
        seen = self._seen_by_taps(x, identity_of(self.kind, x.dtype), y.shape)
        if self.kind is ReduceOp.Prod:
            before = list(itertools.accumulate(seen[:-1], operator.mul, initial=ones_like(y)))
            after = list(itertools.accumulate(seen[:0:-1], operator.mul, initial=ones_like(y)))
            return [a * b for a, b in zip(before, reversed(after))]
        slopes, taken = [], None
        for value in seen:
            hit = eq(value, y)
            first = hit if taken is None else and_(hit, not_(taken))
            taken = hit if taken is None else or_(hit, taken)
            slopes.append(cast(first, x.dtype))
        return slopes

    def _taps(self) -> Iterator[tuple[int, ...]]:
        """Positions of the taps relative to the start of the window, in row-major order."""
        return itertools.product(*(range(0, n * d, d) for n, d in zip(self.window, self.dilation)))

    def _seen_by_taps(self, x: Any, outside: Any, dims: Dims) -> list[Any]:
        """For each tap, what it sees of x with `outside` around it: one value per window."""
        if any((*self.low, *self.high)):
            x = pad(x, outside, low=self.low, high=self.high)
        return [
            slice_(x, start, [a + (n - 1) * s + 1 for a, n, s in zip(start, dims, self.stride)], self.stride)
            for start in self._taps()
        ]

    def _placed(self, y: Any, low: Sequence[int], dims: Dims | list[Size]) -> Any:
        """One value per window moved to where a tap sees it: y[i] at i·stride + low in zeros of the given dims."""
        lengths = [n + (s - 1) * dim_max(n - 1, 0) for n, s in zip(y.shape, self.stride)]
        high = [n - length - before for n, length, before in zip(dims, lengths, low)]
        return pad(y, 0, low, high, [s - 1 for s in self.stride])

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
