"""Powers with small whole exponents as products: `x ** 3` -> `x * x * x`.

f32 is multiplied in f64 and rounded once; the cube needs no more digits than its type has, as two roundings are within
the bound of powers. Half floats are multiplied in f32. f64 has products for the cube alone: of more factors they would
be less precise than the power itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.leaves import Constant
from rlx.ops.define.operands import convert

Form = Callable[..., Any]

MOST = 16


def power_form(has_f64: bool, base: Any, exponent: Any) -> Form | None:
    """Products for a power; None if it is better left as it is."""
    count = _whole_number(exponent)
    if count is None or not base.dtype.is_float or base.dtype.is_storage:
        return None
    wide = base.dtype.accumulator
    if wide is base.dtype and count > 3:
        if wide is DType.F64 or not has_f64:
            return None
        wide = DType.F64

    def build(x: Any, _: Any) -> Any:
        return convert(_product(convert(x, wide), count), x.dtype)

    return build


def _whole_number(exponent: Any) -> int | None:
    """The exponent, if it is a constant of one element for which there are products."""
    op = exponent.node.op
    if not isinstance(op, Constant) or op.value.array.size != 1:
        return None
    if any(size != 1 for size in exponent.shape):
        return None
    value = float(op.value.array.reshape(()))
    return int(value) if value in range(3, MOST + 1) else None


def _product(x: Any, count: int) -> Any:
    """x to a positive power by squaring; that of 3 is x·x·x."""
    if count == 1:
        return x
    half = _product(x, count // 2)
    square = half * half
    return square * x if count % 2 else square
