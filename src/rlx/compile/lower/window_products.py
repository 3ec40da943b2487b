"""Convolutions of pictures on tensor cores: channels side by side, and one product over all windows.

    conv(x, w)                     ->    turned(window_matmul(turned(x), rows of w))
    conv2d_backward_input(dy, w)   ->    the same of dy, with the window turned round and dy spread out by the stride

Channels are filled up with zeros to a multiple of eight, so that those of a pixel are whole words of 16 bytes.
"""

from __future__ import annotations

from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.lowered.window_products import WindowMatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput
from rlx.ops.shape.movement import pad, reshape, reverse, swapaxes, transpose

_TYPES = (DType.BF16, DType.F16)
# Channels of which a pixel's are made up.
UNIT = 8
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def window_products(graph: Graph) -> Graph:
    """The graph with its convolutions of pictures as products over windows; the same if there are none."""
    if not any(_has_form(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if not _has_form(graph, node):
            return None
        op = node.op
        assert isinstance(op, Conv | Conv2dBackwardInput)
        x, w = operands
        result: Any = node.shape.dims[2:]
        if isinstance(op, Conv):
            settings = (op.kernel_size, result, op.stride, op.padding, op.dilation)
            return _product(WindowMatMul(*settings), x, w)
        low = tuple(r - p for r, p in zip(op.reach, op.padding))
        turned = reverse(swapaxes(w, 0, 1), (2, 3))
        return _product(WindowMatMul(op.kernel_size, result, (1, 1), low, op.dilation, op.stride), x, turned)

    return rebuild(graph, visit, "window_products").graph


def _product(op: WindowMatMul, x: Any, w: Any) -> Any:
    missing = -x.shape[1] % UNIT
    pixels, taps = transpose(x, _LAST), transpose(w, _LAST)
    if missing:
        pixels, taps = (pad(t, 0, high=(0, 0, 0, missing)) for t in (pixels, taps))
    rows = reshape(taps, (w.shape[0], w.shape[2] * w.shape[3] * (x.shape[1] + missing)))
    return transpose(op(pixels, rows), _FIRST)


def _has_form(graph: Graph, node: Node) -> bool:
    op = node.op
    if not isinstance(op, Conv | Conv2dBackwardInput) or op.groups != 1 or op.spatial_rank != 2:
        return False
    shapes = [graph.shape(i) for i in node.inputs]
    if not all(s.is_static and s.dtype in _TYPES and 0 not in s.dims for s in (*shapes, node.shape)):
        return False
    if isinstance(op, Conv) and {*op.kernel_size, *op.stride} == {1} and not any(op.padding):
        # A product of every picture as it lies: turning it would cost more.
        return False
    # Results of another type, and windows that begin inside of the picture, have another way.
    is_plain = node.shape.dtype is shapes[0].dtype and op.precision == "default"
    return is_plain and (isinstance(op, Conv) or all(r >= p for r, p in zip(op.reach, op.padding)))
