"""`WindowGradient` and `PixelMatMul`: gradients of a convolution's weights as tensor cores take them.

Both sum over all pixels of all pictures. So long sums are cut into parts, which are added up afterwards, always in the
same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_float, require_rank, require_same_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.lowered.lowered_product import LoweredProduct
from rlx.ops.lowered.window_products import Array, seen_by_taps

__all__ = ["PIECE", "PixelMatMul", "WindowGradient"]

# Pixels of which a part of a picture is made up: what tensor cores sum in one step.
PIECE = 64


def sum_dtype(dtype: DType) -> DType:
    """The type of sums."""
    return DType.F64 if dtype is DType.F64 else DType.F32


def parts_of(length: int, run: int) -> int:
    return -(-length // run)


class _Parts(LoweredProduct):
    """Sums over pixels, in parts."""

    def require(self, rank: int, x: Shape, dy: Shape) -> None:
        require_float(self, x, dy)
        require_same_dtype(self, x, dy)
        for shape in (x, dy):
            require_rank(self, shape, rank)
            if not shape.is_static or 0 in shape.dims:
                raise self.fail(f"needs fixed sizes above 0, got {shape}")

    def summed(self, a: Array, b: Array, run: int) -> Array:
        """a[t, m]·b[t, n], summed over every run of t."""
        with np.errstate(all="ignore"):
            parts = [a[i : i + run].T @ b[i : i + run].astype(np.float64) for i in range(0, len(a), run)]
            return np.stack(parts).astype(np.float64 if b.dtype == np.float64 else np.float32)


@op("window_gradient")
class WindowGradient(_Parts):
    """y[s, (a·width + b)·C + c, o] = Σ x[n, p·stride + a·dilation - padding, .., c]·dy[n, p, q, o] over the pixels
    (n, p, q) of part s, `run` of all in their order; x [N, H, W, C] counts as zero outside, dy [N, P, Q, O], sums in
    f32 (f64 for f64)."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    run: int

    def check(self) -> None:
        for name in ("window", "stride", "padding", "dilation"):
            given = self.attributes[name]
            if len(given) != 2 or min(given) < (0 if name == "padding" else 1):
                raise self.fail(f"{name} must be two positive numbers, got {given}")
        if self.run < 1:
            raise self.fail(f"run must be positive, got {self.run}")

    def infer(self, x: Shape, dy: Shape) -> Shape:
        self.require(4, x, dy)
        images, *result, filters = dy.static_dims
        if images != x.dims[0]:
            raise self.fail(f"needs as many pictures in x and dy, got {x} and {dy}")
        rows = self.window[0] * self.window[1] * x.static_dims[3]
        parts = parts_of(images * result[0] * result[1], self.run)
        return Shape((parts, rows, filters), sum_dtype(x.dtype))

    def eval(self, x: Array, dy: Array) -> Array:
        seen = seen_by_taps(x, self.window, dy.shape[1:3], self.stride, self.padding, self.dilation)
        pixels = dy.shape[0] * dy.shape[1] * dy.shape[2]
        return self.summed(seen.reshape(pixels, -1), dy.reshape(pixels, -1), self.run)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 3), (1, 1), (1, 1), (1, 1), 17), spec(2, 5, 4, 3), spec(2, 5, 4, 7))
        yield sample(cls((3, 2), (2, 3), (1, 0), (1, 2), 64), spec(1, 6, 7, 8), spec(1, 3, 2, 9))


@op("pixel_matmul")
class PixelMatMul(_Parts):
    """y[s, c, o] = Σ x[n, c, p]·dy[n, o, p] over the pixels of part s; x [N, C, P], dy [N, O, P], sums in f32 (f64 for
    f64). Every picture is cut into pieces of 64 pixels, the last of which may have fewer; a part is `run` pieces of all
    pictures in their order."""

    run: int

    def check(self) -> None:
        if self.run < 1:
            raise self.fail(f"run must be positive, got {self.run}")

    def infer(self, x: Shape, dy: Shape) -> Shape:
        self.require(3, x, dy)
        if (x.dims[0], x.dims[2]) != (dy.dims[0], dy.dims[2]):
            raise self.fail(f"needs as many pictures and pixels in x and dy, got {x} and {dy}")
        parts = parts_of(x.static_dims[0] * parts_of(x.static_dims[2], PIECE), self.run)
        return Shape((parts, x.dims[1], dy.dims[1]), sum_dtype(x.dtype))

    def eval(self, x: Array, dy: Array) -> Array:
        missing = -x.shape[2] % PIECE
        whole = [np.pad(a, ((0, 0), (0, 0), (0, missing))) for a in (x, dy)]
        rows: list[Any] = [a.transpose(0, 2, 1).reshape(-1, a.shape[1]) for a in whole]
        return self.summed(rows[0].astype(np.float64), rows[1], self.run * PIECE)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2), spec(3, 5, 7), spec(3, 4, 7))
        yield sample(cls(3), spec(2, 3, 150), spec(2, 4, 150))
