"""Convolution and its adjoint, straight from the definition: no windows are ever stored.

One iteration computes a row (the last spatial axis) of a few output channels. Each vector of x is loaded once for all
of these channels and each weight once for all positions of a tile; sums stay in registers over all taps and channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.conv_depthwise import DepthwiseConv, has_planes
from rlx.kernels.cpu.ops.conv_product import ConvProduct
from rlx.kernels.cpu.ops.windows import WindowAxis, fold_taps, inside_rows, lane_count
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import ALL, FLOATS, Value, ValueType
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.convolution import Conv, ConvBase, ConvTranspose2d
from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput

# Output channels of a group, and lines, below which products do not pay. Where windows step over places, the other way
# back to the image reads element by element, so that one channel is enough there.
FEW, FEW_LINES = 3, 8
LEAST_SCRATCH = 256 << 10


def _supports(op: Op, operands: Sequence[Shape]) -> bool:
    return all(t.dtype in ALL for t in operands)


def is_product(site: OpSite, is_backward: bool) -> bool:
    """Whether weights times what windows see is the better way: not for a few channels of a group, which leave most of
    a register tile empty, and not where iterations are threads."""
    op = site.op
    assert isinstance(op, ConvBase)
    if site.machine.is_gpu or site.machine.line_bytes < LEAST_SCRATCH:
        return False
    if compute_dtype(site.outputs[0].shape.dtype) not in FLOATS:
        return False
    if is_backward and any(s > 1 and d > 1 for s, d in zip(op.stride, op.dilation)):
        return False
    # Sizes that only the run knows are taken for large ones.
    read, written = (slab.shape.dims[1] for slab in (site.inputs[0], site.outputs[0]))
    lines = read // op.groups * math.prod(op.kernel_size) if isinstance(read, int) else FEW_LINES
    rows = written // op.groups if isinstance(written, int) else FEW
    few = 1 if is_backward and any(s > 1 for s in op.stride) else FEW
    return lines >= FEW_LINES and rows >= few and rows * lines >= few * FEW_LINES


@op_kernel(Conv, kind="conv", supports=_supports)
def conv(site: OpSite) -> None:
    _build(site, is_backward=False)


def _build(site: OpSite, is_backward: bool) -> None:
    if has_planes(site.machine, site.op, site.inputs[0], site.outputs[0], is_backward):
        DepthwiseConv(site, is_backward).build()
    elif is_product(site, is_backward):
        ConvProduct(site, is_backward).build()
    else:
        _Convolution(site, is_backward).build()


@op_kernel(Conv2dBackwardInput, ConvTranspose2d, kind="conv", supports=_supports)
def transposed_conv(site: OpSite) -> None:
    _build(site, is_backward=True)


class _Convolution:
    """y[n, o, p..] = Σ over the channels c of a group and taps a.. of x[n, c, read(p, a)..]·w[..]; w is [o, c, a..], or
    [c, o, a..] in the backward direction, the second axis within the group."""

    def __init__(self, site: OpSite, is_backward: bool) -> None:
        assert isinstance(site.op, ConvBase)
        self.k, self.op, self.is_backward = site.k, site.op, is_backward
        (self.x, self.w), (self.y,) = site.inputs, site.outputs
        self.wide = compute_dtype(self.y.shape.dtype)
        settings = zip(site.op.kernel_size, site.op.stride, site.op.dilation, site.op.padding, self.x.dims[2:])
        self.axes = [WindowAxis(*one, is_backward) for one in settings]
        groups = site.op.groups
        self.reads, self.writes = (slab.dims[1] // groups for slab in (self.x, self.y))
        self.lanes = lane_count(site.machine.lanes(self.wide), self.y.shape.dims[-1])
        # Sums, and what is multiplied, have to fit into the registers.
        vectors = 2 if site.machine.vector_registers >= 16 else 1
        width = self.y.shape.dims[-1]
        self.vectors = min(vectors, -(-width // self.lanes) if isinstance(width, int) else vectors)
        self.channels = _block(self.y.shape.dims[1], groups, 8 if site.machine.vector_registers >= 32 else 4)

    def build(self) -> None:
        k = self.k
        blocks = k.ceildiv(self.writes, self.channels)
        sizes = [self.y.dims[0], k.as_index(self.op.groups), blocks, *self.y.dims[2:-1]]
        with k.parallel("row", total(k, sizes)) as row:
            image, group, block, *place = unflatten(row, sizes)
            first = block * self.channels
            tile = self.vectors * self.lanes
            with k.loop("q", 0, self.y.dims[-1], tile) as q:
                self.tile(image, group, first, place, q)

    def tile(self, image: Value, group: Value, first: Value, place: Sequence[Value], q: Value) -> None:
        k = self.k
        zero = k.const(0, ValueType(self.wide, self.lanes))
        columns = [q + v * self.lanes for v in range(self.vectors)]
        outputs = [k.min(first + j, self.writes - 1) if j else first for j in range(self.channels)]

        def multiply(taps: Sequence[Value], sums: Sequence[Value], channel: Value) -> list[Value]:
            seen = self.seen(image, group * self.reads + channel, place, columns, taps)
            found = []
            for j, output in enumerate(outputs):
                weight = k.splat(self.weight(group, output, channel, taps), self.lanes)
                for v, x in enumerate(seen):
                    before = sums[j * self.vectors + v]
                    found.append(k.fma(x, weight, before) if self.wide in FLOATS else x * weight + before)
            return found

        start = [zero] * (self.channels * self.vectors)
        with k.fold("c", 0, self.reads, init=start) as fold:
            taps = [axis.taps for axis in self.axes]
            fold.next(*fold_taps(k, taps, fold.values, lambda at, sums: multiply(at, sums, fold.index)))
        for j in range(self.channels):
            for v in range(self.vectors):
                self.store(image, group, first + j, place, q + v * self.lanes, fold.results[j * self.vectors + v])

    def seen(
        self, image: Value, channel: Value, place: Sequence[Value], columns: Sequence[Value], taps: Sequence[Value]
    ) -> list[Value]:
        """What the windows at all columns see at one tap."""
        k = self.k
        index, has_row = inside_rows(k, self.axes[:-1], place, taps)
        row = self.x.at(image, channel, *index)
        loads = (self.axes[-1].load(k, self.x, row, c, self.lanes, taps[-1], has_row) for c in columns)
        return [k.cast(seen, self.wide) for seen, _ in loads]

    def weight(self, group: Value, output: Value, channel: Value, taps: Sequence[Value]) -> Value:
        if self.is_backward:
            index = [group * self.reads + channel, output, *taps]
        else:
            index = [group * self.writes + output, channel, *taps]
        return self.k.cast(self.k.load(self.w.buffer, self.w.at(*index)), self.wide)

    def store(self, image: Value, group: Value, output: Value, place: Sequence[Value], q: Value, sums: Value) -> None:
        k, y = self.k, self.y
        mask = k.lane_mask(y.dims[-1] - q, self.lanes) if self.lanes > 1 else q < y.dims[-1]
        exists = output < self.writes
        at = y.at(image, group * self.writes + output, *place, q)
        k.store(y.buffer, at, k.cast(sums, y.shape.dtype), mask=mask & k.splat(exists, self.lanes))


def _block(channels: object, groups: int, most: int) -> int:
    """How many output channels of a group are computed together."""
    if not isinstance(channels, int):
        return most
    each = max(1, channels // groups)
    return max(n for n in range(1, most + 1) if each % n == 0) if each % 2 == 0 or each < most else most
