"""What attention does across lanes: transpose square tiles, add up several vectors at once, and 2**x for softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value

# 2**r for |r| <= 1/2, lowest power first: a minimax fit that is exact at 0, good to 2**-23.4.
_POWERS = (
    1.0,
    0.693146977624565,
    0.24022242141544517,
    0.05550733740357566,
    0.009671508987743549,
    0.0013264714481744492,
)
_MAGIC = 1.5 * 2.0**23
_BIAS = 127


def transposed(k: KernelBuilder, rows: Sequence[Value]) -> list[Value]:
    """Lane i of row j becomes lane j of row i; as many rows as lanes, a power of two.

    One bit of the position after the other is exchanged between row number and lane number.
    """
    found = list(rows)
    lanes = len(found)
    bit = 1
    while bit < lanes:
        upper = [i + lanes - bit if i & bit else i for i in range(lanes)]
        lower = [i + lanes if i & bit else i + bit for i in range(lanes)]
        for j in range(lanes):
            if not j & bit:
                a, b = found[j], found[j + bit]
                found[j], found[j + bit] = k.shuffle(a, upper, b), k.shuffle(a, lower, b)
        bit *= 2
    return found


def lane_sums(k: KernelBuilder, vectors: Sequence[Value]) -> Value:
    """The sum of each vector's lanes: lane i for vector i, and lanes up to a power of two that nobody should read.

    Neighbouring lanes are added, two vectors at a time, until one vector is left: about three instructions per vector,
    where adding up one after the other takes two for each halving of each of them. At most as many vectors as lanes.
    """
    found = list(vectors)
    wanted = 1 << (len(found) - 1).bit_length()
    if wanted > found[0].lanes:
        raise InternalError(f"lane_sums: {len(found)} sums are no lanes of a vector of {found[0].lanes}")
    found += [found[-1]] * (wanted - len(found))
    while len(found) > 1:
        found = [_neighbours_added(k, a, b) for a, b in zip(found[::2], found[1::2])]
    (sums,) = found
    while sums.lanes > wanted:
        even, odd = (k.shuffle(sums, range(start, sums.lanes, 2)) for start in (0, 1))
        sums = even + odd
    return sums


def _neighbours_added(k: KernelBuilder, a: Value, b: Value) -> Value:
    even, odd = (k.shuffle(a, range(start, 2 * a.lanes, 2), b) for start in (0, 1))
    return even + odd


def power_of_two(k: KernelBuilder, x: Value) -> Value:
    """2**x for f32 x <= 0, within 2.5 units in the last place down to 2**-126 and 0 below; NaN stays NaN.

    The integer part is read off the low bits of x + magic, where it already is the exponent field of 2**n: 0 for the
    smallest, so that -inf gives 0 exactly.
    """
    clamped = k.select(x < -float(_BIAS), -float(_BIAS), x)
    shifted = clamped + (_MAGIC + _BIAS)
    rest = clamped - (shifted - (_MAGIC + _BIAS))
    scale = k.bitcast(k.bitcast(shifted, DType.I32) << 23, DType.F32)
    result: Value = k.const(_POWERS[-1], x.type)
    for coefficient in reversed(_POWERS[:-1]):
        result = k.fma(result, rest, coefficient)
    return result * scale


def larger(k: KernelBuilder, a: Value, b: Value) -> Value:
    """The larger of two; `b` if `a` is NaN. One instruction, where `max` must also look for NaN."""
    return k.select(a > b, a, b)


def power(k: KernelBuilder, x: Value) -> Value:
    """The power of a score that is at most 0, in units of `score_unit`."""
    return power_of_two(k, x) if x.dtype is DType.F32 else k.op("exp", x)


def base(k: KernelBuilder, peak: Value) -> Value:
    """What to subtract from scores: the highest one, or 0 where all are -inf."""
    return k.select(k.eq(peak, -math.inf), 0.0, peak)


def even_part(count: int, most: int) -> int:
    """The largest divisor of `count` that is at most `most`.

    >>> even_part(4, 5), even_part(12, 5), even_part(5, 4)
    (4, 4, 1)
    """
    return next(n for n in range(most, 0, -1) if count % n == 0)
