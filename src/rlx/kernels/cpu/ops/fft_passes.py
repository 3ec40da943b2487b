"""The passes of Fourier transforms, as many transforms at once as a vector has lanes.

A pass of radix r takes r values at a time, transforms them, and multiplies them by factors that are the same in all
lanes. Values change places from pass to pass (Stockham), so that the last one has them in order. Whether a program
transforms rows, columns or one long line only decides what the lanes are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value
from rlx.ops.lowered.fourier_lines import passes

# Real and imaginary parts of a complex number in each lane.
Pair = tuple[Value, Value]
Read = Callable[[Value], Pair]
Write = Callable[[Value, Pair], None]


def times(k: KernelBuilder, x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return k.fma(a, c, -(b * d)), k.fma(a, d, b * c)


class Scratch:
    """Complex vectors in the memory of a thread: value e has its parts side by side."""

    def __init__(self, k: KernelBuilder, buffer: Buffer, lanes: int) -> None:
        self.k, self.buffer, self.lanes = k, buffer, lanes

    def read(self, e: Value) -> Pair:
        re, im = (self.k.load(self.buffer, (e * 2 + part) * self.lanes, lanes=self.lanes) for part in (0, 1))
        return re, im

    def write(self, e: Value, z: Pair) -> None:
        for part in (0, 1):
            self.k.store(self.buffer, (e * 2 + part) * self.lanes, z[part])


class Passes:
    """All passes of a transform of so many points, whose factors begin at a place of a buffer."""

    def __init__(self, k: KernelBuilder, points: int, lanes: int, factors: Buffer, start: Value) -> None:
        self.k, self.points, self.lanes, self.factors, self.start = k, points, lanes, factors, start
        self.passes = tuple(passes(points))

    def run(self, read: Read, write: Write, scratch: Sequence[Scratch]) -> None:
        """From where `read` finds values to where `write` puts them. Between passes they are in the scratch, two places
        in turn; `read` may be the second one."""
        if not self.passes:
            zero = self.k.as_index(0)
            write(zero, read(zero))
        place, start = read, self.start
        for number, (radix, rows, columns) in enumerate(self.passes):
            is_last = number == len(self.passes) - 1
            here = scratch[number % 2]
            self.one(radix, rows, columns, start, place, write if is_last else here.write)
            place, start = here.read, start + 2 * rows * (radix - 1)

    def one(self, radix: int, rows: int, columns: int, start: Value, read: Read, write: Write) -> None:
        k = self.k
        with k.loop("p", 0, rows) as p, k.loop("q", 0, columns) as q:
            found = [read(q + (p + rows * t) * columns) for t in range(radix)]
            for u, value in enumerate(butterfly(k, found)):
                if u and rows > 1:
                    value = times(k, value, self.factor(start + (p * (radix - 1) + (u - 1)) * 2))
                write(q + (p * radix + u) * columns, value)

    def factor(self, place: Value) -> Pair:
        re, im = (self.k.splat(self.k.load(self.factors, place + part), self.lanes) for part in (0, 1))
        return re, im


def butterfly(k: KernelBuilder, x: Sequence[Pair]) -> list[Pair]:
    """The transform of a few values, forward."""
    if len(x) == 2:
        return [_add(x[0], x[1]), _subtract(x[0], x[1])]
    if len(x) == 4:
        return _four(x)
    return _eight(k, x) if len(x) == 8 else _odd(k, x)


def _add(x: Pair, y: Pair) -> Pair:
    return x[0] + y[0], x[1] + y[1]


def _subtract(x: Pair, y: Pair) -> Pair:
    return x[0] - y[0], x[1] - y[1]


def _minus_i(x: Pair, y: Pair) -> Pair:
    """x - iy."""
    return x[0] + y[1], x[1] - y[0]


def _plus_i(x: Pair, y: Pair) -> Pair:
    return x[0] - y[1], x[1] + y[0]


def _four(x: Sequence[Pair]) -> list[Pair]:
    even, odd = (_add(x[0], x[2]), _subtract(x[0], x[2])), (_add(x[1], x[3]), _subtract(x[1], x[3]))
    return [_add(even[0], odd[0]), _minus_i(even[1], odd[1]), _subtract(even[0], odd[0]), _plus_i(even[1], odd[1])]


def _eight(k: KernelBuilder, x: Sequence[Pair]) -> list[Pair]:
    even, odd = _four(x[::2]), _four(x[1::2])
    root = math.sqrt(0.5)
    # (1 - i)/√2 and (-1 - i)/√2 times the second and the last; both need the sum and the difference of their parts.
    (a, b), (c, d) = odd[1], odd[3]
    low, high = (a + b, b - a), (d - c, -(c + d))
    first = [_add(even[0], odd[0]), _turned(k, even[1], low, root), _minus_i(even[2], odd[2])]
    second = [_subtract(even[0], odd[0]), _turned(k, even[1], low, -root), _plus_i(even[2], odd[2])]
    return [*first, _turned(k, even[3], high, root), *second, _turned(k, even[3], high, -root)]


def _turned(k: KernelBuilder, x: Pair, y: Pair, factor: float) -> Pair:
    return k.fma(y[0], factor, x[0]), k.fma(y[1], factor, x[1])


def _odd(k: KernelBuilder, x: Sequence[Pair]) -> list[Pair]:
    """Sums and differences of the values j and r - j meet the same cosines and sines."""
    radix, half = len(x), len(x) // 2
    sums = [_add(x[j], x[radix - j]) for j in range(1, half + 1)]
    differences = [_subtract(x[j], x[radix - j]) for j in range(1, half + 1)]
    found = list(x)
    found[0] = x[0]
    for one in sums:
        found[0] = _add(found[0], one)
    for u in range(1, half + 1):
        angles = [2 * math.pi * (j * u % radix) / radix for j in range(1, half + 1)]
        even, odd = x[0], (differences[0][0] * math.sin(angles[0]), differences[0][1] * math.sin(angles[0]))
        for number, angle in enumerate(angles):
            even = _turned(k, even, sums[number], math.cos(angle))
            if number:
                odd = _turned(k, odd, differences[number], math.sin(angle))
        found[u], found[radix - u] = _minus_i(even, odd), _plus_i(even, odd)
    return found
