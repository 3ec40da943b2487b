"""Convolutions with the arguments of `jax.lax`, the transposed one and windows as channels among them."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx import ops
from rlx.errors import OpError
from rlx.ir.dtype import DTypeLike
from rlx.lax.windows import padtype_to_pads
from rlx.numpy.arguments import static_size
from rlx.ops.define.operands import dims_of

Padding = str | Sequence[tuple[int, int]]


class Precision(enum.StrEnum):
    """How exactly products of f32 are formed; the words themselves are accepted everywhere too."""

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


PrecisionLike = str | tuple[str, str] | None


def precision_word(precision: PrecisionLike) -> str:
    """The word that ops take; of a pair, one for each operand, the more exact one."""
    words = [*Precision]
    if isinstance(precision, tuple):
        return max((Precision(word) for word in precision), key=words.index)
    return precision or "default"


class ConvDimensionNumbers(NamedTuple):
    """Where the axes of image, kernel and result are, in the order [N, C, ...], [O, I, ...] and [N, C, ...]."""

    lhs_spec: Sequence[int]
    rhs_spec: Sequence[int]
    out_spec: Sequence[int]


DimensionNumbers = ConvDimensionNumbers | tuple[str, str, str] | None


def conv_dimension_numbers(
    lhs_shape: Sequence[Any], rhs_shape: Sequence[Any], dimension_numbers: DimensionNumbers
) -> ConvDimensionNumbers:
    """The places of axes that letters such as ("NHWC", "HWIO", "NHWC") name; None is [N, C, ...] with [O, I, ...]."""
    rank = len(lhs_shape)
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if dimension_numbers is None:
        return ConvDimensionNumbers(*[tuple(range(rank))] * 3)
    image, kernel, result = dimension_numbers
    space = "".join(axis for axis in image if axis not in "NC")
    named = [(image, "NC" + space), (kernel, "OI" + space), (result, "NC" + space)]
    if len(rhs_shape) != rank or any(sorted(given) != sorted(order) or len(given) != rank for given, order in named):
        raise OpError(
            f"dimension_numbers: needs {rank} letters each for image, kernel and result: N and C, O and I, N and C, "
            f"and the same others in all, got {tuple(dimension_numbers)}"
        )
    return ConvDimensionNumbers(*(tuple(given.index(a) for a in order) for given, order in named))


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """The convolution of images [N, C, ...] with kernels [O, I, ...]."""
    return conv_general_dilated(
        *(lhs, rhs, window_strides, padding), precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """The convolution of images [N, C, ...] with kernels [O, I, ...], with any padding and dilation."""
    return conv_general_dilated(
        *(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: DimensionNumbers = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """A convolution; `dimension_numbers` such as ("NHWC", "HWIO", "NHWC") name the axes of image, kernel and result.

    Groups split the channels of images, or the images of a batch: each part is convolved with its part of the kernels.
    """
    places = conv_dimension_numbers(dims_of(lhs), dims_of(rhs), dimension_numbers)
    lhs, rhs = ops.transpose(lhs, places.lhs_spec), ops.transpose(rhs, places.rhs_spec)
    ones = [1] * (len(dims_of(lhs)) - 2)
    dilation, gaps = rhs_dilation or ones, lhs_dilation or ones
    if batch_group_count > 1:
        if feature_group_count > 1:
            raise OpError("conv_general_dilated: give feature_group_count or batch_group_count, not both")
        # Groups of images become groups of channels.
        channels, *space = dims_of(lhs)[1:]
        grouped = ops.reshape(lhs, (batch_group_count, -1, channels, *space))
        lhs = ops.reshape(ops.moveaxis(grouped, 0, 1), (-1, batch_group_count * channels, *space))
    if isinstance(padding, str) and padding.upper() == "SAME_LOWER":
        sizes = [(static_size(n, "conv_general_dilated") - 1) * g + 1 for n, g in zip(dims_of(lhs)[2:], gaps)]
        window = [(static_size(k, "conv_general_dilated") - 1) * d + 1 for k, d in zip(dims_of(rhs)[2:], dilation)]
        padding = padtype_to_pads(sizes, window, window_strides, padding)
    made = ops.conv(
        *(lhs, rhs, window_strides),
        padding.lower() if isinstance(padding, str) else padding,
        dilation,
        feature_group_count * batch_group_count,
        lhs_dilation=gaps,
        precision=precision_word(precision),
        out_dtype=preferred_element_type,
    )
    return ops.transpose(made, np.argsort(places.out_spec).tolist())


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """The windows of images [N, C, ...] as channels [N, C·window, ...]: a convolution with one kernel per element."""
    rank = len(filter_shape)
    letters = "DHW"[3 - rank :] if rank <= 3 else ""
    numbers = dimension_numbers or (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    channels, size = dims_of(lhs)[numbers[0].index("C")], math.prod(filter_shape)
    if not isinstance(channels, int):
        raise OpError(f"conv_general_dilated_patches: a known number of channels is needed, got {channels}")
    ones = ops.reshape(ops.eye(size), (size, 1, *filter_shape))
    kernels = ops.cast(ops.tile(ones, (channels, *[1] * (rank + 1))), lhs.dtype)
    kernels = ops.transpose(kernels, [f"OI{numbers[0].replace('N', '').replace('C', '')}".index(a) for a in numbers[1]])
    return conv_general_dilated(
        *(lhs, kernels, window_strides, padding, lhs_dilation, rhs_dilation, numbers),
        feature_group_count=channels,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Padding,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    transpose_kernel: bool = False,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """The convolution that goes the other way: `strides` spread lhs, and "SAME" gives strides times its size.

    Axes are ("NHWC", "HWIO", "NHWC") for images unless named; `transpose_kernel` takes the kernel of the convolution
    that this undoes, turned around and with its channels exchanged.
    """
    rank = len(strides)
    letters = "DHW"[3 - rank :] if rank <= 3 else ""
    image, kernel, result = dimension_numbers or (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    space = [i for i, a in enumerate(kernel) if a not in "IO"]
    dilation = rhs_dilation or [1] * rank
    if isinstance(padding, str):
        sizes = [static_size(dims_of(rhs)[i], "conv_transpose") for i in space]
        spread = [(k - 1) * d + 1 for k, d in zip(sizes, dilation)]
        padding = [_transposed_padding(k, s, padding) for k, s in zip(spread, strides)]
    if transpose_kernel:
        rhs = ops.reverse(rhs, space)
        kernel = kernel.translate({ord("I"): "O", ord("O"): "I"})
    return conv_general_dilated(
        *(lhs, rhs, [1] * rank, padding, strides, dilation, (image, kernel, result)),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _transposed_padding(k: int, stride: int, padding: str) -> tuple[int, int]:
    if padding.upper() not in ("SAME", "VALID"):
        raise OpError(f"conv_transpose: padding is 'SAME', 'VALID' or pairs, got {padding!r}")
    if padding.upper() == "VALID":
        total = k + stride - 2 + max(k - stride, 0)
        return k - 1, total - (k - 1)
    total = k + stride - 2
    front = k - 1 if stride > k - 1 else -(-total // 2)
    return front, total - front
