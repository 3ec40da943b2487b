"""Gradients of convolution with respect to its operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import product, require_equal
from rlx.ir.op import op
from rlx.ir.shape import Dims, Shape
from rlx.ops.define.operands import dims_of, promote_operands, require_numeric, require_same_dtype
from rlx.ops.define.rules import SharedInBatch, batch_by_folding
from rlx.ops.define.samples import FLOATS, Sample, sample, spec
from rlx.ops.define.widening import rounded
from rlx.ops.nn.convolution import Conv, ConvBase, Im2Col, scatter_windows, summing_dtype, transposed_conv
from rlx.ops.nn.sliding_windows import per_axis, seen_by_windows

__all__ = ["Conv2dBackwardInput", "Conv2dBackwardWeight", "conv2d_backward_input", "conv2d_backward_weight"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("conv2d_backward_input")
class Conv2dBackwardInput(SharedInBatch, ConvBase):
    """dx of y = Conv(x, w): each dy[n, o, p]·w[o, c, a] added at p·stride + a·dilation - padding; operands dy, w.

    The spatial sizes of x cannot be read off dy when the stride is not 1, so `x_shape` gives all dims of x.
    """

    multilinear_in = (0, 1)
    shared = (1,)

    x_shape: Dims
    precision: str = "default"

    def infer(self, dy: Shape, w: Shape) -> Shape:
        require_same_dtype(self, dy, w)
        require_numeric(self, dy, w)
        self.require_images("dy", dy)
        self.require_weight(w)
        x = dy.with_dims(self.x_shape)
        self.require_images("x", x)
        wanted = (x.dims[0], w.dims[0], *self.output_sizes(x.dims[2:]))
        fits = require_equal(x.dims[1], w.dims[1] * self.groups, self.name) and all(
            require_equal(a, b, self.name) for a, b in zip(dy.dims, wanted)
        )
        if not fits:
            raise self.fail(f"x_shape={list(self.x_shape)} and w {w} ask for dy {dy.with_dims(wanted)}, got {dy}")
        return x

    def eval(self, dy: Array, w: Array) -> Array:
        return scatter_windows(self, dy, w, Shape(self.x_shape).static_dims)

    def decompose(self, dy: Any, w: Any) -> Any:
        return transposed_conv(self, dy, w, self.x_shape)

    def vjp(self, ct: Any, y: Any, dy: Any, w: Any) -> Any:
        from rlx.ops.linalg.contraction import conjugated
        from rlx.ops.shape.movement import reshaped

        # The dims of dy may be written differently from what Conv infers.
        dy_ct = reshaped(Conv(**self.settings)(ct, conjugated(w)), dy.shape)
        return dy_ct, Conv2dBackwardWeight(**self.settings)(ct, conjugated(dy))

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        folded = self.replace(x_shape=(size * self.x_shape[0], *self.x_shape[1:]))
        return batch_by_folding(self, size, operands, batched, folded)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        w = spec(6, 2, 3, 2)
        settings: dict[str, Any] = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2), "groups": 2}
        # Heights 5 and 6 give the same dy: the last row of the larger one is read by no window.
        for height in (5, 6):
            op = cls((3, 2), **settings, x_shape=(2, 4, height, 4))
            yield sample(op, spec(2, 6, 3, 4), w, dtypes=(*FLOATS, "i32", "c64"))
        yield sample(cls((3,), (1,), (0,), (1,), x_shape=(2, 3, 5)), spec(2, 4, 3), spec(4, 3, 3))
        yield sample(cls((2,), (1,), (3,), (1,), x_shape=(1, 2, 3)), spec(1, 3, 8), spec(3, 2, 2))
        symbolic = cls((3,), (2,), (1,), (1,), x_shape=("N", 3, "2*T"))
        yield sample(symbolic, spec("N", 4, "T"), spec(4, 3, 3), N=2, T=3)


@op("conv2d_backward_weight")
class Conv2dBackwardWeight(ConvBase):
    """dw[o, c, a] = Σ over n, p of dy[n, o, p]·x[n, c, p·stride + a·dilation - padding]; operands x, dy."""

    multilinear_in = (0, 1)

    def infer(self, x: Shape, dy: Shape) -> Shape:
        require_same_dtype(self, x, dy)
        require_numeric(self, x, dy)
        self.require_images("x", x)
        self.require_images("dy", dy)
        for channels in (x.dims[1], dy.dims[1]):
            if not require_equal(channels % self.groups, 0, self.name):
                raise self.fail(f"{channels} channels are not a multiple of groups={self.groups}, in {x} and {dy}")
        wanted = (x.dims[0], dy.dims[1], *self.output_sizes(x.dims[2:]))
        if not all(require_equal(a, b, self.name) for a, b in zip(dy.dims, wanted)):
            raise self.fail(f"x {x} asks for dy {dy.with_dims(wanted)}, got {dy}")
        return x.with_dims((dy.dims[1], x.dims[1] // self.groups, *self.kernel_size))

    def eval(self, x: Array, dy: Array) -> Array:
        wide = summing_dtype(x.dtype)
        seen = self.split_groups(np, seen_by_windows(self, x.astype(wide)), 1)
        upstream = self.split_groups(np, dy.astype(wide), 1)
        n = self.spatial_rank
        positions, taps = list(range(4, 4 + n)), list(range(4 + n, 4 + 2 * n))
        with np.errstate(all="ignore"):
            # Axes as in Conv: 0 sample, 1 group, 2 channel read, 3 channel written.
            dw = np.einsum(seen, [0, 1, 2, *positions, *taps], upstream, [0, 1, 3, *positions], [1, 3, 2, *taps])
        return rounded(dw.reshape(dy.shape[1], *dw.shape[2:]), x.dtype)

    def decompose(self, x: Any, dy: Any) -> Any:
        """Per group, dy as [C_out, N·out..] times the windows of x as rows."""
        from rlx.ops.linalg.contraction import matmul
        from rlx.ops.shape import movement

        columns = Im2Col(self.kernel_size, self.stride, self.padding, self.dilation)(x)
        rows = movement.swapaxes(self.split_groups(movement, columns, 1), 0, 1)
        upstream = movement.reshape(movement.moveaxis(dy, 1, 0), (dy.shape[1], product((dy.shape[0], *dy.shape[2:]))))
        dw = matmul(self.split_groups(movement, upstream, 0), rows)
        return movement.reshape(dw, self.infer(x.type, dy.type).dims)

    def vjp(self, ct: Any, y: Any, x: Any, dy: Any) -> Any:
        from rlx.ops.linalg.contraction import conjugated
        from rlx.ops.shape.movement import reshaped

        x_ct = Conv2dBackwardInput(**self.settings, x_shape=x.shape)(conjugated(dy), ct)
        return x_ct, reshaped(Conv(**self.settings)(conjugated(x), ct), dy.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        settings: dict[str, Any] = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2), "groups": 2}
        for height in (5, 6):
            operands = (spec(2, 4, height, 4), spec(2, 6, 3, 4))
            yield sample(cls((3, 2), **settings), *operands, dtypes=(*FLOATS, "i32", "c64"))
        yield sample(cls((3,), (1,), (0,), (1,)), spec(2, 3, 5), spec(2, 4, 3))
        yield sample(cls((2,), (1,), (0,), (1,)), spec("N", 3, "L"), spec("N", 2, "L - 1"), N=2, L=4)


def conv2d_backward_input(
    dy: Any,
    w: Any,
    x_shape: Dims,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """The gradient of `conv` with respect to x, whose dims are `x_shape`."""
    dy, w = promote_operands(dy, w)
    kernel: Any = dims_of(w)[2:]
    settings = (per_axis(v, len(kernel)) for v in (stride, padding, dilation))
    return Conv2dBackwardInput(kernel, *settings, groups, x_shape=tuple(x_shape))(dy, w)


def conv2d_backward_weight(
    x: Any,
    dy: Any,
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """The gradient of `conv` with respect to w, whose spatial sizes are `kernel_size`."""
    settings = (per_axis(v, len(kernel_size)) for v in (stride, padding, dilation))
    return Conv2dBackwardWeight(tuple(kernel_size), *settings, groups)(*promote_operands(x, dy))
