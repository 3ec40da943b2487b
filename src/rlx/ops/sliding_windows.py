"""Sliding windows over the spatial axes of [N, C, spatial..]: what convolution and pooling share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import dim_max
from rlx.ir.op import Op
from rlx.ir.shape import Dims, Shape, Size, conv_spatial_output

Array = np.ndarray[Any, np.dtype[Any]]
Ints = tuple[int, ...]


class WindowOp(Op):
    """An op that slides a window; its attributes have one entry per spatial axis."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def check(self) -> None:
        fields = {f: self.attributes[f] for f in ("kernel_size", "stride", "padding", "dilation") if f in self._fields}
        if len({len(v) for v in fields.values()}) != 1 or not self.kernel_size:
            raise self.fail(f"needs one entry per spatial axis in each of {', '.join(fields)}, got {fields}")
        if min(*self.kernel_size, *self.stride, *self.spread) < 1 or min(self.padding) < 0:
            raise self.fail(f"kernel, stride and dilation must be positive and padding not negative, got {fields}")

    @property
    def spread(self) -> Ints:
        """Distance between neighbouring taps of the window, per axis."""
        return (1,) * len(self.kernel_size)

    @property
    def reach(self) -> Ints:
        """Distance between the first and the last tap, per axis."""
        return tuple(d * (k - 1) for k, d in zip(self.kernel_size, self.spread))

    @property
    def spatial_rank(self) -> int:
        return len(self.kernel_size)

    @property
    def spatial_axes(self) -> Ints:
        return tuple(range(2, 2 + self.spatial_rank))

    def require_images(self, name: str, x: Shape) -> None:
        if x.rank != self.spatial_rank + 2:
            raise self.fail(f"{name} must be [N, C] with {self.spatial_rank} spatial axes, got {x}")

    def output_sizes(self, sizes: Sequence[Size]) -> Dims:
        """How often the window fits along each axis."""
        settings = zip(sizes, self.kernel_size, self.stride, self.padding, self.spread)
        return tuple(conv_spatial_output(*one) for one in settings)

    def taps(self) -> Iterator[Ints]:
        """Positions of the taps relative to the start of the window, in row-major order."""
        return itertools.product(*(range(0, r + 1, d) for r, d in zip(self.reach, self.spread)))


class DilatedWindowOp(WindowOp):
    """A window whose taps are `dilation` apart."""

    dilation: tuple[int, ...]

    @property
    def spread(self) -> Ints:
        return self.dilation


def seen_by_windows(op: WindowOp, x: Array, value: Any = 0) -> Array:
    """[N, C, out.., kernel..]: what each window sees of x with `value` around it."""
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in op.padding)], constant_values=value)
    sizes = tuple(r + 1 for r in op.reach)
    view = np.lib.stride_tricks.sliding_window_view(padded, sizes, op.spatial_axes)
    steps = (slice(None, None, s) for s in (*op.stride, *op.spread))
    return np.asarray(view[(slice(None), slice(None), *steps)])


def seen_by_taps(op: WindowOp, x: Any, value: Any = 0) -> list[Any]:
    """For each tap, what it sees of a tensor with `value` around it: [N, C, out..]."""
    from rlx.ops.movement import pad, slice_

    sizes = op.output_sizes(x.shape[2:])
    if any(op.padding):
        x = pad(x, value, low=(0, 0, *op.padding), high=(0, 0, *op.padding))
    found = []
    for tap in op.taps():
        limits = [start + (size - 1) * step + 1 for start, size, step in zip(tap, sizes, op.stride)]
        found.append(slice_(x, (0, 0, *tap), (*x.shape[:2], *limits), (1, 1, *op.stride)))
    return found


def spread_out(op: WindowOp, y: Any, low: Sequence[int], sizes: Dims) -> Any:
    """y [N, C, out..] with stride - 1 zeros between its elements and `low` in front, cut or filled up to `sizes`."""
    from rlx.ops.movement import pad

    high = []
    for size, step, before, wanted in zip(y.shape[2:], op.stride, low, sizes):
        apart = size + (step - 1) * dim_max(size - 1, 0)
        high.append(wanted - apart - before)
    return pad(y, 0, low=(0, 0, *low), high=(0, 0, *high), interior=(0, 0, *(s - 1 for s in op.stride)))


def per_axis(value: int | Sequence[int], rank: int) -> Ints:
    """One entry per spatial axis; an int stands for all of them."""
    return (value,) * rank if isinstance(value, int) else tuple(value)
