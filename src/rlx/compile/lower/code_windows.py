"""Convolutions of 8-bit codes as dot products of bytes, four channels at a time.

    conv((codes - zero)·scale, (w - 0)·scales)     ->   (code_windows(codes, lines of w) + sums)·(scale·scales)
    conv(codes - zero, w)                          ->   the same without scales

The first form is what quantised models are written in between QuantizeLinear and DequantizeLinear, the second
QLinearConv. Sums of codes are exact in whole numbers; `sums` takes zero times those of w back.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rlx.compile.generators import Generator
from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant
from rlx.ir.tensor import Tensor
from rlx.ops.lowered.int8_products import WORD, ZERO, Int8Lines, Int8MatMul
from rlx.ops.lowered.window_products import ChannelWindows, CodeWindows
from rlx.ops.nn.convolution import Conv
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.conversion import Cast, cast
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.movement import Transpose, concat, narrow, pad, reshape, slice_, transpose

_BYTES = (DType.I8, DType.U8)
# Channels from which on a copy with whole words costs too much, outputs from which on panels are worth their layout,
# and bytes of one step along the channels.
FEWEST_CHANNELS, FEWEST_OUTPUTS, STEP_BYTES = 8, 8, 1152
# Products of codes whose sum f32 holds exactly: each is below 255 * 128.
MOST_EXACT = 512


class Codes(NamedTuple):
    """A value (bytes - zero)·scale; without a scale it is of whole numbers."""

    bytes: Tensor
    zero: int
    scale: Tensor | None


def codes_of(x: Tensor) -> Codes | None:
    """What a value is dequantised from, with one zero point for all."""
    if x.dtype.is_float:
        sides = _sides(x, BinaryOp.Mul)
        if sides is None or not isinstance(sides[0].node.op, Cast) or sides[0].shape != x.shape:
            return None
        whole = _operand(sides[0])
        found = Codes(whole, 0, None) if whole.dtype in _BYTES else codes_of(whole)
        return None if found is None or found.scale is not None else found._replace(scale=sides[1])
    if x.dtype is not DType.I32:
        return None
    if isinstance(x.node.op, Cast):
        return Codes(_operand(x), 0, None) if _operand(x).dtype in _BYTES else None
    sides = _sides(x, BinaryOp.Sub)
    if sides is None or sides[0].shape != x.shape or not isinstance(sides[1].node.op, Constant):
        return None
    found, zeros = codes_of(sides[0]), sides[1].node.op.value.array.reshape(-1)
    is_one = zeros.size > 0 and bool((zeros == zeros[0]).all())
    return found._replace(zero=int(zeros[0])) if found is not None and found.zero == 0 and is_one else None


def _sides(x: Tensor, kind: BinaryOp) -> tuple[Tensor, Tensor] | None:
    op = x.node.op
    if not isinstance(op, Binary) or op.kind is not kind:
        return None
    first, second = (x.graph.tensor(i) for i in x.node.inputs)
    return first, second


def _operand(x: Tensor) -> Tensor:
    return x.graph.tensor(x.node.inputs[0])


def are_codes(graph: Graph, node: Node) -> bool:
    """Whether a convolution of whole numbers is one of bytes."""
    x, w = (codes_of(graph.tensor(i)) for i in node.inputs)
    return x is not None and w is not None and w.zero == 0 and w.bytes.dtype is DType.I8


def channels_of_codes(op: Conv, node: Node, pixels: Any, w: Any) -> Any:
    """A depthwise convolution of pixels that are made of codes, which are read as they are; None if it is no such."""
    found = _read_codes(pixels, w)
    if found is None or math.prod(op.kernel_size) > MOST_EXACT:
        return None
    x, weight = found
    window, result, stride, padding, dilation = places_of(op, node)
    taps = reshape(transpose(weight.bytes, (*range(2, weight.bytes.ndim), 1, 0)), (product(window), w.shape[0]))
    taps = cast(taps, DType.F32)
    codes = x.bytes if x.bytes.ndim == 4 else reshape(x.bytes, (x.bytes.shape[0], 1, *x.bytes.shape[1:]))
    total = ChannelWindows(window, result, stride, padding, dilation, x.zero)(codes, taps)
    if x.zero:
        total = total - reduce_sum(taps, 0) * np.float32(x.zero)
    return _scaled(reshape(total, (pixels.shape[0], *node.shape.dims[2:], w.shape[0])), x, weight, pixels.dtype)


def places_of(op: Conv, node: Node) -> tuple[Any, ...]:
    """Window, result, stride, padding and dilation over pictures; a line is a picture of one row."""
    ones = (1,) * (2 - op.spatial_rank)
    window, stride, dilation = ((*ones, *given) for given in (op.kernel_size, op.stride, op.dilation))
    return window, (*ones, *node.shape.dims[2:]), stride, (*(0 for _ in ones), *op.padding), dilation


def may_be_dots(op: Conv, channels: Any) -> bool:
    """Whether windows see whole words of channels."""
    return op.groups == 1 and (channels % WORD == 0 or channels < FEWEST_CHANNELS)


def product_of_codes(op: Conv, node: Node, pixels: Any, w: Any, generator: Generator) -> Any:
    """A convolution of pixels [N, .., C] that are made of codes, with its channels last; None if it is no such."""
    outputs = int(node.shape.dims[1])
    if not may_be_dots(op, pixels.shape[-1]) or outputs < FEWEST_OUTPUTS or generator.panel_width is None:
        return None
    found = _read_codes(pixels, w)
    if found is None:
        return None
    x, weight = found
    width = generator.panel_width(DType.I32, outputs)
    total, lines = _sums(op, node, x.bytes, weight.bytes, x.zero, width)
    if x.zero != ZERO:
        total = total + reduce_sum(cast(lines, DType.I32), 0) * (ZERO - x.zero)
    return _scaled(reshape(total, (pixels.shape[0], *node.shape.dims[2:], outputs)), x, weight, pixels.dtype)


def _read_codes(pixels: Any, w: Any) -> tuple[Codes, Codes] | None:
    """Codes u8 of pixels and i8 of weights, with one scale for all pixels and one for each output."""
    is_turned = isinstance(pixels.node.op, Transpose)
    x, weight = codes_of(_operand(pixels) if is_turned else pixels), codes_of(w)
    if x is None or weight is None or weight.zero or weight.bytes.dtype is not DType.I8:
        return None
    is_scalar = x.scale is None or product(x.scale.shape) == 1
    if not is_scalar or (weight.scale is not None and product(weight.scale.shape) not in (1, w.shape[0])):
        return None
    if is_turned:
        x = x._replace(bytes=transpose(x.bytes, pixels.node.op.perm))
    if x.bytes.dtype is DType.I8:
        x = x._replace(bytes=cast(cast(x.bytes, DType.I32) + ZERO, DType.U8), zero=x.zero + ZERO)
    return (x, weight) if 0 <= x.zero < 2 * ZERO else None


def _scaled(total: Any, x: Codes, weight: Codes, dtype: DType) -> Any:
    """The numbers that sums of codes stand for; without scales whole ones."""
    if x.scale is None or weight.scale is None:
        return cast(total, DType.I32)
    scales = reshape(weight.scale, (-1,)) * reshape(x.scale, (1,))
    return cast(total, dtype) * cast(scales, dtype)


def _sums(op: Conv, node: Node, x: Any, w: Any, zero: int, width: int) -> tuple[Any, Any]:
    """Σ (code - 128)·w over windows, and w as lines."""
    outputs, channels = w.shape[0], int(x.shape[-1])
    if x.ndim == 3:
        x, w = reshape(x, (x.shape[0], 1, *x.shape[1:])), reshape(w, (*w.shape[:2], 1, w.shape[2]))
    window, result, stride, padding, dilation = places_of(op, node)
    if missing := -channels % WORD:
        # Channels that are not there have weights of 0.
        x = pad(x, np.uint8(zero), high=(0, 0, 0, missing))
        w = pad(w, np.int8(0), high=(0, missing, 0, 0))
        channels += missing
    if {*window} == {1} and not any(padding):
        lines = weight_lines(w, channels)
        seen = x if {*stride} == {1} else slice_(x, (0,) * 4, x.shape, (1, *stride, 1))
        rows = reshape(seen, (product(seen.shape[:3]), channels))
        return Int8MatMul(outputs)(rows, Int8Lines(width)(lines)), lines
    together = _together(channels, math.prod(window))
    lines = weight_lines(w, together)
    windows = CodeWindows(window, result, stride, padding, dilation, together, outputs, zero)
    return windows(x, Int8Lines(width)(lines)), lines


def _together(channels: int, taps: int) -> int:
    """Channels of a step: whole words, in parts of about equal size."""
    most = max(16, STEP_BYTES // taps // 16 * 16)
    parts = -(-channels // most)
    return -(-channels // parts // 16) * 16 if parts > 1 else channels


def weight_lines(w: Any, together: int) -> Any:
    """w [O, C, taps..] as the lines of a product over windows that takes so many channels in a step."""
    outputs, channels = w.shape[:2]
    parts = [narrow(w, 1, at, min(together, channels - at)) for at in range(0, channels, together)]
    lines = [reshape(transpose(part, (2, 3, 1, 0)), (-1, outputs)) for part in parts]
    return concat(lines, 0) if len(lines) > 1 else lines[0]
