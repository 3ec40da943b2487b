"""Convolutions that are products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.dims import product
from rlx.ir.op import Op
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.shape.movement import reshape, transpose

# Elements of a patch from which on turning the picture round costs nothing beside the product.
LARGE_PATCH = 64


def conv_form(op: Op, *operands: Any) -> Callable[[Any, Any], Any] | None:
    """A window of one element that goes everywhere multiplies every position by the same matrix, one that goes by its
    own size every patch; None for others."""
    assert isinstance(op, Conv)
    x, _ = operands
    is_plain = op.groups == 1 and not any(op.padding) and not x.dtype.is_complex
    if is_plain and _are_patches(op, x):
        return lambda x, w: _of_patches(op, x, w)
    if not is_plain or {*op.kernel_size, *op.stride} != {1}:
        return None

    def build(x: Any, w: Any) -> Any:
        images, channels, *sizes = x.shape
        columns = reshape(x, (images, channels, product(sizes)))
        y = MatMul(precision=op.precision, out_dtype=op.out_dtype)(reshape(w, w.shape[:2]), columns)
        return reshape(y, op.infer(x.type, w.type).dims)

    return build


def _are_patches(op: Conv, x: Any) -> bool:
    """Whether windows lie side by side and cover the picture."""
    channels, *sizes = x.shape[1:]
    if (
        op.kernel_size != op.stride
        or set(op.dilation) != {1}
        or not all(isinstance(s, int) for s in (channels, *sizes))
    ):
        return False
    is_large = channels * product(op.kernel_size) >= LARGE_PATCH and min(op.kernel_size) > 1
    return is_large and all(size and size % taps == 0 for size, taps in zip(sizes, op.kernel_size))


def _of_patches(op: Conv, x: Any, w: Any) -> Any:
    """The patches of all pictures as rows, times w[O, K] turned round."""
    images, channels, *sizes = x.shape
    rank, counts = len(sizes), [size // taps for size, taps in zip(sizes, op.kernel_size)]
    cut = [n for pair in zip(counts, op.kernel_size) for n in pair]
    # [N, C, rows, taps, columns, taps] -> [N, rows, columns, C, taps, taps]
    turn = (0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
    patches = transpose(reshape(x, (images, channels, *cut)), turn)
    places, outputs, depth = product(counts), w.shape[0], channels * product(op.kernel_size)
    taps = transpose(reshape(w, (outputs, depth)), (1, 0))
    y = MatMul(precision=op.precision, out_dtype=op.out_dtype)(reshape(patches, (images * places, depth)), taps)
    return reshape(transpose(reshape(y, (images, places, outputs)), (0, 2, 1)), op.infer(x.type, w.type).dims)
