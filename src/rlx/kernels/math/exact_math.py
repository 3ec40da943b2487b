"""Functions whose results are exact, by integer arithmetic on the loop IR: remainders of floats, powers of integers.

Both loop: how often depends on the operands, and all lanes of a vector go as often as the one that needs most.
"""

from __future__ import annotations

import math

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.math.vector_math import copysign, float_format


def float_remainder(k: KernelBuilder, a: Value, b: Value) -> Value:
    """a - b·trunc(a / b) without any rounding, as C's fmod: the sign of a; NaN for b = 0 and for infinite a."""
    is_proper = (k.abs(a) < math.inf) & k.ne(b, 0.0) & k.eq(b, b)
    if a.dtype is DType.F32 and k.has_f64():
        wide, divisor = (
            k.cast(k.abs(x), DType.F64) for x in (k.select(is_proper, a, 0.0), k.select(is_proper, b, 1.0))
        )
        quotient = wide / divisor
        (magnitude,) = k.choose(
            k.reduce("or", quotient >= _EXACT_QUOTIENT),
            lambda: [_long_remainder(k, a, b)],
            lambda: [k.cast(wide - divisor * k.op("trunc", quotient), DType.F32)],
        )
    elif k.has_fma():
        size, divisor = (k.abs(x) for x in (k.select(is_proper, a, 0.0), k.select(is_proper, b, 1.0)))
        quotient = size / divisor
        (magnitude,) = k.choose(
            k.reduce("or", quotient >= 2.0**52),
            lambda: [_long_remainder(k, a, b)],
            lambda: [_remainder_by_fma(k, size, divisor, k.op("trunc", quotient))],
        )
    else:
        magnitude = _long_remainder(k, a, b)
    magnitude = k.select(k.eq(k.abs(b), math.inf), k.abs(a), magnitude)
    return k.select(is_proper, copysign(k, magnitude, a), math.nan)


# Below this a quotient of two f32 in f64 is cut to the whole number that the exact quotient is cut to, whose distance
# from the next one is more than a rounding; and its product with the divisor needs no more bits than f64 has.
_EXACT_QUOTIENT = 2.0**28


def _remainder_by_fma(k: KernelBuilder, size: Value, divisor: Value, count: Value) -> Value:
    """What is left of a number after so many divisors. Where the quotient was rounded up to a whole number, that is
    negative; all these are exact."""
    rest = k.fma(-count, divisor, size)
    return k.select(rest < 0.0, rest + divisor, rest)


def _long_remainder(k: KernelBuilder, a: Value, b: Value) -> Value:
    """|a| mod |b| for finite a and b that is not 0, whatever their quotient.

    With |a| = m·2^e and |b| = n·2^f, e >= f, it is (m·2^(e-f) mod n)·2^f; the power of two is multiplied in step by
    step, as many bits at a time as fit beside n. For e < f, |a| is below |b| already.
    """
    f = float_format(a)
    (m, e), (n, lowest) = (_parts(k, x) for x in (a, b))
    divisor = k.select(k.eq(n, 0), 1, n)
    missing = k.max(e - lowest, 0)
    room = 64 - (f.mantissa + 1)
    rounds = k.ceildiv(k.cast(k.reduce("max", missing), DType.I64), room)
    with k.fold("round", 0, rounds, init=[m % divisor, missing]) as fold:
        rest, left = fold.values
        bits = k.min(left, room)
        fold.next((rest << k.cast(bits, DType.U64)) % divisor, left - bits)
    whole = k.cast(k.cast(fold.results[0], DType.I64), a.dtype)
    remainder = _times_power(k, whole, lowest)
    return k.select(e < lowest, k.abs(a), remainder)


def _parts(k: KernelBuilder, x: Value) -> tuple[Value, Value]:
    """|x| = m·2^e for finite x, m as u64 and e as an integer of the width of x; denormals have the least e."""
    f = float_format(x)
    bits = k.bitcast(k.abs(x), f.signed)
    field = bits >> f.mantissa
    is_normal = field > 0
    fraction = bits & ((1 << f.mantissa) - 1)
    m = k.select(is_normal, fraction | (1 << f.mantissa), fraction)
    return k.cast(k.cast(m, DType.I64), DType.U64), k.max(field, 1) - (f.bias + f.mantissa)


def _times_power(k: KernelBuilder, x: Value, exponent: Value) -> Value:
    """x·2^exponent in two steps, each by a power that is a normal number."""
    f = float_format(x)
    half = exponent >> 1
    for part in (half, exponent - half):
        x = x * k.bitcast((part + f.bias) << f.mantissa, x.dtype)
    return x


def integer_power(k: KernelBuilder, a: Value, b: Value) -> Value:
    """a^b by repeated squaring, wrapping; a negative b gives the truncated quotient 1 / a^|b|, and 0 for a = 0."""
    is_negative = b < 0 if b.dtype.is_signed else None
    exponent = b if is_negative is None else k.select(is_negative, 0, b)
    largest = k.cast(k.reduce("max", exponent), DType.U64)
    bits = 8 * a.dtype.size_bytes
    one = k.const(1, a.type)
    # Most exponents are small: those below 16 end with their own highest bit.
    rounds = k.as_index(0)
    for power in range(4):
        rounds = rounds + k.cast(largest >= 1 << power, DType.I64)
    rounds = k.select(largest >= 16, bits, rounds)
    with k.fold("bit", 0, rounds, init=[one, a, exponent]) as fold:
        result, square, rest = fold.values
        is_set = k.ne(rest & 1, 0)
        fold.next(k.select(is_set, result * square, result), square * square, rest >> 1)
    if is_negative is None:
        return fold.results[0]
    unit = k.select(k.eq(b & 1, 0), one, a)
    reciprocal = k.select(k.eq(a, 1) | k.eq(a, -1), unit, 0)
    return k.select(is_negative, reciprocal, fold.results[0])
