"""What the steps of an integer program are made of: values, weights, multipliers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.define.rounding import half_away_array
from rlx.ops.quant.requantization import requantize
from rlx.quant.fixed_point import scaled, split_multipliers
from rlx.quantized.packing import QuantizedError, largest_code, pack

__all__ = ["ACTIVATIONS", "Multipliers", "QuantizedError", "Value", "Weights", "limits"]

Array = np.ndarray[Any, np.dtype[Any]]

ACTIVATIONS = (DType.I8, DType.I16)
_LARGEST_DIM = 2**31


def limits(dtype: DType) -> tuple[int, int]:
    """The lowest and the highest code."""
    info = ml_dtypes.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


@dataclass(frozen=True)
class Value:
    """An array of codes that stand for (code - zero_point) · scale; dims without the batch, channels last.

    A value of i32 holds plain integers, such as a label.
    """

    name: str
    dims: tuple[int, ...]
    scale: float = 1.0
    zero_point: int = 0
    dtype: DType = DType.I8

    def __post_init__(self) -> None:
        if self.dtype not in (*ACTIVATIONS, DType.I32):
            raise QuantizedError(f"{self.name}: codes are i8 or i16 (labels i32), got {self.dtype}")
        if not all(type(d) is int and 0 < d < _LARGEST_DIM for d in self.dims):
            raise QuantizedError(f"{self.name}: sizes must be positive numbers, got {self.dims}")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise QuantizedError(f"{self.name}: a scale must be positive and finite, got {self.scale}")
        low, high = limits(self.dtype)
        if not low <= self.zero_point <= high:
            raise QuantizedError(f"{self.name}: a zero point must be in [{low}, {high}], got {self.zero_point}")

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        return self.size * self.dtype.size_bytes

    @property
    def largest_distance(self) -> int:
        """The largest |code - zero_point|."""
        low, high = limits(self.dtype)
        return max(high - self.zero_point, self.zero_point - low)

    def encode(self, x: Array) -> Array:
        """The codes of floats: x / scale rounded, ties away from zero, in f32."""
        low, high = limits(self.dtype)
        codes = half_away_array(np.asarray(x, np.float32) * (np.float32(1) / np.float32(self.scale)))
        return np.clip(codes + np.float32(self.zero_point), low, high).astype(self.dtype.numpy)

    def decode(self, codes: Array) -> Array:
        """The floats that codes stand for."""
        return (codes.astype(np.int32) - self.zero_point).astype(np.float32) * np.float32(self.scale)


@dataclass(frozen=True, eq=False)
class Weights:
    """Codes of 8, 4 or 2 bits, each standing for code · scale of its output channel; axis 0 is the output channel."""

    codes: Array
    scales: Array
    bits: int = 8

    def __post_init__(self) -> None:
        largest = largest_code(self.bits)
        if self.codes.dtype != np.int8 or self.codes.ndim < 2 or 0 in self.codes.shape:
            raise QuantizedError(f"weights are i8 with at least two axes, got {self.codes.dtype}{self.codes.shape}")
        if self.scales.dtype != np.float32 or self.scales.shape != self.codes.shape[:1]:
            raise QuantizedError(f"weights need one f32 scale per output channel, got {self.scales.shape}")
        if not np.all(np.isfinite(self.scales)) or np.any(self.scales <= 0):
            raise QuantizedError("the scales of weights must be positive and finite")
        if self.codes.max() > largest or self.codes.min() < -largest - 1:
            raise QuantizedError(f"{self.bits}-bit weights lie in [{-largest - 1}, {largest}]")

    @staticmethod
    def of(w: Array, bits: int = 8, scales: Array | None = None, largest: int | None = None) -> Weights:
        """Floats as codes up to ±`largest`, all that the bits have; without scales it stands for a channel's max|w|."""
        largest = largest_code(bits) if largest is None else largest
        rows = np.asarray(w, np.float32).reshape(len(w), -1)
        if not np.all(np.isfinite(rows)):
            raise QuantizedError("weights must be finite numbers; these have NaN or infinite ones")
        if scales is None:
            scales = np.maximum(np.abs(rows).max(axis=1) / np.float32(largest), np.float32(1e-12))
        steps = np.broadcast_to(np.asarray(scales, np.float32), (len(w),)).copy()
        codes = np.clip(half_away_array(rows / steps[:, None]), -largest, largest).astype(np.int8)
        # A channel of zeros has any scale; a tiny one would leave no room for its bias.
        alive = codes.any(axis=1)
        steps[~alive] = steps[alive].max(initial=0) or 1.0
        return Weights(codes.reshape(w.shape), steps, bits)

    @property
    def floats(self) -> Array:
        """What the codes stand for, f64."""
        return self.codes * self.scales.astype(np.float64).reshape(-1, *(1,) * (self.codes.ndim - 1))

    @property
    def packed(self) -> bytes:
        return pack(self.codes, self.bits)


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Tables (m0, shift) of one multiplier, or one per channel; see `rlx.quant.fixed_point`."""

    m0: Array
    shift: Array
    fraction_bits: int = 31

    def __post_init__(self) -> None:
        for table in (self.m0, self.shift):
            if table.dtype != np.int32 or table.ndim != 1 or not len(table) or len(table) != len(self.m0):
                raise QuantizedError("multipliers are two i32 tables of one length")
        if self.fraction_bits not in (15, 31):
            raise QuantizedError(f"multipliers have 31 or 15 bits, got {self.fraction_bits}")
        if np.any(self.m0 < 0) or np.any(self.m0 > 2**self.fraction_bits - 1) or np.any(np.abs(self.shift) > 31):
            raise QuantizedError("a multiplier is out of range: m0 must not be negative, and shifts lie in [-31, 31]")

    @staticmethod
    def of(multipliers: Any, fraction_bits: int = 31) -> Multipliers:
        return Multipliers(*split_multipliers(multipliers, fraction_bits), fraction_bits)

    def take(self, index: int) -> Multipliers:
        return Multipliers(self.m0[index : index + 1], self.shift[index : index + 1], self.fraction_bits)

    def scaled(self, acc: Array) -> Array:
        """i32 sums, channels last, times their multipliers; NumPy, i64."""
        return scaled(acc, self.m0, self.shift, self.fraction_bits)

    def requantized(self, acc: Any, zero_point: int, dtype: DType) -> Any:
        """The same on tensors of a graph, with the zero point added and clamped to the codes of `dtype`."""
        zero = np.array([zero_point], np.int32)
        return requantize(acc, self.m0, self.shift, zero, dtype=dtype, fraction_bits=self.fraction_bits)
