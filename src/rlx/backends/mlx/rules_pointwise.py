"""Rules for elementwise ops: arithmetic, comparisons, conversions, functions of one number, bits.

f16 and bf16 are computed in f32 and rounded once. What MLX leaves open (conversions of numbers that do not fit,
division of integers by 0, shifts by the width or more) is written out as docs/semantics.md says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from rlx.backends.mlx.device import mx
from rlx.backends.mlx.dtypes import CODED, mlx_type
from rlx.backends.mlx.functions import FUNCTIONS, has_sign, with_sign_of
from rlx.backends.mlx.walk import Call, rule
from rlx.ir.dtype import DType
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.pointwise.bits import Bitcast, BitUnary, Predicate
from rlx.ops.pointwise.complex_numbers import Imag, MakeComplex, Real
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation

_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "max": "maximum",
    "min": "minimum",
    "pow": "power",
    "rem": "remainder",
    "atan2": "arctan2",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "shift_left": "left_shift",
    "shift_right": "right_shift",
}
_COMPARE = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def narrow(dtype: DType) -> bool:
    """Whether a float is too short to compute in."""
    return dtype.is_float and dtype.size_bytes < 4


def in_accumulator(dtype: DType, arrays: list[Any], compute: Callable[..., Any]) -> Any:
    """What a function gives for arrays of one type, computed in the type that sums are held in."""
    if not narrow(dtype):
        return compute(*arrays)
    return compute(*(a.astype(mx.float32) for a in arrays)).astype(mlx_type(dtype))


def has_binary(op: Binary) -> bool:
    return op.kind.value in _BINARY


@rule(Binary)
def _binary(call: Call, a: Any, b: Any) -> Any:
    kind, dtype = call.op.kind.value, call.dtype
    if kind in ("div", "rem") and dtype.is_int:
        return _integer_division(dtype, kind, a, b)
    if kind in ("shift_left", "shift_right"):
        return _shifted(dtype, kind, a, b)
    if kind == "pow" and dtype.is_int:
        return _integer_power(dtype, a, b)
    if kind in ("max", "min") and dtype is DType.BOOL:
        return mx.logical_or(a, b) if kind == "max" else mx.logical_and(a, b)
    if kind == "rem":
        return in_accumulator(dtype, [a, b], _float_remainder)
    if kind == "div" and dtype.is_complex:
        return _complex_quotient(a, b)
    return in_accumulator(dtype, [a, b], getattr(mx, _BINARY[kind]))


def _unsigned(dtype: DType) -> Any:
    return mlx_type(DType.of(f"u{dtype.size_bytes * 8}"))


def _magnitude(dtype: DType, x: Any) -> Any:
    """|x| as an unsigned number, which holds that of the smallest one too."""
    return mx.view(mx.where(x < 0, mx.negative(x), x), _unsigned(dtype)) if dtype.is_signed else x


def _integer_division(dtype: DType, kind: str, a: Any, b: Any) -> Any:
    """Toward zero, which is not what MLX does everywhere; 0 for a divisor of 0. The smallest number by -1 wraps."""
    top, bottom = _magnitude(dtype, a), _magnitude(dtype, b)
    quotient = mx.floor_divide(top, mx.where(bottom == 0, mx.ones_like(bottom), bottom))
    if dtype.is_signed:
        quotient = mx.view(quotient, mlx_type(dtype))
        quotient = mx.where((a < 0) != (b < 0), mx.negative(quotient), quotient)
    result = quotient if kind == "div" else a - quotient * b
    return mx.where(b == 0, mx.zeros_like(result), result)


def _float_remainder(a: Any, b: Any) -> Any:
    """With the sign of the dividend."""
    size = mx.abs(a)
    rest = mx.remainder(size, mx.abs(b))
    return with_sign_of(a, mx.where(mx.isinf(b) & mx.isfinite(a), size, rest))


def _complex_quotient(a: Any, b: Any) -> Any:
    """Divided by the larger part of the divisor first, so that no square overflows, and parts that are not finite go
    where NumPy sends them."""
    c, d = mx.real(b), mx.imag(b)
    is_wide = mx.abs(c) >= mx.abs(d)
    large, small = mx.where(is_wide, c, d), mx.where(is_wide, d, c)
    ratio = small / large
    ratio = mx.where((large == 0) & (small == 0), mx.zeros_like(ratio), ratio)
    scale = 1.0 / (large + small * ratio)
    x, y = mx.real(a), mx.imag(a)
    real = mx.where(is_wide, x + y * ratio, x * ratio + y) * scale
    imag = mx.where(is_wide, y - x * ratio, y * ratio - x) * scale
    return make_complex(real, imag)


def make_complex(real: Any, imag: Any) -> Any:
    real, imag = mx.broadcast_arrays(real, imag)
    return mx.view(mx.stack([real, imag], axis=-1), mx.complex64).reshape(real.shape)


def _integer_power(dtype: DType, a: Any, b: Any) -> Any:
    """1 / a^|b| truncated for a negative exponent: only 1 and -1 have one that is not 0."""
    if not dtype.is_signed:
        return mx.power(a, b)
    zero = mx.zeros_like(b)
    result = mx.power(a, mx.where(b < 0, zero, b))
    is_unit = mx.where(a < 0, mx.negative(a), a) == 1
    odd = mx.bitwise_and(b, mx.ones_like(b)) != 0
    reciprocal = mx.where(is_unit, mx.where(odd, a, mx.ones_like(a)), mx.zeros_like(a))
    return mx.where(b < 0, reciprocal, result)


def _shifted(dtype: DType, kind: str, a: Any, b: Any) -> Any:
    bits = dtype.size_bytes * 8
    over = (b >= bits) | (b < 0) if dtype.is_signed else b >= bits
    result = getattr(mx, _BINARY[kind])(a, mx.where(over, mx.zeros_like(b), b))
    beyond = mx.zeros_like(a)
    if kind == "shift_right" and dtype.is_signed:
        beyond = mx.where(a < 0, mx.array(-1, mlx_type(dtype)), beyond)
    return mx.where(over, beyond, result)


@rule(Compare)
def _compare(call: Call, a: Any, b: Any) -> Any:
    if call.dtypes[0] is DType.BOOL:
        a, b = a.astype(mx.uint8), b.astype(mx.uint8)
    return getattr(mx, _COMPARE[call.op.kind.value])(a, b)


@rule(Where)
def _where(call: Call, condition: Any, a: Any, b: Any) -> Any:
    chosen = mx.where(truth(condition), a, b)
    return mx.broadcast_to(chosen, call.dims)


def truth(x: Any) -> Any:
    """Whether numbers are not 0."""
    return x if x.dtype == mx.bool_ else mx.not_equal(x, mx.zeros((), x.dtype))


@rule(Cast)
def _cast(call: Call, x: Any) -> Any:
    return cast(x, call.dtypes[0], call.op.to)


def cast(x: Any, have: DType, to: DType) -> Any:
    """x converted, as the op `Cast` defines it."""
    if have is to:
        return x
    if have in CODED:
        return cast(mx.take(mx.array(_values(have)), x.astype(mx.uint32)), DType.F32, to)
    if have.is_complex and not to.is_complex:
        return cast(mx.real(x), have.real, to)
    if to is DType.BOOL:
        return truth(x)
    if to in CODED:
        return _encoded(cast(x, have, DType.F32), to)
    if to.is_complex:
        return cast(x, have, DType.F32).astype(mx.complex64)
    if have.is_float and to.is_int:
        return _float_to_int(x.astype(mx.float32) if narrow(have) else x, to)
    if to in (DType.I4, DType.U4):
        x = x.astype(mx.int32) if have is DType.BOOL else x
        low = mx.bitwise_and(x, mx.array(15, x.dtype)).astype(mx.int8)
        return mx.where(low > 7, low - 16, low) if to is DType.I4 else low.astype(mx.uint8)
    return x.astype(mlx_type(to))


def _float_to_int(x: Any, to: DType) -> Any:
    """Toward zero; what does not fit becomes the end of the range, NaN 0."""
    info = ml_dtypes.iinfo(to.numpy)
    low, high = x <= float(info.min), x >= float(info.max)
    held = mlx_type(to)
    inside = mx.where(low | high | (x != x), mx.zeros_like(x), x).astype(held)
    ends = (
        mx.array(
            np.asarray(n, to.numpy).astype(np.int8 if to is DType.I4 else np.uint8)
            if to.is_storage
            else np.asarray(n, to.numpy)
        )
        for n in (info.min, info.max)
    )
    least, most = ends
    return mx.where(low, least, mx.where(high, most, inside))


def _values(coded: DType) -> np.ndarray[Any, np.dtype[Any]]:
    """What the codes of a small float stand for."""
    count = 16 if coded is DType.F4E2M1 else 256
    return np.arange(count, dtype=np.uint8).view(coded.numpy).astype(np.float32)


def _encoded(x: Any, to: DType) -> Any:
    """The codes of small floats, rounded to even: positions in the ascending list of the halves between neighbours."""
    values = _values(to)
    bits = 3 if to is DType.F4E2M1 else 7
    positive = values[: 1 << bits].astype(np.float64)
    finite = positive[np.isfinite(positive)]
    beyond = 2 * finite[-1] - finite[-2]
    halves = (finite + np.append(finite[1:], beyond)) / 2
    size = mx.abs(x)
    edges = mx.array(halves.astype(np.float32))
    above = mx.searchsorted(edges, size, side="left").astype(mx.uint8)
    # A tie between an odd code and the next even one goes up.
    ties = mx.take(edges, mx.minimum(above, len(finite) - 1).astype(mx.uint32)) == size
    code = mx.where(ties & (mx.bitwise_and(above, mx.array(1, mx.uint8)) == 1), above + mx.array(1, mx.uint8), above)
    largest, not_a_number = _ends(to, len(finite))
    code = mx.minimum(code, mx.array(largest, mx.uint8))
    code = mx.where(x != x, mx.array(not_a_number, mx.uint8), code)
    sign = mx.where(has_sign(x), mx.array(1 << bits, mx.uint8), mx.array(0, mx.uint8))
    return mx.bitwise_or(code, sign)


def _ends(to: DType, count: int) -> tuple[int, int]:
    """The codes of what is too large, and of NaN, of a positive sign."""
    huge, nan = np.array([np.float32(3e38), np.float32(math.nan)]).astype(to.numpy).view(np.uint8)
    half = 7 if to is DType.F4E2M1 else 127
    return int(huge) & half, int(nan) & half


@rule(Real)
def _real(call: Call, z: Any) -> Any:
    return mx.real(z)


@rule(Imag)
def _imag(call: Call, z: Any) -> Any:
    return mx.imag(z)


@rule(MakeComplex)
def _make_complex(call: Call, real: Any, imag: Any) -> Any:
    return make_complex(real, imag)


def has_activation(op: Activation, dtype: DType) -> bool:
    if dtype.is_complex:
        return op.kind.value in ("exp", "log", "sqrt", "neg", "sin", "cos", "tanh")
    return op.kind.value in FUNCTIONS


@rule(Activation)
def _activation(call: Call, x: Any) -> Any:
    kind, dtype = call.op.kind.value, call.dtype
    if dtype.is_int and kind not in ("neg", "abs"):
        return x
    return in_accumulator(dtype, [x], FUNCTIONS[kind])


@rule(Predicate)
def _predicate(call: Call, x: Any) -> Any:
    kind = call.op.kind.value
    if call.dtypes[0].is_complex:
        answers = [_asked(kind, part) for part in (mx.real(x), mx.imag(x))]
        return mx.logical_and(*answers) if kind == "isfinite" else mx.logical_or(*answers)
    return _asked(kind, x)


def _asked(kind: str, x: Any) -> Any:
    return has_sign(x) if kind == "signbit" else getattr(mx, kind)(x)


@rule(BitUnary)
def _bit_unary(call: Call, x: Any) -> Any:
    return mx.logical_not(x) if call.dtype is DType.BOOL else mx.bitwise_invert(x)


def has_bit_unary(op: BitUnary) -> bool:
    return op.kind.value == "not"


@rule(Bitcast)
def _bitcast(call: Call, x: Any) -> Any:
    """The same bits; axes hold the parts of an element that is longer. Two 4-bit numbers are one byte."""
    have, want = call.dtypes[0], call.dtype
    if not math.prod(call.dims):
        return call.zeros()
    flat = x.reshape(-1)
    four = (DType.I4, DType.U4, DType.F4E2M1)
    if have in four and want in four:
        return _nibbles_as(flat, want).reshape(call.dims)
    if have in four:
        pairs = mx.bitwise_and(flat.astype(mx.uint8), mx.array(15, mx.uint8)).reshape(-1, 2)
        flat = mx.bitwise_or(pairs[:, 0], mx.left_shift(pairs[:, 1], mx.array(4, mx.uint8)))
    if want in four:
        data = mx.view(flat, mx.uint8)
        high = mx.right_shift(data, mx.array(4, mx.uint8))
        pairs = mx.stack([mx.bitwise_and(data, mx.array(15, mx.uint8)), high], axis=-1).reshape(-1)
        return _nibbles_as(pairs, want).reshape(call.dims)
    return mx.view(flat, mlx_type(want)).reshape(call.dims)


def _nibbles_as(codes: Any, want: DType) -> Any:
    """Four bits as they are held for a type: those of a signed one have its sign."""
    low = mx.bitwise_and(codes.astype(mx.uint8), mx.array(15, mx.uint8))
    if want is not DType.I4:
        return low
    signed = low.astype(mx.int8)
    return mx.where(signed > 7, signed - mx.array(16, mx.int8), signed)
