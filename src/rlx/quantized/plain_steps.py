"""Steps without weights: pooling, sums and products of two values, a change of scale, limits, the largest code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.pointwise.arithmetic import add, div, lt, mul, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.reduction.reductions import ReduceOp, argmax
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.shape.movement import concat, narrow, reshape
from rlx.quantized.products import Pads, window_sizes, windows
from rlx.quantized.steps import Step
from rlx.quantized.values import ACTIVATIONS, Array, Multipliers, Value, limits


@dataclass(frozen=True, eq=False)
class _Pool(Step):
    """A window over [H, W, C]; codes keep their scale and zero point."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: Pads = ((0, 0), (0, 0))

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if len(x.dims) != 3 or x.dtype not in ACTIVATIONS:
            raise self.fail(f"needs an image [H, W, C] of i8 or i16, got {x.dtype}{x.dims}")
        sizes = window_sizes(self, x.dims, self.kernel, self.stride, self.padding)
        if any(p >= k for pads, k in zip(self.padding, self.kernel) for p in pads):
            raise self.fail(f"padding {self.padding} must be smaller than the window {self.kernel}")
        require_same_codes(self, x, (*sizes, x.dims[2]))

    def _reduce(self, kind: ReduceOp, x: Any) -> Any:
        (top, bottom), (left, right) = self.padding
        around = ((0, top, left, 0), (0, bottom, right, 0))
        return ReduceWindow(kind, (1, *self.kernel, 1), (1, *self.stride, 1), *around, (1, 1, 1, 1))(x)


@dataclass(frozen=True, eq=False)
class MaxPool(_Pool):
    """The largest code of each window; padding is ignored."""

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        lowest = limits(self.out.dtype)[0]
        padded = np.pad(codes[0], ((0, 0), *self.padding, (0, 0)), constant_values=lowest)
        return windows(padded, self.kernel, self.stride).max(axis=(-2, -1))

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return self._reduce(ReduceOp.Max, tensors[0])

    simulate = build


@dataclass(frozen=True, eq=False)
class MeanPool(_Pool):
    """The mean code of each window, ties away from zero."""

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        if self.padding != ((0, 0), (0, 0)):
            raise self.fail(f"a mean has no padding, got {self.padding}; pad the image with a step of its own")
        if math.prod(self.kernel) > 2**15:
            raise self.fail(f"sums of {math.prod(self.kernel)} codes may leave i32; at most {2**15} fit")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        count = math.prod(self.kernel)
        sums = windows(codes[0].astype(np.int64), self.kernel, self.stride).sum(axis=(-2, -1))
        means = np.sign(sums) * ((np.abs(sums) + count // 2) // count)
        return means.astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        count = math.prod(self.kernel)
        sums = self._reduce(ReduceOp.Sum, cast(tensors[0], DType.I32))
        # Division of integers cuts towards zero.
        return cast(div(sums + where(lt(sums, 0), -(count // 2), count // 2), count), self.out.dtype)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return self._reduce(ReduceOp.Sum, tensors[0]) / float(math.prod(self.kernel))


@dataclass(frozen=True, eq=False)
class Add(Step):
    """The sum of two values: both are brought to a common fine scale, added, and brought to that of the result.

    The codes are shifted left by `headroom` bits first. The three multipliers are those of the operands and the result.
    """

    multipliers: Multipliers
    low: int
    high: int

    @staticmethod
    def multipliers_for(a: Value, b: Value, out: Value, fraction_bits: int = 31) -> Multipliers:
        coarse = 2.0 * max(a.scale, b.scale)
        fine = 2.0 ** -Add.headroom_of(a, b)
        return Multipliers.of([a.scale / coarse, b.scale / coarse, coarse * fine / out.scale], fraction_bits)

    @staticmethod
    def headroom_of(*operands: Value) -> int:
        return 20 if all(v.dtype is DType.I8 for v in operands) else 14

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        a, b = self.take(operands, 2)
        require_same_dims(self, a, b)
        if len(self.multipliers.m0) != 3 or np.any(self.multipliers.shift[:2] < 0):
            raise self.fail("needs three multipliers, those of the operands at most 1/2")
        self.require_clamp(self.low, self.high)

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        headroom = self.headroom_of(*operands)
        parts = [
            self.multipliers.take(i).scaled((c.astype(np.int64) - v.zero_point) << headroom)
            for i, (v, c) in enumerate(zip(operands, codes))
        ]
        sums = self.multipliers.take(2).scaled(parts[0] + parts[1]) + self.out.zero_point
        return np.clip(sums, self.low, self.high).astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        headroom = self.headroom_of(*operands)
        parts = [
            self.multipliers.take(i).requantized((cast(t, DType.I32) - v.zero_point) * (1 << headroom), 0, DType.I32)
            for i, (v, t) in enumerate(zip(operands, tensors))
        ]
        codes = self.multipliers.take(2).requantized(parts[0] + parts[1], self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return add(*tensors)


@dataclass(frozen=True, eq=False)
class AddConstant(Step):
    """A value plus codes that are part of the program, such as positions of a sequence; arithmetic as in `Add`."""

    codes: Array
    scale: float
    multipliers: Multipliers
    low: int
    high: int

    @property
    def constant(self) -> Value:
        """What the codes mean."""
        return Value(f"{self.name}_constant", self.out.dims, self.scale, 0, DType.of(self.codes.dtype))

    def _sum(self) -> Add:
        return Add((0, 1), self.out, self.multipliers, self.low, self.high)

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if self.codes.dtype not in (np.int8, np.int16) or self.codes.shape != x.dims:
            raise self.fail(f"needs codes i8 or i16 {x.dims}, got {self.codes.dtype}{self.codes.shape}")
        self._sum().check([x, self.constant])

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        return self._sum().run([operands[0], self.constant], [codes[0], self.codes[None]])

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        x, headroom = operands[0], Add.headroom_of(operands[0], self.constant)
        grown = (cast(tensors[0], DType.I32) - x.zero_point) * (1 << headroom)
        left = self.multipliers.take(0).requantized(grown, 0, DType.I32)
        right = self.multipliers.take(1).scaled(self.codes.astype(np.int64) << headroom).astype(np.int32)
        codes = self.multipliers.take(2).requantized(left + right, self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return tensors[0] + (self.codes[None] * self.scale).astype(tensors[0].dtype.numpy)


@dataclass(frozen=True, eq=False)
class Concat(Step):
    """Values side by side along the last axis, each brought to the scale of the result by its own multiplier."""

    multipliers: Multipliers

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        if not operands or len(self.multipliers.m0) != len(operands):
            raise self.fail(f"needs values and one multiplier each, got {len(operands)} and {len(self.multipliers.m0)}")
        if any(v.dtype not in ACTIVATIONS or not v.dims for v in (*operands, self.out)):
            raise self.fail("takes and gives i8 or i16 with at least one axis")
        wanted = (*operands[0].dims[:-1], sum(v.dims[-1] for v in operands))
        if any(v.dims[:-1] != wanted[:-1] for v in operands) or self.out.dims != wanted:
            raise self.fail(f"{[v.dims for v in operands]} side by side are not {self.out.dims}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        parts = [
            self.multipliers.take(i).scaled(c.astype(np.int64) - v.zero_point) + self.out.zero_point
            for i, (v, c) in enumerate(zip(operands, codes))
        ]
        return np.clip(np.concatenate(parts, axis=-1), *limits(self.out.dtype)).astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        parts = [
            self.multipliers.take(i).requantized(cast(t, DType.I32) - v.zero_point, self.out.zero_point, self.out.dtype)
            for i, (v, t) in enumerate(zip(operands, tensors))
        ]
        return concat(parts, axis=len(self.out.dims))

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return concat(tensors, axis=len(self.out.dims))


@dataclass(frozen=True, eq=False)
class Rows(Step):
    """Rows of [H, W, C] that follow each other, from row `start`; codes keep their meaning."""

    start: int

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if len(x.dims) != 3 or len(self.out.dims) != 3 or x.dtype not in ACTIVATIONS:
            raise self.fail(f"takes and gives [H, W, C] of i8 or i16, got {x} and {self.out}")
        require_same_codes(self, x, (self.out.dims[0], *x.dims[1:]))
        if self.start < 0 or self.start + self.out.dims[0] > x.dims[0]:
            raise self.fail(f"{self.out.dims[0]} rows from {self.start} are not among {x.dims[0]}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        return codes[0][:, self.start : self.start + self.out.dims[0]].copy()

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return narrow(tensors[0], 1, self.start, self.out.dims[0])

    simulate = build


@dataclass(frozen=True, eq=False)
class Mul(Step):
    """The product of two values; the multiplier is scale_a · scale_b / scale of the result."""

    multipliers: Multipliers
    low: int
    high: int

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        a, b = self.take(operands, 2)
        require_same_dims(self, a, b)
        if len(self.multipliers.m0) != 1:
            raise self.fail("needs one multiplier")
        if a.largest_distance * b.largest_distance >= 2**31:
            raise self.fail(
                f"products can reach {a.largest_distance * b.largest_distance}, and i32 ends at {2**31 - 1}"
            )
        self.require_clamp(self.low, self.high)

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        a, b = (c.astype(np.int64) - v.zero_point for v, c in zip(operands, codes))
        products = self.multipliers.scaled(a * b) + self.out.zero_point
        return np.clip(products, self.low, self.high).astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        a, b = (cast(t, DType.I32) - v.zero_point for v, t in zip(operands, tensors))
        return self.finish(a * b)

    def units(self, operands: Sequence[Value]) -> Array:
        return np.array([operands[0].scale * operands[1].scale])

    def finish(self, sums: Any) -> Any:
        codes = self.multipliers.requantized(sums, self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return mul(*tensors)


@dataclass(frozen=True, eq=False)
class Rescale(Step):
    """The same numbers with another scale, zero point or type of code."""

    multipliers: Multipliers
    low: int
    high: int

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if x.dtype not in ACTIVATIONS or self.out.dtype not in ACTIVATIONS or x.dims != self.out.dims:
            raise self.fail(f"takes and gives i8 or i16 of the same sizes, got {x} and {self.out}")
        if len(self.multipliers.m0) != 1:
            raise self.fail("needs one multiplier")
        self.require_clamp(self.low, self.high)

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        rescaled = self.multipliers.scaled(codes[0].astype(np.int64) - operands[0].zero_point) + self.out.zero_point
        return np.clip(rescaled, self.low, self.high).astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return self.finish(cast(tensors[0], DType.I32) - operands[0].zero_point)

    def units(self, operands: Sequence[Value]) -> Array:
        return np.array([operands[0].scale])

    def finish(self, sums: Any) -> Any:
        codes = self.multipliers.requantized(sums, self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return tensors[0]


@dataclass(frozen=True, eq=False)
class Clamp(Step):
    """Codes between `low` and `high`: a ReLU that no step before it could take."""

    low: int
    high: int

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        require_same_codes(self, x, x.dims)
        self.require_clamp(self.low, self.high)

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        return np.clip(codes[0], self.low, self.high)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return self.clamped(tensors[0], self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return tensors[0]


@dataclass(frozen=True, eq=False)
class Argmax(Step):
    """The position of the largest code in memory order, i32; the first of equals."""

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        if x.dtype not in ACTIVATIONS or self.out.dtype is not DType.I32 or self.out.dims != ():
            raise self.fail(f"takes codes and gives one i32, got {x} and {self.out}")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        return codes[0].reshape(len(codes[0]), operands[0].size).argmax(axis=1).astype(np.int32)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        return argmax(reshape(tensors[0], (tensors[0].shape[0], operands[0].size)), axis=-1)

    simulate = build


def require_same_codes(step: Step, x: Value, dims: tuple[int, ...]) -> None:
    """The result must have the scale, zero point and type of x."""
    out = step.out
    if (out.scale, out.zero_point, out.dtype) != (x.scale, x.zero_point, x.dtype):
        raise step.fail(f"keeps scale, zero point and type of {x}, but the result is declared {out}")
    if out.dims != dims:
        raise step.fail(f"gives {dims}, but the result is declared {out.dims}")


def require_same_dims(step: Step, a: Value, b: Value) -> None:
    if not a.dims == b.dims == step.out.dims or any(v.dtype not in ACTIVATIONS for v in (a, b, step.out)):
        raise step.fail(f"takes and gives i8 or i16 of one size, got {a.dims}, {b.dims} and {step.out.dims}")
