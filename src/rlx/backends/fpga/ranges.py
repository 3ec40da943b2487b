"""The exact ranges of codes and sums of an integer program, and the bits that hold them.

>>> signed_bits(-128, 127), signed_bits(0, 128), signed_bits(0, 0)
(8, 9, 1)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlx.quantized import Add, Argmax, Clamp, Lookup, Mul, Program, Rescale, Softmax
from rlx.quantized.products import Product
from rlx.quantized.steps import Step
from rlx.quantized.values import Value, limits


class Range(NamedTuple):
    """From the lowest to the highest number that occurs."""

    low: int
    high: int

    def moved(self, by: int) -> Range:
        return Range(self.low + by, self.high + by)

    @property
    def bits(self) -> int:
        return signed_bits(self.low, self.high)


def signed_bits(low: int, high: int) -> int:
    """The width of two's complement that holds low to high."""
    return max((-low - 1).bit_length() if low < 0 else 0, high.bit_length() if high > 0 else 0) + 1


def index_bits(count: int) -> int:
    """The width of a number from 0 to count - 1, at least 1."""
    return max((count - 1).bit_length(), 1)


def ranges_of(program: Program) -> tuple[Range, ...]:
    """The codes that each value can have, the input first."""
    found = [Range(*limits(program.input.dtype))]
    for step in program.steps:
        found.append(_result(step, found[step.inputs[0]], program.operands(step)[0]))
    return tuple(found)


def _result(step: Step, x: Range, operand: Value) -> Range:
    match step:
        case Product() | Add() | Mul() | Rescale():
            return Range(step.low, step.high)
        case Clamp():
            return Range(min(max(x.low, step.low), step.high), max(min(x.high, step.high), step.low))
        case Lookup():
            codes = step.table[x.low + 128 : x.high + 129]
            return Range(int(codes.min()), int(codes.max()))
        case Softmax():
            return _all(step)
        case Argmax():
            return Range(0, operand.size - 1)
        # Pooling takes codes that are there; a window that hangs over an edge everywhere does not exist.
        case _:
            return x if step.out.dtype is operand.dtype and step.out.scale == operand.scale else _all(step)


def _all(step: Step) -> Range:
    return Range(*limits(step.out.dtype))


def sums_of(step: Product, x: Range) -> tuple[Range, Range]:
    """The range of a product's sums on their way, and of complete ones with their bias."""
    weights = step.weights.codes.astype(np.int64).reshape(step.channels, -1)
    # Taps may be missing at edges, so that 0 is always possible.
    highest = np.maximum(np.maximum(weights * x.low, weights * x.high), 0).sum(axis=1)
    lowest = np.minimum(np.minimum(weights * x.low, weights * x.high), 0).sum(axis=1)
    bias = step.bias.astype(np.int64)
    on_the_way = Range(int(lowest.min()), int(highest.max()))
    return on_the_way, Range(int((lowest + bias).min()), int((highest + bias).max()))
