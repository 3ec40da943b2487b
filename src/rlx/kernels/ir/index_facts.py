"""What is known of whole numbers in a kernel before it runs: between which numbers they lie, and what divides them.

A column of a matrix of 128 that is computed in panels of 64 is 0 or 64, so that 64 columns are left at least: no code
is needed for a panel with fewer. A builder asks for this with every operation on indices; numbers that the caller
passes may be anything.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# What may lie beyond may wrap around, as the integers of users do, which are computed in the same way.
_FAR = 1 << 61


class Fact(NamedTuple):
    """low <= x <= high, and x is a multiple of `multiple`; only 0 is one of 0."""

    low: float
    high: float
    multiple: int

    @property
    def only(self) -> int | None:
        """The number, where there is one only."""
        return int(self.low) if self.low == self.high else None

    def is_below(self, end: int) -> bool:
        """Whether it is one of 0 .. end-1."""
        return self.low >= 0 and self.high < end


ANYTHING = Fact(-math.inf, math.inf, 1)


def exactly(number: int) -> Fact:
    return _bounded(number, number, abs(number))


def either(x: Fact, y: Fact) -> Fact:
    """Of a number that is one of two."""
    return Fact(min(x.low, y.low), max(x.high, y.high), math.gcd(x.multiple, y.multiple))


def counted(start: Fact, stop: Fact, step: Fact) -> Fact:
    """Of `for index = start; index < stop; index += step` inside of the loop."""
    multiple = math.gcd(start.multiple, step.multiple)
    high = stop.high - 1
    if multiple > 1 and math.isfinite(high):
        high = int(high) // multiple * multiple
    return Fact(start.low, max(start.low, high), multiple)


def of_operation(op: str, x: Fact, y: Fact) -> Fact:
    """Of add, sub, mul, div, rem, min or max of two numbers; division is towards zero."""
    both = math.gcd(x.multiple, y.multiple)
    match op:
        case "add":
            return _bounded(x.low + y.low, x.high + y.high, both)
        case "sub":
            return _bounded(x.low - y.high, x.high - y.low, both)
        case "mul":
            return _product(x, y)
        case "div":
            return _quotient(x, y)
        case "rem":
            return _remainder(x, y)
        case "min":
            return Fact(min(x.low, y.low), min(x.high, y.high), both)
        case "max":
            return Fact(max(x.low, y.low), max(x.high, y.high), both)
    return ANYTHING


def comparison(op: str, x: Fact, y: Fact) -> bool | None:
    """Whether lt, le, gt, ge, eq or ne holds, where that is known."""
    match op:
        case "gt" | "ge":
            return comparison("lt" if op == "gt" else "le", y, x)
        case "lt":
            return True if x.high < y.low else False if x.low >= y.high else None
        case "le":
            return True if x.high <= y.low else False if x.low > y.high else None
    if x.high < y.low or x.low > y.high:
        return op == "ne"
    return op == "eq" if x.only is not None and x.only == y.only else None


def _bounded(low: float, high: float, multiple: int) -> Fact:
    if low >= -_FAR and high <= _FAR:
        return Fact(low, high, multiple)
    # What wraps around is still a multiple of the same power of two.
    return Fact(-math.inf, math.inf, multiple & -multiple or 1)


def _product(x: Fact, y: Fact) -> Fact:
    if 0 in (x.only, y.only):
        return exactly(0)
    is_known = all(map(math.isfinite, (*x[:2], *y[:2])))
    corners = [int(a) * int(b) for a in x[:2] for b in y[:2]] if is_known else [math.inf]
    return _bounded(min(corners), max(corners), x.multiple * y.multiple)


def _quotient(x: Fact, y: Fact) -> Fact:
    divisor = y.only
    if divisor is None or divisor <= 0:
        return Fact(0, x.high, 1) if x.low >= 0 and y.low > 0 else ANYTHING
    # Rounded down below zero, where division rounds up.
    low = x.low if math.isinf(x.low) else int(x.low) // divisor
    high = x.high if math.isinf(x.high) else -(-int(x.high) // divisor) if x.high < 0 else int(x.high) // divisor
    return Fact(low, high, x.multiple // divisor if x.multiple % divisor == 0 else 1)


def _remainder(x: Fact, y: Fact) -> Fact:
    divisor = y.only
    if divisor is None or divisor <= 0:
        return ANYTHING
    if x.multiple % divisor == 0:
        return exactly(0)
    if x.is_below(divisor):
        return x
    low = 0 if x.low >= 0 else max(x.low, 1 - divisor)
    return Fact(low, min(max(x.high, 0), divisor - 1), math.gcd(x.multiple, divisor))
