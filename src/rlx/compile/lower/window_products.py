"""Convolutions of pictures on tensor cores.

    conv(x, w)                     ->  turned(window_matmul(turned(x), rows of w)): channels side by side, and one
                                       product over all windows
    conv2d_backward_input(dy, w)   ->  the same of dy, with the window turned round; with a stride, a window of its
                                       own for every place among stride x stride, all in one product
    conv2d_backward_weight(x, dy)  ->  the sum of parts of window_gradient(turned(x), turned(dy))

Windows of one pixel are plain products: of every picture as it lies where that begins at whole words of 16 bytes, else
of pixels with their channels side by side. Channels are filled up with zeros to a multiple of eight, so that those of a
pixel are whole words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.linalg.contraction import matmul
from rlx.ops.lowered.window_gradients import PIECE, PixelMatMul, WindowGradient
from rlx.ops.lowered.window_products import WindowMatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput, Conv2dBackwardWeight
from rlx.ops.pointwise.arithmetic import where
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.movement import expand, narrow, pad, reshape, reverse, slice_, swapaxes, transpose

_TYPES = (DType.BF16, DType.F16)
# Channels of which a pixel's are made up, or pixels of which a row of them is.
UNIT = 8
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
# Blocks that a large GPU has at once, the fewest pieces of pixels that one of them sums, and the most parts of a sum:
# adding up more costs what they save.
BLOCKS, FEWEST_PIECES, MOST_PARTS = 132, 8, 66
# A tile of the sums, as kernels choose it most often.
_TILE_ROWS, _TILE_COLUMNS = 128, 256

_Convolution = Conv | Conv2dBackwardInput | Conv2dBackwardWeight


def window_products(graph: Graph) -> Graph:
    """The graph with its convolutions of pictures as products; the same if there are none."""
    if not any(_has_form(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if not _has_form(graph, node):
            return None
        op, dims, (a, b) = node.op, node.shape.static_dims, operands
        if isinstance(op, Conv):
            return _forward(op, a, b, dims)
        if isinstance(op, Conv2dBackwardInput):
            return _input_gradient(op, a, b, dims)
        assert isinstance(op, Conv2dBackwardWeight)
        return _weight_gradient(op, a, b)

    return rebuild(graph, visit, "window_products").graph


def _has_form(graph: Graph, node: Node) -> bool:
    op = node.op
    if not isinstance(op, _Convolution) or op.groups != 1 or op.spatial_rank != 2:
        return False
    shapes = [graph.shape(i) for i in node.inputs]
    if not all(s.is_static and s.dtype in _TYPES and 0 not in s.dims for s in (*shapes, node.shape)):
        return False
    # Results of another type, and windows that begin inside of the picture, have another way.
    is_plain = node.shape.dtype is shapes[0].dtype and getattr(op, "precision", "default") == "default"
    if isinstance(op, Conv2dBackwardWeight):
        return is_plain and shapes[1].static_dims[1] % UNIT == 0
    if isinstance(op, Conv):
        # A product of every picture as it lies is what such a convolution becomes by itself.
        is_product = set(op.stride) == {1} and _is_pixelwise(op) and _has_rows(node.shape.static_dims)
        return is_plain and not is_product
    return is_plain and all(r >= p for r, p in zip(op.reach, op.padding))


def _is_pixelwise(op: _Convolution, *channels: int) -> bool:
    """Whether windows see one pixel, with channels that are whole words."""
    return set(op.kernel_size) == {1} and not any(op.padding) and not any(c % UNIT for c in channels)


def _has_rows(result: tuple[int, ...]) -> bool:
    """Whether pictures can be operands as they lie: their pixels are whole words."""
    return result[2] * result[3] % UNIT == 0


def _forward(op: Conv, x: Any, w: Any, result: tuple[int, ...]) -> Any:
    if not _is_pixelwise(op, x.shape[1]):
        windows = WindowMatMul(op.kernel_size, result[2:], op.stride, op.padding, op.dilation)
        return transpose(_over_windows(windows, x, w), _FIRST)
    seen, w = _every(op, x), reshape(w, w.shape[:2])
    if _has_rows(result):
        return _picture_products(seen, w)
    return transpose(_pixel_products(transpose(seen, _LAST), w), _FIRST)


def _every(op: _Convolution, x: Any) -> Any:
    """The pixels that windows of one pixel see."""
    return x if set(op.stride) == {1} else slice_(x, (0,) * 4, x.shape, (1, 1, *op.stride))


def _picture_products(x: Any, w: Any) -> Any:
    """w [O, C] by every picture of x [N, C, H, W] as it lies."""
    images, channels, height, width = x.shape
    rows = expand(reshape(w, (1, *w.shape)), (images, *w.shape))
    product = matmul(rows, reshape(x, (images, channels, height * width)))
    return reshape(product, (images, w.shape[0], height, width))


def _pixel_products(pixels: Any, w: Any) -> Any:
    """Channels [.., C] by w [O, C]."""
    *outer, channels = pixels.shape
    rows = reshape(pixels, (int(np.prod(outer)), channels))
    return reshape(matmul(rows, swapaxes(w, 0, 1)), (*outer, w.shape[0]))


def _over_windows(op: WindowMatMul, x: Any, w: Any) -> Any:
    """The product of x [N, C, H, W] and w [O, C, taps..], channels last."""
    x, w = _filled_up(x), _filled_up(w)
    rows = reshape(transpose(w, _LAST), (w.shape[0], w.shape[2] * w.shape[3] * x.shape[1]))
    return op(transpose(x, _LAST), rows)


def _filled_up(x: Any) -> Any:
    """Channels as whole words, with zeros behind the last; as long as they lie apart that is one copy."""
    missing = -x.shape[1] % UNIT
    return pad(x, 0, high=(0, missing, 0, 0)) if missing else x


def _input_gradient(op: Conv2dBackwardInput, dy: Any, w: Any, dims: tuple[int, ...]) -> Any:
    if _is_pixelwise(op, dy.shape[1]):
        return _pixel_input_gradient(op, dy, reshape(w, w.shape[:2]), dims)
    if set(op.stride) == {1} or set(op.dilation) != {1}:
        low = tuple(r - p for r, p in zip(op.reach, op.padding))
        turned = reverse(swapaxes(w, 0, 1), (2, 3))
        result = WindowMatMul(op.kernel_size, dims[2:], (1, 1), low, op.dilation, op.stride)
        return transpose(_over_windows(result, dy, turned), _FIRST)
    return _strided_input_gradient(op, dy, w, dims)


def _pixel_input_gradient(op: Conv2dBackwardInput, dy: Any, w: Any, dims: tuple[int, ...]) -> Any:
    turned = swapaxes(w, 0, 1)
    if _has_rows(dy.shape):
        found = _picture_products(dy, turned)
    else:
        found = transpose(_pixel_products(transpose(dy, _LAST), turned), _FIRST)
    if set(op.stride) == {1}:
        return found
    # Every pixel in the corner of a field of zeros.
    (images, channels, height, width), (tall, wide) = found.shape, op.stride
    corner = np.zeros((tall, 1, wide), bool)
    corner[0, 0, 0] = True
    fields = expand(
        reshape(found, (images, channels, height, 1, width, 1)), (images, channels, height, tall, width, wide)
    )
    return _cut(reshape(where(corner, fields, 0), (images, channels, height * tall, width * wide)), dims)


def _strided_input_gradient(op: Conv2dBackwardInput, dy: Any, w: Any, dims: tuple[int, ...]) -> Any:
    """Rows of x that lie a stride apart see dy through one window, others through other ones. All of these as one
    window, with zeros where a row does not see, and each as filters of its own."""
    axes = [_phases(*settings) for settings in zip(op.kernel_size, op.stride, op.padding)]
    found = pad(w, 0, high=(0, 0, 1, 1))
    for axis, (taps, _) in ((2, axes[0]), (4, axes[1])):
        # Taps that are not there are the zeros behind the last one.
        found = gather(found, np.asarray(taps, np.int32), axis=axis, mode="clip")
    filters, channels, tall, high, wide, across = found.shape
    window = transpose(found, (2, 4, 1, 0, 3, 5))
    window = reshape(window, (tall * wide * channels, filters, high, across))
    sizes = tuple(-(-size // s) for size, s in zip(dims[2:], op.stride))
    low = tuple(before for _, before in axes)
    product = _over_windows(WindowMatMul((high, across), sizes, (1, 1), low, (1, 1)), dy, window)
    phases = reshape(product, (dims[0], *sizes, tall, wide, channels))
    whole = reshape(transpose(phases, (0, 5, 1, 3, 2, 4)), (dims[0], channels, sizes[0] * tall, sizes[1] * wide))
    return _cut(whole, dims)


def _cut(x: Any, dims: tuple[int, ...]) -> Any:
    """Pictures of which some rows and columns at the end are too many."""
    for axis in (2, 3):
        x = narrow(x, axis, 0, dims[axis]) if x.shape[axis] != dims[axis] else x
    return x


def _phases(kernel: int, stride: int, padding: int) -> tuple[list[list[int]], int]:
    """For rows stride·i + r of x: which tap row i + u - before of dy has there, for every u of the window that serves
    all r, and `before`. `kernel` is none."""
    # x row stride·i + r sees dy row i + (r + padding) // stride - t through tap (r + padding) % stride + stride·t.
    firsts = [divmod(r + padding, stride) for r in range(stride)]
    lasts = [ahead - (kernel - 1 - tap) // stride for ahead, tap in firsts if tap < kernel]
    before = max(0, -min(lasts))
    length = max(ahead for ahead, _ in firsts) + before + 1
    taps = [[tap + stride * (ahead + before - u) for u in range(length)] for ahead, tap in firsts]
    return [
        [t if 0 <= t < kernel and ahead + before >= u else kernel for u, t in enumerate(row)]
        for row, (ahead, _) in zip(taps, firsts)
    ], before


def _weight_gradient(op: Conv2dBackwardWeight, x: Any, dy: Any) -> Any:
    images, channels = x.shape[:2]
    filters, pixels = dy.shape[1], int(np.prod(dy.shape[2:]))
    if _is_pixelwise(op):
        x = _every(op, x)
    if _is_pixelwise(op, channels) and _has_rows(dy.shape):
        pieces = images * -(-pixels // PIECE)
        rows = (reshape(t, (images, t.shape[1], pixels)) for t in (x, dy))
        sums = PixelMatMul(-(-pieces // _part_count(channels, filters, pieces)))(*rows)
        return reshape(swapaxes(_added(sums, x.dtype), 0, 1), (filters, channels, 1, 1))
    stride = (1, 1) if _is_pixelwise(op) else op.stride
    seen = transpose(_filled_up(x), _LAST)
    filled = seen.shape[3]
    taps, pieces = op.kernel_size[0] * op.kernel_size[1], -(-images * pixels // PIECE)
    run = -(-pieces // _part_count(taps * filled, filters, pieces)) * PIECE
    gradient = WindowGradient(op.kernel_size, stride, op.padding, op.dilation, run)
    sums = _added(gradient(seen, transpose(dy, _LAST)), x.dtype)
    sums = reshape(sums, (*op.kernel_size, filled, filters))
    return transpose(narrow(sums, 2, 0, channels) if filled > channels else sums, (3, 2, 0, 1))


def _part_count(rows: int, columns: int, pieces: int) -> int:
    """Into how many parts a sum of so many pieces is cut, so that all blocks have something to sum."""
    tiles = -(-rows // _TILE_ROWS) * -(-columns // _TILE_COLUMNS)
    return max(1, min(BLOCKS // tiles, MOST_PARTS, pieces // FEWEST_PIECES))


def _added(sums: Any, dtype: DType) -> Any:
    whole = reshape(sums, sums.shape[1:]) if sums.shape[0] == 1 else reduce_sum(sums, 0)
    return whole.astype(dtype)
