"""Wider arithmetic for composite ops: they are evaluated in f64 and decomposed in the accumulator type, rounding once.

The accumulator of f16 and bf16 is f32; f32 and f64 are their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.define.operands import convert, dtype_of

Array = np.ndarray[Any, np.dtype[Any]]


def as_f64(*arrays: Array) -> tuple[Array, ...]:
    """The arrays in f64, complex ones in c128."""
    return tuple(a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in arrays)


def rounded(value: Any, dtype: np.dtype[Any]) -> Array:
    """A result computed in f64, in the dtype of the op; what is too large becomes inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(value).astype(dtype)


def accumulators(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in the type their sums are held in."""
    return tuple(convert(t, dtype_of(t).accumulator) for t in tensors)


def rounded_tensor(value: Any, dtype: DType) -> Any:
    """A result computed in the accumulator type, in the dtype of the op."""
    return convert(value, dtype)
