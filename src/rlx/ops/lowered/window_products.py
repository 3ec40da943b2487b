"""`WindowMatMul`: convolutions of pictures whose channels lie side by side, as tensor cores take them.

The compiler writes convolutions and the gradients of their inputs in this form where there is a kernel that reads what
windows see straight from the picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_float, require_rank, require_same_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.lowered.quantized_panels import INTERNAL

__all__ = ["WindowMatMul"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("window_matmul")
class WindowMatMul(Op):
    """y[n, p, q, o] = Σ x[n, row, column, c]·w[o, (a·width + b)·C + c] over taps (a, b) of a window and channels c,
    where row·spread = p·stride + a·dilation - padding, and columns likewise; taps at which there is no such row or
    column count as zeros. x [N, H, W, C], w [O, taps·C], sums in f32 (f64 for f64)."""

    primitive = True
    lowered = True
    is_heavy = True
    jvp = INTERNAL
    vjp = INTERNAL
    batch = INTERNAL

    window: tuple[int, ...]
    result: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    spread: tuple[int, ...] = (1, 1)

    def check(self) -> None:
        for name in ("window", "result", "stride", "padding", "dilation", "spread"):
            given = self.attributes[name]
            if len(given) != 2 or min(given) < (0 if name == "padding" else 1):
                raise self.fail(f"{name} must be two positive numbers, got {given}")

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_float(self, x, w)
        require_same_dtype(self, x, w)
        require_rank(self, x, 4)
        require_rank(self, w, 2)
        taps = self.window[0] * self.window[1]
        if not w.is_static or not isinstance(x.dims[3], int) or w.dims[1] != taps * x.dims[3]:
            raise self.fail(f"needs x [N, H, W, C] and w [O, {taps}·C] with fixed channels, got {x} and {w}")
        return x.with_dims((x.dims[0], *self.result, w.dims[0]))

    def eval(self, x: Array, w: Array) -> Array:
        images, height, width, channels = x.shape
        seen = np.zeros((images, *self.result, *self.window, channels))
        for a in range(self.window[0]):
            for b in range(self.window[1]):
                rows, columns = (
                    np.arange(self.result[i]) * self.stride[i] + tap * self.dilation[i] - self.padding[i]
                    for i, tap in enumerate((a, b))
                )
                inside = [
                    (at % s == 0) & (at >= 0) & (at < size * s)
                    for at, s, size in zip((rows, columns), self.spread, (height, width))
                ]
                picked = [at[ok] // s for at, ok, s in zip((rows, columns), inside, self.spread)]
                place = np.ix_(
                    np.arange(images),
                    np.flatnonzero(inside[0]),
                    np.flatnonzero(inside[1]),
                    np.array([a]),
                    np.array([b]),
                )
                seen[place] = x[:, picked[0]][:, :, picked[1]].astype(np.float64)[:, :, :, None, None]
        with np.errstate(all="ignore"):
            found = seen.reshape(*seen.shape[:3], -1) @ w.astype(np.float64).T
        return found.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 3), (5, 4), (1, 1), (1, 1), (1, 1)), spec(2, 5, 4, 3), spec(7, 27))
        yield sample(cls((3, 2), (3, 2), (2, 3), (1, 0), (1, 2)), spec(1, 6, 7, 8), spec(9, 48))
        yield sample(cls((3, 3), (7, 8), (1, 1), (1, 1), (1, 1), (2, 2)), spec(2, 4, 4, 8), spec(8, 72))
