"""Windows of arrays: their reductions, their contents, and the transposed convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx import ops
from rlx.errors import OpError
from rlx.ir.shape import Size
from rlx.numpy.arguments import static_size
from rlx.ops.define.operands import dims_of

_WINDOW_KINDS = {"add": "sum", "maximum": "max", "minimum": "min", "mul": "prod", "multiply": "prod", "max": "max"}
_WINDOW_KINDS |= {"min": "min", "sum": "sum", "prod": "prod"}
_IDENTITIES = {"sum": (0,), "prod": (1,), "max": (-math.inf,), "min": (math.inf,)}


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Sums, products, largest or smallest elements of windows; `computation` is `lax.add`, `mul`, `max` or `min`."""
    kind = _WINDOW_KINDS.get(getattr(computation, "__name__", ""))
    if kind is None or init_value not in _IDENTITIES[kind]:
        raise OpError(
            "reduce_window: computation is lax.add, lax.mul, lax.max or lax.min, and init_value its identity; got "
            f"{getattr(computation, '__name__', computation)!r} with {init_value!r}. Write other windows with lax.scan"
        )
    window_strides = window_strides or [1] * len(window_dimensions)
    if base_dilation is not None and {*base_dilation} != {1}:
        empty = _IDENTITIES[kind][0]
        none = [0] * len(base_dilation)
        operand = ops.pad(operand, empty, none, none, [d - 1 for d in base_dilation])
    if isinstance(padding, str):
        spread = [(w - 1) * d + 1 for w, d in zip(window_dimensions, window_dilation or [1] * len(window_dimensions))]
        padding = padtype_to_pads(dims_of(operand), spread, window_strides, padding)
    return ops.reduce_window(operand, kind, window_dimensions, window_strides, padding, window_dilation)


def padtype_to_pads(
    in_shape: Sequence[Size], window_shape: Sequence[int], window_strides: Sequence[int], padding: str
) -> list[tuple[int, int]]:
    """What "VALID", "SAME" and "SAME_LOWER" put in front of each axis and behind it."""
    name, sizes, window, strides = padding, in_shape, window_shape, window_strides
    if name.upper() == "VALID":
        return [(0, 0)] * len(window)
    known = [n for n in sizes if isinstance(n, int)]
    if name.upper() not in ("SAME", "SAME_LOWER") or len(known) != len(window):
        raise OpError(f"padtype_to_pads: padding is 'VALID', 'SAME' (of known sizes) or pairs, got {name!r}")
    totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, w, s in zip(known, window, strides)]
    if name.upper() == "SAME_LOWER":
        return [(total - total // 2, total // 2) for total in totals]
    return [(total // 2, total - total // 2) for total in totals]


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
) -> Any:
    """The windows of images [N, C, ...] as channels [N, C·window, ...]: a convolution with one kernel per element."""
    from rlx.lax import conv_general_dilated

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
        *(lhs, kernels, window_strides, padding, lhs_dilation, rhs_dilation, numbers), feature_group_count=channels
    )


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    transpose_kernel: bool = False,
) -> Any:
    """The convolution that goes the other way: `strides` spread lhs, and "SAME" gives strides times its size.

    Axes are ("NHWC", "HWIO", "NHWC") for images unless named; `transpose_kernel` takes the kernel of the convolution
    that this undoes, turned around and with its channels exchanged.
    """
    from rlx.lax import conv_general_dilated

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
    return conv_general_dilated(lhs, rhs, [1] * rank, padding, strides, dilation, (image, kernel, result))


def _transposed_padding(k: int, stride: int, padding: str) -> tuple[int, int]:
    if padding.upper() not in ("SAME", "VALID"):
        raise OpError(f"conv_transpose: padding is 'SAME', 'VALID' or pairs, got {padding!r}")
    if padding.upper() == "VALID":
        total = k + stride - 2 + max(k - stride, 0)
        return k - 1, total - (k - 1)
    total = k + stride - 2
    front = k - 1 if stride > k - 1 else -(-total // 2)
    return front, total - front
