"""Numbers rounded to fewer digits than their type has: `reduce_precision`."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.autodiff.custom_rules import custom_jvp
from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.numpy.arguments import array_function, inexact
from rlx.ops.define.operands import convert, dtype_of

# Bits of the exponent and of the mantissa.
_FLOATS = {(8, 7): DType.BF16, (5, 10): DType.F16, (8, 23): DType.F32, (11, 52): DType.F64}


@array_function
def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """operand rounded to a float type of that many bits, to even between neighbours, in its own dtype.

    What is too large becomes infinite. What is smaller than the normal numbers of a type that no dtype is becomes 0.
    Gradients pass straight through.
    """
    (x,) = inexact(operand)
    own = dtype_of(x)
    narrow = _FLOATS.get((exponent_bits, mantissa_bits))
    if narrow is not None:
        return convert(convert(x, narrow), own)
    most, digits = (11, 52) if own is DType.F64 else (8, 23)
    if own.is_complex or not (1 <= exponent_bits <= most and 0 <= mantissa_bits <= digits):
        raise OpError(
            f"reduce_precision: {own} has up to {most} exponent and {digits} mantissa bits, got {exponent_bits} and "
            f"{mantissa_bits}"
        )
    wide = convert(x, DType.F64 if own is DType.F64 else DType.F32)
    return convert(_straight_through(wide, exponent_bits, digits - mantissa_bits), own)


def _rounded(x: Any, exponent_bits: int, dropped: int) -> Any:
    """x without the last `dropped` digits of its mantissa, within the range of the exponent."""
    word = DType.U64 if dtype_of(x) is DType.F64 else DType.U32
    y = x
    if dropped:
        bits = ops.bitcast(x, word)

        def number(value: int) -> Any:
            return ops.full((), value, word)

        is_odd = ops.and_(ops.shift_right_logical(bits, number(dropped)), number(1))
        bits = ops.add(bits, ops.add(is_odd, number(2 ** (dropped - 1) - 1)))
        width = 8 * word.numpy.itemsize
        y = ops.bitcast(ops.and_(bits, number(2**width - 2**dropped)), dtype_of(x))
    bias = 2 ** (exponent_bits - 1) - 1
    size, sign = ops.abs_(y), ops.copysign(1.0, x)
    y = ops.where(ops.lt(size, 2.0 ** (1 - bias)), 0.0 * sign, y)
    if 2.0 ** (bias + 1) <= float(1.7e308 if word is DType.U64 else 3.4e38):
        y = ops.where(ops.ge(size, 2.0 ** (bias + 1)), float("inf") * sign, y)
    return ops.where(ops.ne(x, x), x, y)


_straight_through = custom_jvp(_rounded, nondiff_argnums=(1, 2))
_straight_through.defjvp(
    lambda exponent_bits, dropped, primals, tangents: (_straight_through(*primals, exponent_bits, dropped), tangents[0])
)
