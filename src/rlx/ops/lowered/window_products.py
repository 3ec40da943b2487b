"""Convolutions of pictures whose channels lie side by side: `WindowMatMul` of all channels, as tensor cores take them,
`WindowProduct` of the same with weights that are known before, and `ChannelWindows` of every channel by itself.

The compiler writes convolutions and the gradients of their inputs in this form where there is a kernel that reads what
windows see straight from the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_float, require_rank, require_same_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.lowered.int8_products import WORD, ZERO, Int8Panels
from rlx.ops.lowered.lowered_product import LoweredProduct

__all__ = ["ChannelWindows", "CodeWindows", "WindowMatMul", "WindowProduct"]

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
        for name in _Windows._fields:
            given = self.attributes[name]
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
        super().check()
        if self.together < 1:
            raise self.fail(f"together must be positive, got {self.together}")

    @property
    def taps(self) -> int:
        return self.window[0] * self.window[1]

    def lines(self, x: Array) -> Array:
        """What every window sees, in the order of the lines of w."""
        seen = self.seen(x, (1, 1))
        seen = seen.reshape(*seen.shape[:3], self.taps, x.shape[3])
        parts = [seen[..., at : at + self.together] for at in range(0, x.shape[3], self.together)]
        return np.concatenate([part.reshape(*seen.shape[:3], -1) for part in parts], -1)

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_float(self, x, w)
        require_same_dtype(self, x, w)
        require_rank(self, x, 4)
        require_rank(self, w, 2)
        if not w.is_static or not isinstance(x.dims[3], int) or w.dims[0] != self.taps * x.dims[3]:
            raise self.fail(f"needs x [N, H, W, C] and w [{self.taps}·C, O] with fixed channels, got {x} and {w}")
        return x.with_dims((x.dims[0], *self.result, w.dims[1]))

    def eval(self, x: Array, w: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray((self.lines(x) @ w.astype(np.float64)).astype(x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 3), (5, 4), (1, 1), (1, 1), (1, 1), 2), spec(2, 5, 4, 3), spec(27, 7))
        yield sample(cls((3, 2), (3, 2), (2, 3), (1, 0), (1, 2), 8), spec(1, 6, 7, 8), spec(48, 9))
        yield sample(cls((1, 1), (4, 3), (2, 2), (0, 0), (1, 1), 16), spec(1, 8, 5, 35), spec(35, 70))


@op("code_windows")
class CodeWindows(WindowProduct):
    """y[n, p, q, o] = Σ (code - 128)·w as i32, where windows see codes u8[N, H, W, C], with C a multiple of 4.

    Beyond the picture they see `zero`. Of the panels of `int8_panels` w is `outputs` columns, with the lines of
    `window_product`.
    """

    outputs: int = 0
    zero: int = 128

    def check(self) -> None:
        super().check()
        if self.together % WORD or not 0 <= self.zero < 256 or self.outputs < 0:
            given = f"together={self.together}, zero={self.zero}, outputs={self.outputs}"
            raise self.fail(f"needs whole words of {WORD} channels, a code as zero and outputs, got {given}")

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_rank(self, x, 4)
        fits = x.dtype is DType.U8 and w.dtype is DType.I8 and isinstance(x.dims[3], int) and x.dims[3] % WORD == 0
        wanted = 1 + self.taps * int(x.dims[3]) // WORD if fits else 0
        fits = fits and w.rank == 4 and w.is_static and w.static_dims[1::2] == (wanted, WORD)
        if not fits or w.static_dims[0] != -(-self.outputs // max(1, w.static_dims[2])):
            raise self.fail(
                f"needs codes u8[N, H, W, C] and panels of {self.outputs} columns for them, got {x} and {w}"
            )
        return Shape((x.dims[0], *self.result, self.outputs), DType.I32)

    def eval(self, x: Array, w: Array) -> Array:
        count, lines, width, _ = w.shape
        matrix = w[:, 1:].transpose(1, 3, 0, 2).reshape((lines - 1) * WORD, count * width)[:, : self.outputs]
        # Beyond the picture is what `lines` has as 0.
        found = self.lines(x.astype(np.int32) - self.zero) + (self.zero - ZERO)
        return np.asarray((found @ matrix.astype(np.float64)).astype(np.int32))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(6)
        for settings, shape, outputs, zero in (
            (((3, 3), (5, 4), (1, 1), (1, 1), (1, 1), 4), (2, 5, 4, 8), 16, 7),
            (((3, 2), (3, 2), (2, 3), (1, 0), (1, 2), 8), (1, 6, 7, 12), 13, 200),
        ):
            rows = settings[0][0] * settings[0][1] * shape[3]
            panels, _ = Int8Panels(16).eval(rng.standard_normal((rows, outputs)).astype(np.float32))
            codes = spec(*shape, dtype="u8", values=rng.integers(0, 256, shape))
            op_ = cls(*settings, outputs, zero)
            yield sample(op_, codes, spec(*panels.shape, dtype="i8", values=panels), dtypes=("u8",))


@op("channel_windows")
class ChannelWindows(_Windows):
    """y[n, p, q, c] = Σ x[n, row, column, c]·w[a·width + b, c] over taps (a, b) of a window, where row = p·stride +
    a·dilation - padding, and columns likewise; taps beyond the picture count as zeros.
    x [N, H, W, C], w [taps, C], sums in f32 (f64 for f64).

    Of codes u8 and weights in f32 the sums are f32, and beyond the picture windows see the code `zero`.
    """

    zero: int = 0

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_rank(self, x, 4)
        if x.dtype is DType.U8 and w.dtype is DType.F32:
            x = x.with_dtype(DType.F32)
        require_float(self, x, w)
        require_same_dtype(self, x, w)
        taps = self.window[0] * self.window[1]
        if w.dims != (taps, x.dims[3]):
            raise self.fail(f"needs x [N, H, W, C] and w [{taps}, C], got {x} and {w}")
        return x.with_dims((x.dims[0], *self.result, x.dims[3]))

    def eval(self, x: Array, w: Array) -> Array:
        seen = self.seen(x.astype(np.float64) - self.zero, (1, 1)) + self.zero
        with np.errstate(all="ignore"):
            found = np.einsum("npqtc,tc->npqc", seen.reshape(*seen.shape[:3], -1, x.shape[3]), w.astype(np.float64))
        return found.astype(w.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3, 3), (5, 4), (1, 1), (1, 1), (1, 1)), spec(2, 5, 4, 3), spec(9, 3))
        yield sample(cls((3, 2), (3, 2), (2, 3), (1, 0), (1, 2)), spec(1, 6, 7, 70), spec(6, 70))
        yield sample(cls((2, 2), (3, 3), (1, 1), (0, 0), (2, 2)), spec(1, 5, 5, 17), spec(4, 17))
