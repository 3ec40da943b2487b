"""Rows of an operand as digits: what `mma` of bytes multiplies with the codes of GGUF panels.

Of each chunk of a row a warp makes integers of two or three digits (signed bytes) times one power of two: x / 2^e is
the sum of the digits, each times a power of 256. Sums of digits and codes are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.hopper.stored_codes import as_float, permuted
from rlx.backends.cuda.hopper.writer import Val, Writer


def bits_below_highest(digits: int) -> int:
    """Of the integers of a chunk: digits have a sign, and room for the carry."""
    return 8 * digits - 3


def chunk_scale(w: Writer, largest: Val, digits: int) -> tuple[Val, Val]:
    """What makes integers of the numbers of a chunk, and the power of two that makes numbers of these again; `largest`
    is the largest size of a lane's numbers."""
    top = bits_below_highest(digits)
    bits = w.emit(f"bitcast float {largest.name} to i32", "i32")
    (bits,) = w.asm("redux.sync.max.s32 $0, <x>, -1;", results=["i32"], x=bits)
    exponent = w.most(bits >> 23, top + 1)
    inverse = as_float(w, (w.value(254 + top) - exponent) << 23)
    # A chunk with an infinity or a NaN is NaN.
    return inverse, as_float(w, w.select(exponent.equals(255), 0x7FC00000, (exponent - top) << 23))


def rounded(w: Writer, x: Val) -> Val:
    """The nearest integer, the even one of two."""
    return w.asm("cvt.rni.s32.f32 $0, <x>;", results=["i32"], x=x)[0]


def as_digits(number: Val, digits: int) -> Val:
    """An integer with its digits as bytes, each of which has a sign."""
    ones = sum(0x80 << (8 * digit) for digit in range(digits))
    return (number + ones) ^ ones


def digit_words(w: Writer, eight: Sequence[Val], digits: int, order: Sequence[Sequence[int]]) -> list[tuple[Val, Val]]:
    """Two words for each digit of eight neighbours, those of the lowest first; `order` is that of `StoredFormat`."""
    first, second = (_bytes_of(w, [eight[i] for i in four], digits) for four in order)
    return list(zip(first, second))


def _bytes_of(w: Writer, four: Sequence[Val], digits: int) -> list[Val]:
    """The lowest bytes of four numbers, then the next ones, .."""
    low, high = (permuted(w, four[i], four[i + 1], 0x5140) for i in (0, 2))
    words = [permuted(w, low, high, selector) for selector in (0x5410, 0x7632)]
    if digits == 3:
        low, high = (permuted(w, four[i], four[i + 1], 0x0062) for i in (0, 2))
        words.append(permuted(w, low, high, 0x5410))
    return words


def by_group(
    codes: Sequence[Sequence[Val]], x: Sequence[Val], groups: int
) -> list[tuple[Sequence[Val], Sequence[Val]]]:
    """What `mma_bytes` multiplies for each group of a record; codes are those of both rows for each half."""
    if groups == 1:
        return [([*codes[0], *codes[1]], x)]
    return [(codes[half], [x[half]]) for half in range(2)]


def mma_bytes(w: Writer, codes: Sequence[Val], x: Sequence[Val], start: Val) -> list[Val]:
    """The sums of codes times digits, added to `start`."""
    named: dict[str, Val | int] = {f"a{i}": v for i, v in enumerate(codes)}
    named |= {f"b{i}": v for i, v in enumerate(x)}
    a, b = (", ".join(f"<{letter}{i}>" for i in range(len(v))) for letter, v in (("a", codes), ("b", x)))
    return w.asm(
        f"mma.sync.aligned.m16n8k{8 * len(codes)}.row.col.s32.s8.s8.s32 {{$0, $1, $2, $3}},"
        f" {{{a}}}, {{{b}}}, {{<c>, <c>, <c>, <c>}};",
        results=["i32"] * 4,
        named=named,
        c=start,
    )
