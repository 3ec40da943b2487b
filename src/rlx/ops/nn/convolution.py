"""Convolution over any number of spatial axes: x [N, C, spatial..], w [C_out, C_in/groups, kernel..].

    y[n, o, p..] = Σ over c, a.. of x[n, c, (p·stride + a·dilation - padding)..]·w[o, c, a..]

which is a cross-correlation with zeros around x. Gradients are in `rlx.ops.nn.convolution_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from rlx.errors import OpError
from rlx.ir.dims import ceildiv, dim_max, product, require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape, Size, conv2d_output_shape, conv_transpose2d_output_shape
from rlx.ops.define.operands import (
    convert,
    dims_of,
    promote_operands,
    require_dtype,
    require_numeric,
    require_same_dtype,
)
from rlx.ops.define.rules import batch_by_folding
from rlx.ops.define.samples import COMPLEX, FLOATS, Sample, sample, spec
from rlx.ops.define.widening import accumulators, rounded, rounded_tensor
from rlx.ops.nn.sliding_windows import (
    DilatedWindowOp,
    Ints,
    per_axis,
    seen_by_windows,
    spread_out,
    sum_of_windows,
    window_tensor,
)

__all__ = [
    "Conv",
    "ConvTranspose2d",
    "Im2Col",
    "ResizeNearest2x",
    "conv",
    "conv_transpose",
    "im2col",
    "resize_nearest_2x",
]

Array = np.ndarray[Any, np.dtype[Any]]


class ConvBase(DilatedWindowOp):
    """A window of weights over `groups` separate sets of channels."""

    groups: int = 1
    precision: str = "default"

    def check(self) -> None:
        from rlx.ops.linalg.contraction import PRECISIONS

        super().check()
        if self.groups < 1:
            raise self.fail(f"groups must be positive, got {self.groups}")
        if self.precision not in PRECISIONS:
            raise self.fail(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")

    def require_weight(self, w: Shape) -> None:
        """w [.., .., kernel..] has the kernel size that the attribute says."""
        fits = w.rank == self.spatial_rank + 2 and all(
            require_equal(a, b, self.mnemonic) for a, b in zip(w.dims[2:], self.kernel_size)
        )
        if not fits:
            raise self.fail(f"kernel_size={self.kernel_size} does not fit the weight {w}")

    def split_groups(self, m: Any, x: Any, axis: int) -> Any:
        """One axis of channels as [groups, channels per group]; `m` is numpy or rlx.ops.shape.movement."""
        dims = x.shape
        return m.reshape(x, (*dims[:axis], self.groups, dims[axis] // self.groups, *dims[axis + 1 :]))

    @property
    def settings(self) -> dict[str, Any]:
        """The attributes that convolution and its gradients share, by name."""
        return {f: self.attributes[f] for f in ConvBase._fields}


def summing_dtype(out: np.dtype[Any]) -> np.dtype[Any]:
    """The type that `eval` sums in for results of type `out`: the widest float, or complex; integers wrap."""
    dtype = DType.of(out)
    return np.dtype(np.complex128) if dtype.is_complex else np.dtype(np.float64) if dtype.is_float else out


@op("conv")
class Conv(ConvBase):
    """y[n,o,p..] = Σ x[n, c, (p·stride + a·dilation - padding)..]·w[o, c, a..], zeros outside of x.

    x [N, C_in, spatial..], w [C_out, C_in/groups, kernel..]; output channel o reads the channels of its group only.
    `precision` and `out_dtype` are those of `MatMul`; a bias is an addition.
    """

    is_blas = True
    primitive = True
    multilinear_in = (0, 1)
    shared: ClassVar[tuple[int, ...]] = (1,)

    out_dtype: DType | None = None

    def infer(self, x: Shape, w: Shape) -> Shape:
        dtype = require_same_dtype(self, x, w)
        require_numeric(self, x, w)
        out = self.out_dtype or dtype
        same_kind = (out.is_float, out.is_complex, out.is_int) == (dtype.is_float, dtype.is_complex, dtype.is_int)
        require_dtype(self, same_kind, f"out_dtype={out}, of the same kind (integer, float, complex) as", x)
        self.require_images("x", x)
        self.require_weight(w)
        attributes = (self.stride, self.padding, self.dilation, self.groups, self.name)
        return conv2d_output_shape(x, w, *attributes).with_dtype(out)

    def eval(self, x: Array, w: Array) -> Array:
        out = (self.out_dtype or DType.of(x.dtype)).numpy
        wide = summing_dtype(out)
        seen = self.split_groups(np, seen_by_windows(self, x.astype(wide)), 1)
        weight = self.split_groups(np, w.astype(wide), 0)
        n = self.spatial_rank
        positions, taps = list(range(4, 4 + n)), list(range(4 + n, 4 + 2 * n))
        with np.errstate(all="ignore"):
            # Axes: 0 sample, 1 group, 2 channel read, 3 channel written, then positions and taps.
            y = np.einsum(seen, [0, 1, 2, *positions, *taps], weight, [1, 3, 2, *taps], [0, 1, 3, *positions])
        return rounded(y.reshape(y.shape[0], w.shape[0], *y.shape[3:]), out)

    def vjp(self, ct: Any, y: Any, x: Any, w: Any) -> Any:
        from rlx.ops.linalg.contraction import conjugated
        from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput, Conv2dBackwardWeight

        # With an out_dtype, ct has another type than the operands.
        wide_ct, wide_x, wide_w = promote_operands(ct, conjugated(x), conjugated(w))
        x_ct = Conv2dBackwardInput(**self.settings, x_shape=x.shape)(wide_ct, wide_w)
        w_ct = Conv2dBackwardWeight(**self.settings)(wide_x, wide_ct)
        return convert(x_ct, x.dtype), convert(w_ct, w.dtype)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        from rlx.ops.shape import movement

        x, w = operands
        if not batched[1]:
            return batch_by_folding(self, size, operands, batched)
        channels = w.shape[1]
        if not batched[0]:
            # All weights of a group read the same channels: they are so many more output channels of it.
            grouped = movement.moveaxis(self.split_groups(movement, w, 1), 0, 1)
            y = self(x, movement.reshape(grouped, (size * channels, *w.shape[2:])))
            apart = (y.shape[0], self.groups, size, channels // self.groups, *y.shape[2:])
            examples = movement.moveaxis(movement.reshape(y, apart), 2, 0)
            return movement.reshape(examples, (size, y.shape[0], channels, *y.shape[2:]))
        if not isinstance(size, int) or size == 0:
            return self._batch_by_windows(x, w)
        # Examples are groups.
        y = self.replace(groups=self.groups * size)(
            examples_in_channels(x), movement.reshape(w, (size * channels, *w.shape[2:]))
        )
        return examples_apart(y, size)

    def _batch_by_windows(self, x: Any, w: Any) -> Any:
        """Every window of every example times its own weights: for a number of examples that no attribute can hold."""
        from rlx.ops.linalg.contraction import matmul
        from rlx.ops.shape import movement

        size, samples, channels = x.shape[0], x.shape[1], w.shape[1]
        sizes = self.output_sizes(x.shape[3:])
        columns = Im2Col(self.kernel_size, self.stride, self.padding, self.dilation)(
            movement.reshape(x, (size * samples, *x.shape[2:]))
        )
        rows = movement.reshape(columns, (size, samples * product(sizes), columns.shape[1]))
        rows = movement.moveaxis(self.split_groups(movement, rows, 2), 2, 1)
        weights = movement.reshape(w, (size, self.groups, channels // self.groups, rows.shape[3]))
        y = matmul(rows, movement.swapaxes(weights, 2, 3), precision=self.precision, out_dtype=self.out_dtype)
        last = movement.reshape(movement.moveaxis(y, 1, 2), (size, samples, *sizes, channels))
        return movement.moveaxis(last, -1, 2)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = spec(2, 4, 5, 4), spec(6, 4, 3, 2)
        yield sample(cls((3, 2), (1, 1), (0, 0), (1, 1)), x, w, dtypes=(*FLOATS, "i8", "i32", *COMPLEX))
        yield sample(cls((3, 2), (2, 1), (1, 2), (1, 1)), x, w)
        yield sample(cls((3, 2), (1, 2), (2, 1), (2, 3)), x, w)
        yield sample(cls((3, 2), (2, 2), (1, 0), (1, 1), 2), x, spec(6, 2, 3, 2))
        yield sample(cls((3, 2), (1, 1), (1, 1), (1, 1), 4), x, spec(4, 1, 3, 2))
        yield sample(cls((3,), (2,), (1,), (1,)), spec(2, 3, 7), spec(2, 3, 3))
        yield sample(cls((2, 2, 2), (1, 2, 1), (0, 1, 1), (1, 1, 2)), spec(1, 2, 3, 4, 3), spec(2, 2, 2, 2, 2))
        yield sample(cls((1, 1), (1, 1), (0, 0), (1, 1)), spec(0, 2, 3, 3), spec(2, 2, 1, 1))
        for out, dtype in (("i32", "i8"), ("f32", "f16"), ("f32", "bf16")):
            op = cls((2, 2), (1, 1), (0, 0), (1, 1), out_dtype=out)
            yield sample(op, spec(1, 2, 3, 3), spec(1, 2, 2, 2), dtypes=(dtype,))
        yield sample(cls((3, 2), (2, 1), (1, 1), (1, 1), 2), spec("N", 4, "H", 4), spec(6, 2, 3, 2), N=2, H=5)


def examples_in_channels(x: Any) -> Any:
    """[examples, N, C, spatial..] as [N, examples·C, spatial..]."""
    from rlx.ops.shape.movement import moveaxis, reshape

    size, samples, channels = x.shape[:3]
    return reshape(moveaxis(x, 0, 1), (samples, size * channels, *x.shape[3:]))


def examples_apart(y: Any, size: Size) -> Any:
    """The inverse of `examples_in_channels`."""
    from rlx.ops.shape.movement import moveaxis, reshape

    return moveaxis(reshape(y, (y.shape[0], size, y.shape[1] // size, *y.shape[2:])), 1, 0)


@op("conv_transpose2d")
class ConvTranspose2d(ConvBase):
    """The adjoint of Conv: y[n, o, i·stride + a·dilation - padding] += x[n, c, i]·w[c, o, a], over any spatial rank.

    x [N, C_in, spatial..], w [C_in, C_out/groups, kernel..]; `output_padding` lengthens the result at its end.
    """

    is_blas = True

    output_padding: tuple[int, ...]
    groups: int = 1
    precision: str = "default"

    def check(self) -> None:
        super().check()
        if len(self.output_padding) != self.spatial_rank or min(self.output_padding) < 0:
            raise self.fail(f"output_padding needs one entry >= 0 per spatial axis, got {self.output_padding}")

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_same_dtype(self, x, w)
        require_numeric(self, x, w)
        self.require_images("x", x)
        self.require_weight(w)
        if not require_equal(w.dims[0] % self.groups, 0, self.name):
            raise self.fail(f"the {w.dims[0]} input channels of {w} are not a multiple of groups={self.groups}")
        attributes = (self.stride, self.padding, self.dilation, self.output_padding, self.groups, self.name)
        return conv_transpose2d_output_shape(x, w, *attributes)

    def eval(self, x: Array, w: Array) -> Array:
        dims = self.infer(Shape(x.shape), Shape(w.shape)).static_dims
        return scatter_windows(self, x, w, dims)

    def decompose(self, x: Any, w: Any) -> Any:
        from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput
        from rlx.ops.shape.movement import pad_zeros

        dims = self.infer(x.type, w.type).dims
        # A result that is longer by a whole stride has room for one more window, which nothing was read from.
        more = [extra // step for extra, step in zip(self.output_padding, self.stride)]
        if any(more):
            x = pad_zeros(x, (0,) * x.ndim, (0, 0, *more))
        return Conv2dBackwardInput(**self.settings, x_shape=dims)(x, w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = spec(2, 4, 3, 2), spec(4, 3, 3, 2)

        def make(stride: Ints, padding: Ints, dilation: Ints, extra: Ints, groups: int = 1) -> ConvTranspose2d:
            return cls((3, 2), stride, padding, dilation, extra, groups)

        yield sample(make((1, 1), (0, 0), (1, 1), (0, 0)), x, w, dtypes=(*FLOATS, "i32", "c64"))
        yield sample(make((2, 3), (1, 0), (1, 1), (1, 2)), x, w)
        yield sample(make((2, 1), (1, 1), (2, 2), (0, 0), 2), x, w)
        yield sample(make((2, 2), (2, 1), (1, 1), (0, 1), 4), x, spec(4, 1, 3, 2))
        yield sample(cls((3,), (2,), (1,), (1,), (1,)), spec(2, 3, 4), spec(3, 2, 3))
        yield sample(cls((2,), (2,), (0,), (1,), (0,)), spec("N", 3, "L"), spec(3, 2, 2), N=2, L=3)


def scatter_windows(op: ConvBase, y: Array, w: Array, dims: Ints) -> Array:
    """The transposed convolution by its definition: products added where they belong in a result of `dims`."""
    wide = summing_dtype(y.dtype)
    parts = op.split_groups(np, y.astype(wide), 1)
    weight = op.split_groups(np, w.astype(wide), 0)
    positions = list(range(4, 4 + op.spatial_rank))
    # Room for the padding, and for windows that reach beyond the end of the result.
    ends = [(size - 1) * step + r + 1 for size, step, r in zip(y.shape[2:], op.stride, op.reach)]
    room = [max(end, size + 2 * p) for end, size, p in zip(ends, dims[2:], op.padding)]
    full = np.zeros((*dims[:2], *room), wide)
    for tap in op.taps():
        index = tuple(a // d for a, d in zip(tap, op.dilation))
        target = tuple(slice(a, a + (size - 1) * s + 1, s) for a, size, s in zip(tap, y.shape[2:], op.stride))
        with np.errstate(all="ignore"):
            one = np.einsum(parts, [0, 1, 2, *positions], weight[(..., *index)], [1, 2, 3], [0, 1, 3, *positions])
            full[(slice(None), slice(None), *target)] += one.reshape(one.shape[0], dims[1], *one.shape[3:])
    inside = tuple(slice(p, p + size) for p, size in zip(op.padding, dims[2:]))
    return rounded(full[(slice(None), slice(None), *inside)], y.dtype)


def transposed_conv(op: ConvBase, y: Any, w: Any, dims: Dims) -> Any:
    """The same as a plain convolution: y with zeros between its elements, the kernel turned round."""
    from rlx.ops.shape import movement

    low = [r - p for r, p in zip(op.reach, op.padding)]
    spread = spread_out(op, y, low, tuple(size + r for size, r in zip(dims[2:], op.reach)))
    by_group = movement.swapaxes(op.split_groups(movement, w, 0), 1, 2)
    swapped = movement.reshape(by_group, (dims[1], w.shape[0] // op.groups, *op.kernel_size))
    turned = movement.reverse(swapped, op.spatial_axes)
    ones, zeros = (1,) * op.spatial_rank, (0,) * op.spatial_rank
    return Conv(op.kernel_size, ones, zeros, op.dilation, op.groups, op.precision)(spread, turned)


@op("im2col")
class Im2Col(DilatedWindowOp):
    """The windows of x [N, C, spatial..] as rows: [N·out.., C·kernel..], row (n, out..), column (c, kernel..)."""

    precision_class = "data_movement"

    linear_in = (0,)

    def infer(self, x: Shape) -> Shape:
        self.require_images("x", x)
        rows = product((x.dims[0], *self.output_sizes(x.dims[2:])))
        return x.with_dims((rows, product((x.dims[1], *self.kernel_size))))

    def eval(self, x: Array) -> Array:
        n = self.spatial_rank
        rows = np.moveaxis(seen_by_windows(self, x), 1, 1 + n)
        return rows.reshape(int(np.prod(rows.shape[: 1 + n])), int(np.prod(rows.shape[1 + n :])))

    def decompose(self, x: Any) -> Any:
        from rlx.ops.shape.movement import moveaxis, reshape

        windows = moveaxis(window_tensor(self, x), 1, 1 + self.spatial_rank)
        return reshape(windows, self.infer(x.type).dims)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        from rlx.ops.shape.movement import moveaxis, reshape

        n = self.spatial_rank
        apart = (x.shape[0], *self.output_sizes(x.shape[2:]), x.shape[1], *self.kernel_size)
        windows = moveaxis(reshape(accumulators(ct)[0], apart), 1 + n, 1)
        return rounded_tensor(sum_of_windows(self, windows, x.shape), x.dtype)

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = spec(2, 3, 4, 5)
        yield sample(cls((2, 3), (1, 1), (0, 0), (1, 1)), x, dtypes=(*FLOATS, "i32", "c64"))
        yield sample(cls((2, 3), (2, 1), (1, 2), (2, 1)), x)
        yield sample(cls((3,), (2,), (1,), (1,)), spec(2, 3, 5))
        yield sample(cls((2, 2), (1, 1), (0, 0), (1, 1)), spec("N", 2, 3, "W"), N=2, W=4)


@op("resize_nearest_2x")
class ResizeNearest2x(Op):
    """y[.., h, w] = x[.., h//2, w//2]: spatial sizes of [N, C, spatial..] doubled by repetition."""

    precision_class = "data_movement"

    linear_in = (0,)

    def infer(self, x: Shape) -> Shape:
        if x.rank < 3:
            raise self.fail(f"needs x [N, C, H, W], got {x}")
        return x.with_dims((*x.dims[:2], *(2 * d for d in x.dims[2:])))

    def eval(self, x: Array) -> Array:
        for axis in range(2, x.ndim):
            x = np.repeat(x, 2, axis=axis)
        return x

    def decompose(self, x: Any) -> Any:
        from rlx.ops.shape.movement import broadcast_to, reshape

        batch, spatial = x.shape[:2], x.shape[2:]
        apart = [d for size in spatial for d in (size, 1)]
        doubled = [d for size in spatial for d in (size, 2)]
        repeated = broadcast_to(reshape(x, (*batch, *apart)), (*batch, *doubled))
        return reshape(repeated, self.infer(x.type).dims)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        from rlx.ops.reduction.reductions import reduce_sum
        from rlx.ops.shape.movement import reshape

        apart = [d for size in x.shape[2:] for d in (size, 2)]
        return reduce_sum(reshape(ct, (*x.shape[:2], *apart)), tuple(range(3, 2 * x.ndim - 2, 2)))

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(2, 3, 2, 3), dtypes=(*FLOATS, "i32", "bool"))
        yield sample(cls(), spec(1, 2, 3))
        yield sample(cls(), spec("N", 2, "H", 2), N=2, H=3)


def conv(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | tuple[int, int]] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    lhs_dilation: int | Sequence[int] = 1,
    precision: str = "default",
    out_dtype: DTypeLike | None = None,
) -> Any:
    """Convolution of x [N, C, spatial..] with w [C_out, C/groups, kernel..]; see `Conv`.

    `padding` is a number, one per axis, (low, high) per axis, "same" (the result has ⌈size/stride⌉ positions) or
    "valid" (no padding). `lhs_dilation` puts zeros between the elements of x first.
    """
    from rlx.ops.shape.movement import pad

    x, w = promote_operands(x, w)
    rank = len(dims_of(x)) - 2
    kernel: Any = dims_of(w)[2:]
    steps, spread, gaps = per_axis(stride, rank), per_axis(dilation, rank), per_axis(lhs_dilation, rank)
    if isinstance(padding, str):
        spaced = [dim_max((size - 1) * gap + 1, 0) for size, gap in zip(dims_of(x)[2:], gaps)]
        sides = _named_padding(padding, tuple(spaced), kernel, steps, spread)
    else:
        each = (padding,) * rank if isinstance(padding, int) else padding
        sides = [(p, p) if isinstance(p, int) else p for p in each]
    if any(g != 1 for g in gaps):
        if {*steps} == {1} and out_dtype is None and 0 not in dims_of(x) and _reaches_less(sides, kernel, spread):
            return _spread_conv(x, w, gaps, sides, spread, groups, precision)
        x = pad(x, 0, interior=(0, 0, *(g - 1 for g in gaps)))
    if any(low != high or not isinstance(low, int) for low, high in sides):
        low, high = zip(*sides)
        x, sides = pad(x, 0, low=(0, 0, *low), high=(0, 0, *high)), [(0, 0)] * rank
    out = None if out_dtype is None else DType.of(out_dtype)
    return Conv(kernel, steps, tuple(low for low, _ in sides), spread, groups, precision, out)(x, w)


def _reaches_less(sides: Sequence[tuple[Any, Any]], kernel: Ints, dilation: Ints) -> bool:
    """Whether no window lies in the padding alone."""
    reach = [d * (k - 1) for k, d in zip(kernel, dilation)]
    return all(isinstance(p, int) and 0 <= p <= r for pair, r in zip(sides, reach) for p in pair)


def _spread_conv(
    x: Any, w: Any, gaps: Ints, sides: Sequence[tuple[int, int]], dilation: Ints, groups: int, precision: str
) -> Any:
    """The convolution of x with zeros between its elements as the adjoint of a strided one, which never meets them."""
    from rlx.ops.shape import movement

    out, rank = dims_of(w)[0], len(gaps)
    by_group = movement.reshape(w, (groups, out // groups, *dims_of(w)[1:]))
    swapped = movement.reshape(movement.swapaxes(by_group, 1, 2), (-1, out // groups, *dims_of(w)[2:]))
    turned = movement.reverse(swapped, tuple(range(2, 2 + rank)))
    reach = [d * (k - 1) for k, d in zip(dims_of(w)[2:], dilation)]
    padding = tuple(r - low for r, (low, _) in zip(reach, sides))
    longer = tuple(max(high - low, 0) for low, high in sides)
    y = ConvTranspose2d(dims_of(w)[2:], gaps, padding, dilation, longer, groups, precision)(x, turned)
    for axis, (low, high) in enumerate(sides, 2):
        if high < low:
            y = movement.narrow(y, axis, 0, dims_of(y)[axis] - (low - high))
    return y


def _named_padding(name: str, sizes: Dims, kernel: Ints, stride: Ints, dilation: Ints) -> list[tuple[Any, Any]]:
    """(low, high) per axis for "same" and "valid"; an odd total puts one more at the end."""
    if name.lower() not in ("same", "valid"):
        raise OpError(f"conv: padding must be numbers, 'same' or 'valid', got {name!r}")
    if name.lower() == "valid":
        return [(0, 0)] * len(sizes)
    sides = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation):
        total = dim_max((ceildiv(size, s) - 1) * s + d * (k - 1) + 1 - size, 0)
        sides.append((total // 2, total - total // 2))
    return sides


def conv_transpose(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
) -> Any:
    """Transposed convolution of x [N, C_in, spatial..] with w [C_in, C_out/groups, kernel..]; see `ConvTranspose2d`."""
    x, w = promote_operands(x, w)
    rank = len(dims_of(x)) - 2
    settings = (per_axis(v, rank) for v in (stride, padding, dilation, output_padding))
    return ConvTranspose2d(dims_of(w)[2:], *settings, groups)(x, w)


def im2col(
    x: Any,
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
) -> Any:
    """The windows of x [N, C, spatial..] as the rows of a matrix; see `Im2Col`."""
    rank = len(kernel_size)
    settings = (per_axis(v, rank) for v in (stride, padding, dilation))
    return Im2Col(tuple(kernel_size), *settings)(x)


def resize_nearest_2x(x: Any) -> Any:
    """x [N, C, H, W] with height and width doubled by repetition."""
    return ResizeNearest2x()(x)
