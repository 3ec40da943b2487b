"""sin, cos, tan and atan on the loop IR, for every finite argument; bounds and rules as in `vector_math`.

An angle is first reduced to a count of quarter turns and a rest of at most pi/4. Up to a few thousand turns three or
four exact subtractions do that. Beyond, the product with 2/pi is formed in integers from the bits of 2/pi that matter
(Payne and Hanek's method), in a branch that runs only if some lane needs it.
"""

from __future__ import annotations

import math

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.math.vector_math import FloatFormat, copysign, float_format, polynomial, rounded

# 2/pi in 32-bit words after the binary point, behind two zero words that make room for small exponents.
_TWO_OVER_PI = (
    *(0, 0),
    *(2734261102, 1313084713, 4230436817, 4113882560, 3680671129, 1011060801, 4266746795, 3736847713),
    *(3072618042, 1112396512, 105459434, 164729372, 4263373596, 2972297022, 3900847605, 784024708),
    *(3919343654, 3026157121, 965858873, 2203269620, 2625920907, 3187222587, 536385535, 3724908559),
    *(4012839307, 1510632735, 1832287951, 667617719, 1330003814, 2657085997, 1965537991, 3957715323),
    *(1023883767, 2320667370, 1811636145, 529358088, 1443049542, 4235946923, 4040145952, 2599695901),
)


def sin(k: KernelBuilder, x: Value) -> Value:
    turns, rest = _quarter_turns(k, k.abs(x))
    y = _sine_after(k, turns, rest)
    return _finite_only(k, x, _flip_sign(k, y, x))


def cos(k: KernelBuilder, x: Value) -> Value:
    turns, rest = _quarter_turns(k, k.abs(x))
    return _finite_only(k, x, _sine_after(k, turns + 1, rest))


def tan(k: KernelBuilder, x: Value) -> Value:
    turns, rest = _quarter_turns(k, k.abs(x))
    s, c = _sine(k, rest), _cosine(k, rest)
    is_odd = k.ne(turns & 1, 0)
    y = k.select(is_odd, -c, s) / k.select(is_odd, s, c)
    return _finite_only(k, x, _flip_sign(k, y, x))


def atan(k: KernelBuilder, x: Value) -> Value:
    """atan(t) = base + atan(u) with |u| <= tan(pi/8), for base 0, pi/4 or pi/2."""
    t = k.abs(x)
    is_far, is_middle = t > 1.0 + math.sqrt(2.0), t > math.sqrt(2.0) - 1.0
    above = k.select(is_far, -1.0, k.select(is_middle, t - 1.0, t))
    below = k.select(is_far, t, k.select(is_middle, t + 1.0, k.const(1.0, t.type)))
    base = k.select(is_far, math.pi / 2, k.select(is_middle, math.pi / 4, k.const(0.0, t.type)))
    u = above / below
    z = u * u
    return copysign(k, base + k.fma(u * z, polynomial(k, z, float_format(x).atan), u), x)


def _flip_sign(k: KernelBuilder, y: Value, sign: Value) -> Value:
    """y with its sign flipped where `sign` is negative; for odd functions of |x|."""
    f = float_format(y)
    sign_bit = -(1 << (8 * f.signed.size_bytes - 1))
    return k.bitcast(k.bitcast(y, f.signed) ^ (k.bitcast(sign, f.signed) & sign_bit), y.dtype)


def _finite_only(k: KernelBuilder, x: Value, y: Value) -> Value:
    return k.select(k.abs(x) < math.inf, y, math.nan)


def _sine(k: KernelBuilder, r: Value) -> Value:
    z = r * r
    return k.fma(r * z, polynomial(k, z, float_format(r).sin), r)


def _cosine(k: KernelBuilder, r: Value) -> Value:
    z = r * r
    half = z * 0.5
    top = 1.0 - half
    # (1 - top) - half is what the rounding of top lost.
    return top + k.fma(z * z, polynomial(k, z, float_format(r).cos), (1.0 - top) - half)


def _sine_after(k: KernelBuilder, turns: Value, rest: Value) -> Value:
    """sin(turns * pi/2 + rest)."""
    y = k.select(k.ne(turns & 1, 0), _cosine(k, rest), _sine(k, rest))
    return k.select(k.ne(turns & 2, 0), -y, y)


def _quarter_turns(k: KernelBuilder, t: Value) -> tuple[Value, Value]:
    """n modulo 4 and r with t = n * pi/2 + r, |r| <= pi/4 and a little, for t >= 0."""
    f = float_format(t)
    n, n_float = rounded(k, t * (2.0 / math.pi))
    r = t
    for part in f.half_pi:
        r = r - n_float * part
    is_far = t > f.quarter_turn_limit

    def reduce_all() -> tuple[Value, Value]:
        far_n, far_r = _far_quarter_turns(k, t, f)
        return k.select(is_far, far_n, n), k.select(is_far, far_r, r)

    turns, rest = k.choose(k.reduce("or", is_far), reduce_all, lambda: (n, r))
    return turns, rest


def _far_quarter_turns(k: KernelBuilder, t: Value, f: FloatFormat) -> tuple[Value, Value]:
    """The same from the integer t = mantissa * 2**shift: the product with a window of 2/pi, modulo 4."""
    u64, low_word = DType.U64, 0xFFFFFFFF
    bits = k.bitcast(t, f.signed)
    mantissa = k.cast((bits & ((1 << f.mantissa) - 1)) | (1 << f.mantissa), u64)
    limbs = [mantissa & low_word] if f.mantissa < 32 else [mantissa & low_word, mantissa >> 32]
    # The product with 2**shift moves the binary point into the table; the two zero words stand for 2**-64.
    shift = k.max(k.cast(bits >> f.mantissa, DType.I64) - (f.bias + f.mantissa - 64), 32)
    word, offset = shift >> 5, k.cast(shift & 31, u64)
    fraction_words = 3 if f.mantissa < 32 else 6
    table = k.table("two_over_pi", DType.U32, _TWO_OVER_PI)
    raw = [k.cast(k.load(table, word + (j - 1)), u64) for j in range(fraction_words + 2)]
    # window[0] holds the integer part of 2/pi * 2**shift (modulo 2**32), the others its fraction.
    window = [((raw[j] << offset) | (raw[j + 1] >> (32 - offset))) & low_word for j in range(fraction_words + 1)]
    product = _multiply(k, limbs, window)
    # Rounded to the nearest quarter turn: the fraction's top bit moves on, and the rest is read as signed.
    turns = (product[0] + (product[1] >> 31)) & 3
    high = k.bitcast((product[1] << 32) | product[2], DType.I64)
    fraction = k.cast(high, t.dtype) * 2.0**-64
    if f.mantissa >= 32:
        fraction = fraction + k.cast((product[3] << 32) | product[4], t.dtype) * 2.0**-128
    return k.cast(turns, f.signed), fraction * (math.pi / 2)


def _multiply(k: KernelBuilder, limbs: list[Value], window: list[Value]) -> list[Value]:
    """The words of limbs * window, highest first, as many as the window has; both in base 2**32."""
    low_word = 0xFFFFFFFF
    carry: Value | None = None
    words: list[Value] = []
    for position in reversed(range(len(window))):
        total = carry
        for place, limb in enumerate(limbs):
            # A limb of weight 2**(32*place) meets the word that far to the right, and the high half of the next.
            for at, is_high in ((position + place, False), (position + place + 1, True)):
                if at >= len(window):
                    continue
                partial = limb * window[at]
                part = partial >> 32 if is_high else partial & low_word
                total = part if total is None else total + part
        assert total is not None
        words.append(total & low_word)
        carry = total >> 32
    return words[::-1]
