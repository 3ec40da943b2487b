"""Convolutions of pictures whose channels lie side by side (NHWC), computed as they lie.

Convolutions have their channels first; a program that has them last turns its pictures before and after:

    transpose(conv(transpose(x), w))   ->   window_matmul(x, rows of w)

A window of one element is a product of matrices, and depthwise convolutions, of every channel by itself, are
`channel_windows`.
Gradients of inputs with a stride of 1 are convolutions with the window turned round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlx.compile.simplify.algebra import merge_transposes
from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.rewrite.rules import RuleSet, apply_rules
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.window_products import ChannelWindows, WindowMatMul
from rlx.ops.nn.convolution import Conv, ConvBase
from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput
from rlx.ops.shape.movement import Transpose, reshape, reverse, swapaxes, transpose

TURNS = RuleSet("channels_last", [merge_transposes])
# Elements of a row of windows that kernels keep in scratch at most, positions of that row, and channels that
# depthwise convolutions compute together.
SEEN, WIDEST, CHANNELS = 64 << 10, 64, 64


class _Windows(NamedTuple):
    """How windows go over a picture, whichever direction they are of."""

    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def channels_last(graph: Graph) -> Graph:
    """The graph with such convolutions as they lie; the same if there are none."""
    if not any(_has_form(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        return _as_they_lie(node, *operands) if _has_form(graph, node) else None

    turned = rebuild(graph, visit, "channels_last").graph
    return apply_rules(turned, TURNS, "channels_last").graph


def _as_they_lie(node: Node, x: Any, w: Any) -> Any:
    op, rank = node.op, x.ndim - 2
    assert isinstance(op, ConvBase)
    windows = _windows(op)
    if isinstance(op, Conv2dBackwardInput):
        axes = tuple(range(2, 2 + rank))
        w = reverse(w if op.groups > 1 else swapaxes(w, 0, 1), axes)
    last, first = (0, *range(2, 2 + rank), 1), (0, 1 + rank, *range(1, 1 + rank))
    pixels = transpose(x, last)
    result: Any = node.shape.dims[2:]
    if rank == 1:
        # A line is a picture of one row.
        pixels = reshape(pixels, (pixels.shape[0], 1, *pixels.shape[1:]))
        windows = _Windows(*((neutral, *given) for neutral, given in zip((1, 1, 0, 1), windows)))
        result = (1, *result)
    settings = (windows.taps, result, windows.stride, windows.padding, windows.dilation)
    if op.groups > 1:
        taps = transpose(w, (*range(2, 2 + rank), 1, 0))
        found = ChannelWindows(*settings)(pixels, reshape(taps, (product(w.shape[2:]), w.shape[0])))
    elif {*windows.taps, *windows.stride} == {1} and not any(windows.padding):
        rows = reshape(pixels, (product(pixels.shape[:3]), pixels.shape[3]))
        found = MatMul()(rows, transpose(reshape(w, w.shape[:2]), (1, 0)))
    else:
        # As programs with channels last have them: for every tap and channel a line of outputs.
        taps = transpose(w, (*range(2, 2 + rank), 1, 0))
        lines = reshape(taps, (product(taps.shape[:-1]), w.shape[0]))
        found = WindowMatMul(*settings)(pixels, transpose(lines, (1, 0)))
    return transpose(reshape(found, (x.shape[0], *node.shape.dims[2:], found.shape[-1])), first)


def pixels_of_row(window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> int:
    """How many pixels a row of neighbouring windows sees."""
    *outer, last = zip(window, stride, dilation)
    rows = math.prod((taps - 1) * apart + 1 for taps, _, apart in outer)
    return rows * ((WIDEST - 1) * last[1] + (last[0] - 1) * last[2] + 1)


def _windows(op: ConvBase) -> _Windows:
    if isinstance(op, Conv):
        return _Windows(op.kernel_size, op.stride, op.padding, op.dilation)
    low = tuple((taps - 1) * d - p for taps, d, p in zip(op.kernel_size, op.dilation, op.padding))
    return _Windows(op.kernel_size, (1,) * len(low), low, op.dilation)


def _has_form(graph: Graph, node: Node) -> bool:
    op = node.op
    if not isinstance(op, Conv | Conv2dBackwardInput) or op.spatial_rank > 2:
        return False
    x, w = (graph.shape(i) for i in node.inputs)
    channels = x.dims[1]
    if not all(s.is_static and s.dtype.is_float and 0 not in s.dims for s in (x, w, node.shape)):
        return False
    # Of groups of channels only those of one, each with one result.
    if op.groups > 1:
        is_small = pixels_of_row(op.kernel_size, op.stride, op.dilation) * CHANNELS <= SEEN
        if not op.groups == channels == node.shape.dims[1] or not is_small:
            return False
    if isinstance(op, Conv2dBackwardInput) and (set(op.stride) != {1} or min(_windows(op).padding) < 0):
        return False
    is_plain = node.shape.dtype is x.dtype is w.dtype and op.precision == "default"
    return is_plain and _is_turned(graph.nodes[node.inputs[0]])


def _is_turned(node: Node) -> bool:
    """Whether a picture has its channels last and was turned."""
    rank = node.shape.rank
    return isinstance(node.op, Transpose) and node.op.perm == (0, rank - 1, *range(1, rank - 1))
