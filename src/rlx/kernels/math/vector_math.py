"""exp, log, tanh, erf and their kin as arithmetic on the loop IR: any target, any lane count, f32 and f64.

`vector_trig` (sin, cos, tan, atan) and `vector_pow` follow the same rules. Every function takes the builder and values
of one float type and appends an expansion made of additions, multiplications, a division at most, integer operations
and selects. Nothing relies on an exact fma, so that targets without one give nearly the same bits. NaN, infinities,
signed zeros and denormals behave as in C.

Error bounds in units in the last place, for f32 and f64, over all inputs, with and without fma
(`tests/kernels/test_vector_math.py` measures them against wider arithmetic):

| exp | expm1 | log | log1p | tanh | erf | erfc | normal_cdf | sin cos | tan | atan | pow |
|---|---|---|---|---|---|---|---|---|---|---|---|
| 1 | 2 | 1 | 2 | 3 | 5 | 6 | 8 | 3 | 5 | 3 | 2 |

The polynomials are minimax fits of our own, each good to 2**-27 (f32) or 2**-57 (f64) of its function or better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value


class FloatFormat(NamedTuple):
    """What depends on the float type. Polynomials are lowest power first."""

    signed: DType
    mantissa: int  # stored bits
    bias: int
    exp_range: tuple[float, float]  # beyond it exp is 0 or inf
    exp_small: float  # below it exp may be denormal, and is normal times 2**64
    ln2: tuple[float, float]  # the first part times any exponent is exact
    half_pi: tuple[float, ...]  # each but the last times a quarter-turn count below the limit is exact
    quarter_turn_limit: float
    saturation: float  # tanh is 1 and erfc's square is beyond exp_range from here on
    expm1: tuple[float, ...]  # (e**r - 1 - r) / r**2, |r| <= ln(2)/2
    log: tuple[float, ...]  # (2 atanh(s) - 2 s) / s**3 in s**2, s**2 <= 0.03
    erf: tuple[float, ...]  # erf(x) / x in x**2, |x| <= 1/2
    erfc_from: float  # the least t of the next polynomial: 0 or 1/2
    erfc_centre: float
    erfc: tuple[float, ...]  # exp(t**2) erfc(t) (t + c) in (t - c) / (t + c)
    sin: tuple[float, ...]  # (sin(r) - r) / r**3 in r**2, |r| <= pi/4
    cos: tuple[float, ...]  # (cos(r) - 1 + r**2/2) / r**4 in r**2, |r| <= pi/4
    atan: tuple[float, ...]  # (atan(u) - u) / u**3 in u**2, |u| <= tan(pi/8)

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def magic(self) -> float:
        """Added to a number below 2**(mantissa - 1), it rounds it to an integer that sits in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def magic_bits(self) -> int:
        return ((self.bias + self.mantissa) << self.mantissa) | (1 << (self.mantissa - 1))

    def bits_of(self, mantissa_fraction: float, exponent: int) -> int:
        """The bits of (1 + fraction) * 2**exponent."""
        return ((self.bias + exponent) << self.mantissa) + int(mantissa_fraction * 2**self.mantissa)


F32_FORMAT = FloatFormat(
    signed=DType.I32,
    mantissa=23,
    bias=127,
    exp_range=(-104.0, 89.0),
    exp_small=-80.0,
    ln2=(0.693145751953125, 1.428606765330187e-06),
    half_pi=(1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.5633440682570896e-12),
    quarter_turn_limit=2.0**13,
    saturation=20.0,
    expm1=(
        0.5000000046813945,
        0.16666666352127374,
        0.04166634871478478,
        0.008333391679103368,
        0.0013941652616005064,
        0.00019845942263220558,
    ),
    log=(0.6666677972369233, 0.3997708240572725, 0.29885139938302285),
    erf=(1.1283791655675424, -0.37612608574230283, 0.11282822824487847, -0.026757184654804325, 0.004717990067210741),
    erfc_from=0.0,
    erfc_centre=2.5,
    erfc=(
        1.0540318169729024,
        -0.8046519148137038,
        0.4539144103743812,
        -0.17124968539856483,
        0.02835760642823247,
        0.008383879225906174,
        -0.0047999568343574574,
        -0.0004149625568234622,
        0.0006622344199368414,
        2.7484757473551093e-05,
        -7.132559237967313e-05,
    ),
    sin=(-0.16666654239133466, 0.008332137015646071, -0.0001951201592753223),
    cos=(0.04166664503064836, -0.0013887284009445554, 2.442942000713973e-05),
    atan=(
        -0.3333331433789671,
        0.1999841555271104,
        -0.14242412101444665,
        0.10585099621503397,
        -0.060551668841904834,
    ),
)

F64_FORMAT = FloatFormat(
    signed=DType.I64,
    mantissa=52,
    bias=1023,
    exp_range=(-746.0, 710.0),
    exp_small=-700.0,
    ln2=(0.6931471805598903, 5.497923018708371e-14),
    half_pi=(1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21),
    quarter_turn_limit=2.0**20,
    saturation=40.0,
    expm1=(
        0.5,
        0.16666666666666677,
        0.04166666666666649,
        0.008333333333320739,
        0.0013888888888968418,
        0.00019841269888683466,
        2.480158716463582e-05,
        2.7557241369030888e-06,
        2.755740602699689e-07,
        2.511010989313712e-08,
        2.0875294618606127e-09,
    ),
    log=(
        0.666666666666674,
        0.3999999999937803,
        0.28571428751292893,
        0.22222197588249226,
        0.18183618948055566,
        0.15312570735499967,
        0.14811533247407574,
    ),
    erf=(
        1.1283791670955126,
        -0.3761263890318375,
        0.11283791670954864,
        -0.026866170644997654,
        0.005223977621974562,
        -0.0008548326505839159,
        0.00012055285871013896,
        -1.4922990295838226e-05,
        1.6370955957084287e-06,
        -1.4618441321282917e-07,
    ),
    erfc_from=0.5,
    erfc_centre=4.0,
    erfc=(
        1.095995661000491,
        -0.976548729080882,
        0.7732087022652361,
        -0.5408538313132353,
        0.33085158787807667,
        -0.1740109372399398,
        0.0763815149076679,
        -0.02637005334003886,
        0.006112055677116874,
        -0.0002809588700239141,
        -0.00045505284785529623,
        0.0001768128541739814,
        -3.634388375702651e-06,
        -1.886104563607917e-05,
        4.69202072822237e-06,
        1.4246067351518714e-06,
        -8.415468536969885e-07,
        -7.613989568295432e-08,
        1.1863134529497903e-07,
        1.3319455897351603e-09,
        -1.184568559254056e-08,
    ),
    sin=(
        -0.1666666666666663,
        0.008333333333321546,
        -0.00019841269829114637,
        2.755731345153697e-06,
        -2.5050720430244483e-08,
        1.5894605933142435e-10,
    ),
    cos=(
        0.04166666666666659,
        -0.0013888888888872238,
        2.480158728832879e-05,
        -2.755731402492685e-07,
        2.0875679436831937e-09,
        -1.1357407633180264e-11,
    ),
    atan=(
        -0.3333333333333318,
        0.19999999999948803,
        -0.14285714279698755,
        0.11111110757906795,
        -0.09090897006463323,
        0.07692046593992037,
        -0.06662946608020398,
        0.058467265693825723,
        -0.05033995336394125,
        0.03792803519804121,
        -0.01775606229005464,
    ),
)

_SQRT_HALF = math.sqrt(0.5)


def float_format(x: Value) -> FloatFormat:
    return F32_FORMAT if x.dtype is DType.F32 else F64_FORMAT


def polynomial(k: KernelBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme, lowest power first in `coefficients`."""
    result: Value = k.const(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = k.fma(result, x, coefficient)
    return result


def short_chain(k: KernelBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """The same by Estrin's scheme: a few more multiplications, but few of them wait for each other."""
    terms: list[Value] = [k.const(c, x.type) for c in coefficients]
    power = x
    while len(terms) > 1:
        pairs = [k.fma(high, power, low) for low, high in zip(terms[::2], terms[1::2])]
        terms = [*pairs, *terms[len(pairs) * 2 :]]
        power = power * power if len(terms) > 1 else power
    return terms[0]


def copysign(k: KernelBuilder, magnitude: Value, sign: Value) -> Value:
    f = float_format(magnitude)
    sign_bit = -(1 << (8 * f.signed.size_bytes - 1))
    bits = k.bitcast(k.abs(magnitude), f.signed) | (k.bitcast(sign, f.signed) & sign_bit)
    return k.bitcast(bits, magnitude.dtype)


def at_least(k: KernelBuilder, x: Value, low: float) -> Value:
    """max(x, low), but NaN stays NaN in one instruction, where max needs three."""
    return k.select(x < low, low, x)


def at_most(k: KernelBuilder, x: Value, high: float) -> Value:
    return k.select(x > high, high, x)


def to_float(k: KernelBuilder, n: Value, dtype: DType) -> Value:
    """A small integer as a float, without an int-to-float instruction, which 64-bit lanes often lack."""
    f = F32_FORMAT if dtype is DType.F32 else F64_FORMAT
    return k.bitcast(n + f.magic_bits, dtype) - f.magic


def rounded(k: KernelBuilder, x: Value) -> tuple[Value, Value]:
    """The nearest integer, as integer and as float."""
    f = float_format(x)
    shifted = x + f.magic
    return k.bitcast(shifted, f.signed) - f.magic_bits, shifted - f.magic


def _power_of_two(k: KernelBuilder, field: Value, dtype: DType) -> Value:
    """2**(e - bias) for an integer with e in its low bits; what is above them does not matter."""
    f = F32_FORMAT if dtype is DType.F32 else F64_FORMAT
    return k.bitcast(field << f.mantissa, dtype)


class _ExpParts(NamedTuple):
    """exp(x) = 2**n (1 + p): n as a float, the field of a power of two (see `_power_of_two`), and p."""

    n: Value
    field: Value
    p: Value


def _exp_parts(k: KernelBuilder, x: Value, low: Value | None = None, scale: int = 0) -> _ExpParts:
    """The parts of exp(x + low); the field is that of 2**(n + scale)."""
    f = float_format(x)
    # The exponent's bias goes into the number that rounds, so that the sum has the field of 2**n in its low bits.
    magic = f.magic + (f.bias + scale)
    shifted = k.fma(x, 1.0 / math.log(2.0), magic)
    n = shifted - magic
    r = k.fma(n, -f.ln2[1], k.fma(n, -f.ln2[0], x))
    if low is not None:
        r = r + low
    return _ExpParts(n, k.bitcast(shifted, f.signed), k.fma(r * r, polynomial(k, r, f.expm1), r))


def exp(k: KernelBuilder, x: Value) -> Value:
    return exp_sum(k, at_most(k, x, float_format(x).exp_range[1]), lift=1)


def exp_sum(k: KernelBuilder, x: Value, low: Value | None = None, times: float = 1.0, lift: int = 0) -> Value:
    """exp(x + low) `times` a power of two near 1, for a low part that is small beside 1 and x <= 0; with a `lift` of 1,
    x not above `exp_range`.

    2**n may be beyond the largest or below the smallest normal number. Without an instruction for that it is
    2**(n - lift) times 2**lift, or, where the result is small, 2**(n - lift + 64) times 2**(lift - 64).
    """
    f = float_format(x)
    parts = _exp_parts(k, at_least(k, x, f.exp_range[0]), low, scale=-lift)
    if k.has_scale2(x.type):
        return k.op("scale2", parts.p + 1.0 if times == 1.0 else k.fma(parts.p, times, times), parts.n)
    is_small = x < f.exp_small
    power = _power_of_two(k, k.select(is_small, parts.field + 64, parts.field), x.dtype)
    rest = times * 2.0**lift
    return k.fma(power, parts.p, power) * k.select(is_small, rest * 2.0**-64, k.const(rest, x.type))


def exp_negative(k: KernelBuilder, x: Value) -> Value:
    """exp(x) for x <= 0 or NaN; what it is for other x is not defined."""
    return exp_sum(k, x)


def expm1(k: KernelBuilder, x: Value) -> Value:
    """2**n (1 + p) - 1, where n = 0 near 0, so that nothing cancels there."""
    f = float_format(x)
    inside = at_most(k, at_least(k, x, -f.saturation * 3.0), f.exp_range[1])
    _, field, p = _exp_parts(k, inside, scale=-1)
    half_scale = _power_of_two(k, field, x.dtype)
    y = k.fma(half_scale, p, half_scale - 0.5) * 2.0
    return k.select(k.eq(x, 0.0), x, y)


def tanh(k: KernelBuilder, x: Value) -> Value:
    """expm1(2|x|) / (expm1(2|x|) + 2), with the sign of x."""
    f = float_format(x)
    _, field, p = _exp_parts(k, at_most(k, k.abs(x), f.saturation) * 2.0)
    scale = _power_of_two(k, field, x.dtype)
    e = k.fma(scale, p, scale - 1.0)
    # To the last bit: 1 - tanh(x)**2, its derivative, has what is lost here many times over.
    return copysign(k, e / (e + 2.0), x)


def sigmoid(k: KernelBuilder, x: Value) -> Value:
    """1 / (1 + exp(-x)), from exp(-|x|), so that small results keep their precision."""
    e = k.op("exp_negative", -k.abs(x))
    return k.op("quotient", k.select(x < 0.0, e, 1.0), e + 1.0)


def silu(k: KernelBuilder, x: Value) -> Value:
    return x * sigmoid(k, x)


def gelu(k: KernelBuilder, x: Value) -> Value:
    """x times the normal distribution function; its tail keeps its relative precision."""
    return x * k.op("normal_cdf", x)


def gelu_approx(k: KernelBuilder, x: Value) -> Value:
    """x/2 (1 + tanh u) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x**3)."""
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    return x * sigmoid(k, x * k.fma(x * x, scale * 0.044715, scale))


def split_exponent(k: KernelBuilder, x: Value) -> tuple[Value, Value]:
    """e (as a float) and m in [sqrt(1/2), sqrt(2)) with x = m * 2**e, for finite x > 0."""
    f = float_format(x)
    is_tiny = x < f.smallest_normal
    lift = f.mantissa + 2
    bits = k.bitcast(k.select(is_tiny, x * 2.0**lift, x), f.signed)
    e = (bits - f.bits_of(math.sqrt(2.0) - 1.0, -1)) >> f.mantissa
    m = k.bitcast(bits - (e << f.mantissa), x.dtype)
    return to_float(k, k.select(is_tiny, e - lift, e), x.dtype), m


def log_limits(k: KernelBuilder, x: Value, y: Value) -> Value:
    """The log `y` of x with log(inf) = inf, log(0) = -inf, log(negative) = NaN."""
    y = k.select(x < math.inf, y, x)
    y = k.select(x < 0.0, math.nan, y)
    return k.select(k.eq(x, 0.0), -math.inf, y)


def log(k: KernelBuilder, x: Value) -> Value:
    """e ln(2) + 2 atanh(s), s = (m-1)/(m+1), written so that the leading term m - 1 is exact."""
    f = float_format(x)
    e, m = split_exponent(k, x)
    r = m - 1.0
    s = r / (r + 2.0)
    z = s * s
    correction = s * (r - z * polynomial(k, z, f.log))
    y = k.fma(e, f.ln2[0], r - k.fma(e, -f.ln2[1], correction))
    return log_limits(k, x, y)


def log1p(k: KernelBuilder, x: Value) -> Value:
    """log(u) for u = 1 + x, plus what the rounding of u lost."""
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    y = log(k, u)
    y = k.select(k.abs(y) < math.inf, y + lost, y)
    return k.select(k.eq(x, 0.0), x, y)


def _erf_near_zero(k: KernelBuilder, x: Value) -> Value:
    return x * polynomial(k, x * x, float_format(x).erf)


def _negative_square(k: KernelBuilder, x: Value, times: float = 1.0) -> tuple[Value, Value]:
    """-x*x `times` a power of two as an exact leading part and a small rest: a rounding error in the square would grow
    with it in exp. The rest of -(a - d)**2, with a of half the digits, is d (2a - d)."""
    f = float_format(x)
    kept = k.bitcast(k.bitcast(x, f.signed) & -(1 << (f.mantissa // 2 + 1)), x.dtype)
    d = kept - x
    return kept * (kept * -times), d * k.fma(d, -times, kept * (2.0 * times))


def _erfc_tail(k: KernelBuilder, t: Value, square: tuple[Value, Value], times: float = 1.0) -> Value:
    """erfc(t) `times` a power of two for `erfc_from` <= t, given -t**2 in two parts."""
    f = float_format(t)
    inverse = 1.0 / (t + f.erfc_centre)
    u = (t - f.erfc_centre) * inverse
    return exp_sum(k, *square, times=times) * (polynomial(k, u, f.erfc) * inverse)


def erf(k: KernelBuilder, x: Value) -> Value:
    t = at_most(k, k.abs(x), float_format(x).saturation)
    far = 1.0 - _erfc_tail(k, t, _negative_square(k, t))
    return k.select(t < 0.5, _erf_near_zero(k, x), copysign(k, far, x))


def erfc(k: KernelBuilder, x: Value) -> Value:
    f = float_format(x)
    t = at_most(k, k.abs(x), f.saturation)
    tail = _erfc_tail(k, t, _negative_square(k, t))
    far = k.select(x < 0.0, 2.0 - tail, tail)
    return far if f.erfc_from == 0.0 else k.select(t < f.erfc_from, 1.0 - _erf_near_zero(k, x), far)


def normal_cdf(k: KernelBuilder, x: Value) -> Value:
    """erfc(-x / sqrt(2)) / 2, with the square taken of x itself."""
    f = float_format(x)
    magnitude = at_most(k, k.abs(x), f.saturation * math.sqrt(2.0))
    tail = _erfc_tail(k, magnitude * _SQRT_HALF, _negative_square(k, magnitude, 0.5), times=0.5)
    far = k.select(x < 0.0, tail, 1.0 - tail)
    if f.erfc_from == 0.0:
        return far
    near = k.fma(_erf_near_zero(k, x * _SQRT_HALF), 0.5, 0.5)
    return k.select(magnitude * _SQRT_HALF < f.erfc_from, near, far)
