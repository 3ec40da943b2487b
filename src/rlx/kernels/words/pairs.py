"""Exact 64-bit integers in two words, written in operations on u32.

`Pair.of(k, -1)` and the functions below append to a builder; signed and unsigned numbers differ in `is_signed` only.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value

U32, I32, F32 = DType.U32, DType.I32, DType.F32


class Pair(NamedTuple):
    """The low and the high word, both u32."""

    low: Value
    high: Value

    @staticmethod
    def of(k: KernelBuilder, number: int) -> Pair:
        return Pair(k.const(number & 0xFFFFFFFF, U32), k.const((number >> 32) & 0xFFFFFFFF, U32))


def from_word(k: KernelBuilder, x: Value) -> Pair:
    """An i32 or a u32 with the words above it."""
    if x.dtype is U32:
        return Pair(x, k.const(0, U32))
    return Pair(k.bitcast(x, U32), k.bitcast(x >> 31, U32))


def bit(k: KernelBuilder, condition: Value) -> Value:
    return k.select(condition, k.const(1, U32), k.const(0, U32))


def choose(k: KernelBuilder, condition: Value, a: Pair, b: Pair) -> Pair:
    return Pair(*(k.select(condition, x, y) for x, y in zip(a, b)))


def add(k: KernelBuilder, a: Pair, b: Pair) -> Pair:
    low = a.low + b.low
    return Pair(low, a.high + b.high + bit(k, low < a.low))


def sub(k: KernelBuilder, a: Pair, b: Pair) -> Pair:
    return Pair(a.low - b.low, a.high - b.high - bit(k, a.low < b.low))


def neg(k: KernelBuilder, a: Pair) -> Pair:
    return sub(k, Pair.of(k, 0), a)


def mul(k: KernelBuilder, a: Pair, b: Pair) -> Pair:
    """The product of the low words in halves, whose products fit into a word."""
    a0, a1, b0, b1 = a.low & 0xFFFF, a.low >> 16, b.low & 0xFFFF, b.low >> 16
    low, middle = a0 * b0, a1 * b0
    # No word overflows: (2**16 - 1)**2 + 2 * (2**16 - 1) is 2**32 - 1.
    first = middle + (low >> 16)
    second = a0 * b1 + (first & 0xFFFF)
    high = a1 * b1 + (first >> 16) + (second >> 16)
    return Pair((second << 16) | (low & 0xFFFF), high + a.low * b.high + a.high * b.low)


def bitwise(k: KernelBuilder, op: str, a: Pair, b: Pair) -> Pair:
    return Pair(k.op(op, a.low, b.low), k.op(op, a.high, b.high))


def invert(k: KernelBuilder, a: Pair) -> Pair:
    return Pair(~a.low, ~a.high)


def shl(k: KernelBuilder, a: Pair, count: Value) -> Pair:
    """By 0 to 63, a u32."""
    inside, is_far = count & 31, count >= 32
    carried = k.select(k.ne(inside, 0), a.low >> ((32 - inside) & 31), 0)
    low = a.low << inside
    return Pair(k.select(is_far, 0, low), k.select(is_far, low, (a.high << inside) | carried))


def shr(k: KernelBuilder, a: Pair, count: Value, is_signed: bool) -> Pair:
    inside, is_far = count & 31, count >= 32
    carried = k.select(k.ne(inside, 0), a.high << ((32 - inside) & 31), 0)
    if is_signed:
        signed = k.bitcast(a.high, I32)
        high = k.bitcast(signed >> k.bitcast(inside, I32), U32)
        above = k.bitcast(signed >> 31, U32)
    else:
        high, above = a.high >> inside, k.const(0, U32)
    return Pair(k.select(is_far, high, (a.low >> inside) | carried), k.select(is_far, above, high))


def equal(k: KernelBuilder, a: Pair, b: Pair) -> Value:
    return k.eq(a.low, b.low) & k.eq(a.high, b.high)


def less(k: KernelBuilder, a: Pair, b: Pair, is_signed: bool) -> Value:
    high = (k.bitcast(a.high, I32), k.bitcast(b.high, I32)) if is_signed else (a.high, b.high)
    return (high[0] < high[1]) | (k.eq(a.high, b.high) & (a.low < b.low))


def compare(k: KernelBuilder, op: str, a: Pair, b: Pair, is_signed: bool) -> Value:
    match op:
        case "eq":
            return equal(k, a, b)
        case "ne":
            return ~equal(k, a, b)
        case "lt":
            return less(k, a, b, is_signed)
        case "gt":
            return less(k, b, a, is_signed)
        case "le":
            return ~less(k, b, a, is_signed)
    return ~less(k, a, b, is_signed)


def is_negative(k: KernelBuilder, a: Pair) -> Value:
    return k.ne(a.high >> 31, 0)


def magnitude(k: KernelBuilder, a: Pair) -> Pair:
    return choose(k, is_negative(k, a), neg(k, a), a)


def divide(k: KernelBuilder, a: Pair, b: Pair, is_signed: bool) -> tuple[Pair, Pair]:
    """The quotient, cut toward zero, and the remainder."""
    if not is_signed:
        return _divide(k, a, b)
    quotient, rest = _divide(k, magnitude(k, a), magnitude(k, b))
    signs_differ = k.ne((a.high ^ b.high) >> 31, 0)
    return (
        choose(k, signs_differ, neg(k, quotient), quotient),
        choose(k, is_negative(k, a), neg(k, rest), rest),
    )


def _divide(k: KernelBuilder, a: Pair, b: Pair) -> tuple[Pair, Pair]:
    """Bit by bit from the top: what is left grows by one bit and gives the divisor up where it has it."""
    zero = k.const(0, U32)
    # a moves out of its top while the quotient moves into its bottom.
    with k.fold("digit", 0, 64, init=[a.low, a.high, zero, zero]) as fold:
        moving, rest = Pair(*fold.values[:2]), Pair(*fold.values[2:])
        overflows = k.ne(rest.high >> 31, 0)
        rest = Pair((rest.low << 1) | (moving.high >> 31), (rest.high << 1) | (rest.low >> 31))
        fits = overflows | ~less(k, rest, b, is_signed=False)
        rest = choose(k, fits, sub(k, rest, b), rest)
        moving = Pair((moving.low << 1) | bit(k, fits), (moving.high << 1) | (moving.low >> 31))
        fold.next(*moving, *rest)
    return Pair(*fold.results[:2]), Pair(*fold.results[2:])


def to_f32(k: KernelBuilder, a: Pair, is_signed: bool) -> Value:
    """Rounded once: the 32 highest bits with a last one that stands for all below, then times a power of two."""
    size = magnitude(k, a) if is_signed else a
    has_high = k.ne(size.high, 0)
    # How far the high word is from filling its word, by halves.
    shift: Value = k.const(0, U32)
    word = size.high
    for step in (16, 8, 4, 2, 1):
        is_empty = k.eq(word >> (32 - step), 0)
        shift = k.select(is_empty, shift + step, shift)
        word = k.select(is_empty, word << step, word)
    top = shl(k, size, k.select(has_high, shift, 0))
    joined = top.high | bit(k, k.ne(top.low, 0))
    exponent = k.cast(k.const(32, U32) - shift, I32)
    scale = k.bitcast((exponent + 127) << 23, F32)
    number = k.select(has_high, k.cast(joined, F32) * scale, k.cast(size.low, F32))
    return k.select(is_negative(k, a), -number, number) if is_signed else number


def from_f32(k: KernelBuilder, x: Value, is_signed: bool) -> Pair:
    """Truncated; the nearest end beyond the range, 0 for NaN."""
    lowest, beyond = (-(2.0**63), 2.0**63) if is_signed else (0.0, 2.0**64)
    whole = k.abs(k.op("trunc", x))
    # Both parts are exact: a float has 24 bits.
    high = k.op("floor", whole * 2.0**-32)
    pair = Pair(k.cast(whole - high * 2.0**32, U32), k.cast(high, U32))
    if is_signed:
        pair = choose(k, x < 0.0, neg(k, pair), pair)
    pair = choose(k, x >= beyond, Pair.of(k, (1 << 63) - 1 if is_signed else (1 << 64) - 1), pair)
    pair = choose(k, x <= lowest, Pair.of(k, int(lowest)), pair)
    return choose(k, k.ne(x, x), Pair.of(k, 0), pair)
