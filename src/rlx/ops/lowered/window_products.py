"""Convolutions of pictures whose channels lie side by side: `WindowMatMul` of all channels, as tensor cores take them,
`WindowProduct` of the same with weights that are known before, and `ChannelWindows` of every channel by itself.

The compiler writes convolutions and the gradients of their inputs in this form where there is a kernel that reads what
windows see straight from the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_float, require_rank, require_same_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.lowered.lowered_product import LoweredProduct

__all__ = ["ChannelWindows", "WindowMatMul", "WindowProduct"]

Array = np.ndarray[Any, np.dtype[Any]]


def seen_by_taps(
    x: Array,
    window: Sequence[int],
    result: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    spread: Sequence[int] = (1, 1),
) -> Array:
    """What every tap of every window sees of x [N, H, W, C], as [N, P, Q, taps.., C] in f64."""
    images, height, width, channels = x.shape
    seen = np.zeros((images, *result, *window, channels))
    for a in range(window[0]):
        for b in range(window[1]):
            rows, columns = (
                np.arange(result[i]) * stride[i] + tap * dilation[i] - padding[i] for i, tap in enumerate((a, b))
            )
            inside = [
                (at % s == 0) & (at >= 0) & (at < size * s)
                for at, s, size in zip((rows, columns), spread, (height, width))
            ]
            picked = [at[ok] // s for at, ok, s in zip((rows, columns), inside, spread)]
            place = np.ix_(
                np.arange(images), np.flatnonzero(inside[0]), np.flatnonzero(inside[1]), np.array([a]), np.array([b])
            )
            seen[place] = x[:, picked[0]][:, :, picked[1]].astype(np.float64)[:, :, :, None, None]
    return seen


class _Windows(LoweredProduct):
    """Windows that go over a picture: tap (a, b) of the window at (p, q) sees the row p·stride + a·dilation - padding,
    and the column likewise."""

    window: tuple[int, ...]
    result: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def check(self) -> None:
        for name, given in self.attributes.items():
            if len(given) != 2 or min(given) < (0 if name == "padding" else 1):
                raise self.fail(f"{name} must be two positive numbers, got {given}")

    def seen(self, x: Array, spread: tuple[int, ...]) -> Array:
        return seen_by_taps(x, self.window, self.result, self.stride, self.padding, self.dilation, spread)


@op("window_matmul")
class WindowMatMul(_Windows):
    """y[n, p, q, o] = Σ x[n, row, column, c]·w[o, (a·width + b)·C + c] over taps (a, b) of a window and channels c,
    where row·spread = p·stride + a·dilation - padding, and columns likewise; taps at which there is no such row or
    column count as zeros. x [N, H, W, C], w [O, taps·C], sums in f32 (f64 for f64)."""

    spread: tuple[int, ...] = (1, 1)

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
        seen = self.seen(x, self.spread)
        with np.errstate(all="ignore"):
            found = seen.reshape(*seen.shape[:3], -1) @ w.astype(np.float64).T
        return found.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 3), (5, 4), (1, 1), (1, 1), (1, 1)), spec(2, 5, 4, 3), spec(7, 27))
        yield sample(cls((3, 2), (3, 2), (2, 3), (1, 0), (1, 2)), spec(1, 6, 7, 8), spec(9, 48))
        yield sample(cls((3, 3), (7, 8), (1, 1), (1, 1), (1, 1), (2, 2)), spec(2, 4, 4, 8), spec(8, 72))


@op("window_product")
class WindowProduct(_Windows):
    """y[n, p, q, o] = Σ x[n, row, column, c]·w[line(a, b, c), o] over taps (a, b) of a window and channels c, where
    row = p·stride + a·dilation - padding, and columns likewise; taps beyond the picture count as zeros.

    x [N, H, W, C], w [taps·C, O], sums in f32 (f64 for f64). Lines of w come in the order in which they are multiplied:
    for every `together` channels (the last part may have fewer) tap after tap, and of each tap these channels.
    """

    together: int = 1

    def check(self) -> None:
        if self.together < 1:
            raise self.fail(f"together must be positive, got {self.together}")
        for name, given in self.attributes.items():
            if name != "together" and (len(given) != 2 or min(given) < (0 if name == "padding" else 1)):
                raise self.fail(f"{name} must be two positive numbers, got {given}")

    @property
    def taps(self) -> int:
        return self.window[0] * self.window[1]

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_float(self, x, w)
        require_same_dtype(self, x, w)
        require_rank(self, x, 4)
        require_rank(self, w, 2)
        if not w.is_static or not isinstance(x.dims[3], int) or w.dims[0] != self.taps * x.dims[3]:
            raise self.fail(f"needs x [N, H, W, C] and w [{self.taps}·C, O] with fixed channels, got {x} and {w}")
        return x.with_dims((x.dims[0], *self.result, w.dims[1]))

    def eval(self, x: Array, w: Array) -> Array:
        seen = self.seen(x, (1, 1))
        seen = seen.reshape(*seen.shape[:3], self.taps, x.shape[3])
        parts = [seen[..., at : at + self.together] for at in range(0, x.shape[3], self.together)]
        lines = np.concatenate([part.reshape(*seen.shape[:3], -1) for part in parts], -1)
        with np.errstate(all="ignore"):
            return (lines @ w.astype(np.float64)).astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 3), (5, 4), (1, 1), (1, 1), (1, 1), 2), spec(2, 5, 4, 3), spec(27, 7))
        yield sample(cls((3, 2), (3, 2), (2, 3), (1, 0), (1, 2), 8), spec(1, 6, 7, 8), spec(48, 9))
        yield sample(cls((1, 1), (4, 3), (2, 2), (0, 0), (1, 1), 16), spec(1, 8, 5, 35), spec(35, 70))


@op("channel_windows")
class ChannelWindows(_Windows):
    """y[n, p, q, c] = Σ x[n, row, column, c]·w[a·width + b, c] over taps (a, b) of a window, where row = p·stride +
    a·dilation - padding, and columns likewise; taps beyond the picture count as zeros.
    x [N, H, W, C], w [taps, C], sums in f32 (f64 for f64)."""

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_float(self, x, w)
        require_same_dtype(self, x, w)
        require_rank(self, x, 4)
        taps = self.window[0] * self.window[1]
        if w.dims != (taps, x.dims[3]):
            raise self.fail(f"needs x [N, H, W, C] and w [{taps}, C], got {x} and {w}")
        return x.with_dims((x.dims[0], *self.result, x.dims[3]))

    def eval(self, x: Array, w: Array) -> Array:
        seen = self.seen(x, (1, 1))
        with np.errstate(all="ignore"):
            found = np.einsum("npqtc,tc->npqc", seen.reshape(*seen.shape[:3], -1, x.shape[3]), w.astype(np.float64))
        return found.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 3), (5, 4), (1, 1), (1, 1), (1, 1)), spec(2, 5, 4, 3), spec(9, 3))
        yield sample(cls((3, 2), (3, 2), (2, 3), (1, 0), (1, 2)), spec(1, 6, 7, 70), spec(6, 70))
        yield sample(cls((2, 2), (3, 3), (1, 1), (0, 0), (2, 2)), spec(1, 5, 5, 17), spec(4, 17))
