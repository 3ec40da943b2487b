"""Round half away from zero (C's `round`), which the quantised ops use; the `Round` activation is half to even."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.pointwise.arithmetic import add, ge, sub, where
from rlx.ops.pointwise.unary import abs_, sign, trunc

Array = np.ndarray[Any, np.dtype[Any]]


def half_away_array(x: Array) -> Array:
    """`round_half_away` of a NumPy array, in its own dtype.

    >>> half_away_array(np.array([0.5, -0.5, 1.5, 2.5, 0.49999997], np.float32)).tolist()
    [1.0, -1.0, 2.0, 3.0, 0.0]
    """
    with np.errstate(invalid="ignore"):
        whole = np.trunc(x)
        # x - trunc(x) is exact, where floor(|x| + 0.5) would round 0.49999997 up.
        return np.asarray(np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole), dtype=x.dtype)


def round_half_away(x: Any) -> Any:
    """The integer nearest to x, ties away from zero, as a float."""
    whole = trunc(x)
    return where(ge(abs_(sub(x, whole)), 0.5), add(whole, sign(x)), whole)


def quantizer_dtype(dtype: DType) -> DType:
    """The type in which a value is divided by its step and rounded: f64 for f64, f32 for all other floats.

    It is part of the meaning of the quantised ops: a wider type would break ties differently.
    """
    return DType.F64 if dtype is DType.F64 else DType.F32
