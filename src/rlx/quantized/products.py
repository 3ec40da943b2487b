"""Steps that multiply by weights: `Dense` and `Conv2d` (depthwise with as many groups as channels)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.linalg.contraction import matmul
from rlx.ops.nn.convolution import Conv
from rlx.ops.pointwise.conversion import cast
from rlx.ops.shape.movement import pad, reshape, transpose
from rlx.quantized.steps import Step
from rlx.quantized.values import ACTIVATIONS, Array, Multipliers, Value, Weights

Pads = tuple[tuple[int, int], tuple[int, int]]
# How many bytes of windows NumPy holds at a time.
_CHUNK_BYTES = 1 << 25


@dataclass(frozen=True, eq=False)
class Product(Step):
    """code = clamp(multiplier · (bias + Σ (x - x_zp)·w) + zero_point, low, high); i32 sums, channels last.

    The multiplier is scale_x · scale_w / scale of the result; the bias is in units of scale_x · scale_w.
    """

    weights: Weights
    bias: Array
    multipliers: Multipliers
    low: int
    high: int

    @property
    def channels(self) -> int:
        return len(self.weights.codes)

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if x.dtype not in ACTIVATIONS or self.out.dtype not in ACTIVATIONS:
            raise self.fail(f"takes and gives i8 or i16, got {x.dtype} and {self.out.dtype}")
        for what, table in (("bias", self.bias), ("m0", self.multipliers.m0)):
            if table.dtype != np.int32 or table.shape != (self.channels,):
                raise self.fail(f"{what} must be i32[{self.channels}], got {table.dtype}{table.shape}")
        self.require_clamp(self.low, self.high)
        worst = self.largest_sum(x)
        if worst >= 2**31:
            raise self.fail(f"sums can reach {worst}, and i32 ends at {2**31 - 1}; use i8 activations or fewer inputs")

    def largest_sum(self, x: Value) -> int:
        """The largest |sum| that any input can give."""
        weights = np.abs(self.weights.codes.astype(np.int64)).reshape(self.channels, -1).sum(axis=1)
        return int((weights * x.largest_distance + np.abs(self.bias.astype(np.int64))).max())

    def _finished(self, sums: Array) -> Array:
        codes = self.multipliers.scaled(sums) + self.out.zero_point
        return np.clip(codes, self.low, self.high).astype(self.out.dtype.numpy)

    def units(self, operands: Sequence[Value]) -> Array:
        return self.weights.scales.astype(np.float64) * operands[0].scale

    def finish(self, sums: Any) -> Any:
        codes = self.multipliers.requantized(sums, self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def float_bias(self, x: Value) -> Array:
        return (self.bias * self.units([x])).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Dense(Product):
    """Weights [out, in]; the input is read as one row, in the order in which it lies in memory."""

    @property
    def macs(self) -> int:
        return self.weights.codes.size

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        wanted = (self.channels, operands[0].size)
        if self.weights.codes.shape != wanted or self.out.dims != (self.channels,):
            raise self.fail(
                f"weights {self.weights.codes.shape} do not lead from {operands[0].dims} to {self.out.dims}"
            )

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        # Sums stay below 2^31, so that f64 is exact and its matrix product serves.
        rows = codes[0].reshape(len(codes[0]), operands[0].size).astype(np.float64) - operands[0].zero_point
        sums = (rows @ self.weights.codes.T.astype(np.float64)).astype(np.int64) + self.bias
        return self._finished(sums)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        rows = reshape(tensors[0], (tensors[0].shape[0], operands[0].size))
        centred = cast(rows, DType.I32) - operands[0].zero_point
        return self.finish(matmul(centred, self.weights.codes.T.astype(np.int32)) + self.bias)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        rows = reshape(tensors[0], (tensors[0].shape[0], operands[0].size))
        w, bias = (a.astype(rows.dtype.numpy) for a in (self.weights.floats.T, self.float_bias(operands[0])))
        return matmul(rows, np.ascontiguousarray(w)) + bias


@dataclass(frozen=True, eq=False)
class Conv2d(Product):
    """Weights [out, kh, kw, in/groups] over [H, W, in]; padding is ((top, bottom), (left, right)), and holds x_zp."""

    stride: tuple[int, int] = (1, 1)
    padding: Pads = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def kernel(self) -> tuple[int, int]:
        return self.weights.codes.shape[1], self.weights.codes.shape[2]

    @property
    def macs(self) -> int:
        return math.prod(self.out.dims[:2]) * self.weights.codes.size

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.weights.codes.shape[3] == 1 and self.groups == self.channels

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        x, w = operands[0], self.weights.codes
        if len(x.dims) != 3 or w.ndim != 4:
            raise self.fail(f"needs an image [H, W, C] and weights [out, kh, kw, in], got {x.dims} and {w.shape}")
        if self.groups < 1 or x.dims[2] != w.shape[3] * self.groups or self.channels % self.groups:
            raise self.fail(f"{self.groups} groups and weights {w.shape} do not fit {x.dims[2]} channels")
        sizes = window_sizes(self, x.dims, self.kernel, self.stride, self.padding, self.dilation)
        if self.out.dims != (*sizes, self.channels):
            raise self.fail(f"gives {(*sizes, self.channels)}, but the result is declared {self.out.dims}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        x, groups = operands[0], self.groups
        # [group, taps and channels of it, output channels of it]
        w = self.weights.codes.reshape(groups, self.channels // groups, *self.kernel, -1).astype(np.float64)
        w = np.moveaxis(w, 1, -1).reshape(groups, -1, self.channels // groups)
        per_image = math.prod(self.out.dims[:2]) * math.prod(self.kernel) * x.dims[2] * 8
        step = max(_CHUNK_BYTES // per_image, 1)
        parts = [self._sums(x, codes[0][n : n + step], w) for n in range(0, len(codes[0]), step)]
        sums = np.concatenate(parts) if parts else np.zeros((0, *self.out.dims), np.int64)
        return self._finished(sums + self.bias)

    def _sums(self, x: Value, codes: Array, w: Array) -> Array:
        centred = np.pad(codes.astype(np.float64) - x.zero_point, ((0, 0), *self.padding, (0, 0)))
        seen = windows(centred, self.kernel, self.stride, self.dilation)
        n, height, width = seen.shape[:3]
        # [N, H, W, C, kh, kw] -> [group, positions, taps and channels of the group]
        split = seen.reshape(n * height * width, self.groups, -1, *self.kernel)
        rows = np.moveaxis(split, 2, -1).reshape(n * height * width, self.groups, -1)
        sums = np.matmul(np.moveaxis(rows, 1, 0), w)
        return np.moveaxis(sums, 0, 1).reshape(n, height, width, self.channels).astype(np.int64)

    def _convolved(self, image: Any, w: Array) -> Any:
        """[N, H, W, C] convolved with [out, kh, kw, in]."""
        (top, bottom), (left, right) = self.padding
        x, amounts = transpose(image, (0, 3, 1, 2)), (min(top, bottom), min(left, right))
        if (top, left) != (bottom, right):
            x, amounts = pad(x, 0, low=(0, 0, top, left), high=(0, 0, bottom, right)), (0, 0)
        conv = Conv(self.kernel, self.stride, amounts, self.dilation, self.groups)
        return transpose(conv(x, np.ascontiguousarray(np.moveaxis(w, 3, 1))), (0, 2, 3, 1))

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        centred = cast(tensors[0], DType.I32) - operands[0].zero_point
        return self.finish(self._convolved(centred, self.weights.codes.astype(np.int32)) + self.bias)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        dtype = tensors[0].dtype.numpy
        return self._convolved(tensors[0], self.weights.floats.astype(dtype)) + self.float_bias(operands[0]).astype(
            dtype
        )


def windows(x: Array, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Array:
    """[N, H', W', C, kh, kw]: what a window sees of [N, H, W, C] at each place."""
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation))
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(1, 2))
    return seen[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]


def window_sizes(
    step: Step,
    dims: Sequence[int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: Pads,
    dilation: tuple[int, int] = (1, 1),
) -> tuple[int, int]:
    """How often a window fits along both axes."""
    if min(*kernel, *stride, *dilation) < 1 or min(padding[0] + padding[1]) < 0 or max(kernel) > 2**15:
        raise step.fail(
            f"kernel {kernel}, stride {stride} and dilation {dilation} must be positive, padding {padding} not negative"
        )
    sizes = [(d + sum(p) - (k - 1) * a - 1) // s + 1 for d, k, s, p, a in zip(dims, kernel, stride, padding, dilation)]
    if min(sizes) < 1:
        raise step.fail(f"a window of {kernel} does not fit into {tuple(dims[:2])} with padding {padding}")
    return sizes[0], sizes[1]
