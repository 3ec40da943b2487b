"""Convolutions of each channel by itself, as a sum over the taps of the kernel.

XLA makes one convolution of all channels of them on a CPU, with zeros for weights between different ones: that is as
many times the work as there are channels, and NaN in one of them would spoil all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ops.define.rules import zeros_of
from rlx.ops.nn.convolution import Conv
from rlx.ops.pointwise.conversion import cast
from rlx.ops.shape.movement import pad, reshape, slice_

Form = Callable[..., Any]

# Kernels with more taps would become very long programs.
_MOST_TAPS = 64


def is_by_channel(op: Conv, types: Sequence[Shape]) -> bool:
    return op.groups > 1 and types[1].dims[1] == 1 and math.prod(op.kernel_size) <= _MOST_TAPS


def _by_channel(op: Op, *operands: Any) -> Form:
    assert isinstance(op, Conv)

    def build(x: Any, w: Any) -> Any:
        result = op.infer(x.type, w.type)
        dims = result.static_dims
        if not math.prod(dims) or not math.prod(x.type.static_dims):
            return zeros_of(result, x)
        wide = result.dtype.accumulator
        x, w = cast(x, wide), cast(w, wide)
        sides = (0, 0, *op.padding)
        padded = pad(x, wide.numpy.type(0), sides, sides)
        count, channels = dims[0], op.groups
        padded = reshape(padded, (count, channels, 1, *padded.shape[2:]))
        total = None
        for tap in np.ndindex(*op.kernel_size):
            starts = [t * d for t, d in zip(tap, op.dilation)]
            limits = [a + (n - 1) * s + 1 for a, n, s in zip(starts, dims[2:], op.stride)]
            seen = slice_(padded, (0, 0, 0, *starts), (count, channels, 1, *limits), (1, 1, 1, *op.stride))
            weight = slice_(w, (0, 0, *tap), (dims[1], 1, *(t + 1 for t in tap)))
            weight = reshape(weight, (1, channels, dims[1] // channels, *(1,) * len(tap)))
            total = seen * weight if total is None else total + seen * weight
        return cast(reshape(total, dims), result.dtype)

    return build


CONV_FORMS: dict[type[Op], Callable[..., Form | None]] = {Conv: _by_channel}
