"""Sliding windows over the spatial axes of [N, C, spatial..]: what convolution and pooling share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import dim_max
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Dims, Shape, Size, conv_spatial_output
from rlx.ops.define.operands import same_graph
from rlx.ops.shape.axis_indexing import Gather, GatherBackward
from rlx.ops.shape.indexing import IndexMode

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
        return tuple(conv_spatial_output(*one, self.mnemonic) for one in settings)

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


def window_tensor(op: WindowOp, x: Any, value: Any = 0) -> Any:
    """`seen_by_windows` for tensors: along each axis, window p reads positions p·stride + a·spread."""
    from rlx.ops.shape.movement import pad, transpose

    ids = _positions_read(op, x.shape, x)
    if any(op.padding):
        x = pad(x, value, low=(0, 0, *op.padding), high=(0, 0, *op.padding))
    for axis in reversed(op.spatial_axes):
        x = Gather(axis, IndexMode.Clip)(x, ids[axis - 2])
    # Now [N, C, out, kernel, out, kernel, ..].
    return transpose(x, _outputs_before_taps(op))


def sum_of_windows(op: WindowOp, windows: Any, dims: Dims) -> Any:
    """The adjoint of `window_tensor` for x of `dims`: each element is the sum of what windows hold of it."""
    from rlx.ops.shape.movement import slice_, transpose

    apart = transpose(windows, np.argsort(_outputs_before_taps(op)).tolist())
    ids = _positions_read(op, dims, windows)
    padded = tuple(d + 2 * p for d, p in zip(dims, (0, 0, *op.padding)))
    for axis in op.spatial_axes:
        table: Dims = (*padded[: axis + 1], *apart.shape[axis + 2 :])
        apart = GatherBackward(axis, table, IndexMode.Clip)(apart, ids[axis - 2])
    if not any(op.padding):
        return apart
    low = (0, 0, *op.padding)
    return slice_(apart, low, tuple(d + p for d, p in zip(dims, low)))


def _positions_read(op: WindowOp, dims: Dims, near: Any) -> list[Any]:
    """For each spatial axis of x [N, C, spatial..] of `dims`, the positions [out, kernel] that windows read of it with
    its padding; in the program of `near`."""
    from rlx.ops.shape.creation import iota

    sizes = op.output_sizes(dims[2:])
    with same_graph(near):
        return [
            iota((out, k), DType.I32, 0) * step + iota((out, k), DType.I32, 1) * apart
            for out, k, step, apart in zip(sizes, op.kernel_size, op.stride, op.spread)
        ]


def _outputs_before_taps(op: WindowOp) -> Ints:
    """The order that takes [N, C, out, kernel, out, kernel, ..] to [N, C, out.., kernel..]."""
    n = op.spatial_rank
    return (0, 1, *range(2, 2 + 2 * n, 2), *range(3, 3 + 2 * n, 2))


def spread_out(op: WindowOp, y: Any, low: Sequence[int], sizes: Dims) -> Any:
    """y [N, C, out..] with stride - 1 zeros between its elements and `low` in front, cut or filled up to `sizes`."""
    from rlx.ops.shape.movement import pad

    high = []
    for size, step, before, wanted in zip(y.shape[2:], op.stride, low, sizes):
        apart = size + (step - 1) * dim_max(size - 1, 0)
        high.append(wanted - apart - before)
    return pad(y, 0, low=(0, 0, *low), high=(0, 0, *high), interior=(0, 0, *(s - 1 for s in op.stride)))


def per_axis(value: int | Sequence[int], rank: int) -> Ints:
    """One entry per spatial axis; an int stands for all of them."""
    return (value,) * rank if isinstance(value, int) else tuple(value)
