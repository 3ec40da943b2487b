"""Pooling over spatial windows of [N, C, spatial..], and the gradient of max pooling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import promote_inexact, require_float, require_same_dtype, same_graph
from rlx.ops.define.rules import batch_by_folding
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor
from rlx.ops.nn.sliding_windows import WindowOp, per_axis, seen_by_windows, window_tensor
from rlx.ops.pointwise.arithmetic import floordiv, rem, where
from rlx.ops.reduction.reductions import JOIN, ReduceOp, identity_of, require_reducible, widened
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.shape.indexing import GatherNd, IndexMode, ScatterKind, ScatterNd

__all__ = ["MaxPool2dBackward", "Pool", "maxpool2d_backward", "pool"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("pool")
class Pool(WindowOp):
    """y[n, c, p..] = the window of x at p·stride - padding joined by `kind`; (size + 2·padding - kernel)//stride + 1.

    Max and Min ignore the padding, Sum and Prod read 0 and 1 there; Mean divides by the window's size always.
    """

    precision_class = "data_movement"

    kind: ReduceOp
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def infer(self, x: Shape) -> Shape:
        require_reducible(self, self.kind, x)
        self.require_images("x", x)
        return x.with_dims((*x.dims[:2], *self.output_sizes(x.dims[2:])))

    @np.errstate(all="ignore")
    def eval(self, x: Array) -> Array:
        kind = ReduceOp.Sum if self.kind is ReduceOp.Mean else self.kind
        seen = seen_by_windows(self, widened(x), identity_of(kind, DType.of(x.dtype)))
        joined = JOIN[kind].reduce(seen, axis=tuple(range(-self.spatial_rank, 0)), dtype=seen.dtype)
        if self.kind is ReduceOp.Mean:
            joined = joined / math.prod(self.kernel_size)
        return rounded(joined, x.dtype)

    def decompose(self, x: Any) -> Any:
        return self._reduction(x)

    @property
    def _reduction(self) -> ReduceWindow:
        amounts = (0, 0, *self.padding)
        window, stride = (1, 1, *self.kernel_size), (1, 1, *self.stride)
        return ReduceWindow(self.kind, window, stride, amounts, amounts, (1,) * len(window))

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        if self.kind in (ReduceOp.Max, ReduceOp.Min):
            return self._backward.read_winners(self._largest_wins(primals[0]), tangents[0])
        return self._reduction.jvp(primals, tangents, y)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        if self.kind in (ReduceOp.Max, ReduceOp.Min):
            return self._backward(self._largest_wins(x), ct)
        return self._reduction.vjp(ct, y, x)

    @property
    def _backward(self) -> MaxPool2dBackward:
        return MaxPool2dBackward(self.kernel_size, self.stride, self.padding)

    def _largest_wins(self, x: Any) -> Any:
        """x, or its negative where the smallest element of a window is chosen."""
        return -x if self.kind is ReduceOp.Min else x

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = spec(2, 2, 4, 5, distinct=True)
        for kind in (ReduceOp.Max, ReduceOp.Mean, ReduceOp.Sum, ReduceOp.Min, ReduceOp.Prod):
            dtypes = FLOATS if kind is ReduceOp.Mean else (*FLOATS, *INTS)
            yield sample(cls(kind, (2, 3), (2, 1), (0, 0)), x, dtypes=dtypes)
            yield sample(cls(kind, (3, 2), (1, 2), (1, 1)), x)
        yield sample(cls("max", (2,), (2,), (0,)), spec(1, 2, 5))
        yield sample(cls("mean", (2, 1, 2), (1, 1, 1), (0, 0, 1)), spec(1, 1, 3, 2, 2))
        yield sample(cls("max", (2, 2), (2, 2), (1, 0)), spec("N", 2, "H", 4), N=2, H=3)
        yield sample(cls("mean", (2, 2), (2, 2), (0, 0)), spec(0, 2, 4, 4))


@op("maxpool2d_backward")
class MaxPool2dBackward(WindowOp):
    """dx of max pooling: every dy is added at the first largest element of its window, in row-major order.

    A window whose largest value is -inf or NaN passes nothing on. Any number of spatial axes; operands x, dy.
    """

    precision_class = "data_movement"

    def infer(self, x: Shape, dy: Shape) -> Shape:
        require_float(self, x, dy)
        require_same_dtype(self, x, dy)
        self.require_images("x", x)
        wanted = (*x.dims[:2], *self.output_sizes(x.dims[2:]))
        if dy.rank != x.rank or not all(require_equal(a, b, self.name) for a, b in zip(dy.dims, wanted)):
            raise self.fail(f"x {x} asks for dy {dy.with_dims(wanted)}, got {dy}")
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array, dy: Array) -> Array:
        wide, upstream = as_f64(x, dy)
        seen = seen_by_windows(self, wide, -np.inf)
        seen = seen.reshape(*dy.shape, math.prod(self.kernel_size))
        highest = seen.max(axis=-1, keepdims=True)
        hits = (seen == highest) & (highest > -np.inf)
        first = hits & (np.cumsum(hits, axis=-1) == 1)
        padded = np.zeros((*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], self.padding))))
        for i, tap in enumerate(self.taps()):
            target = (slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(tap, dy.shape[2:], self.stride))
            padded[(slice(None), slice(None), *target)] += np.where(first[..., i], upstream, 0.0)
        inside = (slice(p, p + n) for p, n in zip(self.padding, x.shape[2:]))
        return rounded(padded[(slice(None), slice(None), *inside)], x.dtype)

    def decompose(self, x: Any, dy: Any) -> Any:
        from rlx.ops.shape.creation import zeros

        places, found = self._winners(x)
        (upstream,) = accumulators(dy)
        with same_graph(x):
            blank = zeros(x.shape, upstream.dtype)
        scatter = ScatterNd(ScatterKind.Add, self.spatial_axes, 2, IndexMode.Drop)
        return rounded_tensor(scatter(blank, places, where(found, upstream, 0.0)), x.dtype)

    def _winners(self, x: Any) -> tuple[Any, Any]:
        """Where the first largest element of each window lies, [N, C, out.., spatial axes], and whether it counts."""
        from rlx.ops.reduction.reductions import argmax, reduce_max
        from rlx.ops.shape.creation import iota
        from rlx.ops.shape.movement import reshape, stack

        windows = window_tensor(self, x, -math.inf)
        outs = windows.shape[: -self.spatial_rank]
        windows = reshape(windows, (*outs, math.prod(self.kernel_size)))
        tap = argmax(windows, -1)
        coordinates = []
        with same_graph(x):
            for axis in reversed(range(self.spatial_rank)):
                start = iota(outs, DType.I32, 2 + axis) * self.stride[axis] - self.padding[axis]
                coordinates.append(start + rem(tap, self.kernel_size[axis]))
                tap = floordiv(tap, self.kernel_size[axis])
        return stack(coordinates[::-1], -1), reduce_max(windows, (-1,)) > -math.inf

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        # Small changes of x do not move the largest elements.
        return None if tangents[1] is None else self(primals[0], tangents[1])

    def vjp(self, ct: Any, y: Any, x: Any, dy: Any) -> Any:
        return None, self.read_winners(x, ct)

    def read_winners(self, x: Any, t: Any) -> Any:
        """For each window, t at the largest element of x: the adjoint of this op, and the tangent of max pooling."""
        places, found = self._winners(x)
        return where(found, GatherNd(self.spatial_axes, 2, IndexMode.Clip)(t, places), 0.0)

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((2, 2), (2, 2), (0, 0)), spec(2, 2, 4, 5, distinct=True), spec(2, 2, 2, 2))
        yield sample(cls((3, 2), (1, 2), (1, 1)), spec(1, 2, 4, 4, distinct=True), spec(1, 2, 4, 3))
        yield sample(cls((2,), (1,), (0,)), spec(1, 1, 5, values=[[[1.0, 1.5, 0.0, 2.0, 2.5]]]), spec(1, 1, 4))
        yield sample(
            cls((2,), (2,), (1,)), spec("N", 2, "L", distinct=True), spec("N", 2, "floordiv(L, 2) + 1"), N=2, L=4
        )


def pool(
    x: Any,
    kind: ReduceOp | str,
    kernel_size: Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
) -> Any:
    """Windows of x [N, C, spatial..] joined by `kind`; the stride is the window's size unless given. See `Pool`."""
    rank = len(kernel_size)
    steps = tuple(kernel_size) if stride is None else per_axis(stride, rank)
    if ReduceOp(kind) is ReduceOp.Mean:
        (x,) = promote_inexact(x)
    return Pool(ReduceOp(kind), tuple(kernel_size), steps, per_axis(padding, rank))(x)


def maxpool2d_backward(
    x: Any,
    dy: Any,
    kernel_size: Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
) -> Any:
    """The gradient of max pooling with respect to x."""
    rank = len(kernel_size)
    steps = tuple(kernel_size) if stride is None else per_axis(stride, rank)
    return MaxPool2dBackward(tuple(kernel_size), steps, per_axis(padding, rank))(*promote_inexact(x, dy))
