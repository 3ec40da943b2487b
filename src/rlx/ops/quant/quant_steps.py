"""What the ops of `fake_quant` share: steps that belong to the channels of a value, and rounding to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Dims, Shape, Size, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, require_float
from rlx.ops.define.rounding import half_away_array, quantizer_dtype, round_half_away
from rlx.ops.define.rules import put_batch_first
from rlx.ops.pointwise.arithmetic import clamp
from rlx.ops.shape.movement import moveaxis, reshape, reshaped

Array = np.ndarray[Any, np.dtype[Any]]

SMALLEST_STEP = 1e-12


class SteppedOp(Op):
    """An op with a bit width and steps along an axis of x (one step for all without it)."""

    bits: int
    axis: int | None = None

    def check(self) -> None:
        if not 2 <= self.bits <= 24:
            raise self.fail(f"bits must be in [2, 24], got {self.bits}")

    @property
    def qmax(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    def channels(self, x: Shape) -> Size:
        return 1 if self.axis is None else x.dims[normalize_axis(self.axis, x.rank, self.mnemonic)]

    def require_steps(self, what: str, steps: Shape, x: Shape) -> None:
        require_float(self, x, steps)
        channels = self.channels(x)
        single = steps.dims == (1,)
        if steps.rank != 1 or not (single or require_equal(steps.dims[0], channels, self.mnemonic)):
            raise self.fail(f"needs a {what} of shape [1] or [{channels}] for {x}, got {steps}")

    def other_axes(self, rank: int) -> tuple[int, ...]:
        """The axes that share one step."""
        kept = None if self.axis is None else normalize_axis(self.axis, rank, self.mnemonic)
        return tuple(i for i in range(rank) if i != kept)

    def aligned(self, steps: Any, rank: int) -> Any:
        """[C] or [1] shaped so that it broadcasts along `axis` of a value of this rank; arrays and tensors."""
        dims: list[Any] = [1] * rank
        if self.axis is not None:
            dims[self.axis] = steps.shape[0]
        if isinstance(steps, np.ndarray):
            return steps.reshape(dims)
        return reshape(steps, dims)

    def in_lanes(
        self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool], steps: int
    ) -> tuple[Lanes, list[Any]]:
        """What the same op with axis=0 takes for a batch; operand number `steps`, where there is one, has the steps."""
        rank = operands[0].ndim - batched[0]
        examples = [put_batch_first(x, b, size) for x, b in zip(operands, batched)]
        shared = steps < len(examples) and examples[steps].shape[1:] == (1,)
        axis = None if self.axis is None or shared else normalize_axis(self.axis, rank, self.mnemonic)
        lanes = Lanes(size, axis, examples[0].shape[1:])
        return lanes, [lanes.merge_steps(x) if i == steps else lanes.merge(x) for i, x in enumerate(examples)]


class Lanes:
    """One lane for every channel of every example: values [size, ..] and steps [size, C] to [size·C, ..] and back."""

    def __init__(self, size: Size, axis: int | None, dims: Dims) -> None:
        """`dims` are those of one example; `axis` is that of its channels, None for a single one."""
        self.size, self.axis = size, axis
        self.channels: Size = 1 if axis is None else dims[axis]
        self.rest = dims if axis is None else (*dims[:axis], *dims[axis + 1 :])

    def merge(self, x: Tensor) -> Any:
        """Values of all examples, the lanes in front."""
        in_front = x if self.axis is None else moveaxis(x, self.axis + 1, 1)
        return reshaped(in_front, (self.size * self.channels, *self.rest))

    def merge_steps(self, steps: Tensor) -> Any:
        """Steps of all examples, one per lane."""
        return reshape(steps, (self.size * self.channels,))

    def split(self, y: Tensor) -> Any:
        """`merge`, undone."""
        if self.axis is None:
            return y
        return moveaxis(reshape(y, (self.size, self.channels, *self.rest)), 1, self.axis + 1)

    def split_steps(self, steps: Tensor) -> Any:
        """`merge_steps`, undone."""
        return reshape(steps, (self.size, self.channels))


def wide_arrays(*arrays: Array) -> tuple[Array, ...]:
    """All arrays in the type of the computation, which the first one decides."""
    wide = quantizer_dtype(DType.of(arrays[0].dtype)).numpy
    return tuple(a.astype(wide) for a in arrays)


def wide_tensors(*tensors: Any) -> tuple[Any, ...]:
    wide = quantizer_dtype(tensors[0].dtype)
    return tuple(convert(t, wide) for t in tensors)


def round_array(x: Array, step: Array, qmax: int) -> Array:
    return np.clip(half_away_array(x / step), -qmax, qmax) * step


def round_tensor(x: Any, step: Any, qmax: int) -> Any:
    return clamp(round_half_away(x / step), -qmax, qmax) * step
